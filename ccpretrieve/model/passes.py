"""A batch of training in several passes through a Transformer (sections 3.1 and 4.3).

    rows   = token embeddings of the batch's distinct ids    (U, D), looked up once
    pass k = texts of like length, at most so many tokens    embeds = rows[ids]

Texts of like length pass together, so that little padding is computed. The gradient of a table of
token embeddings is as large as the table (384 MB for 250,002 pieces of 384 numbers): looked up once
a batch, one such gradient is made and not one a pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccpretrieve.model.encoder import batches


class Pass(NamedTuple):
    """Texts that pass through a Transformer together.

    Attributes:
        places: Which texts of the batch, int64, shape ``(r,)``.
        ids: Rows of ``table``, int64, shape ``(r, t)``.
        mask: 1 at tokens, 0 at padding, shape ``(r, t)``.
        more: Further inputs of the model, each of shape ``(r, t)``.
        table: Token embeddings of the batch's distinct ids, shape ``(U, D)``.
    """

    places: Tensor
    ids: Tensor
    mask: Tensor
    more: Mapping[str, Tensor]
    table: Tensor

    def states(self, model: Any) -> Tensor:
        """Last hidden states, shape ``(r, t, D)``."""
        embeds = F.embedding(self.ids, self.table)
        output = model(inputs_embeds=embeds, attention_mask=self.mask, **self.more)
        states: Tensor = output.last_hidden_state
        return states


def passes(
    embeddings: nn.Module,
    inputs: Mapping[str, Tensor],
    lengths: Sequence[int],
    tokens: int,
    most: int | None = None,
) -> Iterator[Pass]:
    """Cut a batch into passes.

    Args:
        embeddings: The model's module from token ids to embeddings.
        inputs: ``input_ids`` and ``attention_mask``, and what else the model takes of each token,
            padded on the right, each of shape ``(R, T)``.
        lengths: Tokens of each text.
        tokens: Most tokens of a pass, padding included; a longer text passes alone.
        most: Most texts of a pass; None for any number.

    Yields:
        Passes; every text is in one.
    """
    more = dict(inputs)
    distinct, ids = torch.unique(more.pop("input_ids"), return_inverse=True)
    mask, table = more.pop("attention_mask"), embeddings(distinct)
    for group in batches(lengths, tokens):
        step = most or len(group)
        for start in range(0, len(group), step):
            rows = torch.from_numpy(group[start : start + step])
            width = max(lengths[row] for row in rows.tolist())
            rows = rows.to(ids.device)
            cut = {name: value[rows, :width] for name, value in more.items()}
            yield Pass(rows, ids[rows, :width], mask[rows, :width], cut, table)


def pass_tokens(device: torch.device, on_cpu: int) -> int:
    """Tokens of a pass where none are asked for.

    Args:
        device: Where it runs.
        on_cpu: What is fastest on CPUs: longer texts want more.
    """
    return on_cpu if device.type == "cpu" else 1 << 16
