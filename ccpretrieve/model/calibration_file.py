"""A fitted calibration: the statistics of each language, applied and kept (section 3.2).

    shift    v - mu_l
    scale    (v - mu_l) / sigma_l
    rotate   ((v - mu_l) / sigma_l) W_l

Notation, paper -> code:

    mu_l      mean        mean embedding of language l, shape (D,)
    sigma_l   scale       its spread per dimension, shape (D,)
    W_l       rotation    orthogonal map from l to the pivot language, shape (D, D)

It works on pooled vectors as they are; unit length comes after it. How statistics are learned is
:mod:`ccpretrieve.model.calibration`.

A file holds any of the three for each of its languages, as safetensors named ``<language>.mean``,
``.scale`` and ``.rotation``; what is absent is a step that was not taken. Its header says what they
were fitted with (:attr:`Calibration.notes`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import atomic, hash_files
from ccpretrieve.model.moments import Moments

Embeddings = NDArray[np.float32]

#: Spread below which a dimension is dead and left unscaled.
DEAD = 1e-8
#: Key of the header that holds the notes, as JSON.
NOTES = "ccpretrieve"
#: What the notes say of the encoder, by which another is told.
ENCODER = {"name", "fingerprint", "pooling", "layer"}


@dataclass(frozen=True)
class Spread:
    """One language's statistics; a step that was not fitted is None.

    Attributes:
        mean: mu, shape ``(D,)``.
        scale: sigma, shape ``(D,)``, positive.
        rotation: W, orthogonal, shape ``(D, D)``; rows of vectors are multiplied from the left.
    """

    mean: Embeddings | None = None
    scale: Embeddings | None = None
    rotation: Embeddings | None = None

    @classmethod
    def fit(cls, embeddings: Embeddings, *, scale: bool = True) -> Self:
        """The plain mean and standard deviation of embeddings of one language, nothing shrunk.

        Args:
            embeddings: Shape ``(N, D)``, N at least 2, any norm.
            scale: Learn sigma too.

        Raises:
            ValueError: If there are fewer than two rows, or one holds a NaN or infinity.
        """
        if embeddings.ndim != 2 or len(embeddings) < 2:
            raise ValueError(f"expected (N, D) embeddings with N > 1, got {embeddings.shape}")
        check_finite(embeddings)
        moments = Moments()
        moments.add(embeddings)
        mean = moments.mean.astype(np.float32)
        if not scale:
            return cls(mean=mean)
        deviation = np.sqrt(moments.variance)
        deviation[deviation < DEAD] = 1.0
        return cls(mean=mean, scale=deviation.astype(np.float32))

    def transform(self, embeddings: Embeddings) -> Embeddings:
        """Shift, scale and rotate, as far as fitted; a new array of shape ``(N, D)``.

        Raises:
            ValueError: If they are of another width than what was fitted.
        """
        width = embeddings.shape[-1]
        for value in (self.mean, self.scale, self.rotation):
            if value is not None and value.shape[-1] != width:
                raise ValueError(
                    f"fitted on vectors of another width: {value.shape[-1]}, not {width}"
                )
        out = embeddings.astype(np.float32, copy=True)
        if self.mean is not None:
            out -= self.mean
        if self.scale is not None:
            out /= self.scale
        return out @ self.rotation if self.rotation is not None else out


def check_finite(embeddings: NDArray[Any]) -> None:
    """Fail if a row, of shape ``(N, D)``, holds a NaN or infinity.

    Raises:
        ValueError: Naming the first such row.
    """
    bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
    if len(bad):
        raise ValueError(f"embedding {bad[0]} of {len(embeddings)} holds a NaN or infinity")


def _check_statistics(path: Path, languages: Mapping[str, Spread]) -> None:
    """Fail unless all statistics of a file can be applied to vectors of one width.

    NumPy would spread a mean of one number over all dimensions, and divide by zero.

    Raises:
        UserError: Naming the first tensor that cannot.
    """
    tensors = {
        f"{language}.{step}": value
        for language, spread in languages.items()
        for step, value in vars(spread).items()
        if value is not None
    }
    width = min(max(value.shape, default=0) for value in tensors.values())
    for name, value in tensors.items():
        if fault := _fault(name.rpartition(".")[2], value, width):
            raise UserError(f"{path}: {name} {fault}; fit the calibration again")


def _fault(step: str, value: NDArray[Any], width: int) -> str:
    """Why a tensor cannot be applied to vectors of a width, ``""`` if it can."""
    square = step == "rotation"
    if not width or value.shape != ((width, width) if square else (width,)):
        return f"is of shape {value.shape} where others are {width} wide"
    if value.dtype.kind != "f" or not np.isfinite(value).all():
        return "holds what is no number"
    if step == "scale" and value.min() <= 0:
        return "is not positive"
    if square and not np.allclose(np.linalg.norm(value, axis=1), 1, atol=1e-2):
        return "is no orthogonal map"
    return ""


def _check_notes(path: Path, notes: Any) -> None:
    """Fail unless the notes, where they name an encoder, say what is compared with another's."""
    encoder = notes.get("encoder", {}) if isinstance(notes, dict) else None
    named = isinstance(encoder, dict) and (not encoder or encoder.keys() >= ENCODER)
    if not named:
        raise UserError(f"{path}: its notes are damaged; fit the calibration again")


@dataclass(frozen=True)
class Calibration:
    """Statistics of several languages, and the file they live in.

    Attributes:
        languages: Language code -> its statistics.
        notes: What they were fitted with: plain values, such as ``encoder`` and ``languages``.
        path: File it was loaded from; None before it was saved.
    """

    languages: Mapping[str, Spread]
    notes: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a calibration file.

        Raises:
            UserError: If it is missing, not safetensors, or holds other tensors or such as cannot
                be applied.
        """
        from safetensors import SafetensorError, safe_open

        spreads: dict[str, dict[str, Embeddings]] = {}
        try:
            with safe_open(path, framework="numpy") as tensors:
                notes = json.loads((tensors.metadata() or {}).get(NOTES, "{}"))
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    language, _, step = name.rpartition(".")
                    spreads.setdefault(language, {})[step] = tensors.get_tensor(name)
            languages = {language: Spread(**steps) for language, steps in spreads.items()}
        except (OSError, SafetensorError, json.JSONDecodeError) as error:
            raise UserError(f"{path}: not a calibration file: {error}") from error
        except TypeError as error:
            raise UserError(f"{path}: holds tensors that are no mean, scale or rotation") from error
        if not languages:
            raise UserError(f"{path}: holds no language")
        _check_notes(path, notes)
        _check_statistics(path, languages)
        return cls(languages, notes, path)

    def save(self, path: Path) -> None:
        """Write the statistics as one safetensors file, whole or not at all."""
        from safetensors.numpy import save

        tensors = {
            f"{language}.{step}": np.ascontiguousarray(value)
            for language, spread in sorted(self.languages.items())
            for step, value in vars(spread).items()
            if value is not None
        }
        notes = json.dumps(self.notes, ensure_ascii=False, sort_keys=True)
        with atomic(path) as stream:
            stream.write(save(tensors, metadata={NOTES: notes}))

    def fingerprint(self) -> str:
        """SHA-256 of the file it was loaded from."""
        if self.path is None:
            raise ValueError("this calibration was not loaded from a file; save it first")
        return hash_files({"calibration": self.path})

    def transform(self, embeddings: Embeddings, language: str | Sequence[str]) -> Embeddings:
        """Calibrate embeddings, shape ``(N, D)``; a new array of that shape.

        Args:
            embeddings: As pooled.
            language: Code of their language, or of each.

        Raises:
            UserError: If the file has no such language or another width.
        """
        if isinstance(language, str):
            return self._of_one(embeddings, language)
        out = np.empty_like(embeddings, dtype=np.float32)
        for code in dict.fromkeys(language):
            rows = [row for row, each in enumerate(language) if each == code]
            out[rows] = self._of_one(embeddings[rows], code)
        return out

    def _of_one(self, embeddings: Embeddings, language: str) -> Embeddings:
        where = self.path or "this calibration"
        if not language:
            raise UserError(f"{where}: needs the language of the text; give --lang, or tag it")
        if language not in self.languages:
            raise UserError(f"{where}: {unknown('language', language, tuple(self.languages))}")
        try:
            return self.languages[language].transform(embeddings)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from error
