"""What an encoder reaches on parallel texts: accuracy, loss without English, isomorphism."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from ccpretrieve.data.parallel import ParallelText
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.bitext import FITTED, RAW, Accuracy, accuracy_by_fit, accuracy_by_step

if TYPE_CHECKING:
    from ccpretrieve.model.calibration_file import Calibration, Embeddings
    from ccpretrieve.model.settings import EncoderSettings

AVERAGE = "average"
WITH_ENGLISH, WITHOUT_ENGLISH = "with English", "without English"
#: Measures of isomorphism, in the order of their columns.
SHAPES = ("RSIM", "CKA", "eigen", "hubs ->", "hubs <-")

Steps = Mapping[str, Accuracy | None]


@dataclass(frozen=True)
class Scored:
    """What one encoder reached on one parallel text.

    Attributes:
        name: The two languages, such as ``fra-eng``.
        pairs: Of sentences.
        truncated: Sentences that were longer than allowed and lost their end.
        steps: Step of ``STEPS`` -> accuracy, the statistics being those of the test text itself.
        fitted: ``raw``, then step of ``FITTED`` -> accuracy under the calibration that was given;
            None where it has no such statistics. Empty without a calibration.
        english: For a pair without English, what its two languages reach with English; empty where
            no such text is there.
        same: Whether these are the same sentences.
        joined: Whether the pair was joined at the same English sentence.
        shape: Measure of ``SHAPES`` -> value, of the vectors as they are; empty if not asked for.
    """

    name: str
    pairs: int
    truncated: int
    steps: Mapping[str, Accuracy]
    fitted: Steps = field(default_factory=dict)
    english: tuple["Scored", ...] = ()
    same: bool = False
    joined: bool = False
    shape: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_english(self) -> bool:
        """Whether one of its sides is English."""
        return "eng" in self.name.split("-")

    def reached(self, *, fitted: bool) -> Steps:
        """Accuracies under the calibration given, or under the test text's own statistics."""
        return self.fitted if fitted else self.steps

    def loss(self, step: str, *, fitted: bool = False) -> float | None:
        """What is lost when English leaves the pair, as a share; None where that is not known.

        Mean of the two languages' accuracy with English, less the accuracy of the pair; each
        accuracy is the mean of both directions.
        """
        own = self.reached(fitted=fitted)[step]
        others = [each.reached(fitted=fitted)[step] for each in self.english]
        if own is None or not others or any(each is None for each in others):
            return None
        return fmean(each.mean for each in others if each is not None) - own.mean


@dataclass(frozen=True)
class Encoded:
    """One encoder: how it was used and what it reached.

    Attributes:
        settings: What decides its vectors.
        scored: By parallel text.
        calibration: The file that was given, in words; empty if none was.
    """

    settings: "EncoderSettings"
    scored: Sequence[Scored]
    calibration: str = ""

    def average(self, step: str) -> Accuracy:
        """Mean over all texts, each counting once, with the test text's own statistics."""
        found = mean_accuracy(self.scored, step)
        assert found is not None, "these are always measured"
        return found

    def groups(self, scored: Sequence[Scored] | None = None) -> dict[str, Sequence[Scored]]:
        """What an average is taken over: the texts with English, and those without.

        Args:
            scored: Some of the texts; None for all.
        """
        texts = self.scored if scored is None else scored
        kinds = {
            WITH_ENGLISH: [text for text in texts if text.has_english],
            WITHOUT_ENGLISH: [text for text in texts if not text.has_english],
        }
        if all(kinds.values()):
            return {f"{AVERAGE} {kind}": each for kind, each in kinds.items()}
        return {AVERAGE: texts} if texts else {}


def mean_accuracy(scored: Iterable[Scored], step: str, *, fitted: bool = False) -> Accuracy | None:
    """Mean over texts, each counting once; None, as for every average with a hole in it."""
    reached = [text.reached(fitted=fitted)[step] for text in scored]
    there = [each for each in reached if each is not None]
    if not there or len(there) < len(reached):
        return None
    return Accuracy(fmean(a.forward for a in there), fmean(a.backward for a in there))


def mean_loss(scored: Iterable[Scored], step: str, *, fitted: bool = False) -> float | None:
    """Mean over texts; None if one has no loss."""
    losses = [text.loss(step, fitted=fitted) for text in scored]
    there = [loss for loss in losses if loss is not None]
    return fmean(there) if there and len(there) == len(losses) else None


class Scorer:
    """Scores texts of which the vectors are given.

    Args:
        calibration: Fitted elsewhere; None for none.
    """

    def __init__(self, calibration: "Calibration | None" = None) -> None:
        self.calibration = calibration
        self.taken = () if calibration is None else _taken(calibration)

    def score(
        self,
        text: ParallelText,
        x: "Embeddings",
        y: "Embeddings",
        truncated: int,
        *,
        shape: bool = False,
    ) -> Scored:
        """Score one text by itself.

        Args:
            text: N pairs.
            x: Vectors of its first side as pooled, shape ``(N, D)``.
            y: Vectors of its second side.
            truncated: Sentences that were cut.
            shape: Measure isomorphism too.
        """
        steps = accuracy_by_step(x, y)
        return Scored(
            text.name,
            len(text),
            truncated,
            steps,
            fitted=self._fitted(text, x, y, steps[RAW]),
            joined=text.joined,
            shape=measure_shape(x, y) if shape else {},
        )

    def _fitted(
        self, text: ParallelText, x: "Embeddings", y: "Embeddings", raw: Accuracy
    ) -> dict[str, Accuracy | None]:
        if self.calibration is None:
            return {}
        spreads = [self.calibration.languages.get(code) for code in text.languages]
        left, right = spreads
        if left is None or right is None:
            return {RAW: raw, **dict.fromkeys(FITTED)}
        try:
            return {RAW: raw, **accuracy_by_fit(x, y, left, right, self.taken)}
        except ValueError as error:
            raise UserError(f"{self.calibration.path}: {error}") from error


def _taken(calibration: "Calibration") -> tuple[str, ...]:
    """The steps that a calibration has for any language."""
    spreads = calibration.languages.values()
    return tuple(
        step
        for step, name in FITTED.items()
        if any(getattr(spread, name) is not None for spread in spreads)
    )


def measure_shape(x: "Embeddings", y: "Embeddings") -> dict[str, float]:
    """All measures of isomorphism; NaN for those that so few rows do not allow."""
    from ccpretrieve.retrieval import isomorphism

    measures: Sequence[Callable[[], float]] = (
        lambda: isomorphism.rsim(x, y),
        lambda: isomorphism.linear_cka(x, y),
        lambda: isomorphism.eigenvector_similarity(x, y),
        lambda: isomorphism.hubness(x, y),
        lambda: isomorphism.hubness(y, x),
    )
    enough = len(x) > isomorphism.NEIGHBOURS
    return {
        name: measure() if enough else math.nan
        for name, measure in zip(SHAPES, measures, strict=True)
    }
