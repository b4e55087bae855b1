"""Fitting several languages at once."""

import numpy as np
import pytest

from ccpretrieve.errors import UserError
from ccpretrieve.model import fitting
from ccpretrieve.model.fitting import Plan, Sample, fit
from ccpretrieve.model.rotation import Rotation

WIDTH = 8


def cloud(rows, seed, mean=0.0, spread=1.0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, WIDTH)) * np.linspace(1, 3, WIDTH) * spread + mean
    return x.astype(np.float32)


def blocks(x, size=37):
    return (x[start : start + size] for start in range(0, len(x), size))


def test_each_language_gets_its_own_mean_and_spread():
    x, y = cloud(5000, 0, mean=2), cloud(5000, 1, mean=-1, spread=4)
    fitted = fit({"fi": blocks(x), "ja": blocks(y)}, Plan())
    assert list(fitted) == ["fi", "ja"]
    for code, rows in (("fi", x), ("ja", y)):
        out = fitted[code].spread.transform(rows)
        np.testing.assert_allclose(out.mean(axis=0), 0, atol=0.01)
        np.testing.assert_allclose(out.std(axis=0), 1, atol=0.05)  # 1 % of noise
        assert fitted[code].count == 5000


def test_blocks_do_not_matter():
    x, y = cloud(500, 0), cloud(300, 1)
    one = fit({"fi": [x], "ja": [y]}, Plan())
    many = fit({"fi": blocks(x, 7), "ja": blocks(y, 11)}, Plan())
    for code in one:
        np.testing.assert_allclose(one[code].spread.mean, many[code].spread.mean, rtol=1e-6)
        np.testing.assert_allclose(one[code].spread.scale, many[code].spread.scale, rtol=1e-6)


def test_steps_that_are_not_asked_for_are_not_taken():
    x = cloud(100, 0)
    only_shift = fit({"fi": [x]}, Plan(steps=("shift",)))["fi"]
    assert only_shift.spread.scale is None
    assert only_shift.scale_shrunk is None
    only_scale = fit({"fi": [x]}, Plan(steps=("scale",)))["fi"]
    assert only_scale.spread.mean is None
    assert only_scale.spread.scale is not None


def test_a_language_with_little_text_leans_on_the_others():
    big, small = cloud(5000, 0), cloud(3, 1)
    fitted = fit({"en": [big], "xx": [small]}, Plan())
    assert fitted["xx"].shift_shrunk > 0.1 > fitted["en"].shift_shrunk
    truth = np.linspace(1, 3, WIDTH)
    plain = np.abs(small.std(axis=0) / truth - 1).mean()
    scale = fitted["xx"].spread.scale
    pattern = scale / scale.mean() / (truth / truth.mean())
    assert np.abs(pattern - 1).max() < 0.1 < plain


def test_a_sample_is_uniform_and_depends_on_the_seed_alone():
    x = np.arange(1000, dtype=np.float32)[:, None]
    counts = np.zeros(1000)
    for seed in range(200):
        sample = Sample(100, seed)
        for block in blocks(x, 64):
            sample.add(block)
        assert len(sample.rows) == 100
        assert (np.diff(sample.rows[:, 0]) > 0).all()
        counts[sample.rows[:, 0].astype(int)] += 1
    # 200 draws of 100 in 1,000: 20 times each, +- 4.2; a tenth of the rows together 2,000 +- 42.
    assert np.abs(counts.reshape(10, 100).sum(axis=1) - 2000).max() < 5 * 42
    again, whole = Sample(10, 7), Sample(10, 7)
    whole.add(x)
    for block in blocks(x, 10):
        again.add(block)
    assert np.array_equal(again.rows, whole.rows)


def rotated_pair():
    """A cloud with topics, and the same rows rotated, shifted and in another order."""
    draw = np.random.default_rng(0)
    topics = draw.normal(size=(20, WIDTH))
    x = topics[draw.integers(20, size=300)] + 0.7 * draw.normal(size=(300, WIDTH))
    x = x * np.arange(1, WIDTH + 1) ** -0.3 + 1
    turn = np.linalg.qr(draw.normal(size=(WIDTH, WIDTH)))[0]
    order = draw.permutation(300)
    return x.astype(np.float32), (2.5 * x @ turn - 3)[order].astype(np.float32), order


def test_a_rotation_lays_a_language_on_the_pivot_which_is_left_as_it_is():
    x, y, order = rotated_pair()
    plan = Plan(steps=("shift", "rotate"), pivot="ja")
    fitted = fit({"fi": blocks(y), "ja": blocks(x)}, plan)
    assert fitted["ja"].rotation is None
    assert fitted["ja"].spread.rotation is None
    assert not fitted["fi"].rotation.failed
    np.testing.assert_array_equal(fitted["fi"].spread.rotation, fitted["fi"].rotation.matrix)
    left, right = fitted["fi"].spread.transform(y), fitted["ja"].spread.transform(x)
    np.testing.assert_allclose(left / 2.5, right[order], atol=0.2)


def test_a_rotation_that_failed_is_told_and_not_kept(monkeypatch):
    outcome = Rotation(np.eye(WIDTH, dtype=np.float32), 0.1, 0.2, True, "identity", "no rotation")

    class Failing:
        def __init__(self, **settings):
            self.outcome_ = outcome

        def fit(self, x, y):
            return self

    monkeypatch.setattr(fitting, "Rotate", Failing)
    x, y, _ = rotated_pair()
    fitted = fit({"en": [x], "fi": [y]}, Plan(steps=("shift", "rotate")))["fi"]
    assert fitted.spread.rotation is None
    assert fitted.rotation is outcome


def test_mistakes_are_one_line():
    x = cloud(10, 0)
    with pytest.raises(UserError, match="fi: 1 texts; a mean and a spread need two or more"):
        fit({"fi": [x[:1]]}, Plan())
    bad = x.copy()
    bad[3, 0] = np.nan
    with pytest.raises(UserError, match="fi: embedding 3 of 10 holds a NaN"):
        fit({"fi": [bad]}, Plan())
    with pytest.raises(UserError, match="--pivot: unknown language 'en'"):
        fit({"fi": [x]}, Plan(steps=("shift", "rotate")))
    with pytest.raises(UserError, match="fi: no rotation: .*leave rotate out of --steps"):
        fit({"en": [x[:3]], "fi": [x[:3]]}, Plan(steps=("shift", "rotate")))
