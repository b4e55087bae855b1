"""LASER (Artetxe and Schwenk 2019; LASER2 of 2022) through its authors' package ``laser_encoders``.

    tokens = SentencePiece(lower(normalised punctuation)) </s>
    h      = LSTM, 5 layers, both directions        (B, T, 1024)
    v      = max over T of h                        (B, 1024)

It is a recurrent network in a format of its own, so it is no Hugging Face directory: the checkpoint
is the folder with the three files that the package downloads. Text goes through the package's own
tokenizer and encoder; batches, prefixes, cutting and unit length are ours. It computes in float32
on the device that it chooses itself: cuda where there is one.
"""

import importlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccpretrieve.data.tokens import Segments, Tokens
from ccpretrieve.errors import UserError
from ccpretrieve.model.known import LASER_WEIGHTS
from ccpretrieve.model.settings import EncoderSettings
from ccpretrieve.model.tower import Tower

PACKAGE = "laser_encoders"
FILES = (LASER_WEIGHTS, "laser2.spm", "laser2.cvocab")
DOWNLOADS = Path("~/.cache/laser_encoders")  # where the package puts them unless told otherwise

_FETCH = f"python -m {PACKAGE}.download_models --laser laser2"


def find() -> Path:
    """The directory that the package downloads to.

    Raises:
        UserError: If the package is not installed, or the files are not there.
    """
    path = DOWNLOADS.expanduser()
    check(path)
    return path


def check(path: Path) -> None:
    """Fail unless LASER can be run from a directory; nothing is downloaded.

    Raises:
        UserError: If the package is not installed, or a file is missing.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise UserError(f"encoder laser needs the package {PACKAGE}: pip install {PACKAGE}")
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing:
        raise UserError(
            f"encoder laser: looked for {', '.join(FILES)} in {path} and found no {missing[0]}; "
            f"{_FETCH} downloads them to {DOWNLOADS}, or give the directory they are in"
        )


class LaserTower(Tower):
    """LASER's encoder in the place of a Transformer.

    Args:
        path: Directory with the three files.
        settings: Of a model that pools by itself: ``pooler``, the last layer, one segment.
        device: Must be of the kind that the package computes on.
        dtype: Not used; it computes in float32.

    Raises:
        UserError: If the settings ask for what it cannot do, the device is another, or the
            package or its files do not work.
    """

    def __init__(
        self, path: Path, settings: EncoderSettings, device: torch.device, dtype: torch.dtype
    ) -> None:
        if settings.pooling != "pooler" or settings.layer != -1:
            raise UserError(f"{path}: LASER pools by itself; leave --pooling and --layer out")
        if settings.title == "pair":
            raise UserError(f"{path}: LASER takes one segment; use --title join")
        self.path = path
        self.device = device
        self.pipeline = _load(path)
        on_gpu = bool(getattr(self.pipeline.encoder, "use_cuda", False))
        if on_gpu != (device.type == "cuda"):
            raise UserError(
                f"--device {device}: {PACKAGE} computes on {'cuda' if on_gpu else 'cpu'} here"
            )
        self._ids: dict[str, int] = {}  # of pieces, in the order they came; the package has its own
        self._pieces: list[str] = []
        self.dim = len(self._encode([""])[0])
        # As far as memory is reckoned with, a Transformer of this width.
        self.model = SimpleNamespace(config=SimpleNamespace(hidden_size=self.dim))
        self.size = (path / LASER_WEIGHTS).stat().st_size

    def tokenize(self, texts: Sequence[Segments], length: int) -> Iterator[Tokens]:
        """Turn texts into pieces; ``</s>``, which the package appends, counts as one."""
        for text in texts:
            pieces = self.pipeline.tokenizer.tokenize(text).split()
            kept = [self._id(piece) for piece in pieces[: length - 1]]
            yield Tokens(np.asarray([*kept, -1], dtype=np.int32), None, len(pieces) > length - 1)

    def _id(self, piece: str) -> int:
        row = self._ids.setdefault(piece, len(self._pieces))
        if row == len(self._pieces):
            self._pieces.append(piece)
        return row

    def forward(self, batch: Sequence[Tokens]) -> Tensor:
        """Embed one batch.

        Returns:
            Shape ``(B, D)``, float32, not normalised.
        """
        lines = [" ".join(self._pieces[row] for row in tokens.ids[:-1]) for tokens in batch]
        return torch.from_numpy(self._encode(lines))

    def _encode(self, lines: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.pipeline.encoder.max_sentences = len(lines)  # of one pass; it would take one by one
        return np.asarray(self.pipeline.encoder.encode_sentences(lines), dtype=np.float32)


def _load(path: Path) -> Any:
    """The package's pipeline over the files of ``path``.

    It would send its log to standard output, where results go: a handler of ours keeps it from it.

    Raises:
        UserError: If that fails in any way; the package needs fairseq, which has many.
    """
    guard = logging.NullHandler()
    logging.getLogger().addHandler(guard)
    try:
        package = importlib.import_module(PACKAGE)
        return package.LaserEncoderPipeline(laser="laser2", model_dir=str(path))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{path}: {PACKAGE} cannot load it: {reason}") from error
    finally:
        logging.getLogger().removeHandler(guard)
