"""Contrastive context prediction: Algorithm 1 on the trainer's loop (sections 3.1 and 4).

    draw one language, N windows of it                      data.batches
    h_c, h_i  = pooled hidden states of centres, contexts   model.pooling
    z_c, z_i  = g(h_c), g(h_i), one side in training mode   model.projection
    L         = ccp_loss over batch and bank                model.losses
    update; then the z_i enter the bank                     model.memory_bank

or, drawn at random, masked language modelling of the same sentences. Parity e counts CCP batches
of this process; with accumulation it flips at every forward pass, and the bank is filled once the
update is done, batch by batch in their order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ccpretrieve.data.batches import CCP, Batch, Batcher
from ccpretrieve.model.encoder import choose_device
from ccpretrieve.model.losses import ContrastiveLoss, ccp_loss, mlm_loss, same_sentence
from ccpretrieve.model.memory_bank import MemoryBank, entering
from ccpretrieve.model.passes import Pass, pass_tokens, passes
from ccpretrieve.model.pooling import pool
from ccpretrieve.model.projection import Projection
from ccpretrieve.model.trainable import Trainable
from ccpretrieve.training.health import Health
from ccpretrieve.training.objective import Loss, Objective
from ccpretrieve.training.process import Processes
from ccpretrieve.training.watch import Seen, Watch
from ccpretrieve.training_config import PretrainConfig


class Projected(NamedTuple):
    """Both sides of a CCP batch.

    Attributes:
        h: Pooled hidden states, centres first, shape ``(C, D)``.
        z: Projected, shape ``(C, P)``.
    """

    h: Tensor
    z: Tensor


class CcpModule(nn.Module):
    """Everything with parameters: Transformer, projection head, head of masked modelling.

    Args:
        start: What is trained.
        projection: g.
        pooling: ``cls`` or ``mean``.
        pass_tokens: Tokens that pass through the Transformer together, padding included.
    """

    def __init__(
        self, start: Trainable, projection: Projection, pooling: str, pass_tokens: int
    ) -> None:
        super().__init__()
        self.pass_tokens = pass_tokens
        self.whole: Any = start.whole
        self.projection = projection
        self.pooling = pooling
        self.hidden: Any = start.encoder  # a part of `whole`, and perhaps compiled
        self.lm_head = start.lm_head

    def forward(
        self,
        ids: Tensor,
        attention: Tensor,
        labels: Tensor | None,
        *,
        lengths: Sequence[int],
        centers: int,
        step: int,
        generator: torch.Generator,
    ) -> Any:
        """Project a batch, or, where there are labels, the loss of masked language modelling.

        Args:
            ids: Shape ``(R, T)``.
            attention: Shape ``(R, T)``.
            labels: Shape ``(R, T)``, or None for CCP.
            lengths: Tokens of each row.
            centers: How many of the first rows are centres.
            step: e.
            generator: Of shuffled batch norm.

        Returns:
            :class:`Projected`, or a scalar loss.
        """
        if labels is not None:
            return self._masked_loss(ids, attention, labels, lengths)
        h = self.embed(ids, attention, lengths)
        z_c, z_i = self.projection(h[:centers], h[centers:], step=step, generator=generator)
        return Projected(h, torch.cat([z_c, z_i]))

    def embed(self, ids: Tensor, attention: Tensor, lengths: Sequence[int]) -> Tensor:
        """Pooled hidden states, shape ``(R, D)``."""
        parts, places = [], []
        for each in self._passes(ids, attention, lengths):
            parts.append(pool(each.states(self.hidden), each.mask, self.pooling))
            places.append(each.places)
        return torch.cat(parts)[torch.cat(places).argsort()]

    def _masked_loss(
        self, ids: Tensor, attention: Tensor, labels: Tensor, lengths: Sequence[int]
    ) -> Tensor:
        """Only the tokens to be found pass through the head, whose output is as wide as V."""
        assert self.lm_head is not None
        found, wanted = [], []
        for each in self._passes(ids, attention, lengths):
            answers = labels[each.places, : each.mask.shape[1]]
            picked = answers != -100
            found.append(each.states(self.hidden)[picked])
            wanted.append(answers[picked])
        return mlm_loss(self.lm_head(torch.cat(found)), torch.cat(wanted))

    def _passes(self, ids: Tensor, attention: Tensor, lengths: Sequence[int]) -> Iterator[Pass]:
        inputs = {"input_ids": ids, "attention_mask": attention}
        return passes(self.hidden.get_input_embeddings(), inputs, lengths, self.pass_tokens)


@dataclass
class _Waiting:
    """What enters the bank after the update."""

    language: str
    z: Tensor
    keys: Tensor


@dataclass
class _Sums:
    """Means for the log, kept on the device until a line is written."""

    values: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, value: Tensor) -> None:
        self.values[name].append(value)

    def take(self) -> dict[str, float]:
        means = {name: torch.stack(each).mean().item() for name, each in self.values.items()}
        self.values.clear()
        return means


class CcpObjective(Objective):
    """CCP and masked language modelling.

    Args:
        config: Of the run.
        start: What is trained.
        pooling: ``cls`` or ``mean``.
        batcher: The data.
        processes: Those that train.
        health: Watches the embeddings.
        evaluation: Scores the encoder as it stands; None for no evaluation.
    """

    module: CcpModule

    def __init__(
        self,
        config: PretrainConfig,
        start: Trainable,
        pooling: str,
        batcher: Batcher,
        processes: Processes,
        health: Health,
        evaluation: "Callable[[CcpModule], dict[str, float]] | None" = None,
    ) -> None:
        self.config = config
        self.batcher = batcher
        self.processes = processes
        self.evaluation = evaluation
        self.step = 0  # e
        self._updates = 0
        width = int(start.encoder.config.hidden_size)
        projection = Projection(
            width,
            hidden=config.head_hidden,
            output=config.head_output,
            batch_norm=config.batch_norm,
            activation=config.head_activation,
            heads=config.head,
            order=config.head_order,
            statistics=config.head_statistics,
            momentum=config.head_momentum,
            groups=config.head_groups,
        )
        self.module = CcpModule(
            start, projection, pooling, config.pass_tokens or pass_tokens(processes.device, 1024)
        )
        self.bank = memory_bank(config, projection.output, processes.device)
        self._generator = torch.Generator().manual_seed(config.seed)
        self._waiting: list[_Waiting] = []
        self._sums = _Sums()
        self.watch = Watch(
            health,
            projection,
            self._embed,
            temperature=config.temperature,
            l2=config.l2,
            probe_steps=config.probe_steps,
        )

    def _embed(self, batch: Batch) -> Tensor:
        device = self.processes.device
        with self.processes.autocast():
            return self.module.embed(
                torch.from_numpy(batch.ids).to(device),
                torch.from_numpy(batch.attention).to(device),
                batch.lengths,
            ).float()

    def rates(self) -> dict[str, float]:
        """See :meth:`Objective.rates`."""
        rate = self.config.head_learning_rate
        return {"projection.": self.config.learning_rate if rate is None else rate}

    def draw(self, passes: int) -> None:
        """See :meth:`Objective.draw`."""
        self.batcher.draw_ahead(passes)

    def loss(self, module: nn.Module) -> Loss:
        """See :meth:`Objective.loss`."""
        batch = self.batcher.next()
        device = self.processes.device
        ids, attention = (torch.from_numpy(a).to(device) for a in (batch.ids, batch.attention))
        labels = None if batch.labels is None else torch.from_numpy(batch.labels).to(device)
        made = module(
            ids,
            attention,
            labels,
            lengths=batch.lengths,
            centers=batch.centers,
            step=self.step,
            generator=self._generator,
        )
        value = self._contrast(batch, made) if batch.task == CCP else made
        about = f"{batch.task} batch in {batch.language} of {', '.join(batch.documents[:3])} ..."
        return Loss(value, batch.task, batch.tokens, about)

    def _contrast(self, batch: Batch, made: Projected) -> Tensor:
        """The CCP loss; what enters the bank waits for the update."""
        config, device = self.config, made.z.device
        bank, bank_keys = (part.to(device) for part in self.bank.candidates(batch.language))
        windows, keys = (torch.from_numpy(a).to(device) for a in (batch.windows, batch.keys))
        ignored = same_sentence(keys, bank_keys, windows) if config.mask_duplicates else None
        result = ccp_loss(
            made.z,
            windows,
            bank,
            temperature=config.temperature,
            l2=config.l2,
            reduction=config.reduction,
            window_positives=config.window_positives,
            ignored=ignored,
        )
        self._remember(batch, made, keys)
        self._sums.add("accuracy", result.accuracy)
        due = (self._updates + 1) % config.log_steps == 0
        self.watch.saw(
            Seen(batch, made.h.detach().float(), bank if due else None, _detached(result))
        )
        self.step += 1
        return result.loss

    def _remember(self, batch: Batch, made: Projected, keys: Tensor) -> None:
        if self.bank.size == 0:
            return
        which, n = self.config.bank_entries, batch.centers
        z = made.z.detach()
        self._waiting.append(
            _Waiting(
                batch.language,
                entering(which, z[:n], z[n:], step=self.step),
                entering(which, keys[:n], keys[n:], step=self.step),
            )
        )

    def updated(self) -> None:
        """See :meth:`Objective.updated`."""
        for item in self._waiting:
            z, keys = item.z, item.keys
            if self.config.bank_scope == "all":
                z, keys = self.processes.gather(z), self.processes.gather(keys)
            self.bank.enqueue(item.language, z.to(self.bank.device), keys.to(self.bank.device))
        self._waiting.clear()
        self._updates += 1
        self.watch.probe(self._updates, self.step)

    def measures(self) -> dict[str, float]:
        """See :meth:`Objective.measures`."""
        return self._sums.take() | self.watch.measure()

    def evaluate(self) -> dict[str, float]:
        """See :meth:`Objective.evaluate`."""
        return {} if self.evaluation is None else self.evaluation(self.module)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Objective.state_dict`."""
        return {
            "step": self.step,
            "sums": {name: torch.stack(each).cpu() for name, each in self._sums.values.items()},
            "updates": self._updates,
            "bank": self.bank.state_dict(),
            "data": self.batcher.state_dict(),
            "corpus": self.batcher.content(),
            "groups": self._generator.get_state(),
            "health": self.watch.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`Objective.load_state_dict`."""
        for name, each in state["sums"].items():
            self._sums.values[name] = list(each.to(self.processes.device))
        self.step, self._updates = state["step"], state["updates"]
        self.bank.load_state_dict(state["bank"])
        self.batcher.load_state_dict(state["data"])
        self.batcher.check(state["corpus"])
        self._generator.set_state(state["groups"])
        self.watch.load_state_dict(state["health"])


def memory_bank(config: PretrainConfig, width: int, device: torch.device) -> MemoryBank:
    """The empty bank of a run.

    Args:
        config: Of the run.
        width: P.
        device: Where the model is; the bank too, unless the run asks for another.

    Raises:
        UserError: If its device cannot be used.
    """
    return MemoryBank(
        config.bank_size,
        width,
        kind=config.bank,
        dtype=getattr(torch, config.bank_dtype),
        device=choose_device(config.bank_device) if config.bank_device else device,
    )


def _detached(result: ContrastiveLoss) -> ContrastiveLoss:
    """Without its graph, which would keep the activations of the batch."""
    return result._replace(loss=result.loss.detach(), per_pair=result.per_pair.detach())
