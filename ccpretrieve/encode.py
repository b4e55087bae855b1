"""Encode a corpus and build its index: ``python -m ccpretrieve.encode --corpus mrtydi-ja``.

    corpus --census--> counted and checked --> blocks --Encoder--> shards --> flat index

Writes ``indexes/<corpus>.<tag>/``, named ``.partial`` while it works. Killed at any point, the same
command goes on from the last finished shard and ends with the same bytes.
"""

import itertools
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve.commandline import command
from ccpretrieve.config import EncodeConfig
from ccpretrieve.data.census import Census, kept, take_census
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.languages import language
from ccpretrieve.data.records import Passage
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError
from ccpretrieve.files import PARTIAL, finish, only_writer, writing_failed
from ccpretrieve.retrieval import meta, names
from ccpretrieve.retrieval.store import FOLDER, Store, differences

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

logger = logging.getLogger("ccpretrieve.encode")

#: Settings of the encoder that a flag may override.
SETTINGS = (
    *("pooling", "layer", "normalize", "max_length", "query_prefix", "passage_prefix"),
    *("title", "similarity"),
)
TIMED = 64  # passages that are encoded to see how long all will take


@dataclass(frozen=True)
class Job:
    """What is to be encoded with what, to where."""

    config: EncodeConfig
    corpus: Corpus
    encoder: "Encoder"
    language: str
    output: Path

    @property
    def part(self) -> tuple[int, int]:
        """This machine's number and the number of machines."""
        return self.config.shard_id, self.config.shard_num

    def recipe(self, census: Census) -> dict[str, Any]:
        """Everything that decides the shards, as plain values."""
        asked = {name: getattr(self.config, name) for name in SETTINGS}
        return {
            "corpus": {
                "name": self.corpus.name,
                "language": self.language,
                "passages": census.passages,
                "fingerprint": census.fingerprint,
                "on_duplicate": self.config.on_duplicate,
            },
            "encoder": meta.describe_encoder(self.encoder, asked, self.language),
            "shard_size": self.config.shard_size,
        }


def run(
    config: EncodeConfig, encoder: "Encoder | None" = None, census: Census | None = None
) -> Path | str:
    """Encode ``config.corpus``.

    Args:
        config: What and how.
        encoder: The encoder of ``config``, for who has it open; None to load it.
        census: Of the corpus, for who has taken it as ``config`` says; None to take it.

    Returns:
        The folder of the index; with ``dry_run`` the estimate as text.

    Raises:
        UserError: If corpus, encoder or settings cannot be used, or what is at the output was made
            from others.
    """
    job = _prepare(config, encoder)
    _check_place(job.output)  # before the corpus is read
    census = census or take_census(job.corpus, on_duplicate=config.on_duplicate)
    logger.info(_describe(job, census))
    if job.output.exists():
        return _already_there(job, census)
    if config.dry_run:
        return _estimated(job, census)
    partial = job.output.with_name(job.output.name + PARTIAL)
    with only_writer(partial, "encoding"):
        if job.output.exists():  # another process finished it meanwhile
            return _already_there(job, census)
        store = Store.begin(partial / FOLDER, job.recipe(census), job.part)
        try:
            _encode_missing(job, census, store)
        except UserError:
            if not store.shards:  # nothing to go on from
                shutil.rmtree(store.path)
            raise
        store.check_complete()
        if job.config.shard_num == 1:
            from ccpretrieve.retrieval.index_builder import build

            build(store, partial, "Flat", FOLDER)
        finish(partial, job.output)
    return job.output


def _prepare(config: EncodeConfig, encoder: "Encoder | None") -> Job:
    corpus = open_corpus(config.corpus, config.data_dir)
    if encoder is None:
        encoder = load_encoder(config)
        encoder.load_passages()  # what is wrong with the weights is said before the corpus is read
    spoken = language(config.lang).code if config.lang else corpus.language
    tag = names.check_tag(config.tag or names.tag_of(encoder.name))
    part = (config.shard_id, config.shard_num)
    output = config.output or names.index_folder(corpus.name, tag, part)
    return Job(config, corpus, encoder, spoken, output)


def load_encoder(config: EncodeConfig) -> "Encoder":
    """The encoder that a corpus is to be encoded with; its weights are read on first use.

    Raises:
        UserError: If there is none, or its settings cannot be had.
    """
    from ccpretrieve.model.encoder import Encoder  # torch: only when there is work to do

    return Encoder.load(
        config.encoder,
        device=config.device,
        dtype=config.dtype,
        batch_tokens=config.batch_tokens,
        calibration=config.calibration,
        **{name: getattr(config, name) for name in SETTINGS},
    )


def _check_place(output: Path) -> None:
    """Fail unless a folder can be made at ``output``, or is there already."""
    if output.exists():
        return
    above = _existing(output)
    blocked = [path for path in output.absolute().parents if path.exists() and not path.is_dir()]
    if blocked:
        raise UserError(f"{blocked[0]}: a file stands where a folder belongs; move it away")
    try:
        with tempfile.TemporaryDirectory(prefix=".ccpretrieve-", dir=above):
            pass
    except OSError as error:
        raise writing_failed(output, error) from error


def _describe(job: Job, census: Census) -> str:
    applied = job.encoder.calibration
    settings = {
        **vars(job.encoder.settings),
        "calibration": None if applied is None else str(applied.path),
    }
    shown = ", ".join(f"{name} {value!r}" for name, value in settings.items())
    asked = any(getattr(job.config, name) is not None for name in SETTINGS)
    over = ", flags over them" if asked else ""
    duplicates = f", {census.duplicates} duplicates left out" if census.duplicates else ""
    return (
        f"{job.corpus.name}: {census.passages} passages{duplicates}\n"
        f"{job.encoder.name}: settings from {job.encoder.source}{over}: {shown}"
    )


def _already_there(job: Job, census: Census) -> Path:
    """The finished index, if it is the one asked for."""
    folder = job.output / FOLDER
    if not folder.is_dir():
        raise UserError(f"{job.output}: exists and is no index of ours; choose another --output")
    store = Store.open(folder)
    if changed := differences(store.recipe, job.recipe(census)):
        raise UserError(
            f"{job.output}: was made differently: {'; '.join(changed)}; choose another --output "
            "or --tag, or remove that folder"
        )
    store.check_part(job.part)
    store.check_complete()
    if job.config.shard_num == 1:
        from ccpretrieve.retrieval.faiss_index import Index

        Index.load(job.output)
    logger.info("%s: is there already and was made just so", job.output)
    return job.output


def _encode_missing(job: Job, census: Census, store: Store) -> None:
    """Encode the shards that are not on disk, and report."""
    from tqdm import tqdm

    begun, done, tokens = time.perf_counter(), 0, 0
    quiet = job.config.quiet or not sys.stderr.isatty()
    if store.shards:
        logger.info("%d of them are encoded already", store.count)
    size, (number, machines) = job.config.shard_size, job.part
    mine = sum(
        min(size, census.passages - first)
        for first in range(number * size, census.passages, machines * size)
    )
    with tqdm(total=mine, initial=store.count, unit=" passages", disable=quiet) as bar:
        for number, block in _blocks(job, census):
            if number in store.shards or number % job.part[1] != job.part[0]:
                continue
            encoded = job.encoder.embed_passages(block, language=job.language)
            store.add(
                number,
                block,
                encoded.vectors,
                tokens=encoded.tokens,
                truncated=encoded.truncated,
            )
            done, tokens = done + len(block), tokens + encoded.tokens
            bar.update(len(block))
    seconds = max(time.perf_counter() - begun, 1e-9)
    logger.info(
        "encoded %d passages in %.1f s: %.1f passages/s, %.0f tokens/s",
        *(done, seconds, done / seconds, tokens / seconds),
    )
    logger.info(
        "of %d passages %d were truncated to %d tokens, %d are empty",
        *(store.count, store.total("truncated"), job.encoder.settings.passage_length),
        store.total("empty"),
    )


def _blocks(job: Job, census: Census) -> Iterator[tuple[int, list[Passage]]]:
    """Shard number and passages of each shard, in order."""
    passages = kept(job.corpus, census)
    for number in itertools.count():
        block = list(itertools.islice(passages, job.config.shard_size))
        if not block:
            return
        yield number, block


@dataclass(frozen=True)
class Estimate:
    """What encoding a collection, or a machine's part of it, will take.

    Attributes:
        tokens: To be encoded.
        seconds: Of encoding, as fast as a sample was.
        vectors: Bytes of them, which an exact search reads.
        disk: Bytes.
        memory: Bytes, of encoding, whatever the size.
    """

    tokens: float
    seconds: float
    vectors: float
    disk: float
    memory: float

    @property
    def duration(self) -> str:
        """The time in words."""
        return f"{self.seconds / 3600:.1f} h" if self.seconds >= 3600 else f"{self.seconds:.0f} s"


def estimate(
    encoder: "Encoder",
    language: str,
    passages: int,
    sample: Sequence[Passage],
    config: EncodeConfig,
) -> Estimate:
    """Reckon with a collection before it is encoded.

    The first forward pass starts up what later ones have (threads, kernels), so it is not timed.

    Args:
        encoder: Its speed is measured here.
        language: Of the passages that do not state their own, for a calibration.
        passages: How many there are.
        sample: Some of them.
        config: How they are to be encoded.
    """
    here = passages / config.shard_num
    share = here / max(1, len(sample))
    timed = sample[:TIMED]
    encoder.embed_passages(timed, language=language)
    begun = time.perf_counter()
    measured = encoder.embed_passages(timed, language=language).tokens
    each = (time.perf_counter() - begun) / max(1, measured)
    tokens = share * sum(len(item.ids) for item in encoder.tokenize_passages(sample))
    text = share * sum(len(f"{p.title}{p.text}".encode()) for p in sample)
    vectors = 4.0 * encoder.dim * here
    copies = 2 if config.shard_num == 1 else 1  # shards, and an index
    held = config.shard_size * (4 * encoder.dim + 4000)
    return Estimate(
        tokens,
        tokens * each,
        vectors,
        copies * vectors + 1.2 * text,  # JSON around it
        encoder.memory() + held,
    )


def _estimated(job: Job, census: Census) -> str:
    """What encoding would take, from the census and the sample that it drew."""
    expected = estimate(job.encoder, job.language, census.passages, census.sample, job.config)
    free = shutil.disk_usage(_existing(job.output)).free
    lines = [
        f"passages        {census.passages}, {census.empty} of them empty",
        f"tokens          about {expected.tokens:.3g}",
        f"time            about {expected.duration}",
        f"vectors         {job.encoder.dim} wide, {expected.vectors / 1e9:.2f} GB",
        f"disk            about {expected.disk / 1e9:.2f} GB ({free / 1e9:.0f} GB are free)",
        f"memory          about {expected.memory / 1e9:.1f} GB, whatever the size of the corpus",
        f"to be written   {job.output}",
    ]
    return "\n".join(lines)


def _existing(path: Path) -> Path:
    """The nearest folder above ``path`` that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`EncodeConfig`."""
    kept = "finished shards are kept, the same command goes on from them"
    command(run, EncodeConfig, "encode", argv, kept=kept)


if __name__ == "__main__":
    main()
