"""Accuracy by layer: a panel an encoder, a line a step of the calibration."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.bitext_scores import Encoded, mean_accuracy
from benchmarks.bitext_table import BOUND_LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of raw, shift and +scale: told apart by marker, dashes and brightness, without colour too.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#8f5b00", "marker": "o", "linestyle": ":", "markerfacecolor": "white"},
    {"color": "#3d7fbf", "marker": "s", "linestyle": "--"},
    {"color": "#123f73", "marker": "D", "linestyle": "-"},
)


def draw_layers(curves: Mapping[str, Sequence[Encoded]]) -> "Figure":
    """Draw accuracy, mean of texts and directions, over layers.

    Args:
        curves: Tag of an encoder -> what each of its layers reached.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(curves), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for axes, (tag, layers) in zip(panels, curves.items(), strict=True):
        depths = [encoded.settings.layer for encoded in layers]
        for (step, label), style in zip(BOUND_LABELS.items(), STYLES, strict=True):
            reached = [mean_accuracy(encoded.scored, step) for encoded in layers]
            means = [100 * each.mean for each in reached if each is not None]
            axes.plot(depths, means, label=label, markersize=4.5, linewidth=1.3, **style)
        title = f"{tag}: {layers[0].settings.pooling} pooling\n{_texts(layers[0])}"
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("layer (0: the embeddings)")
        axes.set_xticks(depths[:: 1 if len(depths) <= 16 else 2])
        axes.grid(axis="y", color="0.88", linewidth=0.6)
    panels[0].set_ylabel("accuracy in per cent")
    panels[0].legend(title="statistics of the test text", fontsize=8, title_fontsize=8)
    return figure


def _texts(encoded: Encoded) -> str:
    """What the mean is over."""
    first, *others = encoded.scored
    return f"mean of {1 + len(others)} pairs of languages" if others else first.name
