"""Documents: what pretraining reads, one language at a time (sections 3.1 and 4).

A document is a text, or the list of its sentences ``s_1 .. s_l``. :func:`open_documents` finds the
documents of every language in files (:mod:`ccpretrieve.data.document_finding`) or on the Hugging
Face hub (:mod:`ccpretrieve.data.document_hub`). A source is read as a stream, holds one document at
a time, and goes on after any document from a small state that JSON can carry.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccpretrieve.data.languages import language
from ccpretrieve.data.lines import MalformedError
from ccpretrieve.data.tags import code_of
from ccpretrieve.errors import UserError

JSON = dict[str, Any]
HUB = "hf:"
ID_NAMES = ("id", "docid", "_id")
TEXT_NAMES = ("text", "content")


@dataclass(frozen=True, slots=True)
class Document:
    """One document of one language.

    At most one of text and sentences is filled; an empty document has neither.

    Attributes:
        id: As its source names it, or ``file:line``.
        language: Our code, such as ``ja``.
        text: Its text, paragraphs separated by newlines.
        sentences: Its sentences in order, where the source has them split.
        source: File or data set it came from.
        line: Line of that file, or row of that data set, from 1.
    """

    id: str
    language: str
    text: str = ""
    sentences: tuple[str, ...] = ()
    source: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """``file:line``, as messages name it."""
        return f"{self.source}:{self.line}"


class DocumentSource(ABC):
    """The documents of one language in a fixed order, from any point on.

    Attributes:
        language: Our code, such as ``ja``.
        weight: How much there is, about, in bytes of text; 0 if nobody knows.
    """

    language: str
    weight: int

    @abstractmethod
    def documents(
        self, state: JSON | None = None, *, shard: int = 0, shards: int = 1
    ) -> Iterator[tuple[Document, JSON]]:
        """One pass, from the start or from where another pass stood.

        Args:
            state: What came with the last document that was taken; None for a whole pass.
            shard: Which part to read, from 0.
            shards: In how many parts the documents are dealt out; together they are all documents,
                each once.

        Yields:
            A document, and the state from which a pass goes on after it.

        Raises:
            UserError: Naming file and line, if a document cannot be read; or if the state is not of
                these documents and of this part.
        """

    def content(self, state: JSON | None = None) -> str:
        """A hash, of samples, of what is read up to a state, or of all; empty if nobody can tell.

        What comes after a state may change, as a line that is mended does, and reading goes on;
        what is before it may not.
        """
        return ""


def open_documents(spec: str, languages: Sequence[str] = ()) -> dict[str, DocumentSource]:
    """Find documents; of files that are not named after their language, all lines are looked at.

    Args:
        spec: A folder or a file of ``.jsonl``, ``.json`` or ``.txt``, each also ``.gz``; or
            ``hf:<dataset>[:<config>]``.
        languages: Codes, names or tags of those wanted; all that are there if empty.

    Returns:
        Code of a language -> its documents, sorted by code.

    Raises:
        UserError: If nothing is there, a language is not in the table, or one that is wanted is not
            there.
    """
    # Here, for both import this module.
    from ccpretrieve.data.document_finding import find_files
    from ccpretrieve.data.document_hub import find_configs

    wanted = tuple(dict.fromkeys(code_of(name) or language(name).code for name in languages))
    found: Mapping[str, DocumentSource]
    if spec.startswith(HUB):
        found = find_configs(spec, wanted)
    else:
        found = find_files(Path(spec).expanduser(), wanted)
    _check(spec, wanted, found)
    return {code: found[code] for code in sorted(wanted or found)}


def _check(spec: str, wanted: Sequence[str], found: Collection[str]) -> None:
    """Fail unless every wanted language was found, and any at all."""
    absent = [code for code in wanted if code not in found]
    if not found:
        where = f" in {', '.join(wanted)}" if wanted else ""
        raise UserError(
            f'{spec}: no documents{where}; {{"id", "lang", "sentences"}} or {{"text", "lang"}} on'
            " each line of *.jsonl, or text in ja.txt (any of them .gz), are needed"
        )
    if absent:
        raise UserError(
            f"{spec}: no documents in {', '.join(absent)}; there are {', '.join(sorted(found))}"
        )


def check_shard(shard: int, shards: int) -> None:
    """Fail unless there is such a part."""
    if not 0 <= shard < shards:
        raise ValueError(f"shard {shard} is not one of {shards}")


def refuse_unless(state: JSON, what: JSON, source: str) -> None:
    """Fail unless a state says of itself all that it should.

    Raises:
        UserError: Saying what differs.
    """
    for name, value in what.items():
        if state.get(name) != value:
            raise UserError(
                f"{source}: cannot go on from where the reading stood: {name} was"
                f" {state.get(name)!r} and is {value!r}; put back what has changed, or start anew"
            )


def to_document(record: Mapping[str, Any], language: str, source: str, line: int) -> Document:
    """Make a document of a line of JSON or a row.

    Args:
        record: ``{"sentences": [...]}`` or ``{"text": ...}``, with or without an id; sentences win.
        language: Its language.
        source: File or data set.
        line: Line or row, from 1.

    Raises:
        MalformedError: If a field is missing or is not what it should be.
    """
    identifier = next((v for n in ID_NAMES if (v := record.get(n)) is not None), None)
    if identifier is None:
        identifier = f"{source}:{line}"
    if not isinstance(identifier, str | int) or isinstance(identifier, bool):
        raise MalformedError(f"id {identifier!r} is not a string; write it in quotes")
    sentences = record.get("sentences")
    if sentences is not None:
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise MalformedError('"sentences" is no list of strings; ["One.", "Two."] is needed')
        return Document(str(identifier), language, "", tuple(sentences), source, line)
    fields = [name for name in (*TEXT_NAMES, "sentences") if name in record]
    if not fields:
        raise MalformedError('no "sentences" and no "text"; one of them is needed')
    text = next((v for n in TEXT_NAMES if (v := record.get(n)) is not None), "")
    if not isinstance(text, str):
        raise MalformedError(f'"text" is of type {type(text).__name__}; a string is needed')
    return Document(str(identifier), language, text, (), source, line)
