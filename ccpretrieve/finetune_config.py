"""Settings of the command that fine-tunes (section 4.3); see :mod:`ccpretrieve.training_config`.

The defaults are the preset ``ccp``: what the paper says, and where it is silent what the script
does that its authors released. ``dpr`` is Karpukhin et al.'s (2020, "Dense passage retrieval for
open-domain question answering"), which the paper takes the rest from. A flag wins over a preset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from cyclopts import Parameter

from ccpretrieve.config import POOLINGS, SIMILARITIES, TITLES, Many, Switch, at_least, one_of
from ccpretrieve.errors import UserError
from ccpretrieve.training_config import TrainingConfig, positive, share

FIRST, RANDOM = CHOICES = ("first", "random")
RANK, NLL, MRR = DECIDING = ("rank", "nll", "mrr")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingConfig):
    """Fine-tune an encoder on questions with the passages that answer them.

    Attributes:
        train: Names such as nq or mrtydi-ja, files in DPR's or Mr.TyDi's JSON, hf:<dataset>.
        dev: Likewise, scored while training; its `dev` split where a name has one.
        encoder: Checkpoint to start from, a directory or a hub name. Default: CCPRETRIEVE_ENCODER.
        preset: ccp (the paper, as its script was released) or dpr; flags win over it. In Python
            it is a name only; FinetuneConfig.of_preset fills in what it stands for.
        data_dir: Where corpora lie and are downloaded to. Default: CCPRETRIEVE_DATA, else
            ~/.cache/ccpretrieve.
        tied: One Transformer for questions and passages, or two.
        similarity: dot, or cosine: vectors are then brought to unit length.
        temperature: Similarities are divided by it.
        pooling: cls as in the paper, or mean.
        accumulated_batch_size: Of one update of the parameters, over all processes; in-batch
            negatives are those of --batch-size. Default: one batch of every process.
        chunk_size: Most texts whose activations are held at a time; they are computed twice, which
            changes no gradient. Default: all are held.
        pass_tokens: Tokens that pass through the Transformer together, padding included; texts of
            like length do, and no result depends on it. Default: 4096 on cpu, 65536 on a GPU.
        positive: first of a question's, or random.
        hard_negatives: Of each question, beside the other questions' passages.
        negative: first of a question's hard negatives, or random.
        negative_pool: Hard negatives of a question that are kept to be drawn from, the first ones;
            of --negative random.
        mask_positives: Leave copies of a question's passage and its other known positives out of
            its negatives; needed where --language-exponent draws small languages often.
        strip_question_mark: Strip a question's last `?`, in training and ever after.
        title: Of a passage: pair (two segments), join (title, space, text) or drop.
        query_length: Tokens kept of a question.
        passage_length: Tokens kept of a passage.
        query_prefix: Put before every question. Default: the checkpoint's.
        passage_prefix: Put before every passage. Default: the checkpoint's.
        dropout: Of the Transformer.
        layers: Keep only the first layers of --encoder.
        freeze_embeddings: Leave the token embeddings as they are.
        language_exponent: a of p_l ~ n_l^a, the probability of a language; 1 for as they come.
        one_language_batches: Every batch of one language only.
        warmup_steps: Updates over which the rate rises from 0.
        schedule: linear, down to 0 at the end of the last epoch (or at --max-steps), or constant
            after the warm-up.
        epochs: Passes over --train, at most; --max-steps may end it before.
        best_by: What decides which state is kept: rank (average rank of the positives among all
            passages of --dev, DPR's), nll, or mrr (of --dev-corpus).
        dev_negatives: Hard negatives a question of --dev that join the passages ranked.
        dev_corpus: Corpus whose topics are searched while training, name or folder; a small one.
        dev_split: Of its topics.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "ccp": {},
        "dpr": {"batch_size": 128, "learning_rate": 2e-5, "epochs": 40.0},
    }

    train: Annotated[tuple[str, ...], Many]
    dev: Annotated[tuple[str, ...], Many] = ()
    encoder: str | None = None
    preset: str = "ccp"
    data_dir: Path | None = None
    tied: Annotated[bool, Parameter(negative="--untied")] = False
    similarity: str = "dot"
    temperature: float = 1.0
    pooling: str = "cls"
    batch_size: int = 48
    accumulated_batch_size: int | None = None
    chunk_size: int | None = None
    pass_tokens: int | None = None
    learning_rate: float = 1e-5
    warmup_steps: int = 1237
    schedule: str = "linear"
    optimizer: str = "adamw"
    clip: float = 2.0
    positive: str = FIRST
    hard_negatives: int = 1
    negative: str = FIRST
    negative_pool: int = 30
    mask_positives: bool = False
    strip_question_mark: bool = True
    title: str = "pair"
    query_length: int = 256
    passage_length: int = 256
    query_prefix: str | None = None
    passage_prefix: str | None = None
    dropout: float = 0.1
    layers: int | None = None
    freeze_embeddings: Annotated[bool, Switch] = False
    language_exponent: float = 1.0
    one_language_batches: Annotated[bool, Switch] = False
    epochs: float = 20.0
    max_steps: int = 10_000_000
    best_by: str = RANK
    dev_negatives: int = 30
    dev_corpus: str | None = None
    dev_split: str = "dev"
    seed: int = 42

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.train:
            raise UserError("--train: name what to learn from, such as nq or a file of questions")
        self._check_names()
        for name in ("chunk_size", "pass_tokens", "layers", "negative_pool"):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), 1)
        for name in ("query_length", "passage_length"):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), 4)
        at_least("--hard-negatives", self.hard_negatives, 0)
        at_least("--dev-negatives", self.dev_negatives, self.hard_negatives)
        positive("--temperature", self.temperature)
        positive("--epochs", self.epochs)
        share("--language-exponent", self.language_exponent)
        share("--dropout", self.dropout)
        if self.language_exponent < 1 and not self.mask_positives:
            raise UserError(
                f"--language-exponent {self.language_exponent:g} may put a question of a small "
                "language into one batch twice, its passage as its own negative; add "
                "--mask-positives"
            )
        if self.negative == RANDOM and self.negative_pool < self.hard_negatives:
            raise UserError(
                f"--negative-pool {self.negative_pool} is less than --hard-negatives "
                f"{self.hard_negatives}, which are drawn from it; raise it"
            )
        if self.batch_size == 1 and not self.hard_negatives:
            raise UserError("--batch-size 1 without --hard-negatives leaves no negative; raise one")
        if self.best_by == MRR and self.dev_corpus is None:
            raise UserError("--best-by mrr is of --dev-corpus; name a corpus, or decide by rank")
        if self.patience is not None and not (self.dev or self.dev_corpus):
            raise UserError("--patience counts evaluations; give --dev or --dev-corpus")

    def _check_names(self) -> None:
        one_of("preset", self.preset, tuple(self.PRESETS))
        one_of("similarity", self.similarity, SIMILARITIES)
        one_of("pooling", self.pooling, POOLINGS)
        one_of("positive", self.positive, CHOICES)
        one_of("negative", self.negative, CHOICES)
        one_of("title", self.title, TITLES)
        one_of("best-by", self.best_by, DECIDING)
