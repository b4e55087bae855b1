"""What a question and a passage become before the model sees them (section 4.3).

One home for training, which calls it on every batch, and for search, which must do the same: the
prefix, the title as a segment of its own or joined, the trailing question mark that the released
script strips from training questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ccpretrieve.data.records import Passage
from ccpretrieve.data.tokens import Segments, Tokens, tokenize


def question_text(question: str, *, prefix: str = "", strip_question_mark: bool = False) -> str:
    """A question as it is tokenised.

    Args:
        question: As its source has it.
        prefix: Put before it.
        strip_question_mark: Leave out one ``?`` at its end, as the released script does, unless
            nothing else is there; of other scripts' marks (``？``, ``؟``) it knows nothing.

    >>> question_text("who?", prefix="query: ", strip_question_mark=True)
    'query: who'
    >>> question_text("?", strip_question_mark=True)
    '?'
    """
    stripped = question.removesuffix("?") if strip_question_mark else ""
    return prefix + (stripped if stripped.strip() else question)


def passage_text(passage: Passage, *, prefix: str = "", title: str = "pair") -> Segments:
    """A passage as it is tokenised: a text, or two segments.

    Args:
        passage: With or without a title.
        prefix: Put before all of it, that is before its title.
        title: ``pair`` two segments, ``join`` title, space, text, ``drop`` the text alone.

    >>> passage_text(Passage("7", "text", "Title"), prefix="p: ")
    ('p: Title', 'text')
    """
    if not passage.title or title == "drop":
        return prefix + passage.text
    if title == "pair":
        return prefix + passage.title, passage.text
    return f"{prefix}{passage.title} {passage.text}"


@dataclass(frozen=True)
class Inputs:
    """Tokenises questions and passages.

    Attributes:
        tokenizer: Of transformers.
        query_length: Tokens kept of a question, special ones included.
        passage_length: Tokens kept of a passage; of a pair the longer segment is cut first.
        query_prefix: Put before every question.
        passage_prefix: Put before every passage.
        title: ``pair``, ``join`` or ``drop``; see :func:`passage_text`.
        strip_question_mark: See :func:`question_text`.
    """

    tokenizer: Any
    query_length: int = 256
    passage_length: int = 256
    query_prefix: str = ""
    passage_prefix: str = ""
    title: str = "pair"
    strip_question_mark: bool = False

    def questions(self, questions: Sequence[str]) -> list[Tokens]:
        """Tokenise questions, in order."""
        texts = [
            question_text(
                question, prefix=self.query_prefix, strip_question_mark=self.strip_question_mark
            )
            for question in questions
        ]
        return list(tokenize(self.tokenizer, texts, self.query_length))

    def passages(self, passages: Sequence[Passage]) -> list[Tokens]:
        """Tokenise passages, in order."""
        texts = [
            passage_text(each, prefix=self.passage_prefix, title=self.title) for each in passages
        ]
        return list(tokenize(self.tokenizer, texts, self.passage_length))
