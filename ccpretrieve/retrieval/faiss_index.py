"""FAISS indexes in Pyserini's layout: open and search them.

    <folder>/index       FAISS, inner product
    <folder>/docid       passage ids, one a line, in row order
    <folder>/meta.json   what made it (absent where Pyserini wrote the index)

An index that does not fit into memory is searched from the disk; a flat one exactly.
"""

import contextlib
import hashlib
import logging
import mmap
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError
from ccpretrieve.files import sampled_hash
from ccpretrieve.retrieval import meta as metadata
from ccpretrieve.retrieval.store import FOLDER, Store, mend

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

INDEX, DOCID = "index", "docid"
#: Questions searched together; bounds the score matrix, not the result.
_BATCH = 1024
#: Ids of an index up to this size are kept as strings once many are asked for: some 70 bytes each.
_KEPT = 1_000_000

logger = logging.getLogger(__name__)
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Hit:
    """One passage found for a question.

    Attributes:
        docid: Id of the passage.
        score: Inner product with the question.
        row: Its place in the index.
        passage: The passage itself where its text is at hand, else None.
    """

    docid: str
    score: float
    row: int
    passage: Passage | None = None


class Index:
    """An index that is open for searching; made by :meth:`load`.

    Attributes:
        path: Its folder.
        faiss: The FAISS index.
        docids: Passage ids by row.
        meta: Content of ``meta.json``, or None.
    """

    def __init__(
        self, path: Path, faiss_index: Any, docids: "Lines", meta: Any, encoder: "Encoder | None"
    ) -> None:
        self.path = path
        self.faiss = faiss_index
        self.docids = docids
        self.meta = meta
        self._encoder: Encoder | None = None
        if encoder is not None:
            self.encoder = encoder

    @classmethod
    def load(cls, path: str | Path, *, encoder: "Encoder | None" = None) -> Self:
        """Open an index folder, ours or Pyserini's.

        Args:
            path: The folder.
            encoder: Encodes the questions of :meth:`search`; None for the one that made the index.

        Raises:
            UserError: If it is no index, its ids and vectors disagree, or it was made with another
                encoder or other settings than those of ``encoder``.
        """
        path = Path(path)
        for name in (INDEX, DOCID):
            if not (path / name).is_file():
                raise UserError(
                    f"{path}: no index here (it has no file {name!r}); "
                    "python -m ccpretrieve.encode makes one"
                )
        meta = metadata.read(path)
        index = _read(path / INDEX)
        docids = Lines(path / DOCID)
        if len(docids) != index.ntotal:
            raise UserError(
                f"{path}: index holds {index.ntotal} vectors, docid {len(docids)} ids; "
                f"{_mend(path)}"
            )
        if meta is not None:
            _check(path, meta["index"], index)
        return cls(path, index, docids, meta, encoder)

    @property
    def encoder(self) -> "Encoder":
        """The encoder of the questions; the one that made the index unless another was given."""
        if self._encoder is None:
            self._encoder = metadata.open_encoder(self.path, None)
        return self._encoder

    @encoder.setter
    def encoder(self, encoder: "Encoder") -> None:
        if self.meta is not None:
            metadata.refuse_another(self.path, self.meta, encoder)
        self._encoder = encoder

    def __len__(self) -> int:
        return int(self.faiss.ntotal)

    def search(
        self, questions: Sequence[str], hits: int = 10, *, language: str = ""
    ) -> list[list[Hit]]:
        """Find passages for questions, with their text where the shards are at hand.

        Args:
            questions: N questions.
            hits: Most passages a question.
            language: Of the questions; needed by a calibration only.

        Returns:
            For each question its hits, the best first; fewer where the index has fewer.
        """
        vectors = self.encoder.encode_queries(questions, language=language)
        scores, rows = self.search_vectors(vectors, hits)
        passages = self.passages([int(row) for row in rows.ravel() if row >= 0])
        return [
            [
                Hit(self.docids[int(row)], float(score), int(row), passages.get(int(row)))
                for score, row in zip(*pair, strict=True)
                if row >= 0
            ]
            for pair in zip(scores, rows, strict=True)
        ]

    def search_vectors(self, vectors: Vectors, hits: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Find rows for vectors.

        Args:
            vectors: Shape ``(N, D)``, float32, finite.
            hits: Most rows a vector.

        Returns:
            Scores and rows, each of shape ``(N, min(hits, len(self)))``, the best first. A row
            of -1 is no hit: an approximate index found fewer.

        Raises:
            UserError: If the width is not the index'.
            ValueError: If a vector is not finite.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.faiss.d:
            raise UserError(
                f"{self.path}: holds vectors of width {self.faiss.d}, the questions have shape "
                f"{vectors.shape}; search with the encoder that made it"
            )
        if not np.isfinite(vectors).all():
            raise ValueError("a question's vector holds a NaN or infinity")
        k = min(hits, len(self))
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        with _matrix_products(4 * self.faiss.d):
            parts = [
                self.faiss.search(vectors[start : start + _BATCH], k)
                for start in range(0, len(vectors), _BATCH)
            ]
        if not parts:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        return np.concatenate([part[0] for part in parts]), np.concatenate([p[1] for p in parts])

    def rank(self, vectors: Vectors, hits: int) -> list[dict[str, float]]:
        """Find passage ids for vectors: for each its ids with their scores, the best first.

        Args:
            vectors: Shape ``(N, D)``, float32, finite.
            hits: Most passages a vector.
        """
        scores, rows = self.search_vectors(vectors, hits)
        real = rows >= 0
        docids, values = self.docids.take(rows[real]), scores[real].tolist()
        rankings, start = [], 0
        for count in real.sum(axis=1).tolist():
            end = start + count
            rankings.append(dict(zip(docids[start:end], values[start:end], strict=True)))
            if len(rankings[-1]) != count:
                raise UserError(f"{self.path}: names a passage twice in docid; {_mend(self.path)}")
            start = end
        return rankings

    def passages(self, rows: Sequence[int]) -> dict[int, Passage]:
        """The passages at these rows; empty where the shards are not at hand."""
        folder = self.path / self.meta["embeddings"] if self.meta else None
        if folder is None or not folder.is_dir():
            return {}
        found = Store.open(folder).lookup(rows)
        if any(self.docids[row] != passage.id for row, passage in found.items()):
            raise UserError(
                f"{folder}: holds other passages than docid names; remove {self.path} and make it "
                "again"
            )
        return found


@contextlib.contextmanager
def _matrix_products(size: int) -> Iterator[None]:
    """Let FAISS compare by matrix product from ``size`` numbers of question on, for the block.

    Left alone, FAISS 1.15 compares one by one below 128,000 numbers (some 330 questions of 384),
    which takes about ten times as long a question. The result is the same to rounding.
    """
    import faiss

    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = min(before, size)
    try:
        yield
    finally:
        faiss.cvar.distance_compute_blas_threshold = before


def _check(path: Path, said: dict[str, Any], index: Any) -> None:
    """Fail unless the files of an index are those that its ``meta.json`` was written with."""
    if (said["count"], said["dim"]) != (index.ntotal, index.d):
        raise UserError(
            f"{path}: index holds {index.ntotal} vectors of width {index.d}, meta.json says "
            f"{said['count']} of {said['dim']}; {_mend(path)}"
        )
    with (path / DOCID).open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != said["docid"]:
            raise UserError(f"{path}: docid changed since it was written; {_mend(path)}")
    if said.get("sampled", sampled := sampled_hash(path / INDEX)) != sampled:
        raise UserError(f"{path}: index changed since it was written; {_mend(path)}")


def _mend(folder: Path) -> str:
    """How to have an index again that is damaged, from its shards where they lie in the folder."""
    return mend(folder) if (folder / FOLDER).is_dir() else f"remove {folder} and make it again"


def reason(error: RuntimeError) -> str:
    """What FAISS says is wrong, without the place in its source, in so many words as fit a line."""
    text = " ".join(str(error).split())
    text = re.sub(r"^Error in .* at \S+:\d+: ", "", text)
    text = re.sub(r"^Error: '.*?' failed: ", "", text).removeprefix("Error: ")
    return textwrap.shorten(text, 160, placeholder=" ...")


class Lines(Sequence[str]):
    """The lines of a file by number, memory-mapped: eight bytes a line instead of a string.

    A last line without a line feed counts too.

    Raises:
        UserError: If the file is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._strings: NDArray[np.object_] | None = None  # of a small file, once asked for many
        if path.stat().st_size == 0:
            raise UserError(f"{path}: is empty; {_mend(path.parent)}")
        with path.open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        content = np.frombuffer(self._bytes, dtype=np.uint8)
        blocks = range(0, len(content), 1 << 24)
        ends = [np.flatnonzero(content[at : at + (1 << 24)] == 10) + at for at in blocks]
        self._ends = np.concatenate(ends)
        if not len(self._ends) or self._ends[-1] != len(content) - 1:
            self._ends = np.append(self._ends, len(content))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, line: Any) -> Any:
        if isinstance(line, slice):
            return self.take(range(*line.indices(len(self))))
        return self.take([range(len(self))[line]])[0]

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Many lines at once, by number from 0; several times faster than one by one."""
        picked = np.asarray(rows, dtype=np.int64)
        if self._strings is None and len(picked) >= 1000 and len(self) <= _KEPT:
            text = self._decode(self._bytes[:])
            lines = [line.removesuffix("\r") for line in text.split("\n")]
            self._strings = np.array(lines, dtype=object)
        if self._strings is not None:
            strings: list[str] = self._strings[picked].tolist()
            return strings
        ends = self._ends[picked]
        starts = np.where(picked == 0, 0, self._ends[picked - 1] + 1)
        content = self._bytes
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self._decode(content[start:end]).removesuffix("\r") for start, end in spans]

    def _decode(self, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.path}: not UTF-8 text; {_mend(self.path.parent)}") from error


def _read(path: Path) -> Any:
    """Read a FAISS index; memory-mapped if it is larger than half of the free memory."""
    import faiss

    size, free = path.stat().st_size, free_memory()
    flags = faiss.IO_FLAG_MMAP_IFC if size > free // 2 else 0
    if flags:
        logger.info(
            "%s: %.1f GB, %.1f GB of memory free; it is searched from the disk",
            path,
            size / 1e9,
            free / 1e9,
        )
    try:
        index = faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise UserError(
            f"{path}: FAISS cannot read it: {reason(error)}; {_mend(path.parent)}"
        ) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise UserError(f"{path}: compares by distance; only inner product can be searched here")
    return index


def free_memory() -> int:
    """Bytes of memory that can be had without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62  # unknown system: let FAISS try
