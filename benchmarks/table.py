"""Measured scores beside published ones: one row a method, one column a language, and an average.

What was published is in ``benchmarks/paper/*.tsv``, each file with its source in ``#`` lines. A
number nobody has is a dash there and here, never a zero; an average with a hole in it is withheld.
Averages are computed here over the languages that are shown, for every row alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.scoretable import DASH, Row, ScoreTable

PAPER = Path(__file__).parent / "paper"
METHOD, AVERAGE = "method", "avg"
DIGITS = 3  # as many as the CCP paper gives

Scores = Mapping[str, float]  # language -> score; a language nobody measured is absent


@dataclass(frozen=True)
class Published:
    """A table as somebody published it.

    Attributes:
        source: Where the numbers are from, one line each.
        rows: Method -> its scores.
        averages: Method -> the average that was published with them, where one was.
    """

    source: tuple[str, ...]
    rows: Mapping[str, Scores]
    averages: Scores


def read_published(name: str, folder: Path = PAPER) -> Published:
    """Read a transcribed table, such as ``mrtydi-recall100-paper``.

    Args:
        name: Of the file, without ``.tsv``.
        folder: Where it is.

    Raises:
        UserError: Naming file and line, if it names no source or a cell is no number.
    """
    path = folder / f"{name}.tsv"
    lines = path.read_text(encoding="utf-8").splitlines()
    source = tuple(line.lstrip("# ") for line in lines if line.startswith("#"))
    if not source:
        raise UserError(f"{path}:1: no source; say in a line that begins with # who published it")
    head, *body = [(n, line.split("\t")) for n, line in enumerate(lines, 1) if line[:1] != "#"]
    rows = {cells[0]: _scores(f"{path}:{number}", head[1], cells) for number, cells in body}
    return Published(
        source,
        {method: {k: v for k, v in row.items() if k != AVERAGE} for method, row in rows.items()},
        {method: row[AVERAGE] for method, row in rows.items() if AVERAGE in row},
    )


def _scores(where: str, head: Sequence[str], cells: Sequence[str]) -> dict[str, float]:
    """The cells of one line that hold a number, by the head of their column."""
    if len(cells) != len(head) or head[0] != METHOD:
        raise UserError(f"{where}: expected {len(head)} cells, {METHOD} first, got {len(cells)}")
    try:
        return {
            column: float(cell)
            for column, cell in zip(head[1:], cells[1:], strict=True)
            if cell not in (DASH, "")
        }
    except ValueError as error:
        raise UserError(f"{where}: {error}; a hole is a dash") from error


def average(scores: Scores, languages: Sequence[str]) -> float | None:
    """Mean over languages; None if one of them is missing, or there is none."""
    if not languages or any(language not in scores for language in languages):
        return None
    return fmean(scores[language] for language in languages)


def beside(
    published: Mapping[str, Published],
    measured: Mapping[str, Scores],
    languages: Sequence[str],
    corner: str,
    marks: Mapping[str, Mapping[str, str]] | None = None,
) -> ScoreTable:
    """Lay out published rows, then measured ones.

    Args:
        published: Who published them, such as ``paper`` -> the table.
        measured: Method -> its scores here.
        languages: The columns.
        corner: What the numbers are.
        marks: Method -> language -> letters behind its score here.
    """
    named: list[tuple[str, Scores, Mapping[str, str]]] = [
        (f"{method} ({origin})", scores, {})
        for origin, table in published.items()
        for method, scores in table.rows.items()
    ]
    named += [
        (f"{method} (here)", scores, (marks or {}).get(method, {}))
        for method, scores in measured.items()
    ]
    rows = [
        Row(
            name,
            [*(scores.get(language) for language in languages), average(scores, languages)],
            [*(marked.get(language, "") for language in languages), ""],
        )
        for name, scores, marked in named
    ]
    notes = [f"{origin}: {' '.join(table.source)}" for origin, table in published.items()]
    return ScoreTable([*languages, AVERAGE], rows, corner=corner, notes=notes, digits=DIGITS)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Lines of aligned columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
