"""The whole tool on the sample collection, without a download: ``make demo``.

    python -m benchmarks.demo
    python -m benchmarks.demo --encoder intfloat/multilingual-e5-small --languages en ja

Encodes, indexes, searches and scores the sample of every language by the functions of the commands,
and shows a few questions with their best passages. Without ``--encoder`` it makes a tiny checkpoint
with random weights and says so: that shows that everything runs, not that anything is found.
"""

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ccpretrieve import encode, evaluate, search
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, EncodeConfig, EvaluateConfig, Many
from ccpretrieve.data.languages import language
from ccpretrieve.data.records import Topic
from ccpretrieve.data.registry import open_corpus, table
from ccpretrieve.errors import unknown
from ccpretrieve.files import PARTIAL, finish, only_writer
from ccpretrieve.retrieval import names
from ccpretrieve.retrieval.metrics import parse_metrics
from ccpretrieve.retrieval.scoretable import Row, ScoreTable
from ccpretrieve.search_config import SearchConfig

logger = logging.getLogger("ccpretrieve.benchmarks.demo")

FAMILY, SPLIT = "sample", "test"
METRICS = ("mrr@100", "ndcg@10", "recall@10")
SHOWN, HITS = 3, 3  # questions shown, and passages of each
RANDOM = (
    "*** RANDOM WEIGHTS. This encoder was made by this command and has learned nothing: the "
    "scores below mean nothing.\n*** They show that every step runs. For real search give "
    "--encoder a trained checkpoint, such as\n*** intfloat/multilingual-e5-small."
)


@dataclass(frozen=True, kw_only=True)
class DemoConfig(Config):
    """Encode, index, search and score the sample collection, and show what was found.

    Attributes:
        encoder: Checkpoint directory or hub name. Default: a random tiny one, made for the demo.
        languages: Codes or names. Default: every language of the sample.
        output: Folder for checkpoint, indexes and runs.
    """

    encoder: str | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    output: Path = Path("runs/demo")


@dataclass(frozen=True)
class Searched:
    """One language's sample, searched.

    Attributes:
        corpus: Its name.
        index: Folder of its index.
        run: Its run file.
        scores: Of ``METRICS``, in their order.
    """

    corpus: str
    index: Path
    run: Path
    scores: tuple[float, ...]


def run(config: DemoConfig) -> Iterator[str]:
    """Run the demo; yields what it has to say as it comes.

    Raises:
        UserError: If a language has no sample, or the encoder cannot be used.
    """
    corpora = find_samples(config.languages)
    if config.encoder is None:
        yield RANDOM + "\n"
    with _quiet_verbs():
        encoder = config.encoder or str(random_encoder(config.output))
        searched = []
        for corpus in corpora.values():
            logger.info("%s: encode, index, search, evaluate", corpus)
            searched.append(search_sample(corpus, encoder, config.output))
        yield score_table(searched, corpora).render("text") + "\n"
        yield from answers(searched)
    yield "Runs, six TREC columns each:\n" + "\n".join(f"  {found.run}" for found in searched)
    if config.encoder is None:
        yield "\n" + RANDOM


def find_samples(languages: Sequence[str] = ()) -> dict[str, str]:
    """Language code -> name of its sample, in the order asked for.

    Raises:
        UserError: If there is none of a language; those there are are named.
    """
    there = {
        entry.language: entry.name for entry in table().values() if entry.family.name == FAMILY
    }
    wanted = [language(name).code for name in languages] or list(there)
    for code in wanted:
        if code not in there:
            raise unknown("language of the sample", code, sorted(there))
    return {code: there[code] for code in wanted}


def random_encoder(folder: Path) -> Path:
    """A random tiny checkpoint whose word pieces are learned from all samples.

    It is named after a hash of their text, so that it and all that was made with it are found
    again, and are not mixed with those of another version of the sample.
    """
    from ccpretrieve.model import random_checkpoint
    from ccpretrieve.model.settings import EncoderSettings

    texts = [
        f"{record.passage.title} {record.passage.text}"
        for corpus in find_samples().values()
        for record in open_corpus(corpus).records()
    ]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]
    path = folder / f"random-{digest}"
    if path.exists():
        return path
    settings = EncoderSettings(pooling="mean", normalize=True, similarity="cosine", title="join")
    partial = path.with_name(path.name + PARTIAL)
    with only_writer(partial, "making a checkpoint"), _no_bars():
        random_checkpoint.build(partial, texts, settings=settings, vocabulary=8000, width=64)
        finish(partial, path)
    return path


def search_sample(corpus: str, encoder: str, folder: Path) -> Searched:
    """Encode, index, search and score one sample."""
    tag = names.tag_of(encoder)
    index = encode.run(
        EncodeConfig(corpus=corpus, encoder=encoder, output=folder / f"{corpus}.{tag}", quiet=True)
    )
    path = folder / f"{corpus}.{SPLIT}.{tag}.trec"
    search.run(SearchConfig(corpus=corpus, split=SPLIT, index=Path(index), output=path, tag=tag))
    evaluation = evaluate.run(
        EvaluateConfig(run=(path,), qrels=corpus, split=SPLIT, metrics=METRICS)
    )
    (scores,) = evaluation.comparison.scores.values()
    return Searched(corpus, Path(index), path, tuple(scores.mean[name] for name in METRICS))


def score_table(searched: Sequence[Searched], corpora: dict[str, str]) -> ScoreTable:
    """One row a language."""
    spelled = {name: language(code).name.capitalize() for code, name in corpora.items()}
    rows = [Row(f"{found.corpus} ({spelled[found.corpus]})", found.scores) for found in searched]
    heads = [metric.label for metric in parse_metrics(METRICS)]
    return ScoreTable(heads, rows, corner="corpus", digits=3)


def answers(searched: Sequence[Searched]) -> Iterator[str]:
    """A question of each of the first languages, another one each, with its best passages."""
    for number, found in enumerate(searched[:SHOWN]):
        question = _question(found.corpus, number)
        hits = search.run(SearchConfig(question.text, index=found.index, hits=HITS))
        yield f"{found.corpus}, question {question.id}: {question.text}\n{hits}\n"


def _question(corpus: str, number: int) -> Topic:
    topics = open_corpus(corpus).topics(SPLIT)
    return topics[number * 7 % len(topics)]  # apart, as neighbours are about alike things


@contextlib.contextmanager
def _quiet_verbs() -> Iterator[None]:
    """Let the commands' own logs through only from warnings on."""
    loggers = [logging.getLogger(f"ccpretrieve.{name}") for name in ("encode", "retrieval")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """No progress bar for a file of a few hundred kilobytes."""
    from transformers.utils import logging as theirs

    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            theirs.enable_progress_bar()


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`DemoConfig`."""
    command(run, DemoConfig, "benchmarks.demo", argv)


if __name__ == "__main__":
    main()
