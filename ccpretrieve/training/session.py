"""A training from its command to its checkpoint: what pretraining and fine-tuning do alike.

find       what is learned from and started from; what can be wrong is said here
begin      or go on with the run of --output; nothing of it is written or removed before
prepare    the objective
train      the loop
finish     the checkpoint, of the best state where states were scored, and the report
"""

import contextlib
import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory, only_writer, write_json
from ccpretrieve.model.checkpoint import towers
from ccpretrieve.training.objective import Objective
from ccpretrieve.training.process import Processes
from ccpretrieve.training.states import FOLDER, States
from ccpretrieve.training.trainer import Progress, Trainer
from ccpretrieve.training_config import TrainingConfig
from ccpretrieve.values import plain

logger = logging.getLogger(__name__)

REPORT = "report.json"


C = TypeVar("C", bound=TrainingConfig)


class Work(ABC, Generic[C]):
    """What one command trains.

    Args:
        config: Of the run.

    Attributes:
        name: Of the objective, for trackers.
        some_unused: Whether a batch may leave parameters without a gradient.
    """

    name: str
    some_unused: bool = False

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def find(self, processes: Processes) -> None:
        """Find what the run needs: what can be wrong is said before hours of work.

        Raises:
            UserError: If there is nothing to learn from or to start from.
        """

    @abstractmethod
    def prepare(self, folder: Path, processes: Processes) -> Objective:
        """Everything that is trained and learned from.

        Args:
            folder: Of the run, for what is prepared once and kept.
            processes: Those that train.

        Raises:
            UserError: If there is not enough to learn from, or the encoder cannot be loaded.
        """

    def steps(self) -> int:
        """Updates in all; asked once it is prepared."""
        return self.config.max_steps

    @abstractmethod
    def export(self) -> None:
        """Write the checkpoint.

        Raises:
            UserError: If it cannot be written.
        """

    @abstractmethod
    def report(self, progress: Progress) -> dict[str, Any]:
        """What is kept of the run, beside how it went; said in the log too where it matters."""


def carry_out(work: Work[Any]) -> Path | None:
    """Train.

    Returns:
        The checkpoint; None in all processes but the first.

    Raises:
        UserError: If there is nothing to learn from or to start from, the run cannot be begun or
            resumed, or it went wrong; the last good state is kept.
    """
    config = work.config
    folder = config.output / FOLDER
    processes = Processes(config, folder, some_unused=work.some_unused)
    with _alone(config, processes):
        states = States(config.output, processes)
        _check_output(config, states)
        asked = {name: plain(value) for name, value in vars(config).items()}
        states.check(asked, resume=config.resume)
        work.find(processes)  # before anything is written or removed
        states.begin(asked, resume=config.resume)
        try:
            objective = work.prepare(folder, processes)
        except UserError:
            if processes.first and not config.resume:
                states.clear()
            raise
        processes.track(work.name, asked)
        try:
            progress = _train(work, objective, processes, states)
            if processes.first:
                _finish(work, objective, states, progress)
            processes.wait()
        finally:
            processes.end()
    return config.output if processes.first else None


@contextlib.contextmanager
def _alone(config: TrainingConfig, processes: Processes) -> Iterator[None]:
    """Hold the lock of the output; the first process does for all."""
    with contextlib.ExitStack() as stack:
        if processes.first:
            make_directory(config.output)
            stack.enter_context(only_writer(config.output, "training"))
        yield


def _check_output(config: TrainingConfig, states: States) -> None:
    if config.resume or states.newest() is not None:
        return
    if any((place / "config.json").exists() for place in (config.output, *towers(config.output))):
        raise UserError(f"--output {config.output}: holds a checkpoint; choose another folder")


def _train(work: Work[Any], objective: Objective, processes: Processes, states: States) -> Progress:
    config = dataclasses.replace(work.config, max_steps=work.steps())
    progress = Trainer(config, objective, processes, states).run()
    if progress.ended:
        logger.info(
            "stopped %s at step %d of %d; --resume goes on",
            *(progress.ended, progress.step, config.max_steps),
        )
    return progress


def _finish(work: Work[Any], objective: Objective, states: States, progress: Progress) -> None:
    """Write the checkpoint, of the best state where states were scored, and the report."""
    step = progress.step
    if progress.best_step is not None and progress.best_step != step:
        step = progress.best_step
        objective.module.load_state_dict(states.load(step)[0]["module"])
        logger.info("the state of step %d scored best; it becomes the checkpoint", step)
    work.export()
    report = {
        "step": progress.step,
        "exported_step": step,
        "seconds": progress.seconds,
        "tokens": progress.tokens,
        "losses": progress.losses,
        "scores": progress.scores,
        "best": progress.best,
    }
    write_json(states.folder / REPORT, report | work.report(progress))
