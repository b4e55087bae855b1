"""A full-size rehearsal: a million short passages through encode, index, search and evaluate.

    python -m benchmarks.rehearsal --passages 100000 1000000 --threads 1

    made-up passages --encode--> shards, flat index --index--> other kinds of index
                     --index --lexical--> BM25       both --search--> runs --evaluate--> scores

Every stage is the command that users type, in a process of its own. Seconds and memory are those
that the kernel counts for that process. The encoder is tiny and random: what is rehearsed is
everything around it.

How seconds at several sizes are compared is in :mod:`benchmarks.growth`. Encoding, filling an index
and searching a flat one for the same questions are linear by nature. Training an IVF index is not:
from 100,000 passages on it takes equally many vectors, so that such an index grows by less; nor is
`evaluate`, which reads as many hits of as many questions whatever the collection.
"""

import contextlib
import dataclasses
import gzip
import itertools
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import ccpretrieve
from benchmarks.growth import Cost, Report, cpu
from benchmarks.measure import ROOT, pinned
from benchmarks.parts import claim
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, Many, at_least
from ccpretrieve.data.folder import COLLECTION
from ccpretrieve.errors import UserError
from ccpretrieve.files import (
    PARTIAL,
    atomic,
    finish,
    make_directory,
    only_writer,
    read_json,
    slug,
    write_json,
)

logger = logging.getLogger("ccpretrieve.benchmarks.rehearsal")

#: A stage is run again until it has run so often, or for so many CPU seconds.
RUNS, ENOUGH = 3, 60.0

CORPUS = "made-up-en"
WIDTH, PIECES = 64, 8000  # of the encoder: numbers a vector, word pieces
WORDS, SHORTEST, LONGEST = 20_000, 8, 16  # words there are, words of a passage
OF_AN_ARTICLE = 10  # passages
#: In the folder of a stage: its index, what it printed, what it took (written last).
INDEX, PRINTED, COSTS = "index", "printed.json", "costs.json"


@dataclass(frozen=True, kw_only=True)
class RehearsalConfig(Config):
    """Run all commands on made-up collections of several sizes; time, memory and growth.

    Attributes:
        passages: Sizes of the collections; growth is from the first to each of the others.
        fixed: Size of the small collection that fixed costs are measured on.
        questions: That are searched, the same number at every size.
        factories: Kinds of FAISS index that are built beside the flat one.
        threads: Of every library.
        seed: Of the text.
        work: Folder for collections, indexes and the figures so far, which are kept.
        output: Also write all figures to this file, as JSON.
    """

    passages: Annotated[tuple[int, ...], Many] = (100_000, 1_000_000)
    fixed: int = 2000
    questions: int = 200
    factories: Annotated[tuple[str, ...], Many] = ("SQ8", "IVF1024,SQ8")
    threads: int = 1
    seed: int = 0
    work: Path = Path("runs/rehearsal")
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("--questions", self.questions, 1)
        at_least("--threads", self.threads, 1)
        at_least("--fixed", self.fixed, self.questions)
        if len(self.passages) < 2:
            raise UserError("--passages needs two sizes or more, to see the growth")
        if any(a >= b for a, b in itertools.pairwise([self.fixed, *self.passages])):
            raise UserError(f"--passages must ascend and be more than --fixed, {self.fixed}")


@dataclass(frozen=True)
class Stage:
    """One command of the rehearsal.

    Attributes:
        name: In the table.
        folder: Of all that it makes.
        words: Command line, from the verb on.
    """

    name: str
    folder: Path
    words: tuple[str, ...]


def stages(config: RehearsalConfig, place: Path, encoder: Path) -> list[Stage]:
    """The commands for one collection, in order.

    Args:
        config: Kinds of index, and threads.
        place: Folder of this size; the collection is in it.
        encoder: The checkpoint.
    """
    made: list[Stage] = []

    def add(name: str, output: str, *words: object) -> Path:
        folder = place / slug(name)
        path = folder / output
        line = (*words, "--output", path) if output else words
        made.append(Stage(name, folder, tuple(map(str, line))))
        return path

    corpus = ("--corpus", place / CORPUS)
    flat = add("encode", INDEX, "encode", *corpus, "--encoder", encoder)
    for kind in config.factories:
        add(f"index {kind}", INDEX, "index", "--embeddings", flat, "--factory", kind)
    lexical = ("index", "--lexical", *corpus, "--threads", config.threads)
    bm25 = add("index BM25", INDEX, *lexical)
    dense_run = add("search dense", "dense.trec", "search", *corpus, "--index", flat)
    bm25_run = add("search BM25", "bm25.trec", "search", *corpus, "--index", bm25)
    add("evaluate", "", "evaluate", "--run", dense_run, bm25_run, "--format", "json")
    return made


def run(config: RehearsalConfig) -> Report:
    """Rehearse, or go on where an earlier call was interrupted.

    Raises:
        UserError: If ``--work`` holds figures of other settings, or a command fails.
    """
    work = make_directory(config.work).resolve()
    claim(work, _decisive(config))
    encoder = work / "encoder"
    if not encoder.is_dir():
        script = (
            "import sys, benchmarks.rehearsal as r; r.make_encoder(sys.argv[1], int(sys.argv[2]))"
        )
        launch(["-c", script, str(encoder), str(config.seed)], work / "said.txt", config.threads)
    costs: dict[str, dict[int, list[Cost]]] = {}
    scores = {}
    for size in (config.fixed, *config.passages):
        place = work / str(size)
        for stage, runs in rehearse(config, size, place, encoder):
            costs.setdefault(stage.name, {})[size] = runs
        printed = read_json(place / "evaluate" / PRINTED)
        scores[size] = {each["name"]: each["scores"] for each in printed["runs"]}
    report = Report(_heading(config), costs, scores)
    if config.output is not None:
        write_json(config.output, report.figures())
    return report


def _decisive(config: RehearsalConfig) -> dict[str, Any]:
    """All that decides the figures of one size."""
    return {
        **{"questions": config.questions, "factories": config.factories},
        **{"threads": config.threads, "seed": config.seed, "version": ccpretrieve.__version__},
        **{"words": (WORDS, SHORTEST, LONGEST), "encoder": (WIDTH, PIECES)},
    }


def _heading(config: RehearsalConfig) -> str:
    return (
        f"rehearsal: made-up passages of {SHORTEST} to {LONGEST} words, random encoder of width "
        f"{WIDTH}, {config.questions} questions, {config.threads} thread"
        f"{'' if config.threads == 1 else 's'}; the least seconds of the runs; growth is of "
        f"CPU seconds above the fixed ones, measured at {config.fixed:,} passages (1.00: linear)"
    )


def rehearse(
    config: RehearsalConfig, size: int, place: Path, encoder: Path
) -> Iterator[tuple[Stage, list[Cost]]]:
    """Run every stage on a collection of one size, those that are measured already left out.

    Args:
        config: What to run.
        size: Passages.
        place: Folder of this size.
        encoder: The checkpoint.
    """
    folder = place / CORPUS
    if not folder.is_dir():
        partial = folder.with_name(folder.name + PARTIAL)
        with only_writer(partial, "writing passages"):
            write_collection(partial, size, config.questions, config.seed)
            finish(partial, folder)
    for stage in stages(config, place, encoder):
        path = stage.folder / COSTS
        if not path.is_file():
            write_json(path, [dataclasses.asdict(cost) for cost in repeat(stage, config.threads)])
        costs = [Cost(**each) for each in read_json(path)]
        logger.info(
            "%d passages, %s: %.1f CPU s, %.0f MB",
            *(size, stage.name, cpu(costs), max(cost.peak for cost in costs) / 1e6),
        )
        yield stage, costs


def repeat(stage: Stage, threads: int) -> list[Cost]:
    """Run a stage, each time from nothing, until it has run often or long enough."""
    verb, *words = stage.words
    costs: list[Cost] = []
    while len(costs) < RUNS and sum(cost.cpu for cost in costs) < ENOUGH:
        if stage.folder.exists():
            shutil.rmtree(stage.folder)
        printed = make_directory(stage.folder) / PRINTED
        costs.append(launch(["-m", f"ccpretrieve.{verb}", *words], printed, threads))
    return costs


def launch(words: Sequence[str], printed: Path, threads: int) -> Cost:
    """Run Python in a process of its own, from the root of the repository, and measure it.

    The kernel's figure of a process' peak memory starts at that of the process that launched it,
    which is why this module imports no large library.

    Args:
        words: For Python's command line.
        printed: Where its standard output goes; its log goes beside it.
        threads: Of every library.

    Raises:
        UserError: If it met something the user can put right.
        RuntimeError: If it failed otherwise; with the end of what it said.
    """
    log = printed.with_suffix(".log")
    begun = time.perf_counter()
    with printed.open("wb") as out, log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=pinned(threads),
            stdout=out,
            stderr=said,
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        end = log.read_text(errors="replace")[-2000:].strip()
        last = end.rpartition("\n")[2]
        if last.startswith("error: "):
            raise UserError(last.removeprefix("error: "))
        raise RuntimeError(f"{words} ended with status {process.returncode}: {end}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


# -- what it is rehearsed with --


def texts(seed: int) -> Iterator[str]:
    """Texts of words that do not exist, frequent and rare as words are (Zipf), without end."""
    generator = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(2, 5))) for _ in range(WORDS)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(WORDS)))
    while True:
        length = generator.randint(SHORTEST, LONGEST)
        yield " ".join(generator.choices(words, cum_weights=weights, k=length))


def write_collection(folder: Path, count: int, questions: int, seed: int) -> None:
    """Write a corpus in Mr.TyDi's layout, a passage at a time.

    A question is every second word of a passage, which alone is judged relevant; the passages asked
    for lie evenly over the collection.

    Args:
        folder: With a folder ``collection`` in it.
        count: Passages.
        questions: At most as many.
        seed: Of the text.
    """
    with contextlib.ExitStack() as stack:
        names = (f"{COLLECTION}/docs.jsonl.gz", "topic.test.tsv", "qrels.test.txt")
        make_directory(folder / COLLECTION)
        files = [stack.enter_context(atomic(folder / name)) for name in names]
        packed = stack.enter_context(gzip.GzipFile("", "wb", 1, files[0], mtime=0))
        asked = 0
        for number, text in zip(range(count), texts(seed), strict=False):
            docid = f"{number // OF_AN_ARTICLE}#{number % OF_AN_ARTICLE}"
            packed.write((json.dumps({"id": docid, "contents": text}) + "\n").encode())
            if number == asked * count // questions and asked < questions:
                files[1].write(f"{asked}\t{' '.join(text.split()[::2])}\n".encode())
                files[2].write(f"{asked} Q0 {docid} 1\n".encode())
                asked += 1


def make_encoder(path: str, seed: int) -> None:
    """Save a tiny checkpoint with random weights and word pieces of such texts."""
    from ccpretrieve.model import random_checkpoint
    from ccpretrieve.model.settings import EncoderSettings

    settings = EncoderSettings(pooling="mean", normalize=True, similarity="cosine", title="join")
    sample = itertools.islice(texts(seed), 5000)
    partial = Path(path + PARTIAL)
    with only_writer(partial, "making a checkpoint"):
        random_checkpoint.build(
            partial, sample, settings=settings, vocabulary=PIECES, width=WIDTH, seed=seed
        )
        finish(partial, Path(path))


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`RehearsalConfig`."""
    kept = "finished stages are kept in --work, the same command goes on from them"
    command(run, RehearsalConfig, "benchmarks.rehearsal", argv, kept=kept)


if __name__ == "__main__":
    main()
