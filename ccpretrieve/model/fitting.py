"""Fits a calibration to several languages, in one pass over their vectors (section 3.2).

    each language   moments, and a sample of its vectors where a rotation is asked for
    all of them     priors: what a language with little text takes over from the others
    each language   shift and scale, then its rotation onto the pivot language

Nothing is paired: which text translates which is neither known nor asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ccpretrieve.calibration_config import ROTATE, SCALE, SHIFT
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.model.calibration import Rotate, Scale, Shift
from ccpretrieve.model.calibration_file import Embeddings, Spread, check_finite
from ccpretrieve.model.moments import Moments, Vector
from ccpretrieve.model.rotation import Rotation


@dataclass(frozen=True)
class Plan:
    """What is fitted, and how.

    Attributes:
        steps: Of shift, scale and rotate, in this order.
        pivot: Language that the others are rotated onto.
        statistic: ``deviation`` or ``variance``.
        shrinkage: A share from 0 to 1, or ``auto``.
        sample: Vectors of a language that a rotation is learned from.
        seed: Of the draws.
    """

    steps: Sequence[str] = (SHIFT, SCALE)
    pivot: str = "en"
    statistic: str = "deviation"
    shrinkage: float | str = "auto"
    sample: int = 10_000
    seed: int = 0


@dataclass(frozen=True)
class Fitted:
    """What was learned of one language.

    Attributes:
        spread: To be kept and applied.
        count: Vectors it was learned from.
        shift_shrunk: Share of the common mean in its mean; None without shift.
        scale_shrunk: Share of the common pattern in its variances; None without scale.
        rotation: How its rotation was found, or why not; None for the pivot or without rotate.
    """

    spread: Spread
    count: int
    shift_shrunk: float | None = None
    scale_shrunk: float | None = None
    rotation: Rotation | None = None


class Sample:
    """A uniform sample of rows that come block by block; it depends on their order and the seed.

    Args:
        size: Rows kept.
        seed: Of the draws.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.rows: Embeddings | None = None
        self._keys = np.zeros(0)
        self._generator = np.random.default_rng(seed)

    def add(self, embeddings: Embeddings) -> None:
        """Offer more rows, shape ``(N, D)``."""
        if not self.size:
            return
        keys = np.concatenate([self._keys, self._generator.random(len(embeddings))])
        rows = embeddings if self.rows is None else np.concatenate([self.rows, embeddings])
        kept = np.sort(np.argsort(keys, kind="stable")[: self.size])  # the least keys, in order
        self._keys, self.rows = keys[kept], rows[kept]


def fit(languages: Mapping[str, Iterable[Embeddings]], plan: Plan) -> dict[str, Fitted]:
    """Fit every language.

    Args:
        languages: Code -> its vectors as pooled, blocks of shape ``(N, D)``; each is read once.
        plan: What is fitted.

    Returns:
        Code -> what was learned, in the order given.

    Raises:
        UserError: If a language has too little text, or there is no pivot to rotate onto.
    """
    if ROTATE in plan.steps and plan.pivot not in languages:
        raise UserError(f"--pivot: {unknown('language', plan.pivot, tuple(languages))}")
    size = plan.sample if ROTATE in plan.steps else 0
    moments: dict[str, Moments] = {}
    samples: dict[str, Sample] = {}
    for code, blocks in languages.items():
        moments[code], samples[code] = Moments(), Sample(size, plan.seed)
        for block in blocks:
            try:
                check_finite(block)
                moments[code].add(block)
            except ValueError as error:
                raise UserError(f"{code}: {error}") from error
            samples[code].add(block)
        if moments[code].count < 2:
            raise UserError(
                f"{code}: {moments[code].count} texts; a mean and a spread need two or more, and "
                "some hundred to be worth much; leave it out of --languages, or give more text"
            )
    level = {code: _level(moments, code, plan) for code in languages}
    if ROTATE not in plan.steps:
        return level
    target = _calibrated(samples[plan.pivot], level[plan.pivot].spread)
    return {
        code: fitted
        if code == plan.pivot
        else _rotated(code, fitted, _calibrated(samples[code], fitted.spread), target, plan)
        for code, fitted in level.items()
    }


def _level(moments: Mapping[str, Moments], code: str, plan: Plan) -> Fitted:
    """Shift and scale of one language."""
    others = [each for name, each in moments.items() if name != code]
    mean, variances = _priors(others) if others else (None, None)
    shift = Shift(prior=mean, shrinkage=plan.shrinkage)
    scale = Scale(statistic=plan.statistic, prior=variances, shrinkage=plan.shrinkage)
    for step in (shift, scale):
        step.learn_from(moments[code])
    shifts, scales = SHIFT in plan.steps, SCALE in plan.steps
    return Fitted(
        Spread(
            mean=shift.mean_.astype(np.float32) if shifts else None,
            scale=scale.scale_.astype(np.float32) if scales else None,
        ),
        moments[code].count,
        shift_shrunk=shift.shrinkage_ if shifts else None,
        scale_shrunk=scale.shrinkage_ if scales else None,
    )


def _priors(moments: Sequence[Moments]) -> tuple[Vector, Vector]:
    """Mean over languages of their means and of their variances, each weighted by its rows."""
    counts = [each.count for each in moments]
    return (
        np.average([each.mean for each in moments], axis=0, weights=counts),
        np.average([each.variance for each in moments], axis=0, weights=counts),
    )


def _calibrated(sample: Sample, spread: Spread) -> Embeddings:
    assert sample.rows is not None
    return spread.transform(sample.rows)


def _rotated(code: str, fitted: Fitted, x: Embeddings, target: Embeddings, plan: Plan) -> Fitted:
    try:
        outcome = Rotate(seed=plan.seed).fit(x, target).outcome_
    except ValueError as error:
        raise UserError(f"{code}: no rotation: {error}; leave rotate out of --steps") from error
    spread = fitted.spread
    turned = Spread(spread.mean, spread.scale, None if outcome.failed else outcome.matrix)
    return Fitted(turned, fitted.count, fitted.shift_shrunk, fitted.scale_shrunk, outcome)
