"""Settings of the commands that train: one frozen dataclass each, as in :mod:`ccpretrieve.config`.

What the paper leaves open (DESIGN 4 lists it) is a setting here; a default that is not the paper's
says so on its line. The names that a setting may have stand here once; the models import them.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from ccpretrieve.config import (
    DTYPES,
    POOLINGS,
    Config,
    Many,
    Switch,
    a_device,
    at_least,
    one_of,
)
from ccpretrieve.errors import UserError

REDUCTIONS = ("mean", "sum")
WINDOW_POSITIVES = ("keep", "mask")
BANKS = ("language", "shared", "none")
BANK_ENTRIES = ("contexts", "both", "evaluated")
BATCH_NORMS = ("asymmetric", "plain", "shuffled", "none")
HEADS = ("one", "two")
HEAD_ORDERS = ("evaluation-first", "centers-first")
HEAD_STATISTICS = ("first-batch", "unit")
ACTIVATIONS = ("relu", "gelu", "none")
TRACKERS = ("tensorboard", "wandb")

#: What is left of a run that is interrupted.
KEPT = "--resume goes on from the last state, if one was written"
#: Pieces that a vocabulary has at least: special ones, bytes, the mark of a space and a letter.
LEAST_VOCABULARY = 5 + 256 + 2
SCRATCH_LAYERS = 4


def share(flag: str, value: float) -> None:
    """Fail unless ``value`` lies from 0 to 1.

    Raises:
        UserError: Naming the flag.
    """
    if not 0 <= value <= 1:
        raise UserError(f"{flag} must lie from 0 to 1, got {value}")


def positive(flag: str, value: float) -> None:
    """Fail unless ``value`` is a number above 0.

    Raises:
        UserError: Naming the flag.
    """
    if not 0 < value < float("inf"):
        raise UserError(f"{flag} must be above 0, got {value}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """What every command has that trains.

    Attributes:
        output: Folder of the trained checkpoint; what resuming needs lies in its training/.
        batch_size: Windows (or questions) of one forward pass in one process.
        accumulated_batch_size: Of one update of the parameters, over all processes. Default: one
            forward pass of each.
        learning_rate: After the warm-up.
        warmup_steps: Updates over which the rate rises from 0 (not in any text we have).
        schedule: constant after the warm-up, or linear down to 0 at --max-steps.
        optimizer: adam, or adamw with --weight-decay.
        weight_decay: Of adamw.
        clip: Longest gradient, as a norm; 0 for no limit (the paper names none for pretraining).
        max_steps: Updates in all.
        max_minutes: Stop cleanly after so long; --resume goes on.
        log_steps: Updates between two lines of the log.
        save_steps: Updates between two states kept for --resume; the newest is kept, and the best.
        eval_steps: Updates between two evaluations.
        patience: Stop after so many evaluations without a better one.
        trackers: Of tensorboard and wandb, or none. Default: tensorboard where it is installed.
        gradient_checkpointing: Compute activations twice rather than keep them.
        compile: Compile the encoder with torch.compile.
        seed: Of weights, order, masks and dropout.
        resume: Go on from the newest state in --output.
        device: cpu or cuda. Default: cuda where there is one.
        dtype: Of the computation: float32, bfloat16 or float16. Weights and updates are float32.
            Default: float32 on cpu, bfloat16 on a GPU.
    """

    output: Path
    batch_size: int = 32
    accumulated_batch_size: int | None = None
    learning_rate: float = 3e-5
    warmup_steps: int = 1000
    schedule: str = "constant"
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip: float = 1.0
    max_steps: int = 100_000
    max_minutes: float | None = None
    log_steps: int = 10
    save_steps: int = 500
    eval_steps: int = 500
    patience: int | None = None
    trackers: Annotated[tuple[str, ...], Many] | None = None
    gradient_checkpointing: Annotated[bool, Switch] = False
    compile: Annotated[bool, Switch] = False
    seed: int = 0
    resume: Annotated[bool, Switch] = False
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        a_device(self.device)
        one_of("schedule", self.schedule, ("constant", "linear"))
        one_of("optimizer", self.optimizer, ("adam", "adamw"))
        one_of("dtype", self.dtype, DTYPES)
        for name in (
            *("batch_size", "accumulated_batch_size", "max_steps"),
            *("log_steps", "save_steps", "eval_steps", "patience"),
        ):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), 1)
        at_least("--warmup-steps", self.warmup_steps, 0)
        at_least("--seed", self.seed, 0)
        positive("--learning-rate", self.learning_rate)
        if self.max_minutes is not None:
            positive("--max-minutes", self.max_minutes)
        for flag, value in (("--clip", self.clip), ("--weight-decay", self.weight_decay)):
            if not 0 <= value < float("inf"):
                raise UserError(f"{flag} must be 0 or more, got {value}")
        if self.weight_decay and self.optimizer != "adamw":
            raise UserError("--weight-decay needs --optimizer adamw")
        if (self.accumulated_batch_size or 0) % self.batch_size:
            raise UserError(
                f"--accumulated-batch-size {self.accumulated_batch_size} must be a multiple of "
                f"--batch-size {self.batch_size}"
            )
        for tracker in self.trackers or ():
            one_of("tracker", tracker, (*TRACKERS, "none"))
        if "none" in (self.trackers or ()) and self.trackers != ("none",):
            raise UserError("--trackers none goes with no other")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainingConfig):
    """Pretrain an encoder on documents by contrastive context prediction (CCP).

    Attributes:
        corpus: Folder or file of documents, or hf:<dataset> with a configuration a language.
        accumulated_batch_size: Windows of one update of the parameters, over all processes.
        encoder: Checkpoint to start from, a directory or a hub name. Default: CCPRETRIEVE_ENCODER.
        languages: Codes such as en or ja. Default: all that --corpus has.
        pooling: cls as in the paper, or mean. Default: the checkpoint's.
        max_length: Tokens kept of a sentence (not in the paper).
        pass_tokens: Tokens that pass through the Transformer together, padding included; sentences
            of like length do, and no result depends on it. Default: 1024 on cpu, 65536 on a GPU.
        prefix: Put before every sentence. Default: the checkpoint's for questions.
        radius: w: how far, in sentences, the context reaches (the paper's is in no text we have).
        contexts: Sentences drawn from the context of each centre.
        positive: context; or a control: random, a sentence of another document; same, the centre.
        temperature: tau (not in any text we have).
        l2: Compare by cosine, as the paper has it, or without by dot product.
        reduction: mean of l(c, i) over the pairs, or the paper's sum, which outweighs masked
            language modelling by the number of pairs.
        window_positives: keep or mask other positives of a centre in the denominator.
        mask_duplicates: Leave sentences equal to the centre or its positive out of the negatives.
        bank: language, shared or none.
        bank_size: M, vectors kept of each language.
        bank_entries: contexts, the paper's z_i; both: z_c too; evaluated: the side that the head
            made with running statistics.
        bank_scope: process, or all: whether processes see one another's vectors.
        bank_dtype: float32, bfloat16 or float16.
        bank_device: cpu or cuda. Default: where the model is.
        batch_norm: asymmetric, plain, shuffled or none.
        head: one, switched between modes, or two heads (a sentence of section 3.1).
        head_order: evaluation-first, or centers-first: whether one head's running side is
            normalised before or after the other side's statistics enter.
        head_statistics: first-batch, or unit: the running statistics before any has entered
            (torch's unit ones spoil the first 100 steps from a CLS start).
        head_learning_rate: Of the projection head, which starts at random while the encoder does
            not: a slow head makes the encoder bend to it. Default: --learning-rate, as in the
            paper.
        head_momentum: Share of a batch's statistics in the running ones after it.
        head_groups: Of shuffled batch norm.
        head_hidden: Width inside the projection head. Default: the encoder's.
        head_output: Width of z. Default: the encoder's.
        head_activation: relu, gelu or none (not named in the paper).
        mlm_share: Of the batches that are masked language modelling instead (not in any text we
            have).
        mlm_probability: Of a token to be masked.
        whole_words: Mask whole words rather than pieces.
        language_exponent: a of p_l ~ n_l^a, the probability of a language.
        shuffle_buffer: Documents a language that windows are drawn from at a time.
        freeze_embeddings: Leave the token embeddings as they are.
        layers: Keep only the first layers of --encoder; with --from-scratch how many, 4 by default.
        trim_vocabulary: Keep only the tokens that the corpus uses.
        from_scratch: Random weights and a tokenizer trained on the corpus; --encoder is not used.
        scratch_vocabulary: Tokens of that tokenizer.
        scratch_width: Width of those weights.
        scratch_heads: Attention heads of those weights.
        min_characters: Shortest sentence kept; a third of it in scripts of one sign a syllable.
        census_documents: Documents a language looked at beforehand, for boilerplate and amounts.
        eval_parallel: Folder of parallel text (Tatoeba's layout); the best state is kept by it.
        eval_languages: Of that folder. Default: all.
        eval_documents: Score only lines of these documents, counted from 1, such as 81-123.
        probe_steps: Updates between two looks for a leak.
    """

    corpus: str
    accumulated_batch_size: int = 2048
    encoder: str | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    pooling: str | None = None
    max_length: int = 128
    pass_tokens: int | None = None
    prefix: str | None = None
    radius: int = 2
    contexts: int = 1
    positive: str = "context"
    temperature: float = 0.05
    l2: bool = True
    reduction: str = "mean"
    window_positives: str = "keep"
    mask_duplicates: bool = False
    bank: str = "language"
    bank_size: int = 32_768
    bank_entries: str = "contexts"
    bank_scope: str = "process"
    bank_dtype: str = "float32"
    bank_device: str | None = None
    batch_norm: str = "asymmetric"
    head: str = "one"
    head_order: str = "evaluation-first"
    head_statistics: str = "first-batch"
    head_learning_rate: float | None = None
    head_momentum: float = 0.1
    head_groups: int = 4
    head_hidden: int | None = None
    head_output: int | None = None
    head_activation: str = "relu"
    mlm_share: float = 0.5
    mlm_probability: float = 0.15
    whole_words: Annotated[bool, Switch] = False
    language_exponent: float = 0.3
    shuffle_buffer: int = 512
    freeze_embeddings: Annotated[bool, Switch] = False
    layers: int | None = None
    trim_vocabulary: Annotated[bool, Switch] = False
    from_scratch: Annotated[bool, Switch] = False
    scratch_vocabulary: int = 8000
    scratch_width: int = 256
    scratch_heads: int = 4
    min_characters: int = 15
    census_documents: int = 20_000
    eval_parallel: Path | None = None
    eval_languages: Annotated[tuple[str, ...], Many] = ()
    eval_documents: str | None = None
    probe_steps: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.corpus.strip():
            raise UserError("--corpus is empty; give a folder or file of documents, or hf:<name>")
        if self.encoder is not None and self.from_scratch:
            raise UserError("--from-scratch starts from random weights; leave --encoder out")
        if self.trim_vocabulary and self.from_scratch:
            raise UserError(
                "--from-scratch has a tokenizer of its own; leave --trim-vocabulary out"
            )
        if self.eval_parallel is None and self.patience is not None:
            raise UserError("--patience counts evaluations; give --eval-parallel")
        if self.eval_parallel is None and (self.eval_languages or self.eval_documents):
            raise UserError("--eval-languages and --eval-documents need --eval-parallel")
        a_device(self.bank_device, "--bank-device")
        self._check_names()
        self._check_numbers()
        self._check_scratch()

    def _check_names(self) -> None:
        one_of("pooling", self.pooling, POOLINGS)
        one_of("positive", self.positive, ("context", "random", "same"))
        one_of("reduction", self.reduction, REDUCTIONS)
        one_of("window-positives", self.window_positives, WINDOW_POSITIVES)
        one_of("bank", self.bank, BANKS)
        one_of("bank-entries", self.bank_entries, BANK_ENTRIES)
        one_of("bank-scope", self.bank_scope, ("process", "all"))
        one_of("bank-dtype", self.bank_dtype, DTYPES)
        one_of("batch-norm", self.batch_norm, BATCH_NORMS)
        one_of("head", self.head, HEADS)
        one_of("head-statistics", self.head_statistics, HEAD_STATISTICS)
        one_of("head-order", self.head_order, HEAD_ORDERS)
        one_of("head-activation", self.head_activation, ACTIVATIONS)

    def _check_numbers(self) -> None:
        if self.batch_norm != "none":
            at_least("--batch-size", self.batch_size, 2)  # statistics of one row are none
        if self.batch_norm == "shuffled" and self.batch_size < 2 * self.head_groups:
            raise UserError(
                f"--batch-size {self.batch_size}: shuffled batch norm needs 2 windows in each of "
                f"its {self.head_groups} groups; raise it, or lower --head-groups"
            )
        positive("--head-momentum", self.head_momentum)
        if self.head_learning_rate is not None:
            positive("--head-learning-rate", self.head_learning_rate)
        share("--head-momentum", self.head_momentum)
        for name in (
            "radius",
            "contexts",
            "bank_size",
            "head_groups",
            "shuffle_buffer",
            "census_documents",
        ):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), 1)
        for name in (
            "head_hidden",
            "head_output",
            "layers",
            "pass_tokens",
            "min_characters",
            "probe_steps",
        ):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), 1)
        at_least("--max-length", self.max_length, 4)
        positive("--temperature", self.temperature)
        share("--mlm-share", self.mlm_share)
        share("--mlm-probability", self.mlm_probability)
        share("--language-exponent", self.language_exponent)
        if self.positive == "context" and self.contexts > 2 * self.radius:
            raise UserError(
                f"--contexts {self.contexts}: a radius of {self.radius} has {2 * self.radius} "
                "at most"
            )

    def _check_scratch(self) -> None:
        """Sizes of an encoder that is made, which say nothing where none is."""
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            if name.startswith("scratch_") and value != setting.default and not self.from_scratch:
                raise UserError(
                    f"--{name.replace('_', '-')} {value}: sizes an encoder made from scratch; add "
                    "--from-scratch, or leave it out"
                )
        at_least("--scratch-vocabulary", self.scratch_vocabulary, LEAST_VOCABULARY)
        at_least("--scratch-width", self.scratch_width, 1)
        at_least("--scratch-heads", self.scratch_heads, 1)
        if self.scratch_width % self.scratch_heads:
            raise UserError(
                f"--scratch-width {self.scratch_width} must be a multiple of --scratch-heads "
                f"{self.scratch_heads}"
            )
