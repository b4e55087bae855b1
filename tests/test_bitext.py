import math

import numpy as np
import pytest

from ccpretrieve.model.calibration_file import Spread
from ccpretrieve.retrieval.bitext import (
    FITTED,
    RAW,
    SCALED,
    SHIFTED,
    STEPS,
    Accuracy,
    accuracy,
    accuracy_by_fit,
    accuracy_by_step,
    neighbours,
)


def cosine(a, b):
    norms = math.hypot(*a) * math.hypot(*b)
    return sum(p * q for p, q in zip(a, b, strict=True)) / norms if norms else 0.0


def slow_neighbours(x, y):
    """Section 4.2 read aloud: for each row, the first of the other side that none exceeds."""
    found = []
    for row in x:
        scores = [cosine(row, other) for other in y]
        found.append(scores.index(max(scores)))
    return found


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("block", [1, 2, 7, 4096])
def test_agrees_with_the_definition_whatever_the_block(block):
    x = random(0, 23, 5) + 1
    y = x + random(1, 23, 5)
    forward, backward = neighbours(x, y, block=block)
    assert forward.tolist() == slow_neighbours(x.tolist(), y.tolist())
    assert backward.tolist() == slow_neighbours(y.tolist(), x.tolist())
    reached = accuracy(x, y, block=block)
    assert reached.forward == np.mean(forward == np.arange(23))
    assert reached.backward == np.mean(backward == np.arange(23))
    assert 0 < reached.forward < 1
    assert reached.forward != reached.backward


def test_worked_example_in_which_the_directions_differ():
    # x at 0 and 40 degrees, y at 30 and 90: from x both find 30 (30 and 10 degrees away, against 90
    # and 50), so one of two is right; from y, 30 finds 40, which is wrong, and 90 finds 40, right.
    def at(*degrees):
        turns = np.radians(np.array(degrees))
        return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)

    forward, backward = neighbours(at(0, 40), at(30, 90))
    assert (forward.tolist(), backward.tolist()) == ([0, 0], [1, 1])
    assert accuracy(at(0, 40), at(30, 90)) == Accuracy(0.5, 0.5)
    # with 0, 40, 50 and 30, 90, 60 forward finds 30, 30, 60 (two right), backward 40, 50, 50 (one)
    reached = accuracy(at(0, 40, 50), at(30, 90, 60))
    assert reached == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert reached.mean == pytest.approx(0.5)


def test_length_of_a_vector_does_not_matter():
    x, y = random(0, 30, 4), random(1, 30, 4)
    scale = np.geomspace(1e-6, 1e6, 30, dtype=np.float32)[:, None]
    for ours, scaled in zip(neighbours(x, y), neighbours(x * scale, y * scale[::-1]), strict=True):
        assert ours.tolist() == scaled.tolist()


@pytest.mark.parametrize("block", [1, 3, 100])
def test_a_tie_goes_to_the_lower_row_in_both_directions_and_across_blocks(block):
    x = np.eye(3, dtype=np.float32)[[0, 1, 0, 2, 0]]  # rows 0, 2 and 4 are equal
    forward, backward = neighbours(x, x, block=block)
    assert forward.tolist() == [0, 1, 0, 3, 0]
    assert backward.tolist() == [0, 1, 0, 3, 0]


@pytest.mark.parametrize("block", [7, 64, 1000])
def test_equal_rows_are_a_tie_wherever_they_stand_in_the_blocks_of_a_product(block):
    for seed in range(60):
        x = random(seed, 101 + seed, 16)
        x[-1] = x[3]
        x[50] = -0.0
        x[60] = 0.0
        forward, backward = neighbours(x, x.copy(), block=block)
        assert 100 + seed not in forward
        assert 100 + seed not in backward


def test_embeddings_that_are_all_one_score_what_guessing_scores():
    x = np.zeros((8, 3), dtype=np.float32)
    x[:, 0] = 2
    assert accuracy(x, x) == Accuracy(1 / 8, 1 / 8)
    assert accuracy(x * 0, x) == Accuracy(1 / 8, 1 / 8)  # cosine 0 with everything


def test_sides_may_differ_in_number_but_not_for_accuracy():
    forward, backward = neighbours(random(0, 3, 4), random(1, 9, 4), block=2)
    assert (forward.shape, backward.shape) == ((3,), (9,))
    with pytest.raises(ValueError, match=r"one shape, got \(3, 4\) and \(9, 4\)"):
        accuracy(random(0, 3, 4), random(1, 9, 4))
    with pytest.raises(ValueError, match="one width, got 4 and 5"):
        neighbours(random(0, 3, 4), random(1, 3, 5))


def test_what_is_no_vector_is_refused():
    bad = random(0, 3, 2)
    bad[1, 1] = np.nan
    with pytest.raises(ValueError, match="vector 1 of 3 holds a NaN"):
        accuracy(random(1, 3, 2), bad)
    with pytest.raises(ValueError, match="N > 0"):
        accuracy(np.empty((0, 2), np.float32), np.empty((0, 2), np.float32))


def test_inputs_are_left_as_they_are():
    x, y = random(0, 6, 4), random(1, 6, 4)
    before = x.copy(), y.copy()
    accuracy_by_step(x, y)
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])


def test_the_shift_undoes_an_offset_and_the_scale_a_stretch():
    common = random(0, 40, 6)
    stretch = np.array([1, 1, 1, 1, 1, 30], dtype=np.float32)
    offset = np.array([0, 0, 90, 0, 0, 0], dtype=np.float32)
    x, y = common, common + offset
    assert accuracy_by_step(x, y)[SHIFTED] == Accuracy(1.0, 1.0)
    # raw, all of y point along the offset and find the one x that points there most
    assert accuracy_by_step(x, y)[RAW].backward == 1 / 40
    x, y = common + 3 * offset, (common + 0.1 * random(1, 40, 6)) * stretch
    reached = accuracy_by_step(x, y)
    assert reached[SCALED] == Accuracy(1.0, 1.0)
    assert reached[SHIFTED].mean < 0.7


def test_each_side_is_calibrated_by_its_own_statistics():
    x, y = random(0, 20, 3) + 5, 4 * random(1, 20, 3) - 7
    reached = accuracy_by_step(x, y)
    assert tuple(reached) == STEPS
    shift = (Spread.fit(v, scale=False).transform(v) for v in (x, y))
    scale = (Spread.fit(v).transform(v) for v in (x, y))
    assert reached[SHIFTED] == accuracy(*shift)
    assert reached[SCALED] == accuracy(*scale)


def brute_force(x, y):
    """Accuracy in float64 by loops over rows: nothing of what is tested is used."""
    x, y = (side.astype(np.float64) for side in (x, y))
    hits = [0, 0]
    for i in range(len(x)):
        for way, (one, many) in enumerate(((x[i], y), (y[i], x))):
            cosines = [one @ each / np.sqrt((one @ one) * (each @ each)) for each in many]
            hits[way] += int(np.argmax(cosines) == i)
    return tuple(hit / len(x) for hit in hits)


@pytest.mark.parametrize("seed", range(3))
def test_accuracy_at_every_step_equals_one_by_brute_force_and_one_by_scikit_learn(seed):
    from sklearn.neighbors import NearestNeighbors

    x = 2 * random(seed, 60, 7) + random(seed + 9, 7)
    y = x @ random(5, 7, 7) * 0.2 + x + 0.8 * random(seed + 3, 60, 7) + random(seed + 6, 7)
    left, right = Spread.fit(x + 0.1), Spread.fit(y - 0.1)  # not the test text's own
    turn = np.linalg.qr(random(1, 7, 7))[0].astype(np.float32)
    left = Spread(left.mean, left.scale, turn)
    fitted = accuracy_by_fit(x, y, left, right, FITTED)
    moved = {
        "shift": (x - left.mean, y - right.mean),
        "scale": ((x - left.mean) / left.scale, (y - right.mean) / right.scale),
        "rotate": ((x - left.mean) / left.scale @ turn, (y - right.mean) / right.scale),
    }
    assert list(fitted) == list(moved)
    for step, (a, b) in ({"raw": (x, y)} | moved).items():
        reached = fitted[step] if step in fitted else accuracy(x, y)
        assert reached == pytest.approx(brute_force(a, b))
        for share, one, many in ((reached.forward, a, b), (reached.backward, b, a)):
            index = NearestNeighbors(n_neighbors=1, metric="cosine").fit(many)
            found = index.kneighbors(one, return_distance=False)[:, 0]
            assert share == pytest.approx((found == np.arange(60)).mean())
    assert fitted["rotate"].mean < 0.2 < fitted["scale"].mean  # one side turned alone


def test_a_step_that_was_not_fitted_is_none_and_left_out_of_those_after_it():
    x, y = random(0, 30, 4) + 1, random(1, 30, 4) - 1
    left, right = Spread.fit(x), Spread.fit(y)
    turn = np.linalg.qr(random(2, 4, 4))[0].astype(np.float32)
    plain = accuracy_by_fit(x, y, left, right, ("shift", "scale"))
    assert plain["rotate"] is None
    # without scale, rotate comes on top of the shift alone
    shift, other = Spread(left.mean, None, turn), Spread(right.mean)
    reached = accuracy_by_fit(x, y, shift, other, ("shift", "rotate"))
    assert reached["scale"] is None
    assert reached["shift"] == plain["shift"]
    assert reached["rotate"] == accuracy((x - left.mean) @ turn, y - right.mean)
    # one side without a mean: no shift; neither turned, yet others are: as it stands
    assert accuracy_by_fit(x, y, left, Spread(), ("shift", "scale"))["shift"] is None
    whole = accuracy_by_fit(x, y, left, right, ("shift", "scale", "rotate"))
    assert whole["rotate"] == whole["scale"] == plain["scale"]
