"""Text to embeddings: prefix, tokens, batches of like length, pooled vectors, calibration.

    text --prefix, title--> tokens --Tower--> pooled --Calibration--> --unit length--> vector

Batches are formed by token count, not by number of texts: sorted by length, as many as fit into
``batch_tokens`` with padding. A vector does not depend on its batch (to rounding), and comes back
at the place of its text.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ccpretrieve.config import DTYPES, a_device, one_of
from ccpretrieve.data.inputs import passage_text, question_text
from ccpretrieve.data.records import Passage
from ccpretrieve.data.tags import code_of
from ccpretrieve.data.tokens import Segments, Tokens
from ccpretrieve.errors import UserError
from ccpretrieve.model import checkpoint, known
from ccpretrieve.model.calibration_file import Calibration, Embeddings
from ccpretrieve.model.laser import LaserTower
from ccpretrieve.model.settings import EncoderSettings, inside, read_settings
from ccpretrieve.model.tower import Tower


@dataclass(frozen=True)
class Encoded:
    """Vectors, and what became of the text on the way.

    Attributes:
        vectors: Shape ``(N, D)``, float32, all finite.
        tokens: Tokens encoded, without padding.
        truncated: Texts that were longer than allowed and lost their end.
    """

    vectors: Embeddings
    tokens: int
    truncated: int


class Encoder:
    """A checkpoint that turns queries and passages into vectors.

    Made by :meth:`load`. Weights are read on first use of a side, so that searching with untied
    towers reads the query tower alone.

    Attributes:
        name: As it was asked for.
        path: Directory of the checkpoint.
        settings: Everything that decides a vector, given the weights.
        source: Where the settings came from, in words.
        calibration: Applied to every vector, or None.
        device: Torch device.
        dtype: Of weights and computation.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        settings: EncoderSettings,
        source: str,
        calibration: Calibration | None,
        device: torch.device,
        dtype: torch.dtype,
        batch_tokens: int,
    ) -> None:
        self.name = name
        self.path = path
        self.settings = settings
        self.source = source
        self.calibration = calibration
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens
        self._towers: dict[Path, Tower] = {}
        self._fingerprint = ""

    @classmethod
    def load(
        cls,
        name: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        calibration: Path | None = None,
        calibrated: bool = True,
        **overrides: Any,
    ) -> Self:
        """Open a checkpoint.

        Args:
            name: Directory or hub name; None for CCPRETRIEVE_ENCODER.
            device: Any torch device; None for cuda where there is one, else cpu.
            dtype: ``float32``, ``bfloat16`` or ``float16``; None for float32 on the CPU and
                bfloat16 on a GPU.
            batch_tokens: Tokens of one forward pass, padding included; None for 1024 on the CPU,
                whose caches a larger batch overflows, and 16384 elsewhere.
            calibration: Calibration file; None for the one the settings name, if any.
            calibrated: Read that one; False for vectors as pooled, whatever the settings name.
            **overrides: Fields of :class:`EncoderSettings`, or ``max_length``; None is no wish.

        Raises:
            UserError: If there is no such checkpoint, device or file, or the settings cannot work.
        """
        name = str(name) if name is not None else checkpoint.default_encoder()
        path = checkpoint.locate(name)
        settings, source = read_settings(path, name)
        settings = settings.override(**overrides)
        if calibration is None and calibrated and settings.calibration is not None:
            calibration = inside(path, settings.calibration)
        where = choose_device(device)
        encoder = cls(
            name,
            path,
            settings,
            source,
            Calibration.load(calibration) if calibration is not None else None,
            where,
            choose_dtype(dtype, where),
            batch_tokens or (1024 if where.type == "cpu" else 16384),
        )
        encoder._refuse_foreign_calibration()
        return encoder

    def _refuse_foreign_calibration(self) -> None:
        """Fail if the calibration says that it was fitted on other vectors than ours.

        Raises:
            UserError: If weights, pooling or layer differ.
        """
        if self.calibration is None or "encoder" not in self.calibration.notes:
            return
        fitted, where = self.calibration.notes["encoder"], self.calibration.path
        if fitted["fingerprint"] != self.fingerprint:
            raise UserError(
                f"{where}: was fitted on the vectors of {fitted['name']}, other weights than "
                f"those of {self.name}; fit one with python -m ccpretrieve.calibrate"
            )
        for setting in ("pooling", "layer"):
            now = getattr(self.settings, setting)
            if fitted[setting] != now:
                raise UserError(
                    f"{where}: was fitted with {setting} {fitted[setting]}, not {now}; give "
                    f"--{setting} {fitted[setting]}, or fit another calibration"
                )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of weights, sizes and tokenizer; see :func:`checkpoint.fingerprint`."""
        self._fingerprint = self._fingerprint or checkpoint.fingerprint(self.path)
        return self._fingerprint

    @property
    def calibration_is_own(self) -> bool:
        """Whether the calibration is the one that the checkpoint itself names."""
        own, used = self.settings.calibration, self.calibration
        return own is not None and used is not None and used.path == self.path / own

    @property
    def dim(self) -> int:
        """D, length of a vector."""
        return self._tower(checkpoint.PASSAGE).dim

    def load_passages(self) -> None:
        """Read the weights that encode passages now rather than on first use.

        Raises:
            UserError: If they are broken or incomplete, or cannot do what the settings ask.
        """
        self._tower(checkpoint.PASSAGE)

    def memory(self) -> int:
        """Bytes needed to encode passages, roughly: libraries, weights, one batch's activations."""
        tower = self._tower(checkpoint.PASSAGE)
        config = tower.model.config
        inner = int(getattr(config, "intermediate_size", 4 * config.hidden_size))
        activations = self.batch_tokens * (2 * inner + 8 * int(config.hidden_size)) * 4
        return 500_000_000 + tower.size + activations

    def encode_queries(
        self, queries: Sequence[str], *, language: str | Sequence[str] = ""
    ) -> Embeddings:
        """Embed questions.

        Args:
            queries: N questions.
            language: Their language, or that of each; needed by a calibration only.

        Returns:
            Shape ``(N, D)``, float32, in the order given.
        """
        return self.embed_queries(queries, language=language).vectors

    def encode_passages(
        self, passages: Sequence[Passage | str | tuple[str, str]], *, language: str = ""
    ) -> Embeddings:
        """Embed passages.

        Args:
            passages: N passages: :class:`Passage`, ``(title, text)``, or text without a title.
            language: Of those that do not state their own; needed by a calibration only.

        Returns:
            Shape ``(N, D)``, float32, in the order given.
        """
        made = [_passage(item) for item in passages]
        return self.embed_passages(made, language=language).vectors

    def embed_queries(
        self, queries: Sequence[str], *, language: str | Sequence[str] = ""
    ) -> Encoded:
        """As :meth:`encode_queries`, with the counts."""
        prefix, strips = self.settings.query_prefix, self.settings.strip_question_mark
        texts = [question_text(each, prefix=prefix, strip_question_mark=strips) for each in queries]
        return self._embed(checkpoint.QUERY, texts, self.settings.query_length, language)

    def embed_passages(self, passages: Sequence[Passage], *, language: str = "") -> Encoded:
        """As :meth:`encode_passages`, with the counts."""
        texts = [self._segments(passage) for passage in passages]
        spoken = [passage.language or language for passage in passages]
        return self._embed(checkpoint.PASSAGE, texts, self.settings.passage_length, spoken)

    def tokenize_passages(self, passages: Sequence[Passage]) -> Iterator[Tokens]:
        """What the model would see of each passage, in order."""
        texts = [self._segments(passage) for passage in passages]
        return self._tower(checkpoint.PASSAGE).tokenize(texts, self.settings.passage_length)

    def _segments(self, passage: Passage) -> Segments:
        settings = self.settings
        return passage_text(passage, prefix=settings.passage_prefix, title=settings.title)

    def _tower(self, role: str) -> Tower:
        path = checkpoint.tower(self.path, role)
        if path not in self._towers:
            kind = LaserTower if known.is_laser(path) else Tower
            self._towers[path] = kind(path, self.settings, self.device, self.dtype)
        return self._towers[path]

    def _embed(
        self,
        role: str,
        texts: Sequence[Segments],
        length: int,
        language: str | Sequence[str],
    ) -> Encoded:
        tower = self._tower(role)
        tokens = list(tower.tokenize(texts, length))
        vectors = np.empty((len(texts), tower.dim), dtype=np.float32)
        with torch.inference_mode():
            for rows in batches([len(item.ids) for item in tokens], self.batch_tokens):
                vectors[rows] = tower.forward([tokens[row] for row in rows]).cpu().numpy()
        if self.calibration is not None and len(texts):
            vectors = self.calibration.transform(vectors, _codes(language))
        if self.settings.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        _check_finite(vectors, texts, self.name)
        return Encoded(
            vectors,
            sum(len(item.ids) for item in tokens),
            sum(item.truncated for item in tokens),
        )


def batches(lengths: Sequence[int], budget: int) -> Iterator[NDArray[np.intp]]:
    """Group texts of like length so that no padded batch exceeds a token budget.

    Args:
        lengths: Tokens of each text.
        budget: Most tokens of a batch, padding included; a longer text makes a batch of its own.

    Yields:
        Positions of the texts of one batch; every text once, the longest first.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        size = max(1, budget // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size


def choose_device(name: str | None) -> torch.device:
    """The device asked for; by default cuda where there is one, else the CPU.

    Raises:
        UserError: If it is no device of this machine; the CPU is never put in a GPU's place.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a_device(name)
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used on this machine: {reason}") from error
    return device


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The type asked for; by default bfloat16 on a GPU and float32 elsewhere."""
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    one_of("dtype", name, DTYPES)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _codes(language: str | Sequence[str]) -> str | list[str]:
    """Codes of languages as texts are tagged; what is not in the table stays as it is."""
    if isinstance(language, str):
        return _code(language)
    return [_code(tag) for tag in language]


@functools.lru_cache(maxsize=1024)
def _code(tag: str) -> str:
    return code_of(tag) or tag


def _passage(item: Passage | str | tuple[str, str]) -> Passage:
    if isinstance(item, Passage):
        return item
    title, text = ("", item) if isinstance(item, str) else item
    return Passage(id="", text=text, title=title)


def _check_finite(vectors: Embeddings, texts: Sequence[Any], name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise UserError(
            f"{name}: {len(bad)} of {len(texts)} vectors hold a NaN or infinity, the first for "
            f"{str(texts[bad[0]])[:60]!r}; try --dtype float32"
        )
