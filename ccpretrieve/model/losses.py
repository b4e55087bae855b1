"""The losses of pretraining: contrastive context prediction (Algorithm 1, lines 13-15) and MLM.

    l(c, i) = - log  exp(cos(z_c, z_i) / tau)
                     ---------------------------------------------------
                     sum_{k = 1 .. 2N + M, k != c} exp(cos(z_c, z_k) / tau)

    L_CL    = sum_{c, i} m(c, i) l(c, i)

Notation, paper -> code:

    z_1 .. z_2N          z             projected sentences of one batch, one language
    z_2N+1 .. z_2N+M     bank          the same language's memory bank
    m(c, i)              windows       1 where c and i are of one window, c != i
    tau                  temperature

Where the paper leaves a choice, each a setting of :func:`ccp_loss`:

* ``reduction``: L_CL is a sum; ``mean`` divides by the number of pairs, so that the learning rate
  does not depend on the batch size.
* ``window_positives``: whether the other positives of c stay in the denominator (``keep``, as line
  13 is written) or leave it (``mask``). With windows of two sentences it is the same.
* ``ignored``: candidates that are left out, such as the same sentence met again
  (:func:`same_sentence`); the paper leaves none out.
* ``l2``: cosine, or the dot product of vectors as they are, which its ablation tries.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ccpretrieve.data.windows import same_window
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.training_config import REDUCTIONS, WINDOW_POSITIVES

#: Label of a token that MLM does not predict.
UNPREDICTED = -100
#: Least length a vector is divided by.
_LEAST = 1e-12


class ContrastiveLoss(NamedTuple):
    """What :func:`ccp_loss` found.

    Attributes:
        loss: L_CL, in nats; a scalar with gradient.
        per_pair: l(c, i), shape ``(pairs,)``, by c and then i.
        accuracy: Share of pairs whose positive beats every negative of c; a draw is none.
        candidates: Mean number of terms in the denominator of a pair, i among them.
    """

    loss: Tensor
    per_pair: Tensor
    accuracy: Tensor
    candidates: float


def ccp_loss(
    z: Tensor,
    windows: Tensor,
    bank: Tensor,
    *,
    temperature: float,
    l2: bool = True,
    reduction: str = "mean",
    window_positives: str = "keep",
    ignored: Tensor | None = None,
) -> ContrastiveLoss:
    """Contrastive context prediction loss of one batch of one language.

    Computed in float32 inside autocast too (float64 stays float64). The bank is read where it
    lies; only one of another dtype is converted, for as long as the step lasts.

    Args:
        z: Projected sentences, centres and contexts in any order, shape ``(C, P)``; need not be
            unit length. Gradients flow to both sides of a pair, and to other rows as candidates.
        windows: Which window each row is of, int64, shape ``(C,)``. A row alone in its window is a
            candidate only.
        bank: Earlier vectors of the same language, shape ``(M, P)``; M may be 0. Negatives only,
            and no gradient flows to them.
        temperature: tau, above 0.
        l2: Scale vectors to unit length: cosine. Without, the dot product.
        reduction: ``mean`` over pairs or ``sum``.
        window_positives: ``keep`` or ``mask``.
        ignored: ``[c, k]`` True takes candidate k from the denominators of c, but for the pair
            (c, k) itself; bool, shape ``(C, C + M)``.

    Raises:
        UserError: If no two rows share a window, the temperature is not positive, or a name is
            unknown.
        ValueError: If shapes do not fit.
    """
    _check(z, windows, bank, ignored)
    _check_settings(temperature, reduction, window_positives)
    positives = same_window(windows)
    c, i = positives.nonzero(as_tuple=True)
    if len(c) == 0:
        raise UserError(
            f"no two of the {len(z)} sentences in this batch share a window: nothing to predict; "
            "documents need two sentences or more"
        )
    left_out = _left_out(positives, len(bank), window_positives, ignored)
    with torch.autocast(z.device.type, enabled=False):
        scores = _scores(z, bank.detach(), temperature, l2)  # (C, C + M)
        positive = scores[c, i]  # (pairs,)
        lowest = torch.finfo(scores.dtype).min  # -inf: NaN on the way back where all are out
        kept = scores.masked_fill(left_out, lowest)
        denominator = kept.logsumexp(dim=1)[c]
        own_is_out = left_out[c, i]  # i counts for (c, i) whatever else is left out
        denominator = torch.where(own_is_out, torch.logaddexp(denominator, positive), denominator)
        per_pair = denominator - positive
        loss = per_pair.mean() if reduction == "mean" else per_pair.sum()
    with torch.no_grad():
        accuracy = (positive > _best_negative(kept.detach(), positives)[c]).to(loss.dtype).mean()
        terms = (~left_out).sum(dim=1)[c] + own_is_out
    return ContrastiveLoss(loss, per_pair, accuracy, terms.double().mean().item())


def same_sentence(keys: Tensor, bank_keys: Tensor, windows: Tensor | None = None) -> Tensor:
    """Candidates that are no negatives because they are the same sentence again.

    Args:
        keys: A hash of each sentence of the batch, int64, shape ``(C,)``.
        bank_keys: Those of the bank, shape ``(M,)``.
        windows: Given, copies of the positives of c are found too; shape ``(C,)``.

    Returns:
        ``[c, k]`` True where candidate k is a copy of row c (or of one of its positives) and not
        that row itself, for ``ignored`` of :func:`ccp_loss`; shape ``(C, C + M)``.
    """
    same = (keys[:, None] == torch.cat([keys, bank_keys])).fill_diagonal_(False)  # (C, C + M)
    if windows is None:
        return same
    group = windows[:, None] == windows  # c and its positives
    return (group.float() @ same.float()) > 0  # counts of copies: exact


def mlm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Masked language modelling: mean cross-entropy over the tokens to predict, in nats.

    Only their rows are taken up to float32.

    Args:
        logits: Shape ``(B, T, V)``, or ``(n, V)`` where they were selected before.
        labels: Token ids, shape ``(B, T)`` or ``(n,)``; -100 where nothing is predicted.

    Returns:
        A scalar; 0, with gradients 0, where no token is to be predicted.

    Raises:
        ValueError: If shapes do not fit.
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} do not fit labels {tuple(labels.shape)}: "
            "expected (B, T, V) and (B, T), or (n, V) and (n,)"
        )
    predicted = labels != UNPREDICTED
    with torch.autocast(logits.device.type, enabled=False):
        selected = _at_least_float32(logits[predicted])  # (n, V)
        total = F.cross_entropy(selected, labels[predicted], reduction="sum")
        return total / max(1, len(selected))


class RankingLoss(NamedTuple):
    """What :func:`dpr_loss` found.

    Attributes:
        loss: Mean over questions, in nats; a scalar with gradient.
        accuracy: Share of questions whose passage beats all others; a draw is none.
    """

    loss: Tensor
    accuracy: Tensor


def dpr_loss(
    q: Tensor,
    p: Tensor,
    targets: Tensor,
    *,
    similarity: str = "dot",
    temperature: float = 1.0,
    masked: Tensor | None = None,
) -> RankingLoss:
    """DPR's loss (section 4.3): the passage of a question among those of all questions.

        l(i) = -log( exp(s(q_i, p_t(i)) / tau) / sum_k exp(s(q_i, p_k) / tau) )

    Computed in float32 inside autocast too (float64 stays float64).

    Args:
        q: Questions, shape ``(N, D)``.
        p: Passages, positives and negatives, shape ``(P, D)``.
        targets: t, the row of ``p`` that answers each question, int64, shape ``(N,)``.
        similarity: ``dot`` or ``cosine``.
        temperature: tau, above 0; DPR has 1.
        masked: ``[i, k]`` True takes passage k from the denominator of question i, but for its own
            passage; bool, shape ``(N, P)``.

    Raises:
        UserError: If the temperature is not positive.
        ValueError: If shapes do not fit.
    """
    if q.ndim != 2 or p.ndim != 2 or q.shape[1] != p.shape[1] or targets.shape != q.shape[:1]:
        raise ValueError(
            f"q {tuple(q.shape)}, p {tuple(p.shape)} and targets {tuple(targets.shape)} do not "
            "fit: expected (N, D), (P, D), (N,)"
        )
    if masked is not None and masked.shape != (len(q), len(p)):
        raise ValueError(f"masked is {tuple(masked.shape)}, expected ({len(q)}, {len(p)})")
    if not temperature > 0:
        raise UserError(f"--temperature must be above 0, got {temperature}")
    rows = torch.arange(len(q), device=q.device)
    with torch.autocast(q.device.type, enabled=False):
        q, p = _at_least_float32(q), _at_least_float32(p)
        if similarity == "cosine":
            q, p = (F.normalize(side, dim=1, eps=_LEAST) for side in (q, p))
        scores = (q / temperature) @ p.T  # (N, P)
        lowest = torch.finfo(scores.dtype).min
        if masked is not None:
            kept = masked.clone()
            kept[rows, targets] = False
            scores = scores.masked_fill(kept, lowest)
        loss = F.cross_entropy(scores, targets)
    with torch.no_grad():
        own = scores[rows, targets]
        others = scores.detach().clone()
        others[rows, targets] = lowest
        accuracy = (own > others.amax(dim=1)).to(loss.dtype).mean()
    return RankingLoss(loss, accuracy)


def _check(z: Tensor, windows: Tensor, bank: Tensor, ignored: Tensor | None) -> None:
    if z.ndim != 2 or bank.ndim != 2 or z.shape[1] != bank.shape[1]:
        raise ValueError(
            f"z {tuple(z.shape)} and bank {tuple(bank.shape)} do not fit: expected (C, P), (M, P)"
        )
    if windows.shape != z.shape[:1]:
        raise ValueError(f"expected one window a row, {len(z)}, got {tuple(windows.shape)}")
    expected = (len(z), len(z) + len(bank))
    if ignored is not None and ignored.shape != expected:
        raise ValueError(f"ignored is {tuple(ignored.shape)}, expected (C, C + M) = {expected}")


def _check_settings(temperature: float, reduction: str, window_positives: str) -> None:
    if not temperature > 0:
        raise UserError(f"--temperature must be above 0, got {temperature}")
    if reduction not in REDUCTIONS:
        raise unknown("reduction", reduction, REDUCTIONS)
    if window_positives not in WINDOW_POSITIVES:
        raise unknown("treatment of window positives", window_positives, WINDOW_POSITIVES)


def _left_out(
    positives: Tensor, bank_size: int, window_positives: str, ignored: Tensor | None
) -> Tensor:
    """``[c, k]`` True where k is no term of the denominators of c; shape ``(C, C + M)``."""
    left_out = positives.new_zeros(len(positives), len(positives) + bank_size)
    left_out.fill_diagonal_(True)  # k != c
    if window_positives == "mask":
        left_out[:, : len(positives)] |= positives
    return left_out if ignored is None else left_out | ignored


def _scores(z: Tensor, bank: Tensor, temperature: float, l2: bool) -> Tensor:
    """Similarity over tau of each row to every row and to the bank, shape ``(C, C + M)``."""
    z = _at_least_float32(z)
    bank = bank.to(z.dtype)
    if l2:
        z = F.normalize(z, dim=1, eps=_LEAST)
    scaled = z / temperature
    to_bank = scaled @ bank.T  # (C, M)
    if l2:  # lengths are divided out here: unit copies of the bank would cost more than the product
        to_bank.div_(torch.linalg.vector_norm(bank, dim=1).clamp_min(_LEAST))
    return torch.cat([scaled @ z.T, to_bank], dim=1)


def _best_negative(kept: Tensor, positives: Tensor) -> Tensor:
    """Highest score of each row among candidates that are none of its positives, shape ``(C,)``."""
    batch = kept[:, : len(positives)].masked_fill(positives, torch.finfo(kept.dtype).min)
    best = batch.amax(dim=1)
    memory = kept[:, len(positives) :]
    return torch.maximum(best, memory.amax(dim=1)) if memory.shape[1] else best


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
