"""Is training healthy? Leak, collapse and what is learned, measured while it runs (section 3.1).

With x, y of unit length, x+ the partner of x, M the candidates of a pair and L its loss:

    alignment       E |x - x+|^2                                 Wang and Isola 2020; 0 is best
    uniformity      log E_{x != y} exp(-2 |x - y|^2)             the same; 0 is collapse
    effective rank  exp(-sum_k p_k log p_k), p_k = s_k / sum s   Roy and Vetterli 2007
    spread          sqrt(E |x - E x|^2)                          0 is collapse
    bound           log M - L  <=  I(s; s_c)                     van den Oord et al. 2018

with s_1, s_2, ... the singular values of the rows about their mean. Batch norm in the head takes
the mean out, so that embeddings that lie close together are no fault in themselves: the first token
of a fresh XLM-R kind has a spread of 0.02 and trains well. They have collapsed when nothing can be
told from them either. The leak has a module of its own, :mod:`ccpretrieve.training.leak`.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ccpretrieve.model.losses import ContrastiveLoss
from ccpretrieve.training.leak import LeakProbe
from ccpretrieve.training.leak import leak_probe as leak_probe


def alignment(z_c: Tensor, z_i: Tensor) -> float:
    """Mean squared distance of partners at unit length: 0 to 4.

    Args:
        z_c: Shape ``(N, D)``.
        z_i: Shape ``(N, D)``; row i is the partner of row i.
    """
    return (_unit(z_c) - _unit(z_i)).square().sum(dim=1).mean().item()


def uniformity(z: Tensor, *, t: float = 2.0) -> float:
    """Log of the mean Gaussian potential of two different rows at unit length.

    Args:
        z: Shape ``(N, D)``, N at least 2.
        t: Of the potential exp(-t |x - y|^2).

    Returns:
        0 if all rows are one; about -2 t where they are spread evenly over many dimensions.
    """
    x = _unit(z)
    potential = -t * (2 - 2 * x @ x.T)  # (N, N), as |x - y|^2 = 2 - 2 cos
    potential.fill_diagonal_(-torch.inf)
    return potential.logsumexp(dim=(0, 1)).item() - math.log(len(x) * (len(x) - 1))


def effective_rank(z: Tensor) -> float:
    """How many directions the rows use, about their mean, at unit length.

    Returns:
        From 1 to min(N - 1, D); 0 if all rows are one; NaN if a row is not finite.
    """
    x = _unit(z)
    x = x - x.mean(dim=0)
    if not x.isfinite().all():
        return math.nan  # where eigvalsh would fail
    gram = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    if singular.max() < 1e-6:  # rounding alone
        return 0.0
    p = singular / singular.sum()
    return float(torch.special.entr(p).sum().exp())


def spread(z: Tensor) -> float:
    """Root mean squared distance from the mean, at unit length: 0 to 1."""
    x = _unit(z)
    return (x - x.mean(dim=0)).square().sum(dim=1).mean().sqrt().item()


def bank_accuracy(z_c: Tensor, z_i: Tensor, bank: Tensor) -> float:
    """Share of rows whose partner is nearer, by cosine, than all of the bank; a draw is a miss.

    Args:
        z_c: Shape ``(N, P)``, with the head in evaluation mode.
        z_i: Shape ``(N, P)``, likewise; row i is the partner of row i.
        bank: Shape ``(M, P)``.

    Returns:
        Guessing gives 1 / (M + 1); NaN if the bank is empty.
    """
    if not len(bank):
        return math.nan
    x, y = _unit(z_c).float(), _unit(z_i).float()
    best = (x @ F.normalize(bank.detach().float(), dim=1).T).amax(dim=1)
    return float(((x * y).sum(dim=1) > best).float().mean())


def information_bound(loss: float, candidates: float) -> float:
    """Least mutual information of a sentence and its context that the loss proves, in nats.

    It cannot exceed log of the number of candidates, and a leak makes it meaningless.

    Args:
        loss: Mean over pairs, in nats.
        candidates: Terms of the denominator, the partner among them.
    """
    return math.log(candidates) - loss


def _unit(z: Tensor) -> Tensor:
    """Rows at unit length, in float64: distances of near rows are differences of near numbers."""
    return F.normalize(z.detach().double(), dim=1)


@dataclass(frozen=True)
class Vitals:
    """What one logged step looked like; the embeddings are the encoder's, before the head.

    Attributes:
        loss: Of the batch, mean over pairs, in nats.
        candidates: Terms of its denominator.
        accuracy: Share of pairs that beat all their negatives, the bank's among them.
        bank_accuracy: See :func:`bank_accuracy`; NaN if it was not measured.
        bound: See :func:`information_bound`.
        alignment: Of centres and contexts.
        uniformity: Of the centres.
        effective_rank: Of the centres.
        spread: Of the centres.
    """

    loss: float
    candidates: float
    accuracy: float
    bank_accuracy: float
    bound: float
    alignment: float
    uniformity: float
    effective_rank: float
    spread: float


def measure(
    h_c: Tensor, h_i: Tensor, contrast: ContrastiveLoss, *, bank_accuracy: float = math.nan
) -> Vitals:
    """Take the measures of one batch of one language.

    Args:
        h_c: Encoded centres, shape ``(N, D)``, N at least 2.
        h_i: Their contexts, shape ``(N, D)``.
        contrast: The batch's loss.
        bank_accuracy: If it was measured.
    """
    loss = contrast.per_pair.detach().mean().item()
    return Vitals(
        loss=loss,
        candidates=contrast.candidates,
        accuracy=contrast.accuracy.item(),
        bank_accuracy=bank_accuracy,
        bound=information_bound(loss, contrast.candidates),
        alignment=alignment(h_c, h_i),
        uniformity=uniformity(h_c),
        effective_rank=effective_rank(h_c),
        spread=spread(h_c),
    )


# -- the verdict --


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
        if sum(course.count for course in self._courses.values()) >= self.thresholds.patience:
            found += [self._collapse(), self._guessing()]
        return [warning for warning in found if warning]

    def news(self) -> list[str]:
        """The part of the verdict whose kinds it did not have at the call before; for the log."""
        warnings = {warning.partition(":")[0]: warning for warning in self.verdict()}
        fresh = [warning for kind, warning in warnings.items() if kind not in self._told]
        self._told = set(warnings)
        return fresh

    def summary(self) -> dict[str, Any]:
        """Verdict, medians of each language at the start and now, latest probes; as JSON."""
        names = [field.name for field in fields(Vitals)]
        return {
            "verdict": self.verdict(),
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

    def _guessing(self) -> str:
        shown = self._where(
            lambda course: self._is_guessing(course) and not self._is_collapsed(course), "bound"
        )
        return shown and (
            f"guessing: the loss is that of guessing the context (bound {shown} nats); train "
            "longer, or check that sentences of a document are neighbours"
        )

    def _is_guessing(self, course: _Course) -> bool:
        return course.count >= course.window and course.learned < self.thresholds.guessing

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
