"""Adversarial start of a rotation: a discriminator, and a map that deceives it (section 3.2).

After Conneau, Lample, Ranzato, Denoyer and Jegou 2018, "Word Translation Without Parallel Data",
section 2.1. With P(x) the discriminator's probability that a row comes from the mapped side:

    discriminator    L_D = - mean log P(x W) - mean log (1 - P(y))
    map              L_W = - mean log (1 - P(x W)) - mean log P(y)
    after each       W <- (1 + b) W - b (W W^T) W
    update of W

Notation, paper -> code:

    s    smoothing    1 and 0 become 1 - s and s in L_D and L_W
    b    beta         how fast W is drawn back to the orthogonal matrices

Which epoch's W is kept is decided without pairs, by the criterion. Where this departs from the
paper, which had 200,000 words and a GPU, for some thousand sentences and a CPU:

* The game is played in the leading principal axes of each side, and begins with axes onto axes, the
  other axes as they come; their signs, which second moments leave open, are drawn at random or
  taken from third moments. In all dimensions at once the discriminator learns its rows by heart.
* Adam instead of plain gradient descent, with which nothing was found in the same time; fewer and
  narrower hidden units; fewer updates; rows scaled so that a component has unit variance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ccpretrieve.model.matching import Matrix, criterion, unit

if TYPE_CHECKING:
    from torch import Generator, Tensor
    from torch.optim import Optimizer


@dataclass(frozen=True)
class AdversarialSettings:
    """How discriminator and map are trained.

    Attributes:
        axes: Principal axes that the game is played in; all, if there are fewer.
        hidden: Units of each of the discriminator's two hidden layers (the paper: 2,048).
        dropout: Share of its inputs set to zero.
        smoothing: s, from 0 to below 0.5.
        batch: Rows of each side in an update.
        epochs: Times W is judged.
        steps: Updates of W in an epoch.
        discriminator_steps: Updates of the discriminator before each of W (the paper: 5).
        discriminator_rate: Its learning rate.
        map_rate: Learning rate of W.
        decay: Factor on both rates after each epoch.
        beta: b.
    """

    axes: int = 30
    hidden: int = 128
    dropout: float = 0.1
    smoothing: float = 0.1
    batch: int = 32
    epochs: int = 5
    steps: int = 400
    discriminator_steps: int = 2
    discriminator_rate: float = 2e-3
    map_rate: float = 1e-2
    decay: float = 0.95
    beta: float = 0.01


def adversarial_start(
    x: Matrix,
    y: Matrix,
    settings: AdversarialSettings,
    generator: np.random.Generator,
    *,
    skewed: bool = False,
    check: Callable[[Matrix], float] | None = None,
) -> Matrix:
    """Train a map that makes the rows of ``x W`` and of ``y`` hard to tell apart.

    Args:
        x: Rows of one language, shape ``(N, D)``, any norm.
        y: Rows of the other, shape ``(M, D)``; nothing is paired.
        settings: Of the training.
        generator: Every draw comes from it.
        skewed: Begin with axes that point where their third moments are positive, on both sides;
            else with random signs.
        check: By which the epochs are compared; by default the criterion on these very rows.

    Returns:
        The best epoch's W, orthogonal, shape ``(D, D)``.
    """
    import torch

    x, y = unit(x), unit(y)
    check = check or (lambda W: criterion(W, x, y))
    axes_x, axes_y = axes(x, skewed=skewed), axes(y, skewed=skewed)
    if not skewed:
        axes_x = axes_x * generator.choice([-1.0, 1.0], size=len(axes_x)).astype(np.float32)
    count = min(settings.axes, x.shape[1])
    draws = torch.Generator().manual_seed(int(generator.integers(2**63)))
    leading = (unit(x @ axes_x[:, :count]), unit(y @ axes_y[:, :count]))
    sides = [torch.from_numpy(side * np.float32(count**0.5)) for side in leading]
    game = Game(sides, settings, draws)
    best, best_score = np.zeros_like(axes_x), -np.inf
    for _ in range(settings.epochs):
        game.epoch()
        if (inner := game.orthogonal()) is None:
            break  # diverged; what came before stands
        whole = np.eye(len(axes_x), dtype=np.float32)
        whole[:count, :count] = inner
        W: Matrix = (axes_x @ whole @ axes_y.T).astype(np.float32)
        if (score := check(W)) > best_score:
            best, best_score = W, score
    return best if np.isfinite(best_score) else axes_x @ axes_y.T


def axes(x: Matrix, *, skewed: bool = False) -> Matrix:
    """Principal axes as columns, the leading first, shape ``(D, D)``.

    Args:
        x: Shape ``(N, D)``.
        skewed: Each points where the third moment of the rows along it is positive.
    """
    columns = np.linalg.eigh(x.T.astype(np.float64) @ x)[1][:, ::-1]
    if skewed:
        moments = np.power(x @ columns, 3).sum(axis=0)
        columns = columns * np.where(moments < 0, -1, 1)
    found: Matrix = np.ascontiguousarray(columns, dtype=np.float32)
    return found


class Game:
    """Discriminator against map, by turns.

    Attributes:
        W: The map so far, shape ``(D, D)``.
        weights: Of the discriminator: three layers' weights and biases.
    """

    def __init__(
        self, sides: "list[Tensor]", settings: AdversarialSettings, draws: "Generator"
    ) -> None:
        import torch

        self.sides, self.settings, self.draws = sides, settings, draws
        dim = sides[0].shape[1]
        self.W = torch.eye(dim).requires_grad_()
        self.weights = _discriminator(dim, settings.hidden, draws)
        betas = (0.5, 0.99)  # the opponent moves: old gradients mislead
        self.discriminator: Optimizer = torch.optim.Adam(
            self.weights, settings.discriminator_rate, betas
        )
        self.map: Optimizer = torch.optim.Adam([self.W], settings.map_rate, betas)

    def orthogonal(self) -> Matrix | None:
        """The orthogonal matrix nearest to W; None if W has diverged."""
        W = self.W.detach().numpy().astype(np.float64)
        if not np.isfinite(W).all():
            return None
        left, _, right = np.linalg.svd(W)
        nearest: Matrix = (left @ right).astype(np.float32)
        return nearest

    def epoch(self) -> None:
        """Updates of both between two times that W is judged."""
        import torch

        beta = self.settings.beta
        for _ in range(self.settings.steps):
            for _ in range(self.settings.discriminator_steps):
                with torch.no_grad():
                    rows = self._draw()
                self._update(self.discriminator, rows, deceive=False)
            self._update(self.map, self._draw(), deceive=True)
            with torch.no_grad():
                self.W.copy_((1 + beta) * self.W - beta * (self.W @ self.W.T) @ self.W)
        for optimizer in (self.discriminator, self.map):
            for group in optimizer.param_groups:
                group["lr"] *= self.settings.decay

    def _draw(self) -> "Tensor":
        """Rows of x, mapped, over as many of y; shape ``(2 batch, D)``."""
        import torch

        batch = (self.settings.batch,)
        x, y = (side[torch.randint(len(side), batch, generator=self.draws)] for side in self.sides)
        return torch.cat([x @ self.W, y])

    def _update(self, optimizer: "Optimizer", rows: "Tensor", *, deceive: bool) -> None:
        """One step down L_D, or with ``deceive`` down L_W."""
        import torch
        import torch.nn.functional as F

        smoothing, dropout = self.settings.smoothing, self.settings.dropout
        kept = torch.rand(rows.shape, generator=self.draws) >= dropout
        logits = _logits(self.weights, rows * kept / (1 - dropout))
        is_mapped = torch.full_like(logits, smoothing)
        is_mapped[: len(rows) // 2] = 1 - smoothing
        target = 1 - is_mapped if deceive else is_mapped
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _logits(weights: "list[Tensor]", rows: "Tensor") -> "Tensor":
    """What the discriminator says of each row, before the logistic; shape ``(rows,)``."""
    import torch.nn.functional as F

    first, first_bias, second, second_bias, last, last_bias = weights
    hidden = F.leaky_relu(F.linear(rows, first, first_bias), 0.2)
    hidden = F.leaky_relu(F.linear(hidden, second, second_bias), 0.2)
    return F.linear(hidden, last, last_bias)[:, 0]


def _discriminator(dim: int, hidden: int, draws: "Generator") -> "list[Tensor]":
    """Weights and biases of three linear layers, uniform within 1 / sqrt(inputs)."""
    import torch

    weights = []
    for inputs, outputs in ((dim, hidden), (hidden, hidden), (hidden, 1)):
        for shape in ((outputs, inputs), (outputs,)):
            uniform = torch.rand(shape, generator=draws) * 2 - 1
            weights.append((uniform / inputs**0.5).requires_grad_())
    return weights
