"""Parts parallel text for a picture: sentences that are drawn, and others to calibrate on."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ccpretrieve.data.parallel import ParallelText, read_pairs
from ccpretrieve.errors import UserError

logger = logging.getLogger("ccpretrieve.benchmarks.figure1")

FEW = 200  # sentences, below which a language's statistics are said to be rough


@dataclass(frozen=True)
class Sample:
    """The text of a picture.

    Attributes:
        drawn: Sentences of the two languages; line i of one translates line i of the other.
        fitted: Other sentences of the two languages, not in pairs.
        marked: Rows of ``drawn`` that are joined and numbered.
        lines: Their numbers in the file, from 1; of a joined pair, in the order joined.
        english: The marked sentences in English, of a pair without it where the folder has them.
        note: Where all of them are from, in words.
    """

    drawn: tuple[list[str], list[str]]
    fitted: tuple[list[str], list[str]]
    marked: tuple[int, ...]
    lines: tuple[int, ...]
    english: tuple[str, ...]
    note: str


def choose(
    data: Path,
    languages: Sequence[str],
    *,
    points: int = 400,
    marked: int = 5,
    seed: int = 0,
    fitted_on: Path | None = None,
) -> Sample:
    """Part parallel text into what is drawn and what is fitted on.

    Args:
        data: Folder that :func:`read_pairs` reads; a pair it lacks is joined at English.
        languages: Two, in any spelling.
        points: Pairs drawn.
        marked: Of them, joined and numbered.
        seed: Of the choice.
        fitted_on: Another such folder to fit on; None for the rest of ``data``.

    Raises:
        UserError: If a folder has no such pair, or too few lines.
    """
    first, second = languages
    (text,) = read_pairs(data, [(first, second)])
    generator = np.random.default_rng(seed)
    rows, rest = _part(text, points, generator)
    if len(rows) < points:
        raise UserError(f"{data}: {text.name} has {len(text)} lines, too few for --points {points}")
    drawn = _take(text, rows)
    if fitted_on is not None:
        (other,) = read_pairs(fitted_on, [(first, second)])
        where = f" of {fitted_on.name}"
        fitted = _others(other.sides, drawn)
    else:
        where = ", of other documents" if text.documents is not None else ""
        fitted = _others(_take(text, rest), drawn)
    counts = [len(side) for side in fitted]
    _check_fitted(f"{fitted_on or data}: {text.name}", points, counts)
    shared = f"{counts[0]:,}" if counts[0] == counts[1] else f"{counts[0]:,} and {counts[1]:,}"
    source = f"{data.name}, joined at English" if text.joined else data.name
    note = (
        f"{len(rows):,} pairs of sentences of {source}; shift and scale fitted on {shared} other"
        f" sentences a language{where}"
    )
    chosen = _mark(drawn, marked, generator)
    lines = tuple(rows[row] + 1 for row in chosen)
    english = tuple(text.pivot[line - 1] for line in lines) if text.pivot else ()
    return Sample(drawn, fitted, chosen, lines, english, note)


def _part(
    text: ParallelText, points: int, generator: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Rows drawn, and the rows of other documents; without documents, all other rows."""
    documents = np.array(text.documents or range(len(text)))
    order = generator.permutation(documents.max() + 1)
    place = np.argsort(order)[documents]  # of each row's document in the order drawn
    rows = np.argsort(place, kind="stable")
    drawn, others = rows[:points], rows[points:]
    others = others[place[others] > place[drawn[-1]]]
    return sorted(drawn.tolist()), sorted(others.tolist())


def _take(text: ParallelText, rows: Sequence[int]) -> tuple[list[str], list[str]]:
    left, right = ([side[row] for row in rows] for side in text.sides)
    return left, right


def _others(
    sides: tuple[list[str], list[str]], drawn: tuple[list[str], list[str]]
) -> tuple[list[str], list[str]]:
    """Sentences of each language that are not drawn in it."""
    left, right = (
        [line for line in side if line not in shown]
        for side, shown in zip(sides, map(set, drawn), strict=True)
    )
    return left, right


def _check_fitted(where: str, points: int, counts: Sequence[int]) -> None:
    """Two rows have a spread; few have a rough one."""
    least = min(counts)
    if least < 2:
        raise UserError(
            f"{where}: beside the {points} --points {least} sentences are left to fit the"
            " calibration on; draw fewer, or name another text with --fitted-on"
        )
    if least < FEW:
        logger.info("%s: fitted on only %d sentences, the calibration is rough", where, least)


def _mark(
    drawn: tuple[list[str], list[str]], count: int, generator: np.random.Generator
) -> tuple[int, ...]:
    """Rows to mark, from the shorter half: their sentences have to fit below the picture."""
    lengths = [len(a) + len(b) for a, b in zip(*drawn, strict=True)]
    short = np.argsort(lengths, kind="stable")[: max(count, len(lengths) // 2)]
    return tuple(sorted(generator.choice(short, count, replace=False).tolist()))
