"""What a batch of embeddings looks like: alignment, uniformity, rank, spread, what is learned.

With x, y of unit length, x+ the partner of x, M the candidates of a pair and L its loss:

    alignment       E |x - x+|^2                                 Wang and Isola 2020; 0 is best
    uniformity      log E_{x != y} exp(-2 |x - y|^2)             the same; 0 is collapse
    effective rank  exp(-sum_k p_k log p_k), p_k = s_k / sum s   Roy and Vetterli 2007
    spread          sqrt(E |x - E x|^2)                          0 is collapse
    bound           log M - L  <=  I(s; s_c)                     van den Oord et al. 2018

with s_1, s_2, ... the singular values of the rows about their mean. What of it is healthy
:mod:`ccpretrieve.training.health` judges.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ccpretrieve.model.losses import ContrastiveLoss


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
