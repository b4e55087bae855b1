"""Memory of the data of fine-tuning: DPR's JSON is streamed, gigabytes need little more than MBs.

Made-up examples as DPR has them (a positive and 30 hard negatives of 100 words) are written as one
JSON array. A process of its own then does with them what ``finetune`` does before and between its
steps: checks and trims all of them, and reads batches in a shuffled order.
"""

import json
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import in_child, peak_memory
from ccpretrieve.config import Config, at_least
from ccpretrieve.files import atomic, write_json

logger = logging.getLogger("ccpretrieve.benchmarks.speed")

TASK = "finetune-examples"
NEGATIVES, WORDS, LETTERS = 30, 100, 6


@dataclass(frozen=True, kw_only=True)
class ExamplesMemoryConfig(Config):
    """Compare the peak memory of reading a small and a large file of examples.

    Attributes:
        small: Megabytes of the small file.
        large: Megabytes of the large file.
        batches: Read from each, of 48 questions.
        output: Also write all figures to this file, as JSON.
    """

    small: int = 20
    large: int = 2000
    batches: int = 300
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("small", "large", "batches"):
            at_least(f"--{name}", getattr(self, name), 1)


def run_examples(config: ExamplesMemoryConfig, work: Path) -> str:
    """Measure.

    Args:
        config: What.
        work: Folder for the files; as much as the large one holds is needed.
    """
    peaks = {}
    for size in (config.small, config.large):
        path = work / "train.json"
        write_examples(path, size * 1_000_000)
        settings = {"train": str(path), "store": str(work / "store"), "batches": config.batches}
        found = in_child(TASK, settings, work, threads=1)
        peaks[size] = found["peak"]
        logger.info(
            "%d MB: %d examples, %.1f CPU s, peak %.0f MB",
            *(size, found["count"], found["cpu"], found["peak"] / 1e6),
        )
    if config.output is not None:
        write_json(config.output, {str(size): peak for size, peak in peaks.items()})
    few, many = peaks[config.small], peaks[config.large]
    return (
        f"memory of DPR's JSON and {config.batches} batches: {config.small} MB {few / 1e6:.0f} MB, "
        f"{config.large} MB {many / 1e6:.0f} MB, ratio {many / few:.3f}"
    )


def write_examples(path: Path, size: int) -> None:
    """One array of examples, until it holds so many bytes."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnop", k=LETTERS)) for _ in range(5000)]

    def passage() -> dict[str, str]:
        return {
            "title": generator.choice(words),
            "text": " ".join(generator.choices(words, k=WORDS)),
        }

    def records() -> Iterator[bytes]:
        written = 0
        while written < size:
            record = {
                "question": " ".join(generator.choices(words, k=8)),
                "answers": [generator.choice(words)],
                "positive_ctxs": [passage()],
                "hard_negative_ctxs": [passage() for _ in range(NEGATIVES)],
            }
            line = (",\n" if written else "[").encode() + json.dumps(record).encode()
            written += len(line)
            yield line
        yield b"]\n"

    with atomic(path) as stream:
        stream.writelines(records())


# -- what runs in the child process --


def examples(settings: dict[str, Any]) -> dict[str, float]:
    """What ``finetune`` does with its examples."""
    import time

    from ccpretrieve.data.example_order import ExampleOrder
    from ccpretrieve.data.example_store import ExampleStore, prepare
    from ccpretrieve.data.examples import open_examples

    path = Path(settings["store"]).with_suffix(".jsonl")
    prepare([open_examples(settings["train"])], path, negatives=1)
    store = ExampleStore.open(path)
    order = ExampleOrder(store.of_language, together=min(48, len(store)))
    for _ in range(settings["batches"]):
        for number in order.take():
            store[number]
    return {"peak": peak_memory(), "count": len(store), "cpu": time.process_time()}
