"""What runs in the child processes of the speed benchmark: each tool as its users run it.

    ours                   the command `encode`, from reading the corpus to the finished index
    sentence-transformers  SentenceTransformer.encode
    pyserini               AutoDocumentEncoder.encode, batch by batch as pyserini.encode has it

All embed the same texts with the same checkpoint. CPU seconds leave out imports and the loading of
the model (ours also its fingerprint, which is part of opening it), for every tool alike. Ours count
reading, checking, sorting and writing; the others are given their texts in memory and count the
encoding alone.
"""

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Clocks, peak_memory
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import read_json, write_json

Settings = dict[str, Any]
LOAD = "load"  # the stage that does not count


def texts_of(corpus: str, prefix: str) -> list[str]:
    """Prefix, title, space, text of every passage, as ``--title join`` has it."""
    passages = (record.passage for record in FolderCorpus(Path(corpus)).records())
    return [f"{prefix}{p.title} {p.text}" if p.title else prefix + p.text for p in passages]


def ours(settings: Settings) -> Settings:
    """Encode with the command, its stages timed.

    Args:
        settings: ``checkpoint``, ``corpus``, ``output``, ``vectors``, ``threads``, ``batch``: of
            how many tokens.
    """
    import faiss  # noqa: F401 - imports do not count
    import filelock  # noqa: F401
    import tqdm  # noqa: F401

    from ccpretrieve import encode
    from ccpretrieve.config import EncodeConfig
    from ccpretrieve.model import checkpoint
    from ccpretrieve.model.encoder import Encoder
    from ccpretrieve.model.tower import Tower
    from ccpretrieve.retrieval import index_builder
    from ccpretrieve.retrieval.store import FOLDER, Store

    prepare_torch(settings)
    config = EncodeConfig(
        corpus=settings["corpus"],
        encoder=settings["checkpoint"],
        output=Path(settings["output"]),
        batch_tokens=settings["batch"],
        device="cpu",
        quiet=True,
    )
    opened = []  # kept, as the others keep their model: giving back its memory is not encoding
    load = Encoder.load

    def load_and_keep(*args: Any, **kwargs: Any) -> Encoder:
        opened.append(load(*args, **kwargs))
        return opened[-1]

    with mock.patch.object(Encoder, "load", load_and_keep), Clocks() as clocks:
        for owner, attribute, stage in (
            (Encoder, "load", LOAD),
            (Tower, "__init__", LOAD),
            (checkpoint, "fingerprint", LOAD),
            (encode, "take_census", "census"),
            (encode, "kept", "read"),
            (Tower, "tokenize", "tokenize"),
            (Tower, "forward", "forward"),
            (Store, "add", "write shards"),
            (index_builder, "build", "write index"),
        ):
            clocks.wrap(owner, attribute, stage)
        encode.run(config)
    peak = peak_memory()
    store = Store.open(config.output / FOLDER) if config.output else None
    assert store is not None
    save(settings, np.concatenate([store.vectors(shard) for shard in store.shards.values()]))
    stages = {name: seconds for name, seconds in clocks.seconds.items() if name != LOAD}
    return {"cpu": sum(stages.values()), "peak": peak, "stages": stages}


def sentence_transformers(settings: Settings) -> Settings:
    """Encode with sentence-transformers.

    Args:
        settings: ``checkpoint``, ``corpus``, ``vectors``, ``threads``, ``prefix``, ``batch``: of
            how many texts.
    """
    prepare_torch(settings)
    from sentence_transformers import SentenceTransformer

    texts = texts_of(settings["corpus"], settings["prefix"])
    model = SentenceTransformer(settings["checkpoint"], device="cpu")
    begun = time.process_time()
    vectors = model.encode(texts, batch_size=settings["batch"], show_progress_bar=False)
    return _finished(settings, begun, vectors)


def pyserini(settings: Settings) -> Settings:
    """Encode with Pyserini.

    Args:
        settings: as above, and ``length``: most tokens.
    """
    from ccpretrieve.retrieval.lexical import start_java

    start_java()
    prepare_torch(settings)
    from pyserini.encode import AutoDocumentEncoder

    texts = texts_of(settings["corpus"], "")
    prefix = settings["prefix"].removesuffix(" ")  # Pyserini puts a space behind it
    encoder = AutoDocumentEncoder(
        settings["checkpoint"], None, "cpu", "mean", l2_norm=True, prefix=prefix
    )
    begun = time.process_time()
    parts = []
    for start in range(0, len(texts), settings["batch"]):
        batch = texts[start : start + settings["batch"]]
        parts.append(encoder.encode(texts=batch, max_length=settings["length"], add_sep=False))
    return _finished(settings, begun, np.concatenate(parts))


def _finished(settings: Settings, begun: float, vectors: NDArray[np.float32]) -> Settings:
    cpu, peak = time.process_time() - begun, peak_memory()
    save(settings, vectors)
    return {"cpu": cpu, "peak": peak}


def prepare_torch(settings: Settings) -> None:
    """Pin the threads, and import what would else be imported and counted on first use."""
    import torch
    from transformers import AutoModel, AutoTokenizer  # noqa: F401

    torch.set_num_threads(settings["threads"])


def save(settings: Settings, vectors: NDArray[np.float32]) -> None:
    """Leave the vectors for comparison, in the order of the corpus."""
    np.save(settings["vectors"], vectors)


def memory(settings: Settings) -> Settings:
    """Encode with the command, for its peak memory.

    Args:
        settings: ``checkpoint``, ``corpus``, ``output``, ``threads``.
    """
    from ccpretrieve import encode
    from ccpretrieve.config import EncodeConfig

    prepare_torch(settings)
    begun = time.process_time()
    encode.run(
        EncodeConfig(
            corpus=settings["corpus"],
            encoder=settings["checkpoint"],
            output=Path(settings["output"]),
            device="cpu",
            quiet=True,
        )
    )
    return {"cpu": time.process_time() - begun, "peak": peak_memory()}


def search(settings: Settings) -> Settings:
    """Search; see :mod:`benchmarks.searchers`, which needs no torch."""
    from benchmarks import searchers

    return searchers.compare(settings)


def training(module: str, name: str) -> Callable[[Settings], Settings]:
    """A task of a module of trainings, whose libraries the others need not import."""

    def task(settings: Settings) -> Settings:
        tasks = importlib.import_module(f"benchmarks.{module}")
        prepare_torch(settings)
        result: Settings = getattr(tasks, name)(settings)
        return result

    return task


TASKS: dict[str, Callable[[Settings], Settings]] = {
    "ours": ours,
    "sentence-transformers": sentence_transformers,
    "pyserini": pyserini,
    "memory": memory,
    "search": search,
    "train-ours": training("training", "ours"),
    "train-bare": training("training", "bare"),
    "train-data": training("training", "data"),
    "finetune-ours": training("finetuning", "ours"),
    "finetune-examples": training("examples", "examples"),
    "finetune-sentence-transformers": training("finetuning", "theirs"),
}


def main(asked: str, answer: str) -> None:
    """Do the task in the file ``asked`` and write what it returns, or its error, to ``answer``."""
    wanted = read_json(Path(asked))
    try:
        if wanted["task"] not in TASKS:
            raise unknown("task", wanted["task"], list(TASKS))
        result: Settings = {"result": TASKS[wanted["task"]](wanted["settings"])}
    except UserError as error:
        result = {"error": str(error)}
    write_json(Path(answer), result)


if __name__ == "__main__":
    main(*sys.argv[1:])
