"""The processes of a training run, by Accelerate: devices, precision, gradients, random states."""

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ccpretrieve.errors import UserError
from ccpretrieve.training_config import TrainingConfig

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}
#: What `accelerate launch` sets where several processes are asked for, but not how to start them.
_LAUNCHED_FOR_MORE = {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"}


class Processes:
    """One process, or several started by ``accelerate launch``.

    Args:
        config: Of the run; device, dtype and trackers are used here.
        folder: Where trackers write.
        some_unused: Whether a batch may leave parameters without a gradient.

    Attributes:
        rank: Number of this process, from 0.
        count: How many there are.
        device: Of this process.

    Raises:
        UserError: If the device is not there, or cannot compute in that precision.
    """

    def __init__(
        self, config: TrainingConfig, folder: "Path", *, some_unused: bool = False
    ) -> None:
        from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
        from accelerate.state import AcceleratorState

        on_cpu = _on_cpu(config.device)
        dtype = config.dtype or ("float32" if on_cpu else "bfloat16")
        if on_cpu and dtype == "float16":
            raise UserError("--dtype float16 trains on a GPU only; use bfloat16 or float32 on cpu")
        # Batch norm's statistics are not sent around: asymmetric batch norm needs none of others
        # (section 3.1).
        parallel = DistributedDataParallelKwargs(
            broadcast_buffers=False, find_unused_parameters=some_unused
        )
        patience = InitProcessGroupKwargs(timeout=timedelta(hours=12))  # while the first prepares
        AcceleratorState._reset_state()  # or a process could train in one precision only
        self._accelerator: Any = Accelerator(
            cpu=on_cpu,
            mixed_precision=PRECISION[dtype],
            log_with=_trackers(config.trackers) or None,
            project_dir=folder,
            kwargs_handlers=[parallel, patience],
        )
        self.rank = int(self._accelerator.process_index)
        self.count = int(self._accelerator.num_processes)
        self.device: torch.device = self._accelerator.device
        if not self.first:  # what there is to say the first one says
            logging.getLogger("ccpretrieve").setLevel(logging.WARNING)
        logger.info("processes: %d on %s, in %s", self.count, self.device.type, dtype)
        if self.count == 1 and os.environ.keys() >= _LAUNCHED_FOR_MORE:
            logger.warning(
                "accelerate launch was to start several processes, and this one trains alone; add "
                "--multi_gpu there (and --device cpu here, where there is no GPU)"
            )

    @property
    def first(self) -> bool:
        """Whether this process writes what there is one of."""
        return self.rank == 0

    def prepare(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """Put both on the device and make gradients means over processes."""
        with warnings.catch_warnings():  # torch has a new name for what older versions need
            warnings.filterwarnings("ignore", message=".*broadcast_buffers.*")
            prepared = self._accelerator.prepare(module, optimizer)
        return prepared[0], prepared[1]

    def unwrapped(self, module: nn.Module) -> nn.Module:
        """The module as it was before :meth:`prepare`."""
        inner: nn.Module = self._accelerator.unwrap_model(module)
        return inner

    @contextlib.contextmanager
    def gathering(self, module: nn.Module, *, now: bool) -> Iterator[None]:
        """A backward pass whose gradients are averaged over processes ``now`` or later."""
        with contextlib.nullcontext() if now else self._accelerator.no_sync(module):
            yield

    def autocast(self) -> Any:
        """Compute in the precision asked for, for the block."""
        return self._accelerator.autocast()

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss, scaled where float16 needs it."""
        self._accelerator.backward(loss)

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> Tensor | None:
        """Shorten the gradient to ``limit``, 0 for no limit.

        Returns:
            Its length before; None in float16, where an infinite one is the scaler's to skip.
        """
        norm: Tensor = self._accelerator.clip_grad_norm_(parameters, limit or float("inf"))
        return norm if self._accelerator.scaler is None else None

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` holds in any process."""
        if self.count == 1:
            return flag
        return bool(self._accelerator.reduce(torch.tensor(float(flag), device=self.device)) > 0)

    def mean(self, values: Mapping[str, float]) -> dict[str, float]:
        """Means over processes; all must have the same names."""
        if self.count == 1:
            return dict(values)
        names = sorted(values)
        own = torch.tensor([values[name] for name in names], device=self.device)
        return dict(zip(names, self._accelerator.reduce(own, "mean").tolist(), strict=True))

    def gather(self, tensor: Tensor) -> Tensor:
        """Rows of all processes, in their order; each may have any number."""
        if self.count == 1:
            return tensor
        padded = self._accelerator.pad_across_processes(tensor.contiguous(), dim=0)
        parts = self._accelerator.gather(padded).split(len(padded))
        counts = self.counts(len(tensor))
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    def gather_with_gradient(self, tensor: Tensor) -> Tensor:
        """As :meth:`gather`, and gradients flow back to the process whose rows they are of."""
        if self.count == 1:
            return tensor
        from torch.distributed.nn.functional import all_gather

        counts = self.counts(len(tensor))
        missing = max(counts) - len(tensor)
        padded = torch.nn.functional.pad(tensor, (0, 0, 0, missing)).contiguous()
        parts: Sequence[Tensor] = all_gather(padded)  # type: ignore[no-untyped-call]
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    def counts(self, own: int) -> list[int]:
        """A number of each process, in their order."""
        if self.count == 1:
            return [own]
        counts: list[int] = self._accelerator.gather(
            torch.tensor([own], device=self.device)
        ).tolist()
        return counts

    def wait(self) -> None:
        """Until all processes are here."""
        self._accelerator.wait_for_everyone()

    def lead(self, work: Callable[[], None]) -> None:
        """Let the first process do what is done once, while the others wait.

        Raises:
            UserError: In all of them if it failed; the first one's says why.
        """
        failed: UserError | None = None
        if self.first:
            try:
                work()
            except UserError as error:
                failed = error
        if not self.any(failed is not None):
            return
        raise failed or UserError("the first process stopped; its message says why")

    def track(self, name: str, settings: Mapping[str, Any]) -> None:
        """Begin to log to the trackers."""
        plain = {key: str(value) for key, value in settings.items() if value is not None}
        _say_nothing_of_tensorboard()
        with self._tracking():
            self._accelerator.init_trackers(name, config=plain)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand values to the trackers."""
        with self._tracking():
            self._accelerator.log(dict(values), step=step)

    def end(self) -> None:
        """Close the trackers."""
        with self._tracking():
            self._accelerator.end_training()

    @contextlib.contextmanager
    def _tracking(self) -> Iterator[None]:
        """Go on without trackers if one cannot write: our own log says the same."""
        try:
            yield
        except OSError as error:
            self._accelerator.trackers = []
            logger.warning(
                "what trackers keep cannot be written (%s); going on without them",
                error.strerror or error,
            )

    def random_state(self) -> dict[str, Any]:
        """Of torch's generators, which dropout draws from."""
        state: dict[str, Any] = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def load_random_state(self, state: Mapping[str, Any]) -> None:
        """Go on drawing from where :meth:`random_state` was taken."""
        torch.set_rng_state(state["cpu"])
        if self.device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self.device)

    def scaler_state(self) -> dict[str, Any] | None:
        """Of float16's loss scaling; None in other precisions."""
        scaler = self._accelerator.scaler
        return None if scaler is None else scaler.state_dict()

    def load_scaler_state(self, state: Mapping[str, Any] | None) -> None:
        """Go on scaling from where :meth:`scaler_state` was taken."""
        if state is not None and self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(state)


def _on_cpu(device: str | None) -> bool:
    """Whether the run is on the CPU; nothing is put in a GPU's place."""
    if device not in (None, "cpu", "cuda"):
        raise UserError(f"--device {device!r}: training runs on cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no GPU here; use --device cpu")
    return device == "cpu" or not torch.cuda.is_available()


def _say_nothing_of_tensorboard() -> None:
    """Let the thread that writes TensorBoard's files die in silence: the next call raises why."""
    before = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        ours = type(arguments.thread).__module__.startswith("tensorboard")
        if not (ours and isinstance(arguments.exc_value, OSError)):
            before(arguments)

    threading.excepthook = hook


def _trackers(asked: Sequence[str] | None) -> list[str]:
    """The trackers to log to.

    Raises:
        UserError: If one that was asked for is not installed.
    """
    from accelerate.utils import is_tensorboard_available, is_wandb_available

    there = {"tensorboard": is_tensorboard_available(), "wandb": is_wandb_available()}
    if asked is None:
        return ["tensorboard"] if there["tensorboard"] else []
    if tuple(asked) == ("none",):
        return []
    for name in asked:
        if not there[name]:
            raise UserError(f"--trackers {name}: not installed; pip install {name}")
    return list(asked)
