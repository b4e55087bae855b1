"""The supervised setting of the appendix as one command: mine, fine-tune, encode, evaluate.

    python -m benchmarks.supervised --config benchmarks/recipes/mrtydi-supervised.yaml

    mine       hard negatives of training questions, by language     python -m ccpretrieve.mine
    fine-tune  one encoder on all languages together and --also    python -m ccpretrieve.finetune
    evaluate   start and result side by side, in every language    python -m benchmarks.mrtydi

Finished parts are kept in --work, which is refused to other settings, and a training that was
stopped goes on. The data is Mr.TyDi's unless --data names a folder like it; --also adds
XOR-Retrieve's training questions, Natural Questions, or any other source that `finetune --train`
takes. The paper says little of this setting: rates and sizes are those of its zero-shot
fine-tuning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks import mrtydi
from benchmarks.mrtydi import MrTydiConfig
from benchmarks.mrtydi_report import Report
from benchmarks.parts import claim
from benchmarks.systems import DENSE, SYSTEMS
from ccpretrieve.commandline import command
from ccpretrieve.config import FORMATS, DataConfig, Many, at_least, one_of
from ccpretrieve.files import read_json
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.mine_config import MineConfig
from ccpretrieve.training_config import KEPT

#: Settings that decide neither what is mined nor what is learned.
FREE = ("quiet", "work", "format", "systems", "max_minutes", "tune")


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(DataConfig):
    """Mine, fine-tune and evaluate in the languages of Mr.TyDi.

    Attributes:
        data: Folder with a folder in Mr.TyDi's layout for each language. Default: the corpora
            mrtydi-*.
        languages: Codes or names of languages. Default: all there are.
        encoder: Checkpoint to start from. Default: CCPRETRIEVE_ENCODER.
        also: More to learn from: names, files in DPR's JSON, hf:<dataset>.
        negatives: Hard negatives that are mined of a question.
        ratio: A passage that scores at least this share of the best positive's score is no
            negative; it may answer the question.
        tied: One Transformer for questions and passages.
        pooling: cls or mean.
        similarity: dot or cosine.
        temperature: Similarities are divided by it.
        hard_negatives: Of a question in a batch, drawn from those mined.
        batch_size: Questions of a batch.
        learning_rate: After the warm-up.
        warmup_steps: Updates over which the rate rises.
        epochs: Passes over all questions, at most.
        max_minutes: Of training in this call; the next one goes on, and what is trained to the end
            is evaluated. Default: to the end.
        language_exponent: a of p_l ~ n_l^a, the share of a language.
        one_language_batches: Every batch of one language only.
        query_length: Tokens kept of a question.
        passage_length: Tokens kept of a passage.
        chunk_size: Texts whose activations are held at a time.
        seed: Of the training.
        systems: Evaluated: dense, bm25, hybrid.
        tune: Split on which the weight of hybrid is chosen.
        format: text, markdown, latex, html or json.
        work: Where mined questions and the checkpoint are kept.
    """

    data: Path | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    encoder: str | None = None
    also: Annotated[tuple[str, ...], Many] = ()
    negatives: int = 30
    ratio: float | None = 0.95
    tied: bool = False
    pooling: str = "cls"
    similarity: str = "dot"
    temperature: float = 1.0
    hard_negatives: int = 1
    batch_size: int = 48
    learning_rate: float = 1e-5
    warmup_steps: int = 1237
    epochs: float = 20.0
    max_minutes: float | None = None
    language_exponent: float = 1.0
    one_language_batches: bool = False
    query_length: int = 256
    passage_length: int = 256
    chunk_size: int | None = None
    seed: int = 42
    systems: Annotated[tuple[str, ...], Many] = (DENSE,)
    tune: str | None = None
    format: str = "text"
    work: Path = Path("runs/supervised")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("--negatives", self.negatives, max(1, self.hard_negatives))
        one_of("format", self.format, FORMATS)
        for name in self.systems:
            one_of("system", name, SYSTEMS)


def run(config: SupervisedConfig) -> Report | str:
    """Mine, fine-tune, evaluate.

    Raises:
        UserError: If data or encoder cannot be used, or --work holds parts of other settings.
    """
    from ccpretrieve.model.checkpoint import default_encoder

    start = config.encoder or default_encoder()
    asked = {name: value for name, value in vars(config).items() if name not in FREE}
    claim(config.work, asked | {"encoder": start})
    sources = mrtydi.find_sources(_evaluation(config))
    mined = [_mined(config, code, source) for code, source in sources.items()]
    made = _trained(config, start, mined)
    if (epoch := _epoch(made)) < config.epochs:
        return f"{made}: epoch {epoch:.2f} of {config.epochs:g}; the same command goes on"
    return mrtydi.run(_evaluation(config, (start, str(made))))


def _mined(config: SupervisedConfig, code: str, source: str) -> Path:
    """Training questions of a language with hard negatives, by BM25; kept."""
    from ccpretrieve import mine

    path = config.work / f"{code}.jsonl"
    if not path.is_file():
        mine.run(
            MineConfig(
                corpus=source,
                lang=code,
                output=path,
                negatives=config.negatives,
                ratio=config.ratio,
                data_dir=config.data_dir,
                quiet=config.quiet,
            )
        )
    return path


def _trained(config: SupervisedConfig, start: str, mined: Sequence[Path]) -> Path:
    """The fine-tuned checkpoint: kept, gone on with, or begun."""
    from ccpretrieve import finetune
    from ccpretrieve.training.states import begun

    output = config.work / config.work.name  # its last part names rows and files
    if _epoch(output) >= config.epochs:
        return output
    made = finetune.run(
        FinetuneConfig(
            train=(*map(str, mined), *config.also),
            encoder=start,
            output=output,
            resume=begun(output),
            negative="random",
            negative_pool=config.negatives,
            mask_positives=True,
            trackers=("none",),
            **{name: getattr(config, name) for name in LEARNED},
        )
    )
    assert made is not None
    return made


def _epoch(output: Path) -> float:
    """How many epochs a training has behind it, by its report; 0 without one."""
    report = output / "training" / "report.json"
    return float(read_json(report)["epoch"]) if report.is_file() else 0.0


#: Settings handed on to `finetune` by their own names.
LEARNED = (
    *("tied", "pooling", "similarity", "temperature", "hard_negatives", "batch_size"),
    *("learning_rate", "warmup_steps", "epochs", "max_minutes", "language_exponent", "seed"),
    *("one_language_batches", "query_length", "passage_length", "chunk_size", "data_dir", "quiet"),
)


def _evaluation(config: SupervisedConfig, encoders: tuple[str, ...] = ()) -> MrTydiConfig:
    return MrTydiConfig(
        data=config.data,
        languages=config.languages,
        encoder=encoders,
        systems=config.systems,
        tune=config.tune,
        format=config.format,
        data_dir=config.data_dir,
        quiet=config.quiet,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`SupervisedConfig`."""
    command(run, SupervisedConfig, "benchmarks.supervised", argv, kept=KEPT)


if __name__ == "__main__":
    main()
