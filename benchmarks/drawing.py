"""What all pictures of the benchmarks share: the page, its style and files, and fonts.

Two things that are compared differ in shape and in lightness, so that grey print and colour-blind
readers tell them apart. Text in an SVG is text. Equal input gives equal bytes. A sentence is shown
only where installed fonts have every character of it (:class:`Fonts`), never as boxes.

Lengths are inches on the page, and points (1/72 inch) for text and markers, as in matplotlib, which
is imported when something is drawn.
"""

import contextlib
import importlib.util
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex  # type: ignore[import-untyped]

from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry

BASE = "DejaVu Sans"  # comes with matplotlib
STYLE: dict[Any, Any] = {
    **{"font.family": ["sans-serif"], "font.sans-serif": [BASE], "font.size": 7.0},
    **{"svg.fonttype": "none", "svg.hashsalt": "figure 1"},
    **{"axes.linewidth": 0.6, "axes.edgecolor": "0.45", "lines.solid_capstyle": "round"},
    **{"figure.dpi": 300.0, "savefig.dpi": 300.0},
}
DARK, LIGHT, LIGHT_EDGE = "#123f73", "#f7b538", "#8f5b00"
SMALL = 6.3  # size of text below panels
SUFFIXES = (".svg", ".png")


def check_installed() -> None:
    """Fail if nothing can be drawn.

    Raises:
        UserError: If matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("drawing needs matplotlib: pip install matplotlib")


def save(make: Callable[[], "Figure"], stem: Path) -> list[Path]:
    """Draw and write ``<stem>.svg`` and ``<stem>.png``; their bytes depend on nothing else.

    Raises:
        UserError: If a file cannot be written.
    """
    paths = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    with style():
        figure = make()
        for path, metadata in zip(paths, ({"Date": None}, {}), strict=True):
            with atomic(path) as stream:
                figure.savefig(stream, format=path.suffix[1:], metadata=metadata)
    return paths


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Our settings alone for the block, whatever the user's matplotlibrc says."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({k: v for k, v in STYLE.items() if k in mpl.rcParams})
        yield


class Page:
    """A figure on which things are placed in inches from the left and from the top."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> "Axes":
        """Add axes whose frame has this place and size."""
        bottom = 1 - (top + height) / self.height
        return self.figure.add_axes(
            (left / self.width, bottom, width / self.width, height / self.height)
        )

    def text(self, left: float, top: float, text: str, **style: Any) -> Any:
        """Write a line; ``top`` is its baseline's unless ``va`` says otherwise."""
        style = {"va": "baseline", "parse_math": False, **style}
        return self.figure.text(left / self.width, 1 - top / self.height, text, **style)

    def measure(self, text: str, **style: Any) -> float:
        """Width of a text in inches."""
        drawn = self.text(0, 0, text, **style)
        width = drawn.get_window_extent().width / self.figure.dpi
        drawn.remove()
        return float(width)

    def legend(self, handles: Sequence[Any], left: float, top: float) -> None:
        """Explain what is drawn, all in one line."""
        self.figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(left / self.width, 1 - top / self.height),
            **{"ncols": len(handles), "frameon": False, "borderpad": 0, "borderaxespad": 0},
            **{"columnspacing": 1.6, "handletextpad": 0.5, "fontsize": 7.5},
        )


class Fonts:
    """The installed fonts, and which of them draw a text without a box.

    Args:
        files: Further font files, preferred to the installed ones.

    Raises:
        UserError: If a file is no font.
    """

    def __init__(self, files: Sequence[Path] = ()) -> None:
        from matplotlib.font_manager import fontManager

        before = list(fontManager.ttflist)
        for file in files:
            try:
                fontManager.addfont(file)
            except (OSError, RuntimeError) as error:
                raise UserError(f"{file}: not a font that matplotlib reads: {error}") from error
        given = [font for font in fontManager.ttflist if font not in before]
        named = [font for font in sorted(before, key=lambda f: (f.name, f.fname)) if _plain(font)]
        base = [font for font in named if font.name == BASE]
        self.fonts = [*base, *given, *(font for font in named if font not in base)]

    def families(self, text: str) -> list[str] | None:
        """Families that together have all characters of a text; None if some are in no font.

        Text that runs from right to left or stacks its marks needs matplotlib 3.11 as well.
        """
        import matplotlib as mpl

        missing = {char for char in text if unicodedata.category(char) not in ("Cf", "Zs")}
        if mpl.__version_info__ < (3, 11) and any(map(_is_shaped, missing)):
            return None
        families = [BASE]
        for font in self.fonts:
            if not missing:
                break
            there = _characters(font.fname, missing)
            if there and font.name not in families:
                families.append(font.name)
            missing -= there
        return None if missing else families


def _plain(font: "FontEntry") -> bool:
    """Whether a font is an upright, regular one for reading, and not one that draws boxes."""
    odd = ("Last Resort", "LastResort", "STIX", "DejaVu Math", "DejaVu Sans Display")
    return (
        font.style == "normal"
        and font.variant == "normal"
        and font.weight in (400, "normal", "regular")
        and not font.name.startswith((*odd, "cm"))
    )


def _characters(path: str, wanted: set[str]) -> set[str]:
    """Those of the characters that a font file has."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):  # was removed since matplotlib listed it
        return set()
    return {char for char in wanted if font.get_char_index(ord(char))}


def _is_shaped(char: str) -> bool:
    """Whether a character is not simply set to the right of the one before."""
    runs = unicodedata.bidirectional(char) in ("R", "AL", "AN")
    return runs or unicodedata.category(char) in ("Mn", "Mc")


def runs_left(text: str) -> bool:
    """Whether the first letter of a text belongs to a script written from right to left."""
    strong = (unicodedata.bidirectional(char) for char in text)
    return next((kind for kind in strong if kind in ("L", "R", "AL")), "L") != "L"


def fit(text: Any, width: float, *, embed: bool = False) -> None:
    """Cut a text to a width in inches, between characters as readers see them.

    Args:
        text: matplotlib's.
        width: In inches.
        embed: Mark it as running from right to left, for what reads the SVG.
    """
    letters = regex.findall(r"\X", text.get_text())
    ends = "\u202b{}\u202c" if embed else "{}"
    dpi = text.figure.dpi

    def fits(count: int) -> bool:
        cut = "" if count == len(letters) else "…"
        text.set_text(ends.format("".join(letters[:count]).rstrip() + cut))
        return bool(text.get_window_extent().width <= width * dpi)

    low, high = 0, len(letters)
    while low < high:  # the largest count that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    fits(low)
