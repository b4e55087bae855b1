"""Embedding shards and their manifest: what a killed encoder leaves behind, and resumes from.

    shards/
      manifest.json     the recipe, and for each finished shard its counts and checksums
      00000.npy         vectors, float32, shape (n, D)
      00000.jsonl       the passages they were made from, one a line: id, title, text[, language]

Shard k holds passages k * shard_size and following, in the corpus' order, whoever encoded it. So
several machines take every n-th shard and their folders put together are the folder of one. A shard
counts once the manifest names it; it is named last, after both files are on disk.
"""

import bisect
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError
from ccpretrieve.files import PARTIAL, atomic, make_directory, read_json, write_json

FOLDER = "shards"
MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Shard:
    """One finished shard.

    Attributes:
        number: Its place, from 0; also its file name.
        count: Passages.
        tokens: Tokens encoded, without padding.
        truncated: Passages that lost their end.
        empty: Passages without title and text.
        vectors: SHA-256 of its ``.npy``.
        passages: SHA-256 of its ``.jsonl``.
    """

    number: int
    count: int
    tokens: int
    truncated: int
    empty: int
    vectors: str
    passages: str


class Store:
    """The shards of one folder, finished or growing.

    Attributes:
        path: The ``shards`` folder.
        recipe: What decides the vectors: corpus, encoder, settings. Nested plain values.
        part: ``(shard_id, shard_num)``: this folder holds every shard_num-th shard from shard_id.
        shards: Finished shards by number, ascending.
    """

    def __init__(
        self,
        path: Path,
        recipe: Mapping[str, Any],
        part: tuple[int, int],
        shards: Mapping[int, Shard],
    ) -> None:
        self.path = path
        self.recipe = recipe
        self.part = part
        self.shards = dict(sorted(shards.items()))

    @classmethod
    def begin(cls, path: Path, recipe: Mapping[str, Any], part: tuple[int, int] = (0, 1)) -> Self:
        """Start a store, or go on with the one that is there.

        Raises:
            UserError: If the one that is there was made by another recipe (each difference is
                named), or holds files that are not its own.
        """
        if not (path / MANIFEST).exists():
            make_directory(path)
            store = cls(path, recipe, part, {})
            store._refuse_foreign_files()
            store.write_manifest()
            return store
        store = cls._read(path)
        store._forget_missing()
        store._refuse_foreign_files()
        store._remove_leftovers()
        if changed := differences(store.recipe, recipe):
            raise UserError(
                f"{path.parent}: was begun differently: {'; '.join(changed)}; "
                "choose another --output or --tag, or remove that folder"
            )
        store.check_part(part)
        return store

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the manifest of a store and check that its files are there.

        Raises:
            UserError: If there is no manifest, it is not ours, or files are missing or foreign.
        """
        store = cls._read(path)
        store._refuse_foreign_files()
        return store

    @classmethod
    def _read(cls, path: Path) -> Self:
        if not (path / MANIFEST).is_file():
            raise UserError(f"{path}: no {MANIFEST}; this folder holds no embedding shards of ours")
        content = read_json(path / MANIFEST)
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise UserError(f"{path / MANIFEST}: format {content['format']} is not known here")
        try:
            shards = [Shard(**shard) for shard in content["shards"]]
            part = (int(content["part"][0]), int(content["part"][1]))
            dict(content["recipe"])  # a recipe is a mapping
            return cls(path, content["recipe"], part, {shard.number: shard for shard in shards})
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise UserError(f"{path / MANIFEST}: not a manifest of ours: {error!r}") from error

    def check_part(self, part: tuple[int, int]) -> None:
        """Fail unless this is the folder of that machine among that many.

        Raises:
            UserError: Naming both.
        """
        if self.part != part:
            raise UserError(
                f"{self.path.parent}: holds part {self.part[0]} of {self.part[1]}, not "
                f"{part[0]} of {part[1]}; choose another --output"
            )

    def _forget_missing(self) -> None:
        """Drop shards from the manifest whose files were removed, so that they are made again."""
        gone = {
            number
            for number in self.shards
            if not all((self.path / name).exists() for name in self.names(number))
        }
        if gone:
            self.shards = {n: shard for n, shard in self.shards.items() if n not in gone}
            self.write_manifest()

    def _refuse_foreign_files(self) -> None:
        names = {file.name for file in self.path.iterdir()}
        ours = {MANIFEST, *itertools.chain.from_iterable(map(self.names, self.shards))}
        if missing := sorted(ours - names - {MANIFEST}):
            raise UserError(
                f"{self.path}: shard file {missing[0]} is missing; {mend(self.path.parent)}"
            )
        # A kill between a shard's files and its line in the manifest leaves numbered files.
        unlisted = {name for name in names - ours if not self._may_be_left(name)}
        if unlisted:
            raise UserError(f"{self.path / min(unlisted)}: is no shard of this index; move it away")

    def _remove_leftovers(self) -> None:
        """Remove what a kill left between a shard's files and its line in the manifest."""
        ours = {MANIFEST, *itertools.chain.from_iterable(map(self.names, self.shards))}
        for file in self.path.iterdir():
            if file.name not in ours:
                file.unlink()

    def _may_be_left(self, name: str) -> bool:
        """Whether a file has the name of an unfinished manifest, or of a shard of this part."""
        name = name.removesuffix(PARTIAL)
        stem, _, suffix = name.partition(".")
        if not (stem.isdecimal() and suffix in ("npy", "jsonl")):
            return name == MANIFEST
        size = self.recipe.get("shard_size", 1)
        wanted = -(-self.recipe.get("corpus", {}).get("passages", 0) // size)
        return int(stem) in range(self.part[0], wanted, self.part[1])

    @staticmethod
    def names(number: int) -> tuple[str, str]:
        """File names of a shard: its vectors and its passages."""
        return f"{number:05d}.npy", f"{number:05d}.jsonl"

    def add(
        self,
        number: int,
        passages: Sequence[Passage],
        vectors: NDArray[np.float32],
        *,
        tokens: int,
        truncated: int,
    ) -> None:
        """Put one shard on disk, then name it in the manifest.

        Args:
            number: Its place among all shards of the corpus.
            passages: N passages.
            vectors: Their vectors, shape ``(N, D)``, float32, finite.
            tokens: Tokens encoded.
            truncated: Passages that lost their end.

        Raises:
            UserError: If it cannot be written; shards named before are untouched.
            ValueError: If passages and vectors do not match, or a vector is not finite.
        """
        if len(passages) != len(vectors) or vectors.ndim != 2:
            raise ValueError(f"{len(passages)} passages, vectors of shape {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise ValueError("a vector holds a NaN or infinity; FAISS would never return it")
        vectors_name, passages_name = self.names(number)
        lines = "".join(
            json.dumps(passage.to_json(), ensure_ascii=False) + "\n" for passage in passages
        ).encode("utf-8", "surrogatepass")
        self.shards[number] = Shard(
            number=number,
            count=len(passages),
            tokens=tokens,
            truncated=truncated,
            empty=sum(passage.is_empty for passage in passages),
            vectors=_save(self.path / vectors_name, vectors),
            passages=_save_bytes(self.path / passages_name, lines),
        )
        self.shards = dict(sorted(self.shards.items()))
        self.write_manifest()

    def write_manifest(self) -> None:
        """Put the manifest on disk: what it names is finished."""
        content = {
            "format": FORMAT,
            "recipe": self.recipe,
            "part": list(self.part),
            "shards": [dataclasses.asdict(shard) for shard in self.shards.values()],
        }
        write_json(self.path / MANIFEST, content)

    @property
    def count(self) -> int:
        """Passages in finished shards."""
        return sum(shard.count for shard in self.shards.values())

    def total(self, name: str) -> int:
        """Sum of a counter of :class:`Shard`, such as ``truncated``."""
        return sum(getattr(shard, name) for shard in self.shards.values())

    def check_complete(self) -> None:
        """Make sure that every passage of the corpus is here.

        Raises:
            UserError: If shards are missing, with the command that makes them.
        """
        wanted, size = self.recipe["corpus"]["passages"], self.recipe["shard_size"]
        numbers = range(self.part[0], -(-wanted // size), self.part[1])
        for number, shard in self.shards.items():
            if number not in numbers or shard.count != min(size, wanted - number * size):
                raise UserError(
                    f"{self.path.parent}: shard {number} holds {shard.count} passages and does not "
                    f"belong among {wanted}; remove that folder and encode again"
                )
        if missing := [number for number in numbers if number not in self.shards]:
            raise UserError(
                f"{self.path.parent}: shard {missing[0]} is missing"
                f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}; "
                "run the same encode command again, on every machine if there were several"
            )

    def _damaged(self, where: Path | str, what: str) -> UserError:
        return UserError(f"{where}: {what}; {mend(self.path.parent, 'that file')}")

    def vectors(self, shard: Shard) -> NDArray[np.float32]:
        """The vectors of a shard, memory-mapped, shape ``(n, D)``.

        Raises:
            UserError: If the file is not what the manifest says.
        """
        path = self.path / self.names(shard.number)[0]
        try:
            vectors: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise self._damaged(path, f"not a shard of vectors: {error}") from error
        if vectors.ndim != 2 or len(vectors) != shard.count or vectors.dtype != np.float32:
            held = f"{vectors.dtype} of shape {vectors.shape}"
            raise self._damaged(path, f"holds {held}, the manifest says {shard.count} vectors")
        return vectors

    def passages(self, shard: Shard) -> Iterator[Passage]:
        """The passages of a shard, in row order."""
        path = self.path / self.names(shard.number)[1]
        with path.open(encoding="utf-8", errors="surrogatepass", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield Passage(**json.loads(line))
                except (ValueError, TypeError) as error:
                    what = f"not a passage of ours: {error}"
                    raise self._damaged(f"{path}:{number}", what) from error

    def verify(self, shard: Shard) -> None:
        """Compare both files of a shard with their checksums.

        Raises:
            UserError: If one was changed after it was written.
        """
        for name, expected in zip(
            self.names(shard.number), (shard.vectors, shard.passages), strict=True
        ):
            with (self.path / name).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                    raise self._damaged(self.path / name, "changed since it was written")

    def lookup(self, rows: Sequence[int]) -> dict[int, Passage]:
        """The passages at rows of the whole store; each shard is read at most once."""
        shards = list(self.shards.values())
        ends = list(itertools.accumulate(shard.count for shard in shards))
        by_shard: dict[int, set[int]] = {}
        for row in rows:
            by_shard.setdefault(bisect.bisect_right(ends, row), set()).add(row)
        if rows and not 0 <= min(rows) <= max(rows) < self.count:
            raise UserError(f"{self.path}: holds {self.count} passages, not those of this index")
        found: dict[int, Passage] = {}
        for place, wanted in sorted(by_shard.items()):
            first = ends[place] - shards[place].count
            lines = itertools.islice(self.passages(shards[place]), max(wanted) - first + 1)
            here = {row: p for row, p in enumerate(lines, first) if row in wanted}
            if len(here) != len(wanted):
                file = self.path / self.names(shards[place].number)[1]
                raise self._damaged(file, "holds fewer passages than the manifest says")
            found |= here
        return found


def mend(folder: Path, damaged: str = "") -> str:
    """Say how `encode` makes anew what is damaged or missing in a folder, and keeps the rest.

    Args:
        folder: That holds ``shards``; a finished one is taken up again by its unfinished name.
        damaged: What to remove first, in words.
    """
    steps = [f"remove {damaged}"] if damaged else []
    if not folder.name.endswith(PARTIAL):
        steps.append(f"rename {folder} to {folder}{PARTIAL}")
    return " and ".join([", ".join(steps)] * bool(steps) + ["run the encode command again"])


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two recipes differ, each as ``name was old, now new``.

    Names and places of files do not matter, their fingerprints do; nor does which settings were
    asked for and which were the checkpoint's own.
    """
    changed = []
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name), new.get(name)
        if name in ("name", "asked"):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed += differences(before, after, f"{prefix}{name} ")
        elif before != after:
            changed.append(f"{prefix}{name} was {_short(before)}, now {_short(after)}")
    return changed


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text[:13] + "...'" if len(text) == 66 else text  # a SHA-256


class _Hashing:
    """A binary stream that hashes what goes through it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.digest = hashlib.sha256()

    def write(self, block: Any) -> int:
        self.digest.update(block)
        return int(self.stream.write(block))


def _save(path: Path, vectors: NDArray[np.float32]) -> str:
    with atomic(path) as stream:
        hashing = _Hashing(stream)
        array = np.ascontiguousarray(vectors, dtype=np.float32)
        header = {"descr": "<f4", "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(hashing, header)
        hashing.write(array.data.cast("B"))
    return hashing.digest.hexdigest()


def _save_bytes(path: Path, content: bytes) -> str:
    with atomic(path) as stream:
        stream.write(content)
    return hashlib.sha256(content).hexdigest()
