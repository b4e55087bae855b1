"""The ablations of section 5 at a size for one CPU, and the controls that CCP has to beat.

    python -m benchmarks.ablations --corpus data/longdocs --tatoeba data/tatoeba --encoder E
    python -m benchmarks.ablations ... --cells base bank-shared --seeds 0

Each cell is one change to the base settings (no-l2 brings tau 1: dot products are larger), trained
for equally many updates from the same start
with each of its seeds; its result is kept in --output and not trained again. What is compared:
losses, health, and Tatoeba accuracy by the first token and by the mean, raw, after the shift, and
after shift and scale. What the paper claims of each change, in kind, stands beside it. Gains are
given with the spread over seeds, and that of CCP over its best control comes first.
"""

import dataclasses
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from benchmarks.table import grid
from benchmarks.tatoeba import TatoebaConfig
from benchmarks.tatoeba import run as tatoeba
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, Many, at_least
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import atomic, make_directory, read_json, write_json
from ccpretrieve.training_config import PretrainConfig
from ccpretrieve.values import plain

logger = logging.getLogger("ccpretrieve.benchmarks.ablations")

POOLINGS = ("cls", "mean")
BASE = "base"
SLIGHTLY = "slightly worse"
NOT_LEARNED = ("output", "resume", "quiet")  # settings that decide no result


@dataclass(frozen=True)
class Cell:
    """One change to the base.

    Attributes:
        group: What is varied.
        change: Settings of :class:`PretrainConfig` that differ.
        claim: What the paper says of it, in kind; empty if nothing.
        repeated: Whether all seeds are run, or the first alone.
    """

    group: str
    change: Mapping[str, Any]
    claim: str = ""
    repeated: bool = False


CELLS: dict[str, Cell] = {
    BASE: Cell("CCP", {}, "best", repeated=True),
    "control-random": Cell("control", {"positive": "random"}, repeated=True),
    "control-same": Cell("control", {"positive": "same"}, repeated=True),
    "control-mlm": Cell("control", {"mlm_share": 1.0}, repeated=True),
    "bn-none": Cell("batch norm", {"batch_norm": "none"}, "training fails", repeated=True),
    "bn-plain": Cell("batch norm", {"batch_norm": "plain"}, "terrible", repeated=True),
    "bn-shuffled": Cell("batch norm", {"batch_norm": "shuffled"}, "", repeated=True),
    "bank-shared": Cell("bank", {"bank": "shared"}, "ruins the result", repeated=True),
    "bank-none": Cell("bank", {"bank": "none"}, "", repeated=True),
    "no-l2": Cell("L2", {"l2": False, "temperature": 1.0}, "training fails"),
    "tau-0.02": Cell("tau", {"temperature": 0.02}),
    "tau-0.1": Cell("tau", {"temperature": 0.1}),
    "tau-0.2": Cell("tau", {"temperature": 0.2}),
    "batch-16": Cell("batch", {"batch_size": 16, "accumulated_batch_size": 16}, SLIGHTLY),
    "batch-96": Cell("batch", {"batch_size": 96, "accumulated_batch_size": 96}),
    "radius-1": Cell("radius", {"radius": 1}, SLIGHTLY),
    "radius-5": Cell("radius", {"radius": 5}),
    "mlm-0.25": Cell("MLM", {"mlm_share": 0.25}),
    "mlm-0.5": Cell("MLM", {"mlm_share": 0.5}),
}


@dataclass(frozen=True, kw_only=True)
class AblationConfig(Config):
    """Train and compare the cells.

    Attributes:
        corpus: Documents; see `python -m ccpretrieve.pretrain`.
        tatoeba: Folder of parallel text in Tatoeba's layout.
        encoder: Checkpoint to start from.
        languages: Of the documents.
        tested: Languages of the parallel text, beside English.
        cells: Of the table in this file. Default: all.
        seeds: Of the cells that are repeated; the others take the first.
        pooling: cls or mean, in the loss of every cell.
        steps: Updates of every cell.
        layers: First layers of the encoder that are kept.
        batch_size: Windows of an update.
        learning_rate: After a warm-up over a tenth of the updates.
        head_learning_rate: Of the projection head.
        bank_size: Vectors kept of a language.
        output: Folder of the finished cells.
    """

    corpus: str
    tatoeba: Path
    encoder: str | None = None
    languages: Annotated[tuple[str, ...], Many] = ("en", "fr", "de", "ru", "ja", "fi", "ko")
    tested: Annotated[tuple[str, ...], Many] = ("fra", "deu", "rus", "jpn", "fin", "kor")
    cells: Annotated[tuple[str, ...], Many] = ()
    seeds: Annotated[tuple[int, ...], Many] = (0, 1, 2)
    pooling: str = "cls"
    steps: int = 120
    layers: int = 4
    batch_size: int = 48
    learning_rate: float = 3e-5
    head_learning_rate: float = 1e-3
    bank_size: int = 4096
    output: Path = Path("runs/ablations")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("--steps", self.steps, 10)
        if not self.seeds:
            raise UserError("--seeds needs at least one")
        for name in self.cells:
            if name not in CELLS:
                raise unknown("cell", name, tuple(CELLS))

    def training(self, cell: Cell, seed: int, output: Path) -> PretrainConfig:
        """The settings of one training."""
        settings = {
            **{"batch_size": self.batch_size, "accumulated_batch_size": self.batch_size},
            **{"learning_rate": self.learning_rate, "warmup_steps": self.steps // 10},
            **{"head_learning_rate": self.head_learning_rate},
            **{"max_steps": self.steps, "pooling": self.pooling, "bank_size": self.bank_size},
            **{"layers": self.layers, "freeze_embeddings": True},
            **{"mlm_share": 0.0, "max_length": 64, "log_steps": 5, "save_steps": 60},
            **{"eval_steps": self.steps, "probe_steps": 20, "trackers": (), "seed": seed},
        }
        return PretrainConfig(
            corpus=self.corpus,
            encoder=self.encoder,
            languages=self.languages,
            output=output,
            quiet=self.quiet,
            **{**settings, **cell.change},
        )


@dataclass(frozen=True)
class Result:
    """What one cell reached.

    Attributes:
        losses: Mean over the last quarter of the log: ``ccp``, ``mlm`` where there were any.
        health: Of the last lines of the log, and ``warnings``.
        accuracy: ``cls raw``, ``mean shifted`` and so on -> language -> share.
        seconds: Of training.
    """

    losses: Mapping[str, float]
    health: Mapping[str, Any]
    accuracy: Mapping[str, Mapping[str, float]]
    seconds: float

    def average(self, how: str) -> float:
        """Mean over languages."""
        return fmean(self.accuracy[how].values())


def run(config: AblationConfig) -> str:
    """Train what is not there yet, and compare.

    Returns:
        The report.

    Raises:
        UserError: If a cell cannot be trained.
    """
    make_directory(config.output)
    results: dict[str, list[Result]] = {}
    start = _start(config)
    for name in config.cells or CELLS:
        cell = CELLS[name]
        seeds = config.seeds if cell.repeated else config.seeds[:1]
        results[name] = [_result(config, name, cell, seed) for seed in seeds]
    report = _report(config, start, results)
    with atomic(config.output / "report.md") as stream:
        stream.write((report + "\n").encode())
    plot(config, results)
    return report


def _result(config: AblationConfig, name: str, cell: Cell, seed: int) -> Result:
    """The result of a cell with a seed: kept, or trained now."""
    path = config.output / f"{name}.{seed}.json"
    asked = _identity(config, cell, seed)
    if path.is_file():
        kept = read_json(path)
        if _defaults() | kept["settings"] != asked:
            raise UserError(f"{path}: was trained with other settings; choose another --output")
        return Result(**kept["result"])
    logger.info("cell %s, seed %d", name, seed)
    result = _train(config, cell, seed, config.output / f"{name}.{seed}")
    write_json(path, {"settings": asked, "result": dataclasses.asdict(result)})
    return result


def _identity(config: AblationConfig, cell: Cell, seed: int) -> dict[str, Any]:
    """What decides the result."""
    training = config.training(cell, seed, Path())
    from ccpretrieve.model.checkpoint import default_encoder

    asked = {name: plain(v) for name, v in vars(training).items() if name not in NOT_LEARNED}
    encoder = config.encoder or default_encoder()
    return asked | {
        **{"tested": list(config.tested), "tatoeba": str(config.tatoeba), "encoder": encoder},
    }


def _defaults() -> dict[str, Any]:
    """Of settings that a cell may lack because it was trained before there were any."""
    return {
        each.name: plain(each.default)
        for each in dataclasses.fields(PretrainConfig)
        if each.default is not dataclasses.MISSING and each.name not in NOT_LEARNED
    }


def _train(config: AblationConfig, cell: Cell, seed: int, folder: Path) -> Result:
    from ccpretrieve.pretrain import run as pretrain
    from ccpretrieve.training.states import begun
    from ccpretrieve.training.trainer import read_log

    training = config.training(cell, seed, folder)
    pretrain(dataclasses.replace(training, resume=begun(folder)))
    lines = read_log(folder / "training" / "log.jsonl")
    last = lines[-max(1, len(lines) // 4) :]
    report = read_json(folder / "training" / "report.json")
    kept = ("effective_rank", "uniformity", "alignment", "spread", "bank_accuracy", "bound")
    result = Result(
        losses=_means(last, ("ccp", "mlm")),
        health=_means(last, kept) | {"warnings": report["health"]["verdict"]},
        accuracy=_accuracy(config, str(folder)),
        seconds=report["seconds"],
    )
    shutil.copy(folder / "training" / "log.jsonl", folder.with_name(f"{folder.name}.jsonl"))
    shutil.rmtree(folder)
    return result


def _means(lines: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    values = {name: [line[name] for line in lines if name in line] for name in names}
    return {name: fmean(each) for name, each in values.items() if each}


def _accuracy(
    config: AblationConfig, encoder: str, layer: int | None = None
) -> dict[str, dict[str, float]]:
    """Tatoeba accuracy, mean of both directions, by pooling and step of calibration."""
    found: dict[str, dict[str, float]] = {}
    for pooling in POOLINGS:
        report = tatoeba(
            TatoebaConfig(
                data=config.tatoeba,
                encoder=(encoder,),
                languages=config.tested,
                pooling=pooling,
                layer=layer,
                max_length=64,
                quiet=True,
            )
        )
        for text in next(iter(report.encoders.values())).scored:
            for step, accuracy in text.steps.items():
                found.setdefault(f"{pooling} {step}", {})[text.name] = accuracy.mean
    return found


def _start(config: AblationConfig) -> dict[str, dict[str, float]]:
    """Accuracy of the start, cut to its first layers; kept too."""
    path = config.output / "start.json"
    from ccpretrieve.model.checkpoint import default_encoder

    encoder = config.encoder or default_encoder()
    asked = {
        **{"encoder": encoder, "layers": config.layers, "tested": list(config.tested)},
        **{"tatoeba": str(config.tatoeba)},
    }
    if path.is_file():
        kept = read_json(path)
        if kept["settings"] != asked:
            raise UserError(f"{path}: is of another start or test; choose another --output")
        accuracy: dict[str, dict[str, float]] = kept["accuracy"]
        return accuracy
    accuracy = _accuracy(config, encoder, layer=config.layers)
    write_json(path, {"settings": asked, "accuracy": accuracy})
    return accuracy


def _report(
    config: AblationConfig,
    start: Mapping[str, Mapping[str, float]],
    results: Mapping[str, Sequence[Result]],
) -> str:
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
    return "\n\n".join([*parts, *_claims(config, start, results)])


def _claims(
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


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`AblationConfig`."""
    command(run, AblationConfig, "benchmarks.ablations", argv, kept="finished cells are kept")


if __name__ == "__main__":
    main()
