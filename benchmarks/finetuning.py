"""Speed of fine-tuning: ours beside sentence-transformers' trainer, the same model and batches.

ours     ``finetune``: data, towers, loss, update, log
theirs   ``SentenceTransformerTrainer`` with ``MultipleNegativesRankingLoss``

Both learn from the same questions and passages in memory or on disk, one positive each and no hard
negative, in float32, by cosine, with AdamW, from the same checkpoint cut to its first layers, as
many tokens of a text, as many texts a batch. Each is a process of its own, in turn. What is counted
is CPU seconds of the steps after the first two; loading, states and evaluation are left out.
"""

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import in_child, peak_memory
from benchmarks.table import grid
from benchmarks.training import SKIPPED, timed
from ccpretrieve.config import Config, at_least
from ccpretrieve.files import atomic, make_directory, write_json

logger = logging.getLogger("ccpretrieve.benchmarks.speed")

OURS, THEIRS = TOOLS = ("finetune-ours", "finetune-sentence-transformers")


@dataclass(frozen=True, kw_only=True)
class FinetuneSpeedConfig(Config):
    """Time steps of fine-tuning against sentence-transformers' trainer.

    Attributes:
        train: Questions with passages, as `finetune --train` takes them.
        encoder: Checkpoint to start from.
        layers: First layers that are kept.
        batch_size: Questions of a step.
        max_length: Tokens kept of a text.
        steps: Timed in each process, after two that are not.
        repeats: Rounds; medians are compared.
        threads: Of every library.
        output: Also write all figures to this file, as JSON.
    """

    train: str
    encoder: str | None = None
    layers: int = 6
    batch_size: int = 48
    max_length: int = 160
    steps: int = 6
    repeats: int = 3
    threads: int = 2
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("layers", "batch_size", "steps", "repeats", "threads"):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), 1)


def run_finetune(config: FinetuneSpeedConfig, work: Path) -> str:
    """Measure.

    Args:
        config: What.
        work: Folder for what the processes write.
    """
    start = work / "start"
    count = (SKIPPED + config.steps) * config.batch_size
    questions = _prepared(config, start, work / "train.jsonl", count)
    settings = {
        **{"train": str(questions), "encoder": str(start), "batch_size": config.batch_size},
        **{"max_length": config.max_length, "steps": config.steps},
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in TOOLS}
    for number in range(config.repeats):
        for name in TOOLS:
            given = {**settings, "output": str(work / f"{name}-{number}")}
            found[name].append(in_child(name, given, work, threads=config.threads))
            speed = config.batch_size / found[name][-1]["cpu"]
            logger.info("round %d: %s: %.2f questions a CPU second", number + 1, name, speed)
    if config.output is not None:
        write_json(config.output, found)
    return _table(config, found)


def _table(config: FinetuneSpeedConfig, found: dict[str, list[dict[str, float]]]) -> str:
    seconds = {name: median(each["cpu"] for each in found[name]) for name in TOOLS}
    rows = [["", "questions a CPU second", "peak MB", "ratio"]]
    for name in TOOLS:
        peak = median(each["peak"] for each in found[name])
        ratio = seconds[THEIRS] / seconds[name]
        speed = config.batch_size / seconds[name]
        rows.append([name, f"{speed:.2f}", f"{peak / 1e6:.0f}", f"{ratio:.2f}"])
    heading = (
        f"fine-tuning, {config.batch_size} questions a step, {config.layers} layers, "
        f"{config.max_length} tokens, fp32, median of {config.repeats} in turn"
    )
    return f"{heading}\n\n{grid(rows)}"


def _prepared(config: FinetuneSpeedConfig, start: Path, path: Path, count: int) -> Path:
    """The start cut to its layers, and as many questions as are needed, without negatives."""
    import itertools

    from ccpretrieve.data.examples import open_examples
    from ccpretrieve.model import trainable
    from ccpretrieve.model.checkpoint import default_encoder, locate
    from ccpretrieve.model.tower import quiet_transformers

    opened = trainable.load(
        locate(config.encoder or default_encoder()), masked=False, layers=config.layers
    )
    make_directory(start)
    with quiet_transformers():
        opened.whole.save_pretrained(start)
        opened.tokenizer.save_pretrained(start)
    with atomic(path) as stream:
        for example, _ in itertools.islice(open_examples(config.train).examples(), count):
            passage = example.positives[0]
            record = {
                "question": example.question,
                "positive_ctxs": [{"title": "", "text": f"{passage.title} {passage.text}"}],
            }
            stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return path


# -- what runs in the child processes --


def ours(settings: dict[str, Any]) -> dict[str, float]:
    """The trainer's own steps."""
    from ccpretrieve.finetune_config import FinetuneConfig
    from ccpretrieve.training.finetuning import Finetuning
    from ccpretrieve.training.process import Processes
    from ccpretrieve.training.states import FOLDER, States
    from ccpretrieve.training.trainer import Trainer

    config = FinetuneConfig(
        train=(settings["train"],),
        encoder=settings["encoder"],
        output=Path(settings["output"]),
        batch_size=settings["batch_size"],
        max_steps=SKIPPED + settings["steps"],
        query_length=settings["max_length"],
        passage_length=settings["max_length"],
        trackers=("none",),
        device="cpu",
        tied=True,
        pooling="mean",
        similarity="cosine",
        temperature=0.05,
        hard_negatives=0,
        strip_question_mark=False,
        log_steps=5,
        warmup_steps=0,
        schedule="constant",
    )
    folder = make_directory(config.output / FOLDER)
    processes = Processes(config, folder)
    work = Finetuning(config)
    work.find(processes)
    objective = work.prepare(folder, processes)
    trainer = Trainer(config, objective, processes, States(config.output, processes))
    return {"cpu": timed(trainer) / settings["steps"], "peak": peak_memory()}


def theirs(settings: dict[str, Any]) -> dict[str, float]:
    """sentence-transformers, as its documentation trains."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        models,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    begun = 0.0

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Starts after the steps that are not counted."""

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            """See transformers."""
            nonlocal begun
            if state.global_step == SKIPPED:
                begun = time.process_time()

    transformer = models.Transformer(settings["encoder"], max_seq_length=settings["max_length"])
    model = SentenceTransformer(
        modules=[transformer, models.Pooling(transformer.get_word_embedding_dimension(), "mean")],
        device="cpu",
    )
    lines = Path(settings["train"]).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    data = Dataset.from_dict(
        {
            "anchor": [record["question"] for record in records],
            "positive": [record["positive_ctxs"][0]["text"].strip() for record in records],
        }
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=settings["output"],
        per_device_train_batch_size=settings["batch_size"],
        max_steps=SKIPPED + settings["steps"],
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        max_grad_norm=2.0,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=5,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[Clock()],
    )
    trainer.train()
    return {"cpu": (time.process_time() - begun) / settings["steps"], "peak": peak_memory()}
