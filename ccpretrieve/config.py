"""Every setting of every command: one frozen dataclass each, shared by API, flags and YAML.

A field ``batch_tokens`` is the flag ``--batch-tokens``, the YAML key ``batch-tokens``, and the
argument of the class; its help text is its line under ``Attributes``. There is no second list
(:mod:`ccpretrieve.commandline` reads this one). A setting that is ``None`` is taken from the
checkpoint or the index, as its line says. Combinations that cannot work fail here, on construction.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from cyclopts import Parameter

from ccpretrieve.errors import UserError, unknown

POOLINGS = ("cls", "mean")
TITLES = ("pair", "join", "drop")
SIMILARITIES = ("dot", "cosine")
DTYPES = ("float32", "bfloat16", "float16")
FORMATS = ("text", "json", "markdown", "latex", "html")
MOST_IN_A_SHARD = 10_000_000
ON_DUPLICATE = ("error", "first")
MAY_BE_EMPTY = ("query_prefix", "passage_prefix", "prefix")  # fields to which "" is an answer

#: A repeatable flag: ``--run a --run b`` and ``--run a b`` are the same.
Many = Parameter(consume_multiple=True, negative=())
#: All words that follow, flags of another program among them.
Rest = Parameter(negative=(), allow_leading_hyphen=True, show_default=False)
#: A switch that is off unless named.
Switch = Parameter(negative=(), show_default=False)


def one_of(kind: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Fail unless ``value`` is None or allowed.

    Raises:
        UserError: With the near names and the allowed ones.
    """
    if value is not None and value not in allowed:
        raise unknown(kind, value, allowed)


def at_least(flag: str, value: int | None, least: int) -> None:
    """Fail unless ``value`` is None or at least ``least``.

    Raises:
        UserError: Naming the flag.
    """
    if value is not None and value < least:
        raise UserError(f"{flag} must be at least {least}, got {value}")


def between(flag: str, value: float | None, most: float) -> None:
    """Fail unless ``value`` is None or a number from 0 to ``most``.

    Raises:
        UserError: Naming the flag.
    """
    if value is not None and not (0 <= value <= most and value < math.inf):
        allowed = "a number from 0" if most == math.inf else f"from 0 to {most:g}"
        raise UserError(f"{flag} must be {allowed}, got {value:g}")


def a_device(name: str | None, flag: str = "--device") -> None:
    """Fail if ``name`` is a torch device that holds no numbers; others are torch's to judge.

    Raises:
        UserError: Naming the flag.
    """
    if name is not None and name.partition(":")[0] == "meta":
        raise UserError(f"{flag} {name} holds shapes and no numbers; use cpu or cuda")


def flag_of(field: str) -> str:
    """A field's flag without its hyphens, and its YAML key: ``from_`` is ``from``."""
    return field.replace("_", "-").strip("-")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What every command has.

    Attributes:
        quiet: Say nothing but results and errors.
    """

    #: Name of a preset -> settings that it stands for, under those that are given.
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    quiet: Annotated[bool, Switch] = False

    @classmethod
    def of_preset(cls, preset: str, **given: Any) -> Self:
        """The settings of a preset, but for those that are given.

        Raises:
            UserError: If there is no such preset, or the settings cannot work.
        """
        if preset not in cls.PRESETS:
            raise unknown("preset", preset, tuple(cls.PRESETS))
        return cls(**{"preset": preset, **cls.PRESETS[preset], **given})

    def __post_init__(self) -> None:
        for setting, text in self._texts():
            flag = f"--{flag_of(setting.name)}" if setting.kw_only else setting.name
            if not text and setting.default != text and setting.name not in MAY_BE_EMPTY:
                raise UserError(f"{flag} is empty; give it a value, or leave it out")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise UserError(f"{flag} {text!r}: not UTF-8; write or name it anew") from error

    def _texts(self) -> "Iterator[tuple[dataclasses.Field[Any], str]]":
        """Every setting that is text or a path, with its value; those of a list one by one."""
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, str | Path):
                    yield setting, str(item)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """What every command has that reads a corpus by name.

    Attributes:
        data_dir: Where corpora lie and are downloaded to. Default: CCPRETRIEVE_DATA, else
            ~/.cache/ccpretrieve.
    """

    data_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(DataConfig):
    """What every command has that encodes a corpus.

    Attributes:
        pooling: cls or mean. Default: the checkpoint's.
        layer: Hidden states to pool: 0 the embeddings, -1 the last. Default: the checkpoint's.
        normalize: Scale vectors to unit length. Default: the checkpoint's.
        max_length: Tokens kept of a query or passage. Default: the checkpoint's.
        query_prefix: Put before every query. Default: the checkpoint's.
        passage_prefix: Put before every passage. Default: the checkpoint's.
        title: pair (two segments), join (title, space, text) or drop. Default: the checkpoint's.
        similarity: dot or cosine (dot of unit vectors). Default: the checkpoint's.
        batch_tokens: Tokens of a forward pass, padding included; no result depends on it.
            Default: 1024 on cpu, 16384 on a GPU.
        device: Any torch device. Default: cuda where there is one, else cpu.
        dtype: float32, bfloat16 or float16. Default: float32 on cpu, bfloat16 on a GPU.
    """

    pooling: str | None = None
    layer: int | None = None
    normalize: bool | None = None
    max_length: int | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    title: str | None = None
    similarity: str | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("pooling", self.pooling, POOLINGS)
        one_of("title", self.title, TITLES)
        one_of("similarity", self.similarity, SIMILARITIES)
        one_of("dtype", self.dtype, DTYPES)
        a_device(self.device)
        at_least("--max-length", self.max_length, 4)
        at_least("--batch-tokens", self.batch_tokens, 1)
        if self.similarity == "cosine" and self.normalize is False:
            raise UserError("--similarity cosine needs unit vectors; leave --no-normalize out")

    def shared(self) -> dict[str, Any]:
        """These settings by name, without those of the one command, to hand on to another."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(EncoderConfig)}


@dataclass(frozen=True, kw_only=True)
class EncodeConfig(EncoderConfig):
    """Encode a corpus and build its index.

    Attributes:
        corpus: A name that `python -m ccpretrieve.corpora` lists, or a folder or file of passages.
        encoder: Checkpoint directory or hub name. Default: CCPRETRIEVE_ENCODER.
        output: Folder of the index. Default: indexes/<corpus>.<tag>.
        calibration: Per-language shift, scale and rotation to apply. Default: the checkpoint's.
        lang: Language of the passages, for the calibration; a passage's own `lang` field wins.
            Default: the corpus' own.
        tag: Last part of the index' name. Default: made from the encoder's name.
        shard_size: Passages per shard, which is also how many are sorted by length together.
        shard_id: This machine's number, from 0, when several encode one corpus.
        shard_num: How many machines encode the corpus; `index --embeddings` merges their folders.
        on_duplicate: error, or first to keep the first passage of each id and count the rest.
        dry_run: Count passages, estimate time, memory and disk, and write nothing.
    """

    corpus: str
    encoder: str | None = None
    output: Path | None = None
    calibration: Path | None = None
    lang: str | None = None
    tag: str | None = None
    shard_size: int = 8192
    shard_id: int = 0
    shard_num: int = 1
    on_duplicate: str = "error"
    dry_run: Annotated[bool, Switch] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.corpus.strip():
            raise UserError("--corpus is empty; give a name, a folder or a file")
        one_of("on-duplicate", self.on_duplicate, ON_DUPLICATE)
        at_least("--shard-size", self.shard_size, 1)
        if self.shard_size > MOST_IN_A_SHARD:
            raise UserError(f"--shard-size can be {MOST_IN_A_SHARD} at most, got {self.shard_size}")
        at_least("--shard-num", self.shard_num, 1)
        if not 0 <= self.shard_id < self.shard_num:
            raise UserError(
                f"--shard-id must be from 0 to {self.shard_num - 1} with --shard-num "
                f"{self.shard_num}, got {self.shard_id}"
            )


@dataclass(frozen=True, kw_only=True)
class IndexConfig(DataConfig):
    """Build another kind of FAISS index from the embeddings of a corpus, or a BM25 index of it.

    Attributes:
        embeddings: Folder written by `encode`; several to merge the shards of several machines.
        factory: A FAISS factory string such as Flat, HNSW32, IVF1024,PQ64, SQfp16 or SQ8.
        output: Folder of the new index. Default: <embeddings>.<factory>, in lower case; of several
            machines' folders merged, <corpus>.<tag>, with .<factory> unless that is Flat; with
            --lexical, indexes/<corpus>.bm25.
        queries: Sampled passages searched to compare with a flat index.
        seed: Seeds the training sample and the compared queries.
        lexical: Index the words of --corpus for BM25, by Lucene.
        corpus: With --lexical: name, folder or file of passages.
        lang: With --lexical: whose analyzer cuts text into words. Default: the corpus' own.
        threads: With --lexical: that analyze passages. Default: one a core.
    """

    embeddings: Annotated[tuple[Path, ...], Many] = ()
    factory: str = "Flat"
    output: Path | None = None
    queries: int = 200
    seed: int = 0
    lexical: Annotated[bool, Switch] = False
    corpus: str | None = None
    lang: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lexical and self.corpus is None:
            raise UserError("--lexical needs a --corpus; python -m ccpretrieve.corpora lists some")
        if not self.lexical and not self.embeddings:
            raise UserError("--embeddings needs a folder that `python -m ccpretrieve.encode` wrote")
        for setting in dataclasses.fields(self):
            dense = setting.name in ("embeddings", "factory", "queries", "seed")
            idle = dense if self.lexical else setting.name in ("corpus", "lang", "threads")
            if idle and getattr(self, setting.name) != setting.default:
                how = "not with --lexical" if self.lexical else "with --lexical only"
                raise UserError(f"--{flag_of(setting.name)} goes {how}")
        at_least("--threads", self.threads, 1)
        at_least("--queries", self.queries, 0)
        at_least("--seed", self.seed, 0)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(DataConfig):
    """Score runs against relevance judgements.

    Attributes:
        run: TREC run files; several are put side by side.
        qrels: File of judgements, or a corpus (with --split). Default: what made the run.
        split: Which judgements of a corpus. Default: what the run was made of, else test.
        metrics: Any of mrr@K, recall@K, ndcg@K, hits@K.
        format: text, json, markdown, latex or html.
        per_topic: Also print every topic's scores (text and json).
        significance: ranx test between runs: student, fisher or tukey.
        alpha: A difference is significant below this p-value.
    """

    run: Annotated[tuple[Path, ...], Many]
    qrels: str | None = None
    split: str | None = None
    metrics: Annotated[tuple[str, ...], Many] = ("mrr@100", "recall@100", "ndcg@10", "hits@100")
    format: str = "text"
    per_topic: Annotated[bool, Switch] = False
    significance: str = "student"
    alpha: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, FORMATS)
        one_of("significance", self.significance, ("student", "fisher", "tukey"))
        if not self.run:
            raise UserError("--run needs a file that `python -m ccpretrieve.search` wrote")
        if not 0 < self.alpha < 1:
            raise UserError(f"--alpha must lie between 0 and 1, got {self.alpha}")


@dataclass(frozen=True, kw_only=True)
class CorporaConfig(DataConfig):
    """List the corpora known by name, and fetch them.

    Attributes:
        names: Corpora to show or fetch, such as mrtydi-ja. Default: all.
        fetch: Download what is not present.
        yes: Do not ask before a large download.
        format: text or json.
    """

    names: Annotated[tuple[str, ...], Parameter(negative=())] = field(default=(), kw_only=False)
    fetch: Annotated[bool, Switch] = False
    yes: Annotated[bool, Switch] = False
    format: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, ("text", "json"))
        if self.fetch and not self.names:
            raise UserError("--fetch needs the names of the corpora to download")
