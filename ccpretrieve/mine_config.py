"""Settings of the command that mines hard negatives; see :mod:`ccpretrieve.config`."""

from dataclasses import dataclass
from pathlib import Path

from ccpretrieve.config import DTYPES, DataConfig, a_device, at_least, one_of
from ccpretrieve.errors import UserError

BM25 = "bm25"
TOP, RANDOM = CHOICES = ("top", "random")


@dataclass(frozen=True, kw_only=True)
class MineConfig(DataConfig):
    """Mine hard negatives: passages that rank high for a question and do not answer it.

    Attributes:
        corpus: Name, folder or file of passages.
        topics: File of questions, or a corpus that has some. Default: those of --corpus.
        qrels: File of judgements, or a corpus that has some. Default: those of --topics if that is
            a corpus, else of --corpus.
        split: Which topics and judgements of a corpus. Default: train.
        from_: bm25, or the folder of an index that `encode` made of --corpus.
        negatives: Of each question, where there are so many.
        depth: Passages searched a question, its own positives among them.
        answers: JSON lines of questions with answers by id; a passage that contains an answer is no
            negative.
        skip_top: Leave out so many of the best hits.
        ratio: Leave out what scores at least this share of the best positive's score.
        margin: Leave out what scores less than this below the best positive's score.
        choice: top, or random among those left.
        seed: Of the random choice.
        output: JSON lines as DPR has them, which `finetune --train` reads.
        lang: Language of the questions, and of passages whose corpus says none: for BM25's
            analyzer and a calibration. Default: the corpus' own.
        encoder: Checkpoint, if it is not where the index says or the index names none.
        calibration: Calibration file, if it is not where the index says.
        batch_tokens: Tokens of a forward pass, padding included. Default: 1024 on cpu, 16384 on
            a GPU.
        device: Any torch device. Default: cuda where there is one, else cpu.
        dtype: float32, bfloat16 or float16. Default: float32 on cpu, bfloat16 on a GPU.
    """

    corpus: str
    output: Path
    topics: str | None = None
    qrels: str | None = None
    split: str | None = None
    from_: str = BM25
    negatives: int = 8
    depth: int = 100
    answers: Path | None = None
    skip_top: int = 0
    ratio: float | None = None
    margin: float | None = None
    choice: str = TOP
    seed: int = 0
    lang: str | None = None
    encoder: str | None = None
    calibration: Path | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("--negatives", self.negatives, 1)
        at_least("--skip-top", self.skip_top, 0)
        at_least("--depth", self.depth, self.skip_top + self.negatives)
        at_least("--seed", self.seed, 0)
        at_least("--batch-tokens", self.batch_tokens, 1)
        if self.ratio is not None and self.ratio <= 0:
            raise UserError(f"--ratio must be above 0, got {self.ratio}; 0.95 is usual")
        if self.margin is not None and self.margin < 0:
            raise UserError(f"--margin must be at least 0, got {self.margin}")
        one_of("choice", self.choice, CHOICES)
        one_of("dtype", self.dtype, DTYPES)
        a_device(self.device)
        if self.from_ == BM25:
            for name in ("encoder", "calibration", "batch_tokens", "device", "dtype"):
                if getattr(self, name) is not None:
                    flag = f"--{name.replace('_', '-')}"
                    raise UserError(f"{flag} goes with an index (--from FOLDER), not with bm25")
