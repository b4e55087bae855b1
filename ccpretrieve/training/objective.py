"""What a training run learns, and from what: the interface between the loop and its objectives.

The loop (:mod:`ccpretrieve.training.trainer`) knows nothing of what is learned; CCP
(:mod:`ccpretrieve.training.ccp`) and DPR are two objectives.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor, nn


class Loss(NamedTuple):
    """The loss of one forward pass.

    Attributes:
        value: A scalar to go down.
        name: Which of an objective's losses it is, for the log.
        tokens: Of the batch, without padding.
        about: What the batch was, for the message if the loss is no number.
    """

    value: Tensor
    name: str
    tokens: int
    about: str


class Objective(ABC):
    """What is learned, and from what.

    Attributes:
        module: Everything that has parameters; its forward pass is called through the trainer's
            wrapper, so that gradients are averaged over processes.
    """

    module: nn.Module

    def rates(self) -> dict[str, float]:
        """Beginnings of parameters' names -> learning rates that are not the run's."""
        return {}

    @abstractmethod
    def draw(self, passes: int) -> None:
        """Draw what the next so many calls of :meth:`loss` learn from.

        Raises:
            UserError: If it cannot be had; :meth:`state_dict` is then as it was before.
        """

    @abstractmethod
    def loss(self, module: nn.Module) -> Loss:
        """Compute the loss of the next batch through ``module``, the wrapped module."""

    @abstractmethod
    def updated(self) -> None:
        """Called after each update of the parameters."""

    @abstractmethod
    def measures(self) -> dict[str, float]:
        """What the log says besides the losses; called when a line is written."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Scores on held-out text, the deciding one first; empty for none."""

    def better(self, score: float, best: float) -> bool:
        """Whether a deciding score is better than the best so far; here the higher one is."""
        return score > best

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All of this process's state but ``module``: tensors and plain values."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where :meth:`state_dict` was taken."""
