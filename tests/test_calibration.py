"""Shift, Scale, Rotate and Chain: what they learn, block by block, and from little text."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration import Chain, Rotate, Scale, Shift


def cloud(rows, width=6, seed=0, mean=3.0):
    """Rows about a mean far from zero, each dimension with a spread of its own."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(rows, width)) * np.arange(1, width + 1) + mean


@parametrize_with_checks([Shift(), Scale()])
def test_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


def test_worked_example():
    # Rows (1, 10) and (3, 30): mu = (2, 20); variances (1, 100), of 1 + 1 and 100 + 100 over 2.
    x = np.array([[1.0, 10.0], [3.0, 30.0]])
    assert Shift().fit(x).transform(x).tolist() == [[-1, -10], [1, 10]]
    assert Scale(shrinkage=0).fit(x).transform(x).tolist() == [[1, 1], [3, 3]]
    assert Scale(statistic="variance", shrinkage=0).fit(x).scale_.tolist() == [1, 100]
    # Half of the way to the average variance 50.5: 25.75 and 75.25.
    half = Scale(statistic="variance", shrinkage=0.5).fit(x)
    np.testing.assert_allclose(half.scale_, [25.75, 75.25])


@pytest.mark.parametrize("blocks", [[1000], [1, 999], [333, 333, 334], [1] * 1000])
def test_blocks_and_their_order_do_not_matter(blocks):
    x = cloud(1000, mean=1e4)
    cuts = np.split(x, np.cumsum(blocks)[:-1])
    for make in (Shift, Scale, lambda: Chain([Shift(), Scale()])):
        whole = make().fit(x).transform(x)
        for order in (cuts, cuts[::-1]):
            parts = make()
            for part in order:
                parts.partial_fit(part)
            np.testing.assert_allclose(parts.transform(x), whole, rtol=1e-6, atol=1e-6)


def test_fit_forgets_what_was_seen_before():
    step = Shift().fit(cloud(50, seed=1))
    assert np.array_equal(step.fit(cloud(50)).mean_, Shift().fit(cloud(50)).mean_)
    assert step.n_samples_seen_ == 50


@pytest.mark.parametrize("statistic", ["deviation", "variance"])
def test_undoing_gives_back_the_vectors(statistic):
    x = cloud(100)
    chain = Chain([Shift(), Scale(statistic=statistic)]).fit(x)
    np.testing.assert_allclose(chain.inverse_transform(chain.transform(x)), x)


def test_a_shifted_and_scaled_cloud_has_mean_0_and_spread_1():
    x = cloud(5000)
    y = Chain([Shift(), Scale()]).fit(x).transform(x)
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(y.std(axis=0), 1, atol=0.01)  # 5,000 rows shrink it by 0.1 %


def test_a_dead_dimension_is_left_as_it_is_and_gives_no_nan():
    x = np.array([[1, 5], [2, 5], [4, 5]], dtype=np.float32)
    scaled = Scale().fit(x)
    assert scaled.scale_[1] == 1
    assert Chain([Shift(), Scale()]).fit(x).transform(x)[:, 1].tolist() == [0, 0, 0]
    zeros = np.zeros((4, 3), dtype=np.float32)
    assert np.array_equal(Chain([Shift(), Scale()]).fit(zeros).transform(zeros), zeros)


def test_precision_of_the_vectors_is_kept():
    x = cloud(10)
    for dtype, made in ((np.float32, np.float32), (np.float64, np.float64)):
        assert Shift().fit(x.astype(dtype)).transform(x.astype(dtype)).dtype == made


@pytest.mark.parametrize("rows", [2, 3, 8, 50])
def test_little_text_is_closer_to_the_truth_when_shrunk(rows):
    # 400 languages of a few rows each, drawn from one cloud: shrinking must win on average.
    width = 64
    spread = np.linspace(1, 2, width)
    errors = {"plain": [], "shrunk": []}
    for seed in range(400):
        x = np.random.default_rng(seed).normal(size=(rows, width)) * spread
        for name, share in (("plain", 0.0), ("shrunk", "auto")):
            shift = Shift(prior=np.zeros(width), shrinkage=share).fit(x)
            scale = Scale(statistic="variance", shrinkage=share).fit(x)
            wrong = np.square(shift.mean_ / spread).sum()
            wrong += np.square(scale.scale_ / np.square(spread) - 1).sum()
            errors[name].append(wrong)
    assert np.mean(errors["shrunk"]) < 0.75 * np.mean(errors["plain"])


def test_much_text_is_not_shrunk():
    x = cloud(100_000)
    assert Shift(prior=np.zeros(6)).fit(x).shrinkage_ < 1e-3
    assert Scale().fit(x).shrinkage_ < 1e-3
    # Var(v) = 2 v^2 / (n - 1) over the distance to the average, worked out for variances 1 and 3:
    # 2 (1 + 9) / (n - 1) / ((1 - 2)^2 + (3 - 2)^2) = 10 / (n - 1).
    y = np.array([[-1, -(3**0.5)], [1, 3**0.5]] * 50)
    assert Scale().fit(y).shrinkage_ == pytest.approx(10 / 99)


def test_a_prior_gives_the_pattern_of_variances_and_the_rows_their_size():
    prior = np.array([1.0, 4.0, 9.0])
    x = np.random.default_rng(0).normal(size=(50, 3)) * 7
    scale = Scale(statistic="variance", prior=prior, shrinkage=1.0).fit(x)
    np.testing.assert_allclose(scale.scale_ / scale.scale_[0], prior)
    assert scale.scale_.sum() == pytest.approx(x.var(axis=0).sum())


def test_paired_rotation_is_undone():
    x = np.random.default_rng(0).normal(size=(60, 5))
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    rotate = Rotate(paired=True).fit(x, x @ turn)
    np.testing.assert_allclose(rotate.rotation_, turn, atol=1e-5)
    np.testing.assert_allclose(rotate.inverse_transform(rotate.transform(x)), x, atol=1e-5)


def test_a_chain_becomes_what_a_file_holds():
    x = cloud(80)
    chain = Chain([Shift(), Scale(), Rotate(paired=True)])
    chain.fit(x, np.random.default_rng(3).normal(size=x.shape))
    np.testing.assert_allclose(chain.spread().transform(x), chain.transform(x), atol=1e-4)
    only = Chain([Scale()]).fit(x).spread()
    assert only.mean is None
    assert only.rotation is None
    assert only.scale is not None
    with pytest.raises(ValueError, match="in this order"):
        Chain([Scale(), Shift()]).fit(x).spread()


def test_mistakes_are_named():
    x = cloud(20)
    with pytest.raises(ValueError, match="n_samples=1"):
        Shift().fit(x[:1])
    with pytest.raises(ValueError, match="two rows or more"):
        Shift().partial_fit(x[:1]).transform(x)
    with pytest.raises(UserError, match="unknown statistic 'sigma'"):
        Scale(statistic="sigma").fit(x)
    with pytest.raises(ValueError, match="shrinkage must be"):
        Scale(shrinkage=2).fit(x)
    with pytest.raises(ValueError, match="prior must be 6 finite numbers"):
        Shift(prior=np.zeros(5)).fit(x)
    with pytest.raises(TypeError, match="Rotate cannot learn block by block"):
        Chain([Shift(), Rotate()]).partial_fit(x)
    for steps in ([Scale(), Shift()], [Shift(), Shift()]):
        with pytest.raises(ValueError, match="in this order, each at most once"):
            Chain(steps).partial_fit(x)
    with pytest.raises(ValueError, match="as many rows"):
        Rotate(paired=True).fit(x, x[:10])


def test_settings_survive_cloning():
    step = Scale(statistic="variance", eps=0.5, shrinkage=0.25)
    assert clone(step).get_params() == step.get_params()
