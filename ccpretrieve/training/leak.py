"""The leak probe: does batch norm tell which vectors sat in one batch (section 3.1)?

Each vector normalised with the statistics of its batch carries them. An encoder can learn to write
its batch into them, and the members of a batch then pick each other out: the bank, which holds
other batches, stops being a task, the loss falls and retrieval is worthless. The probe scores the
same pairs three times:

    training      as trained, each batch with its own statistics
    evaluation    all with the running statistics
    shuffled      as trained, but rows mixed over batches, each side in another way

A leak lives in the first alone. Each of the others can be worse for a reason of its own: running
statistics lag behind a young or fast encoder, and of a small batch the noise of the statistics is
shared by partners normalised in the same company and lost by mixing. So a leak is suspected only if
both are far above the first, and if vectors as trained know their batch (:attr:`company`), which
neither reason brings about: in small batches the others are pushed away. Asymmetric batch norm has
one side in training mode; the other side does not know the company that shows in it, and the three
agree.
"""

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ccpretrieve.model.losses import ccp_loss
from ccpretrieve.model.projection import Projection

#: z of both sides, shape (R, P) each: all rows, batch after batch.
Sides = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LeakProbe:
    """The same pairs, scored as trained and in two ways that no leak survives.

    Attributes:
        training_loss: As trained, mean over pairs, in nats.
        evaluation_loss: With the running statistics.
        shuffled_loss: With the rows mixed over batches.
        error: Standard error of :attr:`gain` over batches.
        training_company: How well vectors know their batch as trained: the chance that the typical
            context of a centre's own batch, its partner aside, is nearer than that of another
            batch; 0.5 if they do not.
        evaluation_company: The same with the running statistics: what batches have in common
            honestly, such as documents.
        batches: That were compared.
        rows: Pairs in each.
    """

    training_loss: float
    evaluation_loss: float
    shuffled_loss: float
    error: float
    training_company: float
    evaluation_company: float
    batches: int
    rows: int

    @property
    def gain(self) -> float:
        """Nats by which the loss as trained is below both others; negative if it is not."""
        return min(self.evaluation_loss, self.shuffled_loss) - self.training_loss

    @property
    def worth(self) -> float:
        """Nats that knowing the batch, and nothing else, would bring."""
        own = 2 * self.rows - 1
        return math.log1p((self.batches - 1) * self.rows / own)

    @property
    def company(self) -> float:
        """What normalisation adds to how well vectors know their batch: 0 nothing, 1 all."""
        honest = max(0.5, self.evaluation_company)
        return (self.training_company - honest) / (1 - honest) if honest < 1 else 0.0


@torch.no_grad()
def leak_probe(
    projection: Projection,
    h_c: Tensor,
    h_i: Tensor,
    *,
    others_c: Tensor,
    others_i: Tensor,
    temperature: float,
    step: int,
    l2: bool = True,
) -> LeakProbe:
    """Score pairs as trained, with running statistics, and mixed over batches.

    Each batch takes its turn, the contexts of the others being its bank. The head is copied: its
    statistics stay as they are, and no generator of the training moves.

    Args:
        projection: g.
        h_c: Encoded centres of a batch, shape ``(N, D)``, N at least 2.
        h_i: Their contexts, shape ``(N, D)``.
        others_c: Centres of other batches of the same language, best encoded by the same weights,
            shape ``(K, D)``; each N rows are a batch, and a rest is left out.
        others_i: Their contexts, shape ``(K, D)``.
        temperature: tau.
        step: Its parity says which side of an asymmetric head is in training mode.
        l2: Cosine, or the dot product, as in the loss.

    Raises:
        ValueError: If shapes do not fit or there is no whole batch of others.
        UserError: If a batch is too small for the head's batch norm.
    """
    rows = len(h_c)
    batches = 1 + len(others_c) // max(1, rows)
    if h_c.shape != h_i.shape or others_c.shape != others_i.shape or min(rows, batches) < 2:
        shapes = [tuple(h.shape) for h in (h_c, h_i, others_c, others_i)]
        raise ValueError(f"expected (N, D) twice, N > 1, and (K, D) twice, K >= N, got {shapes}")
    head = _Head(
        projection,
        torch.cat([h_c, others_c])[: batches * rows],  # (R, D)
        torch.cat([h_i, others_i])[: batches * rows],
        step,
    )
    own = torch.arange(batches * rows, device=h_c.device) // rows  # (R,), batch of each row
    ways = {
        "training": head.in_company(own, own),
        "evaluation": head.alone(),
        "shuffled": head.in_company(*_mixed(batches, rows, h_c.device)),
    }
    losses = {way: _losses(z, rows, temperature, l2) for way, z in ways.items()}
    mean = {way: loss.mean().item() for way, loss in losses.items()}
    lower = min("evaluation", "shuffled", key=mean.__getitem__)
    return LeakProbe(
        training_loss=mean["training"],
        evaluation_loss=mean["evaluation"],
        shuffled_loss=mean["shuffled"],
        error=(losses[lower] - losses["training"]).std().item() / math.sqrt(batches),
        training_company=_company(ways["training"], rows),
        evaluation_company=_company(ways["evaluation"], rows),
        batches=batches,
        rows=rows,
    )


class _Head:
    """Projects the rows of several batches in one company or another, each from the same state."""

    def __init__(
        self, projection: Projection, centers: Tensor, contexts: Tensor, step: int
    ) -> None:
        self.copy = copy.deepcopy(projection)
        self.state = copy.deepcopy(projection.state_dict())
        self.centers = centers
        self.contexts = contexts
        self.step = step

    def in_company(self, of_centers: Tensor, of_contexts: Tensor) -> Sides:
        """As trained, in batches of the rows that have one number."""
        generator = torch.Generator().manual_seed(self.step)  # for shuffled batch norm
        z_c = self.centers.new_empty(len(self.centers), self.copy.output, dtype=torch.float32)
        z_i = torch.empty_like(z_c)
        for number in range(int(of_centers.max()) + 1):
            self.copy.load_state_dict(self.state)  # as if it came next in training
            c, i = of_centers == number, of_contexts == number
            made_c, made_i = self.copy(
                self.centers[c], self.contexts[i], step=self.step, generator=generator
            )
            z_c[c], z_i[i] = made_c.float(), made_i.float()
        return z_c, z_i

    def alone(self) -> Sides:
        """With the running statistics."""
        self.copy.load_state_dict(self.state)
        z_c = self.copy.evaluate(self.centers, side="centers")
        z_i = self.copy.evaluate(self.contexts, side="contexts")
        return z_c.float(), z_i.float()


def _mixed(batches: int, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Numbers of the groups that centres and contexts are normalised in, shape ``(R,)`` each.

    A Latin square: every group has ``rows`` rows, to one equally many of each batch, and every
    group of contexts has to one equally many windows in common with every group of centres. So the
    company of a vector says nothing of where its partner is.
    """
    row = torch.arange(batches * rows, device=device)
    of_centers = row % batches
    return of_centers, (of_centers + row // batches) % batches


def _losses(z: Sides, rows: int, temperature: float, l2: bool) -> Tensor:
    """Mean loss of each batch, the contexts of the others being its bank; shape ``(batches,)``."""
    z_c, z_i = z
    windows = torch.arange(rows, device=z_c.device).repeat(2)
    losses = []
    for start in range(0, len(z_c), rows):
        batch = torch.cat([part[start : start + rows] for part in z])  # (2N, P)
        bank = torch.cat([z_i[:start], z_i[start + rows :]])
        losses.append(ccp_loss(batch, windows, bank, temperature=temperature, l2=l2).loss)
    return torch.stack(losses)


def _company(z: Sides, rows: int) -> float:
    """The chance that the typical context of a centre's own batch is nearer than another's.

    Typical is the median: a single far-off row, which is what can write a batch into its
    statistics, has no say. The row that is the partner's place is left out in every batch alike.
    """
    cosine = F.normalize(z[0], dim=1) @ F.normalize(z[1], dim=1).T  # (R, R)
    by_batch = cosine.view(len(cosine), -1, rows)  # (R, batches, N)
    place = torch.arange(len(cosine), device=cosine.device) % rows
    partners = F.one_hot(place, rows).bool()[:, None]  # (R, 1, N)
    typical = by_batch.masked_fill(partners, torch.nan).nanmedian(dim=2).values  # (R, batches)
    batch = torch.arange(len(cosine), device=cosine.device) // rows
    own = typical.gather(1, batch[:, None])  # (R, 1)
    nearer = (own > typical).double() + (own == typical) / 2  # a draw counts half
    return ((nearer.sum(dim=1) - 0.5) / (typical.shape[1] - 1)).mean().item()  # itself was a draw
