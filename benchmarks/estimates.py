"""What encoding whole collections will take, from their sizes and a sample of each.

time      tokens of all passages / tokens a second, measured on a sample
disk      shards and index, 4 bytes a number each, and the text
memory    of encoding, whatever the size; of an exact search, the vectors
"""

import itertools
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.records import Passage
from ccpretrieve.data.registry import table
from ccpretrieve.model.encoder import Encoder

SAMPLE, TIMED = 512, 64  # passages tokenised, and encoded

logger = logging.getLogger("ccpretrieve.benchmarks")


@dataclass(frozen=True)
class Estimate:
    """Of one collection.

    Attributes:
        name: Of the collection.
        passages: In it.
        seconds: Of encoding.
        disk: Bytes.
        memory: Bytes, of encoding.
        vectors: Bytes, which an exact search reads.
    """

    name: str
    passages: int
    seconds: float
    disk: float
    memory: float
    vectors: float

    def __str__(self) -> str:
        hours = f"{self.seconds / 3600:.1f} h" if self.seconds >= 3600 else f"{self.seconds:.0f} s"
        return (
            f"{self.name}: {self.passages:,} passages, to encode about {hours}, disk "
            f"{self.disk / 1e9:.2f} GB, memory {self.memory / 1e9:.1f} GB, to search "
            f"{self.vectors / 1e9:.2f} GB of vectors"
        )


def estimate(corpus: Corpus, encoder: Encoder) -> Estimate:
    """Reckon with a corpus before it is encoded.

    Args:
        corpus: Counted if the registry does not say how many passages it has.
        encoder: Its speed is measured here.
    """
    passages = [record.passage for record in itertools.islice(corpus.records(), SAMPLE)]
    entry = table().get(corpus.name)
    count = (entry.count if entry else None) or _count(corpus)
    begun = time.perf_counter()
    timed = encoder.embed_passages(passages[:TIMED])
    speed = timed.tokens / max(1e-9, time.perf_counter() - begun)  # tokens a second
    tokens = sum(len(item.ids) for item in encoder.tokenize_passages(passages))
    share = count / max(1, len(passages))
    vectors = 4.0 * encoder.dim * count
    return Estimate(
        corpus.name,
        count,
        tokens * share / speed,
        2 * vectors + 1.2 * _bytes(passages) * share,
        encoder.memory(),
        vectors,
    )


def total(estimates: Iterable[Estimate]) -> str:
    """The sum of several, a line."""
    each = list(estimates)
    hours = sum(one.seconds for one in each) / 3600
    disk = sum(one.disk for one in each) / 1e9
    return f"together about {hours:.1f} h and {disk:.2f} GB of disk on this machine"


def _count(corpus: Corpus) -> int:
    return sum(1 for _ in corpus.records())


def _bytes(passages: Iterable[Passage]) -> int:
    return sum(len(f"{passage.title}{passage.text}".encode()) for passage in passages)
