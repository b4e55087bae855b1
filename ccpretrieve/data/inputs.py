"""What a question and a passage become before the model sees them (section 4.3).

One home for training, which calls it on every batch, and for search, which must do the same: the
prefix, the title as a segment of its own or joined, the trailing question mark that the released
script strips from training questions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Passage

#: Texts tokenised by one call; bounds the tokenizer's own bookkeeping, which dwarfs the ids.
_CHUNK = 512


class Text(NamedTuple):
    """One text as the model sees it.

    Attributes:
        ids: Token ids, special ones included, shape ``(T,)``.
        types: Segment ids where the tokenizer has them and there are two segments, else None.
        truncated: Whether the text was longer than allowed.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.int8] | None = None
    truncated: bool = False


def question_text(question: str, *, prefix: str = "", strip_question_mark: bool = False) -> str:
    """A question as it is tokenised.

    Args:
        question: As its source has it.
        prefix: Put before it.
        strip_question_mark: Leave out one ``?`` at its end, as the released script does; of other
            scripts' marks (``？``, ``؟``) it knows nothing.

    >>> question_text("who?", prefix="query: ", strip_question_mark=True)
    'query: who'
    """
    return prefix + (question.removesuffix("?") if strip_question_mark else question)


def passage_text(
    passage: Passage, *, prefix: str = "", title: str = "pair"
) -> str | tuple[str, str]:
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

    def questions(self, questions: Sequence[str]) -> list[Text]:
        """Tokenise questions, in order."""
        texts = [
            question_text(
                question, prefix=self.query_prefix, strip_question_mark=self.strip_question_mark
            )
            for question in questions
        ]
        return self._tokenize(texts, self.query_length)

    def passages(self, passages: Sequence[Passage]) -> list[Text]:
        """Tokenise passages, in order."""
        texts = [
            passage_text(each, prefix=self.passage_prefix, title=self.title) for each in passages
        ]
        return self._tokenize(texts, self.passage_length)

    def _tokenize(self, texts: Sequence[str | tuple[str, str]], length: int) -> list[Text]:
        """Single texts and pairs alike, in order; a tokenizer takes only one kind at a time."""
        alone = self._of_a_kind([text for text in texts if isinstance(text, str)], length)
        pairs = self._of_a_kind([text for text in texts if not isinstance(text, str)], length)
        return [next(alone if isinstance(text, str) else pairs) for text in texts]

    def _of_a_kind(self, texts: Sequence[str | tuple[str, str]], length: int) -> Iterator[Text]:
        for start in range(0, len(texts), _CHUNK):
            chunk = list(texts[start : start + _CHUNK])
            batch = self.tokenizer(
                chunk,
                truncation=True,
                max_length=length,
                padding=False,
                return_attention_mask=False,
                verbose=False,
            )
            segments = batch.get("token_type_ids") or [None] * len(chunk)
            encodings = batch.encodings or [None] * len(chunk)
            for ids, types, encoding in zip(batch["input_ids"], segments, encodings, strict=True):
                yield Text(
                    np.array(ids, dtype=np.int32),
                    np.array(types, dtype=np.int8) if types and any(types) else None,
                    _was_cut(encoding, ids, length),
                )


def _was_cut(encoding: Any, ids: Sequence[int], length: int) -> bool:
    """Whether a text lost its end; of a slow tokenizer, whether it is as long as may be."""
    return bool(encoding.overflowing) if encoding is not None else len(ids) >= length
