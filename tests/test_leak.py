"""The leak probe on heads and batches that leak by construction, and on those that cannot."""

import copy
import dataclasses
import math

import pytest
import torch

from ccpretrieve.errors import UserError
from ccpretrieve.model.projection import Projection
from ccpretrieve.training.health import Thresholds
from ccpretrieve.training.leak import LeakProbe, _company, _mixed, leak_probe

WIDTH = 80
CODE = 64  # of which dimensions write down the batch; the others are what a sentence says


def leaking_batch(generator, rows, shared=0.0):
    """Centres and contexts whose batch norm says which batch they are of.

    Row 0 of both sides holds a code that is drawn for the batch, the other rows nothing. Their
    embeddings know nothing of the batch, but minus the mean, which is code / rows, writes the code
    into each of them. Partners have the share ``shared`` of their content's variance in common.
    """
    code = torch.randint(0, 2, (CODE,), generator=generator) * 2.0 - 1
    common = torch.randn(rows, WIDTH - CODE, generator=generator)
    sides = []
    for _ in range(2):
        alone = torch.randn(rows, WIDTH - CODE, generator=generator)
        content = shared**0.5 * common + (1 - shared) ** 0.5 * alone
        written = torch.zeros(rows, CODE)
        written[0] = 5 * code
        sides.append(torch.cat([written, content], dim=1))
    return sides


def honest_batch(generator, rows, shared):
    """Centres and contexts about a common mean that have something in common."""
    common = torch.randn(rows, WIDTH, generator=generator)
    return [
        shared**0.5 * common
        + (1 - shared) ** 0.5 * torch.randn(rows, WIDTH, generator=generator)
        + 3
        for _ in range(2)
    ]


def trained(batch, batch_norm, steps=100, **settings):
    """An identity head whose running statistics have seen some batches."""
    head = Projection(WIDTH, batch_norm=batch_norm, activation="none", **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for g in head.heads:
            for linear in (g.inner, g.outer):
                linear.weight.copy_(torch.eye(WIDTH))
                linear.bias.zero_()
        for step in range(steps):
            head(*batch(generator), step=step, generator=generator)
    return head


def probed(head, batch, batches=8, step=100, temperature=0.2, seed=2):
    generator = torch.Generator().manual_seed(seed)
    (h_c, h_i), *others = [batch(generator) for _ in range(batches)]
    return leak_probe(
        head,
        h_c,
        h_i,
        others_c=torch.cat([c for c, _ in others]),
        others_i=torch.cat([i for _, i in others]),
        temperature=temperature,
        step=step,
    )


@pytest.mark.parametrize("rows", [4, 8, 32])
@pytest.mark.parametrize("shared", [0.0, 0.3])
def test_plain_batch_norm_leaks_what_its_batch_writes_into_its_statistics(rows, shared):
    def batch(generator):
        return leaking_batch(generator, rows, shared)

    probe = probed(trained(batch, "plain"), batch)
    assert Thresholds().is_leak(probe)
    # all but row 0 carry the code, and of their typical context the same is true
    assert probe.training_company == pytest.approx((rows - 1) / rows, abs=0.05)
    assert probe.evaluation_company == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("rows", [4, 32])
@pytest.mark.parametrize("shared", [0.0, 0.9])
@pytest.mark.parametrize("step", [100, 101])
@pytest.mark.parametrize(
    "settings",
    [
        {"batch_norm": "asymmetric"},
        {"batch_norm": "asymmetric", "order": "centers-first"},
        {"batch_norm": "asymmetric", "heads": "two"},
        {"batch_norm": "none"},
    ],
    ids=str,
)
def test_asymmetric_batch_norm_does_not_leak_on_the_same_batches(rows, shared, step, settings):
    def batch(generator):
        return leaking_batch(generator, rows, shared)

    probe = probed(trained(batch, **settings), batch, step=step)
    assert not Thresholds().is_leak(probe)
    assert probe.gain < 0.5 * Thresholds().leak_gain * probe.worth + 4 * probe.error
    assert probe.company <= 0.1


def test_a_whole_leak_brings_what_knowing_the_batch_is_worth():
    # Content is nothing, so that all a vector shows is the code, which it has in common with its
    # batch alone: among 2N - 1 = 31 candidates of its own batch and 7 * 16 others it is left with
    # the 31 (row 0 apart), log(143 / 31) = 1.529 nats.
    def batch(generator):
        sides = leaking_batch(generator, 16)
        return [torch.cat([side[:, :CODE], side[:, CODE:] * 1e-4], dim=1) for side in sides]

    head = trained(batch, "plain")
    probe = probed(head, batch, temperature=0.1)
    assert probe.worth == pytest.approx(1.529, abs=5e-4)
    assert probe.gain > 0.5 * probe.worth


@pytest.mark.parametrize("rows", [2, 4, 48])
@pytest.mark.parametrize("shared", [0.3, 0.95])
@pytest.mark.parametrize("steps", [0, 50])
@pytest.mark.parametrize("batch_norm", ["plain", "asymmetric"])
def test_honest_batches_raise_no_alarm_however_young_the_head_and_small_the_batch(
    rows, shared, steps, batch_norm
):
    def batch(generator):
        return honest_batch(generator, rows, shared)

    torch.manual_seed(0)
    head = Projection(WIDTH, batch_norm=batch_norm)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for step in range(steps):
            head(*batch(generator), step=step)
    for seed in range(2):
        assert not Thresholds().is_leak(
            probed(head, batch, step=steps, temperature=0.05, seed=seed)
        )


def test_statistics_that_lag_behind_raise_the_evaluation_loss_alone():
    def batch(generator):
        return honest_batch(generator, 48, 0.7)

    torch.manual_seed(0)
    probe = probed(Projection(WIDTH, batch_norm="plain"), batch, step=0, temperature=0.05)
    assert probe.evaluation_loss > probe.training_loss + 2
    assert probe.shuffled_loss < probe.training_loss + 0.3


@pytest.mark.parametrize("batch_norm", ["plain", "asymmetric"])
@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_collapsed_embeddings_are_no_leak(batch_norm, noise):
    def batch(generator):
        return [1 + noise * side for side in honest_batch(generator, 16, 0.5)]

    probe = probed(trained(batch, batch_norm, steps=20), batch)
    assert not Thresholds().is_leak(probe)
    if noise == 0:
        assert probe.training_company == pytest.approx(0.5, abs=0.02)


def test_batches_that_have_a_document_in_common_are_no_leak():
    def batch(generator):
        topic = 3 * torch.randn(1, WIDTH, generator=generator)
        return [side + topic for side in honest_batch(generator, 16, 0.5)]

    for batch_norm in ("plain", "asymmetric"):
        probe = probed(trained(batch, batch_norm), batch)
        assert probe.evaluation_company > 0.9
        assert not Thresholds().is_leak(probe)


def read_aloud(z_c, z_i, rows, temperature):
    """Each batch with the contexts of the others as its bank, in nested loops and plain floats."""

    def cos(a, b):
        return sum(p * q for p, q in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    losses = []
    for start in range(0, len(z_c), rows):
        own = range(start, start + rows)
        batch = [z_c[r] for r in own] + [z_i[r] for r in own]
        bank = [z_i[r] for r in range(len(z_i)) if r not in own]
        for c in range(2 * rows):
            others = [batch[k] for k in range(2 * rows) if k != c] + bank
            total = sum(math.exp(cos(batch[c], other) / temperature) for other in others)
            partner = batch[(c + rows) % (2 * rows)]
            losses.append(math.log(total) - cos(batch[c], partner) / temperature)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("heads", ["one", "two"])
def test_losses_are_those_of_each_batch_against_the_contexts_of_the_others(heads, step):
    head = Projection(6, batch_norm="asymmetric", heads=heads).double()
    generator = torch.Generator().manual_seed(0)
    rows, batches = 4, 3
    h_c, h_i = (
        torch.randn(batches * rows, 6, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    probe = leak_probe(
        head,
        h_c[:rows],
        h_i[:rows],
        others_c=h_c[rows:],
        others_i=h_i[rows:],
        temperature=0.3,
        step=step,
    )
    with torch.no_grad():
        alone = [
            head.evaluate(h_c, side="centers").tolist(),
            head.evaluate(h_i, side="contexts").tolist(),
        ]
        trained_z = [[], []]
        for start in range(0, len(h_c), rows):
            own = slice(start, start + rows)
            each = copy.deepcopy(head)(h_c[own], h_i[own], step=step)
            for side, part in zip(trained_z, each, strict=True):
                side += part.tolist()
    assert probe.evaluation_loss == pytest.approx(read_aloud(*alone, rows, 0.3), abs=1e-5)
    assert probe.training_loss == pytest.approx(read_aloud(*trained_z, rows, 0.3), abs=1e-5)
    assert (probe.batches, probe.rows) == (3, 4)


def test_without_batch_norm_the_three_losses_are_one():
    def batch(generator):
        return honest_batch(generator, 5, 0.5)

    probe = probed(Projection(WIDTH, batch_norm="none"), batch)
    assert probe.training_loss == pytest.approx(probe.evaluation_loss, abs=1e-5)
    assert probe.training_loss == pytest.approx(probe.shuffled_loss, abs=1e-5)
    assert probe.gain == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(("batches", "rows"), [(8, 48), (4, 16), (2, 4), (8, 4), (5, 48), (3, 7)])
def test_mixed_groups_say_nothing_of_batch_or_partner(batches, rows):
    of_centers, of_contexts = _mixed(batches, rows, torch.device("cpu"))
    own = torch.arange(batches * rows) // rows

    def shared(a, b):
        """How many rows each group of one kind has in common with each of the other."""
        return torch.bincount(a * batches + b, minlength=batches**2).view(batches, batches)

    for groups in (of_centers, of_contexts):
        assert torch.bincount(groups).tolist() == [rows] * batches
    for a, b in ((of_centers, own), (of_contexts, own), (of_centers, of_contexts)):
        counts = shared(a, b)
        assert counts.max() - counts.min() <= 1


def test_training_does_not_notice_the_probe():
    def batch(generator):
        return honest_batch(generator, 8, 0.5)

    head = trained(batch, "shuffled", groups=2)
    before = copy.deepcopy(head.state_dict())
    torch.manual_seed(7)
    expected = torch.get_rng_state()
    first = probed(head, batch)
    assert torch.equal(torch.get_rng_state(), expected)
    assert all(torch.equal(before[name], value) for name, value in head.state_dict().items())
    assert all(parameter.grad is None for parameter in head.parameters())
    assert probed(head, batch) == first


def test_a_rest_of_others_that_is_no_whole_batch_is_left_out():
    head, h = Projection(WIDTH), torch.randn(20, WIDTH)

    def probe(last):
        others = h[4:last]
        return leak_probe(
            head, h[:4], h[:4], others_c=others, others_i=others, temperature=0.1, step=0
        )

    assert probe(19) == probe(16)  # 15 others are three batches of 4 and a rest of 3
    assert probe(19).batches == 4
    assert probe(20).batches == 5


def test_half_precision_and_gradients_of_the_training_are_taken_as_they_come():
    h = torch.randn(16, WIDTH, requires_grad=True).bfloat16()
    probe = leak_probe(
        Projection(WIDTH), h[:4], h[:4], others_c=h[4:], others_i=h[4:], temperature=0.1, step=0
    )
    assert math.isfinite(probe.training_loss)


def test_company_by_hand():
    # Two batches of two. The partner's place is left out, so that "typical" is the one other row.
    # Centre 0 (along x) has context 1 (x) of its own batch and context 3 (y) of the other: nearer.
    # Centre 1 (y) has context 0 (x) of its own and context 2 (y) of the other: farther.
    # Centres 2 and 3 (x) have contexts 3 (y), 2 (y) of their own and 1 (x), 0 (x): farther.
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    centers = torch.stack([x, y, x, x])
    contexts = torch.stack([x, x, y, y])
    assert _company((centers, contexts), 2) == 0.25
    assert _company((centers, torch.stack([x, x, x, x])), 2) == 0.5  # nothing but draws


def test_one_far_row_has_no_say_in_what_is_typical():
    # Centres along x. The first batch of 4 has a row at -1: such rows are what writes a code into a
    # batch's statistics. Of three rows, one place left out, the median cosine is 0.6 in the first
    # batch and 0.5 in the second; the means are (0.6 + 0.6 - 1) / 3 and (0.5 + 0.5 + 0.4) / 3.
    cosine = torch.tensor([0.6, 0.6, 0.6, -1.0, 0.5, 0.5, 0.5, 0.4])
    contexts = torch.stack([cosine, (1 - cosine**2).sqrt()], dim=1)
    centers = torch.tensor([[1.0, 0.0]]).repeat(8, 1)
    # the first batch is nearer for all: its own four are right, the other four are not
    assert _company((centers, contexts), 4) == 0.5
    only_first = centers.clone()
    only_first[4:] = torch.tensor([0.0, 1.0])  # sines 0.8, 0.8, 0.8, 0 against 0.87 and 0.92
    assert _company((only_first, contexts), 4) == 1.0


LEAK = LeakProbe(
    training_loss=1.0,
    evaluation_loss=2.0,
    shuffled_loss=2.5,
    error=0.1,
    training_company=0.9,
    evaluation_company=0.5,
    batches=8,
    rows=32,
)


def test_numbers_of_a_probe():
    assert LEAK.gain == 1.0  # min(2, 2.5) - 1
    assert LEAK.worth == pytest.approx(math.log((63 + 7 * 32) / 63))
    assert LEAK.company == pytest.approx(0.8)  # 0.4 of the 0.5 that there are above chance
    assert dataclasses.replace(LEAK, evaluation_company=0.3).company == pytest.approx(0.8)
    assert dataclasses.replace(LEAK, evaluation_company=0.8).company == pytest.approx(0.5)
    assert dataclasses.replace(LEAK, evaluation_company=1.0).company == 0


@pytest.mark.parametrize(
    "change",
    [
        {"evaluation_loss": 1.1},  # a gain of 0.1, of 1.52 that there are
        {"shuffled_loss": 1.1},
        {"error": 0.3},  # 1.0 is not 4 errors
        {"training_company": 0.55},
        {"evaluation_company": 0.9},
        {"batches": 3},
    ],
    ids=str,
)
def test_every_sign_is_needed_to_call_it_a_leak(change):
    assert Thresholds().is_leak(LEAK)
    assert not Thresholds().is_leak(dataclasses.replace(LEAK, **change))


def test_shapes_that_do_not_fit_are_an_error():
    head, h = Projection(WIDTH), torch.randn(8, WIDTH)
    for h_c, h_i, others_c, others_i in (
        (h[:4], h[:3], h, h),
        (h[:4], h[:4], h, h[:4]),
        (h[:4], h[:4], h[:3], h[:3]),
        (h[:1], h[:1], h, h),
        (h[:0], h[:0], h, h),
    ):
        with pytest.raises(ValueError, match=r"expected \(N, D\) twice"):
            leak_probe(
                head, h_c, h_i, others_c=others_c, others_i=others_i, temperature=0.1, step=0
            )
    grouped = Projection(WIDTH, batch_norm="shuffled", groups=4)
    with pytest.raises(UserError, match="needs 2 windows in each"):
        leak_probe(grouped, h[:4], h[:4], others_c=h, others_i=h, temperature=0.1, step=0)
