"""BERT's layers for inference: the same function as transformers' with fewer, larger products.

    q, k, v = split(x W_qkv)                 one product instead of three
    x       = LN(x + SDPA(q, k, v) W_o)      residuals added in place
    x       = LN(x + act(x W_1) W_2)

Serves the architectures whose layer is this one (BERT, XLM-R and their kin). No gradients; training
runs transformers' own layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class _Layer:
    """One layer's weights, shared with the module they come from."""

    weight: Tensor  # W_qkv, (3H, H)
    bias: Tensor  # (3H,)
    attention_output: nn.Linear
    attention_norm: nn.LayerNorm
    up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear
    norm: nn.LayerNorm

    @classmethod
    def of(cls, module: Any) -> Self:
        """Fuse query, key and value; the module's own weights become views of the fused ones."""
        parts = [
            module.attention.self.query,
            module.attention.self.key,
            module.attention.self.value,
        ]
        weight = torch.cat([part.weight.data for part in parts])
        bias = torch.cat([part.bias.data for part in parts])
        width = len(parts[0].bias)
        for number, part in enumerate(parts):
            part.weight.data = weight[number * width : (number + 1) * width]
            part.bias.data = bias[number * width : (number + 1) * width]
        return cls(
            weight,
            bias,
            module.attention.output.dense,
            module.attention.output.LayerNorm,
            module.intermediate.dense,
            module.intermediate.intermediate_act_fn,
            module.output.dense,
            module.output.LayerNorm,
        )

    def __call__(self, x: Tensor, mask: Tensor | None, heads: int) -> Tensor:
        """Shape ``(B, T, H)`` to ``(B, T, H)``."""
        batch, length, width = x.shape
        qkv = F.linear(x, self.weight, self.bias).view(batch, length, 3, heads, width // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, H / heads)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        context = context.transpose(1, 2).reshape(batch, length, width)
        x = self.attention_norm(self.attention_output(context).add_(x))
        out: Tensor = self.norm(self.down(self.activation(self.up(x))).add_(x))
        return out


class FusedLayers:
    """The embeddings and layers of a model, ready to run.

    Args:
        model: A transformers encoder of BERT's kind, on its device; cut to the layers to be run.

    Raises:
        AttributeError: If its layers are built otherwise.
    """

    def __init__(self, model: Any) -> None:
        self.embeddings = model.embeddings
        self.heads = int(model.config.num_attention_heads)
        self.layers = [_Layer.of(module) for module in model.encoder.layer]

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Last hidden states of a padded batch.

        Args:
            inputs: ``input_ids`` and ``attention_mask`` of shape ``(B, T)``, perhaps
                ``token_type_ids``.

        Returns:
            Shape ``(B, T, H)``; what stands at padding means nothing.
        """
        attended = inputs["attention_mask"].bool()
        mask = None if bool(attended.all()) else attended[:, None, None, :]  # (B, 1, 1, T)
        words = {name: value for name, value in inputs.items() if name != "attention_mask"}
        x: Tensor = self.embeddings(**words)
        for layer in self.layers:
            x = layer(x, mask, self.heads)
        return x
