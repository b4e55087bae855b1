"""Transforms planted in real embeddings: does calibration take them back, without a pair?

    python -m benchmarks.planted --texts data/longdocs --encoder E --pooling mean

    rotated    y = s x R + b           what shift and rotate are made for
    stretched  y = x d + b             what shift and scale are made for, d a factor a dimension
    both       y = s (x R) d + b       what no step can take back whole: x has spreads of its own

x are the vectors of one language's sentences as pooled, y the same ones transformed, with Gaussian
noise of a share of their length, in another order. Each side's calibration is fitted on it alone;
rotate turns y onto x without being told a pair. Accuracy is by cosine, mean of both directions.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from benchmarks.table import grid
from ccpretrieve.commandline import command
from ccpretrieve.config import POOLINGS, Config, Many, at_least, one_of
from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration_file import Embeddings

logger = logging.getLogger("ccpretrieve.benchmarks.planted")

Rows = NDArray[np.int64]

ROTATED, STRETCHED, BOTH = KINDS = ("rotated", "stretched", "both")
FACTOR = 2.5  # s
SPREAD = 0.5  # deviation of log d
CHAINS = {"raw": (), "shift": ("shift",), "shift, scale": ("shift", "scale")}
CHAINS |= {"shift, rotate": ("shift", "rotate"), "all": ("shift", "scale", "rotate")}


@dataclass(frozen=True, kw_only=True)
class PlantedConfig(Config):
    """Plant transforms in embeddings and calibrate.

    Attributes:
        texts: Folder or file of documents or sentences, as `calibrate` reads them.
        language: Of them, the one that is used.
        encoder: Checkpoint directory or hub name. Default: CCPRETRIEVE_ENCODER.
        pooling: cls or mean. Default: the checkpoint's.
        layer: Hidden states to pool. Default: the checkpoint's.
        rows: Sentences, the first ones.
        noise: Lengths of the noise, as shares of the mean length of a vector.
        seeds: Of transform, noise and order.
    """

    texts: str
    language: str = "en"
    encoder: str | None = None
    pooling: str | None = None
    layer: int | None = None
    rows: int = 2000
    noise: Annotated[tuple[float, ...], Many] = (0.0, 0.1, 0.2)
    seeds: Annotated[tuple[int, ...], Many] = (0, 1, 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("pooling", self.pooling, POOLINGS)
        at_least("--rows", self.rows, 2)
        for noise in self.noise:
            if not 0 <= noise < float("inf"):
                raise UserError(f"--noise must be 0 or more, got {noise}")


def run(config: PlantedConfig) -> str:
    """Plant, calibrate and score.

    Returns:
        The table.

    Raises:
        UserError: If there is no such text or encoder, or too little text.
    """
    x = embedded(config)
    rows = [["planted", "noise", *CHAINS, "rotations"]]
    for kind, noise in itertools.product(KINDS, config.noise):
        reached: dict[str, list[float]] = {name: [] for name in CHAINS}
        turned = 0
        for seed in config.seeds:
            scores, rotated = score(x, *plant(x, kind, noise, seed), seed)
            turned += rotated
            for name, share in scores.items():
                reached[name].append(share)
            logger.info("%s, noise %g, seed %d: %s", kind, noise, seed, scores)
        cells = ["/".join(f"{100 * share:.1f}" for share in each) for each in reached.values()]
        rows.append([kind, f"{noise:g}", *cells, f"{turned} of {2 * len(config.seeds)}"])
    return "\n\n".join(
        [
            f"{len(x)} vectors of {x.shape[1]} dimensions ({config.language}), accuracy in per "
            "cent, one figure a seed",
            grid(rows),
        ]
    )


def embedded(config: PlantedConfig) -> Embeddings:
    """Vectors of the sentences as pooled, shape ``(rows, D)``."""
    from ccpretrieve.data.documents import open_documents
    from ccpretrieve.data.sentences import distinct
    from ccpretrieve.model.encoder import Encoder

    (source,) = open_documents(config.texts, (config.language,)).values()
    texts = list(itertools.islice(distinct(source), config.rows))
    if len(texts) < config.rows:
        raise UserError(
            f"{config.texts}: has {len(texts)} sentences of {config.language}; lower --rows to that"
        )
    encoder = Encoder.load(
        config.encoder,
        pooling=config.pooling,
        layer=config.layer,
        normalize=False,
        calibrated=False,
    )
    return encoder.encode_queries(texts)


def plant(x: Embeddings, kind: str, noise: float, seed: int) -> tuple[Embeddings, Rows]:
    """Transform the rows and shuffle them.

    Args:
        x: Shape ``(N, D)``.
        kind: Of ``KINDS``.
        noise: Length of the noise, as a share of the mean length of a row.
        seed: Of all draws.

    Returns:
        Rows as transformed, shape ``(N, D)``, and which row of x each of them is.
    """
    generator = np.random.default_rng(seed)
    count, dim = x.shape
    length = float(np.linalg.norm(x, axis=1).mean())
    turn, _ = np.linalg.qr(generator.standard_normal((dim, dim)))
    stretch = np.exp(SPREAD * generator.standard_normal(dim))
    offset = generator.standard_normal(dim) * length / np.sqrt(dim)
    y = x.astype(np.float64)
    y = y + generator.standard_normal((count, dim)) * noise * length / np.sqrt(dim)
    if kind != STRETCHED:
        y = FACTOR * y @ turn
    if kind != ROTATED:
        y = y * stretch
    order = generator.permutation(count)
    return (y + offset)[order].astype(np.float32), order


def score(x: Embeddings, y: Embeddings, order: Rows, seed: int) -> tuple[Mapping[str, float], int]:
    """Accuracy under every chain of steps, and by how many of them y was turned."""
    from ccpretrieve.retrieval.bitext import accuracy

    reached, turned = {}, 0
    for name, steps in CHAINS.items():
        left, right, rotated = _calibrated(x, y, steps, seed)
        turned += rotated
        reached[name] = accuracy(left[order], right).mean
    return reached, turned


def _calibrated(
    x: Embeddings, y: Embeddings, steps: Sequence[str], seed: int
) -> tuple[Embeddings, Embeddings, bool]:
    """Both sides after the steps, and whether y was turned."""
    from ccpretrieve.model.calibration import Chain, Rotate, Scale, Shift

    def level() -> Iterator[Shift | Scale]:
        yield from (kind() for step, kind in (("shift", Shift), ("scale", Scale)) if step in steps)

    left = Chain(list(level())).fit(x).transform(x)
    right = Chain(list(level())).fit(y).transform(y)
    if "rotate" not in steps:
        return left, right, False
    rotate = Rotate(seed=seed).fit(right, left)
    logger.info("%s", rotate.outcome_.reason)
    identity = np.eye(x.shape[1], dtype=np.float32)
    return left, rotate.transform(right), not np.array_equal(rotate.rotation_, identity)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`PlantedConfig`."""
    command(run, PlantedConfig, "benchmarks.planted", argv)


if __name__ == "__main__":
    main()
