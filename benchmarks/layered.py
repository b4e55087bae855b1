"""An encoder whose one forward pass gives the pooled states of every layer.

    h_0 = embeddings, h_l = layer_l(h_(l-1))        (B, T, H) each
    v_l = pool(h_l)                                 (B, D) each

The vectors of layer N are those of an encoder with ``layer`` N, to rounding; running all of them
costs what the last one costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ccpretrieve.data.tokens import Tokens
from ccpretrieve.errors import UserError
from ccpretrieve.model import checkpoint, known
from ccpretrieve.model.calibration_file import Embeddings
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.model.pooling import pool
from ccpretrieve.model.settings import EncoderSettings
from ccpretrieve.model.tower import Tower


class LayeredTower(Tower):
    """A tower whose vectors are those of all layers, one behind another: ``dim`` is (L + 1) D."""

    def __init__(
        self, path: Path, settings: EncoderSettings, device: torch.device, dtype: torch.dtype
    ) -> None:
        layers = depth(path)
        super().__init__(path, replace(settings, layer=-1), device, dtype)
        self.dim *= layers + 1

    def forward(self, batch: Sequence[Tokens]) -> Tensor:
        """Embed one batch, without gradients; shape ``(B, (L + 1) D)``, float32."""
        inputs = self._pad(batch)
        mask = inputs["attention_mask"]
        pooled = [pool(states, mask, self.pooling) for states in self._states(inputs)]
        return torch.cat([self._finish(each) for each in pooled], dim=1)

    def _states(self, inputs: dict[str, Tensor]) -> Iterator[Tensor]:
        """Hidden states of the embeddings, then of each layer; shape ``(B, T, H)``."""
        if self.fused is None:
            output = self.model(**inputs, output_hidden_states=True)
            yield from output.hidden_states[:-1]
            yield output.last_hidden_state
            return
        attended = inputs["attention_mask"].bool()
        mask = None if bool(attended.all()) else attended[:, None, None, :]  # (B, 1, 1, T)
        words = {name: value for name, value in inputs.items() if name != "attention_mask"}
        states: Tensor = self.fused.embeddings(**words)
        yield states
        for layer in self.fused.layers:
            states = layer(states, mask, self.fused.heads)
            yield states


class LayeredEncoder(Encoder):
    """An encoder that embeds texts by all layers at once; made by :meth:`load`."""

    def embed_layers(self, texts: Sequence[str]) -> tuple[dict[int, Embeddings], int]:
        """Embed texts as questions.

        Returns:
            Layer -> vectors of shape ``(N, D)``, as pooled; and how many texts lost their end.

        Raises:
            UserError: If the pooling is of one layer only.
        """
        if self.settings.pooling == "pooler":
            raise UserError(f"{self.name}: its pooler is of the last layer; give --pooling cls")
        encoded = self.embed_queries(texts)
        parts = torch.from_numpy(encoded.vectors).chunk(self.depth + 1, dim=1)
        layers = {layer: part.contiguous().numpy() for layer, part in enumerate(parts)}
        return layers, encoded.truncated

    @property
    def depth(self) -> int:
        """L, how many layers there are above the embeddings; no weights are read."""
        return depth(checkpoint.tower(self.path, checkpoint.QUERY))

    def _tower(self, role: str) -> Tower:
        path = checkpoint.tower(self.path, role)
        if path not in self._towers:
            self._towers[path] = LayeredTower(path, self.settings, self.device, self.dtype)
        return self._towers[path]


def depth(path: Path) -> int:
    """How many layers the checkpoint in a directory has, above the embeddings.

    Raises:
        UserError: If it is no Transformer.
    """
    from transformers import AutoConfig

    if known.is_laser(path):
        raise UserError(f"{path}: LASER is no Transformer and has one layer; leave --layer out")
    return int(AutoConfig.from_pretrained(path, trust_remote_code=False).num_hidden_layers)
