"""Is training healthy? Leak, collapse and what is learned, judged while it runs (section 3.1).

:mod:`ccpretrieve.training.measures` says what is measured. Batch norm in the head takes the mean
out, so that embeddings that lie close together are no fault in themselves: the first token of a
fresh XLM-R kind has a spread of 0.02 and trains well. They have collapsed when nothing can be told
from them either. The leak has a module of its own, :mod:`ccpretrieve.training.leak`.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from ccpretrieve.training.leak import LeakProbe
from ccpretrieve.training.measures import Vitals


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When to warn.

    Those of the leak lie between what was measured on heads built to leak (gain 0.24 to 1 of what
    knowing the batch is worth, company 0.4 to 0.9) and, in batches of 4 to 48, on asymmetric heads
    (gain up to 0.12, company below 0.05) and on plain ones without a leak, whose gain is up to 0.65
    when young and small, but company below 0. Guessing and collapse are relative to what a
    bank allows and to the start, as encoders differ by factors of ten.

    Attributes:
        leak_gain: A leak brings more than this share of what knowing the batch is worth.
        leak_company: Vectors know their batch better by more than this through normalisation.
        leak_errors: The gain is more than this many standard errors.
        leak_batches: Of fewer batches in a probe the standard error is not known well enough.
        probes: Latest probes that vote; more than half of them must show a leak.
        window: Observations of a language whose medians are judged, and how many its start is.
        patience: Observations before learning is judged: running statistics start at nothing, and
            an asymmetric head scores below guessing until they have caught up.
        guessing: Nothing is learned if the bound is below this share of log of the candidates.
        collapse_spread: If so, and embeddings have a smaller spread than this, they have collapsed.
        collapse_rank: They have collapsed onto few directions, learned or not, if their effective
            rank is below this share of that at the start.
    """

    leak_gain: float = 0.2
    leak_company: float = 0.2
    leak_errors: float = 4.0
    leak_batches: int = 4
    probes: int = 3
    window: int = 5
    patience: int = 50
    guessing: float = 0.05
    collapse_spread: float = 0.05
    collapse_rank: float = 0.25

    def is_leak(self, probe: LeakProbe) -> bool:
        """Whether one probe shows a leak."""
        return (
            probe.batches >= self.leak_batches
            and probe.company > self.leak_company
            and probe.gain > max(self.leak_gain * probe.worth, self.leak_errors * probe.error)
        )


class _Course:
    """What is kept of one language: its first observations and its latest; medians of both."""

    def __init__(self, window: int) -> None:
        self.count, self.window = 0, window
        self.first: list[Vitals] = []
        self.last: deque[Vitals] = deque(maxlen=window)

    def add(self, vitals: Vitals) -> None:
        self.count += 1
        self.last.append(vitals)
        if len(self.first) < self.window:
            self.first.append(vitals)

    @property
    def learned(self) -> float:
        """The bound, as a share of what it can be."""
        return _median([v.bound / math.log(v.candidates) for v in self.last if v.candidates > 1])

    def now(self, name: str) -> float:
        return _median([getattr(vitals, name) for vitals in self.last])

    def start(self, name: str) -> float:
        return _median([getattr(vitals, name) for vitals in self.first])


class Health:
    """Collects what is measured while training and says what is wrong.

    Args:
        thresholds: When to warn; the defaults if None.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._courses: dict[str, _Course] = {}
        self._probes: deque[tuple[int, str, LeakProbe]] = deque(maxlen=self.thresholds.probes)
        self._told: set[str] = set()

    def observe(self, language: str, vitals: Vitals) -> None:
        """Add what one logged step of a language looked like."""
        self._courses.setdefault(language, _Course(self.thresholds.window)).add(vitals)

    def observe_probe(self, step: int, language: str, probe: LeakProbe) -> None:
        """Add a leak probe of a step and language."""
        self._probes.append((step, language, probe))

    def verdict(self) -> list[str]:
        """What is wrong now, a sentence each that begins with its kind; empty if nothing is."""
        found = [self._leak(), self._broken(), self._low_rank()]
        if self._observations() >= self.thresholds.patience:
            found += [self._collapse(), self._diverged(), self._guessing()]
        return [warning for warning in found if warning]

    def unmeasured(self) -> list[str]:
        """Kinds of faults that an empty verdict does not rule out: too little was looked at."""
        judged = self._observations() >= self.thresholds.patience
        return ([] if self._probes else ["leak"]) + ([] if judged else ["collapse"])

    def assurance(self) -> str:
        """What may be said where the verdict is empty."""
        lacking = self.unmeasured()
        sound = [f"no {kind}" for kind in ("leak", "collapse") if kind not in lacking]
        seen = f"{self._observations()} lines of the log, {len(self._probes)} probes"
        if not sound:
            return f"health: too little was measured to judge it ({seen})"
        rest = f"; not measured enough: {', '.join(lacking)} ({seen})" if lacking else ""
        return f"healthy: {', '.join(sound)}{rest}"

    def _observations(self) -> int:
        return sum(course.count for course in self._courses.values())

    def news(self) -> list[str]:
        """The part of the verdict whose kinds it did not have at the call before; for the log."""
        warnings = {warning.partition(":")[0]: warning for warning in self.verdict()}
        fresh = [warning for kind, warning in warnings.items() if kind not in self._told]
        self._told = set(warnings)
        return fresh

    def summary(self) -> dict[str, Any]:
        """Verdict and its gaps, medians of each language at the start and now, probes; as JSON."""
        names = [field.name for field in fields(Vitals)]
        return {
            "verdict": self.verdict(),
            "unmeasured": self.unmeasured(),
            "languages": {
                language: {
                    "observations": course.count,
                    "start": {name: _or_none(course.start(name)) for name in names},
                    "now": {name: _or_none(course.now(name)) for name in names},
                }
                for language, course in sorted(self._courses.items())
            },
            "probes": [
                {"step": step, "language": language, "gain": probe.gain, "company": probe.company}
                | asdict(probe)
                for step, language, probe in self._probes
            ],
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything it knows, of plain numbers, lists and dictionaries."""
        return {
            "courses": {
                language: {
                    "count": course.count,
                    "first": [asdict(vitals) for vitals in course.first],
                    "last": [asdict(vitals) for vitals in course.last],
                }
                for language, course in self._courses.items()
            },
            "probes": [[step, language, asdict(probe)] for step, language, probe in self._probes],
            "told": sorted(self._told),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Know what another knew."""
        self._courses = {}
        for language, kept in state["courses"].items():
            course = self._courses[language] = _Course(self.thresholds.window)
            course.count = kept["count"]
            course.first = [Vitals(**vitals) for vitals in kept["first"]]
            course.last.extend(Vitals(**vitals) for vitals in kept["last"])
        self._probes.clear()
        self._probes.extend(
            (step, code, LeakProbe(**probe)) for step, code, probe in state["probes"]
        )
        self._told = set(state["told"])

    def _leak(self) -> str:
        leaks = [probe for probe in self._probes if self.thresholds.is_leak(probe[2])]
        if 2 * len(leaks) <= len(self._probes):
            return ""
        step, language, probe = leaks[-1]
        return (
            f"leak: at step {step} ({language}) the loss as trained is {probe.training_loss:.2f}, "
            f"but {probe.evaluation_loss:.2f} with running statistics and "
            f"{probe.shuffled_loss:.2f} with rows mixed over batches: batch norm tells which "
            "vectors sat in one batch; train with asymmetric batch norm"
        )

    def _broken(self) -> str:
        shown = self._where(lambda course: math.isnan(course.last[-1].spread), "loss")
        return shown and f"not finite: embeddings hold a NaN or infinity (loss {shown})"

    def _low_rank(self) -> str:
        least = self.thresholds.collapse_rank
        shown = self._where(
            lambda course: (
                course.count >= 2 * course.window  # start and now do not overlap
                and course.now("effective_rank") < least * course.start("effective_rank")
            ),
            "effective_rank",
        )
        return shown and (
            f"few directions: the effective rank of the embeddings has fallen below {least:g} of "
            f"that at the start ({shown}); lower the learning rate or stop earlier"
        )

    def _collapse(self) -> str:
        shown = self._where(self._is_collapsed, "spread")
        return shown and (
            f"collapse: all sentences get nearly the same embedding (spread {shown}) and contexts "
            "are guessed; lower the learning rate, or check --l2 and --batch-norm"
        )

    def _diverged(self) -> str:
        shown = self._where(self._is_diverged, "bound")
        return shown and (
            "diverged: the loss is above that of guessing, by more than at the start (bound "
            f"{shown} nats); lower --learning-rate, or lengthen --warmup-steps"
        )

    def _guessing(self) -> str:
        shown = self._where(
            lambda course: (
                self._is_guessing(course)
                and not self._is_collapsed(course)
                and not self._is_diverged(course)
            ),
            "bound",
        )
        return shown and (
            f"guessing: the loss is that of guessing the context (bound {shown} nats); train "
            "longer, or check that sentences of a document are neighbours"
        )

    def _is_guessing(self, course: _Course) -> bool:
        return course.count >= course.window and course.learned < self.thresholds.guessing

    def _is_diverged(self, course: _Course) -> bool:
        """Worse than guessing by more than learning is better, and than at the start."""
        worse = course.learned < -self.thresholds.guessing
        fallen = course.now("bound") < course.start("bound")
        return course.count >= course.window and worse and fallen and not self._is_collapsed(course)

    def _is_collapsed(self, course: _Course) -> bool:
        return self._is_guessing(course) and course.now("spread") < self.thresholds.collapse_spread

    def _where(self, wrong: Callable[[_Course], bool], name: str, most: int = 5) -> str:
        """``ja 0.01, th 0.02``: the languages that something is wrong with and what they have."""
        shown = [
            f"{language} {course.now(name):.2g}"
            for language, course in sorted(self._courses.items())
            if wrong(course)
        ]
        rest = f" and {len(shown) - most} more languages" if len(shown) > most else ""
        return ", ".join(shown[:most]) + rest


def _median(values: list[float]) -> float:
    """Median of those that were measured; NaN if none was."""
    measured = [value for value in values if not math.isnan(value)]
    return median(measured) if measured else math.nan


def _or_none(value: float) -> float | None:
    """What JSON has for it."""
    return value if math.isfinite(value) else None
