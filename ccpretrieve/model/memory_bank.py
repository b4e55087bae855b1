"""The language-specific memory bank M_lg (section 3.1): negatives from earlier batches.

One queue a language, first in first out. After the parameters are updated the z_i, detached, enter
their language's queue and the oldest leave; a batch sees its own language's only. One queue for
all (``shared``) makes the task "which language is this" and ruins the result, the paper says; it
is here to be measured.

Notation, paper -> code:

    M             size                  vectors kept of each language
    z_2N+1 ..     candidates(language)  what the queue holds, fewer than M while it is young

A queue is a ring: rows are overwritten where they lie and candidates are a view, so that neither
costs a copy of the bank. Memory is taken on a language's first use: 108 languages x 32,768 x 1024
would be 14.5 GB in float32, half of it in bfloat16.

Where the paper leaves a choice: which vectors enter (:func:`entering`) and so whether those of both
batch norm modes mix.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ccpretrieve.errors import UserError, unknown
from ccpretrieve.model.projection import training_side
from ccpretrieve.training_config import BANK_ENTRIES, BANKS


def entering(which: str, centers: Tensor, contexts: Tensor, *, step: int) -> Tensor:
    """The rows that enter the bank after a step; call it for the vectors and for their keys.

    Args:
        which: ``contexts``: z_i, as the paper has it, so that vectors of both batch norm modes
            mix; ``both``: z_c, then z_i; ``evaluated``: the side that was normalised with running
            statistics, so that one mode is in the bank.
        centers: z_c or their keys, shape ``(N, ...)``.
        contexts: z_i or their keys, shape ``(K, ...)``.
        step: The one that :class:`~ccpretrieve.model.projection.Projection` was given.

    Raises:
        UserError: If ``which`` is unknown.
    """
    if which not in BANK_ENTRIES:
        raise unknown("bank entries", which, BANK_ENTRIES)
    if which == "both":
        return torch.cat([centers, contexts])
    return centers if which == "evaluated" and training_side(step) == "contexts" else contexts


@dataclass(slots=True)
class _Ring:
    """A queue in place.

    Attributes:
        vectors: Shape ``(M, P)``; rows from ``filled`` on are not initialised.
        keys: Shape ``(M,)``.
        filled: Rows in use.
        next: Row that is written next; the oldest once the ring is full.
    """

    vectors: Tensor
    keys: Tensor
    filled: int = 0
    next: int = 0

    def write(self, vectors: Tensor, keys: Tensor) -> None:
        size = len(self.keys)
        vectors, keys = vectors[-size:], keys[-size:]  # what came before would leave at once
        until_end = min(len(keys), size - self.next)
        for ring, rows in ((self.vectors, vectors), (self.keys, keys)):
            ring[self.next : self.next + until_end].copy_(rows[:until_end])
            ring[: len(rows) - until_end].copy_(rows[until_end:])
        self.filled = min(size, self.filled + len(keys))
        self.next = (self.next + len(keys)) % size


class MemoryBank:
    """The last ``size`` vectors of each language, with a key for the sentence behind each.

    Args:
        size: M; 0 keeps nothing.
        width: P, length of a vector.
        kind: ``language``: a queue each; ``shared``: one of M for all; ``none``: no bank.
        dtype: What vectors are kept as; the loss computes in float32 whatever it is.
        device: Where they are kept.

    Raises:
        UserError: If the kind is unknown.
        ValueError: If ``size`` is negative or ``width`` below 1.
    """

    def __init__(
        self,
        size: int,
        width: int,
        *,
        kind: str = "language",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if kind not in BANKS:
            raise unknown("bank", kind, BANKS)
        if size < 0 or width < 1:
            raise ValueError(f"need size >= 0 and width >= 1, got size={size}, width={width}")
        self.size = 0 if kind == "none" else size
        self.width = width
        self.kind = kind
        self.dtype = dtype
        self.device = torch.device(device)
        self._rings: dict[str, _Ring] = {}

    def candidates(self, language: str) -> tuple[Tensor, Tensor]:
        """The negatives a batch of ``language`` sees, and the keys of their sentences.

        Only what was put in: a young bank is small, a language not seen yet has M = 0. Filling up
        with random vectors, MoCo's way, would be negatives that nobody encoded.

        Returns:
            Vectors ``(M, P)`` and keys ``(M,)``, int64, in the order of the ring, not of age. Both
            are views without gradient: use them up, backward pass included, before the next
            :meth:`enqueue`.
        """
        ring = self._rings.get(self._name(language))
        if ring is None:
            return self._empty(0)
        return ring.vectors[: ring.filled], ring.keys[: ring.filled]

    @torch.no_grad()
    def enqueue(self, language: str, z: Tensor, keys: Tensor) -> None:
        """Put vectors in, without their gradient; the oldest beyond ``size`` leave.

        Args:
            language: Whose queue.
            z: Shape ``(B, P)``, any B; the last row is the newest.
            keys: A hash of each sentence, int64, shape ``(B,)``.

        Raises:
            ValueError: If shapes do not fit.
        """
        if z.ndim != 2 or z.shape[1] != self.width or keys.shape != z.shape[:1]:
            raise ValueError(
                f"expected (B, {self.width}) vectors and (B,) keys, "
                f"got {tuple(z.shape)} and {tuple(keys.shape)}"
            )
        if self.size == 0 or len(z) == 0:
            return
        name = self._name(language)
        if name not in self._rings:
            self._rings[name] = _Ring(*self._empty(self.size))
        self._rings[name].write(z, keys)

    def counts(self) -> dict[str, int]:
        """Vectors held of each language; under ``""`` those of a shared bank."""
        return {name: ring.filled for name, ring in sorted(self._rings.items())}

    def bytes(self) -> int:
        """Memory taken so far, keys included."""
        return sum(ring.vectors.nbytes + ring.keys.nbytes for ring in self._rings.values())

    def most_bytes(self, languages: int) -> int:
        """Memory taken once every one of so many languages was met, keys included."""
        rings = min(languages, 1) if self.kind == "shared" else languages
        return rings * self.size * (self.width * self.dtype.itemsize + torch.int64.itemsize)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and plain values, for :meth:`load_state_dict`.

        Full rings are the bank's own tensors, not copies: write them before the next enqueue.
        """
        return {
            "size": self.size,
            "width": self.width,
            "kind": self.kind,
            "dtype": str(self.dtype),
            "rings": {
                name: {
                    # a slice would be written with the whole storage behind it
                    "vectors": _compact(ring.vectors, ring.filled),
                    "keys": _compact(ring.keys, ring.filled),
                    "next": ring.next,
                }
                for name, ring in self._rings.items()
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the bank that ``state`` was taken from, row by row in the same places.

        Raises:
            UserError: If it was taken from a bank of other settings; the device may differ.
        """
        for setting in ("size", "width", "kind", "dtype"):
            ours, saved = getattr(self, setting), state[setting]
            if str(ours) != str(saved):
                raise UserError(
                    f"the saved memory bank has {setting} {saved}, this run asks for {ours}; "
                    "resume with the settings it was saved with"
                )
        self._rings = {}
        for name, saved in state["rings"].items():
            ring = _Ring(*self._empty(self.size), len(saved["keys"]), saved["next"])
            ring.vectors[: ring.filled].copy_(saved["vectors"])
            ring.keys[: ring.filled].copy_(saved["keys"])
            self._rings[name] = ring

    def _name(self, language: str) -> str:
        return "" if self.kind == "shared" else language

    def _empty(self, rows: int) -> tuple[Tensor, Tensor]:
        return (
            torch.empty(rows, self.width, dtype=self.dtype, device=self.device),
            torch.empty(rows, dtype=torch.int64, device=self.device),
        )


def _compact(rows: Tensor, filled: int) -> Tensor:
    return rows if filled == len(rows) else rows[:filled].clone()
