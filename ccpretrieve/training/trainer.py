"""The one training loop: accumulation, schedule, clipping, logging, resuming. Sections 4 and 4.3.

    for each update:   accumulated-batch-size / batch-size forward and backward passes
                       clip, update, schedule, then what the objective does after an update
    every so often:    a line of the log, an evaluation, a state to resume from

What is learned is an :class:`~ccpretrieve.training.objective.Objective`. Accelerate brings
processes, devices, mixed precision and trackers. transformers' Trainer, the other candidate, owns
the batch order, asks for a data set with a length, and has no place between update and next batch,
where Algorithm 1 fills its memory bank.

A run that was killed and resumed takes the same steps as one that never was: a state holds
parameters, optimiser, schedule, the objective with its data position, and every random state. What
an update learns from is drawn before it begins, so that a document that cannot be read ends a run
with the state of its last update.
"""

import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from ccpretrieve.errors import UserError
from ccpretrieve.training.objective import Loss, Objective
from ccpretrieve.training.process import Processes
from ccpretrieve.training.states import States
from ccpretrieve.training_config import TrainingConfig

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: Updates taken.
        seconds: Trained, over all resumes.
        tokens: Seen by all processes, up to the last line of the log.
        best: The deciding score of the best evaluation, or None.
        best_step: Its step.
        scores: Of the last evaluation.
        losses: Name -> mean since the last line of the log.
        ended: Why it ended before the last step, in words; empty if it did not.
    """

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best: float | None = None
    best_step: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    ended: str = ""


class Trainer:
    """Runs an objective.

    Args:
        config: Of the run.
        objective: What is learned.
        processes: The process group; see :mod:`ccpretrieve.training.process`.
        states: Where states to resume from are kept.
    """

    def __init__(
        self, config: TrainingConfig, objective: Objective, processes: Processes, states: States
    ) -> None:
        self.config = config
        self.objective = objective
        self.processes = processes
        self.states = states
        self.progress = Progress()
        self.accumulation = accumulation(config, processes.count)
        trained = [p for p in objective.module.parameters() if p.requires_grad]
        optimizer = _optimizer(config, objective)
        self.module, self.optimizer = processes.prepare(objective.module, optimizer)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self._trained = trained
        self._losses: dict[str, list[float]] = {}
        self._tokens = 0  # seen by this process
        self._kept: int | None = None  # step of the newest state
        self._since = (time.monotonic(), 0)  # of the last line of the log: seconds, all tokens

    def run(self) -> Progress:
        """Train until ``max_steps`` or ``max_minutes``; leave a state of the end.

        Raises:
            UserError: If a loss or gradient is no number, and the last good state is kept; or if a
                document cannot be read, and that of the last update is.
        """
        config = self.config
        self.module.train()
        if config.resume:
            self._resume()
        progress = self.progress
        begun, before = time.monotonic(), progress.seconds
        self._since = (begun, progress.tokens)
        for _ in self._bar():
            self._update()
            progress.step += 1
            progress.seconds = before + time.monotonic() - begun
            progress.ended = self._out_of_time(begun)
            over = progress.step == config.max_steps or bool(progress.ended)
            if progress.step % config.log_steps == 0 or over:
                self._log()
            better = (progress.step % config.eval_steps == 0 or over) and self._evaluate()
            progress.ended = progress.ended or self._out_of_patience()
            over = over or bool(progress.ended)
            if progress.step % config.save_steps == 0 or over or better:
                self._save()
            if over:
                break
        return progress

    def _update(self) -> None:
        """One update of the parameters."""
        self._draw()
        losses = []
        for number in range(self.accumulation):
            last = number == self.accumulation - 1
            with self.processes.gathering(self.module, now=last), self.processes.autocast():
                loss = self.objective.loss(self.module)
                self.processes.backward(loss.value / self.accumulation)
            losses.append(loss._replace(value=loss.value.detach()))
        self._check(losses)
        norm = self.processes.clip(self._trained, self.config.clip)
        if norm is not None and not torch.isfinite(norm):
            self._stop("gradient", losses)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.objective.updated()

    def _draw(self) -> None:
        """Draw what the update learns from; where that fails, keep the state before it."""
        failed: UserError | None = None
        try:
            self.objective.draw(self.accumulation)
        except UserError as error:
            failed = error
        if not self.processes.any(failed is not None):
            return
        step = self.progress.step
        if step and self._kept != step:
            self._save()
        way = f"; the state of step {step} is kept: mend that, and go on with --resume"
        said = failed or "another process could not read its documents"
        raise UserError(f"{said}{way if step else ''}") from failed

    def _check(self, losses: list[Loss]) -> None:
        """Keep the losses for the log; stop if one is no number."""
        values = torch.stack([loss.value.float() for loss in losses]).tolist()
        for loss, value in zip(losses, values, strict=True):
            if not abs(value) < float("inf"):
                self._stop("loss", [loss])
            self._losses.setdefault(loss.name, []).append(value)
            self._tokens += loss.tokens

    def _stop(self, what: str, losses: list[Loss]) -> NoReturn:
        kept = self.states.newest()
        where = f"the state of step {kept} is kept" if kept is not None else "no state is kept yet"
        batches = "; ".join(dict.fromkeys(loss.about for loss in losses[:3]))
        step = self.progress.step + bool(losses)  # the update that is being taken, or the last
        raise UserError(
            f"step {step}: the {what} is no number{f' ({batches})' if batches else ''}; {where}. "
            "Try a lower --learning-rate, a longer --warmup-steps, or --dtype float32"
        )

    def _rate(self, step: int) -> float:
        """Share of the learning rate for the update after ``step`` updates."""
        config = self.config
        if step < config.warmup_steps:
            return (step + 1) / (config.warmup_steps + 1)
        if config.schedule == "constant":
            return 1.0
        left = max(config.max_steps - step, 0)
        return left / max(config.max_steps - config.warmup_steps, 1)

    def _out_of_time(self, begun: float) -> str:
        """That any process has trained for ``max_minutes``: all must stop at the same step."""
        limit = self.config.max_minutes
        if limit is None or not self.processes.any(time.monotonic() - begun >= 60 * limit):
            return ""
        return f"after {limit:g} minutes"

    def _out_of_patience(self) -> str:
        """That ``patience`` evaluations were no better than the best."""
        patience, progress = self.config.patience, self.progress
        if patience is None or progress.best_step is None:
            return ""
        waited = (progress.step - progress.best_step) // self.config.eval_steps
        return f"after {waited} evaluations without a better one" if waited >= patience else ""

    def _log(self) -> None:
        """Write a line of the log; means are over all processes."""
        progress = self.progress
        measured = {name: sum(values) / len(values) for name, values in self._losses.items()}
        measured |= self.objective.measures()
        measured = self.processes.mean(measured | {"tokens": float(self._tokens)})
        progress.tokens = round(measured.pop("tokens") * self.processes.count)
        now = time.monotonic()
        since, tokens = self._since
        measured["learning_rate"] = float(self.optimizer.param_groups[0]["lr"])
        measured["tokens_per_second"] = (progress.tokens - tokens) / max(now - since, 1e-9)
        self._since, self._losses = (now, progress.tokens), {}
        progress.losses = measured
        self.processes.log(measured, progress.step)
        self.states.log(progress.step, measured)
        if not sys.stderr.isatty():  # where there is a bar it says this
            shown = ", ".join(f"{k} {measured[k]:.4g}" for k in _SHOWN if k in measured)
            logger.info("step %d of %d: %s", progress.step, self.config.max_steps, shown)

    def _evaluate(self) -> bool:
        """Score; whether it is the best so far."""
        self.module.eval()
        try:
            with torch.no_grad(), self.processes.autocast():
                scores = self.objective.evaluate()
        except ValueError as error:  # vectors that are no numbers
            self._stop(f"evaluation ({error})", [])
        finally:
            self.module.train()
        if not scores:
            return False
        agreed = self.processes.mean(scores)  # to the last bit, so that all save the same state
        scores = {name: agreed[name] for name in scores}
        progress = self.progress
        progress.scores = scores
        self.processes.log(scores, progress.step)
        self.states.log(progress.step, scores)
        deciding = next(iter(scores.values()))
        logger.info("step %d: %s %.4f", progress.step, next(iter(scores)), deciding)
        if progress.best is not None and not self.objective.better(deciding, progress.best):
            return False
        progress.best, progress.best_step = deciding, progress.step
        return True

    def _save(self) -> None:
        if not all(bool(parameter.isfinite().all()) for parameter in self._trained):
            self._stop("update", [])
        module = self.processes.unwrapped(self.module)
        state = module.state_dict()
        common = {
            "progress": vars(self.progress),
            "module": state,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.processes.scaler_state(),
        }
        own = {
            "objective": self.objective.state_dict(),
            "random": self.processes.random_state(),
            # statistics of batch norm, which differ between processes
            "buffers": {name: state[name] for name, _ in module.named_buffers() if name in state},
            "losses": self._losses,
            "tokens": self._tokens,
            "weights": self._agreed_weights(),
        }
        self.states.save(self.progress.step, common, own, best=self.progress.best_step)
        self._kept = self.progress.step

    def _agreed_weights(self) -> float:
        """Sum over all weights, after a check that it is that of the other processes.

        Raises:
            RuntimeError: If processes have drifted apart, which averaged gradients rule out.
        """
        own = float(sum(p.detach().double().abs().sum() for p in self._trained))
        mean = self.processes.mean({"weights": own})["weights"]
        if abs(own - mean) > 1e-5 * mean:
            raise RuntimeError(f"processes hold different weights: {own} here, {mean} on average")
        return own

    def _resume(self) -> None:
        step = self.states.newest() or 0
        common, own = self.states.load()
        try:
            self._take_up(common, own)
            if self.progress.step != step:
                raise ValueError(f"it is of step {self.progress.step}")
        except UserError:
            raise
        except Exception as error:  # torch's and ours, of a state that is not whole
            raise self.states.damaged(step, error) from error
        self._kept = self.progress.step
        logger.info("going on after step %d", self.progress.step)

    def _take_up(self, common: dict[str, Any], own: dict[str, Any]) -> None:
        """Become what a state was taken from, but for the rates, which are those of this run."""
        self.progress = Progress(**common["progress"])
        if self.progress.step > self.config.max_steps:
            raise UserError(
                f"--max-steps {self.config.max_steps}: the run is at step {self.progress.step} "
                "already; ask for more, or take its checkpoint as it is"
            )
        module = self.processes.unwrapped(self.module)
        module.load_state_dict(common["module"] | own["buffers"])
        self._losses, self._tokens = own["losses"], own["tokens"]
        rates = [group["initial_lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(common["optimizer"])
        self.schedule.load_state_dict(common["schedule"])
        self.schedule.base_lrs = rates
        share = self._rate(self.schedule.last_epoch)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["initial_lr"], group["lr"] = rate, rate * share
        self.processes.load_scaler_state(common["scaler"])
        self.objective.load_state_dict(own["objective"])
        self.processes.load_random_state(own["random"])

    def _bar(self) -> Iterator[int]:
        """Steps that are left, with a bar on a terminal."""
        from tqdm import tqdm

        config, progress = self.config, self.progress
        hidden = config.quiet or not sys.stderr.isatty() or not self.processes.first
        with tqdm(
            total=config.max_steps, initial=progress.step, unit="step", disable=hidden
        ) as bar:
            while progress.step < config.max_steps:
                try:
                    yield progress.step
                finally:  # also where the last step ends the loop
                    shown = {name: f"{value:.4g}" for name, value in progress.losses.items()}
                    bar.set_postfix({k: v for k, v in shown.items() if k in _SHOWN}, refresh=False)
                    bar.update(progress.step - bar.n)


_SHOWN = ("ccp", "mlm", "dpr", "tokens_per_second")


def accumulation(config: TrainingConfig, processes: int) -> int:
    """Forward passes of one process for each update.

    Raises:
        UserError: If they do not come out even.
    """
    together = config.batch_size * processes
    passes, rest = divmod(config.accumulated_batch_size or together, together)
    if rest or not passes:
        raise UserError(
            f"--accumulated-batch-size {config.accumulated_batch_size} must be a multiple of "
            f"--batch-size {config.batch_size} x {processes} processes = {together}"
        )
    return passes


def _optimizer(config: TrainingConfig, objective: Objective) -> torch.optim.Optimizer:
    """Adam or AdamW; norms and biases are not decayed, and parts are the same at any rate."""
    groups: defaultdict[tuple[str, float], list[nn.Parameter]] = defaultdict(list)
    rates = {**objective.rates(), "": config.learning_rate}
    for name, parameter in objective.module.named_parameters():
        if parameter.requires_grad:
            part = next(start for start in rates if name.startswith(start))
            decay = config.weight_decay if parameter.ndim > 1 else 0.0
            groups[part, decay].append(parameter)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(
        [
            {"params": parameters, "lr": rates[part], "weight_decay": decay}
            for (part, decay), parameters in groups.items()
        ],
        fused=True,
    )


def read_log(path: Path) -> list[dict[str, float]]:
    """The lines of a log: each a step and what was measured there."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
