import math

import numpy as np
import pytest

from ccpretrieve.retrieval import isomorphism
from ccpretrieve.retrieval.isomorphism import (
    eigenvector_similarity,
    hubness,
    linear_cka,
    rsim,
)


def random(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rotation(width, seed=9):
    return np.linalg.qr(random(seed, width, width))[0].astype(np.float32)


def at(*degrees):
    """Unit vectors of the plane."""
    turns = np.radians(np.array(degrees, dtype=np.float64))
    return np.stack([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def cosine(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


# -- relational similarity --


@pytest.mark.parametrize("block", [1, 4, 7, 1000])
def test_rsim_is_the_correlation_of_all_cosines_whatever_the_block(block, monkeypatch):
    monkeypatch.setattr(isomorphism, "BLOCK", block)
    x, y = random(0, 15, 4) + 1, random(1, 15, 6)
    y[:, :4] += x
    pairs = [(i, j) for i in range(15) for j in range(i)]
    left, right = ([cosine(side[i], side[j]) for i, j in pairs] for side in (x, y))
    assert rsim(x, y) == pytest.approx(np.corrcoef(left, right)[0, 1], abs=1e-6)
    assert 0.1 < rsim(x, y) < 0.9


def test_rsim_worked_by_hand():
    # x at 0, 60, 90 degrees: cosines of 60, 90, 30 degrees = 1/2, 0, r with r = sqrt(3)/2;
    # y at 0, 90, 60: the same three, of 90, 60, 30 degrees = 0, 1/2, r.
    # With m the mean, (1/2-m, -m, r-m) and (-m, 1/2-m, r-m): the correlation is
    # (-2m(1/2-m) + (r-m)^2) / ((1/2-m)^2 + m^2 + (r-m)^2)
    r = math.sqrt(3) / 2
    m = (0.5 + r) / 3
    expected = (-2 * m * (0.5 - m) + (r - m) ** 2) / ((0.5 - m) ** 2 + m**2 + (r - m) ** 2)
    assert rsim(at(0, 60, 90), at(0, 90, 60)) == pytest.approx(expected, abs=1e-6)


def test_rsim_does_not_mind_a_rotation_or_lengths_but_minds_who_is_whose_translation():
    x = random(0, 40, 8)
    lengths = np.geomspace(0.01, 100, 40, dtype=np.float32)[:, None]
    assert rsim(x, (x * lengths) @ rotation(8)) == pytest.approx(1, abs=1e-5)
    assert abs(rsim(x, x[np.random.default_rng(1).permutation(40)])) < 0.3


def test_rsim_of_a_collapsed_side_is_undefined_and_said_so():
    assert math.isnan(rsim(np.ones((5, 3), np.float32), random(0, 5, 3)))
    assert math.isnan(rsim(random(0, 5, 3), np.zeros((5, 3), np.float32)))


def test_rsim_of_a_narrow_cone_is_not_lost_to_rounding():
    # Cosines all near 0.9999 in both, yet the same: the offset of all vectors cancels.
    x = 0.01 * random(0, 60, 16)
    x[:, 0] += 1
    y = x @ rotation(16)
    assert rsim(x, y) == pytest.approx(1, abs=1e-2)


# -- CKA --


def test_cka_is_that_of_the_centred_kernels():
    x, y = random(0, 12, 5), random(1, 12, 3)
    y += x[:, :3]
    centre = np.eye(12) - np.ones((12, 12)) / 12
    left, right = (centre @ (side @ side.T) @ centre for side in (x.astype(float), y.astype(float)))
    expected = (left * right).sum() / math.sqrt((left**2).sum() * (right**2).sum())
    assert linear_cka(x, y) == pytest.approx(expected, abs=1e-9)
    assert 0.2 < expected < 0.95


def test_cka_does_not_mind_shift_rotation_and_one_scale_but_minds_a_scale_per_dimension():
    x = random(0, 50, 6)
    assert linear_cka(x, 7 * x @ rotation(6) + 40) == pytest.approx(1, abs=1e-5)
    assert linear_cka(x, x * np.array([1, 1, 1, 1, 1, 30], np.float32)) < 0.6


def test_cka_of_a_collapsed_side_is_undefined_and_said_so():
    assert math.isnan(linear_cka(np.full((4, 2), 3.3, np.float32), random(0, 4, 2)))


# -- spectra --


def test_eigenvector_similarity_worked_by_hand():
    # Six points around a circle, two neighbours each, make a ring: its Laplacian's eigenvalues are
    # 2 - 2 cos(2 pi j / 6) = 4, 3, 3, 1, 1, 0. Two clusters of three make two triangles: 3, 3, 3,
    # 3, 0, 0. Both sums are 12, of which nine tenths are 10.8. 4 + 3 + 3 + 1 = 11 exceeds it, as
    # does 3 + 3 + 3 + 3 = 12: four each. (4-3)^2 + 0 + 0 + (1-3)^2 = 5.
    ring = at(0, 60, 120, 180, 240, 300)
    triangles = at(0, 10, 21, 180, 190, 201)
    assert eigenvector_similarity(ring, triangles, k=2) == pytest.approx(5)
    assert eigenvector_similarity(triangles, ring, k=2) == pytest.approx(5)


def test_as_few_eigenvalues_are_compared_as_the_side_that_needs_fewer_needs():
    # One triangle has 3, 3, 0, and 3 + 3 exceeds nine tenths of 6, so two are compared though the
    # ring needs four: (4-3)^2 + (3-3)^2 = 1.
    assert eigenvector_similarity(at(0, 60, 120, 180, 240, 300), at(0, 10, 21), k=2) == (
        pytest.approx(1)
    )


def test_spectra_do_not_mind_order_rotation_or_lengths():
    x = random(0, 40, 8)
    same = 3 * x[::-1] @ rotation(8)
    assert eigenvector_similarity(x, same, k=5) == pytest.approx(0, abs=1e-9)
    assert eigenvector_similarity(x, random(1, 40, 8), k=5) > 1


# -- hubness --


def test_hubness_worked_by_hand():
    # All four ask for one neighbour and get row 0: found (4, 0, 0) times. Mean 4/3, deviations
    # 8/3, -4/3, -4/3; variance (64 + 16 + 16) / 27 = 32/9; third moment (512 - 64 - 64) / 81 =
    # 128/27; skewness (128/27) / (32/9)^1.5 = 1/sqrt(2).
    x, y = at(-4, -2, 2, 4), at(0, 90, 180)
    assert hubness(x, y, k=1) == pytest.approx(1 / math.sqrt(2))


def test_hubness_counts_what_each_row_finds_whatever_the_block(monkeypatch):
    x, y = random(0, 30, 5), random(1, 20, 5)
    counts = [0] * 20
    for row in x:
        scores = [cosine(row, other) for other in y]
        for found in sorted(range(20), key=lambda j: -scores[j])[:4]:
            counts[found] += 1
    mean = sum(counts) / 20
    moments = [sum((c - mean) ** power for c in counts) / 20 for power in (2, 3)]
    for block in (1, 7, 1000):
        monkeypatch.setattr(isomorphism, "BLOCK", block)
        assert hubness(x, y, k=4) == pytest.approx(moments[1] / moments[0] ** 1.5)


def test_a_planted_hub_is_seen_and_none_where_all_are_found_alike():
    x = random(0, 200, 16)
    y = x + 0.1 * random(1, 200, 16)
    assert hubness(x, x, k=1) == 0  # each finds itself
    before = hubness(x, y)
    x[:, 0] += 4
    y[0] = 0
    y[0, 0] = 1  # where all of x point
    assert hubness(x, y) > before + 1


# -- what cannot be measured --


def test_too_few_rows_and_sides_that_do_not_fit_are_refused():
    x = random(0, 5, 3)
    with pytest.raises(ValueError, match="5 and 4 rows"):
        rsim(x, x[:4])
    with pytest.raises(ValueError, match="expected 3 pairs of rows or more, got 2 and 2"):
        rsim(x[:2], x[:2])
    with pytest.raises(ValueError, match="5 and 4 rows"):
        linear_cka(x, x[:4])
    with pytest.raises(ValueError, match="5 rows are too few for 5 neighbours; 6 or more"):
        eigenvector_similarity(x, x, k=5)
    with pytest.raises(ValueError, match="5 rows are too few for 6 neighbours"):
        hubness(x, x, k=6)
    with pytest.raises(ValueError, match="one width, got 3 and 4"):
        hubness(x, random(0, 5, 4), k=1)
    assert hubness(x, x, k=5) == 0  # all are found by all


@pytest.mark.parametrize("measure", [rsim, linear_cka, eigenvector_similarity, hubness])
def test_a_row_that_is_not_finite_is_refused(measure):
    x = random(0, 20, 3)
    bad = x.copy()
    bad[7, 1] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        measure(x, bad)
