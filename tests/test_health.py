import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from ccpretrieve.model.losses import ccp_loss
from ccpretrieve.training.health import Health, Thresholds
from ccpretrieve.training.leak import LeakProbe
from ccpretrieve.training.measures import (
    Vitals,
    alignment,
    bank_accuracy,
    effective_rank,
    information_bound,
    measure,
    spread,
    uniformity,
)


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(*values):
    return torch.tensor(values, dtype=torch.float32)


def unit(z):
    return [[value / math.hypot(*row) for value in row] for row in z.tolist()]


# -- measures --


def test_alignment_worked_example():
    # (1, 0) and (0, 3) become (1, 0) and (0, 1), 2 apart when squared; (0, 2) and (0, 1) are one.
    assert alignment(rows([1, 0], [0, 2]), rows([0, 3], [0, 1])) == pytest.approx((2 + 0) / 2)
    assert alignment(rows([1, 0]), rows([-5, 0])) == pytest.approx(4)


def test_uniformity_is_the_mean_over_pairs_of_different_rows():
    z = random(0, 7, 4)
    x = unit(z)
    potentials = [
        math.exp(-2 * sum((p - q) ** 2 for p, q in zip(a, b, strict=True)))
        for i, a in enumerate(x)
        for j, b in enumerate(x)
        if i != j
    ]
    expected = math.log(sum(potentials) / len(potentials))
    assert uniformity(z) == pytest.approx(expected, rel=1e-6)


def test_uniformity_worked_example():
    assert uniformity(rows([1, 0], [-3, 0])) == pytest.approx(-8)  # log exp(-2 * 2^2)
    assert uniformity(rows([1, 0], [-3, 0]), t=0.5) == pytest.approx(-2)
    assert uniformity(torch.ones(5, 3)) == pytest.approx(0, abs=1e-12)


def test_effective_rank_worked_example():
    # 1, -1 along x three times, along y once: singular values sqrt 6 and sqrt 2, that is shares of
    # 0.634 and 0.366, whose entropy is 0.6568 and exp of it 1.929.
    both = rows([1, 0], [-1, 0])
    z = torch.cat([both, both, both, both.flip(1)])
    assert effective_rank(z) == pytest.approx(1.929, abs=5e-4)
    assert effective_rank(torch.cat([both, both.flip(1)])) == pytest.approx(2)
    assert effective_rank(both) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_effective_rank_is_that_of_the_singular_values_about_the_mean(shape):
    z = random(1, *shape) + 2
    x = np.array(unit(z))
    s = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    p = s / s.sum()
    p = p[p > 1e-12]  # 0 log 0 is 0
    expected = math.exp(-(p * np.log(p)).sum())
    assert effective_rank(z) == pytest.approx(expected, rel=1e-4)
    assert 1 < expected < min(shape[0] - 1, shape[1])


def test_an_offset_that_all_rows_share_is_no_direction():
    z = random(0, 20, 40)
    far = z + 1000 * random(1, 40)
    assert effective_rank(far) > 0.8 * effective_rank(z)
    assert spread(far) < 0.01 < spread(z)


def test_what_has_collapsed_measures_as_collapsed():
    z = random(0, 1, 8).repeat(16, 1)
    assert effective_rank(z) == 0
    assert spread(z) == pytest.approx(0, abs=1e-7)
    assert spread(z.bfloat16()) == pytest.approx(0, abs=1e-7)


def test_a_nan_is_passed_on():
    z = random(0, 4, 3)
    z[1, 1] = math.nan
    for value in (effective_rank(z), spread(z), uniformity(z), alignment(z, z)):
        assert math.isnan(value)


def test_spread_worked_example():
    assert spread(rows([2, 0], [-1, 0])) == pytest.approx(1)  # mean 0, each 1 from it
    # (1, 0) and (0, 1): mean (1/2, 1/2), each sqrt(1/4 + 1/4) from it
    assert spread(rows([5, 0], [0, 1])) == pytest.approx(math.sqrt(1 / 2))


def test_accuracy_against_the_bank_worked_example():
    z_c = rows([1, 0], [0, 2], [1, 1])
    z_i = rows([9, 1], [1, 0], [0, 1])
    # cosines with the partner: 9 / sqrt 82 = 0.994, 0, 0.707; best of the bank: 0.8, 0.6, 0.990
    assert bank_accuracy(z_c, z_i, rows([8, 6])) == pytest.approx(1 / 3)
    assert bank_accuracy(z_c, z_i, rows([-1, -1])) == 1.0
    assert math.isnan(bank_accuracy(z_c, z_i, torch.empty(0, 2)))


def test_a_draw_with_the_bank_is_a_miss():
    z = torch.ones(4, 3)
    assert bank_accuracy(z, z, z) == 0.0


def test_the_bound_is_all_of_log_candidates_at_loss_0_and_nothing_at_guessing():
    assert information_bound(0.0, 64) == pytest.approx(math.log(64))
    z = torch.ones(4, 3)  # all alike: every candidate has the same share
    loss = ccp_loss(z, torch.tensor([0, 1, 0, 1]), z, temperature=0.1)
    assert information_bound(loss.loss.item(), loss.candidates) == pytest.approx(0, abs=1e-6)


def test_vitals_of_a_batch():
    h_c, h_i = random(0, 6, 5), random(1, 6, 5)
    windows = torch.arange(6).repeat(2)
    contrast = ccp_loss(
        torch.cat([h_c, h_i]), windows, random(2, 3, 5), temperature=0.5, reduction="sum"
    )
    vitals = measure(h_c, h_i, contrast, bank_accuracy=0.25)
    assert vitals.loss == pytest.approx(contrast.loss.item() / 12)  # 12 pairs, both ways
    assert vitals.candidates == 5 + 6 + 3
    assert vitals.bound == pytest.approx(math.log(14) - vitals.loss)
    assert vitals.accuracy == contrast.accuracy.item()
    assert vitals.bank_accuracy == 0.25
    assert vitals.alignment == alignment(h_c, h_i)
    assert (vitals.uniformity, vitals.effective_rank) == (uniformity(h_c), effective_rank(h_c))
    assert vitals.spread == spread(h_c)
    assert math.isnan(measure(h_c, h_i, contrast).bank_accuracy)


# -- the verdict --

GOOD = Vitals(
    loss=1.0,
    candidates=100.0,
    accuracy=0.7,
    bank_accuracy=0.6,
    bound=math.log(100) - 1,
    alignment=0.3,
    uniformity=-2.0,
    effective_rank=40.0,
    spread=0.6,
)
GUESS = dataclasses.replace(GOOD, loss=4.6, bound=math.log(100) - 4.6, accuracy=0.01)
CLOSE = dataclasses.replace(GOOD, spread=0.02, uniformity=-0.002)
COLLAPSED = dataclasses.replace(GUESS, spread=0.02, uniformity=-0.002)
LEAK = LeakProbe(1.0, 2.0, 2.5, 0.1, 0.9, 0.5, batches=8, rows=32)
SOUND = dataclasses.replace(LEAK, training_loss=2.0, training_company=0.5)


def course(*vitals, language="ja", health=None):
    health = health or Health()
    for each in vitals:
        health.observe(language, each)
    return health


def kinds(health):
    return [warning.partition(":")[0] for warning in health.verdict()]


def test_nothing_is_wrong_before_anything_is_measured_or_when_all_is_well():
    assert Health().verdict() == []
    assert course(*[GOOD] * 100).verdict() == []


def test_embeddings_close_together_are_no_collapse_while_contexts_are_told_apart():
    assert course(*[CLOSE] * 100).verdict() == []


def test_a_collapse_is_said_with_its_language():
    health = course(*[COLLAPSED] * 60)
    course(*[GOOD] * 60, language="en", health=health)
    (warning,) = health.verdict()
    assert warning.startswith("collapse: all sentences get nearly the same embedding (spread ja")
    assert "0.02" in warning
    assert "en" not in warning.partition("(")[2].partition(")")[0]


def test_guessing_without_collapse_is_said_as_that():
    assert kinds(course(*[GUESS] * 60)) == ["guessing"]


def test_a_loss_that_rose_above_guessing_is_no_guessing():
    above = dataclasses.replace(GOOD, loss=9.0, bound=math.log(100) - 9)
    (warning,) = course(*[GOOD] * 60, *[above] * 5).verdict()
    assert warning.startswith("diverged: the loss is above that of guessing")
    assert "(bound ja -4.4 nats)" in warning  # log 100 is 4.6
    # above guessing as it began: a head that is still catching up, not one that ran away
    assert kinds(course(*[above] * 60)) == ["guessing"]
    nearer = dataclasses.replace(GOOD, loss=7.0, bound=math.log(100) - 7)
    assert kinds(course(*[above] * 60, *[nearer] * 5)) == ["guessing"]


def test_health_is_said_of_what_was_measured_only():
    health = Health()
    assert health.assurance().startswith("health: too little was measured")
    course(*[GOOD] * (Thresholds().patience - 1), health=health)
    assert health.unmeasured() == ["leak", "collapse"]
    health.observe_probe(1, "ja", SOUND)
    assert health.assurance().startswith("healthy: no leak; not measured enough: collapse (49 ")
    course(GOOD, health=health)
    assert (health.unmeasured(), health.assurance()) == ([], "healthy: no leak, no collapse")
    unprobed = course(*[GOOD] * 60)
    assert unprobed.assurance().startswith("healthy: no collapse; not measured enough: leak (60 ")
    assert unprobed.summary()["unmeasured"] == ["leak"]


def test_learning_is_not_judged_before_patience_is_over():
    below_guessing = dataclasses.replace(COLLAPSED, loss=8.0, bound=math.log(100) - 8)
    patience = Thresholds().patience
    health = course(*[below_guessing] * (patience - 1))
    assert health.verdict() == []
    course(below_guessing, health=health)
    assert kinds(health) == ["collapse"]


def test_patience_is_of_all_languages_together_but_each_needs_a_window():
    health = course(*[GOOD] * 60, language="en")
    course(*[COLLAPSED] * 4, health=health)
    assert health.verdict() == []
    course(COLLAPSED, health=health)
    assert kinds(health) == ["collapse"]


def test_single_odd_steps_do_not_count():
    assert course(*[GOOD] * 60, COLLAPSED, COLLAPSED).verdict() == []
    assert kinds(course(*[GOOD] * 60, *[COLLAPSED] * 3)) == ["collapse"]  # 3 of the last 5


def test_few_directions_are_measured_by_the_start():
    few = dataclasses.replace(GOOD, effective_rank=9.0)  # a quarter of 40 is 10
    assert kinds(course(*[GOOD] * 5, *[few] * 5)) == ["few directions"]
    assert course(*[few] * 100).verdict() == []
    # with 3 + 3 the first five have a median of 40 and the last five one of 9, but they overlap
    assert course(*[GOOD] * 3, *[few] * 3).verdict() == []
    some = dataclasses.replace(GOOD, effective_rank=11.0)
    assert course(*[GOOD] * 5, *[some] * 50).verdict() == []


def test_embeddings_that_are_not_finite_are_said_at_once():
    broken = dataclasses.replace(GOOD, spread=math.nan, effective_rank=math.nan, loss=math.nan)
    assert kinds(course(GOOD, broken)) == ["not finite"]


def test_a_leak_needs_most_of_the_latest_probes():
    health = Health()
    health.observe_probe(100, "ja", LEAK)
    (warning,) = health.verdict()
    assert warning.startswith("leak: at step 100 (ja) the loss as trained is 1.00, but 2.00 with")
    assert "2.50 with rows mixed" in warning
    health.observe_probe(200, "en", SOUND)
    assert health.verdict() == []  # one of two
    health.observe_probe(300, "ja", LEAK)
    assert kinds(health) == ["leak"]  # two of three
    health.observe_probe(400, "ja", SOUND)
    assert health.verdict() == []  # of the latest three, one


def test_news_says_each_kind_once_until_it_is_over():
    health = Health()
    health.observe_probe(1, "ja", LEAK)
    assert len(health.news()) == 1
    health.observe_probe(2, "ja", LEAK)
    assert health.news() == []
    for step in (3, 4):
        health.observe_probe(step, "ja", SOUND)
    assert health.news() == []
    for step in (5, 6):
        health.observe_probe(step, "ja", LEAK)
    assert len(health.news()) == 1


def test_many_languages_are_counted_rather_than_listed():
    health = Health()
    for number in range(9):
        course(*[COLLAPSED] * 6, language=f"l{number}", health=health)
    (warning,) = health.verdict()
    assert "l4 0.02 and 4 more languages" in warning
    assert "l5" not in warning


def test_the_summary_is_json_and_has_the_spread_of_each_language():
    health = course(*[GOOD] * 5, *[dataclasses.replace(GOOD, spread=0.5)] * 5)
    unmeasured = dataclasses.replace(GOOD, bank_accuracy=math.nan)
    course(unmeasured, language="th", health=health)
    health.observe_probe(7, "ja", LEAK)
    summary = health.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    japanese = summary["languages"]["ja"]
    assert (japanese["start"]["spread"], japanese["now"]["spread"]) == (0.6, 0.5)
    assert japanese["observations"] == 10
    assert summary["languages"]["th"]["now"]["bank_accuracy"] is None
    assert summary["probes"][0]["gain"] == 1.0
    assert summary["verdict"] == health.verdict()


def test_resumed_equals_never_stopped():
    unmeasured = dataclasses.replace(GOOD, bank_accuracy=math.nan)
    before = course(*[unmeasured] * 7, *[COLLAPSED] * 60)
    before.observe_probe(3, "ja", LEAK)
    before.news()
    after = Health()
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.verdict() == before.verdict()
    assert len(after.verdict()) == 2
    assert after.news() == []
    for health in (before, after):
        course(*[GOOD] * 3, health=health)
        health.observe_probe(4, "ja", SOUND)
    assert after.summary() == before.summary()
    assert json.dumps(after.state_dict()) == json.dumps(before.state_dict())


def test_thresholds_are_settings():
    assert kinds(course(*[GOOD] * 60)) == []
    strict = Health(Thresholds(guessing=0.9))
    assert kinds(course(*[GOOD] * 60, health=strict)) == ["guessing"]
