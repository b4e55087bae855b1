"""Settings of the command that fits a calibration (section 3.2); see :mod:`ccpretrieve.config`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ccpretrieve.config import DTYPES, POOLINGS, Config, Many, a_device, at_least, one_of
from ccpretrieve.errors import UserError, unknown

SHIFT, SCALE, ROTATE = STEPS = ("shift", "scale", "rotate")
DEVIATION, VARIANCE = STATISTICS = ("deviation", "variance")
QUERY, PASSAGE = ROLES = ("query", "passage")
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(Config):
    """Fit a calibration: each language's mean, spread and rotation, from text that is not paired.

    Attributes:
        texts: Folder or file of documents or sentences of each language, as `pretrain` reads them.
        embeddings: Folders that `encode --no-normalize` wrote, instead of --encoder and --texts.
        encoder: Checkpoint directory or hub name. Default: CCPRETRIEVE_ENCODER.
        output: The file, in safetensors.
        languages: Codes such as en or ja. Default: all that there are.
        steps: Of shift, scale and rotate, in this order and parted by commas.
        pivot: Language whose cloud the others are rotated onto.
        statistic: Spread that is divided by: deviation, or the paper's variance.
        shrinkage: Share of the other languages in the statistics of each, 0 to 1, or auto: more for
            a language with little text.
        most: Texts of a language that are used.
        rotation_rows: Of them, those drawn to learn a rotation from, which uses 3,000 of a language
            at most, 12,000 of the pivot, or three times the dimensions if that is more.
        seed: Of the rotation's draws.
        role: Embed the texts as query or passage: its prefix, length and tower.
        pooling: cls or mean. Default: the checkpoint's.
        layer: Hidden states to pool: 0 the embeddings, -1 the last. Default: the checkpoint's.
        max_length: Tokens kept of a text. Default: the checkpoint's.
        query_prefix: Put before every query. Default: the checkpoint's.
        passage_prefix: Put before every passage. Default: the checkpoint's.
        batch_tokens: Tokens of a forward pass, padding included.
        device: Any torch device. Default: cuda where there is one, else cpu.
        dtype: float32, bfloat16 or float16. Default: float32 on cpu, bfloat16 on a GPU.
    """

    output: Path
    texts: str | None = None
    embeddings: Annotated[tuple[Path, ...], Many] = ()
    encoder: str | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    steps: str = f"{SHIFT},{SCALE}"
    pivot: str = "en"
    statistic: str = DEVIATION
    shrinkage: str = AUTO
    most: int = 100_000
    rotation_rows: int = 10_000
    seed: int = 0
    role: str = QUERY
    pooling: str | None = None
    layer: int | None = None
    max_length: int | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.texts is None) == (not self.embeddings):
            raise UserError("give --texts, or --embeddings that are there already, and not both")
        if self.embeddings:
            self._check_unused()
        for name in self.chosen:
            if name not in STEPS:
                raise unknown("step", name, STEPS)
        if list(self.chosen) != [name for name in STEPS if name in self.chosen]:
            raise UserError(f"--steps {self.steps}: each once, in the order {','.join(STEPS)}")
        one_of("statistic", self.statistic, STATISTICS)
        one_of("role", self.role, ROLES)
        one_of("pooling", self.pooling, POOLINGS)
        one_of("dtype", self.dtype, DTYPES)
        a_device(self.device)
        _ = self.share
        at_least("--most", self.most, 2)
        at_least("--rotation-rows", self.rotation_rows, 2)
        at_least("--seed", self.seed, 0)
        at_least("--max-length", self.max_length, 4)
        at_least("--batch-tokens", self.batch_tokens, 1)

    def _check_unused(self) -> None:
        """Settings of an encoder say nothing of vectors that are there."""
        of_an_encoder = ("encoder", "pooling", "layer", "max_length", "batch_tokens")
        for name in (*of_an_encoder, "query_prefix", "passage_prefix", "device", "dtype"):
            if getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} goes with --texts; what --embeddings holds is encoded")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The steps."""
        return tuple(name.strip() for name in self.steps.split(","))

    @property
    def share(self) -> float | str:
        """The shrinkage: ``auto``, or a number from 0 to 1.

        Raises:
            UserError: If it is neither.
        """
        try:
            share = float(self.shrinkage) if self.shrinkage != AUTO else 0.0
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise UserError(f"--shrinkage must be {AUTO} or lie from 0 to 1, got {self.shrinkage}")
        return AUTO if self.shrinkage == AUTO else share
