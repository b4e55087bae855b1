"""Report of the ablations: the gain of CCP, a table of all cells, the paper's claims, a picture."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from benchmarks.ablation_cells import BASE, CELLS, SLIGHTLY, AblationConfig, Result
from benchmarks.table import grid


def report(
    config: AblationConfig,
    start: Mapping[str, Mapping[str, float]],
    results: Mapping[str, Sequence[Result]],
) -> str:
    """The whole report.

    Args:
        config: Of the benchmark.
        start: How -> language -> accuracy of the start, a share.
        results: Cell -> a result a seed.
    """
    hows = [how for how in start if how.endswith(("raw", "scaled"))]
    head = ["cell", "claimed", "seeds", "ccp", "mlm", "rank", "uniformity", *hows, "warnings"]
    rows = [
        head,
        ["start", "", "", "", "", "", "", *(_percent(fmean(start[h].values())) for h in hows)],
    ]
    rows[1].append("")
    for name, each in results.items():
        rows.append(
            [
                name,
                CELLS[name].claim,
                str(len(each)),
                *(_spread([r.losses[n] for r in each if n in r.losses], 2) for n in ("ccp", "mlm")),
                _spread([r.health["effective_rank"] for r in each if "effective_rank" in r.health]),
                _spread([r.health["uniformity"] for r in each if "uniformity" in r.health], 2),
                *(_spread([100 * r.average(how) for r in each]) for how in hows),
                " ".join(sorted({w.split(":")[0] for r in each for w in r.health["warnings"]})),
            ]
        )
    encoder = config.encoder or "the default encoder"
    heading = (
        f"{config.steps} updates of {config.batch_size} windows, {config.pooling} pooling in the "
        f"loss, {config.layers} layers of {encoder}, {' '.join(config.languages)}; Tatoeba "
        f"accuracy in per cent, mean of both directions and over {' '.join(config.tested)}; mean "
        "and standard deviation over seeds"
    )
    parts = [*_gain(config, start, results), heading, grid(rows)]
    return "\n\n".join([*parts, *claims(config, start, results)])


def claims(
    config: AblationConfig,
    start: Mapping[str, Mapping[str, float]],
    results: Mapping[str, Sequence[Result]],
) -> list[str]:
    """Which of the paper's claims show, in the pooling that the loss sees."""
    claimed = [name for name in results if CELLS[name].claim and name != BASE]
    if BASE not in results or not claimed:
        return []
    how = f"{config.pooling} raw"
    first = 100 * fmean(start[how].values())
    base = [100 * result.average(how) for result in results[BASE]]
    rows = [["cell", "the paper", "points to CCP", "seed spread", "here"]]
    for name in claimed:
        reached = [100 * result.average(how) for result in results[name]]
        spread = max((stdev(each) for each in (base, reached) if len(each) > 1), default=None)
        change = fmean(reached) - fmean(base)
        verdict = _verdict(CELLS[name].claim, change, spread, fails=fmean(reached) <= first)
        rows.append([name, CELLS[name].claim, f"{change:+.1f}", _percent_of(spread), verdict])
    return [f"What the paper claims, by {how}; a change counts from twice the spread", grid(rows)]


def _percent_of(spread: float | None) -> str:
    return "-" if spread is None else f"{spread:.1f}"


def _verdict(claim: str, change: float, spread: float | None, *, fails: bool) -> str:
    """Whether a claim shows.

    Args:
        claim: In kind: slightly worse, or worse than that.
        change: Points to CCP.
        spread: Standard deviation over seeds, of CCP or the cell, whichever is larger; None if
            there is one seed.
        fails: Whether the cell ends no better than the start.
    """
    if spread is None:
        return "one seed: not judged"
    if abs(change) <= 2 * spread:
        return "no difference"
    if change > 0:
        return "the opposite"
    return "shows" if fails or claim == SLIGHTLY else "worse, but it learns"


def _gain(
    config: AblationConfig,
    start: Mapping[str, Mapping[str, float]],
    results: Mapping[str, Sequence[Result]],
) -> list[str]:
    """CCP against the best of its controls, in the pooling that the loss sees."""
    how = f"{config.pooling} raw"
    controls = {
        name: fmean(result.average(how) for result in each)
        for name, each in results.items()
        if CELLS[name].group == "control"
    }
    if BASE not in results or not controls:
        return []
    best = max(controls, key=controls.__getitem__)
    pairs = zip(results[BASE], results[best], strict=False)
    gains = [100 * (one.average(how) - two.average(how)) for one, two in pairs]
    from_start = [100 * (r.average(how) - fmean(start[how].values())) for r in results[BASE]]
    return [
        f"CCP over its best control ({best}), {how}: {_spread(gains, signed=True)} points; "
        f"over the start: {_spread(from_start, signed=True)} points."
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _spread(values: Sequence[float], digits: int = 1, *, signed: bool = False) -> str:
    """Mean, and standard deviation where there are several values."""
    if not values:
        return ""
    mean = f"{fmean(values):{'+' if signed else ''}.{digits}f}"
    return f"{mean} ±{stdev(values):.{digits}f}" if len(values) > 1 else mean


def plot(config: AblationConfig, results: Mapping[str, Sequence[Result]]) -> None:
    """Losses of all cells, a picture a group, the base in each."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = list(dict.fromkeys(CELLS[name].group for name in results if name != BASE))
    figure, axes = plt.subplots(
        1, max(1, len(groups)), squeeze=False, figsize=(4 * max(1, len(groups)), 3)
    )
    for axis, group in zip(axes[0], groups, strict=False):
        for name in results:
            if name != BASE and CELLS[name].group != group:
                continue
            path = config.output / f"{name}.{config.seeds[0]}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            points = [(line["step"], line["ccp"]) for line in lines if "ccp" in line]
            if points:
                axis.plot(*zip(*points, strict=True), label=name)
        axis.set(title=group, xlabel="updates", ylabel="CCP loss, nats")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(config.output / "losses.png", dpi=120)
    plt.close(figure)
