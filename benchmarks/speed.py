"""How fast, and in how much memory, beside sentence-transformers, Pyserini and bare FAISS.

    python -m benchmarks.speed encode --encoder intfloat/multilingual-e5-small --languages en ar th
    python -m benchmarks.speed search
    python -m benchmarks.speed memory
    python -m benchmarks.speed train --corpus data/longdocs --encoder intfloat/multilingual-e5-small
    python -m benchmarks.speed finetune --train jaquad --encoder intfloat/multilingual-e5-small
    python -m benchmarks.speed data
    python -m benchmarks.speed examples

Every measurement is a process of its own with pinned threads; tools take turns, and medians are
compared. What each tool is made to do is in :mod:`benchmarks.candidates` and
:mod:`benchmarks.searchers`.
"""

import contextlib
import dataclasses
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.encoding import (
    PEERS,
    Encoding,
    Plan,
    compare,
    prepare_checkpoint,
    prepare_corpus,
)
from benchmarks.examples import ExamplesMemoryConfig, run_examples
from benchmarks.finetuning import FinetuneSpeedConfig, run_finetune
from benchmarks.measure import in_child
from benchmarks.searchers import BARE, TOOLS
from benchmarks.table import grid
from benchmarks.training import DataMemoryConfig, TrainSpeedConfig, run_data, run_train
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, DataConfig, Many, at_least
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import atomic, make_directory, write_json
from ccpretrieve.model.settings import EncoderSettings

logger = logging.getLogger("ccpretrieve.benchmarks.speed")


@dataclass(frozen=True, kw_only=True)
class EncodeSpeedConfig(DataConfig):
    """Time encoding: ours, from files to index, against others, from texts in memory to vectors.

    Attributes:
        encoder: Checkpoint directory or hub name; mean pooling, unit length, title and text joined.
        data: Folder with a folder in Mr.TyDi's layout for each language. Default: the corpora
            xquad-* that `python -m ccpretrieve.corpora` lists.
        languages: Codes, the same number of passages of each.
        passages: How many in all; 0 for all there are.
        prefix: Put before every passage.
        max_length: Tokens kept of a passage.
        peers: Of sentence-transformers and pyserini.
        batches: Passages a batch that they are tried with, beside their own default.
        repeats: Rounds; medians are compared.
        threads: Of every library.
        output: Also write all figures to this file, as JSON.
    """

    encoder: str | None = None
    data: Path | None = None
    languages: Annotated[tuple[str, ...], Many] = ("en", "ar", "ru", "th", "zh")
    passages: int = 150
    prefix: str = "passage: "
    max_length: int = 256
    peers: Annotated[tuple[str, ...], Many] = tuple(PEERS)
    batches: Annotated[tuple[int, ...], Many] = (16, 32, 64)
    repeats: int = 3
    threads: int = 1
    output: Path | None = None

    def __post_init__(self) -> None:
        at_least("--passages", self.passages, 0)
        at_least("--max-length", self.max_length, 4)
        at_least("--batches", min(self.batches, default=1), 1)
        at_least("--repeats", self.repeats, 1)
        at_least("--threads", self.threads, 1)
        if not self.languages:
            raise UserError("--languages needs at least one")


def run_encode(config: EncodeSpeedConfig) -> Encoding:
    """Measure encoding.

    Raises:
        UserError: If a corpus, the encoder or another tool cannot be used.
    """
    from ccpretrieve.model.checkpoint import default_encoder

    settings = EncoderSettings(
        pooling="mean",
        normalize=True,
        similarity="cosine",
        query_length=config.max_length,
        passage_length=config.max_length,
        passage_prefix=config.prefix,
        title="join",
    )
    names = {
        code: str(config.data / code) if config.data else f"xquad-{code}"
        for code in config.languages
    }
    with _work_folder() as work:
        encoder = config.encoder or default_encoder()
        checkpoint = prepare_checkpoint(encoder, work / "checkpoint", settings)
        count = prepare_corpus(names, config.passages, work / "corpus", config.data_dir)
        plan = Plan(
            checkpoint,
            work / "corpus",
            settings,
            config.peers,
            config.batches,
            config.repeats,
            config.threads,
            work,
        )
        tools = compare(plan)
    heading = (
        f"encode: {count} passages ({' '.join(names)}), {encoder}, {config.max_length} tokens, "
        f"fp32, {_threads(config.threads)}, median of {config.repeats} in turn"
    )
    result = Encoding(heading, count, tools)
    _write(config.output, dataclasses.asdict(result))
    return result


@dataclass(frozen=True, kw_only=True)
class SearchSpeedConfig(Config):
    """Time flat search of random unit vectors: ours and Pyserini's against bare FAISS.

    Attributes:
        vectors: How many are searched.
        width: Of each.
        questions: Vectors searched for.
        batch: Of them handed over together.
        hits: Passages a question.
        tools: Of faiss, ours, "ours, run" and pyserini; faiss always takes part.
        repeats: Rounds; medians are compared.
        threads: Of every library.
        seed: Of the vectors.
        output: Also write all figures to this file, as JSON.
    """

    vectors: int = 200_000
    width: int = 384
    questions: int = 2048
    batch: int = 1024
    hits: int = 100
    tools: Annotated[tuple[str, ...], Many] = tuple(TOOLS)
    repeats: int = 5
    threads: int = 1
    seed: int = 0
    output: Path | None = None

    def __post_init__(self) -> None:
        for name in ("vectors", "width", "questions", "batch", "hits", "repeats", "threads"):
            at_least(f"--{name}", getattr(self, name), 1)


def run_search(config: SearchSpeedConfig) -> str:
    """Measure search.

    Raises:
        UserError: If a tool cannot be used.
    """
    from ccpretrieve.retrieval.faiss_index import DOCID, INDEX
    from ccpretrieve.retrieval.index_builder import write_flat

    generator = np.random.default_rng(config.seed)
    with _work_folder() as work:
        blocks = unit_vectors(generator, config.vectors, config.width)
        write_flat(work / INDEX, blocks, config.vectors, config.width)
        with atomic(work / DOCID) as stream:
            stream.writelines(f"{n // 10}#{n % 10}\n".encode() for n in range(config.vectors))
        questions = np.concatenate(list(unit_vectors(generator, config.questions, config.width)))
        np.save(work / "queries.npy", questions)
        settings = {
            "index": str(work),
            "queries": str(work / "queries.npy"),
            "batch": config.batch,
            "hits": config.hits,
            "repeats": config.repeats,
            "tools": list(dict.fromkeys([BARE, *config.tools])),
        }
        times = in_child("search", settings, work, threads=config.threads)
    _write(config.output, times)
    heading = (
        f"search: {config.vectors} vectors x {config.width}, flat, {config.questions} questions in "
        f"batches of {config.batch}, {config.hits} hits, {_threads(config.threads)}, "
        f"median of {config.repeats} in turn"
    )
    return f"{heading}\n\n{grid(_search_rows(times))}"


def _search_rows(times: dict[str, Any]) -> list[list[str]]:
    """A line for each tool: its times, FAISS's over its, and how often it found the same."""
    rows = [["", "wall s", "CPU s", "of bare, wall", "of bare, CPU", "same hits"]]
    wall, cpu = (median(times[BARE][kind]) for kind in ("wall", "cpu"))
    for name, of_tool in times.items():
        its_wall, its_cpu = median(of_tool["wall"]), median(of_tool["cpu"])
        times_of_it = [f"{its_wall:.3f}", f"{its_cpu:.3f}"]
        shares = [f"{wall / its_wall:.3f}", f"{cpu / its_cpu:.3f}"]
        rows.append([name, *times_of_it, *shares, f"{of_tool['equal']:.2%}"])
    return rows


def unit_vectors(
    generator: np.random.Generator, count: int, width: int
) -> Iterator[NDArray[np.float32]]:
    """Random directions, in blocks of at most 10,000, shape ``(n, width)``."""
    for start in range(0, count, 10_000):
        size = min(10_000, count - start)
        block = generator.standard_normal((size, width), dtype=np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


@dataclass(frozen=True, kw_only=True)
class MemorySpeedConfig(Config):
    """Compare the peak memory of encoding few and many passages, with a random tiny checkpoint.

    Attributes:
        few: Passages of the small corpus.
        many: Passages of the large corpus.
        repeats: Of each; medians are compared.
        threads: Of every library.
        seed: Of the passages.
        output: Also write all figures to this file, as JSON.
    """

    few: int = 10_000
    many: int = 200_000
    repeats: int = 1
    threads: int = 1
    seed: int = 0
    output: Path | None = None

    def __post_init__(self) -> None:
        for name in ("few", "many", "repeats", "threads"):
            at_least(f"--{name}", getattr(self, name), 1)


def run_memory(config: MemorySpeedConfig) -> str:
    """Measure peak memory of the command `encode` at two sizes."""
    from ccpretrieve.model import random_checkpoint

    peaks: dict[int, list[int]] = {config.few: [], config.many: []}
    with _work_folder() as work:
        sample = [text for _, text in zip(range(1000), made_up(config.seed), strict=False)]
        checkpoint = random_checkpoint.build(work / "checkpoint", sample)
        for size in peaks:
            write_made_up(work / str(size) / "docs.jsonl", size, config.seed)
        for number in range(config.repeats):
            for size, of_size in peaks.items():
                settings = {
                    "checkpoint": str(checkpoint),
                    "corpus": str(work / str(size)),
                    "output": str(work / f"index-{size}-{number}"),
                }
                result = in_child("memory", settings, work, threads=config.threads)
                of_size.append(result["peak"])
                logger.info(
                    "%d passages: peak %.0f MB, %.1f CPU s",
                    *(size, result["peak"] / 1e6, result["cpu"]),
                )
    _write(config.output, {str(size): of_size for size, of_size in peaks.items()})
    few, many = median(peaks[config.few]), median(peaks[config.many])
    return (
        f"memory of `encode`, random tiny checkpoint: {config.few} passages {few / 1e6:.0f} MB, "
        f"{config.many} passages {many / 1e6:.0f} MB, ratio {many / few:.3f}"
    )


def made_up(seed: int) -> Iterator[str]:
    """Passages of 5 to 30 words out of 5,000 that do not exist, without end."""
    generator = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(5000)]
    while True:
        yield " ".join(generator.choices(words, k=generator.randint(5, 30)))


def write_made_up(path: Path, count: int, seed: int) -> None:
    """Write such passages as a corpus of one file."""
    make_directory(path.parent)
    texts = zip(range(count), made_up(seed), strict=False)
    with atomic(path) as stream:
        stream.writelines(
            f'{{"docid": "{n // 10}#{n % 10}", "title": "", "text": "{text}"}}\n'.encode()
            for n, text in texts
        )


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    """A folder under TMPDIR that is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="ccpretrieve-speed-") as name:
        yield Path(name)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _write(path: Path | None, figures: Any) -> None:
    if path is not None:
        write_json(path, figures)


def _train(config: TrainSpeedConfig) -> str:
    with _work_folder() as work:
        return run_train(config, work)


def _finetune(config: FinetuneSpeedConfig) -> str:
    with _work_folder() as work:
        return run_finetune(config, work)


def _examples(config: ExamplesMemoryConfig) -> str:
    with _work_folder() as work:
        return run_examples(config, work)


def _data(config: DataMemoryConfig) -> str:
    with _work_folder() as work:
        return run_data(config, work)


#: First word of the command line -> the rest of it.
VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "encode": lambda argv: command(run_encode, EncodeSpeedConfig, "benchmarks.speed encode", argv),
    "search": lambda argv: command(run_search, SearchSpeedConfig, "benchmarks.speed search", argv),
    "memory": lambda argv: command(run_memory, MemorySpeedConfig, "benchmarks.speed memory", argv),
    "train": lambda argv: command(_train, TrainSpeedConfig, "benchmarks.speed train", argv),
    "finetune": lambda argv: command(
        _finetune, FinetuneSpeedConfig, "benchmarks.speed finetune", argv
    ),
    "examples": lambda argv: command(
        _examples, ExamplesMemoryConfig, "benchmarks.speed examples", argv
    ),
    "data": lambda argv: command(_data, DataMemoryConfig, "benchmarks.speed data", argv),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: what to measure, then its flags."""
    verb, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if verb in VERBS:
        VERBS[verb](rest)
        return
    if verb in ("--help", "-h"):
        print(f"python -m benchmarks.speed {{{','.join(VERBS)}}} [--help]")
        return
    print(f"error: {unknown('measurement', verb, list(VERBS))}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
