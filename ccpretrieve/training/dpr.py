"""Dense passage retrieval: a question's passage among those of its batch (section 4.3).

    draw N questions, each with its passage and some hard negatives   data.question_batches
    q, p  = pooled hidden states of questions, of passages            model.pooling
    L     = dpr_loss of each process' questions over all passages     model.losses

**Large batches on small memory.** With ``chunk_size`` texts pass through the Transformer in chunks
whose activations are computed again in the backward pass (torch's checkpointing, random draws
included): memory is that of one chunk, gradients are those of the whole batch. This is gradient
caching (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
setup").

**Several processes.** Passages of all processes are candidates for the questions of each, and
gradients flow back to whose they are, so that N questions on one process and N/2 on each of two
learn the same. DPR's own code keeps gradients of a process' own passages only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ccpretrieve.data.question_batches import QuestionBatch, QuestionBatcher
from ccpretrieve.data.tokens import Tokens, pad
from ccpretrieve.errors import UserError
from ccpretrieve.finetune_config import MRR, FinetuneConfig
from ccpretrieve.model.losses import dpr_loss
from ccpretrieve.model.passes import Pass, passes
from ccpretrieve.model.pooling import pool
from ccpretrieve.model.trainable import Trainable
from ccpretrieve.training.objective import Loss, Objective
from ccpretrieve.training.process import Processes

DPR = "dpr"


class DprModule(nn.Module):
    """The towers.

    Args:
        query: Encodes questions.
        passage: Encodes passages; None if the same tower does.
        pooling: ``cls`` or ``mean``.
        pass_tokens: Tokens that pass through a Transformer together, padding included.
        chunk_size: Most texts whose activations are held; None to hold all.
    """

    def __init__(
        self,
        query: Trainable,
        passage: Trainable | None,
        pooling: str,
        pass_tokens: int,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        self.query: Any = query.whole
        self.passage: Any = None if passage is None else passage.whole
        self.pooling = pooling
        self.pass_tokens = pass_tokens
        self.chunk_size = chunk_size
        self.padding = int(query.tokenizer.pad_token_id)

    def compile_towers(self) -> None:
        """Compile with torch.compile, for texts of any length."""
        for tower in (self.query, self.passage):
            if tower is not None:
                tower.compile(dynamic=True)

    def forward(
        self, questions: Sequence[Tokens], passages: Sequence[Tokens]
    ) -> tuple[Tensor, Tensor]:
        """Embed a batch.

        Returns:
            Questions ``(N, D)`` and passages ``(P, D)``.
        """
        if self.passage is not None:
            return self.embed_questions(questions), self.embed_passages(passages)
        both = self._embed(self.query, [*questions, *passages])
        return both[: len(questions)], both[len(questions) :]

    def embed_questions(self, texts: Sequence[Tokens]) -> Tensor:
        """Shape ``(N, D)``."""
        return self._embed(self.query, texts)

    def embed_passages(self, texts: Sequence[Tokens]) -> Tensor:
        """Shape ``(P, D)``."""
        return self._embed(self.query if self.passage is None else self.passage, texts)

    def _embed(self, tower: Any, texts: Sequence[Tokens]) -> Tensor:
        parts, places = [], []
        again = self.chunk_size is not None and torch.is_grad_enabled()
        device = next(tower.parameters()).device
        inputs = {
            name: torch.from_numpy(array).to(device)
            for name, array in pad(texts, self.padding).items()
        }
        lengths = [len(text.ids) for text in texts]
        for each in passes(
            tower.get_input_embeddings(), inputs, lengths, self.pass_tokens, self.chunk_size
        ):
            parts.append(
                checkpoint(self._pooled, tower, each, use_reentrant=False)
                if again
                else self._pooled(tower, each)
            )
            places.append(each.places)
        return torch.cat(parts)[torch.cat(places).argsort()]

    def _pooled(self, tower: Any, texts: Pass) -> Tensor:
        return pool(texts.states(tower), texts.mask, self.pooling)


class DprObjective(Objective):
    """Questions and the passages that answer them.

    Args:
        config: Of the run.
        module: The towers.
        batcher: The data.
        processes: Those that train.
        evaluation: Scores the towers as they stand; None for no evaluation.
    """

    module: DprModule

    def __init__(
        self,
        config: FinetuneConfig,
        module: DprModule,
        batcher: QuestionBatcher,
        processes: Processes,
        evaluation: "Callable[[DprModule], dict[str, float]] | None" = None,
    ) -> None:
        self.config = config
        self.module = module
        self.batcher = batcher
        self.processes = processes
        self.evaluation = evaluation
        self._drawn: list[QuestionBatch] = []
        self._before: dict[str, Any] = {}  # the batcher's state before them
        self._deciding = ""  # the measure that comes first
        self._accuracies: list[Tensor] = []

    def draw(self, passes: int) -> None:
        """See :meth:`Objective.draw`."""
        self._before = self.batcher.state_dict()
        try:
            self._drawn = [self.batcher.next() for _ in range(passes)]
        except UserError:
            self.batcher.load_state_dict(self._before)
            raise

    def loss(self, module: nn.Module) -> Loss:
        """See :meth:`Objective.loss`."""
        batch = self._drawn.pop(0)
        q, p = module(batch.questions, batch.passages)
        keys = torch.from_numpy(batch.keys).to(q.device)
        targets = torch.from_numpy(batch.targets).to(q.device)
        if self.processes.count > 1:
            counts = self.processes.counts(len(p))
            targets = targets + sum(counts[: self.processes.rank])
            p, keys = self.processes.gather_with_gradient(p), self.processes.gather(keys)
        result = dpr_loss(
            q,
            p,
            targets,
            similarity=self.config.similarity,
            temperature=self.config.temperature,
            masked=known_positives(batch, keys) if self.config.mask_positives else None,
        )
        self._accuracies.append(result.accuracy)
        about = f"batch{f' in {batch.language}' if batch.language else ''} of "
        return Loss(result.loss, DPR, batch.tokens, f"{about}{', '.join(batch.names[:3])} ...")

    def updated(self) -> None:
        """See :meth:`Objective.updated`."""

    def measures(self) -> dict[str, float]:
        """See :meth:`Objective.measures`."""
        values = {"epoch": self.batcher.epoch}
        if self._accuracies:
            values["accuracy"] = torch.stack(self._accuracies).mean().item()
        self._accuracies.clear()
        return values

    def evaluate(self) -> dict[str, float]:
        """See :meth:`Objective.evaluate`."""
        scores = {} if self.evaluation is None else self.evaluation(self.module)
        self._deciding = next(iter(scores), "")
        return scores

    def better(self, score: float, best: float) -> bool:
        """See :meth:`Objective.better`: ranks and losses fall."""
        return score > best if self._deciding == MRR else score < best

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Objective.state_dict`; what was drawn and not learned from comes again."""
        return {
            "data": self._before if self._drawn else self.batcher.state_dict(),
            "accuracies": [value.cpu() for value in self._accuracies],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`Objective.load_state_dict`."""
        self._drawn.clear()
        self.batcher.load_state_dict(state["data"])
        self._accuracies = [value.to(self.processes.device) for value in state["accuracies"]]


def known_positives(batch: QuestionBatch, keys: Tensor) -> Tensor:
    """Candidates that answer a question too: copies of its passage, its other known positives.

    Args:
        batch: N questions.
        keys: Hash of each candidate, int64, shape ``(P,)``.

    Returns:
        Bool, shape ``(N, P)``; a question's own passage is among them.
    """
    known = torch.zeros(len(batch.questions), len(keys), dtype=torch.bool, device=keys.device)
    for row, own in enumerate(batch.known):
        known[row] = torch.isin(keys, torch.from_numpy(own).to(keys.device))
    return known
