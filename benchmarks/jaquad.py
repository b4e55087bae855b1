"""Does fine-tuning learn, and does it cross languages? JaQuAD's questions in DPR's JSON (4.3).

    python -m benchmarks.jaquad --jaquad data/jaquad/ja --xquad data/xquad --encoder E

    mine      hard negatives of the training questions, by BM25, among the passages that no test
              question is judged for                                python -m ccpretrieve.mine
    train     from the first layers of E, in so many minutes, with hard negatives and without
    test      MRR@100 on JaQuAD's test questions, in 2,000 passages: all that are judged for them,
              and of the others those first by a hash of their id
    zero-shot MRR@100 on XQuAD in languages that were not trained on, each on itself

Articles of the test are none of the training's. Finished parts are kept in --work, which is refused
to other settings. A training that was stopped goes on for the minutes that are left of it.
"""

import gzip
import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.parts import claim
from benchmarks.table import grid
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, EncodeConfig, Many, at_least
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, make_directory, read_json, write_json
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.mine_config import MineConfig
from ccpretrieve.search_config import SearchConfig

logger = logging.getLogger("ccpretrieve.benchmarks.jaquad")

METRIC = "mrr@100"
JAQUAD = "JaQuAD ja"
START = "start"
#: Of a training that was stopped with its time all but over: what it ends in.
LEAST_MINUTES = 1e-6
#: What is trained -> hard negatives of a question.
CELLS = {"hard negatives": 1, "in-batch only": 0}


@dataclass(frozen=True, kw_only=True)
class JaquadConfig(Config):
    """Fine-tune on JaQuAD and score there and on XQuAD.

    Attributes:
        jaquad: Folder in Mr.TyDi's layout, with topics and judgements of train and test.
        xquad: Folder with a folder in that layout for each language; none for no zero-shot.
        encoder: Checkpoint to start from. Default: CCPRETRIEVE_ENCODER.
        languages: Of --xquad. Default: all.
        cells: Of hard negatives and in-batch only. Default: both.
        minutes: Of each training.
        layers: First layers of the encoder that are kept.
        passages: In the collection that is tested.
        batch_size: Questions of a batch.
        learning_rate: After the warm-up.
        temperature: tau.
        query_length: Tokens of a question.
        passage_length: Tokens of a passage, in training and test.
        seed: Of the training.
        work: Where everything is kept.
    """

    jaquad: Path
    xquad: Path | None = None
    encoder: str | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    cells: Annotated[tuple[str, ...], Many] = tuple(CELLS)
    minutes: float = 45
    layers: int = 6
    passages: int = 2000
    batch_size: int = 48
    learning_rate: float = 3e-5
    temperature: float = 0.05
    query_length: int = 48
    passage_length: int = 160
    seed: int = 42
    work: Path = Path("runs/jaquad")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("--passages", self.passages, 2)
        for name in self.cells:
            if name not in CELLS:
                raise UserError(f"--cells {name}: one of {', '.join(CELLS)}")


@dataclass(frozen=True)
class Report:
    """MRR@100 by what was trained.

    Attributes:
        scores: ``start`` and cells -> collection -> score.
        notes: Of the data and the trainings, a line each.
    """

    scores: Mapping[str, Mapping[str, float]]
    notes: Sequence[str]

    def __str__(self) -> str:
        head = [METRIC, *self.scores]
        start = self.scores[START]
        rows = [
            [name, *(self._cell(way, name, start[name]) for way in self.scores)] for name in start
        ]
        return "\n\n".join([grid([head, *rows]), "\n".join(self.notes)])

    def _cell(self, way: str, name: str, before: float) -> str:
        reached = self.scores[way][name]
        change = "" if way == START else f" ({100 * (reached - before):+.1f})"
        return f"{100 * reached:.1f}{change}"


def run(config: JaquadConfig) -> Report:
    """Mine, train, test.

    Raises:
        UserError: If the data or the encoder cannot be used.
    """
    _check_work(config)
    train = mined(config)
    collections = {JAQUAD: subset(config)} | _zero_shot(config)
    notes = [_note("data", read_json(config.work / "data.json"))]
    scores = {START: scored(config, START, None, collections)}
    for cell in config.cells:
        made = trained(config, cell, train)
        scores[cell] = scored(config, cell, made, collections)
        report = read_json(made / "training" / "report.json")
        notes.append(
            f"{cell}: {report['step']} updates of {config.batch_size} questions in "
            f"{report['seconds'] / 60:.1f} minutes, epoch {report['epoch']:.2f}"
        )
    return Report(scores, notes)


def _check_work(config: JaquadConfig) -> None:
    """Refuse a folder of parts that were made with other settings."""
    free = ("quiet", "work", "cells", "languages", "xquad")
    claim(config.work, {name: v for name, v in vars(config).items() if name not in free})


def _note(name: str, values: Mapping[str, Any]) -> str:
    return f"{name}: " + ", ".join(f"{value} {what}" for what, value in values.items())


def mined(config: JaquadConfig) -> Path:
    """Training questions with hard negatives, as one array in DPR's JSON."""
    from ccpretrieve import mine

    path = config.work / "train.json"
    if path.is_file():
        return path
    corpus, lines = FolderCorpus(config.jaquad), config.work / "train.jsonl"
    of_test = {passage for grades in corpus.qrels("test").values() for passage in grades}
    others = {record.passage.id for record in corpus.records()} - of_test
    write_collection(corpus, others, "train", config.work / "train")
    mine.run(
        MineConfig(
            corpus=str(config.work / "train"),
            lang="ja",
            from_="bm25",
            answers=config.jaquad / "answers.train.jsonl",
            output=lines,
            quiet=config.quiet,
        )
    )
    with lines.open(encoding="utf-8") as records, atomic(path) as stream:
        for number, line in enumerate(records):
            stream.write(b"[" if number == 0 else b",\n")
            stream.write(line.strip().encode())
        stream.write(b"]\n")
    return path


def subset(config: JaquadConfig) -> Path:
    """The collection that is tested, in Mr.TyDi's layout."""
    folder = config.work / "test"
    if (config.work / "data.json").is_file():
        return folder
    corpus = FolderCorpus(config.jaquad)
    judged = {passage for grades in corpus.qrels("test").values() for passage in grades}
    ids = sorted({record.passage.id for record in corpus.records()} - judged, key=_hash)
    kept = judged | set(ids[: max(0, config.passages - len(judged))])
    topics = write_collection(corpus, kept, "test", folder)
    write_json(config.work / "data.json", {"test questions": topics, "passages": len(kept)})
    return folder


def write_collection(corpus: FolderCorpus, kept: Collection[str], split: str, folder: Path) -> int:
    """Some passages of a corpus with a split's topics and judgements, in Mr.TyDi's layout.

    Returns:
        Topics written: those that are judged.
    """
    qrels = corpus.qrels(split)
    topics = [topic for topic in corpus.topics(split) if topic.id in qrels]
    make_directory(folder / "collection")
    with atomic(folder / "collection" / "docs.jsonl.gz") as file, gzip.open(file, "wb") as stream:
        for record in corpus.records():
            if (passage := record.passage).id in kept:
                contents = f"{passage.title}\n\n{passage.text}"
                line = json.dumps({"id": passage.id, "contents": contents}, ensure_ascii=False)
                stream.write(line.encode() + b"\n")
    with atomic(folder / f"topic.{split}.tsv") as stream:
        stream.writelines(f"{topic.id}\t{topic.text}\n".encode() for topic in topics)
    with atomic(folder / f"qrels.{split}.txt") as stream:
        stream.writelines(_judgements(qrels))
    return len(topics)


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _judgements(qrels: Mapping[str, Mapping[str, int]]) -> Iterator[bytes]:
    for topic, grades in qrels.items():
        for passage, grade in grades.items():
            yield f"{topic} Q0 {passage} {grade}\n".encode()


def _zero_shot(config: JaquadConfig) -> dict[str, Path]:
    if config.xquad is None:
        return {}
    there = [path.name for path in sorted(config.xquad.glob("*")) if path.is_dir()]
    return {f"XQuAD {code}": config.xquad / code for code in config.languages or there}


def trained(config: JaquadConfig, cell: str, train: Path) -> Path:
    """The checkpoint of a cell: kept, gone on with, or begun."""
    from ccpretrieve import finetune
    from ccpretrieve.training.states import begun, minutes_behind

    output = config.work / cell.replace(" ", "-")
    if (output / "training" / "report.json").is_file():
        return output
    left = config.minutes - (minutes_behind(output) if begun(output) else 0.0)
    made = finetune.run(
        FinetuneConfig(
            train=(str(train),),
            encoder=config.encoder,
            output=output,
            resume=begun(output),
            hard_negatives=CELLS[cell],
            max_minutes=max(left, LEAST_MINUTES),
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            temperature=config.temperature,
            layers=config.layers,
            query_length=config.query_length,
            passage_length=config.passage_length,
            seed=config.seed,
            quiet=config.quiet,
            **SETTINGS,
        )
    )
    assert made is not None
    return made


#: Of every training: one tower, as the start was trained; token embeddings as they are.
SETTINGS: dict[str, Any] = {
    **{"tied": True, "pooling": "mean", "similarity": "cosine", "title": "join"},
    **{"freeze_embeddings": True, "mask_positives": True, "strip_question_mark": False},
    **{"warmup_steps": 20, "schedule": "constant", "save_steps": 50, "trackers": ("none",)},
}


def scored(
    config: JaquadConfig, way: str, made: Path | None, collections: Mapping[str, Path]
) -> dict[str, float]:
    """MRR@100 on every collection; kept."""
    folder = config.work / way.replace(" ", "-")
    path = make_directory(folder.with_name(f"{folder.name}.scores")) / "scores.json"
    kept: dict[str, float] = read_json(path) if path.is_file() else {}
    for name, corpus in collections.items():
        if name not in kept:
            kept[name] = _score(config, made, corpus, path.parent / name.replace(" ", "-"))
            write_json(path, kept)
            logger.info("%s, %s: %s %.4f", way, name, METRIC, kept[name])
    return {name: kept[name] for name in collections}


def _score(config: JaquadConfig, made: Path | None, corpus: Path, work: Path) -> float:
    from ccpretrieve import encode, search
    from ccpretrieve.retrieval.metrics import score
    from ccpretrieve.retrieval.runfile import read_run

    of_start: dict[str, Any] = {
        **{"encoder": config.encoder, "layer": config.layers, "pooling": "mean"},
        **{"similarity": "cosine", "title": "join", "max_length": config.passage_length},
    }
    asked = of_start if made is None else {"encoder": str(made)}
    index = encode.run(
        EncodeConfig(corpus=str(corpus), output=work.with_suffix(".index"), quiet=True, **asked)
    )
    assert isinstance(index, Path)
    run_file = search.run(
        SearchConfig(index=index, topics=str(corpus), output=work.with_suffix(".trec"), quiet=True)
    )
    assert isinstance(run_file, Path)
    return score(FolderCorpus(corpus).qrels("test"), read_run(run_file), (METRIC,)).mean[METRIC]


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`JaquadConfig`."""
    command(run, JaquadConfig, "benchmarks.jaquad", argv, kept="finished parts are kept")


if __name__ == "__main__":
    main()
