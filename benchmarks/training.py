"""Speed and memory of pretraining: a CCP step beside the bare Transformer; data as a corpus grows.

ours    the trainer's own steps: data, Transformer, head, bank, loss, health, log
bare    the same batches, padded as they are: forward, backward and optimiser step, and no more

Each in a process of its own, in turn, from the same start. Writing states is left out of both.
"""

import itertools
import json
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any
from unittest import mock

from benchmarks.measure import in_child, peak_memory
from ccpretrieve.config import Config, Many, at_least
from ccpretrieve.files import atomic, make_directory, write_json
from ccpretrieve.training_config import PretrainConfig

if TYPE_CHECKING:
    from ccpretrieve.training.trainer import Trainer

logger = logging.getLogger("ccpretrieve.benchmarks.speed")

TOOLS = ("train-ours", "train-bare")
SKIPPED = 2  # updates before the clock starts


@dataclass(frozen=True, kw_only=True)
class TrainSpeedConfig(Config):
    """Time steps of CCP against bare steps of the same Transformer on the same batches.

    Attributes:
        corpus: Documents.
        encoder: Checkpoint to start from.
        languages: Of the documents.
        layers: First layers that are kept.
        batch_size: Windows of a step.
        bank_size: Vectors kept of a language.
        max_length: Tokens kept of a sentence.
        steps: Timed in each process, after two that are not.
        repeats: Rounds; medians are compared.
        threads: Of every library.
        output: Also write all figures to this file, as JSON.
    """

    corpus: str
    encoder: str | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    layers: int = 4
    batch_size: int = 48
    bank_size: int = 4096
    max_length: int = 64
    steps: int = 12
    repeats: int = 3
    threads: int = 2
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("layers", "batch_size", "bank_size", "steps", "repeats", "threads"):
            at_least(f"--{name.replace('_', '-')}", getattr(self, name), 1)


def run_train(config: TrainSpeedConfig, work: Path) -> str:
    """Measure.

    Args:
        config: What.
        work: Folder for what the processes write.
    """
    settings = {
        **{"corpus": str(Path(config.corpus).resolve()), "encoder": config.encoder},
        **{"languages": list(config.languages), "layers": config.layers},
        **{"batch_size": config.batch_size, "bank_size": config.bank_size},
        **{"max_length": config.max_length, "steps": config.steps},
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in TOOLS}
    for number in range(config.repeats):
        for name in TOOLS:
            output = str(work / f"{name}-{number}")
            result = in_child(name, {**settings, "output": output}, work, threads=config.threads)
            found[name].append(result)
            logger.info("round %d: %s: %.3f CPU s a step", number + 1, name, result["cpu"])
    if config.output is not None:
        write_json(config.output, found)
    ours, bare = (median(each["cpu"] for each in found[name]) for name in TOOLS)
    padding = found["train-bare"][0]["padded"] / found["train-bare"][0]["tokens"]
    return (
        f"a CCP step, {config.batch_size} windows, {config.layers} layers, bank "
        f"{config.bank_size}: {ours:.3f} CPU s; bare forward, backward and optimiser step of the "
        f"same padded batches: {bare:.3f} CPU s (padding {padding:.2f}x the tokens); "
        f"ratio {ours / bare:.3f}"
    )


@dataclass(frozen=True, kw_only=True)
class DataMemoryConfig(Config):
    """Compare the peak memory of drawing batches from a small and a large corpus.

    Attributes:
        few: Documents of the small corpus.
        many: Documents of the large corpus.
        batches: Drawn from each.
        output: Also write all figures to this file, as JSON.
    """

    few: int = 5_000
    many: int = 100_000
    batches: int = 300
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("few", "many", "batches"):
            at_least(f"--{name}", getattr(self, name), 1)


def run_data(config: DataMemoryConfig, work: Path) -> str:
    """Measure."""
    peaks = {}
    for size in (config.few, config.many):
        corpus = work / str(size)
        write_documents(corpus, size)
        settings = {"corpus": str(corpus), "output": str(work), "batches": config.batches}
        peaks[size] = in_child("train-data", settings, work, threads=1)["peak"]
        logger.info("%d documents: peak %.0f MB", size, peaks[size] / 1e6)
    if config.output is not None:
        write_json(config.output, {str(size): peak for size, peak in peaks.items()})
    few, many = peaks[config.few], peaks[config.many]
    return (
        f"memory of census and {config.batches} batches: {config.few} documents {few / 1e6:.0f} "
        f"MB, {config.many} documents {many / 1e6:.0f} MB, ratio {many / few:.3f}"
    )


def write_documents(folder: Path, count: int) -> None:
    """Documents of 12 sentences out of words that do not exist."""
    generator = random.Random(count)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(5000)]

    def lines() -> Iterator[bytes]:
        for number in range(count):
            made = [" ".join(generator.choices(words, k=8)) + "." for _ in range(12)]
            document = {"id": f"d{number}", "lang": "en", "sentences": made}
            yield (json.dumps(document) + "\n").encode()

    with atomic(make_directory(folder) / "en.jsonl") as stream:
        stream.writelines(lines())


# -- what runs in the child processes --


def ours(settings: dict[str, Any]) -> dict[str, float]:
    """The trainer's own steps."""
    from ccpretrieve.training.pretraining import Pretraining
    from ccpretrieve.training.process import Processes
    from ccpretrieve.training.states import FOLDER, States
    from ccpretrieve.training.trainer import Trainer

    config = _config(settings)
    folder = make_directory(config.output / FOLDER)
    processes = Processes(config, folder)
    work = Pretraining(config)
    work.find(processes)
    objective = work.prepare(folder, processes)
    trainer = Trainer(config, objective, processes, States(config.output, processes))
    return {"cpu": timed(trainer) / settings["steps"], "peak": peak_memory()}


def timed(trainer: "Trainer") -> float:
    """CPU seconds of a training after its second update; no state is written."""
    from ccpretrieve.training.states import States

    begun = 0.0
    objective = trainer.objective
    updated = objective.updated

    def after() -> None:
        nonlocal begun
        updated()
        if trainer.progress.step == SKIPPED - 1:  # that update ends here
            begun = time.process_time()

    with mock.patch.object(objective, "updated", after), mock.patch.object(States, "save"):
        trainer.run()
    return time.process_time() - begun


def bare(settings: dict[str, Any]) -> dict[str, float]:
    """Forward, backward and optimiser step of the same batches, and no more."""
    import torch

    from ccpretrieve.model.pooling import pool
    from ccpretrieve.training.pretraining import Pretraining
    from ccpretrieve.training.process import Processes
    from ccpretrieve.training.states import FOLDER

    config = _config(settings)
    folder = make_directory(config.output / FOLDER)
    processes = Processes(config, folder)
    work = Pretraining(config)
    work.find(processes)
    objective = work.prepare(folder, processes)
    model = objective.module.whole.base_model.train()
    batches = [objective.batcher.next() for _ in range(settings["steps"] + 2)]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=config.learning_rate, fused=True)
    begun = 0.0
    for number, batch in enumerate(batches):
        if number == 2:
            begun = time.process_time()
        ids, attention = torch.from_numpy(batch.ids), torch.from_numpy(batch.attention)
        states = model(input_ids=ids, attention_mask=attention).last_hidden_state
        torch.autograd.backward(pool(states, attention, objective.module.pooling).square().mean())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    cpu = (time.process_time() - begun) / settings["steps"]
    tokens = sum(batch.tokens for batch in batches)
    return {"cpu": cpu, "padded": float(sum(b.ids.size for b in batches)), "tokens": tokens}


def data(settings: dict[str, Any]) -> dict[str, float]:
    """Census and batches, without a model."""
    from transformers import AutoTokenizer

    from ccpretrieve.data.documents import open_documents
    from ccpretrieve.model import random_checkpoint
    from ccpretrieve.training import preparation
    from ccpretrieve.training.process import Processes

    config = _config({**settings, "encoder": "none", "steps": 1})
    processes = Processes(config, config.output)
    sources = open_documents(config.corpus)
    folder = make_directory(Path(settings["corpus"] + "-state"))
    censuses = preparation.take_censuses(config, sources, folder, processes)
    texts = itertools.islice(preparation.sentences(config, sources, censuses), 500)
    checkpoint = random_checkpoint.build(folder / "tokenizer", texts)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    batcher = preparation.make_batcher(config, sources, censuses, tokenizer, "", processes)
    for _ in range(settings["batches"]):
        batcher.next()
    return {"peak": peak_memory()}


def _config(settings: dict[str, Any]) -> PretrainConfig:
    named = ("layers", "batch_size", "bank_size", "max_length")
    sizes = {name: settings[name] for name in named if name in settings}
    return PretrainConfig(
        corpus=settings["corpus"],
        encoder=settings["encoder"],
        output=Path(settings["output"]),
        languages=tuple(settings.get("languages", ())),
        accumulated_batch_size=sizes.get("batch_size", 32),
        max_steps=settings["steps"] + 2,
        mlm_share=0.0,
        freeze_embeddings=True,
        log_steps=10,
        device="cpu",
        trackers=(),
        quiet=True,
        **sizes,
    )
