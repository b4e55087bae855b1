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
    """

    id: str
    text: str
    title: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but white space to encode."""
        return not (self.text.strip() or self.title.strip())


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
    """

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A topic whose answers are known as strings, as XOR-Retrieve scores them.

    Attributes:
        topic: The question.
        answers: Any of them counts.
        language: Code of the question's language, ``""`` if the file does not say.
    """

    topic: Topic
    answers: tuple[str, ...]
    language: str = ""


#: Relevance judgements: topic id -> passage id -> grade; a grade of 0 or less is not relevant.
Qrels = Mapping[str, Mapping[str, int]]
