"""Windows of many documents in shuffled order, of several languages in turn (sections 3.1 and 4).

    documents --clean--> pool of a few hundred --draw--> windows --mix--> one language a batch

A language's windows come from a pool: each batch draws from as many different documents as it has
windows, and every sentence is the centre once in a pass over the corpus. Languages are drawn with
probability p_l ~ n_l^a, n_l the amount of text, a = 0.3: small languages come more often than
their share (Conneau et al. 2020, "Unsupervised Cross-lingual Representation Learning at Scale",
section 3.1). The paper does not say how it mixes its 108 languages.

Everything can be stopped and taken up again at the very sample: the pool is part of the state.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ccpretrieve.data.cleaning import Cleaner
from ccpretrieve.data.documents import Document, DocumentSource
from ccpretrieve.data.windows import Window, draw_contexts
from ccpretrieve.errors import UserError

State = dict[str, Any]
Content = dict[str, str]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampling:
    """How windows are drawn.

    Attributes:
        radius: w, in sentences.
        contexts: Sentences of the context a window; the paper draws one.
        pool: Documents a language that are drawn from at a time.
        positive: ``context`` as the paper has it; or one of two controls: ``random``, a sentence
            of another document, or ``same``, the centre again (dropout makes it another view, as
            in SimCSE, Gao et al. 2021).
    """

    radius: int = 2
    contexts: int = 1
    pool: int = 512
    positive: str = "context"


@dataclass
class _Entry:
    """A document in the pool."""

    document: str
    sentences: list[str]
    centers: list[int]  # those that were not a centre yet, the next one last


class WindowStream:
    """Windows of one language without end, pass after pass over its documents.

    Args:
        source: The documents.
        cleaner: What is kept of them.
        sampling: How windows are drawn.
        seed: Of all draws.
        shard: Which of the processes that share the corpus this is, from 0.
        shards: How many there are; each takes every ``shards``-th document.
    """

    def __init__(
        self,
        source: DocumentSource,
        cleaner: Cleaner,
        sampling: Sampling,
        *,
        seed: int,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.source = source
        self.cleaner = cleaner
        self.sampling = sampling
        self.shard, self.shards = shard, shards
        self.passes = 0  # begun after the first
        self._generator = np.random.default_rng([seed, shard, *source.language.encode()])
        self._pool: list[_Entry] = []
        self._position: Any = None  # from where the documents go on; None from the start
        self._documents: Iterator[tuple[Document, Any]] | None = None
        self._used = 0  # documents of this pass that gave a window
        self._over = False  # whether the pass has been read to its end

    def take(self, count: int) -> list[Window]:
        """The next windows, of different documents as far as the pool has so many.

        Raises:
            UserError: If no document of the language has two sentences, or a file is broken.
        """
        windows: list[Window] = []
        taken: set[tuple[str, int]] = set()
        while len(windows) < count:
            self._fill(count)
            before = len(windows)
            for entry in self._choose(count - before):
                center = _next_center(entry, taken)
                if center is not None:
                    taken.add((entry.document, center))
                    windows.append(self._window(entry, center))
            self._pool = [entry for entry in self._pool if entry.centers]
            if len(windows) == before:  # fewer sentences than windows: they come again
                taken.clear()
        return windows

    def _choose(self, count: int) -> list[_Entry]:
        """Entries of different documents; a pass may have begun while the last one is not over."""
        chosen: dict[str, _Entry] = {}
        for place in self._generator.permutation(len(self._pool)).tolist():
            chosen.setdefault(self._pool[place].document, self._pool[place])
            if len(chosen) == count:
                break
        return list(chosen.values())

    def _window(self, entry: _Entry, center: int) -> Window:
        return Window(entry.document, entry.sentences[center], self._positives(entry, center))

    def _positives(self, entry: _Entry, center: int) -> tuple[str, ...]:
        sentences, sampling = entry.sentences, self.sampling
        if sampling.positive == "same":
            return (sentences[center],) * sampling.contexts
        if sampling.positive == "random":
            return tuple(self._elsewhere(entry) for _ in range(sampling.contexts))
        places = draw_contexts(
            center, len(sentences), sampling.radius, sampling.contexts, self._generator
        )
        return tuple(sentences[place] for place in places)

    def _elsewhere(self, entry: _Entry) -> str:
        """A sentence of another document, if the pool has one."""
        others = [other for other in self._pool if other.document != entry.document] or [entry]
        other = others[int(self._generator.integers(len(others)))]
        return other.sentences[int(self._generator.integers(len(other.sentences)))]

    def _fill(self, needed: int) -> None:
        """Add documents until the pool is full, or the pass over and ``needed`` are in it."""
        if self.sampling.positive == "random":
            needed = max(needed, 2)  # the sentence is to be of another document
        while len(self._pool) < self.sampling.pool:
            # a pass with no more documents than are in the pool brings none if it is read again
            if self._over and len({e.document for e in self._pool}) >= min(needed, self._used):
                return
            document = self._next()
            if document is None:
                continue
            sentences = self.cleaner.clean(document)
            if len(sentences) > 1:
                centers = self._generator.permutation(len(sentences)).tolist()
                self._pool.append(_Entry(document.id, sentences, centers))
                self._used += 1

    def _next(self) -> Document | None:
        """The next document; None where a pass ends."""
        if self._over:
            self._over, self._used = False, 0
            self.passes += 1
        if self._documents is None:
            self._documents = self.source.documents(
                self._position, shard=self.shard, shards=self.shards
            )
        for document, position in self._documents:
            self._position = position
            return document
        if not self._used:
            part = f" in part {self.shard + 1} of {self.shards}" if self.shards > 1 else ""
            fewer = ", or train with fewer processes" if self.shards > 1 else ""
            raise UserError(
                f"{self.source.language}: no document{part} has two sentences left after cleaning, "
                "so there is no pair to learn from; look at its text, or leave it out of "
                f"--languages{fewer}"
            )
        self._documents = self._position = None
        self._over = True
        return None

    def state_dict(self) -> State:
        """All that decides what comes next, as JSON."""
        return {
            "passes": self.passes,
            "used": self._used,
            "over": self._over,
            "position": self._position,
            "pool": [[e.document, e.sentences, list(e.centers)] for e in self._pool],
            "generator": self._generator.bit_generator.state,
            "dropped": dict(self.cleaner.dropped),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from where :meth:`state_dict` was taken."""
        self.passes, self._used, self._over = state["passes"], state["used"], state["over"]
        self._position, self._documents = state["position"], None
        self._pool = [_Entry(name, texts, list(left)) for name, texts, left in state["pool"]]
        self._generator.bit_generator.state = state["generator"]
        self.cleaner.dropped.clear()
        self.cleaner.dropped.update(state["dropped"])

    def content(self, state: State) -> Content:
        """Hashes of what had been read of the documents at a state, and of all of them."""
        whole, position = self.source.content(), state["position"]
        if state["passes"] or state["over"]:
            return {"read": whole, "all": whole}
        return {"read": "" if position is None else self.source.content(position), "all": whole}

    def check(self, before: Content) -> None:
        """Compare the documents with those of the state that was loaded.

        Raises:
            UserError: If what has been read of them is no longer the same.
        """
        language, now = self.source.language, self.content(self.state_dict())
        if now["read"] != before["read"]:
            raise UserError(
                f"{language}: documents that were read already are not what they were; put them "
                "back, or start anew in another --output"
            )
        if now["all"] != before["all"]:
            logger.warning(
                "%s: documents that were not read yet have changed; they are read as they are now",
                language,
            )


def _next_center(entry: _Entry, taken: set[tuple[str, int]]) -> int | None:
    """Take the next centre of a document that the batch does not hold yet."""
    for place in range(len(entry.centers) - 1, -1, -1):
        if (entry.document, entry.centers[place]) not in taken:
            return entry.centers.pop(place)
    return None


def smoothed(sizes: Mapping[str, int], exponent: float) -> dict[str, float]:
    """p_l = n_l^a / sum_k n_k^a.

    Args:
        sizes: n_l, text of each language, at least 1.
        exponent: a; 1 draws languages by their share, 0 all alike.
    """
    powers = {language: float(size) ** exponent for language, size in sizes.items()}
    total = sum(powers.values())
    return {language: power / total for language, power in powers.items()}


class LanguageDraw:
    """Draws the language of each batch; the same in all processes.

    Args:
        probabilities: Language -> p_l.
        seed: Of the draws.
    """

    def __init__(self, probabilities: Mapping[str, float], seed: int) -> None:
        self.languages: Sequence[str] = sorted(probabilities)
        self.probabilities = [probabilities[language] for language in self.languages]
        self.generator = np.random.default_rng([seed, 0x1A26])

    def __call__(self) -> str:
        """The next batch's language."""
        place = self.generator.choice(len(self.languages), p=self.probabilities)
        return self.languages[int(place)]
