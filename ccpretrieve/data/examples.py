"""Examples: a question with passages that answer it and passages that do not (section 4.3).

What fine-tuning learns from, as DPR, Mr.TyDi and Tevatron spread it, or made of topics, judgements
and passages. A source is read as a stream, one example at a time, whatever its size; its records
are in either spelling::

    {"question", "answers", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"}      DPR
    {"query_id", "query", "answers", "positive_passages", "negative_passages"}           Tevatron

each passage ``{"title", "text"}`` with an id under any usual name. Of DPR's two kinds of negatives
the hard ones are taken, and the others only where an example has no hard ones, as DPR's trainer
does.
"""

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ccpretrieve.data.languages import guess
from ccpretrieve.data.lines import BOM, GZIP_MAGIC, MalformedError, parsed, unreadable
from ccpretrieve.data.readers import ANSWER_NAMES, JSON_SUFFIXES, parse_object, suffix
from ccpretrieve.data.records import Passage
from ccpretrieve.data.registry import lookup, open_corpus, table, training_file
from ccpretrieve.data.tags import code_of
from ccpretrieve.errors import UserError

HUB = "hf:"
IDS = ("id", "query_id", "qid", "q_id", "question_id")
QUESTIONS = ("question", "query")
POSITIVES = ("positive_ctxs", "positive_passages")
NEGATIVES = ("hard_negative_ctxs", "negative_ctxs", "negative_passages")  # the first that has any
PASSAGE_IDS = ("passage_id", "psg_id", "docid", "id", "_id")
LANGUAGES = ("lang", "language")
_HEAD = 4096  # bytes in which a file shows whether it is one array or lines


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its passages.

    Attributes:
        question: As its source has it; may be blank.
        positives: Passages that answer it; those that its source puts first come first.
        negatives: Passages that do not, the same.
        id: As its source names it, or where it stands.
        language: Code of the question's language, ``""`` if nothing tells.
        answers: Strings that answer it, where known.
    """

    question: str
    positives: tuple[Passage, ...]
    negatives: tuple[Passage, ...]
    id: str = ""
    language: str = ""
    answers: tuple[str, ...] = ()


class ExampleSource(ABC):
    """Examples in a fixed order.

    Attributes:
        name: As the user named it.
    """

    name: str

    @abstractmethod
    def examples(self) -> Iterator[tuple[Example, str]]:
        """Stream the examples without holding them.

        Yields:
            An example, and where it stands: ``file:line``, or ``file, record 7`` of an array.

        Raises:
            UserError: Saying where, if a record cannot be read or is not an example.
        """


def open_examples(name: str, split: str = "train", data_dir: Path | None = None) -> ExampleSource:
    """Find examples by name or place.

    Args:
        name: A file of JSON lines or of one JSON array (``.jsonl``, ``.json``, either also
            ``.gz``); ``hf:<dataset>[:<config>]`` with Tevatron's columns; a corpus that has
            training data (``nq``); or any corpus or folder that has topics, judgements and
            passages.
        split: Of a data set or corpus; a file has none.
        data_dir: Folder of all corpora.

    Raises:
        UserError: If there is nothing of that name, or no such split of it.
    """
    if name.startswith(HUB):
        from ccpretrieve.data.example_corpora import HubExamples

        return HubExamples(name, split)
    if name in table() and lookup(name).training:
        path, language = training_file(name, split, data_dir), lookup(name).topic_language
        return FileExamples(path, name=name, language=language)
    path = Path(name).expanduser()
    if name not in table() and path.is_file() and suffix(path) in JSON_SUFFIXES:
        return FileExamples(path)
    from ccpretrieve.data.example_corpora import CorpusExamples

    return CorpusExamples(open_corpus(name, data_dir), split)


class FileExamples(ExampleSource):
    """Examples of a file: JSON lines, or one JSON array; what it begins with tells.

    Args:
        path: UTF-8; gzipped if it is named ``.gz`` or begins as gzip does.
        name: Default: the path.
        language: Code for records that do not state theirs. Default: what the file's name ends in,
            if that is a language.
    """

    def __init__(self, path: Path, name: str | None = None, language: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        stem = Path(path.name.removesuffix(".gz")).stem
        self.language = guess(stem) if language is None else language

    def examples(self) -> Iterator[tuple[Example, str]]:
        """Stream the examples; see :meth:`ExampleSource.examples`."""
        with _opened(self.path) as stream:
            is_array = stream.read(_HEAD).lstrip().startswith(b"[")
        return self._array() if is_array else self._lines()

    def _lines(self) -> Iterator[tuple[Example, str]]:
        def parse(line: str) -> Example:
            return to_example(parse_object(line), self.language)

        for number, example in parsed(self.path, parse, "questions with passages"):
            where = f"{self.path}:{number}"
            yield named(example, where), where

    def _array(self) -> Iterator[tuple[Example, str]]:
        number = 0
        for number, record in enumerate(_array_items(self.path), 1):
            where = f"{self.path}, record {number}"
            try:
                yield named(to_example(record, self.language), where), where
            except MalformedError as error:
                raise UserError(f"{where}: {error}") from error
        if not number:
            raise UserError(f"{self.path}: empty array; it should hold questions with passages")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked, after a byte order mark.

    Raises:
        UserError: If the file is missing, a folder, forbidden, or damaged gzip.
    """
    try:
        with path.open("rb") as file:
            packed = path.suffix == ".gz" or file.peek(2)[:2] == GZIP_MAGIC
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=file) if packed else file)
            mark = BOM.encode()
            if stream.read(len(mark)) != mark:
                stream.seek(0)
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        wrong = f"damaged or truncated gzip ({error})"
        raise UserError(f"{path}: {wrong}; fetch or write the file again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _array_items(path: Path) -> Iterator[Any]:
    r"""Stream the items of a file that is one JSON array.

    ijson parses; half a character in a ``\ud...`` escape becomes ``?``, as its parser has it.

    Raises:
        UserError: Naming file and record, if it is not JSON there.
    """
    import ijson

    count = 0
    with _opened(path) as stream:
        try:
            for item in ijson.items(stream, "item", use_float=True):
                count += 1
                yield item
        except ijson.JSONError as error:
            raise UserError(
                f"{path}, record {count + 1}: not JSON ({_reason(error)}); the file must be one "
                "array of objects, or one object a line"
            ) from error


def _reason(error: Exception) -> str:
    """What a parser says, without its picture of the place."""
    said = error.args[0] if error.args else ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return text.partition("\n")[0].strip().rstrip(".") or type(error).__name__


# -- records --


def to_example(record: object, language: str = "") -> Example:
    """Make an example of a record in DPR's or Tevatron's spelling.

    Args:
        record: See the head of this module. A ``lang`` or ``language`` may tag it.
        language: Code of its language if it states none.

    Raises:
        MalformedError: If a field is missing or is not what it should be.
    """
    if not isinstance(record, Mapping):
        kind = type(record).__name__
        raise MalformedError(f'JSON of type {kind}; an object {{"question", ...}} is needed')
    name, found = _field(record, POSITIVES)
    if found is None:
        raise MalformedError(
            f'no "{POSITIVES[0]}" (DPR) and no "{POSITIVES[1]}" (Tevatron); write [] if no passage '
            "answers the question"
        )
    positives = _passages(name, found)
    negatives: tuple[Passage, ...] = ()
    for name in NEGATIVES:
        negatives = negatives or _passages(name, record.get(name))
    return Example(
        _string("question", _field(record, QUESTIONS)[1]),
        positives,
        negatives,
        _identifier(_field(record, IDS)[1]),
        _tag(_field(record, LANGUAGES)[1]) or language,
        _answers(_field(record, ANSWER_NAMES)[1]),
    )


def named(example: Example, where: str) -> Example:
    """An example with an id: its own, or where it stands."""
    if example.id:
        return example
    parts = example.question, example.positives, example.negatives
    return Example(*parts, where, example.language, example.answers)


def _field(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    """The first of several fields that is there, with its name."""
    for name in names:
        if (value := record.get(name)) is not None:
            return name, value
    return names[0], None


def _passages(name: str, value: object) -> tuple[Passage, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MalformedError(f'"{name}" is of type {type(value).__name__}; a list is needed')
    return tuple([_passage(name, number, each) for number, each in enumerate(value)])


def _passage(name: str, number: int, value: object) -> Passage:
    place = f"{name}[{number}]"
    if not isinstance(value, Mapping):
        kind = type(value).__name__
        raise MalformedError(f'{place} is of type {kind}; {{"title", "text"}} is needed')
    title = value.get("title")
    return Passage(
        _identifier(_field(value, PASSAGE_IDS)[1]),
        _string(f"{place}.text", value.get("text")),
        "" if title is None else _string(f"{place}.title", title),
    )


def _string(name: str, value: object) -> str:
    """A field that must be a string; CRLF read as LF, as in the readers of passages."""
    if not isinstance(value, str):
        there = "no" if value is None else f"of type {type(value).__name__}, no"
        raise MalformedError(f'"{name}" is {there} string; write one, "" if it is empty')
    return value.replace("\r\n", "\n") if "\r" in value else value


def _identifier(value: object) -> str:
    if not isinstance(value, str | int | None) or isinstance(value, bool):
        raise MalformedError(f"id {value!r} is not a string; write it in quotes")
    return "" if value is None else str(value)


def _tag(value: object) -> str:
    """The code of a language that a record states, or its own word for it."""
    if not isinstance(value, str | None):
        raise MalformedError(f'"lang" {value!r} is not a string; a code such as "ja" is needed')
    return code_of(value) or value if value else ""


def _answers(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(answer, str) for answer in value):
        raise MalformedError('"answers" is no list of strings; ["one", "another"] is needed')
    return tuple(value)
