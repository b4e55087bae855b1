"""Mean and spread of vectors that come in any number of blocks, in any order, in one pass.

    n, m, S  with  S = sum (v - m)^2      per dimension
    two parts joined:  m = m_a + d n_b / n,  S = S_a + S_b + d^2 n_a n_b / n,  d = m_b - m_a

(Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance", The American
Statistician 37). In float64, so that neither the order nor a mean far from zero shows in float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Rows that are turned into float64 at a time.
BLOCK = 16_384

Vector = NDArray[np.float64]


@dataclass
class Moments:
    """n, m and S of the rows seen.

    Attributes:
        count: n.
        mean: m, shape ``(D,)``; of width 0 before the first row.
        squares: S, shape ``(D,)``.
    """

    count: int = 0
    mean: Vector = field(default_factory=lambda: np.zeros(0))
    squares: Vector = field(default_factory=lambda: np.zeros(0))

    def add(self, embeddings: NDArray[Any]) -> None:
        """Take in more rows, shape ``(N, D)``, finite.

        Raises:
            ValueError: If they are of another width than those before.
        """
        for block in _blocks(embeddings):
            mean = block.mean(axis=0)
            self.join(Moments(len(block), mean, np.square(block - mean).sum(axis=0)))

    def join(self, other: "Moments") -> None:
        """Take in what another has seen.

        Raises:
            ValueError: If it is of another width.
        """
        if not other.count:
            return
        if not self.count:
            self.count, self.mean, self.squares = other.count, other.mean, other.squares
            return
        if self.mean.shape != other.mean.shape:
            raise ValueError(
                f"expected vectors of width {len(self.mean)} as before, got {len(other.mean)}"
            )
        total = self.count + other.count
        apart = other.mean - self.mean
        self.squares = (
            self.squares + other.squares + np.square(apart) * (self.count * other.count / total)
        )
        self.mean = self.mean + apart * (other.count / total)
        self.count = total

    @property
    def variance(self) -> Vector:
        """S / n, shape ``(D,)``: of the rows seen, not an estimate for others."""
        return self.squares / max(1, self.count)


def _blocks(embeddings: NDArray[Any]) -> Iterator[Vector]:
    for start in range(0, len(embeddings), BLOCK):
        yield embeddings[start : start + BLOCK].astype(np.float64)
