r"""Documents in files: JSON lines with or without a language on each, and plain text.

JSON lines (``.jsonl``, ``.json``) hold one document each; a line's ``"lang"`` says its language,
else the name of the file does. Plain text (``.txt``) has one paragraph a line and a blank line
between documents; its name says the language. Any of them may be gzipped.

A file of several languages is read once by each of them. Lines of the others are told apart
without parsing (:func:`ccpretrieve.data.rawlines.tag_of`), so what is broken in a line is found
by the reader of its own language.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ccpretrieve.data.documents import (
    JSON,
    Document,
    DocumentSource,
    check_shard,
    refuse_unless,
    to_document,
)
from ccpretrieve.data.lines import MalformedError, unreadable
from ccpretrieve.data.rawlines import decoded, is_blank, raw_lines, tag_of
from ccpretrieve.data.readers import JSON_SUFFIXES, parse_object, suffix
from ccpretrieve.data.tags import code_of
from ccpretrieve.errors import UserError
from ccpretrieve.files import sampled_hash

logger = logging.getLogger(__name__)

LONGEST = 1 << 20  # bytes of plain text that make a document, if no blank line comes before
PACKED = 4  # a byte of gzipped text is about this many unpacked


@dataclass(frozen=True)
class TextFile:
    """A file of documents.

    Attributes:
        path: Where it is.
        name: Its path below the folder that was named.
        size: Bytes on disk.
        language: Code of lines that do not say theirs; ``""`` if nothing tells.
        believed: Whether it is taken to hold that language only, as name and first lines say.
    """

    path: Path
    name: str
    size: int
    language: str
    believed: bool = False

    @property
    def is_json(self) -> bool:
        """Whether each line is a document in JSON."""
        return suffix(self.path) in JSON_SUFFIXES

    @property
    def weight(self) -> int:
        """Bytes of text in it, about."""
        return self.size * (PACKED if self.path.suffix == ".gz" else 1)


@dataclass(frozen=True)
class Unit:
    """A document that is not parsed yet.

    Attributes:
        line: Its first line, from 1.
        raw: Its lines.
        end: Bytes of the file, unpacked, up to where the next document may begin.
        last: Lines up to there.
    """

    line: int
    raw: list[bytes]
    end: int
    last: int


class FileDocuments(DocumentSource):
    """The documents of one language in files.

    Args:
        language: Code of the language.
        files: Where its documents are, in reading order.
        weight: Bytes of text, about.
    """

    def __init__(self, language: str, files: Sequence[TextFile], weight: int) -> None:
        self.language = language
        self.files = tuple(files)
        self.weight = weight
        self._hashes: dict[str, str] = {}

    def documents(
        self, state: JSON | None = None, *, shard: int = 0, shards: int = 1
    ) -> Iterator[tuple[Document, JSON]]:
        """Every ``shards``-th document; see :meth:`DocumentSource.documents`.

        The state names a place in the unpacked bytes of a file; what is before it in a gzipped
        file is unpacked again.
        """
        check_shard(shard, shards)
        same = {"shard": shard, "shards": shards}
        first = count = offset = line = 0
        if state is not None:
            first, count = state["number"], state["documents"]
            offset, line = state["offset"], state["line"]
            name = self.files[first].name if first < len(self.files) else None
            refuse_unless(state, {**same, "file": name}, f"{self.language} documents")
        for number, file in enumerate(self.files[first:], first):
            for unit in _units(file, self.language, offset, line):
                count += 1
                if (count - 1) % shards == shard:
                    place = {"number": number, "offset": unit.end, "line": unit.last}
                    document = _parse(file, unit, self.language)
                    yield document, {**same, "file": file.name, **place, "documents": count}
            offset = line = 0

    def content(self, state: JSON | None = None) -> str:
        """See :meth:`DocumentSource.content`; a gzipped file that is being read counts whole."""
        read = self.files if state is None else self.files[: state["number"]]
        hashes = [(file.name, self._hash(file)) for file in read]
        if state is not None:
            for file in self.files[state["number"] :][:1]:
                packed = file.path.suffix == ".gz"
                end = None if packed else state["offset"]
                hashes.append((file.name, _sampled(file.path, end)))
        return blake2b(repr(hashes).encode(), digest_size=16).hexdigest()

    def _hash(self, file: TextFile) -> str:
        if file.name not in self._hashes:
            self._hashes[file.name] = _sampled(file.path)
        return self._hashes[file.name]


def _sampled(path: Path, end: int | None = None) -> str:
    try:
        return sampled_hash(path, end)
    except OSError as error:
        raise unreadable(path, error) from error


def _units(file: TextFile, language: str, offset: int, line: int) -> Iterator[Unit]:
    """The documents of one language in a file, unparsed, from a place on."""
    if not file.is_json:
        yield from _texts(file, offset, line)
        return
    warned = False
    for number, end, raw in raw_lines(file.path, offset, line):
        if is_blank(raw):
            continue
        tag = tag_at(file, number, raw)
        if (code_of(tag) if tag else file.language) == language:
            yield Unit(number, [raw], end, number)
        elif file.believed and not warned:
            warned = True
            wrong = f"language {tag!r} in a file named after {file.language}"
            way = "such lines are passed over; name the file otherwise and they are looked for"
            logger.warning("%s:%d: %s; %s", file.path, number, wrong, way)


def _texts(file: TextFile, offset: int, line: int) -> Iterator[Unit]:
    """The texts of a plain file, each up to a blank line or to :data:`LONGEST`."""
    raw: list[bytes] = []
    size = first = 0
    for number, end, paragraph in raw_lines(file.path, offset, line):
        blank = is_blank(paragraph)
        if not blank:
            first = first if raw else number
            raw.append(paragraph)
            size += len(paragraph)
        if raw and (blank or size >= LONGEST):
            yield Unit(first, raw, end, number)
            raw, size = [], 0
        offset, line = end, number
    if raw:
        yield Unit(first, raw, offset, line)


def _parse(file: TextFile, unit: Unit, language: str) -> Document:
    """The document itself."""
    source, first = str(file.path), unit.line
    lines = [decoded(file.path, number, raw) for number, raw in enumerate(unit.raw, first)]
    if not file.is_json:
        return Document(f"{file.name}:{first}", language, "\n".join(lines), (), source, first)
    try:
        return to_document(parse_object(lines[0]), language, source, first)
    except MalformedError as error:
        raise UserError(f"{source}:{first}: {error}") from error


def tag_at(file: TextFile, number: int, raw: bytes) -> str:
    """What a line of JSON says of its language; parsed only if that is in doubt.

    Returns:
        The tag as it is written, ``""`` if there is none but the file's language is known.

    Raises:
        UserError: Naming file and line, if it cannot be parsed, or nothing tells its language.
    """
    tag = tag_of(raw)
    if tag:
        return tag
    try:
        value = parse_object(decoded(file.path, number, raw)).get("lang")
        if not isinstance(value, str | None):
            raise MalformedError(f'"lang" {value!r} is not a string; a code such as "ja" is needed')
        if not value and not file.language:
            raise MalformedError('no "lang"; add it, or name the file ja.jsonl if it is Japanese')
    except MalformedError as error:
        raise UserError(f"{file.path}:{number}: {error}") from error
    return value or ""
