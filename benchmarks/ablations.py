"""The ablations of section 5 at a size for one CPU, and the controls that CCP has to beat.

    python -m benchmarks.ablations --corpus data/longdocs --tatoeba data/tatoeba --encoder E
    python -m benchmarks.ablations ... --cells base bank-shared --seeds 0

Each cell is one change to the base settings (no-l2 brings tau 1: dot products are larger), trained
for equally many updates from the same start with each of its seeds; its result is kept in --output
and not trained again. What is compared: losses, health, and Tatoeba accuracy by the first token and
by the mean, raw, after the shift, and after shift and scale. What the paper claims of each change,
in kind, stands beside it. Gains are given with the spread over seeds, and that of CCP over its best
control comes first.
"""

import dataclasses
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.ablation_cells import CELLS, AblationConfig, Cell, Result
from benchmarks.ablation_report import plot, report
from benchmarks.tatoeba import TatoebaConfig
from benchmarks.tatoeba import run as tatoeba
from ccpretrieve.commandline import command
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, make_directory, read_json, write_json
from ccpretrieve.training_config import PretrainConfig
from ccpretrieve.values import plain

logger = logging.getLogger("ccpretrieve.benchmarks.ablations")

POOLINGS = ("cls", "mean")
NOT_LEARNED = ("output", "resume", "quiet")  # settings that decide no result


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
    said = report(config, start, results)
    with atomic(config.output / "report.md") as stream:
        stream.write((said + "\n").encode())
    plot(config, results)
    return said


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


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`AblationConfig`."""
    command(run, AblationConfig, "benchmarks.ablations", argv, kept="finished cells are kept")


if __name__ == "__main__":
    main()
