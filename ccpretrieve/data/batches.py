"""One-language batches for CCP and for masked language modelling (sections 3.1 and 4).

A batch is N windows of one language: N centres and their contexts, centres first. Its task is
drawn: masked language modelling with probability ``mlm_share``, else CCP. For the former the same
sentences are masked: of the tokens that are picked (15 %) 80 % become the mask, 10 % any other
token, and 10 % stay (Devlin et al. 2019, section 3.1).
"""

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.mixture import Content, LanguageDraw, State, WindowStream
from ccpretrieve.data.windows import Window, sentence_keys

CCP, MLM = "ccp", "mlm"
#: Of the tokens picked: how many become the mask, and how many another token.
MASKED, REPLACED = 0.8, 0.1
#: A "word" of more pieces is masked piece by piece: scripts without spaces make one of a sentence.
LONGEST_WORD = 6

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """Sentences of one language, R rows: the N centres, then the contexts.

    Attributes:
        task: ``ccp`` or ``mlm``.
        language: Of all rows.
        ids: Token ids, padded, shape ``(R, T)``.
        attention: 1 for tokens, 0 for padding, shape ``(R, T)``.
        labels: For ``mlm`` the token to find, -100 elsewhere, shape ``(R, T)``; else None.
        windows: Number of each row's window, shape ``(R,)``.
        keys: A hash of each row's sentence, shape ``(R,)``.
        centers: N.
        documents: Id of each window's document, for messages.
    """

    task: str
    language: str
    ids: Ids
    attention: Ids
    labels: Ids | None
    windows: Ids
    keys: Ids
    centers: int
    documents: tuple[str, ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, without padding."""
        lengths: list[int] = self.attention.sum(axis=1).tolist()
        return lengths

    @property
    def tokens(self) -> int:
        """Without padding."""
        return int(self.attention.sum())


@dataclass(frozen=True)
class Masking:
    """Masked language modelling.

    Attributes:
        share: Of the batches that are masked, 0 to 1.
        probability: Of each token, or word, to be picked.
        whole_words: Pick words rather than pieces.
    """

    share: float = 0.5
    probability: float = 0.15
    whole_words: bool = False


class Batcher:
    """Draws batches without end.

    Args:
        streams: Language -> its windows.
        draw: Decides the language.
        tokenizer: Of transformers; a fast one for whole words.
        windows: N.
        length: Tokens kept of a sentence, special ones included.
        prefix: Put before every sentence.
        masking: Of the share that is masked language modelling.
        seed: Of the task's and the masks' draws.
        shard: Number of this process: masks differ, tasks do not.
    """

    def __init__(
        self,
        streams: Mapping[str, WindowStream],
        draw: LanguageDraw,
        tokenizer: Any,
        *,
        windows: int,
        length: int,
        prefix: str,
        masking: Masking,
        seed: int,
        shard: int = 0,
    ) -> None:
        self.streams = streams
        self.draw = draw
        self.tokenizer = tokenizer
        self.windows = windows
        self.length = length
        self.prefix = prefix
        self.masking = masking
        self.truncated = 0
        self._tasks = np.random.default_rng([seed, 0x7A5C])
        self._masks = np.random.default_rng([seed, 0x3A5C, shard])
        self._ahead: deque[Batch] = deque()
        self._before: State | None = None  # the state before what was drawn ahead

    def draw_ahead(self, count: int) -> None:
        """Draw what :meth:`next` gives the next so many times.

        Until all of it is taken, or if it cannot be drawn, the state is the one before it, so that
        batches that nothing was learned from come again.

        Raises:
            UserError: If a document cannot be read, or a language has no window.
        """
        self._before = self._state()
        self._ahead.extend([self._next() for _ in range(count)])

    def next(self) -> Batch:
        """The next batch.

        Raises:
            UserError: If a document cannot be read, or a language has no window.
        """
        if not self._ahead:
            return self._next()
        batch = self._ahead.popleft()
        if not self._ahead:
            self._before = None
        return batch

    def _next(self) -> Batch:
        language = self.draw()
        task = MLM if self._tasks.random() < self.masking.share else CCP
        return self.collate(language, task, self.streams[language].take(self.windows))

    def collate(self, language: str, task: str, windows: Sequence[Window]) -> Batch:
        """Make a batch.

        Args:
            language: Of the windows.
            task: ``ccp`` or ``mlm``.
            windows: N of them.
        """
        sentences = [window.center for window in windows]
        numbers = list(range(len(windows)))
        for number, window in enumerate(windows):
            sentences += window.contexts
            numbers += [number] * len(window.contexts)
        encoded = self.tokenizer(
            [self.prefix + sentence for sentence in sentences],
            truncation=True,
            max_length=self.length,
            padding=True,
            return_tensors="np",
            return_special_tokens_mask=task == MLM,
            verbose=False,
        )
        ids = encoded["input_ids"].astype(np.int64)
        attention = encoded["attention_mask"].astype(np.int64)
        self.truncated += _truncated(encoded, attention, self.length)
        labels = None
        if task == MLM:
            special = encoded["special_tokens_mask"].astype(bool) | (attention == 0)
            words = self._words(encoded, ids.shape) if self.masking.whole_words else None
            ids, labels = mask_tokens(
                ids,
                special,
                words,
                probability=self.masking.probability,
                mask_id=self.tokenizer.mask_token_id,
                ordinary=self._ordinary,
                generator=self._masks,
            )
        return Batch(
            task,
            language,
            ids,
            attention,
            labels,
            np.asarray(numbers, dtype=np.int64),
            sentence_keys(sentences),
            len(windows),
            tuple(window.document for window in windows),
        )

    def _words(self, encoded: Any, shape: tuple[int, ...]) -> Ids:
        """Number of each token's word, -1 for none."""
        numbers = [encoded.word_ids(row) for row in range(shape[0])]
        return np.array(
            [[-1 if number is None else number for number in row] for row in numbers], np.int64
        )

    @functools.cached_property
    def _ordinary(self) -> Ids:
        """Ids of all tokens that are not special."""
        special = set(self.tokenizer.all_special_ids)
        size = len(self.tokenizer)
        return np.array([token for token in range(size) if token not in special], dtype=np.int64)

    def content(self) -> dict[str, Content]:
        """Language -> hashes of its documents at the state; see :meth:`WindowStream.content`."""
        states = self.state_dict()["streams"]
        return {name: stream.content(states[name]) for name, stream in self.streams.items()}

    def check(self, content: Mapping[str, Content]) -> None:
        """Fail if documents that were read have changed; see :meth:`WindowStream.check`."""
        for name, stream in self.streams.items():
            stream.check(content[name])

    def state_dict(self) -> State:
        """All that decides what comes next, as JSON."""
        return self._state() if self._before is None else self._before

    def _state(self) -> State:
        return {
            "streams": {name: stream.state_dict() for name, stream in self.streams.items()},
            "draw": self.draw.generator.bit_generator.state,
            "tasks": self._tasks.bit_generator.state,
            "masks": self._masks.bit_generator.state,
            "truncated": self.truncated,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from where :meth:`state_dict` was taken."""
        self._ahead.clear()
        self._before = None
        for name, stream in self.streams.items():
            stream.load_state_dict(state["streams"][name])
        self.draw.generator.bit_generator.state = state["draw"]
        self._tasks.bit_generator.state = state["tasks"]
        self._masks.bit_generator.state = state["masks"]
        self.truncated = state["truncated"]


def _truncated(encoded: Any, attention: Ids, length: int) -> int:
    """Rows that lost their end; of a slow tokenizer, those that are as long as may be."""
    if encoded.encodings is None:
        return int((attention.sum(axis=1) >= length).sum())
    return sum(bool(each.overflowing) for each in encoded.encodings)


def mask_tokens(
    ids: Ids,
    special: Flags,
    words: Ids | None,
    *,
    probability: float,
    mask_id: int,
    ordinary: Ids,
    generator: np.random.Generator,
) -> tuple[Ids, Ids]:
    """Mask tokens at random; at least one, if any may be.

    Args:
        ids: Shape ``(R, T)``; not changed.
        special: True where nothing may be masked, shape ``(R, T)``.
        words: Number of each token's word within its row, to mask whole words; None to mask pieces.
        probability: Of each word or piece to be picked.
        mask_id: The mask.
        ordinary: Ids that a token may be replaced by.
        generator: Draws.

    Returns:
        The masked ids, and the labels: the original id where a token was picked, else -100.
    """
    picked = generator.random(ids.shape) < probability
    if words is not None:
        picked = _spread(picked, words)
    picked &= ~special
    if not picked.any() and not special.all():
        free = np.argwhere(~special)
        picked[tuple(free[generator.integers(len(free))])] = True
    labels = np.where(picked, ids, -100)
    fate = generator.random(ids.shape)
    others = generator.choice(ordinary, size=ids.shape)
    masked = np.where(picked & (fate < MASKED), mask_id, ids)
    replaced = picked & (fate >= MASKED) & (fate < MASKED + REPLACED)
    return np.where(replaced, others, masked), labels


def _spread(picked: Flags, words: Ids) -> Flags:
    """Let the first piece of a word decide for all of it, unless the word is too long."""
    spread = picked.copy()
    for row, numbers in enumerate(words):
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 0)
        ends = np.append(starts[1:], len(numbers))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if numbers[start] >= 0 and end - start <= LONGEST_WORD:
                spread[row, start:end] = picked[row, start]
    return spread
