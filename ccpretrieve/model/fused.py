"""BERT's layers for inference: the same function as transformers' with fewer, quicker products.

    q, k, v = split(x W_qkv)                 one product instead of three
    x       = LN(x + SDPA(q, k, v) W_o)      residuals added in place
    x       = LN(x + act(x W_1) W_2)

In float32 on a CPU the weights are laid out once as oneDNN's products want them, which took a tenth
off the time of a whole forward pass on AVX2.

Serves the architectures whose layer is this one (BERT, XLM-R and their kin). No gradients: training
runs transformers' own layers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Rows of a product that the layout is chosen for; any number can be multiplied.
_ROWS = 1024


class _Linear:
    """``x W^T + b`` with its own copy of the weights.

    Args:
        parts: Linear layers of the same input, computed as one.
    """

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        self.weight = torch.cat([part.weight.detach() for part in parts])  # (outputs, inputs)
        self.bias = torch.cat([part.bias.detach() for part in parts])
        self.packed = _can_pack(self.weight)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, _ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """Shape ``(..., inputs)`` to ``(..., outputs)``."""
        if self.packed:
            product = torch.ops.mkldnn._linear_pointwise
            out: Tensor = product(x, self.weight, self.bias, "none", [], "")
            return out
        return F.linear(x, self.weight, self.bias)


def _can_pack(weight: Tensor) -> bool:
    """Whether oneDNN can lay the weights out here, by operations that torch keeps to itself."""
    operations = ("_reorder_linear_weight", "_linear_pointwise")
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and all(hasattr(torch.ops.mkldnn, name) for name in operations)
    )


class _Layer:
    """One layer, with what it needs of transformers' module."""

    def __init__(self, module: Any) -> None:
        attention, output = module.attention.self, module.attention.output
        self.qkv = _Linear([attention.query, attention.key, attention.value])
        self.attention_output = _Linear([output.dense])
        self.attention_norm: nn.LayerNorm = output.LayerNorm
        self.up = _Linear([module.intermediate.dense])
        self.activation: Callable[[Tensor], Tensor] = module.intermediate.intermediate_act_fn
        self.down = _Linear([module.output.dense])
        self.norm: nn.LayerNorm = module.output.LayerNorm

    def __call__(self, x: Tensor, mask: Tensor | None, heads: int) -> Tensor:
        """Shape ``(B, T, H)`` to ``(B, T, H)``."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, heads, width // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, H / heads)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        context = context.transpose(1, 2).reshape(batch, length, width)
        x = self.attention_norm(self.attention_output(context).add_(x))
        out: Tensor = self.norm(self.down(self.activation(self.up(x))).add_(x))
        return out


class FusedLayers:
    """The embeddings and layers of a model, ready to run; the model's own layers are used up.

    Args:
        model: A transformers encoder of BERT's kind, on its device; cut to the layers to be run.
            It is left without layers, so that no weight is held twice.

    Raises:
        AttributeError: If its layers are built otherwise.
    """

    def __init__(self, model: Any) -> None:
        self.embeddings = model.embeddings
        self.heads = int(model.config.num_attention_heads)
        self.layers = []
        while len(model.encoder.layer):
            self.layers.append(_Layer(model.encoder.layer[0]))
            del model.encoder.layer[0]

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
