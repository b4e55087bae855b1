"""What is read: passages, topics, judgements."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrievable text.

    Attributes:
        id: Unique in its corpus, without white space (a TREC run could not carry it).
        text: The passage; may be empty.
        title: Of the article it comes from; empty where there is none.
        language: As its record tags it, for a calibration; empty where that of the corpus holds.
    """

    id: str
    text: str
    title: str = ""
    language: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but white space to encode."""
        return not (self.text.strip() or self.title.strip())

    def to_json(self) -> dict[str, str]:
        """Its fields by name; the language only where it has one of its own."""
        plain = {"id": self.id, "title": self.title, "text": self.text}
        return plain | {"language": self.language} if self.language else plain


class Record(NamedTuple):
    """A passage and where it was read.

    Attributes:
        passage: The passage.
        source: File (or data set) it came from.
        line: Line of that file, from 1.
    """

    passage: Passage
    source: str
    line: int

    @property
    def where(self) -> str:
        """``file:line``, as error messages name it."""
        return f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Topic:
    """One question.

    Attributes:
        id: Unique in its set of topics, without white space.
        text: The question.
        language: As its record tags it, for a calibration; empty where that of the topics holds.
    """

    id: str
    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A topic whose answers are known as strings, as XOR-Retrieve scores them.

    Attributes:
        topic: The question.
        answers: Any of them counts.
    """

    topic: Topic
    answers: tuple[str, ...]


#: Relevance judgements: topic id -> passage id -> grade; a grade of 0 or less is not relevant.
Qrels = Mapping[str, Mapping[str, int]]
