"""How alike two languages' embedding clouds are in shape, whatever their place and orientation.

CCP's idea is that each language's cloud gets the same shape, so that a cheap calibration can lay
them over one another (section 3.2). Four measures of it, none of which the paper gives numbers for:

    rsim            Pearson correlation of the cosines within x with those within y   1 is best
    linear_cka      |Yc' Xc|^2 / (|Xc' Xc| |Yc' Yc|), Frobenius norms, c centred      1 is best
    eigenvector     sum of (lambda_i - mu_i)^2 over the largest eigenvalues           0 is best
    hubness         skewness of how often a row of y is among the k nearest of x      0 or less

The first two need rows that are translations of each other, the last two do not. CKA does not
change when a cloud is shifted, rotated or stretched alike in all dimensions; the others go by
cosines, so that a shift changes them and a rotation does not.

Sources: RSIM, Vulić, Ruder and Søgaard 2020, Are All Good Word Vector Spaces Isomorphic?; CKA,
Kornblith, Norouzi, Lee and Hinton 2019, Similarity of Neural Network Representations Revisited;
eigenvector similarity, Søgaard, Ruder and Vulić 2018, On the Limitations of Unsupervised Bilingual
Dictionary Induction; hubness, Radovanović, Nanopoulos and Ivanović 2010, Hubs in Space.
"""

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.model.calibration_file import Embeddings
from ccpretrieve.retrieval.bitext import unit

#: Neighbours of a row, in graphs and in hubness.
NEIGHBOURS = 10
#: Share of the sum of all eigenvalues that those compared have to exceed (Søgaard et al. 2018).
ENERGY = 0.9
#: Rows compared with all others at once.
BLOCK = 1024


def rsim(x: Embeddings, y: Embeddings) -> float:
    """Relational similarity: are the same sentences near each other in both languages?

    Args:
        x: Shape ``(N, D)``, N at least 3, any norm.
        y: Shape ``(N, E)``; row i translates row i of ``x``.

    Returns:
        Between -1 and 1, over all N (N - 1) / 2 pairs of rows; NaN if all cosines of one side are
        equal, which leaves a correlation undefined.

    Raises:
        ValueError: If the sides differ in number or are too few, or a row is not finite.
    """
    _check_paired(x, y, least=3)
    left, right = unit(x), unit(y)
    sums = np.zeros(5)  # of a, b, aa, bb, ab
    count = 0
    origin: NDArray[np.float64] | None = None  # near the means, so that nothing cancels
    for start in range(0, len(x), BLOCK):
        part = slice(start, start + BLOCK)
        above = np.arange(len(x)) > np.arange(len(x))[part, None]  # each pair of rows once
        pair = np.stack([(side[part] @ side.T)[above] for side in (left, right)]).astype(np.float64)
        if not pair.shape[1]:
            continue
        if origin is None:
            origin = pair.mean(axis=1, keepdims=True)
        a, b = pair - origin
        sums += (a.sum(), b.sum(), a @ a, b @ b, a @ b)
        count += len(a)
    a, b, aa, bb, ab = sums / count
    spreads = max(0.0, aa - a * a) * max(0.0, bb - b * b)
    if spreads <= (np.finfo(np.float32).eps ** 2) ** 2:  # what float32's rounding alone makes
        return float("nan")
    return float(np.clip((ab - a * b) / np.sqrt(spreads), -1, 1))


def linear_cka(x: Embeddings, y: Embeddings) -> float:
    """Centred kernel alignment with the linear kernel.

    With fewer rows than dimensions even unrelated clouds come out alike: compare only what has
    equally many rows.

    Args:
        x: Shape ``(N, D)``, N at least 2, any norm; not brought to unit length here.
        y: Shape ``(N, E)``; row i translates row i of ``x``.

    Returns:
        Between 0 and 1; NaN if all rows of a side are equal.

    Raises:
        ValueError: If the sides differ in number or are too few, or a row is not finite.
    """
    _check_paired(x, y, least=2)
    left, right = (_centred(side) for side in (x, y))
    norms = np.linalg.norm(left.T @ left) * np.linalg.norm(right.T @ right)
    return float(np.linalg.norm(right.T @ left) ** 2 / norms) if norms else float("nan")


def eigenvector_similarity(x: Embeddings, y: Embeddings, k: int = NEIGHBOURS) -> float:
    """Distance of the Laplacian spectra of the two clouds' nearest-neighbour graphs.

    Two rows are joined if one is among the ``k`` nearest of the other by cosine. The eigenvalues
    compared are the largest, as few as exceed nine tenths of the sum in one of the two graphs. It
    grows with the number of rows: compare only what has equally many. Takes time as N cubed.

    Args:
        x: Shape ``(N, D)``, N more than ``k``, any norm.
        y: Shape ``(M, E)``, M more than ``k``; rows need not be paired.
        k: Neighbours of a row.

    Returns:
        0 for graphs of one spectrum, else more: less is more alike.

    Raises:
        ValueError: If a side is too small, or a row is not finite.
    """
    spectra = [_spectrum(side, k) for side in (x, y)]
    count = min(_leading(spectrum) for spectrum in spectra)
    difference = spectra[0][:count] - spectra[1][:count]
    return float(difference @ difference)


def hubness(x: Embeddings, y: Embeddings, k: int = NEIGHBOURS) -> float:
    """Skewness of the k-occurrence: are some of ``y`` near everything in ``x``?

    Args:
        x: Shape ``(N, D)``, any norm: what asks.
        y: Shape ``(M, D)``, M at least ``k``: what is found; rows need not be paired.
        k: Nearest rows of ``y``, by cosine, that each row of ``x`` counts.

    Returns:
        0 if every row of ``y`` is found about as often, the more the fewer are hubs.

    Raises:
        ValueError: If widths differ, a side is too small, or a row is not finite.
    """
    left, right = unit(x), unit(y)
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"expected vectors of one width, got {left.shape[1]} and {right.shape[1]}")
    _check_neighbours(len(right), k, least=k)
    found = np.zeros(len(right))  # how often each is found
    for start in range(0, len(left), BLOCK):
        nearest = _largest(left[start : start + BLOCK] @ right.T, k)
        found += np.bincount(nearest.ravel(), minlength=len(right))
    spread = found.std()
    return float((((found - found.mean()) / spread) ** 3).mean()) if spread else 0.0


def _check_paired(x: Embeddings, y: Embeddings, least: int) -> None:
    if len(x) != len(y) or len(x) < least:
        raise ValueError(f"expected {least} pairs of rows or more, got {len(x)} and {len(y)} rows")


def _check_neighbours(rows: int, k: int, least: int) -> None:
    if k < 1 or rows < least:
        raise ValueError(f"{rows} rows are too few for {k} neighbours; {least} or more are needed")


def _centred(vectors: Embeddings) -> NDArray[np.float64]:
    """Rows less their mean, exactly 0 where all are equal."""
    wide = vectors.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError("a vector holds a NaN or infinity")
    centred: NDArray[np.float64] = wide - wide[0]
    centred -= centred.mean(axis=0)
    return centred


def _largest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Columns of the ``k`` largest of each row, in no order; shape ``(N, k)``."""
    if k == scores.shape[1]:
        return np.tile(np.arange(k), (len(scores), 1))
    return np.argpartition(scores, -k, axis=1)[:, -k:]


def _spectrum(vectors: Embeddings, k: int) -> NDArray[np.float64]:
    """Eigenvalues of the Laplacian (degrees less adjacency) of a graph, the largest first."""
    _check_neighbours(len(vectors), k, least=k + 1)
    rows = unit(vectors)
    cosine = rows @ rows.T
    np.fill_diagonal(cosine, -np.inf)  # no row is its own neighbour
    adjacency = np.zeros(cosine.shape)
    np.put_along_axis(adjacency, _largest(cosine, k), 1.0, axis=1)
    adjacency = np.maximum(adjacency, adjacency.T)
    laplacian = np.diag(adjacency.sum(axis=1)) - adjacency
    return np.asarray(np.linalg.eigvalsh(laplacian)[::-1], dtype=np.float64)


def _leading(spectrum: NDArray[np.float64]) -> int:
    """How few of the largest eigenvalues exceed nine tenths of the sum."""
    return int(np.searchsorted(spectrum.cumsum(), ENERGY * spectrum.sum(), side="right")) + 1
