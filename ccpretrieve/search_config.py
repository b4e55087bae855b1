"""Settings of the command that searches; see :mod:`ccpretrieve.config`."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from ccpretrieve.config import DTYPES, DataConfig, a_device, at_least, between, flag_of, one_of
from ccpretrieve.errors import UserError

RRF, MINMAX, ZSCORE, ALPHA = FUSIONS = ("rrf", "minmax", "zscore", "alpha")


@dataclass(frozen=True, kw_only=True)
class SearchConfig(DataConfig):
    """Search an index: a whole set of topics into a TREC run, or a question typed on the line.

    Attributes:
        question: A question; its best passages are printed. Without one, topics are searched.
        corpus: Name or folder of the corpus; finds the index and, with --split, the topics.
        split: Which of the corpus' topics: train, dev or test. Default: test.
        index: Folder of the index. Default: the one index of --corpus in indexes/.
        topics: File of `id<TAB>question` lines, or a name such as mrtydi-ja (with --split).
        encoder: Checkpoint, if it is not where the index says or the index names none.
        calibration: Calibration file, if it is not where the index says.
        hits: Passages per question. Default: 100 for topics, 5 for a typed question.
        output: Run file. Default: runs/<topics>.<tag>.trec.
        tag: Last column of the run, and which of several indexes of --corpus. Default: the index'.
        lang: Language of the questions, for the calibration; a question's own `lang` field wins.
            Default: the topics' own.
        batch_tokens: Tokens of a forward pass, padding included. Default: 1024 on cpu, 16384 on
            a GPU.
        device: Any torch device. Default: cuda where there is one, else cpu.
        dtype: float32, bfloat16 or float16. Default: float32 on cpu, bfloat16 on a GPU.
        hybrid: Fuse with BM25: bm25 (indexes/<corpus>.bm25), the folder of another such index, or
            the name of one that Pyserini downloads, such as mrtydi-v1.1-japanese.
        fusion: rrf, minmax, zscore (weighted sums) or alpha (dense + alpha * BM25). Default: rrf.
        weight: Share of the dense scores, 0 to 1; for alpha, what BM25's are multiplied with.
            Default: 0.5; for alpha, 0.1.
        tune_split: Choose the weight that is best for the judged topics of this split.
        k1: How fast a repeated word counts less in BM25. Default: 0.9, as Pyserini has it.
        b: How much the length of a passage counts in BM25, 0 to 1. Default: 0.4, as Pyserini.
    """

    question: str | None = field(default=None, kw_only=False)
    corpus: str | None = None
    split: str | None = None
    index: Path | None = None
    topics: str | None = None
    encoder: str | None = None
    calibration: Path | None = None
    hits: int | None = None
    output: Path | None = None
    tag: str | None = None
    lang: str | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None
    hybrid: str | None = None
    fusion: str | None = None
    weight: float | None = None
    tune_split: str | None = None
    k1: float | None = None
    b: float | None = None

    def __post_init__(self) -> None:
        if self.question is not None and not self.question.strip():
            raise UserError("the question is empty")
        super().__post_init__()
        one_of("dtype", self.dtype, DTYPES)
        a_device(self.device)
        at_least("--hits", self.hits, 1)
        at_least("--batch-tokens", self.batch_tokens, 1)
        if self.question is not None and self.topics is not None:
            raise UserError("give a question or --topics, not both")
        if self.question is not None or (self.topics is None and self.corpus is None):
            for name in ("split", "output", "tune_split"):
                if (value := getattr(self, name)) is not None:
                    flag = f"--{flag_of(name)} {value}"
                    raise UserError(f"{flag}: goes with topics (--corpus or --topics) only")
        self._check_fusion()

    def _check_fusion(self) -> None:
        for name in ("fusion", "weight", "tune_split"):
            if (value := getattr(self, name)) is not None and self.hybrid is None:
                raise UserError(f"--{flag_of(name)} {value}: goes with --hybrid")
            if (self.fusion or RRF) == RRF and name != "fusion" and value is not None:
                raise UserError(f"--{flag_of(name)} {value}: rrf has no weight; choose a --fusion")
        one_of("fusion", self.fusion, FUSIONS)
        between("--weight", self.weight, math.inf if self.fusion == ALPHA else 1)
        if self.tune_split is not None and self.weight is not None:
            raise UserError("--tune-split chooses the weight; leave --weight out")
        between("--k1", self.k1, math.inf)
        between("--b", self.b, 1)
