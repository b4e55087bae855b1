"""Mr.TyDi (section 4.3): questions and passages of one language, in up to eleven languages.

    python -m benchmarks.mrtydi --languages sw te --encoder intfloat/multilingual-e5-small
    python -m benchmarks.mrtydi --data DIR --languages ja ko --encoder runs/ccp

For each language: encode, search, evaluate, by the functions of those commands, so that what is
there is not done again and a killed benchmark goes on where it was. Prints MRR@100 and Recall@100
beside the paper's Table 3 and Pyserini's baselines, if the data is Mr.TyDi; whether it is, is
decided by how many passages and questions a language has, not by what a folder is called.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.table import Published, beside, read_published
from ccpretrieve import encode, evaluate, search
from ccpretrieve.commandline import command
from ccpretrieve.config import (
    DataConfig,
    EncodeConfig,
    EvaluateConfig,
    Many,
    SearchConfig,
    one_of,
)
from ccpretrieve.data.languages import guess, language
from ccpretrieve.data.registry import open_corpus, table
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.retrieval import meta, names
from ccpretrieve.retrieval.runfile import read_sidecar

logger = logging.getLogger("ccpretrieve.benchmarks.mrtydi")

FAMILY = "mrtydi"
DEPTH = 100  # of both measures
#: Metric -> its label and the files of published scores, without their origin.
METRICS = {
    "mrr@100": ("MRR@100", "mrtydi-mrr100"),
    "recall@100": ("Recall@100", "mrtydi-recall100"),
}
#: Who published scores -> the end of their files' names.
ORIGINS = {"paper": "paper", "Pyserini": "pyserini"}


@dataclass(frozen=True, kw_only=True)
class MrTydiConfig(DataConfig):
    """Encode, search and score languages of Mr.TyDi, beside published scores.

    Attributes:
        data: Folder with a folder in Mr.TyDi's layout for each language. Default: the corpora
            mrtydi-* that `python -m ccpretrieve.corpora` lists.
        languages: Codes or names of languages. Default: all there are.
        encoder: Checkpoint directories or hub names, a row each. Default: CCPRETRIEVE_ENCODER.
        split: train, dev or test; published scores are of test.
        tag: Name of the row and last part of file names. Default: made from the encoder's name.
        pooling: As in `encode`, like all that follow up to dtype.
        layer: Hidden states to pool.
        normalize: Scale vectors to unit length.
        max_length: Tokens kept of a query or passage.
        query_prefix: Put before every query.
        passage_prefix: Put before every passage.
        title: pair, join or drop.
        similarity: dot or cosine.
        batch_tokens: Tokens of a forward pass, padding included.
        device: Any torch device.
        dtype: float32, bfloat16 or float16.
        format: text or markdown.
    """

    data: Path | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    encoder: Annotated[tuple[str, ...], Many] = ()
    split: str = "test"
    tag: str | None = None
    pooling: str | None = None
    layer: int | None = None
    normalize: bool | None = None
    max_length: int | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    title: str | None = None
    similarity: str | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None
    format: str = "text"

    def __post_init__(self) -> None:
        one_of("format", self.format, ("text", "markdown"))
        if self.tag is not None and len(self.encoder) > 1:
            raise UserError("--tag names one row; give one --encoder with it")


@dataclass(frozen=True)
class Measured:
    """What one encoder reached in one language.

    Attributes:
        scores: Metric name -> mean over topics.
        passages: In the index.
        topics: That were judged.
        unanswered: Of these, how many have no hit.
    """

    scores: Mapping[str, float]
    passages: int
    topics: int
    unanswered: int


@dataclass(frozen=True)
class Report:
    """Scores of all rows; as a string, the tables.

    Attributes:
        measured: Row -> language -> what was reached.
        languages: The columns.
        differences: Why published scores cannot be compared; empty if they can.
        form: text or markdown.
    """

    measured: Mapping[str, Mapping[str, Measured]]
    languages: tuple[str, ...]
    differences: tuple[str, ...]
    form: str = "text"

    def scores(self, metric: str) -> dict[str, dict[str, float]]:
        """Row -> language -> score."""
        return {
            row: {code: reached.scores[metric] for code, reached in of_row.items()}
            for row, of_row in self.measured.items()
        }

    def __str__(self) -> str:
        parts = []
        for metric, (label, files) in METRICS.items():
            published: dict[str, Published] = {}
            if not self.differences:
                published = {who: read_published(f"{files}-{end}") for who, end in ORIGINS.items()}
            shown = beside(published, self.scores(metric), self.languages, label)
            parts.append(shown.render(self.form))
        return "\n\n".join([*parts, *self.notes()])

    def notes(self) -> list[str]:
        """What a reader of the tables must know, one sentence each."""
        notes = [
            f"{row}, {code}: {reached.unanswered} of {reached.topics} topics without a hit count 0"
            for row, of_row in self.measured.items()
            for code, reached in of_row.items()
            if reached.unanswered
        ]
        if self.differences:
            notes.append(
                "Not comparable with published scores on Mr.TyDi, which are left out: "
                + "; ".join(self.differences)
            )
        return notes


def run(config: MrTydiConfig) -> Report:
    """Run the benchmark.

    Raises:
        UserError: If a language, the encoder or the settings cannot be used.
    """
    from ccpretrieve.model.checkpoint import default_encoder

    sources = find_sources(config)
    measured: dict[str, dict[str, Measured]] = {}
    for encoder in config.encoder or (default_encoder(),):
        row = config.tag or names.tag_of(encoder)
        for code, source in sources.items():
            reached = measure(config, encoder, source)
            measured.setdefault(row, {})[code] = reached
            shown = ", ".join(f"{name} {value:.4f}" for name, value in reached.scores.items())
            logger.info("%s, %s: %s", row, code, shown)
    one = next(iter(measured.values()))
    differences = [
        difference(code, config.split, reached.passages, reached.topics)
        for code, reached in one.items()
    ]
    return Report(measured, tuple(sources), tuple(filter(None, differences)), config.format)


def find_sources(config: MrTydiConfig) -> dict[str, str]:
    """Language code -> what ``--corpus`` would say, in the order asked for.

    Raises:
        UserError: If there is no such folder, or it has no such language.
    """
    if config.data is None:
        there = {
            entry.language: entry.name for entry in table().values() if entry.family.name == FAMILY
        }
        place = "Mr.TyDi"
    else:
        if not config.data.is_dir():
            raise UserError(f"--data {config.data}: no such folder")
        folders = sorted(path for path in config.data.iterdir() if path.is_dir())
        there = {code: str(path) for path in folders if (code := guess(path.name))}
        place = str(config.data)
    wanted = [language(name).code for name in config.languages] or sorted(there)
    for code in wanted:
        if code not in there:
            raise unknown(f"language of {place}", code, sorted(there))
    if not wanted:
        raise UserError(f"--data {place}: no folder in it is named after a language")
    return {code: there[code] for code in wanted}


def measure(config: MrTydiConfig, encoder: str, source: str) -> Measured:
    """Encode, search and score one language, as far as that is not done."""
    shared: dict[str, Any] = {"data_dir": config.data_dir, "quiet": config.quiet}
    machine = {name: getattr(config, name) for name in ("batch_tokens", "device", "dtype")}
    settings = {name: getattr(config, name) for name in encode.SETTINGS}
    tag = config.tag or names.tag_of(encoder)
    index = Path(
        encode.run(
            EncodeConfig(corpus=source, encoder=encoder, tag=tag, **settings, **machine, **shared)
        )
    )
    corpus = open_corpus(source, config.data_dir)
    path = names.run_file(f"{corpus.name}.{config.split}", tag)
    wanted = SearchConfig(
        corpus=source,
        split=config.split,
        index=index,
        encoder=encoder,
        hits=DEPTH,
        output=path,
        tag=tag,
        **machine,
        **shared,
    )
    if is_searched(path, index, wanted, len(corpus.topics(config.split))):
        logger.info("%s: is there already", path)
    else:
        search.run(wanted)
    evaluation = evaluate.run(
        EvaluateConfig(
            run=(path,), qrels=source, split=config.split, metrics=tuple(METRICS), **shared
        )
    )
    (scores,) = evaluation.comparison.scores.values()
    passages = int(_meta(index)["index"]["count"])
    return Measured(scores.mean, passages, len(scores.per_topic), len(scores.unanswered))


def _meta(index: Path) -> Mapping[str, Any]:
    content = meta.read(index)
    assert content is not None, "encode writes it"
    return content


def is_searched(run_file: Path, index: Path, wanted: SearchConfig, topics: int) -> bool:
    """Whether a run is there, unchanged, and is what a search would write.

    Looked at are index, encoder, its settings, split, depth, and how many topics were searched;
    not the words of the questions.
    """
    made = read_sidecar(run_file) if run_file.is_file() else None
    if made is None:
        return False
    content = _meta(index)
    expected = {
        "topics": wanted.corpus,
        "split": wanted.split,
        "corpus": content["corpus"],
        "encoder": content["encoder"],
        "kind": content["index"]["kind"],
        "hits": wanted.hits,
        "topic_count": topics,
    }
    with run_file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return made.get("sha256") == digest and all(made.get(k) == v for k, v in expected.items())


def difference(code: str, split: str, passages: int, topics: int) -> str:
    """How data differs from what published scores are of; empty if it is Mr.TyDi v1.1, test.

    Args:
        code: Language.
        split: Of its topics.
        passages: How many were searched.
        topics: How many were judged.
    """
    entry = table().get(f"{FAMILY}-{code}")
    if entry is None:
        return f"{code} is no language of Mr.TyDi"
    if split != "test":
        return f"{code} is split {split}, published is test"
    (questions,) = read_published("mrtydi-questions").rows.values()
    if (passages, topics) == (entry.count, questions[code]):
        return ""
    return (
        f"{code} has {passages} passages and {topics} questions, "
        f"Mr.TyDi {entry.count} and {questions[code]:.0f}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`MrTydiConfig`."""
    command(run, MrTydiConfig, "benchmarks.mrtydi", argv)


if __name__ == "__main__":
    main()
