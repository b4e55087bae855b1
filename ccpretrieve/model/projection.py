"""The projection head g and how its batch norm is used (section 3.1, Algorithm 1, lines 6-12).

    g(h) = W_2 act( BN( W_1 h + b_1 ) ) + b_2

    step e even   z_c = g(h_c)  with the statistics of its batch, which enter the running ones
                  z_i = g(h_i)  with the running statistics, which stay as they are
    step e odd    the other way round

Notation, paper -> code:

    h_c, h_i      centers, contexts     encoded sentences of one batch, one language
    z_c, z_i      what forward returns
    e             step                  counts forward passes of the CCP task

With both sides in training mode (``plain``) each vector carries the mean and spread of its own
batch, by which the members of a batch know each other: the loss falls and retrieval is worthless.

Where the paper leaves a choice, each a setting of :class:`Projection`:

* ``heads``: one g switched between the modes (Algorithm 1), or one for each side (a sentence of
  3.1); with two, each has its own weights and its own running statistics.
* ``activation``: not named; ReLU after the batch norm, in SimCLR's manner.
* ``order``: with one g, whether the running side is normalised before or after the other side
  has updated the running statistics. ``evaluation-first``: before, so that it sees earlier batches
  only. ``centers-first``: g switched centres first, contexts second at every step; at even steps
  the contexts then see a share (``momentum``) of the centres' batch, a constant to the gradient.
* ``statistics``: what the running statistics are before the first batch. ``unit``: mean 0 and
  variance 1, as torch has them; then the running side is off by the encoder's own mean and scale
  until about 100 batches have entered (measured from a CLS start whose variance was 1e-5 and whose
  mean was 38 standard deviations from 0: a loss of 13 where guessing is 5.5). ``first-batch``:
  those of the first batch that is seen in training mode.
* ``hidden``, ``output``: widths; all those of the encoder unless given.

The head computes in the precision of its weights (float32) inside autocast too: it is small, and
statistics as well as cosines divided by a low temperature would suffer.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ccpretrieve.errors import UserError, unknown
from ccpretrieve.training_config import (
    ACTIVATIONS,
    BATCH_NORMS,
    HEAD_ORDERS,
    HEAD_STATISTICS,
    HEADS,
)

SIDES = ("centers", "contexts")


def training_side(step: int) -> str:
    """Which side asymmetric batch norm has in training mode: ``centers`` at even steps."""
    return SIDES[step % 2]


class Projection(nn.Module):
    """g, for pretraining only: it is thrown away afterwards.

    Weights are drawn from torch's global generator. ``train()`` and ``eval()`` change nothing:
    each call says how batch norm is used.

    Args:
        width: D, of the encoder.
        hidden: Of the layer that is normalised; D unless given.
        output: P, of z; D unless given.
        batch_norm: ``asymmetric`` as above; ``plain``, both sides with their batch's statistics;
            ``shuffled`` (MoCo), plain within ``groups`` groups, the contexts grouped at random, so
            that partners meet in a group by chance only; ``none``, no batch norm at all.
        activation: ``relu``, ``gelu`` or ``none``.
        heads: ``one`` for both sides or ``two``.
        order: ``evaluation-first`` or ``centers-first``; of asymmetric batch norm with one head.
        statistics: ``unit`` or ``first-batch``: the running ones before any has entered.
        momentum: Share of a batch's statistics in the running ones after it.
        groups: Of shuffled batch norm.

    Raises:
        UserError: For a name that is not allowed.
        ValueError: If ``groups`` is below 1 or ``momentum`` not in (0, 1].
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        output: int | None = None,
        batch_norm: str = "asymmetric",
        activation: str = "relu",
        heads: str = "one",
        order: str = "evaluation-first",
        statistics: str = "unit",
        momentum: float = 0.1,
        groups: int = 4,
    ) -> None:
        super().__init__()
        for kind, name, allowed in (
            ("batch norm", batch_norm, BATCH_NORMS),
            ("activation", activation, ACTIVATIONS),
            ("number of heads", heads, HEADS),
            ("order", order, HEAD_ORDERS),
            ("statistics", statistics, HEAD_STATISTICS),
        ):
            if name not in allowed:
                raise unknown(kind, name, allowed)
        if groups < 1 or not 0 < momentum <= 1:
            raise ValueError(f"groups must be 1 or more, momentum in (0, 1]: {groups}, {momentum}")
        self.batch_norm = batch_norm
        self.order = order
        self.groups = groups
        self.output = output or width
        self.heads = nn.ModuleList(
            _Head(
                width,
                hidden or width,
                self.output,
                momentum=None if batch_norm == "none" else momentum,
                first_enters_whole=statistics == "first-batch",
                activation=activation,
            )
            for _ in range(1 if heads == "one" else 2)
        )

    def forward(
        self,
        centers: Tensor,
        contexts: Tensor,
        *,
        step: int,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Project both sides of a batch and update the running statistics.

        Gradients flow to both sides, and through the statistics of a batch; running statistics
        are constants.

        Args:
            centers: h_c, shape ``(N, D)``.
            contexts: h_i, shape ``(K, D)``.
            step: e, whose parity says which side is in training mode; read by asymmetric only.
            generator: Draws the groups; needed by shuffled batch norm only.

        Returns:
            z_c and z_i, shapes ``(N, P)`` and ``(K, P)``, not normalised, in the head's precision.

        Raises:
            UserError: If a side that needs its batch's statistics has fewer than two rows, or
                fewer than two a group.
            ValueError: If shuffled batch norm is given no generator.
        """
        if self.batch_norm == "asymmetric":
            return self._asymmetric(centers, contexts, training_side(step))
        if self.batch_norm == "shuffled":
            return self._batch(0, centers, self.groups), self._shuffled(contexts, generator)
        if self.batch_norm == "plain":
            return self._batch(0, centers), self._batch(-1, contexts)
        return self._running(0, centers), self._running(-1, contexts)  # no statistics to read

    def evaluate(self, h: Tensor, *, side: str | None = None) -> Tensor:
        """Project with the running statistics and leave them as they are.

        Args:
            h: Encoded sentences, shape ``(N, D)``.
            side: ``centers`` or ``contexts``; needed with two heads only.

        Returns:
            z, shape ``(N, P)``; no row depends on another.

        Raises:
            UserError: If the side is unknown.
            ValueError: If there are two heads and no side is named.
        """
        if side is None and len(self.heads) > 1:
            raise ValueError("with two heads evaluate() must be told a side: centers or contexts")
        if side is not None and side not in SIDES:
            raise unknown("side", side, SIDES)
        return self._running(-1 if side == "contexts" else 0, h)

    def _asymmetric(
        self, centers: Tensor, contexts: Tensor, training: str
    ) -> tuple[Tensor, Tensor]:
        # The running side comes first, unless its statistics are to come from this very batch.
        young = cast(_Head, self.heads[0]).is_waiting()
        if training == "contexts" and young:
            z_i = self._batch(-1, contexts)
            return self._running(0, centers), z_i
        if training == "contexts":  # in either order
            z_c = self._running(0, centers)
            return z_c, self._batch(-1, contexts)
        if young or self.order == "centers-first":
            z_c = self._batch(0, centers)
            return z_c, self._running(-1, contexts)
        z_i = self._running(-1, contexts)
        return self._batch(0, centers), z_i

    def _shuffled(self, contexts: Tensor, generator: torch.Generator | None) -> Tensor:
        """Group the contexts at random; each row comes back to its place."""
        if generator is None:
            raise ValueError("shuffled batch norm draws its groups from a generator; none given")
        order = torch.randperm(len(contexts), generator=generator, device=generator.device)
        order = order.to(contexts.device)
        return self._batch(-1, contexts[order], self.groups)[order.argsort()]

    def _batch(self, head: int, h: Tensor, groups: int = 1) -> Tensor:
        """In training mode: with the statistics of each group of rows."""
        if len(h) < 2 * groups:
            each = f" in each of its {groups} groups" if groups > 1 else ""
            raise UserError(
                f"{self.batch_norm} batch norm needs 2 windows{each}, this batch has {len(h)}; "
                "raise --batch-size or choose another --batch-norm"
            )
        return self._project(head, h, groups)

    def _running(self, head: int, h: Tensor) -> Tensor:
        """In evaluation mode: with the running statistics."""
        return self._project(head, h, 0)

    def _project(self, head: int, h: Tensor, groups: int) -> Tensor:
        g = cast(_Head, self.heads[head])
        with torch.autocast(h.device.type, enabled=False):
            z: Tensor = g(h.to(g.inner.weight.dtype), groups)
        return z


class _Head(nn.Module):
    """One g: linear, batch norm (where ``momentum`` is given), activation, linear."""

    def __init__(
        self,
        width: int,
        hidden: int,
        output: int,
        *,
        momentum: float | None,
        first_enters_whole: bool,
        activation: str,
    ) -> None:
        super().__init__()
        self.filled = not first_enters_whole  # whether the running statistics are of batches
        self.inner = nn.Linear(width, hidden)
        self.norm = None if momentum is None else nn.BatchNorm1d(hidden, momentum=momentum)
        self.activation = {"relu": nn.ReLU, "gelu": nn.GELU}.get(activation, nn.Identity)()
        self.outer = nn.Linear(hidden, output)

    def forward(self, h: Tensor, groups: int) -> Tensor:
        """Project ``(N, D)`` to ``(N, P)``; ``groups`` 0 is evaluation mode."""
        h = self.inner(h)  # (N, hidden)
        if self.norm is not None:
            momentum = 1.0 if groups and self.is_waiting() else cast(float, self.norm.momentum)
            h = _by_batch(self.norm, h, groups, momentum) if groups else _by_running(self.norm, h)
        z: Tensor = self.outer(self.activation(h))  # (N, P)
        return z

    def is_waiting(self) -> bool:
        """Whether the first batch is still to set the running statistics."""
        if self.norm is None:
            return False
        if not self.filled:
            self.filled = bool(cast(Tensor, self.norm.num_batches_tracked).item())
        return not self.filled


def _by_batch(norm: nn.BatchNorm1d, h: Tensor, groups: int, momentum: float) -> Tensor:
    """Normalise each group by its own statistics; they enter the running ones, group by group."""
    parts = [
        F.batch_norm(
            part,
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            training=True,
            momentum=momentum,
            eps=norm.eps,
        )
        for part in h.tensor_split(groups)
    ]
    cast(Tensor, norm.num_batches_tracked).add_(groups)
    return parts[0] if groups == 1 else torch.cat(parts)


def _by_running(norm: nn.BatchNorm1d, h: Tensor) -> Tensor:
    """Normalise by the running statistics."""
    # Copies: the backward pass reads them, and by then the other side may have updated the buffers
    # within the same step, which torch does not notice.
    mean, variance = cast(Tensor, norm.running_mean).clone(), cast(Tensor, norm.running_var).clone()
    return F.batch_norm(h, mean, variance, norm.weight, norm.bias, eps=norm.eps)
