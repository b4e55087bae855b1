"""Cells of the ablations: what is changed, what is trained, what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from ccpretrieve.config import Config, Many, at_least
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.training_config import PretrainConfig

BASE = "base"
SLIGHTLY = "slightly worse"


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
