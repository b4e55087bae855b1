"""What stages of work cost at several sizes, and whether that grows in step with the size.

Fixed costs (imports, loading, Java) are those of the same stage at a small size. With c the least
CPU seconds of a stage among its runs, which other work on the machine can only add to, n0 the small
size, n1 the first of those compared and n2 a larger one,

    growth = (c(n2) - c(n0)) / (c(n1) - c(n0)) : (n2 - n0) / (n1 - n0)

which is 1 if c = a + b n, whatever a is. It is withheld where the runs at n0 or n1 vary more than
the tolerance (median less least, as a share of c(n1) - c(n0)): nothing could be said of 15 % then.
Only what grows by more is outside the tolerance; what grows by less is named.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.table import grid

#: The project's target for a million passages: bytes that no stage takes more than, and how far
#: from 1 the growth from 100,000 may be.
MEMORY, TOLERANCE = 3e9, 0.15


@dataclass(frozen=True)
class Cost:
    """What one run of one stage took.

    Attributes:
        wall: Seconds.
        cpu: Seconds, user and system, all threads.
        peak: Bytes that were resident at once.
    """

    wall: float
    cpu: float
    peak: int


@dataclass(frozen=True)
class Report:
    """What was measured; as a string, the report.

    Attributes:
        heading: What was run and how.
        costs: Stage -> passages -> what each of its runs took; the small collection first.
        scores: Passages -> run -> metric -> mean, as `evaluate` gave them.
    """

    heading: str
    costs: Mapping[str, Mapping[int, Sequence[Cost]]]
    scores: Mapping[int, Mapping[str, Mapping[str, float]]]

    def above(self, stage: str, size: int) -> float:
        """CPU seconds of a stage above those at the small collection."""
        of_stage = self.costs[stage]
        return cpu(of_stage[size]) - cpu(of_stage[min(of_stage)])

    def unsure(self, stage: str) -> float:
        """How far off c(n1) - c(n0) may be, as a share of it; infinite where it is not above 0."""
        fixed, first = sorted(self.costs[stage])[:2]
        above = self.above(stage, first)
        varied = max(_spread(self.costs[stage][size]) for size in (fixed, first))
        return varied / above if above > 0 else float("inf")

    def growth(self, stage: str, size: int) -> float | None:
        """Growth of a stage from the first size to another; None where it cannot be told."""
        fixed, first = sorted(self.costs[stage])[:2]
        if self.unsure(stage) > TOLERANCE:
            return None
        ratio = (size - fixed) / (first - fixed)
        return self.above(stage, size) / self.above(stage, first) / ratio

    def __str__(self) -> str:
        return "\n\n".join([self.heading, grid(self.rows()), *self.score_lines(), self.verdict()])

    def rows(self) -> list[list[str]]:
        """A line for each stage and size, under a head."""
        rows = [["", "passages", "runs", "wall s", "CPU s", "above fixed", "peak MB", "growth"]]
        for stage, of_stage in self.costs.items():
            for place, size in enumerate(sorted(of_stage)):
                runs = of_stage[size]
                growth = self.growth(stage, size) if place > 1 else None
                rows.append(
                    [
                        stage,
                        f"{size:,}",
                        str(len(runs)),
                        f"{min(run.wall for run in runs):.1f}",
                        f"{cpu(runs):.2f}",
                        f"{self.above(stage, size):.2f}" if place else "fixed",
                        f"{max(run.peak for run in runs) / 1e6:.0f}",
                        ("-" if place > 1 else "") if growth is None else f"{growth:.2f}",
                    ]
                )
        return rows

    def score_lines(self) -> Iterator[str]:
        """That something was found, at the largest size."""
        if self.scores:
            size = max(self.scores)
            named = [
                f"{run} {', '.join(f'{metric} {value:.3f}' for metric, value in of_run.items())}"
                for run, of_run in self.scores[size].items()
            ]
            yield f"scores at {size:,} passages: {'; '.join(named)}"

    def verdict(self) -> str:
        """The largest peak and the worst growth beside what they may be, a line each."""
        last = max(next(iter(self.costs.values())))
        peak, stage, size = max(
            (max(run.peak for run in runs), stage, size)
            for stage, of_stage in self.costs.items()
            for size, runs in of_stage.items()
        )
        said = "within" if peak <= MEMORY else "MORE than"
        lines = [
            f"largest peak {peak / 1e6:.0f} MB ({stage}, {size:,}): {said} {MEMORY / 1e9:g} GB"
        ]
        told = {name: self.growth(name, last) for name in self.costs}
        known = {name: value for name, value in told.items() if value is not None}
        if known:
            worst = max(known, key=lambda name: known[name])
            outside = [name for name, value in known.items() if value > 1 + TOLERANCE]
            lines.append(
                f"worst growth {known[worst]:.2f} ({worst}), linear within {TOLERANCE:.0%} up to "
                f"{1 + TOLERANCE:.2f}; outside: {', '.join(outside) or 'none'}"
            )
        if less := [name for name, value in known.items() if value < 1 - TOLERANCE]:
            lines.append(f"grows less than linearly: {', '.join(less)}")
        for name in (name for name, value in told.items() if value is None):
            first = sorted(self.costs[name])[1]
            lines.append(
                f"{name}: {self.above(name, first):.2f} CPU s above its fixed costs at {first:,} "
                f"are too few beside their spread; at {last:,} {self.above(name, last):.2f}"
            )
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        last = max(next(iter(self.costs.values())))
        return {
            "heading": self.heading,
            "costs": {
                stage: {
                    str(n): [dataclasses.asdict(run) for run in runs] for n, runs in each.items()
                }
                for stage, each in self.costs.items()
            },
            "growth": {stage: self.growth(stage, last) for stage in self.costs},
            "scores": {str(size): each for size, each in self.scores.items()},
            "verdict": self.verdict().splitlines(),
        }


def cpu(runs: Sequence[Cost]) -> float:
    """CPU seconds of the run that took the fewest."""
    return min(run.cpu for run in runs)


def _spread(runs: Sequence[Cost]) -> float:
    """How far the runs lie above the best, in CPU seconds."""
    return median(run.cpu for run in runs) - cpu(runs)
