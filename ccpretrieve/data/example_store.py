"""Examples on disk, checked and trimmed once, then read in any order.

    sources --one pass: leave out, trim--> examples.jsonl --by number--> Example

Training shuffles examples over their whole number, and Natural Questions' are gigabytes with a
hundred negatives each. So what a run uses of them is written to a file, one line an example, of
which memory holds a place and a language each.
"""

import array
import json
import logging
import mmap
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.examples import Example, ExampleSource
from ccpretrieve.data.lines import unreadable
from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, sampled_hash

logger = logging.getLogger(__name__)

Ids = NDArray[np.int64]

#: Why an example is left out.
NO_QUESTION = "no question"
NO_POSITIVE = "no positive passage"
EMPTY_POSITIVE = "only empty positive passages"
REPEATED = "the same question and first positive passage as an example before"
#: Why a passage of an example is left out.
EMPTY = "empty passage"
TWICE = "passage that the example has already"
IS_POSITIVE = "negative that is a positive of the same example"

_LANGUAGE = re.compile(rb'\{"language": ("(?:[^"\\\n]|\\.)*"), ')


def passage_key(passage: Passage) -> int:
    """A hash of title and text, 64 bits, signed: what two copies of a passage have in common.

    Ids are no part of it: corpora of several languages use the same ones for different passages.
    """
    return _key(passage.title, passage.text)


def _key(*parts: str) -> int:
    text = "\0".join(parts).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)


@dataclass
class Prepared:
    """What became of the examples of all sources.

    Attributes:
        count: Examples written.
        dropped: Why examples were left out -> how many.
        passages_dropped: Why passages of those written were left out -> how many.
        by_language: Code -> examples written; ``""`` for those whose language nothing tells.
        fewer_negatives: Examples written that have fewer negatives than were asked for.
    """

    count: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    passages_dropped: dict[str, int] = field(default_factory=dict)
    by_language: dict[str, int] = field(default_factory=dict)
    fewer_negatives: int = 0

    def to_json(self) -> dict[str, Any]:
        """All of it by name."""
        return asdict(self)


def prepare(
    sources: Sequence[ExampleSource],
    path: Path,
    *,
    positives: int | None = None,
    negatives: int = 1,
) -> Prepared:
    """Write the examples of all sources to a file for :class:`ExampleStore`.

    The first example that is left out for a reason is logged with its place, all are counted. In
    memory are 8 bytes of hash an example, and what a set of them takes.

    Args:
        sources: Read one after another.
        path: The file; whole or absent.
        positives: Kept of an example, the first ones; all if None, by which training knows that
            another example's passage answers this question too.
        negatives: Kept of an example, the first ones; those after them are not looked at.

    Raises:
        UserError: If a source cannot be read, or nothing is left of them all.
    """
    counts = _Counts()
    seen: set[int] = set()
    with atomic(path) as stream:
        for source in sources:
            for example, where in source.examples():
                trimmed = _trim(example, positives, negatives, counts, where)
                if trimmed is None:
                    continue
                first = trimmed.positives[0]
                key = _key(trimmed.question, first.title, first.text)
                if key in seen:
                    counts.drop(REPEATED, where)
                    continue
                seen.add(key)
                stream.write(_line(trimmed))
                counts.write(trimmed, negatives)
        if not counts.count:
            names = ", ".join(source.name for source in sources)
            why = "; ".join(f"{n} x {reason}" for reason, n in counts.dropped.items())
            raise UserError(f"{names}: no example is left ({why or 'there are none'})")
    return counts.prepared()


class _Counts:
    """Counts what is written and what is left out, and says the first of a kind."""

    def __init__(self) -> None:
        self.count = self.fewer = 0
        self.dropped: Counter[str] = Counter()
        self.passages: Counter[str] = Counter()
        self.languages: Counter[str] = Counter()

    def drop(self, reason: str, where: str) -> None:
        if not self.dropped[reason]:
            logger.warning("%s: %s; left out, and others like it", where, reason)
        self.dropped[reason] += 1

    def write(self, example: Example, negatives: int) -> None:
        self.count += 1
        self.languages[example.language] += 1
        self.fewer += len(example.negatives) < negatives

    def prepared(self) -> Prepared:
        return Prepared(
            self.count,
            dict(self.dropped),
            dict(self.passages),
            dict(sorted(self.languages.items())),
            self.fewer,
        )


def _trim(
    example: Example, positives: int | None, negatives: int, counts: _Counts, where: str
) -> Example | None:
    """An example with the passages that are kept; None if it is to be left out."""
    if not example.question.strip():
        counts.drop(NO_QUESTION, where)
        return None
    dropped: Counter[str] = Counter()
    answering = list(_once(example.positives, (), dropped))
    if not answering:
        counts.drop(EMPTY_POSITIVE if example.positives else NO_POSITIVE, where)
        return None
    others: list[Passage] = []
    if negatives:
        for passage in _once(example.negatives, answering, dropped):
            others.append(passage)
            if len(others) == negatives:
                break
    counts.passages.update(dropped)
    return Example(
        example.question,
        tuple(answering[:positives]),
        tuple(others),
        example.id,
        example.language,
        example.answers,
    )


def _once(
    passages: Iterable[Passage], positives: Sequence[Passage], dropped: Counter[str]
) -> Iterator[Passage]:
    """Those passages that are neither empty, nor there already, nor among the positives."""
    answer = {passage_key(each) for each in positives}
    ids = {each.id for each in positives if each.id}
    seen: set[int] = set()
    for passage in passages:
        key = passage_key(passage)
        if passage.is_empty:
            dropped[EMPTY] += 1
        elif key in answer or passage.id in ids:
            dropped[IS_POSITIVE] += 1
        elif key in seen:
            dropped[TWICE] += 1
        else:
            seen.add(key)
            yield passage


def _line(example: Example) -> bytes:
    """An example as a line of JSON, its language first, which is read without parsing the rest."""
    fields = {
        "language": example.language,
        "id": example.id,
        "question": example.question,
        "answers": example.answers,
        "positives": [(each.id, each.title, each.text) for each in example.positives],
        "negatives": [(each.id, each.title, each.text) for each in example.negatives],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


class ExampleStore:
    """The examples that :func:`prepare` wrote, by number.

    Attributes:
        path: The file.
        languages: Codes of the languages there are, sorted; ``""`` among them for unknown.
        of_language: Code -> numbers of its examples, ascending.
        content: A hash of samples of the file: a run is resumed on the same one only.
    """

    def __init__(self, path: Path, view: mmap.mmap, starts: Ids, codes: Sequence[str]) -> None:
        self.path = path
        self._view = view
        self._starts = starts  # of each line, and the end of the last
        of_language: dict[str, array.array[int]] = {}
        for number, code in enumerate(codes):
            of_language.setdefault(code, array.array("q")).append(number)
        self.languages = tuple(sorted(of_language))
        self.of_language: dict[str, Ids] = {
            code: np.array(of_language[code], dtype=np.int64) for code in self.languages
        }
        self.content = sampled_hash(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file that :func:`prepare` wrote.

        Raises:
            UserError: If it cannot be read or is not one.
        """
        try:
            with path.open("rb") as file:
                view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise unreadable(path, error) from error
        except ValueError as error:  # of an empty file
            raise _foreign(path, 1) from error
        starts, codes = array.array("q", [0]), []
        names: dict[bytes, str] = {}
        while starts[-1] < len(view):
            match = _LANGUAGE.match(view, starts[-1])
            end = view.find(b"\n", starts[-1])
            if match is None or end < 0:
                raise _foreign(path, len(starts))
            codes.append(names.setdefault(match[1], json.loads(match[1])))
            starts.append(end + 1)
        return cls(path, view, np.array(starts, dtype=np.int64), codes)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> Example:
        """An example by its number, from 0.

        Raises:
            IndexError: If there is none.
            UserError: Naming file and line, if the line is not what :func:`prepare` wrote.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"example {number} of {len(self)}")
        line = self._view[self._starts[number] : self._starts[number + 1]]
        try:
            fields = json.loads(line)
            return Example(
                fields["question"],
                tuple(Passage(name, text, title) for name, title, text in fields["positives"]),
                tuple(Passage(name, text, title) for name, title, text in fields["negatives"]),
                fields["id"],
                fields["language"],
                tuple(fields["answers"]),
            )
        except (ValueError, LookupError, TypeError) as error:
            raise _foreign(self.path, number + 1) from error


def _foreign(path: Path, line: int) -> UserError:
    return UserError(
        f"{path}:{line}: not an example as training writes them; remove the file, and it is made "
        "anew from --train"
    )
