"""Tables of scores, as text, Markdown, LaTeX, HTML or JSON.

A score nobody measured is a dash, never a zero. In Markdown, LaTeX and HTML the best of each column
is bold. Marks stand behind a score as superscripts, such as the letters of the rows it is better
than.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

LETTERS = "abcdefghijklmnoprstuvwxyz"  # Unicode has no superscript q that fonts show
SUPERSCRIPTS = str.maketrans(LETTERS, "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ")
MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<|"})
LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)
DASH = "-"


class Row(NamedTuple):
    """One line of a table.

    Attributes:
        name: What was measured.
        scores: One a column; None where nobody measured.
        marks: Letters of ``LETTERS`` behind each score; none at all if empty.
        label: Letter by which the marks of other rows name this one.
    """

    name: str
    scores: Sequence[float | None]
    marks: Sequence[str] = ()
    label: str = ""


@dataclass(frozen=True)
class ScoreTable:
    """Scores in rows and columns.

    Attributes:
        columns: Their heads.
        rows: The lines.
        corner: Head of the column of names.
        notes: Sentences below the table.
        digits: Decimal places.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    corner: str = "run"
    notes: Sequence[str] = ()
    digits: int = 4

    def render(self, form: str) -> str:
        """The table as ``text``, ``markdown``, ``latex``, ``html`` or ``json``."""
        return {
            "text": self._text,
            "markdown": self._markdown,
            "latex": self._latex,
            "html": self._html,
            "json": self._json,
        }[form]()

    def _text(self) -> str:
        """Aligned columns; marks are in a column of their own behind each score."""
        grid = [[*self._head(), *(part for name in self.columns for part in (name, ""))]]
        for row in self.rows:
            cells = [
                part
                for number, mark in zip(self._printed(row), self._marks(row), strict=True)
                for part in (number, mark.translate(SUPERSCRIPTS))
            ]
            grid.append([*self._names(row), *cells])
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        names = len(self._head())
        lines = []
        for cells in grid:
            line = "  ".join(cell.ljust(w) for cell, w in zip(cells[:names], widths, strict=False))
            for i in range(names, len(cells), 2):
                line += "  " + cells[i].rjust(widths[i]) + cells[i + 1].ljust(widths[i + 1])
            lines.append(line.rstrip())
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes])

    def _markdown(self) -> str:
        """A pipe table."""
        names = len(self._head())
        grid = [[*self._head(), *self.columns], ["---"] * names + ["---:"] * len(self.columns)]
        for row in self.rows:
            cells = [
                (f"**{number}**" if best else number) + mark.translate(SUPERSCRIPTS)
                for number, best, mark in zip(
                    self._printed(row), self._best(row), self._marks(row), strict=True
                )
            ]
            grid.append([*(name.translate(MARKDOWN) for name in self._names(row)), *cells])
        lines = [f"| {' | '.join(cells)} |" for cells in grid]
        notes = [part for note in self.notes for part in ("", note)]
        return "\n".join([*lines, *notes])

    def _latex(self) -> str:
        """A tabular for booktabs; the notes are LaTeX comments."""
        names = len(self._head())
        lines = [
            f"\\begin{{tabular}}{{{'l' * names}{'r' * len(self.columns)}}}",
            r"\toprule",
            " & ".join(cell.translate(LATEX) for cell in [*self._head(), *self.columns]) + r" \\",
            r"\midrule",
        ]
        for row in self.rows:
            cells = [
                (f"\\textbf{{{number}}}" if best else number) + (f"$^{{{mark}}}$" if mark else "")
                for number, best, mark in zip(
                    self._printed(row), self._best(row), self._marks(row), strict=True
                )
            ]
            named = [name.translate(LATEX) for name in self._names(row)]
            lines.append(" & ".join([*named, *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in self.notes)]
        return "\n".join(lines)

    def _html(self) -> str:
        """A table element, and a paragraph a note."""
        lines = ["<table>", _html_row([*self._head(), *self.columns])]
        for row in self.rows:
            cells = [
                (f"<b>{number}</b>" if best else number) + (f"<sup>{mark}</sup>" if mark else "")
                for number, best, mark in zip(
                    self._printed(row), self._best(row), self._marks(row), strict=True
                )
            ]
            lines.append(_html_row(self._names(row), cells))
        return "\n".join([*lines, "</table>", *(f"<p>{escape(note)}</p>" for note in self.notes)])

    def _json(self) -> str:
        """Row name -> column -> score, null where nobody measured."""
        scores = {row.name: dict(zip(self.columns, row.scores, strict=True)) for row in self.rows}
        return json.dumps(scores, indent=1, ensure_ascii=False, allow_nan=False)

    def _head(self) -> list[str]:
        """Heads of the columns of names."""
        return ["", self.corner] if any(row.label for row in self.rows) else [self.corner]

    def _names(self, row: Row) -> list[str]:
        """What stands before the scores of a row."""
        return [row.label, row.name][-len(self._head()) :]

    def _printed(self, row: Row) -> list[str]:
        """The scores of a row as they are shown."""
        return [DASH if score is None else f"{score:.{self.digits}f}" for score in row.scores]

    def _marks(self, row: Row) -> list[str]:
        """The marks of a row, one a column."""
        return list(row.marks) or [""] * len(self.columns)

    def _best(self, row: Row) -> list[bool]:
        """Which scores of a row, as shown, none of their column exceeds and some fall short of."""
        best = []
        for column, score in enumerate(row.scores):
            others = [other.scores[column] for other in self.rows]
            shown = [round(other, self.digits) for other in others if other is not None]
            top = bool(shown) and min(shown) < max(shown)
            best.append(top and score is not None and round(score, self.digits) == max(shown))
        return best


def _html_row(names: Sequence[str], cells: Sequence[str] = ()) -> str:
    """A row: names, escaped, then cells that are HTML already."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<tr>{heads}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
