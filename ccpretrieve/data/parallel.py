"""Parallel text: line i of one language says what line i of another says (sections 4.2 and 5).

Two layouts of a folder are read::

    fra-eng.fra  fra-eng.eng  [fra-eng.ids.tsv]     a pair a text, as LASER spreads Tatoeba (there
                                                    with ``tatoeba.`` in front); ids.tsv says
                                                    ``document<TAB>anything`` for each line
    fr.txt  en.txt  ja.txt ...  [DOCUMENT_IDS.txt]  one file a language, all aligned, as NTREX-128;
                                                    a document a line

Files may be gzipped. Sentences are passed on as they are. A blank line would shift one side against
the other unseen, so it is an error.

A pair that a folder lacks can be joined at a pivot, usually English: two sentences are translations
if the same sentence of the pivot stands beside both, letter by letter (:func:`read_pairs`).
"""

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from ccpretrieve.data.languages import find, language
from ccpretrieve.data.lines import lines, unreadable
from ccpretrieve.errors import UserError, unknown

logger = logging.getLogger(__name__)

PAIR = re.compile(r"(?:tatoeba\.)?(?P<pair>([a-z]{2,3})-([a-z]{2,3}))\.(?P<side>\2|\3)(?:\.gz)?")
ALIGNED = re.compile(r"(?P<name>[A-Za-z_-]+)\.txt(?:\.gz)?")
DOCUMENTS = "DOCUMENT_IDS.txt"
EXPECTED = (
    "files such as fra-eng.fra with fra-eng.eng, or fr.txt with en.txt, line by line the same"
)


@dataclass(frozen=True, slots=True)
class ParallelText:
    """Sentences of two languages, one pair a line.

    Attributes:
        name: The two languages in Tatoeba's spelling, such as ``fra-eng``.
        languages: Codes of the two sides, such as ``("fr", "en")``; the pivot is the second.
        sides: Sentences of the two languages, equally many.
        documents: Number of each pair's document, from 0 in the order of the file; None if the
            folder does not say.
        pivot: The same sentences in the pivot language, of a pair without it where all three
            languages stand line by line or the pair was joined; None otherwise.
        joined: Whether the pair was joined at the pivot.
    """

    name: str
    languages: tuple[str, str]
    sides: tuple[list[str], list[str]]
    documents: tuple[int, ...] | None = None
    pivot: list[str] | None = None
    joined: bool = False

    def __len__(self) -> int:
        return len(self.sides[0])

    def part(self, documents: Collection[int]) -> "ParallelText":
        """The pairs of some documents.

        Raises:
            UserError: If documents are not known, or none of these has a pair.
        """
        if self.documents is None:
            raise UserError(f"{self.name}: nothing says which document a line is of")
        rows = [row for row, number in enumerate(self.documents) if number in documents]
        if not rows:
            last = max(self.documents) + 1
            raise UserError(
                f"{self.name}: no line is of these documents; counted from 1 there are {last}"
            )
        left, right = ([side[row] for row in rows] for side in self.sides)
        numbers = tuple(self.documents[row] for row in rows)
        pivot = None if self.pivot is None else [self.pivot[row] for row in rows]
        return replace(self, sides=(left, right), documents=numbers, pivot=pivot)


def document_range(asked: str | None) -> range | None:
    """Documents counted from 0, of words such as ``81-123`` or ``7``, counted from 1.

    Raises:
        UserError: If it is no range.
    """
    if asked is None:
        return None
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", asked)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise UserError(f"documents {asked!r}: give numbers from 1, such as 81-123 or 7")
    return range(first - 1, last)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a parallel text is, not yet read."""

    languages: tuple[str, str]
    files: tuple[Path, Path]
    documents: Path | None

    @property
    def name(self) -> str:
        return "-".join(language(code).iso3 for code in self.languages)

    def with_second(self, pivot: str) -> "_Source":
        """The same with the pivot, if it has it, as its second side."""
        if self.languages[0] != pivot:
            return self
        return _Source(self.languages[::-1], self.files[::-1], self.documents)

    def file(self, code: str) -> Path:
        """Where the sentences of one of its languages are."""
        return self.files[self.languages.index(code)]


def read_parallel(
    folder: Path, languages: Sequence[str] = (), *, pivot: str = "en"
) -> list[ParallelText]:
    """Read the parallel texts of a folder.

    Args:
        folder: In one of the two layouts above.
        languages: What is wanted beside the pivot, in any spelling; all there are if empty. The
            pivot may be among them and then says nothing.
        pivot: Language that is one side of every pair; ``""`` for the pairs of all languages, or
            of those named, among each other.

    Returns:
        In the order of ``languages``, else by name. Sides of several texts that are one file are
        one list.

    Raises:
        UserError: If there is no such folder or language, a file is missing or cannot be read, or
            the two sides differ in length.
    """
    sources = _sources(folder)
    pivot = language(pivot).code if pivot else ""
    wanted = [language(name).code for name in languages]
    if pivot:
        wanted = [code for code in dict.fromkeys(wanted) if code != pivot]
        if languages and not wanted:
            raise UserError(f"{folder}: {pivot} has no pair with itself; name other languages")
        chosen = _with_pivot(folder, sources, wanted, pivot)
    else:
        chosen = _among(folder, sources, wanted)
    _check_distinct(folder, chosen)
    read: dict[Path, list[str]] = {}
    return [_read(source, read) for source in chosen]


def held_pairs(folder: Path) -> list[tuple[str, str]]:
    """Codes of the two languages of every text in a folder, by name; nothing is read.

    Raises:
        UserError: If there is no such folder, or no parallel text in it.
    """
    return [source.languages for source in _sources(folder)]


def read_pairs(
    folder: Path, pairs: Iterable[tuple[str, str]], *, pivot: str = "en"
) -> list[ParallelText]:
    """Read the texts of pairs of languages; those that the folder lacks are joined at the pivot.

    Args:
        folder: In one of the two layouts above.
        pairs: Two languages each, in any spelling; the first is the first side.
        pivot: Where to join. Each of its sentences, the first of equal ones, makes at most one
            pair, and a joined text can be short or empty: look at its length.

    Returns:
        In the order of ``pairs``.

    Raises:
        UserError: If a pair is neither there nor to be joined, or a file cannot be read.
    """
    sources = _sources(folder)
    pivot = language(pivot).code
    read: dict[Path, list[str]] = {}
    return [
        _pair(folder, sources, (language(first).code, language(second).code), pivot, read)
        for first, second in pairs
    ]


def _pair(
    folder: Path,
    sources: Sequence[_Source],
    codes: tuple[str, str],
    pivot: str,
    read: dict[Path, list[str]],
) -> ParallelText:
    """One text, as it is in the folder, else joined."""
    with_pivot = [_source(folder, sources, {code, pivot}) for code in codes]
    source = _source(folder, sources, set(codes))
    if source is not None:
        source = source.with_second(codes[1])
        text = _read(source, read)
        beside = with_pivot[0]
        if pivot in codes or beside is None or beside.file(codes[0]) != source.files[0]:
            return text
        return replace(text, pivot=_read(beside.with_second(pivot), read).sides[1])
    for code, each in zip(codes, with_pivot, strict=True):
        if each is None or codes[0] == codes[1]:
            way = "" if pivot in codes else f", and none {code} with {pivot}, to join them there"
            raise UserError(f"{folder}: no text pairs {codes[0]} with {codes[1]}{way}")
    left, right = (_read(each.with_second(pivot), read) for each in with_pivot if each is not None)
    return join(left, right)


def _source(folder: Path, sources: Iterable[_Source], codes: set[str]) -> _Source | None:
    """The text of two languages, if there is one."""
    found = [source for source in sources if set(source.languages) == codes]
    _check_distinct(folder, found)
    return found[0] if found else None


def join(left: ParallelText, right: ParallelText) -> ParallelText:
    """Pair the first sides of two texts where their second sides are the same sentence.

    Args:
        left: Its second side is the pivot's.
        right: Likewise, with the same pivot.

    Returns:
        In the order of ``left``; may be empty. Its ``pivot`` holds the sentences it was joined at.
    """
    rows: dict[str, int] = {}
    for row, sentence in enumerate(right.sides[1]):
        rows.setdefault(sentence, row)
    found = [
        (first, right.sides[0][row], sentence)
        for first, sentence in zip(*left.sides, strict=True)
        if (row := rows.pop(sentence, -1)) >= 0
    ]
    codes = (left.languages[0], right.languages[0])
    one, two, pivot = ([each[column] for each in found] for column in range(3))
    name = "-".join(language(code).iso3 for code in codes)
    return ParallelText(name, codes, (one, two), pivot=pivot, joined=True)


def _sources(folder: Path) -> list[_Source]:
    """What a folder holds, by name.

    Raises:
        UserError: If it cannot be listed or holds none.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise UserError(f"{folder}: no such folder; it should hold {EXPECTED}") from error
        raise unreadable(folder, error) from error
    sources = _in_pairs(folder, paths) or _aligned(folder, paths)
    if not sources:
        raise UserError(f"{folder}: no parallel text; it should hold {EXPECTED}")
    return sorted(sources, key=lambda source: source.name)


def _in_pairs(folder: Path, paths: Iterable[Path]) -> list[_Source]:
    """The texts that have two files of their own."""
    pairs: dict[str, dict[str, Path]] = {}
    for path in paths:
        if match := PAIR.fullmatch(path.name):
            files = pairs.setdefault(match["pair"], {})
            if files.setdefault(match["side"], path) != path:
                raise UserError(f"{path}: {files[match['side']].name} is there too; keep one")
    sources = []
    for pair, files in pairs.items():
        names = pair.split("-")
        rows = [find(name) for name in names]
        if rows[0] is None or rows[1] is None or rows[0] == rows[1]:
            logger.warning("%s: %s is no pair of languages we know; passed over", folder, pair)
            continue
        for name in names:
            if name not in files:
                (other,) = files.values()
                raise UserError(f"{other}: there is no {pair}.{name} beside it; a pair needs both")
        ids = folder / f"{pair}.ids.tsv"
        sources.append(
            _Source(
                (rows[0].code, rows[1].code),
                (files[names[0]], files[names[1]]),
                ids if ids.is_file() else None,
            )
        )
    return sources


def _aligned(folder: Path, paths: Iterable[Path]) -> list[_Source]:
    """All pairs of the files that are named after one language each."""
    files: dict[str, Path] = {}
    for path in paths:
        match = ALIGNED.fullmatch(path.name)
        row = find(match["name"]) if match else None
        if row is not None and files.setdefault(row.code, path) != path:
            raise UserError(f"{path}: {files[row.code].name} is in {row.name} too; keep one")
    ids = folder / DOCUMENTS
    documents = ids if ids.is_file() else None
    return [
        _Source((a, b), (files[a], files[b]), documents) for a, b in combinations(sorted(files), 2)
    ]


def _with_pivot(
    folder: Path, sources: Iterable[_Source], wanted: Sequence[str], pivot: str
) -> list[_Source]:
    """The texts of the wanted languages with the pivot, the pivot second."""
    paired = [source.with_second(pivot) for source in sources if pivot in source.languages]
    there = [source.languages[0] for source in paired]
    if not paired:
        raise UserError(f"{folder}: no text is paired with {pivot}; name another pivot")
    for code in wanted:
        if code not in there:
            raise unknown(f"language beside {pivot} in {folder}", code, sorted(there))
    order = wanted or list(dict.fromkeys(there))
    return [source for code in order for source in paired if source.languages[0] == code]


def _among(folder: Path, sources: Sequence[_Source], wanted: Sequence[str]) -> list[_Source]:
    """The texts both of whose languages are wanted, or all."""
    there = {code for source in sources for code in source.languages}
    for code in wanted:
        if code not in there:
            raise unknown(f"language of {folder}", code, sorted(there))
    chosen = [source for source in sources if not wanted or set(source.languages) <= set(wanted)]
    if not chosen:
        raise UserError(f"{folder}: no two of {', '.join(wanted)} make a pair; name more")
    return chosen


def _check_distinct(folder: Path, sources: Iterable[_Source]) -> None:
    seen: dict[frozenset[str], _Source] = {}
    for source in sources:
        first = seen.setdefault(frozenset(source.languages), source)
        if first is not source:
            files = f"{first.files[0].name} and {source.files[0].name}"
            raise UserError(f"{folder}: {files} are of the same two languages; keep one")


def _read(source: _Source, read: dict[Path, list[str]]) -> ParallelText:
    """Read a text; files that were read before are taken from ``read``."""
    for path in source.files:
        if path not in read:
            read[path] = _sentences(path)
    left, right = (read[path] for path in source.files)
    _check_length(source.files[0], len(left), source.files[1], len(right))
    documents = None
    if source.documents is not None:
        documents = _numbers(source.documents)
        _check_length(source.documents, len(documents), source.files[0], len(left))
    return ParallelText(source.name, source.languages, (left, right), documents)


def _check_length(path: Path, count: int, other: Path, others: int) -> None:
    if count != others:
        raise UserError(
            f"{path}:{min(count, others) + 1}: {count} lines, but {others} in {other.name}; line by"
            " line they must belong together"
        )


def _sentences(path: Path) -> list[str]:
    """All lines of a file, none of them blank but at its end."""
    sentences: list[str] = []
    for number, line in lines(path):
        if number != len(sentences) + 1:
            blank = len(sentences) + 1
            raise UserError(f"{path}:{blank}: blank line; take the line out of every aligned file")
        sentences.append(line)
    if not sentences:
        raise UserError(f"{path}: empty file; it should hold sentences, one a line")
    return sentences


def _numbers(path: Path) -> tuple[int, ...]:
    """Documents of a file's lines, numbered in the order they come."""
    numbers: dict[str, int] = {}
    names = (line.partition("\t")[0] for line in _sentences(path))
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)
