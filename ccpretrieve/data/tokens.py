"""Texts as a Transformer sees them: token ids cut to a length, and padded batches of them.

One home for search, which encodes with it, and training on questions and passages, which must cut
and pad alike.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: A text, or two segments such as title and text.
Segments = str | tuple[str, str]

#: Texts tokenised by one call; bounds the tokenizer's own bookkeeping, which dwarfs the ids.
_CHUNK = 512


class Tokens(NamedTuple):
    """One text as the model sees it.

    Attributes:
        ids: Token ids, special ones included, shape ``(T,)``, int32.
        types: Segment ids where the tokenizer has them and there are two segments, else None.
        truncated: Whether the text was longer than allowed.
    """

    ids: NDArray[np.int32]
    types: NDArray[np.int8] | None = None
    truncated: bool = False


def tokenize(tokenizer: Any, texts: Sequence[Segments], length: int) -> Iterator[Tokens]:
    """Turn texts into token ids, single ones and pairs alike.

    Args:
        tokenizer: Of transformers.
        texts: Any number.
        length: Tokens kept, special ones included; of a pair the longer segment is cut first.

    Yields:
        One item a text, in order.
    """
    alone = _of_a_kind(tokenizer, [text for text in texts if isinstance(text, str)], length)
    pairs = _of_a_kind(tokenizer, [text for text in texts if not isinstance(text, str)], length)
    for text in texts:  # a tokenizer takes only one kind at a time
        yield next(alone if isinstance(text, str) else pairs)


def _of_a_kind(tokenizer: Any, texts: Sequence[Segments], length: int) -> Iterator[Tokens]:
    for start in range(0, len(texts), _CHUNK):
        chunk = list(texts[start : start + _CHUNK])
        batch = tokenizer(
            chunk,
            truncation=True,
            max_length=length,
            padding=False,
            return_attention_mask=False,
            verbose=False,
        )
        segments = batch.get("token_type_ids") or [None] * len(chunk)
        for row, (ids, types) in enumerate(zip(batch["input_ids"], segments, strict=True)):
            cut = len(ids) >= length and _overflows(tokenizer, batch, row, chunk[row], length)
            yield Tokens(
                np.array(ids, dtype=np.int32),
                np.array(types, dtype=np.int8) if types and any(types) else None,
                cut,
            )


def _overflows(tokenizer: Any, batch: Any, row: int, text: Segments, length: int) -> bool:
    """Whether a text that fills the length was longer; a slow tokenizer has to be asked again."""
    if batch.encodings is not None:
        return bool(batch.encodings[row].overflowing)
    parts = (text,) if isinstance(text, str) else text
    return len(tokenizer(*parts, verbose=False)["input_ids"]) > length


def pad(texts: Sequence[Tokens], padding: int) -> dict[str, NDArray[np.int64]]:
    """Bring texts to one width.

    Args:
        texts: B of them, at least one.
        padding: Id that fills up.

    Returns:
        ``input_ids`` and ``attention_mask`` of shape ``(B, T)``, and ``token_type_ids`` where a
        text has two segments.
    """
    shape = (len(texts), max(len(text.ids) for text in texts))
    ids = np.full(shape, padding, dtype=np.int64)
    mask, types = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = text.ids
        mask[row, : len(text.ids)] = 1
        if text.types is not None:
            types[row, : len(text.types)] = text.types
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | {"token_type_ids": types} if types.any() else inputs
