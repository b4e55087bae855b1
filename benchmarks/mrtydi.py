"""Mr.TyDi (section 4.3): questions and passages of one language, in up to eleven languages.

    python -m benchmarks.mrtydi --languages sw te --encoder intfloat/multilingual-e5-small
    python -m benchmarks.mrtydi --data DIR --languages ja ko --encoder runs/ccp

For each language and system (:mod:`benchmarks.systems`): encode or index, search, evaluate, so that
what is there is not done again and a killed benchmark goes on where it was; what it will take is
said first. Prints MRR@100 and Recall@100 beside the paper's Table 3 and Pyserini's baselines, if
the data is Mr.TyDi; whether it is, is decided by how many passages and questions a language has,
not by what a folder is called.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.mrtydi_report import METRICS, Measured, Report
from benchmarks.systems import BM25, DENSE, HYBRID, SYSTEMS, Setup
from benchmarks.table import read_published
from ccpretrieve import encode
from ccpretrieve.commandline import command
from ccpretrieve.config import FORMATS, FUSIONS, MINMAX, RRF, DataConfig, Many, Switch, one_of
from ccpretrieve.data.languages import guess, language
from ccpretrieve.data.registry import open_corpus, table
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.retrieval import bm25, fusion, names
from ccpretrieve.retrieval.runfile import read_run
from ccpretrieve.retrieval.significance import compare

logger = logging.getLogger("ccpretrieve.benchmarks.mrtydi")

FAMILY = "mrtydi"


@dataclass(frozen=True, kw_only=True)
class MrTydiConfig(DataConfig):
    """Encode, search and score languages of Mr.TyDi, beside published scores.

    Attributes:
        data: Folder with a folder in Mr.TyDi's layout for each language. Default: the corpora
            mrtydi-* that `python -m ccpretrieve.corpora` lists.
        languages: Codes or names of languages. Default: all there are.
        encoder: Checkpoint directories or hub names, a row each. Default: CCPRETRIEVE_ENCODER.
        systems: Of dense, bm25 and hybrid (the two fused).
        split: train, dev or test; published scores are of test.
        fusion: Of hybrid: rrf, minmax, zscore or alpha.
        weight: Of the fusion. Default: as in `search`.
        tune: Choose the weight on another split, such as dev, or on halves: each half of the
            questions gets the weight that is best for the other.
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
        format: text, markdown, latex, html or json.
        dry_run: Say what encoding would take, and do nothing.
    """

    data: Path | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    encoder: Annotated[tuple[str, ...], Many] = ()
    systems: Annotated[tuple[str, ...], Many] = (DENSE,)
    split: str = "test"
    fusion: str = MINMAX
    weight: float | None = None
    tune: str | None = None
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
    dry_run: Annotated[bool, Switch] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, FORMATS)
        one_of("fusion", self.fusion, FUSIONS)
        for name in self.systems or ("",):
            one_of("system", name, SYSTEMS)
        if self.tune is not None and (self.weight is not None or self.fusion == RRF):
            raise UserError("--tune chooses a weight: leave --weight out, and rrf has none")
        fusion.weights(self.fusion, self.weight)
        if self.tune == self.split:
            raise UserError(f"--tune {self.tune}: is what is scored; tune on another split")
        if self.tag is not None and len(self.encoder) > 1:
            raise UserError("--tag names one row; give one --encoder with it")


def run(config: MrTydiConfig) -> Report | str:
    """Run the benchmark.

    Returns:
        The report; with ``dry_run`` what encoding would take.

    Raises:
        UserError: If a language, the encoder or the settings cannot be used.
    """
    sources = find_sources(config)
    expected = estimated(config, sources)
    if config.dry_run:
        return expected
    logger.info("%s", expected)
    measured: dict[str, dict[str, Measured]] = {row: {} for row in rows(config)}
    for code, source in sources.items():
        for row, reached in measure(config, source).items():
            measured[row][code] = reached
            shown = ", ".join(f"{name} {value:.4f}" for name, value in reached.scores.items())
            logger.info("%s, %s: %s", row, code, shown)
    differences = []
    for code in sources:
        found = [of_row[code] for of_row in measured.values()]
        passages = max(each.passages for each in found)  # BM25 counts none without text
        differences.append(difference(code, config.split, passages, found[0].topics))
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


def rows(config: MrTydiConfig) -> dict[str, tuple[str, str]]:
    """Row -> system and encoder, in the order of the table."""
    from ccpretrieve.model.checkpoint import default_encoder

    found = [(bm25.TAG, (BM25, ""))] if BM25 in config.systems else []
    if DENSE in config.systems or HYBRID in config.systems:
        for encoder in config.encoder or (default_encoder(),):
            tag = config.tag or names.tag_of(encoder)
            if DENSE in config.systems:
                found.append((tag, (DENSE, encoder)))
            if HYBRID in config.systems:
                found.append((f"{tag}-{bm25.TAG}", (HYBRID, encoder)))
    called = [name for name, _ in found]
    for name in called:
        if called.count(name) > 1 or (name == bm25.TAG and BM25 not in config.systems):
            raise UserError(
                f"two rows, and their files, would be called {name}; give one of the encoders' "
                "folders another name, or run them one by one with --tag"
            )
    return dict(found)


def setup(config: MrTydiConfig, source: str) -> Setup:
    """How one language is encoded and searched."""
    return Setup(
        corpus=source,
        split=config.split,
        settings={name: getattr(config, name) for name in encode.SETTINGS},
        machine={name: getattr(config, name) for name in ("batch_tokens", "device", "dtype")},
        data_dir=config.data_dir,
        fusion=config.fusion,
        weight=config.weight,
        tune=config.tune,
        quiet=config.quiet,
    )


def measure(config: MrTydiConfig, source: str) -> dict[str, Measured]:
    """All systems in one language, as far as that is not done: row -> what it reached."""
    made, searched = setup(config, source), {}
    for row, (system, encoder) in rows(config).items():
        tag = config.tag or names.tag_of(encoder)
        if system == BM25:
            searched[row] = made.bm25()
        else:
            searched[row] = (made.dense if system == DENSE else made.hybrid)(encoder, tag)
    runs = {row: read_run(each.run) for row, each in searched.items()}
    compared = compare(made.opened().qrels(config.split), runs, tuple(METRICS))
    return {
        row: Measured(
            scores.mean,
            searched[row].passages,
            len(scores.per_topic),
            len(scores.unanswered),
            tuple(name for name in METRICS if bm25.TAG in compared.better_than(row, name)),
        )
        for row, scores in compared.scores.items()
    }


def estimated(config: MrTydiConfig, sources: Mapping[str, str]) -> str:
    """What encoding will take, a line a language and encoder that has no index yet."""
    from benchmarks.estimates import estimate, total
    from ccpretrieve.model.encoder import Encoder

    found = []
    for encoder in dict.fromkeys(encoder for _, encoder in rows(config).values() if encoder):
        tag = config.tag or names.tag_of(encoder)
        corpora = [open_corpus(source, config.data_dir) for source in sources.values()]
        left = [each for each in corpora if not names.index_folder(each.name, tag).is_dir()]
        if left:
            made = setup(config, "")
            opened = Encoder.load(encoder, **made.settings, **made.machine)
            found += [estimate(corpus, opened) for corpus in left]
    lines = [str(one) for one in found]
    return "\n".join([*lines, total(found)]) if found else "nothing is left to encode"


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
