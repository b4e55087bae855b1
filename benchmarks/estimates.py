"""What encoding whole collections will take, as lines; `encode` does the reckoning."""

import itertools
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.systems import Setup
from ccpretrieve import encode
from ccpretrieve.data.registry import table

SAMPLE = 512  # first passages of a collection whose size the registry knows


@dataclass(frozen=True)
class Expected:
    """Of one collection and encoder.

    Attributes:
        name: Of the collection.
        passages: In it.
        takes: What encoding them takes.
    """

    name: str
    passages: int
    takes: encode.Estimate

    def __str__(self) -> str:
        takes = self.takes
        return (
            f"{self.name}: {self.passages:,} passages, to encode about {takes.duration}, disk "
            f"{takes.disk / 1e9:.2f} GB, memory {takes.memory / 1e9:.1f} GB, to search "
            f"{takes.vectors / 1e9:.2f} GB of vectors"
        )


def expect(made: Setup, encoder: str, tag: str) -> Expected:
    """Reckon with a collection before it is encoded.

    One that the registry knows the size of is not read to its end: its first passages are the
    sample. Any other is counted, and the sample is drawn from all of it.
    """
    corpus = made.opened
    entry = table().get(corpus.name)
    if entry is not None and entry.count:
        passages = entry.count
        sample = tuple(record.passage for record in itertools.islice(corpus.records(), SAMPLE))
    else:
        passages, sample = made.census.passages, made.census.sample
    config = made.encoding(encoder, tag)
    opened = made.encoder(encoder, tag)
    takes = encode.estimate(opened, corpus.language, passages, sample, config)
    return Expected(corpus.name, passages, takes)


def total(each: Iterable[Expected]) -> str:
    """The sum of several, a line."""
    takes = [one.takes for one in each]
    hours = sum(one.seconds for one in takes) / 3600
    disk = sum(one.disk for one in takes) / 1e9
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    return (
        f"together about {hours:.1f} h on this machine and {disk:.2f} GB of disk ({free:.0f} GB "
        "are free)"
    )
