"""Rotate: an orthogonal map between two languages, learned without a dictionary (section 3.2).

    starts     the identity, second moments, similarities, adversarial
    refine     each: Procrustes on mutual nearest neighbours by CSLS
    choose     the best by criterion, on rows that no refinement saw
    believe    it, if it beats what it has to; else keep the identity

Notation, paper -> code:

    W_ij    matrix     rows of language i are multiplied from the left: x W lies where j lies

What the paper leaves open, and what was chosen:

* When to believe a rotation. Held-out rows must find partners in the other language more surely
  than neighbours among half of their own (``own``), which needs texts that say the same things, in
  whatever order. And it must beat, by ``errors`` standard errors, the identity and every other
  rotation found that pairs rows otherwise: a cloud with a symmetry has no one rotation.
* The identity is a start too, refined with several weights that hold W to it: an encoder of many
  languages needs but a small turn, if any. So are second moments (principal axes onto principal
  axes), with signs drawn at random.
* How many rows are needed. Those that are fitted must outnumber the dimensions: N centred rows span
  at most N - 1, and what W does to the rest is arbitrary. It is a necessary condition; beyond it
  the criterion decides.
* Vectors are compared by cosine, so they are taken at unit length; a common factor plays no part.

Sources are named in :mod:`ccpretrieve.model.matching` and :mod:`ccpretrieve.model.adversarial`.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.errors import unknown
from ccpretrieve.model.adversarial import AdversarialSettings, adversarial_start, axes
from ccpretrieve.model.matching import (
    Matrix,
    Rows,
    check_enough,
    checked,
    criterion,
    csls_pairs,
    distinct,
    found_back,
    held_procrustes,
    look,
    nearest,
    paired,
    procrustes,
    refine,
    rows_needed,
    similarity_start,
)

__all__ = [
    "AdversarialSettings",
    "Rotation",
    "RotationSettings",
    "adversarial_start",
    "compose",
    "criterion",
    "csls_pairs",
    "learn",
    "procrustes",
    "refine",
    "rows_needed",
    "similarity_start",
]

SIMILARITY, ADVERSARIAL = STARTS = ("similarity", "adversarial")
PAIRS, MOMENTS, IDENTITY = "pairs", "moments", "identity"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RotationSettings:
    """How a rotation is sought, and when it is believed.

    Attributes:
        neighbours: k of CSLS.
        held_out: Share of the rows of each side, or of given pairs, that W is judged on.
        rows: Most rows of ``x`` that are used, drawn at random; or 3 D, if that is more.
        candidates: Most rows of ``y``; more than of ``x``, so that fewer partners are lost.
        steps: Most refinements of one start.
        holds: Weights with which the identity is held against pairs, found or given.
        rivals: Rotations from second moments and random signs that are drawn and refined.
        errors: Standard errors by which each bar must be beaten.
        gain: And the least by which it must.
        adversarial: Of the adversarial start.
    """

    neighbours: int = 10
    held_out: float = 0.2
    rows: int = 3_000
    candidates: int = 12_000
    steps: int = 20
    holds: tuple[float, ...] = (0.0, 1.0, 4.0)
    rivals: int = 3
    errors: float = 4.0
    gain: float = 0.01
    adversarial: AdversarialSettings = field(default_factory=AdversarialSettings)


@dataclass(frozen=True)
class Rotation:
    """What was learned.

    Attributes:
        matrix: W, orthogonal, float32, shape ``(D, D)``: ``x @ W`` lies where y lies. The identity
            unless a rotation passed.
        criterion: Of the best rotation found, accepted or not: a mean cosine on held-out rows, or
            with pairs the accuracy on held-out pairs.
        threshold: What it has to exceed, or with pairs to reach.
        failed: No rotation passed, and nothing says that the identity is right.
        start: What led to ``matrix``: ``similarity``, ``adversarial``, ``pairs``, ``identity`` or
            ``moments`` (second moments, with signs drawn at random).
        reason: All this in words, one line.
    """

    matrix: Matrix
    criterion: float
    threshold: float
    failed: bool
    start: str
    reason: str


class _Scores(NamedTuple):
    """What the held-out rows find under one map, of x and of y.

    Attributes:
        forward: Cosine of each held-out row of x with its partner, 0 without.
        backward: Likewise, of y.
        nearest: Row of y nearest to each of x.
    """

    forward: Matrix
    backward: Matrix
    nearest: Rows

    @property
    def mean(self) -> float:
        """The criterion: of the two sides' means."""
        sides = (self.forward, self.backward)
        return float(sum(side.mean(dtype=np.float64) for side in sides) / 2)

    def error(self, other: "_Scores | None" = None) -> float:
        """Standard error of the criterion, or of its difference from another's, row by row."""
        sides = (self.forward, self.backward)
        if other is not None:
            sides = (self.forward - other.forward, self.backward - other.backward)
        return math.sqrt(sum(side.var(dtype=np.float64) / len(side) for side in sides)) / 2

    def agrees(self, other: "_Scores") -> bool:
        """Whether most rows find the same: then it is the same map, more or less."""
        return bool((self.nearest == other.nearest).mean() > 0.5)


def compose(W_i: Matrix, W_j: Matrix) -> Matrix:
    """From i to j by way of the pivot: ``W_i W_j^T``, shape ``(D, D)``.

    Args:
        W_i: From language i to the pivot, orthogonal.
        W_j: From language j to the pivot, orthogonal.
    """
    both: Matrix = (W_i.astype(np.float64) @ W_j.T.astype(np.float64)).astype(np.float32)
    return both


def learn(
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    pairs: tuple[Sequence[int] | Rows, Sequence[int] | Rows] | None = None,
    starts: Sequence[str] = STARTS,
    restarts: int = 3,
    seed: int = 0,
    settings: RotationSettings | None = None,
) -> Rotation:
    """Learn W from one language to another, or say that none can be believed.

    Args:
        x: Vectors of one language, shifted (and scaled), shape ``(N, D)``, any norm and dtype.
            Zero rows have no direction and, like repeated ones, are left out.
        y: Those of the other, shape ``(M, D)``; nothing is paired.
        pairs: Rows of ``x`` and of ``y`` that belong together: then supervised Procrustes on them
            alone, believed if held-out pairs find each other at least as often as without.
        starts: Of ``STARTS``, after the identity and second moments with random signs, which are
            always tried. The best of all by criterion is kept; no more are tried once one is
            believed, or the identity needs none.
        restarts: Adversarial starts.
        seed: Of every draw.
        settings: Everything else.

    Raises:
        UserError: If a start is unknown.
        ValueError: If there are too few rows or pairs, widths differ, a row is not finite, or a
            pair names a row that is not there.
    """
    settings = settings or RotationSettings()
    for start in starts:
        if start not in STARTS:
            raise unknown("start", start, STARTS)
    left, right = checked(x, "x"), checked(y, "y")
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"expected vectors of one width, got {left.shape[1]} and {right.shape[1]}")
    generator = np.random.default_rng(seed)
    if pairs is not None:
        return _supervised(*paired(left, right, pairs), settings, generator)
    left, right, dim = distinct(left), distinct(right), left.shape[1]
    for name, side in (("x", left), ("y", right)):
        check_enough(len(side), dim, settings.held_out, f"different nonzero rows in {name}")
    most = max(settings.rows, 3 * dim)
    left = _drawn(left, most, generator)
    right = _drawn(right, max(most, settings.candidates), generator)
    return _search(_Judge(left, right, settings, generator), starts, restarts, generator)


class _Judge:
    """Scores maps on rows kept from the refinement, and knows what to compare them with.

    Attributes:
        x: All rows in use, unit, shape ``(N, D)``.
        y: Likewise, of the other side.
        fit_x: Rows of x that a refinement may see.
        fit_y: Likewise, of y.
        identity: Of width D.
        own: The criterion between two halves of one language, mean of both languages.
    """

    def __init__(
        self, x: Matrix, y: Matrix, settings: RotationSettings, generator: np.random.Generator
    ) -> None:
        self.x, self.y, self.settings = x, y, settings
        self._held_x, fit_x = _split(len(x), settings.held_out, generator)
        self._held_y, fit_y = _split(len(y), settings.held_out, generator)
        self.fit_x, self.fit_y = x[fit_x], y[fit_y]
        self.identity = np.eye(x.shape[1], dtype=np.float32)
        self.own = 0.0
        for side in (x, y):
            one, other = _split(len(side), 0.5, generator)
            self.own += criterion(self.identity, side[one], side[other], k=settings.neighbours) / 2
        self._axes = axes(x), axes(y)

    def moments(self, generator: np.random.Generator) -> Matrix:
        """Principal axes onto principal axes, each with a sign drawn at random."""
        axes_x, axes_y = self._axes
        signs = generator.choice([-1.0, 1.0], size=len(axes_x)).astype(np.float32)
        W: Matrix = ((axes_x * signs) @ axes_y.T).astype(np.float32)
        return W

    def scores(self, W: Matrix) -> _Scores:
        """What every held-out row finds on the other side."""
        forward, backward = look(self.x @ W, self.y, self.settings.neighbours)
        there = forward.cosines * found_back(forward, backward)
        back = backward.cosines * found_back(backward, forward)
        return _Scores(there[self._held_x], back[self._held_y], forward.rows[self._held_x])

    def score(self, W: Matrix) -> float:
        """The criterion."""
        return self.scores(W).mean

    def refined(self, start: str, first: Matrix, hold: float = 0.0) -> "_Candidate":
        """Refine a start on the rows that may be seen, and score it on the others."""
        k, steps = self.settings.neighbours, self.settings.steps
        W = refine(first, self.fit_x, self.fit_y, hold=hold, check=self.score, steps=steps, k=k)
        candidate = _Candidate(start, W, self.scores(W))
        _logger.info("rotation: %s start reaches %.4f", start, candidate.scores.mean)
        return candidate


class _Candidate(NamedTuple):
    """A rotation that could be believed."""

    start: str
    W: Matrix
    scores: _Scores


def _search(
    judge: _Judge, starts: Sequence[str], restarts: int, generator: np.random.Generator
) -> Rotation:
    """Refine every start; believe the best, or none."""
    settings = judge.settings
    identity = judge.scores(judge.identity)
    found = [judge.refined(IDENTITY, judge.identity, hold) for hold in settings.holds]
    found += [judge.refined(MOMENTS, judge.moments(generator)) for _ in range(settings.rivals)]
    for start, first in _firsts(judge, starts, restarts, generator):
        verdict = _verdict(judge, found, identity)
        if not verdict.failed:
            return verdict
        found.append(judge.refined(start, first()))
    return _verdict(judge, found, identity)


def _firsts(
    judge: _Judge, starts: Sequence[str], restarts: int, generator: np.random.Generator
) -> Iterator[tuple[str, Callable[[], Matrix]]]:
    """What makes the maps that refinements begin with."""
    game = partial(
        adversarial_start,
        judge.fit_x,
        judge.fit_y,
        judge.settings.adversarial,
        generator,
        check=judge.score,
    )
    for start in starts:
        if start == SIMILARITY:
            yield start, lambda: similarity_start(judge.x, judge.y, k=judge.settings.neighbours)
        else:
            for attempt in range(restarts):
                yield start, partial(game, skewed=attempt == 0)


def _verdict(judge: _Judge, found: Sequence[_Candidate], identity: _Scores) -> Rotation:
    """Believe the best rotation, keep the identity for good reason, or say that it failed."""
    best = max(found, key=lambda each: each.scores.mean)
    rivals = [each.scores for each in found if not each.scores.agrees(best.scores)]
    errors, least = judge.settings.errors, judge.settings.gain
    bars = [
        ("two halves of one language have", judge.own, best.scores.error()),
        ("the identity has", identity.mean, best.scores.error(identity)),
        *(("another rotation has", rival.mean, best.scores.error(rival)) for rival in rivals),
    ]
    threshold, name, bar = max(
        (bar + max(errors * error, least), name, bar) for name, bar, error in bars
    )
    score = best.scores.mean
    said = (
        f"the best, from the {best.start} start, has criterion {score:.4f} (mean cosine with "
        f"partners of held-out rows, 0 without), threshold {threshold:.4f} ({name} {bar:.4f})"
    )
    if score > threshold:
        return Rotation(best.W, score, threshold, False, best.start, f"rotated: {said}")
    fits = identity.mean > judge.own + errors * identity.error()
    why = "the clouds lie over one another without" if fits else "none that can be believed"
    eye = judge.identity
    return Rotation(eye, score, threshold, not fits, IDENTITY, f"no rotation, {why}: {said}")


def _supervised(
    x: Matrix, y: Matrix, settings: RotationSettings, generator: np.random.Generator
) -> Rotation:
    """Procrustes on all pairs, held to the identity as proves best on pairs held out."""
    dim = x.shape[1]
    check_enough(len(x), dim, settings.held_out, "different pairs of nonzero rows")
    eye = np.eye(dim, dtype=np.float32)
    order = generator.permutation(len(x))
    parts = np.array_split(order, max(2, round(1 / settings.held_out)))
    rest = [np.setdiff1d(order, held) for held in parts]

    def accuracy(hold: float) -> float:
        maps = [held_procrustes(x[fitted], y[fitted], eye, hold) for fitted in rest]
        found = [_found(x, y, *each) for each in zip(parts, maps, strict=True)]
        return float(np.concatenate(found).mean())

    scores = {hold: accuracy(hold) for hold in settings.holds}
    hold = max(scores, key=lambda hold: scores[hold])  # the first of equals
    best, threshold = scores[hold], float(_found(x, y, order, eye).mean())
    guess = (1 + settings.errors) / len(x)
    said = (
        f"held-out pairs find each other in {best:.2%} with the best rotation (held by {hold:g} to "
        f"the identity) and {threshold:.2%} without, both directions, {len(x)} pairs"
    )
    if best >= threshold and best > guess:
        W = held_procrustes(x, y, eye, hold)
        return Rotation(W, best, threshold, False, PAIRS, f"rotated: {said}")
    return Rotation(eye, best, threshold, threshold <= guess, IDENTITY, f"no rotation: {said}")


def _found(x: Matrix, y: Matrix, held: Rows, W: Matrix) -> NDArray[np.bool_]:
    """Whether held-out rows are nearest to their partners by cosine, both directions."""
    forward = nearest(x[held] @ W, y, k=0).rows == held
    backward = nearest(y[held] @ W.T, x, k=0).rows == held
    return np.concatenate([forward, backward])


def _drawn(rows: Matrix, most: int, generator: np.random.Generator) -> Matrix:
    """As many rows as allowed, in order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(generator.choice(len(rows), most, replace=False))]


def _split(count: int, share: float, generator: np.random.Generator) -> tuple[Rows, Rows]:
    """Places of the rows that are a share of all, and of the others, drawn at random."""
    order = generator.permutation(count)
    first = int(count * share)
    return order[:first], order[first:]
