"""Windows: a sentence and its neighbours (section 3.1).

    Context(s_c) = { s_p : c - w <= p <= c + w, p != c },  w the radius
    m(c, i)      = 1 where c != i stand in one window, else 0

A window here is a centre and some of its context, as many as are asked for; the paper draws one.
Nothing reaches over the end of a document.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.cleaning import key

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """A centre with sentences of its context.

    Attributes:
        document: Id of the document, for messages.
        center: The sentence s_c.
        contexts: Sentences of Context(s_c), at least one.
    """

    document: str
    center: str
    contexts: tuple[str, ...]


def context(center: int, length: int, radius: int) -> list[int]:
    """Positions of Context(s_c).

    Args:
        center: c, from 0.
        length: Sentences of the document.
        radius: w.
    """
    around = range(max(0, center - radius), min(length, center + radius + 1))
    return [position for position in around if position != center]


def draw_contexts(
    center: int, length: int, radius: int, count: int, generator: np.random.Generator
) -> list[int]:
    """Draw positions from Context(s_c), uniformly and without repetition.

    Args:
        center: c, from 0.
        length: Sentences of the document.
        radius: w.
        count: How many; fewer are drawn where there are fewer.
        generator: Draws.
    """
    around = context(center, length, radius)
    drawn = generator.choice(len(around), size=min(count, len(around)), replace=False)
    return [around[place] for place in drawn.tolist()]


def same_window(windows: "Tensor") -> "Tensor":
    """The mask m.

    Args:
        windows: Number of the window of each sentence, shape ``(C,)``.

    Returns:
        Shape ``(C, C)``, bool: True where two different sentences share a window.
    """
    return (windows[:, None] == windows[None, :]).fill_diagonal_(False)


def sentence_keys(sentences: Iterable[str]) -> NDArray[np.int64]:
    """A hash of each sentence, shape ``(N,)``; what cleaning calls a duplicate has one key."""
    return np.array([key(sentence) for sentence in sentences], dtype=np.int64)
