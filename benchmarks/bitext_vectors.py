"""Vectors of the sides of parallel texts: each side encoded once, and kept on disk if asked.

    DIR/<encoder>/<key>.safetensors     (N, D) float32, and in its header what made it

The key is a hash of all that decides the vectors: the encoder's fingerprint and settings, the
layer, the type of numbers, and the text. A side of which anything differs has another file; nothing
is ever looked up by a name alone.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ccpretrieve
from ccpretrieve.data.parallel import ParallelText
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, make_directory
from ccpretrieve.retrieval import names

if TYPE_CHECKING:
    from ccpretrieve.model.calibration_file import Embeddings
    from ccpretrieve.model.encoder import Encoder

#: Settings that decide the vector of a question; the others are of passages, or come after it.
SETTINGS = ("pooling", "query_length", "query_prefix", "strip_question_mark", "normalize")
HEADER = "made_by"  # key of the file's header


@dataclass(frozen=True)
class Side:
    """One side of a text, encoded.

    Attributes:
        layers: Layer, as it was asked for -> vectors of shape ``(N, D)``.
        truncated: Sentences that were longer than allowed and lost their end.
    """

    layers: Mapping[int, "Embeddings"]
    truncated: int


def digest(sentences: Iterable[str]) -> str:
    """SHA-256 of sentences, which hold no line feed."""
    whole = hashlib.sha256()
    for sentence in sentences:
        whole.update(sentence.encode("utf-8", "surrogatepass") + b"\n")
    return whole.hexdigest()


class Sides:
    """Encodes sides; one that is used again is held in memory until its last use.

    Args:
        encoder: Without calibration; not normalising. A ``LayeredEncoder`` gives all layers.
        texts: What will be asked for, each side once for each text.
        folder: Where vectors are kept from one run to the next; None to keep none.
    """

    def __init__(
        self, encoder: "Encoder", texts: Iterable[ParallelText], folder: Path | None = None
    ) -> None:
        self.encoder = encoder
        self.uses = Counter(digest(side) for text in texts for side in text.sides)
        self.store = Store(folder, encoder) if folder is not None else None
        self.held: dict[str, Side] = {}

    def encode(self, sentences: Sequence[str]) -> Side:
        """The vectors of a side: held, kept on disk, or made now."""
        key = digest(sentences)
        side = self.held.get(key) or self._made(sentences, key)
        self.uses[key] -= 1
        if self.uses[key] > 0:
            self.held[key] = side
        else:
            self.held.pop(key, None)
        return side

    def _made(self, sentences: Sequence[str], key: str) -> Side:
        if self.store is None:
            return self._embed(sentences)
        wanted = wanted_layers(self.encoder)
        kept = self.store.read(key, wanted, len(sentences))
        if kept is None:
            kept = self._embed(sentences)
            self.store.write(key, kept)
        return kept

    def _embed(self, sentences: Sequence[str]) -> Side:
        if hasattr(self.encoder, "embed_layers"):
            return Side(*self.encoder.embed_layers(sentences))
        encoded = self.encoder.embed_queries(sentences)
        return Side({self.encoder.settings.layer: encoded.vectors}, encoded.truncated)


def wanted_layers(encoder: "Encoder") -> list[int]:
    """The layers that an encoder gives."""
    depth: int | None = getattr(encoder, "depth", None)
    return [encoder.settings.layer] if depth is None else list(range(depth + 1))


class Store:
    """Vectors on disk, a file a side and layer.

    Args:
        folder: Of all encoders.
        encoder: Whose vectors they are.
    """

    def __init__(self, folder: Path, encoder: "Encoder") -> None:
        self.folder = make_directory(folder / names.tag_of(encoder.name))
        self.made_by: dict[str, Any] = {
            "version": ccpretrieve.__version__,
            "encoder": encoder.fingerprint,
            "dtype": str(encoder.dtype).removeprefix("torch."),
            **{name: getattr(encoder.settings, name) for name in SETTINGS},
        }

    def read(self, text: str, layers: Iterable[int], rows: int) -> Side | None:
        """Vectors of a text of which the digest is given; None unless all layers are there.

        Raises:
            UserError: If a file is damaged or not what its name says.
        """
        from safetensors import SafetensorError, safe_open

        read: dict[int, Embeddings] = {}
        truncated = 0
        for layer in layers:
            path, header = self._place(text, layer)
            if not path.is_file():
                return None
            try:
                with safe_open(path, framework="numpy") as tensors:
                    content = tensors.metadata() or {}
                    read[layer] = tensors.get_tensor("vectors")
                    truncated = int(content.get("truncated", -1))
            except (OSError, SafetensorError, ValueError) as error:
                raise UserError(f"{path}: damaged: {error}; remove it") from error
            if content.get(HEADER) != header or len(read[layer]) != rows or truncated < 0:
                raise UserError(f"{path}: holds other vectors than its name says; remove it")
        return Side(read, truncated)

    def write(self, text: str, side: Side) -> None:
        """Keep the vectors of a text, whole or not at all."""
        from safetensors.numpy import save

        for layer, vectors in side.layers.items():
            path, header = self._place(text, layer)
            with atomic(path) as stream:
                notes = {HEADER: header, "truncated": str(side.truncated)}
                stream.write(save({"vectors": vectors}, metadata=notes))

    def _place(self, text: str, layer: int) -> tuple[Path, str]:
        """File of a text's vectors, and what its header says."""
        header = json.dumps(self.made_by | {"layer": layer, "text": text}, sort_keys=True)
        key = hashlib.sha256(header.encode()).hexdigest()
        return self.folder / f"{key[:32]}.safetensors", header
