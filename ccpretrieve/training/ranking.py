"""How well questions find their passages, as training goes on: DPR's own two measures, and MRR.

    rank    every question ranks the passages of all of --dev, of each question its first positive
            and up to --dev-negatives hard negatives: mean place of its own, 0 the first
    nll     the loss over --dev, in batches as they are trained on, in a fixed order
    mrr     MRR@100 of the topics of a corpus, which is searched whole

Karpukhin et al. choose their checkpoint by the average rank, which tells models apart long after
they all find the passage within a batch. Their ranked passages hold up to 30 random negatives a
question beside 30 hard ones, and passages of several questions as often as they come; ours are the
hard ones, each passage once, so that ranks are lower.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccpretrieve.data.records import Qrels
from ccpretrieve.data.tokens import Tokens
from ccpretrieve.finetune_config import MRR, NLL, RANK
from ccpretrieve.model.losses import dpr_loss
from ccpretrieve.training.dpr import DprModule

#: Questions scored against all passages at once, and texts embedded before vectors are moved.
BLOCK = 1024
HITS = 100


@dataclass(frozen=True)
class DevSet:
    """Questions of --dev and the passages of all of them, each once.

    Attributes:
        questions: N of them.
        passages: P of them.
        targets: Row of ``passages`` that answers each question, int64, shape ``(N,)``.
        batched: Rows that come with each question into a batch: its passage, its hard negatives.
        known: Those rows that answer each question, its own among them.
    """

    questions: Sequence[Tokens]
    passages: Sequence[Tokens]
    targets: NDArray[np.int64]
    batched: Sequence[NDArray[np.int64]]
    known: Sequence[NDArray[np.int64]]


@dataclass(frozen=True)
class Searched:
    """A corpus that is searched while training.

    Attributes:
        topics: Id -> question.
        passages: Id -> passage.
        qrels: What is relevant.
    """

    topics: Mapping[str, Tokens]
    passages: Mapping[str, Tokens]
    qrels: Qrels


class RankingEvaluation:
    """Scores the towers.

    Args:
        dev: For rank and nll; None for neither.
        searched: For mrr; None for none.
        best_by: The measure that comes first.
        batch_size: Of nll.
        similarity: ``dot`` or ``cosine``.
        temperature: tau, of nll.
        mask_positives: Whether nll leaves known positives out of the negatives.
    """

    def __init__(
        self,
        dev: DevSet | None,
        searched: Searched | None,
        *,
        best_by: str,
        batch_size: int,
        similarity: str,
        temperature: float,
        mask_positives: bool,
    ) -> None:
        self.dev = dev
        self.searched = searched
        self.best_by = best_by
        self.batch_size = batch_size
        self.similarity = similarity
        self.temperature = temperature
        self.mask_positives = mask_positives

    def __call__(self, module: DprModule) -> dict[str, float]:
        """Measure -> value, the deciding one first: ``best_by``, or else what there is.

        Raises:
            ValueError: If a vector holds a NaN or infinity, which would rank before all others.
        """
        scores: dict[str, float] = {}
        if self.dev is not None:
            q, p = self._embedded(module, self.dev.questions, self.dev.passages)
            targets = torch.from_numpy(self.dev.targets)
            scores = {RANK: average_rank(q, p, targets), NLL: self._nll(self.dev, q, p)}
        if self.searched is not None:
            scores[MRR] = self._mrr(module, self.searched)
        first = self.best_by if self.best_by in scores else next(iter(scores))
        return {first: scores.pop(first), **scores}

    def _embedded(
        self, module: DprModule, questions: Sequence[Tokens], passages: Sequence[Tokens]
    ) -> tuple[Tensor, Tensor]:
        """Both sides on the CPU in float32, at unit length for cosine."""
        q = _in_blocks(module.embed_questions, questions)
        p = _in_blocks(module.embed_passages, passages)
        if self.similarity == "cosine":
            q, p = (torch.nn.functional.normalize(side, dim=1) for side in (q, p))
        return q, p

    def _nll(self, dev: DevSet, q: Tensor, p: Tensor) -> float:
        """Mean loss over questions; every question once, the last batch may be smaller."""
        losses, counts = [], []
        for start in range(0, len(q), self.batch_size):
            questions = range(start, min(start + self.batch_size, len(q)))
            rows = np.concatenate([dev.batched[i] for i in questions])
            firsts = np.cumsum([0, *(len(dev.batched[i]) for i in questions)])[:-1]
            masked = np.stack([np.isin(rows, dev.known[i]) for i in questions])
            loss, _ = dpr_loss(
                q[start : start + self.batch_size],
                p[torch.from_numpy(rows)],
                torch.from_numpy(firsts),
                temperature=self.temperature,
                masked=torch.from_numpy(masked) if self.mask_positives else None,
            )
            losses.append(float(loss))
            counts.append(len(questions))
        return float(np.average(losses, weights=counts))

    def _mrr(self, module: DprModule, searched: Searched) -> float:
        from ccpretrieve.retrieval.metrics import score

        q, p = self._embedded(
            module, list(searched.topics.values()), list(searched.passages.values())
        )
        topics, ids = list(searched.topics), np.array(list(searched.passages))
        run: dict[str, dict[str, float]] = {}
        for start in range(0, len(q), BLOCK):
            best = (q[start : start + BLOCK] @ p.T).topk(min(HITS, len(p)), dim=1)
            for row, (values, places) in enumerate(zip(*best, strict=True), start):
                found = ids[places.numpy()].tolist()
                run[topics[row]] = dict(zip(found, values.tolist(), strict=True))
        return score(searched.qrels, run, (f"mrr@{HITS}",)).mean[f"mrr@{HITS}"]


def average_rank(q: Tensor, p: Tensor, targets: Tensor) -> float:
    """Mean place of each question's passage among all, 0 the first, as DPR counts.

    Passages with the very score of its own count half: a model that tells none apart has the
    middle.

    Args:
        q: Questions, shape ``(N, D)``.
        p: Passages, shape ``(P, D)``.
        targets: Row of ``p`` that answers each question, shape ``(N,)``.
    """
    places = []
    for start in range(0, len(q), BLOCK):
        scores = q[start : start + BLOCK] @ p.T
        own = scores.gather(1, targets[start : start + BLOCK, None])
        better, same = (scores > own).sum(dim=1), (scores == own).sum(dim=1) - 1
        places.append(better.double() + same / 2)
    return float(torch.cat(places).mean())


def _in_blocks(embed: Callable[[Sequence[Tokens]], Tensor], texts: Sequence[Tokens]) -> Tensor:
    parts = [
        embed(texts[start : start + BLOCK]).float().cpu() for start in range(0, len(texts), BLOCK)
    ]
    vectors = torch.cat(parts)
    if not bool(vectors.isfinite().all()):
        raise ValueError("a vector holds a NaN or infinity")
    return vectors
