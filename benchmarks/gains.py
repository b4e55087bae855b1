"""Accuracy of each pair of languages from raw to calibrated, as `benchmarks.tatoeba` wrote it.

Read from its JSON is ``encoders.<tag>.pairs.<pair>.<step>.mean``, a share; nothing is filled in for
what is missing. Drawn is a line a pair with its ends marked, a dumbbell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import DARK, LIGHT, LIGHT_EDGE, SMALL, Page
from ccpretrieve.data.languages import find
from ccpretrieve.errors import UserError
from ccpretrieve.files import read_json
from ccpretrieve.retrieval.bitext import RAW, SCALED, SHIFTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Gain:
    """Accuracy on one pair of languages by step of the calibration, as shares.

    Attributes:
        name: Of the language, or of both.
        raw: As encoded.
        shifted: Means taken off.
        scaled: Divided by the spread too.
    """

    name: str
    raw: float
    shifted: float
    scaled: float


def read_gains(path: Path) -> dict[str, list[Gain]]:
    """Read the scores that ``python -m benchmarks.tatoeba --output FILE`` wrote.

    Returns:
        Tag of the encoder -> its gains, in the order of the file.

    Raises:
        UserError: Naming what is missing or no share.
    """
    encoders = _entries(path, read_json(path), "encoders")
    return {tag: _gains(path, encoders, tag) for tag in encoders}


def _gains(path: Path, encoders: Mapping[str, Any], tag: str) -> list[Gain]:
    pairs = _entries(path, encoders[tag], "pairs", f"encoders.{tag}.")
    found = []
    for pair, steps in pairs.items():
        where = f"encoders.{tag}.pairs.{pair}."
        found.append(Gain(_name(pair), *(_mean(path, steps, s, where) for s in STEPS)))
    return found


STEPS = (RAW, SHIFTED, SCALED)


def _entries(path: Path, content: Any, key: str, where: str = "") -> Mapping[str, Any]:
    """What is under a key, which must be an object with something in it."""
    value = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(value, Mapping) or not value:
        raise UserError(
            f"{path}: {where}{key} is missing or empty; write the file with"
            " `python -m benchmarks.tatoeba --output`"
        )
    return value


def _mean(path: Path, steps: Any, step: str, where: str) -> float:
    value = _entries(path, steps, step, where).get("mean")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    share = value if number and value is not None else -1
    if not 0 <= share <= 1:
        found = "missing" if value is None else f"{value!r}, not a share from 0 to 1"
        raise UserError(f"{path}: {where}{step}.mean is {found}")
    return float(share)


def _name(pair: str) -> str:
    """The languages of a pair in words, English left out where it is the second."""
    rows = [find(code) for code in pair.split("-")]
    names = [row.name.title() for row in rows if row is not None]
    if len(names) != 2:
        return pair
    return names[0] if names[1] == "English" else " – ".join(names)


# -- drawing --

ROWS = 38  # lines of a column at most
ROW, HEAD, FOOT, NAMES, RIGHT, MARGIN = 0.165, 0.78, 0.42, 1.3, 0.4, 0.08
LOSS = "#b3261e"
RAW_STYLE: dict[str, Any] = {"marker": "o", "markerfacecolor": LIGHT, "markeredgecolor": LIGHT_EDGE}
SHIFTED_STYLE: dict[str, Any] = {"marker": "|", "markerfacecolor": "none", "markeredgecolor": "0.2"}
SCALED_STYLE: dict[str, Any] = {"marker": "D", "markerfacecolor": DARK, "markeredgecolor": DARK}


def draw_gains(title: str, gains: Sequence[Gain]) -> "Figure":
    """Draw accuracy raw, shifted, and shifted and scaled: a line a pair, best first.

    More lines than a page is high stand in several columns on one scale.
    """
    gains = sorted(gains, key=lambda gain: (-gain.scaled, -gain.raw, gain.name))
    blocks = -(-len(gains) // ROWS)
    rows = -(-len(gains) // blocks)
    page = Page(max(5.2, 3.6 * blocks), HEAD + ROW * rows + FOOT)
    page.text(MARGIN, 0.18, title, weight="bold", size=8.5)
    averages = [100 * fmean(getattr(gain, step) for gain in gains) for step in ("raw", "scaled")]
    note = "average of {}: {:.1f} % raw, {:.1f} % shifted and scaled".format(len(gains), *averages)
    note += "; statistics of the test text itself"
    page.text(MARGIN, 0.33, note, size=SMALL + 0.7, color="0.2")
    page.legend(_legend(gains), MARGIN, 0.43)
    wide = page.width / blocks
    for block in range(blocks):
        part = gains[block * rows : (block + 1) * rows]
        left = block * wide + NAMES
        axes = page.axes(left, HEAD, wide - NAMES - RIGHT, ROW * rows)
        _draw_block(axes, part, _limits(gains))
        axes.set_ylim(rows - 0.5, -0.5)
        page.text((block + 1) * wide - 0.08, HEAD - 0.05, "gain", ha="right", size=SMALL)
    return page.figure


def _limits(gains: Sequence[Gain]) -> tuple[float, float]:
    """The scale in per cent: from 0, or from a ten below all values where they are high."""
    low = 100 * min(min(gain.raw, gain.shifted, gain.scaled) for gain in gains)
    return (0.0 if low < 30 else 10 * ((low - 2) // 10)), 101.5


def _draw_block(axes: "Axes", gains: Sequence[Gain], limits: tuple[float, float]) -> None:
    """One column of lines, from the top."""
    for row, gain in enumerate(gains):
        raw, shifted, scaled = (100 * x for x in (gain.raw, gain.shifted, gain.scaled))
        lost = scaled < raw
        color, style = (LOSS, (0, (1.5, 1))) if lost else ("0.45", "solid")
        line = axes.plot([raw, scaled], [row, row], color=color, linewidth=1.6, linestyle=style)
        line[0].set_gid(f"gain {gain.name}")
        axes.plot(shifted, row, markersize=6, markeredgewidth=1, **SHIFTED_STYLE)
        axes.plot(raw, row, markersize=4.6, markeredgewidth=0.7, **RAW_STYLE)
        axes.plot(scaled, row, markersize=3.8, markeredgewidth=0.5, **SCALED_STYLE)
        axes.annotate(
            f"{scaled - raw:+.1f}".replace("-", "\N{MINUS SIGN}"),
            xy=(1, row),
            xycoords=("axes fraction", "data"),
            xytext=(RIGHT * 72 - 6, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            size=SMALL,
            color=LOSS if lost else "0.15",
            weight="bold" if lost else "normal",
        )
    axes.set(xlim=limits, xlabel="accuracy, per cent")
    axes.set_yticks(range(len(gains)), [gain.name for gain in gains])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=2.5, width=0.6)
    axes.grid(axis="x", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend(gains: Sequence[Gain]) -> list[Any]:
    from matplotlib.lines import Line2D

    def mark(label: str, size: float, style: dict[str, Any]) -> Line2D:
        return Line2D([], [], linestyle="", label=label, markersize=size, **style)

    handles = [
        mark("raw", 4.6, RAW_STYLE),
        mark("shifted", 6, SHIFTED_STYLE),
        mark("shifted and scaled", 3.8, SCALED_STYLE),
    ]
    if any(gain.scaled < gain.raw for gain in gains):
        handles.append(Line2D([], [], color=LOSS, linestyle=(0, (1.5, 1)), label="a loss"))
    return handles
