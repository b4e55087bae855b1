"""Draws Figure 1: clouds of two languages with marked translations, joined and numbered."""

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.drawing import DARK, LIGHT, LIGHT_EDGE, SMALL, Fonts, Page, fit, runs_left
from ccpretrieve.retrieval.bitext import Accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = NDArray[np.float64]

logger = logging.getLogger("ccpretrieve.benchmarks.figure1")

#: Of the first and the second language: dark dots, light triangles.
CLOUDS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "s": 6, "facecolor": DARK, "edgecolor": "white", "linewidth": 0.15},
    {"marker": "^", "s": 9, "facecolor": LIGHT, "edgecolor": LIGHT_EDGE, "linewidth": 0.3},
)
MARKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "s": 34, "facecolor": DARK, "edgecolor": "white", "linewidth": 0.8},
    {"marker": "^", "s": 44, "facecolor": LIGHT, "edgecolor": "black", "linewidth": 0.9},
)
WIDTH, MARGIN = 7.0, 0.05


@dataclass(frozen=True)
class Panel:
    """Two clouds on the plane; row i of one translates row i of the other.

    Attributes:
        clouds: Of the first and the second language, shape ``(N, 2)`` each.
        variance: Share of the clouds' variance that the axes show; None where axes have no unit.
        accuracy: Of nearest neighbours between the clouds, all dimensions considered.
    """

    clouds: tuple[Points, Points]
    variance: float | None
    accuracy: Accuracy


@dataclass(frozen=True)
class Column:
    """The panels of one encoder.

    Attributes:
        title: Its name.
        settings: How it was used, in words.
        before: The clouds as they are.
        after: The clouds calibrated.
        truncated: Sentences that were longer than allowed and lost their end.
    """

    title: str
    settings: str
    before: Panel
    after: Panel
    truncated: int = 0


@dataclass(frozen=True)
class Picture:
    """All that Figure 1 shows.

    Attributes:
        languages: Names of the two.
        codes: Their codes.
        columns: One or two encoders.
        marked: Rows of the translations that are joined and numbered.
        sentences: Of the marked rows, in both languages.
        english: The same in English, for a caption where fonts lack one of them; may be empty.
        note: What the points and the calibration are made of.
    """

    languages: tuple[str, str]
    codes: tuple[str, str]
    columns: Sequence[Column]
    marked: Sequence[int]
    sentences: Sequence[tuple[str, str]]
    english: Sequence[str]
    note: str


# -- clouds --

SIDE, HEAD, FOOT, ROW_TITLE, LINE = 3.3, 0.68, 0.42, 0.26, 0.15
TEXT, GAP = ROW_TITLE + 0.16, 0.15  # where sentences begin, and between two beside each other
STEPS = ("before calibration", "after calibration")


def draw_clouds(picture: Picture, fonts: Fonts) -> "Figure":
    """Draw the panels: encoders from left to right, calibration from top to bottom.

    One encoder's two panels stand side by side.
    """
    captions = _captions(picture, fonts)
    panels, heads, rows, head = _laid_out(picture.columns)
    foot = head + len(panels) * (SIDE + FOOT)
    page = Page(WIDTH, foot + _height(captions) + 0.3)
    page.legend(_cloud_legend(picture.languages), ROW_TITLE, 0.06)
    for column, (title, settings) in enumerate(heads):
        left = _left(column)
        page.text(left, head - (0.21 if settings else 0.08), title, weight="bold", size=8.5)
        page.text(left, head - 0.08, settings, size=SMALL, color="0.25")
    for row, title in enumerate(rows):
        top = head + row * (SIDE + FOOT)
        middle = {"ha": "center", "va": "center", "rotation": 90, "size": 8}
        page.text(ROW_TITLE / 2, top + SIDE / 2, title, **middle)
        for column, panel in enumerate(panels[row]):
            axes = page.axes(_left(column), top, SIDE, SIDE)
            _draw_panel(axes, panel, picture.marked)
            for line, words in enumerate(_under(panel, picture.codes)):
                under = top + SIDE + 0.13 + 0.12 * line
                page.text(_left(column), under, words, size=SMALL, color="0.15")
    end = _write_captions(page, captions, foot + 0.18)
    page.text(ROW_TITLE, end + 0.02, picture.note, size=SMALL, color="0.25")
    return page.figure


def _laid_out(
    columns: Sequence[Column],
) -> tuple[list[list[Panel]], list[tuple[str, str]], list[str], float]:
    """Panels by row, the heads of their columns and rows, and how high the page's head is."""
    before, after = [c.before for c in columns], [c.after for c in columns]
    heads = [(column.title, column.settings) for column in columns]
    if len(columns) > 1:
        return [before, after], heads, list(STEPS), HEAD
    row = f"{columns[0].title}: {columns[0].settings}"
    return [[*before, *after]], [(step, "") for step in STEPS], [row], HEAD - 0.14


def _left(column: int) -> float:
    """Where a column of panels begins."""
    return ROW_TITLE + column * (WIDTH - ROW_TITLE - MARGIN - SIDE)


def _cloud_legend(languages: tuple[str, str]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="", label=name, markersize=4.5, **_line_style(cloud))
        for name, cloud in zip(languages, MARKS, strict=True)
    ]
    label = "a sentence and its translation, numbered"
    return [*handles, Line2D([], [], color="black", linewidth=1, label=label)]


def _line_style(scatter: dict[str, Any]) -> dict[str, Any]:
    """A style of points as one of a line's markers."""
    return {
        "marker": scatter["marker"],
        "markerfacecolor": scatter["facecolor"],
        "markeredgecolor": scatter["edgecolor"],
        "markeredgewidth": scatter["linewidth"],
    }


def _under(panel: Panel, codes: tuple[str, str]) -> tuple[str, str]:
    """What is said below a panel."""
    a, b = codes
    forward, backward = (100 * share for share in panel.accuracy)
    shown = "no unit" if panel.variance is None else f"{100 * panel.variance:.0f} % of the variance"
    mean = f"{100 * panel.accuracy.mean:.1f} %"
    return (
        f"in all dimensions, nearest neighbour is the translation: {mean}",
        f"({a} → {b} {forward:.1f}, {b} → {a} {backward:.1f}); axes: {shown}",
    )


def _draw_panel(axes: "Axes", panel: Panel, marked: Sequence[int]) -> None:
    """Both clouds, and the marked translations above them."""
    axes.set(xticks=[], yticks=[])
    for side, (cloud, style) in enumerate(zip(panel.clouds, CLOUDS, strict=True)):
        axes.scatter(*cloud.T, zorder=2, gid=f"cloud {side + 1}", **style)
    pairs = np.stack([cloud[list(marked)] for cloud in panel.clouds], axis=1)  # (P, 2, xy)
    for number, pair in enumerate(pairs, 1):
        for color, width, order in (("white", 2.2, 3), ("black", 1.0, 4)):
            line = axes.plot(*pair.T, color=color, linewidth=width, zorder=order)[0]
            line.set_gid(f"pair {number}" if color == "black" else f"halo {number}")
    for side, style in enumerate(MARKS):
        axes.scatter(*pairs[:, side].T, zorder=5, gid=f"marked {side + 1}", **style)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    _number(axes, pairs, np.concatenate(panel.clouds))


# -- numbers beside marked points, none over another --

ANGLES = np.arange(16) * (2 * np.pi / 16)
RADII = (8.0, 10.0, 13.0, 17.0, 22.0)
ONE_NUMBER = 26.0  # points between two ends, below which they share one


def _number(axes: "Axes", pairs: Points, cloud: Points) -> None:
    """Write each pair's number beside both of its ends, or once if they are near each other.

    Args:
        axes: Where the pairs are drawn.
        pairs: Shape ``(P, 2, 2)``: pair, end, x and y.
        cloud: All points, shape ``(N, 2)``.
    """
    figure = axes.figure
    axes.apply_aspect()
    unit = 72 / figure.dpi  # points of a pixel
    ends = axes.transData.transform(pairs.reshape(-1, 2)).reshape(pairs.shape) * unit
    points = axes.transData.transform(cloud) * unit
    box = np.reshape(axes.bbox.extents, (2, 2)) * unit
    taken: list[Points] = []
    for number, (pair, there) in enumerate(zip(pairs, ends, strict=True), 1):
        near = bool(np.hypot(*(there[0] - there[1])) < ONE_NUMBER)
        anchors = [(pair.mean(axis=0), there.mean(axis=0))] if near else zip(pair, there)  # noqa: B905
        for place, anchor in anchors:
            offset = _offset(anchor, number - 1, ends, points, taken, box)
            taken.append(anchor + offset)
            axes.annotate(
                str(number),
                xy=tuple(place),
                xytext=tuple(offset),
                textcoords="offset points",
                ha="center",
                va="center",
                size=7.5,
                weight="bold",
                zorder=6,
                bbox={"boxstyle": "round,pad=0.08", "fc": "white", "ec": "none", "alpha": 0.8},
                gid=f"number {number}",
            )


def _offset(
    anchor: Points, own: int, ends: Points, points: Points, taken: Sequence[Points], box: Points
) -> Points:
    """Where a number beside ``anchor`` hides least: off labels, marks, lines and the border.

    And not nearer to another pair's mark than to its ``own``. All in points on the page.
    """
    ring = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)  # (A, 2)
    offsets = np.concatenate([radius * ring for radius in RADII])  # (C, 2)
    places = anchor + offsets
    inside = ((places > box[0] + 6) & (places < box[1] - 6)).all(axis=1)
    cost = np.where(inside, 0.0, 1e6) + 0.6 * np.hypot(*offsets.T)
    mine = _distances(places, ends[own]).min(axis=1)
    marks = np.delete(ends, own, axis=0).reshape(-1, 2)
    others = _distances(places, marks).min(axis=1) if len(marks) else np.inf
    cost += 40 * np.maximum(0, 8.5 - np.minimum(mine, others))
    cost += 25 * np.maximum(0, mine + 3 - others)
    if taken:
        cost += 200 * np.maximum(0, 10 - _distances(places, np.array(taken)).min(axis=1))
    cost += 12 * np.maximum(0, 6 - _to_lines(places, ends).min(axis=1))
    cost += 0.7 * (_distances(places, points) < 5).sum(axis=1)
    return np.asarray(offsets[cost.argmin()])


def _distances(x: Points, y: Points) -> Points:
    """From each of ``(C, 2)`` to each of ``(N, 2)``."""
    return np.asarray(np.linalg.norm(x[:, None] - y[None], axis=2))


def _to_lines(x: Points, ends: Points) -> Points:
    """From each of ``(C, 2)`` to each of the lines ``(P, 2, 2)``, shape ``(C, P)``."""
    start, along = ends[:, 0], ends[:, 1] - ends[:, 0]
    length = np.maximum((along**2).sum(axis=1), 1e-12)
    share = np.clip(((x[:, None] - start) * along).sum(axis=2) / length, 0, 1)
    return np.asarray(np.linalg.norm(x[:, None] - (start + share[..., None] * along), axis=2))


@dataclass(frozen=True)
class _Sentence:
    """A sentence as it is drawn, in families that have its characters."""

    text: str
    families: list[str]

    def draw(self, page: Page, left: float, top: float, width: float) -> None:
        """Within a width; to the right if it is read so."""
        style = {"family": [*self.families, "sans-serif"], "size": 7}
        rtl = runs_left(self.text)
        start = left + width if rtl else left
        text = page.text(start, top, self.text, ha="right" if rtl else "left", **style)
        fit(text, width, embed=rtl)


def _captions(picture: Picture, fonts: Fonts) -> list[list[_Sentence]]:
    """The marked sentences in the languages that installed fonts have all characters of.

    English, where it is known, stands in for those they lack.
    """
    first, second = ([pair[side] for pair in picture.sentences] for side in (0, 1))
    sides = [_drawable(texts, fonts) for texts in (first, second)]
    for name, side in zip(picture.languages, sides, strict=True):
        if side is None:
            logger.info(
                "no installed font has all characters of the %s sentences, so that they are not in"
                " the picture; --font adds one",
                name,
            )
    if None in sides and picture.english:
        sides.append(_drawable(picture.english, fonts))
    return [list(row) for row in zip(*(side for side in sides if side), strict=True)]


def _drawable(texts: Sequence[str], fonts: Fonts) -> list[_Sentence] | None:
    """Sentences with the families they are drawn in; None if one has characters in no font."""
    found = []
    for text in texts:
        shown = unicodedata.normalize("NFC", " ".join(text.split()))
        families = fonts.families(shown)
        if families is None:
            return None
        found.append(_Sentence(shown, families))
    return found


def _in_columns(captions: Sequence[Sequence[_Sentence]]) -> bool:
    """Whether two languages' sentences fit beside each other."""
    page = Page(WIDTH, 1)
    return all(
        page.measure(each.text, family=each.families, size=7) <= _width(2)
        for row in captions
        for each in row
    )


def _width(columns: int) -> float:
    return (WIDTH - MARGIN - TEXT - GAP * (columns - 1)) / columns


def _write_captions(page: Page, captions: Sequence[Sequence[_Sentence]], top: float) -> float:
    """Write the numbered sentences, beside or below each other.

    Returns:
        Where they end.
    """
    columns = len(captions[0]) if captions and _in_columns(captions) else 1
    for number, row in enumerate(captions, 1):
        page.text(ROW_TITLE, top, str(number), weight="bold", size=7)
        for place, sentence in enumerate(row):
            left = TEXT + (place % columns) * (_width(columns) + GAP)
            sentence.draw(page, left, top + LINE * (place // columns), _width(columns))
        top += LINE * -(-len(row) // columns) + (0 if len(row) == columns else 0.04)
    return top


def _height(captions: Sequence[Sequence[_Sentence]]) -> float:
    """Of all sentences, in inches."""
    return _write_captions(Page(WIDTH, 1), captions, 0)
