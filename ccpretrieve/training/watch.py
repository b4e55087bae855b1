"""What :class:`~ccpretrieve.training.health.Health` is shown of a CCP run, and when.

A line of the log comes with the vitals of the latest CCP batch. Every ``probe_steps`` updates the
latest few batches of its language are encoded again, by the weights as they are, and probed for a
leak. Random draws of the training are left as they were.
"""

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ccpretrieve.data.batches import Batch
from ccpretrieve.model.losses import ContrastiveLoss
from ccpretrieve.model.projection import Projection
from ccpretrieve.training.health import Health
from ccpretrieve.training.leak import leak_probe
from ccpretrieve.training.measures import Vitals, bank_accuracy, measure

logger = logging.getLogger(__name__)

#: Latest batches of a language that are probed together.
PROBED = 8


@dataclass(frozen=True)
class Seen:
    """The latest CCP batch.

    Attributes:
        batch: The sentences.
        h: Pooled hidden states, shape ``(C, D)``, without gradient.
        bank: The negatives it was given, shape ``(M, P)``; read before the bank is filled. None
            where no line of the log is due.
        result: Its loss.
    """

    batch: Batch
    h: Tensor
    bank: Tensor | None
    result: ContrastiveLoss


class Watch:
    """Looks at a run for Health.

    Args:
        health: What judges.
        projection: g.
        embed: Pooled hidden states of a batch, shape ``(C, D)``, without gradient.
        temperature: tau.
        l2: Cosine or dot product.
        probe_steps: Updates between two probes.
    """

    def __init__(
        self,
        health: Health,
        projection: Projection,
        embed: Callable[[Batch], Tensor],
        *,
        temperature: float,
        l2: bool,
        probe_steps: int,
    ) -> None:
        self.health = health
        self.projection = projection
        self.embed = embed
        self.temperature = temperature
        self.l2 = l2
        self.probe_steps = probe_steps
        self._seen: Seen | None = None
        self._resumed: tuple[str, Vitals] | None = None  # of the latest batch before a resume
        self._bank_accuracy = math.nan
        self._recent: defaultdict[str, deque[Batch]] = defaultdict(lambda: deque(maxlen=PROBED))

    @torch.no_grad()
    def saw(self, seen: Seen) -> None:
        """Keep the latest batch."""
        self._seen, self._resumed = seen, None
        self._recent[seen.batch.language].append(seen.batch)
        self._bank_accuracy = math.nan
        if seen.bank is not None:
            h_c, h_i = sides(seen.batch, seen.h)
            z_c = self.projection.evaluate(h_c, side="centers")
            z_i = self.projection.evaluate(h_i, side="contexts")
            self._bank_accuracy = bank_accuracy(z_c, z_i, seen.bank)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Vitals of the latest batch, for the log; warnings go to it too."""
        latest = self._latest()
        self._seen = self._resumed = None
        if latest is None:
            return {}
        language, vitals = latest
        self.health.observe(language, vitals)
        for warning in self.health.news():
            logger.warning("%s", warning)
        return {name: value for name, value in asdict(vitals).items() if math.isfinite(value)}

    def _latest(self) -> tuple[str, Vitals] | None:
        """Language and vitals of the latest batch since the last line of the log, if any."""
        seen = self._seen
        if seen is None or seen.batch.centers < 2:
            return self._resumed
        h_c, h_i = sides(seen.batch, seen.h)
        vitals = measure(h_c, h_i, seen.result, bank_accuracy=self._bank_accuracy)
        return seen.batch.language, vitals

    @torch.no_grad()
    def probe(self, step: int, e: int) -> None:
        """Look for a leak, if it is time and there are batches enough.

        Args:
            step: Updates taken.
            e: Forward passes of CCP taken.
        """
        if step % self.probe_steps or self._seen is None:
            return
        language = self._seen.batch.language
        size = self._seen.batch.centers
        batches = [batch for batch in self._recent[language] if batch.centers == size]
        if size < 2 or len(batches) < self.health.thresholds.leak_batches:
            return
        devices = [self._seen.h.device] if self._seen.h.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            pairs = [sides(batch, self.embed(batch)) for batch in batches]
        (h_c, h_i), *others = pairs
        probe = leak_probe(
            self.projection,
            h_c,
            h_i,
            others_c=torch.cat([pair[0] for pair in others]),
            others_i=torch.cat([pair[1] for pair in others]),
            temperature=self.temperature,
            l2=self.l2,
            step=e,
        )
        self.health.observe_probe(step, language, probe)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What Health knows, and the vitals of the latest batch.

        The batches themselves are not kept, so the next probe may come later.
        """
        latest = self._latest()
        kept = None if latest is None else [latest[0], asdict(latest[1])]
        return {"health": self.health.state_dict(), "latest": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where :meth:`state_dict` was taken."""
        self.health.load_state_dict(state["health"])
        kept = state["latest"]
        self._resumed = None if kept is None else (kept[0], Vitals(**kept[1]))


def sides(batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Centres, and the first context of each: rows of ``(C, ...)`` as two of ``(N, ...)``."""
    numbers = torch.from_numpy(batch.windows[batch.centers :]).to(rows.device)
    wanted = torch.arange(batch.centers, device=rows.device)
    first = torch.searchsorted(numbers, wanted)  # numbers rise
    return rows[: batch.centers], rows[batch.centers :][first]
