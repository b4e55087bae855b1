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
from typing import TYPE_CHECKING, Annotated

from benchmarks.mrtydi_report import METRICS, Measured, Report
from benchmarks.systems import BM25, DENSE, HYBRID, SYSTEMS, Setup
from benchmarks.table import read_published
from ccpretrieve.commandline import command
from ccpretrieve.config import FORMATS, EncoderConfig, Many, Switch, one_of
from ccpretrieve.data.languages import guess, language
from ccpretrieve.data.registry import table
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.retrieval import bm25, fusion, names
from ccpretrieve.retrieval.runfile import read_run
from ccpretrieve.retrieval.significance import compare
from ccpretrieve.search_config import FUSIONS, MINMAX, RRF

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

logger = logging.getLogger("ccpretrieve.benchmarks.mrtydi")

FAMILY = "mrtydi"


@dataclass(frozen=True, kw_only=True)
class MrTydiConfig(EncoderConfig):
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
    sources = setups(config)
    expected = estimated(config, sources)
    if config.dry_run:
        return expected
    logger.info("%s", expected)
    measured: dict[str, dict[str, Measured]] = {row: {} for row in rows(config)}
    for code, made in sources.items():
        for row, reached in measure(config, made).items():
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


def setups(config: MrTydiConfig) -> dict[str, Setup]:
    """Language code -> how it is encoded and searched; all with the same open encoders."""
    encoders: dict[str, Encoder] = {}
    return {
        code: Setup(
            corpus=source,
            split=config.split,
            settings=config,
            fusion=config.fusion,
            weight=config.weight,
            tune=config.tune,
            encoders=encoders,
        )
        for code, source in find_sources(config).items()
    }


def measure(config: MrTydiConfig, made: Setup) -> dict[str, Measured]:
    """All systems in one language, as far as that is not done: row -> what it reached."""
    searched = {}
    for row, (system, encoder) in rows(config).items():
        tag = config.tag or names.tag_of(encoder)
        if system == BM25:
            searched[row] = made.bm25()
        else:
            searched[row] = (made.dense if system == DENSE else made.hybrid)(encoder, tag)
    runs = {row: read_run(each.run) for row, each in searched.items()}
    compared = compare(made.opened.qrels(config.split), runs, tuple(METRICS))
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


def estimated(config: MrTydiConfig, sources: Mapping[str, Setup]) -> str:
    """What encoding will take, a line a language and encoder that has no index yet."""
    from benchmarks.estimates import expect, total

    def left(tag: str) -> list[Setup]:
        each = sources.values()
        return [made for made in each if not names.index_folder(made.opened.name, tag).is_dir()]

    found = []
    for encoder in dict.fromkeys(encoder for _, encoder in rows(config).values() if encoder):
        tag = config.tag or names.tag_of(encoder)
        found += [expect(made, encoder, tag) for made in left(tag)]
    lines = [*map(str, found), total(found) if found else "nothing is left to encode"]
    if DENSE not in config.systems or len(config.systems) > 1:
        words = [made.opened.name for made in left(bm25.TAG)]
        lines += [f"BM25 indexes that are left to make: {', '.join(words)}"] if words else []
    return "\n".join(lines)


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
