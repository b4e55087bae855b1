"""Scores on Mr.TyDi as tables beside published ones, with what is significantly above BM25."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from benchmarks.table import Published, beside, read_published
from ccpretrieve.retrieval import bm25
from ccpretrieve.retrieval.scoretable import ScoreTable

#: Metric -> its label and the files of published scores, without their origin.
METRICS = {
    "mrr@100": ("MRR@100", "mrtydi-mrr100"),
    "recall@100": ("Recall@100", "mrtydi-recall100"),
}
#: Who published scores -> the end of their files' names.
ORIGINS = {"paper": "paper", "Pyserini": "pyserini"}
MARK = "b"  # of a score that is significantly above BM25's


@dataclass(frozen=True)
class Measured:
    """What one system reached in one language.

    Attributes:
        scores: Metric name -> mean over topics.
        passages: In the index.
        topics: That were judged.
        unanswered: Of these, how many have no hit.
        above_bm25: Metrics by which it is significantly better than BM25, where that was run.
    """

    scores: Mapping[str, float]
    passages: int
    topics: int
    unanswered: int
    above_bm25: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """Scores of all rows; as a string, the tables.

    Attributes:
        measured: Row -> language -> what was reached.
        languages: The columns.
        differences: Why published scores cannot be compared; empty if they can.
        form: text, markdown, latex, html or json.
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
        if self.form == "json":
            return json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        return "\n\n".join(table.render(self.form) for table in self.tables())

    def tables(self) -> list[ScoreTable]:
        """One for each metric, the notes below the last."""
        tables = []
        for metric, (label, files) in METRICS.items():
            published: dict[str, Published] = {}
            if not self.differences:
                published = {who: read_published(f"{files}-{end}") for who, end in ORIGINS.items()}
            scores, marks = self.scores(metric), self._marks(metric)
            tables.append(beside(published, scores, self.languages, label, marks))
        last = tables[-1]
        return [*tables[:-1], replace(last, notes=[*last.notes, *self.notes()])]

    def as_dict(self) -> dict[str, object]:
        """Everything, as JSON holds it: the tables, and what only JSON has room for."""
        shown = self.tables()
        tables = {table.corner: json.loads(table.render("json")) for table in shown}
        measured = {
            row: {code: asdict(reached) for code, reached in of_row.items()}
            for row, of_row in self.measured.items()
        }
        return {
            **tables,
            "languages": self.languages,
            "measured": measured,
            "notes": [note for table in shown for note in table.notes],
        }

    def _marks(self, metric: str) -> dict[str, dict[str, str]]:
        """Row -> language -> mark."""
        return {
            row: {code: MARK for code, reached in of_row.items() if metric in reached.above_bm25}
            for row, of_row in self.measured.items()
        }

    def notes(self) -> list[str]:
        """What a reader of the tables must know, one sentence each."""
        notes = [
            f"{row}, {code}: {reached.unanswered} of {reached.topics} topics without a hit count 0"
            for row, of_row in self.measured.items()
            for code, reached in of_row.items()
            if reached.unanswered
        ]
        if bm25.TAG in self.measured and len(self.measured) > 1:
            notes.append(
                f"superscript {MARK}: significantly above BM25 here (Student's paired t-test over "
                "topics, p < 0.05)"
            )
        if self.differences:
            notes.append(
                "Not comparable with published scores on Mr.TyDi, which are left out: "
                + "; ".join(self.differences)
            )
        return notes
