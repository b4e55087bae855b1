"""Bitext retrieval: is the nearest neighbour of a sentence its translation (section 4.2)?

    forward     share of i with  argmax_j cos(x_i, y_j) = i
    backward    share of j with  argmax_i cos(x_i, y_j) = j

with x_i and y_i translations of each other. It is Tatoeba's accuracy; published figures are one
direction or the mean of both, which is why both are kept.

Of candidates with exactly the same cosine the one with the lowest row is taken, as FAISS and NumPy
do: which row is right does not come into it, so that embeddings that have collapsed score 1/N, what
guessing scores, and of two equal sentences one is counted right.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.model.calibration_file import Embeddings, Spread

#: What may be done to both sides before they are compared, in the order of section 3.2.
RAW, SHIFTED, SCALED = STEPS = ("raw", "shifted", "shifted and scaled")
#: What a calibration fitted elsewhere may hold, in the order in which it is applied -> its field.
FITTED = {"shift": "mean", "scale": "scale", "rotate": "rotation"}


class Accuracy(NamedTuple):
    """Share of sentences whose nearest neighbour on the other side is their translation.

    Attributes:
        forward: From the first side to the second, between 0 and 1.
        backward: From the second side to the first.
    """

    forward: float
    backward: float

    @property
    def mean(self) -> float:
        """Of both directions."""
        return (self.forward + self.backward) / 2


def accuracy(x: Embeddings, y: Embeddings, *, block: int = 4096) -> Accuracy:
    """Score how well translations find each other.

    Args:
        x: Shape ``(N, D)``, any norm.
        y: Shape ``(N, D)``, any norm; row i translates row i of ``x``.
        block: Rows of ``x`` compared at once; no result depends on it.

    Raises:
        ValueError: If shapes differ, there is no row, or one holds a NaN or infinity.
    """
    if x.shape != y.shape:
        raise ValueError(f"expected two sides of one shape, got {x.shape} and {y.shape}")
    forward, backward = neighbours(x, y, block=block)
    rows = np.arange(len(x))
    return Accuracy(float((forward == rows).mean()), float((backward == rows).mean()))


def neighbours(
    x: Embeddings, y: Embeddings, *, block: int = 4096
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Nearest neighbours by cosine, in both directions, from one pass over the similarities.

    Args:
        x: Shape ``(N, D)``, any norm; a zero vector has cosine 0 with everything.
        y: Shape ``(M, D)``.
        block: Rows of ``x`` compared at once: ``block * M`` similarities are held.

    Returns:
        Row of ``y`` nearest to each of ``x``, shape ``(N,)``; row of ``x`` nearest to each of
        ``y``, shape ``(M,)``.

    Raises:
        ValueError: If widths differ, a side has no row, or a row holds a NaN or infinity.
    """
    x, y = unit(x), unit(y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"expected vectors of one width, got {x.shape[1]} and {y.shape[1]}")
    forward = np.empty(len(x), dtype=np.int64)
    backward = np.zeros(len(y), dtype=np.int64)
    best = np.full(len(y), -np.inf, dtype=np.float32)
    first_x, first_y = _first_equal(x), _first_equal(y)
    columns = np.arange(len(y))
    for start in range(0, len(x), block):
        cosine = x[start : start + block] @ y.T  # (block, M)
        forward[start : start + block] = cosine.argmax(axis=1)
        rows = cosine.argmax(axis=0)
        found = cosine[rows, columns]  # (M,)
        better = found > best  # strictly: the lower row keeps a tie
        best[better] = found[better]
        backward[better] = rows[better] + start
    return first_y[forward], first_x[backward]


def _first_equal(rows: Embeddings) -> NDArray[np.int64]:
    """Of each row the first that equals it, shape ``(N,)``.

    A matrix product may round equal rows differently at the edges of its blocks, and so break a
    tie either way.
    """
    seen: dict[bytes, int] = {}
    places = (seen.setdefault(row.tobytes(), place) for place, row in enumerate(rows + 0.0))
    return np.fromiter(places, np.int64, len(rows))


def accuracy_by_step(x: Embeddings, y: Embeddings) -> dict[str, Accuracy]:
    """Accuracy raw, after the shift, and after shift and scale (section 3.2, steps 1 and 2).

    The statistics are those of the embeddings given, each side's own. On a test set that is its own
    text, unlabelled: no row is told which row of the other side it belongs to.

    Args:
        x: Shape ``(N, D)``, N at least 2, as pooled: not normalised to unit length.
        y: Shape ``(N, D)``, likewise.

    Returns:
        Step, of ``STEPS`` and in their order -> accuracy.

    Raises:
        ValueError: If shapes differ, there are fewer than two rows, or a row is not finite.
    """
    left, right = Spread.fit(x), Spread.fit(y)
    shift_x, shift_y = replace(left, scale=None), replace(right, scale=None)
    return {
        RAW: accuracy(x, y),
        SHIFTED: accuracy(shift_x.transform(x), shift_y.transform(y)),
        SCALED: accuracy(left.transform(x), right.transform(y)),
    }


def accuracy_by_fit(
    x: Embeddings, y: Embeddings, left: Spread, right: Spread, steps: Collection[str]
) -> dict[str, Accuracy | None]:
    """Accuracy under statistics that were fitted elsewhere, each step on top of those before it.

    Args:
        x: Shape ``(N, D)``, as pooled: not normalised to unit length.
        y: Shape ``(N, D)``, likewise.
        left: Statistics of the language of ``x``.
        right: Statistics of the language of ``y``.
        steps: Those of ``FITTED`` that the calibration takes; one that it does not take counts as
            not done, as it will when texts are encoded with it.

    Returns:
        Step, of ``FITTED`` and in their order -> accuracy. None for a step that is not taken, and
        for a shift or scale that one side lacks; a side without a rotation is the pivot, or was
        left as it is.

    Raises:
        ValueError: If shapes differ, or a row is not finite.
    """
    reached: dict[str, Accuracy | None] = {}
    fields = list(FITTED.values())
    for place, (step, field) in enumerate(FITTED.items(), 1):
        lacking = any(getattr(side, field) is None for side in (left, right))
        if step not in steps or (lacking and field != "rotation"):
            reached[step] = None
            continue
        later = dict.fromkeys(fields[place:])
        one, two = replace(left, **later), replace(right, **later)
        reached[step] = accuracy(one.transform(x), two.transform(y))
    return reached


def unit(vectors: Embeddings) -> Embeddings:
    """Rows at unit length, zero rows left; a copy."""
    if vectors.ndim != 2 or not len(vectors):
        raise ValueError(f"expected (N, D) vectors with N > 0, got {vectors.shape}")
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ValueError(f"vector {row} of {len(vectors)} holds a NaN or infinity")
    wide = vectors.astype(np.float32)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    norms[norms == 0] = 1
    unit: Embeddings = wide / norms
    return unit
