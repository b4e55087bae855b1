"""A census of a corpus: what is in it, read once before anything is encoded.

It counts, fingerprints, finds duplicate ids and draws a sample, in memory that does not grow with
the corpus. Duplicates are found by 64-bit hashes of the ids, which are spilled to disk in
partitions and sorted one partition at a time; only where two hashes are equal is the corpus read
again, to tell duplicate ids from colliding hashes. What grows is what must: the ordinals to skip
and the ids that do occur twice.
"""

import contextlib
import hashlib
import math
import random
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.config import ON_DUPLICATE, one_of
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.records import Passage, Record
from ccpretrieve.errors import UserError
from ccpretrieve.files import writing_failed

PARTITIONS = 256
BUFFERED = 1 << 17  # hashes held before they are spilled: 1 MiB
SUSPECTS = 1000  # repeated hashes looked into when one duplicate is enough to stop


@dataclass(frozen=True, eq=False)
class Census:
    """What one reading of a corpus found.

    Attributes:
        passages: How many there are, those to skip not counted.
        characters: In their titles and texts.
        empty: How many of them have neither title nor text, white space aside.
        fingerprint: SHA-256 in hex over id, title, text and, where it has one, the language of
            every passage read, in order.
        duplicates: How many passages are to be skipped.
        skip: Their ordinals, from 0 in reading order, ascending; shape (duplicates,).
        sample: Passages drawn at random, in reading order; all of a corpus that is small.
    """

    passages: int
    characters: int
    empty: int
    fingerprint: str
    duplicates: int
    skip: NDArray[np.int64]
    sample: tuple[Passage, ...]


def take_census(
    corpus: Corpus, *, on_duplicate: str = "error", sample: int = 1000, seed: int = 0
) -> Census:
    """Read a corpus once, and once more if an id seems to occur twice.

    Args:
        corpus: What to count.
        on_duplicate: ``error``, or ``first`` to skip all but the first passage of each id.
        sample: How many passages to draw.
        seed: Of the draw.

    Raises:
        UserError: If a passage cannot be read, there is none, or with ``error`` an id occurs twice.
    """
    one_of("on-duplicate", on_duplicate, ON_DUPLICATE)
    with _temporary_folder() as folder:
        keys = _Keys(folder)
        census, drawn = _count(corpus, keys, _Draw(sample, random.Random(seed)))
        suspects = keys.repeated(SUSPECTS if on_duplicate == "error" else None)
    if suspects:
        duplicates = _duplicates(corpus, suspects)
        if on_duplicate == "error":
            _refuse(duplicates)
        else:
            census, drawn = _without(census, drawn, duplicates)
    return replace(census, sample=tuple(drawn[ordinal] for ordinal in sorted(drawn)))


def kept(corpus: Corpus, census: Census) -> Iterator[Passage]:
    """Stream the passages of a corpus in order, those of ``census.skip`` left out.

    Raises:
        UserError: At the end, if what was read is not what the census counted.
    """
    skip = iter(census.skip.tolist())
    skipped = next(skip, -1)
    digest = hashlib.sha256()
    for ordinal, record in enumerate(corpus.records()):
        digest.update(_framed(record))
        if ordinal == skipped:
            skipped = next(skip, -1)
        else:
            yield record.passage
    if digest.hexdigest() != census.fingerprint:
        raise UserError(
            f"{corpus.name}: changed while it was being read; run the command again, and remove "
            "what it has encoded if it says that the corpus is another one"
        )


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that is gone when the block ends."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="ccpretrieve-census-")
    except OSError as error:
        raise UserError(f"no temporary folder can be made ({error}); set TMPDIR") from error
    with folder as name:
        yield Path(name)


def key(identifier: str) -> int:
    """A signed 64-bit hash of an id, the same within one process."""
    return hash(identifier)


def _count(corpus: Corpus, keys: "_Keys", draw: "_Draw") -> tuple[Census, dict[int, Passage]]:
    """The first reading; returns the census as if nothing were to skip, and the sample."""
    digest = hashlib.sha256()
    characters = empty = 0
    ordinal = -1
    for ordinal, record in enumerate(corpus.records()):
        passage = record.passage
        digest.update(_framed(record))
        keys.add(key(passage.id))
        characters += len(passage.title) + len(passage.text)
        empty += passage.is_empty
        if ordinal == draw.due:
            draw.take(passage)
    if ordinal < 0:
        raise UserError(f"{corpus.name} has no passages; nothing can be encoded")
    nothing = np.empty(0, np.int64)
    census = Census(ordinal + 1, characters, empty, digest.hexdigest(), 0, nothing, ())
    return census, draw.drawn


def _framed(record: Record) -> bytes:
    """The passage as bytes; their lengths come first, so that no two passages look alike."""
    passage = record.passage
    try:
        fields = (passage.id.encode(), passage.title.encode(), passage.text.encode())
        tag = b" %b " % passage.language.encode() if passage.language else b""
    except UnicodeEncodeError as error:
        raise UserError(f"{record.where}: {error.reason}; write whole characters") from error
    return b"%d %d %d " % (len(fields[0]), len(fields[1]), len(fields[2])) + tag + b"".join(fields)


def _duplicates(corpus: Corpus, suspects: frozenset[int]) -> Iterator[tuple[int, Record, str]]:
    """Read again; yield ordinal and record of each later duplicate, and where the first one is."""
    first: dict[str, tuple[int, str]] = {}
    for ordinal, record in enumerate(corpus.records()):
        if key(record.passage.id) in suspects:
            earliest, where = first.setdefault(record.passage.id, (ordinal, record.where))
            if earliest != ordinal:
                yield ordinal, record, where


def _refuse(duplicates: Iterator[tuple[int, Record, str]]) -> None:
    """Fail if there is a duplicate; colliding hashes alone are none.

    Raises:
        UserError: Naming both places.
    """
    for _, record, where in duplicates:
        raise UserError(
            f"{record.where}: duplicate id {record.passage.id!r}, first at {where}; correct one, or"
            " keep the first of each id with --on-duplicate first"
        )


def _without(
    census: Census, drawn: dict[int, Passage], duplicates: Iterator[tuple[int, Record, str]]
) -> tuple[Census, dict[int, Passage]]:
    """The census and the sample with later duplicates taken out."""
    skip = array("q")
    characters = empty = 0
    for ordinal, record, _ in duplicates:
        skip.append(ordinal)
        characters += len(record.passage.title) + len(record.passage.text)
        empty += record.passage.is_empty
        drawn.pop(ordinal, None)
    without = replace(
        census,
        passages=census.passages - len(skip),
        characters=census.characters - characters,
        empty=census.empty - empty,
        duplicates=len(skip),
        skip=np.array(skip, np.int64),
    )
    return without, drawn


class _Keys:
    """Hashes on disk, in partitions by their low bits.

    Args:
        folder: Where to spill them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.buffer = array("q")

    def add(self, value: int) -> None:
        """Note one hash."""
        self.buffer.append(value)
        if len(self.buffer) == BUFFERED:
            self._spill()

    def _spill(self) -> None:
        """Append the buffer to the partitions."""
        values = np.array(self.buffer, np.int64)
        parts = values & (PARTITIONS - 1)
        values, parts = values[np.argsort(parts)], np.sort(parts)
        cuts = np.searchsorted(parts, np.arange(PARTITIONS + 1))
        for number in np.flatnonzero(np.diff(cuts)):
            path = self.folder / f"{number:03}"
            try:
                with path.open("ab") as stream:
                    stream.write(values[cuts[number] : cuts[number + 1]].tobytes())
            except OSError as error:
                raise writing_failed(path, error) from error
        self.buffer = array("q")

    def repeated(self, limit: int | None) -> frozenset[int]:
        """The hashes noted more than once, up to ``limit`` of them."""
        self._spill()
        found: set[int] = set()
        for path in sorted(self.folder.iterdir()):
            values = np.sort(np.fromfile(path, np.int64))
            again = np.unique(values[1:][values[1:] == values[:-1]])
            found.update(again[: None if limit is None else limit - len(found)].tolist())
        return frozenset(found)


class _Draw:
    """A uniform sample without replacement of a stream whose length nobody knows.

    Algorithm L (Li 1994): the first ``size`` items are taken; after that the next item to take is
    drawn, not looked for. ``weight`` is the largest of ``size`` uniform keys.

    Attributes:
        due: Ordinal of the next item to take.
        drawn: Ordinal -> passage.
    """

    def __init__(self, size: int, generator: random.Random) -> None:
        self.size = size
        self.generator = generator
        self.weight = 1.0
        self.due = 0 if size > 0 else -1
        self.drawn: dict[int, Passage] = {}
        self.slots: list[int] = []  # ordinals, in the order of the places they hold

    def take(self, passage: Passage) -> None:
        """Take the item that is due."""
        ordinal = self.due
        if len(self.slots) < self.size:
            self.slots.append(ordinal)
        else:
            place = self.generator.randrange(self.size)
            del self.drawn[self.slots[place]]
            self.slots[place] = ordinal
        self.drawn[ordinal] = passage
        self.due = ordinal + 1
        if len(self.slots) == self.size:
            self.weight *= math.exp(-self.generator.expovariate(1.0) / self.size)
            gap = -self.generator.expovariate(1.0) / math.log1p(-self.weight)
            self.due += math.floor(gap)
