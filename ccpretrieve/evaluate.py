"""Score runs against relevance judgements: MRR, Recall, nDCG and hits, several runs side by side.

    python -m ccpretrieve.evaluate --run runs/mrtydi-ja.test.ccp.trec
    python -m ccpretrieve.evaluate --run a.trec b.trec --qrels qrels.txt --format latex

Without ``--qrels`` the judgements are those of the topics that were searched, as the sidecar of
the run names them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccpretrieve.commandline import command
from ccpretrieve.config import EvaluateConfig
from ccpretrieve.data.records import Qrels
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.metrics import Metric, Scores, parse_metrics
from ccpretrieve.retrieval.runfile import Run, read_run, read_sidecar
from ccpretrieve.retrieval.scoretable import LETTERS, Row, ScoreTable
from ccpretrieve.retrieval.significance import TESTS, Comparison, compare

SPLIT = "test"  # where nobody names one
SHOWN = 5  # ids named in a note; JSON names all


@dataclass(frozen=True)
class Evaluation:
    """Scores of runs; as a string, the report in the format that was asked for.

    Attributes:
        comparison: Scores of every run, by name, and the tests between them.
        files: Run name -> its file.
        judgements: Where the judgements came from.
        metrics: What was measured.
        form: text, json, markdown, latex or html.
        per_topic: Whether the report holds every topic's scores.
    """

    comparison: Comparison
    files: dict[str, Path]
    judgements: str
    metrics: tuple[Metric, ...]
    form: str = "text"
    per_topic: bool = False

    def __str__(self) -> str:
        if self.form == "json":
            return json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        parts = [self.table()] + ([self.topic_table()] if self.per_topic else [])
        return "\n\n".join(part.render(self.form) for part in parts)

    @property
    def labels(self) -> dict[str, str]:
        """Run name -> the letter it is marked by; no letter for a single run."""
        names = list(self.files)
        return dict(zip(names, LETTERS if len(names) > 1 else [""], strict=False))

    def table(self) -> ScoreTable:
        """One row a run, one column a metric, and notes of what was counted how."""
        rows = []
        for name, scores in self.comparison.scores.items():
            marks = [
                "".join(self.labels[worse] for worse in self.comparison.better_than(name, m.name))
                for m in self.metrics
            ]
            means = [scores.mean[metric.name] for metric in self.metrics]
            rows.append(Row(name, means, marks, self.labels[name]))
        return ScoreTable([metric.label for metric in self.metrics], rows, notes=self.notes())

    def topic_table(self) -> ScoreTable:
        """One row a topic, one column a metric and run."""
        scores = self.comparison.scores
        first = next(iter(scores.values()))
        return ScoreTable(
            [f"{m.label} {self.labels[name]}".rstrip() for m in self.metrics for name in scores],
            [
                Row(
                    topic,
                    [s.per_topic[topic][m.name] for m in self.metrics for s in scores.values()],
                )
                for topic in first.per_topic
            ],
            corner="topic",
        )

    def notes(self) -> list[str]:
        """What a reader of the table must know, one sentence each."""
        all_scores = self.comparison.scores
        first = next(iter(all_scores.values()))
        notes = [f"{_topics(len(first.per_topic))} judged in {self.judgements}"]
        if first.without_relevant:
            ids = _ids(first.without_relevant)
            notes.append(f"without a relevant passage, counted 0 as trec_eval -c does: {ids}")
        if first.left_out:
            notes.append(f"without any judgement, left out: {_ids(first.left_out)}")
        for name, scores in all_scores.items():
            run = f"{self.labels[name] or name}: "
            if scores.unanswered:
                notes.append(f"{run}without a hit, counted 0: {_ids(scores.unanswered)}")
            if scores.unjudged:
                notes.append(f"{run}in the run but not judged, left out: {_ids(scores.unjudged)}")
        return notes + (self._significance() if len(all_scores) > 1 else [])

    def _significance(self) -> list[str]:
        """What the superscripts mean, and which runs do not differ at all."""
        if not self.comparison.p_values:
            return ["no significance test: it takes two topics or more"]
        test, alpha = TESTS[self.comparison.test], self.comparison.alpha
        notes = [f"superscript: significantly better than that run ({test}, p < {alpha:g})"]
        names = list(self.files)
        for i, name in enumerate(names):
            for other in names[i + 1 :]:
                if same := self.comparison.same(name, other):
                    by = ", ".join(m.label for m in self.metrics if m.name in same)
                    pair = f"{self.labels[name]} and {self.labels[other]}"
                    notes.append(f"no difference between {pair} on any topic: {by}")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON holds it."""
        return {
            "judgements": self.judgements,
            "metrics": [metric.name for metric in self.metrics],
            "significance": {"test": self.comparison.test, "alpha": self.comparison.alpha},
            "runs": [self._run(name, scores) for name, scores in self.comparison.scores.items()],
        }

    def _run(self, name: str, scores: Scores) -> dict[str, Any]:
        """One run, as JSON holds it; p-values are to every other run."""
        names = [metric.name for metric in self.metrics]
        compared = {
            metric: {
                other: values[frozenset((name, other))] for other in self.files if other != name
            }
            for metric, values in self.comparison.p_values.items()
        }
        return {
            "name": name,
            "file": str(self.files[name]),
            "scores": scores.mean,
            "topics": len(scores.per_topic),
            "unanswered": scores.unanswered,
            "without_relevant": scores.without_relevant,
            "left_out": scores.left_out,
            "unjudged": scores.unjudged,
            "better_than": {metric: self.comparison.better_than(name, metric) for metric in names},
            "p_values": compared,
            **({"per_topic": scores.per_topic} if self.per_topic else {}),
        }


def _topics(count: int) -> str:
    return f"{count} topic" + ("" if count == 1 else "s")


def _ids(ids: Sequence[str]) -> str:
    """How many, and the first few."""
    more = ", ..." if len(ids) > SHOWN else ""
    return f"{_topics(len(ids))} ({', '.join(ids[:SHOWN])}{more})"


def run(config: EvaluateConfig) -> Evaluation:
    """Score the runs.

    Raises:
        UserError: If a run or the judgements cannot be read or do not fit together, or a metric is
            unknown.
    """
    metrics = parse_metrics(config.metrics)
    if config.per_topic and config.format not in ("text", "json"):
        raise UserError("--per-topic goes with --format text or json")
    files = named(config.run)
    for path in config.run:
        if path.is_dir():
            raise UserError(f"{path}: a folder; name a run file in it")
    if config.qrels:
        source, split = config.qrels, config.split or SPLIT
    else:
        source, split = searched_topics(config)
    judgements, qrels = read_judgements(source, split, config.data_dir)
    runs: dict[str, Run] = {}
    for name, path in files.items():
        runs[name] = read_run(path)
        if not any(qrels.get(topic) for topic in runs[name]):
            raise UserError(
                f"{path}: no topic of the run is judged in {judgements}: the run has "
                f"{next(iter(runs[name]))!r}, the judgements {next(iter(qrels), 'none')!r}; give "
                "the --qrels or the --split of the topics that were searched"
            )
    names = [metric.name for metric in metrics]
    comparison = compare(qrels, runs, names, config.significance, config.alpha)
    return Evaluation(comparison, files, judgements, metrics, config.format, config.per_topic)


def named(paths: Sequence[Path]) -> dict[str, Path]:
    """Name each run by its file without ``.trec``, or by its path where two files are named alike.

    Raises:
        UserError: If a file is given twice, or more than there are letters for.
    """
    if len(paths) > len(LETTERS):
        raise UserError(f"--run: {len(paths)} runs; at most {len(LETTERS)} go side by side")
    twice = [path for i, path in enumerate(paths) if path in paths[:i]]
    if twice:
        raise UserError(f"--run: {twice[0]} is given twice")
    short = [path.name.removesuffix(".gz").removesuffix(".trec") for path in paths]
    return {
        name if short.count(name) == 1 else str(path): path
        for name, path in zip(short, paths, strict=True)
    }


def searched_topics(config: EvaluateConfig) -> tuple[str, str]:
    """Name and split of the topics that the runs were made of, as their sidecars say.

    Raises:
        UserError: If none says so, they differ, or ``--split`` asks for another one.
    """
    found: dict[tuple[str, str], Path] = {}
    for path in config.run:
        if not path.exists():
            raise UserError(f"{path}: no such file; check the name")
        sidecar = read_sidecar(path) or {}
        topics, split = str(sidecar.get("topics") or ""), sidecar.get("split")
        if topics and not Path(topics).is_file():  # a file of questions has no judgements
            found.setdefault((topics, str(split or config.split or SPLIT)), path)
    if not found:
        raise UserError(
            f"{config.run[0]}: nothing beside it names judgements; give --qrels, a file or the "
            "name of a corpus (with --split)"
        )
    (topics, split), path = next(iter(found.items()))
    if len(found) > 1:
        (other, other_split), other_path = list(found.items())[1]
        raise UserError(
            f"{path} is a run of {topics}, split {split}, but {other_path} of {other}, split "
            f"{other_split}; evaluate them one by one, or give --qrels"
        )
    if config.split not in (None, split):
        raise UserError(
            f"{path} is a run of {topics}, split {split}, not {config.split}; leave --split out, "
            "or give --qrels too"
        )
    return topics, split


def read_judgements(source: str, split: str, data_dir: Path | None) -> tuple[str, Qrels]:
    """Read judgements from a file, or those of a corpus.

    Returns:
        Words that say where they came from, and the judgements.

    Raises:
        UserError: If there are none, or they cannot be read.
    """
    from ccpretrieve.data.readers import read_qrels
    from ccpretrieve.data.registry import open_corpus

    if Path(source).is_file():
        return source, read_qrels(Path(source))
    return f"{source}, split {split}", open_corpus(source, data_dir).qrels(split)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    command(run, EvaluateConfig, "evaluate", argv)


if __name__ == "__main__":
    main()
