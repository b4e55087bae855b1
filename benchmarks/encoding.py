"""Encoding speed: the same checkpoint and passages for every tool, run after run in turn.

Each of the others runs at the better of its own default batch and the best of those it is tried
with; the trial is the first round, later rounds repeat the best alone.
"""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import in_child
from benchmarks.table import grid
from ccpretrieve.data.census import take_census
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import atomic, make_directory
from ccpretrieve.model.checkpoint import PASSAGE, locate, tower
from ccpretrieve.model.settings import EncoderSettings, write_settings

logger = logging.getLogger("ccpretrieve.benchmarks.speed")

OURS = "ours"
OUR_BATCH = 1024  # tokens, the default of `encode`
SAME = 0.9999  # cosine above which two vectors are the same but for rounding
#: Tool -> its own default batch, in passages (pyserini.encode's flag for the second).
PEERS = {"sentence-transformers": 32, "pyserini": 64}
#: What states how a checkpoint is to be used; replaced, so that every tool is told the same.
STATEMENTS = (
    *("ccpretrieve.json", "modules.json", "sentence_bert_config.json"),
    "config_sentence_transformers.json",
)


@dataclass
class Tool:
    """What one tool took.

    Attributes:
        cpu: Batch -> CPU seconds of each run.
        peak: Batch -> bytes of each run.
        cosine: The least between its vectors and ours for the same passage.
        stages: CPU seconds by stage, of each run; ours only.
    """

    cpu: dict[int, list[float]] = field(default_factory=dict)
    peak: dict[int, list[int]] = field(default_factory=dict)
    cosine: float = 1.0
    stages: list[dict[str, float]] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """The batch with the least CPU time."""
        return min(self.cpu, key=lambda size: median(self.cpu[size]))

    @property
    def seconds(self) -> float:
        """Median CPU seconds at that batch."""
        return median(self.cpu[self.batch])

    @property
    def memory(self) -> float:
        """Median of peak memory at that batch, in bytes."""
        return median(self.peak[self.batch])


@dataclass
class Encoding:
    """What was measured; as a string, the report.

    Attributes:
        heading: What was encoded and how.
        passages: How many.
        tools: By name, ours first.
    """

    heading: str
    passages: int
    tools: dict[str, Tool]

    def __str__(self) -> str:
        rows = [["", "batch", "passages/CPU s", "CPU s", "(least, most)", "peak MB", "cosine"]]
        for name, tool in self.tools.items():
            runs = tool.cpu[tool.batch]
            rows.append(
                [
                    name,
                    f"{tool.batch} {'tokens' if name == OURS else 'passages'}",
                    f"{self.passages / tool.seconds:.2f}",
                    f"{tool.seconds:.2f}",
                    f"({min(runs):.2f}, {max(runs):.2f})",
                    f"{tool.memory / 1e6:.0f}",
                    f"{tool.cosine:.6f}",
                ]
            )
        return "\n".join([self.heading, "", grid(rows), "", *self.ratios(), *self.details()])

    def ratios(self) -> list[str]:
        """Ours over each of the others, a line each."""
        ours = self.tools[OURS]
        return [
            f"ours / {name}: {tool.seconds / ours.seconds:.2f}x passages per CPU second, "
            f"{ours.memory / tool.memory:.2f}x peak memory"
            for name, tool in self.tools.items()
            if name != OURS
        ]

    def details(self) -> list[str]:
        """Batches that were tried, and where our time went, a line each."""
        lines = []
        for name, tool in self.tools.items():
            if name != OURS:
                tried = [f"{size}: {runs[0]:.2f}" for size, runs in sorted(tool.cpu.items())]
                lines.append(f"{name}, CPU s by batch in the first round: {', '.join(tried)}")
        stages = self.tools[OURS].stages
        shares = {name: median(run.get(name, 0.0) for run in stages) for name in stages[0]}
        costs = ", ".join(f"{name} {seconds:.2f}" for name, seconds in shares.items())
        return [*lines, f"ours, CPU s by stage: {costs}"]


def prepare_corpus(
    names: Mapping[str, str], passages: int, folder: Path, data_dir: Path | None
) -> int:
    """Write one file of passages drawn from several corpora, as many of each.

    Args:
        names: Language -> corpus; ids are prefixed with the language.
        passages: About how many; 0 for all.
        folder: Where ``docs.jsonl`` goes.
        data_dir: Where corpora named by the registry lie.

    Returns:
        How many there are.
    """
    each = -(-passages // len(names)) if passages else 1 << 62
    lines = []
    for language, name in names.items():
        for passage in take_census(open_corpus(name, data_dir), sample=each).sample:
            item = {
                "docid": f"{language}:{passage.id}",
                "title": passage.title,
                "text": passage.text,
            }
            lines.append(json.dumps(item, ensure_ascii=False) + "\n")
    with atomic(make_directory(folder) / "docs.jsonl") as stream:
        stream.write("".join(lines).encode("utf-8", "surrogatepass"))
    return len(lines)


def prepare_checkpoint(name: str, folder: Path, settings: EncoderSettings) -> Path:
    """Links to the files of a checkpoint, with settings of our own that every tool reads.

    Raises:
        UserError: If there is no such checkpoint.
    """
    source = tower(locate(name), PASSAGE).resolve()
    make_directory(folder)
    for file in source.iterdir():
        if file.is_file() and file.name not in STATEMENTS:
            (folder / file.name).symlink_to(file.resolve())
    write_settings(folder, settings)
    return folder


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Attributes:
        checkpoint: As :func:`prepare_checkpoint` made it.
        corpus: As :func:`prepare_corpus` wrote it.
        settings: Of the checkpoint.
        peers: Of ``PEERS``.
        batches: Passages a batch to try for each of them.
        repeats: Rounds.
        threads: Of each process.
        work: Folder for what the processes write.
    """

    checkpoint: Path
    corpus: Path
    settings: EncoderSettings
    peers: Sequence[str]
    batches: Sequence[int]
    repeats: int
    threads: int
    work: Path

    def __post_init__(self) -> None:
        for name in self.peers:
            if name not in PEERS:
                raise unknown("peer", name, list(PEERS))


def compare(plan: Plan) -> dict[str, Tool]:
    """Run all tools in turn, round after round.

    Raises:
        UserError: If a tool is not installed, or its vectors are not ours.
    """
    tools = {name: Tool() for name in (OURS, *plan.peers)}
    for number in range(1, plan.repeats + 1):
        for name, tool in tools.items():
            for size in _sizes(plan, name, tool):
                result = _measure(plan, name, size)
                tool.cpu.setdefault(size, []).append(result["cpu"])
                tool.peak.setdefault(size, []).append(result["peak"])
                tool.stages += [result["stages"]] if "stages" in result else []
                tool.cosine = min(tool.cosine, _cosine(plan, name))
                logger.info(
                    "round %d of %d: %s, batch %d: %.2f CPU s, %.0f MB",
                    *(number, plan.repeats, name, size, result["cpu"], result["peak"] / 1e6),
                )
    return tools


def _sizes(plan: Plan, name: str, tool: Tool) -> list[int]:
    """The batches of one tool in the coming round."""
    if name == OURS:
        return [OUR_BATCH]
    return [tool.batch] if tool.cpu else sorted({*plan.batches, PEERS[name]})


def _measure(plan: Plan, name: str, size: int) -> dict[str, Any]:
    output = plan.work / "index"
    shutil.rmtree(output, ignore_errors=True)  # else the work would be found done
    settings = {
        "checkpoint": str(plan.checkpoint),
        "corpus": str(plan.corpus),
        "output": str(output),
        "vectors": str(plan.work / f"{name}.npy"),
        "prefix": plan.settings.passage_prefix,
        "length": plan.settings.passage_length,
        "batch": size,
    }
    result: dict[str, Any] = in_child(name, settings, plan.work, threads=plan.threads)
    return result


def _cosine(plan: Plan, name: str) -> float:
    """The least cosine between a tool's vectors and ours for the same passage.

    Raises:
        UserError: If they are not the same vectors; then a comparison of times says nothing.
    """
    ours, theirs = (np.load(plan.work / f"{tool}.npy") for tool in (OURS, name))
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    least = float((np.sum(ours * theirs, axis=1) / norms).min())
    if not least > SAME:
        raise UserError(
            f"{name} computes other vectors than ours (least cosine {least:.6f}), so that times "
            f"cannot be compared; give --encoder a checkpoint that {name} reads as it is meant"
        )
    return least
