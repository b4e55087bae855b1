"""Retrieval across languages, before and after calibration: one index, questions in others.

    python -m benchmarks.crosslingual --data data/xquad --encoder E --calibration F.safetensors

``--data`` has a folder in Mr.TyDi's layout for each language, question and passage ids the same in
all of them, as XQuAD comes. The passages of ``--passages`` are indexed twice, raw and calibrated,
and the questions of the other languages asked of both. By the functions of the commands ``encode``
and ``search``, so that what is measured is what a user has.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from benchmarks.table import grid
from ccpretrieve.commandline import command
from ccpretrieve.config import POOLINGS, Config, EncodeConfig, Many, one_of
from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory
from ccpretrieve.search_config import SearchConfig

logger = logging.getLogger("ccpretrieve.benchmarks.crosslingual")

METRICS = ("mrr@100", "recall@10")
RAW, CALIBRATED = WAYS = ("raw", "calibrated")


@dataclass(frozen=True, kw_only=True)
class CrosslingualConfig(Config):
    """Ask questions of one language's passages in others, raw and calibrated.

    Attributes:
        data: Folder with a folder in Mr.TyDi's layout for each language.
        calibration: File that `python -m ccpretrieve.calibrate` wrote for this encoder.
        encoder: Checkpoint directory or hub name. Default: CCPRETRIEVE_ENCODER.
        passages: Language of the passages.
        languages: Of the questions. Default: all that --data and --calibration have; the mean is
            over those that are not the passages' own.
        pooling: cls or mean. Default: the checkpoint's.
        layer: Hidden states to pool. Default: the checkpoint's.
        similarity: dot or cosine. Default: the checkpoint's.
        title: Of a passage: pair, join or drop. Default: the checkpoint's.
        query_prefix: Put before every question. Default: the checkpoint's.
        passage_prefix: Put before every passage. Default: the checkpoint's.
        work: Where indexes and runs are written.
    """

    data: Path
    calibration: Path
    encoder: str | None = None
    passages: str = "en"
    languages: Annotated[tuple[str, ...], Many] = ()
    pooling: str | None = None
    layer: int | None = None
    similarity: str | None = None
    title: str | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    work: Path = Path("runs/crosslingual")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("pooling", self.pooling, POOLINGS)


Scores = Mapping[str, Mapping[str, float]]  # language -> metric -> score


@dataclass(frozen=True)
class Comparison:
    """What was reached.

    Attributes:
        passages: Language of the passages.
        ways: ``raw`` and ``calibrated`` -> scores.
    """

    passages: str
    ways: Mapping[str, Scores]

    def __str__(self) -> str:
        head = ["questions"]
        for metric in METRICS:
            head += [f"{metric} {RAW}", CALIBRATED, "change"]
        languages = list(self.ways[RAW])
        body = [[code, *self._cells([code])] for code in languages]
        others = [code for code in languages if code != self.passages]
        if others:
            body.append([f"mean of {len(others)}", *self._cells(others)])
        return grid([head, *body])

    def _cells(self, languages: Sequence[str]) -> list[str]:
        cells = []
        for metric in METRICS:
            raw, calibrated = (
                fmean(self.ways[way][code][metric] for code in languages) for way in WAYS
            )
            cells += [f"{raw:.4f}", f"{calibrated:.4f}", f"{calibrated - raw:+.4f}"]
        return cells


def run(config: CrosslingualConfig) -> Comparison:
    """Index the passages and ask the questions, both ways.

    Raises:
        UserError: If the data, the encoder or the calibration cannot be used.
    """
    languages = _languages(config)
    _check_raw(config)
    make_directory(config.work)
    ways = {}
    for way in WAYS:
        index = _indexed(config, config.calibration if way == CALIBRATED else None, way)
        ways[way] = {code: _asked(config, index, code, way) for code in languages}
    return Comparison(config.passages, ways)


def _languages(config: CrosslingualConfig) -> tuple[str, ...]:
    from ccpretrieve.model.calibration_file import Calibration

    fitted = Calibration.load(config.calibration).languages
    there = [path.name for path in sorted(config.data.glob("*")) if path.is_dir()]
    wanted = config.languages or tuple(code for code in there if code in fitted)
    for code in (config.passages, *wanted):
        if code not in there:
            raise UserError(f"{config.data}: has no folder {code}; it has {', '.join(there)}")
        if code not in fitted:
            raise UserError(f"{config.calibration}: has no statistics of {code}; fit them too")
    return wanted


def _check_raw(config: CrosslingualConfig) -> None:
    """Fail if a checkpoint would calibrate unasked: nothing would be raw."""
    from ccpretrieve.model.checkpoint import default_encoder, locate
    from ccpretrieve.model.settings import read_settings

    name = config.encoder or default_encoder()
    if (own := read_settings(locate(name), name)[0].calibration) is not None:
        raise UserError(
            f"encoder {name}: names a calibration of its own, {own}, so that nothing of it is raw; "
            "take that out of its ccpretrieve.json"
        )


def _indexed(config: CrosslingualConfig, calibration: Path | None, way: str) -> Path:
    from ccpretrieve import encode

    asked: dict[str, Any] = {
        name: getattr(config, name)
        for name in (*("pooling", "layer", "similarity", "title"), "query_prefix", "passage_prefix")
    }
    index = encode.run(
        EncodeConfig(
            corpus=str(config.data / config.passages),
            encoder=config.encoder,
            lang=config.passages,
            calibration=calibration,
            output=config.work / f"{config.passages}.{way}.index",
            quiet=config.quiet,
            **asked,
        )
    )
    assert isinstance(index, Path)
    return index


def _asked(config: CrosslingualConfig, index: Path, code: str, way: str) -> Mapping[str, float]:
    """Scores of one language's questions."""
    from ccpretrieve import search
    from ccpretrieve.data.folder import FolderCorpus
    from ccpretrieve.retrieval.metrics import score
    from ccpretrieve.retrieval.runfile import read_run

    made = search.run(
        SearchConfig(
            index=index,
            topics=str(config.data / code),
            lang=code,
            output=config.work / f"{code}.{way}.trec",
            hits=100,
            quiet=config.quiet,
        )
    )
    assert isinstance(made, Path)
    qrels = FolderCorpus(config.data / code).qrels("test")
    reached = score(qrels, read_run(made), METRICS).mean
    logger.info("%s, %s: %s", code, way, reached)
    return reached


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`CrosslingualConfig`."""
    command(run, CrosslingualConfig, "benchmarks.crosslingual", argv)


if __name__ == "__main__":
    main()
