"""Learns the cross-lingual calibration: lay the languages' clouds over one another (section 3.2).

    Shift     v - mu                      mu     mean embedding of a language
    Scale     v / sigma                   sigma  its spread per dimension
    Rotate    v W                         W      orthogonal map onto the pivot language
    Chain     one after another

scikit-learn's estimators: ``fit`` or, block by block, ``partial_fit``; then ``transform``. Each
learns from vectors of one language, as pooled. What is learned is kept and applied by
:mod:`ccpretrieve.model.calibration_file`.

Where the paper leaves a choice: it writes variance; ``deviation``, our default, brings every
dimension to unit spread. Chained or alone: all of the steps may stand alone.

**Little text.** A mean or spread of few rows is mostly noise, so both are shrunk towards what is
known before, by a share that the rows themselves decide and that goes to 0 as they grow many:

    mu     towards a prior mean, if there is one      l = (sum_k v_k / n) / |m - m_0|^2
    sigma  variances towards their own average, or    l = sum_k Var(v_k) / sum_k (v_k - t_k)^2
           the pattern of a prior scaled to it        Var(v_k) = 2 v_k^2 / (n - 1)

with m and v_k the mean and variances of n rows, l cut to [0, 1]. The first is James and Stein's
(1961), the second Opgen-Rhein and Strimmer's (2007, "Accurate ranking of differentially expressed
genes by a distribution-free shrinkage approach") with the variance of a variance of normal data.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ccpretrieve.calibration_config import AUTO, DEVIATION, STATISTICS
from ccpretrieve.errors import unknown
from ccpretrieve.model.calibration_file import DEAD, Spread
from ccpretrieve.model.moments import Moments, Vector
from ccpretrieve.model.rotation import Rotation, RotationSettings, learn

Vectors = NDArray[Any]


class _Statistic(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Something learned per dimension from the moments of the rows."""

    moments_: Moments

    def fit(self, X: Vectors, y: object = None) -> Self:
        """Learn from rows alone, whatever was seen before.

        Args:
            X: Embeddings, shape ``(N, D)``, N at least 2, any norm.
            y: Ignored.

        Raises:
            ValueError: If there are fewer rows, or one holds a NaN or infinity.
        """
        if hasattr(self, "moments_"):
            del self.moments_
        self.partial_fit(X)
        return self._ready()

    def partial_fit(self, X: Vectors, y: object = None) -> Self:
        """Learn from more rows; to rounding, neither their order nor the blocks matter.

        Args:
            X: Embeddings, shape ``(N, D)``, N at least 1.
            y: Ignored.

        Raises:
            ValueError: If the width is another than before, or a row holds a NaN or infinity.
        """
        first = not hasattr(self, "moments_")
        X = validate_data(self, X, dtype=(np.float32, np.float64), reset=first)
        moments = Moments() if first else self.moments_
        moments.add(X)
        return self.learn_from(moments)

    def learn_from(self, moments: Moments) -> Self:
        """Learn from rows that others have seen, given their moments."""
        self.moments_ = moments
        self.n_samples_seen_ = moments.count
        self.n_features_in_ = len(moments.mean)
        self._learn()
        return self

    def _learn(self) -> None:
        raise NotImplementedError

    def _ready(self) -> Self:
        check_is_fitted(self, "moments_")
        if self.moments_.count < 2:
            name = type(self).__name__
            raise ValueError(f"{name} needs two rows or more, got n_samples=1")
        return self

    def _checked(self, X: Vectors) -> Vectors:
        checked: Vectors = validate_data(
            self._ready(), X, dtype=(np.float32, np.float64), reset=False
        )
        return checked


class Shift(_Statistic):
    """Subtracts a language's mean embedding.

    Args:
        prior: Mean that is believed before there is text, shape ``(D,)``, such as that of all
            languages; None for none, and nothing is shrunk.
        shrinkage: Share of the prior, 0 to 1; ``auto`` for the one that the rows ask for.

    Attributes:
        mean_: mu, shape ``(D,)``, float64.
        shrinkage_: The share that was taken.
        n_samples_seen_: Rows learned from.
    """

    def __init__(self, *, prior: Vectors | None = None, shrinkage: float | str = AUTO) -> None:
        self.prior = prior
        self.shrinkage = shrinkage

    def _learn(self) -> None:
        moments = self.moments_
        if self.prior is None:
            self.shrinkage_, self.mean_ = 0.0, moments.mean
            return
        prior = _prior(self.prior, len(moments.mean))
        noise = moments.squares.sum() / max(1, moments.count - 1) / moments.count
        distance = float(np.square(moments.mean - prior).sum())
        self.shrinkage_ = _share(self.shrinkage, noise, distance)
        self.mean_ = (1 - self.shrinkage_) * moments.mean + self.shrinkage_ * prior

    def transform(self, X: Vectors) -> Vectors:
        """V - mu; shape ``(N, D)``."""
        X = self._checked(X)
        return np.asarray(X - self.mean_.astype(X.dtype))

    def inverse_transform(self, X: Vectors) -> Vectors:
        """V + mu; shape ``(N, D)``."""
        X = self._checked(X)
        return np.asarray(X + self.mean_.astype(X.dtype))


class Scale(_Statistic):
    """Divides each dimension by its spread about the mean; the mean stays where it is, scaled.

    Args:
        statistic: ``deviation``, or ``variance`` as the paper writes.
        eps: A dimension whose deviation is below is dead and left as it is.
        prior: Variances that are believed before there is text, shape ``(D,)``: their pattern
            counts, not their size. None for all dimensions alike.
        shrinkage: Share of the prior, 0 to 1; ``auto`` for the one that the rows ask for.

    Attributes:
        scale_: sigma, shape ``(D,)``, float64, positive.
        shrinkage_: The share that was taken.
        n_samples_seen_: Rows learned from.
    """

    def __init__(
        self,
        *,
        statistic: str = DEVIATION,
        eps: float = DEAD,
        prior: Vectors | None = None,
        shrinkage: float | str = AUTO,
    ) -> None:
        self.statistic = statistic
        self.eps = eps
        self.prior = prior
        self.shrinkage = shrinkage

    def _learn(self) -> None:
        if self.statistic not in STATISTICS:
            raise unknown("statistic", self.statistic, STATISTICS)
        variance = self.moments_.variance
        alive = np.sqrt(variance) >= self.eps
        target = np.ones_like(variance)
        if self.prior is not None:
            target = _prior(self.prior, len(variance))
        level = variance[alive].sum() / max(target[alive].sum(), np.finfo(float).tiny)
        target = level * target
        noise = 2 * np.square(variance[alive]).sum() / max(1, self.moments_.count - 1)
        distance = float(np.square(variance - target)[alive].sum())
        self.shrinkage_ = _share(self.shrinkage, noise, distance)
        shrunk = (1 - self.shrinkage_) * variance + self.shrinkage_ * target
        deviation = np.where(alive, np.sqrt(shrunk), 1.0)
        self.scale_: Vector = deviation if self.statistic == DEVIATION else np.square(deviation)

    def transform(self, X: Vectors) -> Vectors:
        """V / sigma; shape ``(N, D)``."""
        X = self._checked(X)
        return np.asarray(X / self.scale_.astype(X.dtype))

    def inverse_transform(self, X: Vectors) -> Vectors:
        """V sigma; shape ``(N, D)``."""
        X = self._checked(X)
        return np.asarray(X * self.scale_.astype(X.dtype))


def _prior(prior: Vectors, width: int) -> Vector:
    made = np.asarray(prior, dtype=np.float64)
    if made.shape != (width,) or not np.isfinite(made).all():
        raise ValueError(f"prior must be {width} finite numbers, got shape {made.shape}")
    return made


def _share(asked: float | str, noise: float, distance: float) -> float:
    """The share of the prior: as asked, or noise over distance, cut to [0, 1]."""
    if asked == AUTO:
        return float(min(1.0, noise / distance)) if distance > 0 else 0.0
    if isinstance(asked, str) or not 0 <= asked <= 1:
        raise ValueError(f"shrinkage must be {AUTO!r} or lie from 0 to 1, got {asked!r}")
    return float(asked)


class Rotate(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns one language's cloud onto another's; see :mod:`ccpretrieve.model.rotation`.

    Args:
        paired: Row i of the target translates row i. By default no row is told its partner.
        starts: Ways to begin without pairs that are tried.
        restarts: Of those that draw at random.
        seed: Of all draws.
        settings: Of the search; the defaults if None.

    Attributes:
        rotation_: W, shape ``(D, D)``; the identity if none could be found.
        outcome_: How it was found, or why not.
    """

    def __init__(
        self,
        *,
        paired: bool = False,
        starts: Sequence[str] = ("similarity", "adversarial"),
        restarts: int = 3,
        seed: int = 0,
        settings: RotationSettings | None = None,
    ) -> None:
        self.paired = paired
        self.starts = starts
        self.restarts = restarts
        self.seed = seed
        self.settings = settings

    def fit(self, X: Vectors, y: Vectors) -> Self:
        """Learn the map from X to y.

        Args:
            X: Vectors of a language, shape ``(N, D)``, shifted and perhaps scaled.
            y: Vectors of the pivot language, shape ``(M, D)``, likewise.

        Raises:
            ValueError: If there are too few rows, widths differ, or a row is not finite.
        """
        X = validate_data(self, X, dtype=(np.float32, np.float64))
        target = np.asarray(y)
        pairs = None
        if self.paired:
            if len(X) != len(target):
                raise ValueError(f"pairs need as many rows on both sides: {len(X)}, {len(target)}")
            pairs = (np.arange(len(X)), np.arange(len(X)))
        self.outcome_: Rotation = learn(
            X,
            target,
            pairs=pairs,
            starts=tuple(self.starts),
            restarts=self.restarts,
            seed=self.seed,
            settings=self.settings or RotationSettings(),
        )
        self.rotation_ = self.outcome_.matrix
        return self

    def transform(self, X: Vectors) -> Vectors:
        """V W; shape ``(N, D)``."""
        check_is_fitted(self, "rotation_")
        X = validate_data(self, X, dtype=(np.float32, np.float64), reset=False)
        turned: Vectors = X @ self.rotation_.astype(X.dtype)
        return turned

    def inverse_transform(self, X: Vectors) -> Vectors:
        """V W^T, as W is orthogonal; shape ``(N, D)``."""
        check_is_fitted(self, "rotation_")
        turned: Vectors = np.asarray(X) @ self.rotation_.T.astype(np.asarray(X).dtype)
        return turned


class Chain(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Steps one after another, each fitted on what the one before makes.

    Args:
        steps: Any of Shift, Scale and Rotate, in the order of section 3.2.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self.steps = steps

    def fit(self, X: Vectors, y: Vectors | None = None) -> Self:
        """Fit every step.

        Args:
            X: Embeddings of a language, shape ``(N, D)``.
            y: Embeddings of the pivot language, calibrated; needed by Rotate only.
        """
        for step in self.steps:
            X = step.fit(X, y).transform(X)
        return self

    def partial_fit(self, X: Vectors, y: object = None) -> Self:
        """Fit every step on more rows.

        The spread of a dimension does not depend on its mean, so Scale learns the same whether the
        rows before it were shifted by the mean so far or by the last.

        Raises:
            TypeError: If there is a Rotate, which needs all rows at once.
            ValueError: If steps stand in another order than shift, scale, or twice: the mean of
                scaled rows is not learned from rows as they are.
        """
        self._kinds()
        for step in self.steps:
            if not hasattr(step, "partial_fit"):
                raise TypeError(f"{type(step).__name__} cannot learn block by block; use fit")
            step.partial_fit(X)
        return self

    def transform(self, X: Vectors) -> Vectors:
        """All steps; shape ``(N, D)``."""
        for step in self.steps:
            X = step.transform(X)
        return X

    def inverse_transform(self, X: Vectors) -> Vectors:
        """All steps undone, the last first; shape ``(N, D)``."""
        for step in reversed(self.steps):
            X = step.inverse_transform(X)
        return X

    def spread(self) -> Spread:
        """What was learned, ready to be kept in a file.

        Raises:
            ValueError: If steps stand in another order than shift, scale, rotate, or twice.
        """
        learned = dict(zip(self._kinds(), self.steps, strict=True))
        return Spread(
            mean=learned[Shift].mean_.astype(np.float32) if Shift in learned else None,
            scale=learned[Scale].scale_.astype(np.float32) if Scale in learned else None,
            rotation=learned[Rotate].rotation_.astype(np.float32) if Rotate in learned else None,
        )

    def _kinds(self) -> list[type]:
        """Classes of the steps, if they stand as section 3.2 has them."""
        kinds = [type(step) for step in self.steps]
        if kinds != [kind for kind in (Shift, Scale, Rotate) if kind in kinds]:
            raise ValueError("steps must be shift, scale, rotate in this order, each at most once")
        return kinds
