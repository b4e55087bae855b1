"""A corpus: passages in a fixed order, with their topics and judgements.

What every source (a folder in Mr.TyDi's layout, ir_datasets, a hub data set) looks like to the
rest of the project. :func:`ccpretrieve.data.registry.open_corpus` turns a name into one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from ccpretrieve.data.records import Qrels, Question, Record, Topic
from ccpretrieve.errors import UserError


class Corpus(ABC):
    """Passages in a fixed order, with their topics and judgements.

    Attributes:
        name: Short name that goes into file names, such as ``mrtydi-ja``.
        language: Two-letter code of its passages, ``""`` if unknown or mixed.
        topic_language: Two-letter code of its questions, ``""`` if unknown or mixed.
    """

    name: str
    language: str
    topic_language: str

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Stream the passages, always in the same order, without holding them.

        Raises:
            UserError: Naming file and line, if a passage cannot be read.
        """

    @abstractmethod
    def topics(self, split: str) -> list[Topic]:
        """The questions of a split.

        Raises:
            UserError: If the corpus has no such split; those it has are named.
        """

    @abstractmethod
    def qrels(self, split: str) -> Qrels:
        """The judgements of a split.

        Raises:
            UserError: If the corpus has no such split; those it has are named.
        """

    def answers(self, split: str) -> list[Question]:
        """The questions of a split with their answers, where a corpus has any.

        Raises:
            UserError: If the corpus has none.
        """
        raise UserError(f"{self.name} has no answers, only passages, topics and judgements")
