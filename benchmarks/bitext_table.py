"""The tables of :mod:`benchmarks.tatoeba`: accuracy, means beside the paper's, shapes, layers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.bitext_scores import (
    SHAPES,
    Encoded,
    Scored,
    mean_accuracy,
    mean_loss,
)
from benchmarks.bitext_texts import FEW
from benchmarks.table import grid, read_published
from ccpretrieve.retrieval.bitext import FITTED, RAW, SCALED, SHIFTED, STEPS, Accuracy
from ccpretrieve.retrieval.scoretable import DASH, LATEX, MARKDOWN, Row, ScoreTable

LOSS = (
    "loss: mean of the two languages' accuracy with English less that of the pair, in points; on"
    " the same sentences where the folder has them in English too, else on other ones (marked *)"
)
BOUND = "upper bound: statistics of the test text itself, each side's own, unpaired"

#: Heads of the columns, by step.
BOUND_LABELS = {RAW: "raw", SHIFTED: "shift", SCALED: "+scale"}
FITTED_LABELS = {RAW: "raw"} | dict(zip(FITTED, ("shift", "+scale", "+rotate"), strict=True))
DIRECTIONS = ("->", "<-", "mean")


@dataclass(frozen=True)
class Table:
    """Cells under heads of two lines.

    Attributes:
        title: What it shows.
        groups: Heads of the first line, each with those below it.
        rows: Cells of each line, the first a name.
        notes: Sentences below it.
    """

    title: str
    groups: Sequence[tuple[str, Sequence[str]]]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def render(self, form: str) -> str:
        """The table as ``text``, ``markdown`` or ``latex``."""
        return {"text": self._text, "markdown": self._markdown, "latex": self._latex}[form]()

    def _text(self) -> str:
        upper = [cell for label, heads in self.groups for cell in (label, *[""] * len(heads[1:]))]
        lower = [head for _, heads in self.groups for head in heads]
        return "\n".join([self.title, grid([upper, lower, *self.rows]), *self.notes])

    def _markdown(self) -> str:
        heads = [f"{label} {head}".strip() for label, heads in self.groups for head in heads]
        lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *self.rows]
        cells = [[cell.translate(MARKDOWN) for cell in line] for line in lines]
        table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
        return "\n\n".join([self.title.translate(MARKDOWN), table, *self.notes])

    def _latex(self) -> str:
        width = sum(len(heads) for _, heads in self.groups)
        upper = [
            rf"\multicolumn{{{len(heads)}}}{{c}}{{{_latex(label)}}}" for label, heads in self.groups
        ]
        lower = [_latex(head) for _, heads in self.groups for head in heads]
        body = [[_latex(cell) for cell in row] for row in self.rows]
        return "\n".join(
            [
                f"% {self.title}",
                rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
                r"\toprule",
                *(f"{' & '.join(line)} \\\\" for line in (upper, lower)),
                r"\midrule",
                *(f"{' & '.join(line)} \\\\" for line in body),
                r"\bottomrule",
                r"\end{tabular}",
                *(f"% {note}" for note in self.notes),
            ]
        )


def _latex(cell: str) -> str:
    return {"->": r"$\to$", "<-": r"$\gets$"}.get(cell, cell.translate(LATEX))


def describe(encoded: Encoded) -> str:
    """How an encoder was used."""
    used = encoded.settings
    layer = "the last layer" if used.layer == -1 else f"layer {used.layer}"
    prefix = f"prefix {used.query_prefix!r}" if used.query_prefix else "no prefix"
    return f"{used.pooling} of {layer}, {prefix}"


# -- accuracy, a line a text --


def accuracies(tag: str, encoded: Encoded, *, fitted: bool) -> Table:
    """A line a text, three columns a step, or four with the loss."""
    labels = FITTED_LABELS if fitted else BOUND_LABELS
    with_loss = any(text.english for text in encoded.scored)
    heads = (*DIRECTIONS, "loss") if with_loss else DIRECTIONS
    rows = []
    for text in encoded.scored:
        name = text.name + ("*" if text.english and not text.same else "")
        rows.append([name, str(text.pairs), *_cells([text], labels, fitted, with_loss)])
    for label, texts in averaged(encoded, fitted=fitted):
        rows.append([label, "", *_cells(texts, labels, fitted, with_loss)])
    used = f"calibrated by {encoded.calibration}" if fitted else BOUND
    return Table(
        f"{tag}: {describe(encoded)}; {used}",
        [("", ("", "pairs")), *((label, heads) for label in labels.values())],
        rows,
        _notes(encoded, fitted=fitted, with_loss=with_loss),
    )


def _cells(
    texts: Sequence[Scored], labels: Mapping[str, str], fitted: bool, with_loss: bool
) -> Iterator[str]:
    """The columns of one line: of a text, or of a mean over several."""
    for step in labels:
        reached = mean_accuracy(texts, step, fitted=fitted)
        shares = (None,) * 3 if reached is None else (*reached, reached.mean)
        yield from (_percent(share) for share in shares)
        if with_loss:
            yield _points(mean_loss(texts, step, fitted=fitted))


def averaged(encoded: Encoded, *, fitted: bool) -> Iterator[tuple[str, Sequence[Scored]]]:
    """What means are taken over: all texts, and those that the calibration serves if not all."""
    for label, texts in encoded.groups().items():
        yield label, texts
        served = [text for text in texts if _is_served(text)] if fitted else texts
        if 0 < len(served) < len(texts):
            yield f"{label}, {len(served)} calibrated", served


def _is_served(text: Scored) -> bool:
    return any(text.fitted.get(step) is not None for step in FITTED)


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.1f}"


def _points(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:+.1f}"


def _notes(encoded: Encoded, *, fitted: bool, with_loss: bool) -> list[str]:
    """What a reader of the table must know."""
    notes = []
    if cut := sum(text.truncated for text in encoded.scored):
        notes.append(f"{cut} sentences were cut at {encoded.settings.query_length} tokens")
    if with_loss:
        notes.append(LOSS)
    if joined := [text for text in encoded.scored if text.joined]:
        counts = ", ".join(f"{text.name} {text.pairs}" for text in joined)
        notes.append(f"joined where the English sentence is the same, pairs: {counts}")
    if few := [text.name for text in encoded.scored if text.pairs < FEW]:
        notes.append(f"fewer than {FEW} pairs, so that accuracy says little: {', '.join(few)}")
    if fitted and (lacking := [text.name for text in encoded.scored if not _is_served(text)]):
        notes.append(f"no statistics of a language in the calibration: {', '.join(lacking)}")
    return notes


# -- means, beside the paper's --


def by_step(encoders: Mapping[str, Encoded]) -> ScoreTable:
    """Mean accuracy by step: the paper's rows, then ours."""
    published = read_published("tatoeba-steps-paper")
    columns = list(FITTED_LABELS)
    rows = [
        Row(f"{method} (paper)", [scores.get(name) for name in columns])
        for method, scores in published.rows.items()
    ]
    for tag, encoded in encoders.items():
        if encoded.calibration:
            for label, texts in averaged(encoded, fitted=True):
                reached = [mean_accuracy(texts, step, fitted=True) for step in columns]
                rows.append(_row(f"{tag} {encoded.calibration}, {label} (here)", reached))
        for label, texts in averaged(encoded, fitted=False):
            bound = [mean_accuracy(texts, step) for step in STEPS]
            rows.append(_row(f"{tag} upper bound, {label} (here)", [*bound, None]))
    return ScoreTable(
        list(FITTED_LABELS.values()),
        rows,
        corner="per cent, both directions",
        notes=[f"paper: {' '.join(published.source)}"],
        digits=1,
    )


def _row(name: str, reached: Sequence[Accuracy | None]) -> Row:
    return Row(name, [None if each is None else 100 * each.mean for each in reached])


def by_english(encoders: Mapping[str, Encoded]) -> Table:
    """Mean accuracy of the pairs without English, and of their languages with it."""
    published = read_published("tatoeba-english-paper")
    rows = [
        [
            f"{method} (paper)",
            *(_published(scores.get(head)) for head in ("with", "without", "loss")),
        ]
        for method, scores in published.rows.items()
    ]
    count = 0
    for tag, encoded in encoders.items():
        pairs = [text for text in encoded.scored if text.english]
        count = len(pairs)
        for fitted, labels in ((True, FITTED_LABELS), (False, BOUND_LABELS)):
            if fitted and not encoded.calibration:
                continue
            origin = encoded.calibration if fitted else "upper bound"
            for step, label in labels.items():
                cells = _with_and_without(pairs, step, fitted=fitted)
                rows.append([f"{tag} {origin}, {label} (here)", *cells])
    return Table(
        f"Pairs without English that have a loss: {count}; per cent, mean of both directions",
        [("", ("", "with English", "without", "loss"))],
        rows,
        [f"paper: {' '.join(published.source)}"],
    )


def _published(score: float | None) -> str:
    return DASH if score is None else f"{score:.1f}"


def _with_and_without(pairs: Sequence[Scored], step: str, *, fitted: bool) -> tuple[str, str, str]:
    """Mean accuracy of the languages with English, of the pairs, and what lies between."""
    without = mean_accuracy(pairs, step, fitted=fitted)
    loss = mean_loss(pairs, step, fitted=fitted)
    if without is None or loss is None:
        return DASH, DASH, DASH
    return _percent(without.mean + loss), _percent(without.mean), _points(loss)


# -- isomorphism --


def shapes(encoders: Mapping[str, Encoded]) -> Table:
    """A line a text, a column a measure and encoder; with two, the change from first to second."""
    tags = list(encoders)
    heads = [*tags, "change"] if len(tags) == 2 else tags
    first, *_ = encoders.values()
    lines = {
        text.name: [[each.scored[place]] for each in encoders.values()]
        for place, text in enumerate(first.scored)
    }
    lines |= {
        label: [list(each.groups()[label]) for each in encoders.values()]
        for label in first.groups()
    }
    rows = []
    for label, of_encoders in lines.items():
        cells = [label]
        for name in SHAPES:
            values = [fmean(text.shape[name] for text in texts) for texts in of_encoders]
            cells += [_shape(name, value) for value in values]
            if len(tags) == 2:
                cells.append(_shape(name, values[1] - values[0], signed=True))
        rows.append(cells)
    return Table(
        "Isomorphism of the vectors as they are: 1 is best of RSIM and CKA, 0 of eigen (distance of"
        " spectra); hubs: skewness, less is better",
        [("", ("",)), *((name, heads) for name in SHAPES)],
        rows,
    )


def _shape(name: str, value: float, *, signed: bool = False) -> str:
    if math.isnan(value):
        return DASH
    digits = 1 if name == "eigen" else 3
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


# -- layers --


def curve(tag: str, layers: Sequence[Encoded]) -> Table:
    """A line a layer: mean accuracy of both directions."""
    groups = layers[0].groups()
    measured = [name for name in SHAPES if layers[0].scored[0].shape]
    rows = []
    for encoded in layers:
        cells = [str(encoded.settings.layer)]
        for texts in encoded.groups().values():
            reached = [mean_accuracy(texts, step) for step in STEPS]
            cells += [_percent(None if each is None else each.mean) for each in reached]
        shape = {name: fmean(text.shape[name] for text in encoded.scored) for name in measured}
        rows.append([*cells, *(_shape(name, value) for name, value in shape.items())])
    one = len(groups) == 1
    columns = [("" if one else label, tuple(BOUND_LABELS.values())) for label in groups]
    columns += [("isomorphism", tuple(measured))] if measured else []
    used = describe(layers[0]).replace("layer 0", "every layer")
    mean = f"mean of {len(layers[0].scored)} texts and both directions"
    return Table(f"{tag}: {used}, {mean}; {BOUND}", [("", ("layer",)), *columns], rows)
