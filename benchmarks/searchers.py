"""Flat search of random vectors by several tools, in turn, in one process.

faiss      IndexFlatIP.search: rows and scores, no ids; what nothing above it can beat
ours       Index.search_vectors, and passage ids for the rows, as `search` has them
ours, run  the command `search` but for its encoder: ids, order, run file with sidecar
pyserini   FaissSearcher.batch_search, given the vectors
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Topic
from ccpretrieve.errors import unknown
from ccpretrieve.retrieval.faiss_index import DOCID, INDEX, Index
from ccpretrieve.retrieval.runfile import read_run
from ccpretrieve.search_config import SearchConfig

BARE = "faiss"
Batches = Sequence[NDArray[np.float32]]
Ids = list[list[str]]


class Tool(NamedTuple):
    """One way to search.

    Attributes:
        search: What is timed: from vectors of questions, in batches, to whatever it finds.
        ids: From that to the passage ids of each question, the best first; not timed.
    """

    search: Callable[[Batches], Any]
    ids: Callable[[Any], Ids]


def compare(settings: dict[str, Any]) -> dict[str, Any]:
    """Time the tools and compare what they find.

    Args:
        settings: ``index`` a folder, ``queries`` a file of vectors, ``batch``, ``hits``,
            ``repeats``, ``threads``, ``tools``: keys of ``TOOLS``, ``faiss`` among them.

    Returns:
        Tool -> ``wall`` and ``cpu`` seconds of each repeat, and ``equal``: the share of questions
        for which it finds the passages that FAISS finds.
    """
    import faiss

    for name in settings["tools"]:
        if name not in TOOLS:
            raise unknown("tool", name, list(TOOLS))
    tools = {name: TOOLS[name](settings) for name in settings["tools"]}
    faiss.omp_set_num_threads(settings["threads"])
    queries, size = np.load(settings["queries"]), settings["batch"]
    batches = [queries[start : start + size] for start in range(0, len(queries), size)]
    times: dict[str, Any] = {name: {"wall": [], "cpu": []} for name in tools}
    found: dict[str, Any] = {}
    for _ in range(settings["repeats"]):
        for name, tool in tools.items():
            wall, cpu = time.perf_counter(), time.process_time()
            found[name] = tool.search(batches)
            times[name]["wall"].append(time.perf_counter() - wall)
            times[name]["cpu"].append(time.process_time() - cpu)
    truth = tools[BARE].ids(found[BARE])
    for name, tool in tools.items():
        pairs = zip(truth, tool.ids(found[name]), strict=True)
        times[name]["equal"] = sum(set(one) == set(two) for one, two in pairs) / len(truth)
    return times


def bare_faiss(settings: dict[str, Any]) -> Tool:
    """FAISS alone, on an index read from the same file."""
    import faiss

    folder = Path(settings["index"])
    index = faiss.read_index(str(folder / INDEX))
    docids = (folder / DOCID).read_text(encoding="utf-8").split("\n")

    def search(batches: Batches) -> list[Any]:
        return [index.search(batch, settings["hits"]) for batch in batches]

    def ids(parts: list[Any]) -> Ids:
        return [[docids[row] for row in rows] for _, found in parts for rows in found.tolist()]

    return Tool(search, ids)


def ours(settings: dict[str, Any]) -> Tool:
    """Vectors to passage ids and scores."""
    index = Index.load(settings["index"])

    def search(batches: Batches) -> list[dict[str, float]]:
        return [found for batch in batches for found in index.rank(batch, settings["hits"])]

    return Tool(search, lambda rankings: [list(ranking) for ranking in rankings])


class _Given:
    """Stands in for an encoder: the vectors of the questions are there already."""

    name = "given"

    def __init__(self) -> None:
        self.vectors = np.empty((0, 0), dtype=np.float32)
        self.truncated = 0

    def embed_queries(self, queries: Sequence[str], *, language: str = "") -> "_Given":
        return self


def ours_with_run(settings: dict[str, Any]) -> Tool:
    """What the command does with vectors, down to the run file on the disk."""
    from ccpretrieve.search import search_topics

    encoder: Any = _Given()
    index = Index.load(settings["index"], encoder=encoder)
    path = Path(settings["index"]).with_name("speed.trec")
    config = SearchConfig(topics="speed", output=path, hits=settings["hits"], tag="speed")
    count = len(np.load(settings["queries"], mmap_mode="r"))
    topics = [Topic(str(number), "given as a vector") for number in range(count)]

    def search(batches: Batches) -> Path:
        encoder.vectors = np.concatenate(batches)
        return search_topics(config, index, "speed", topics, "")

    return Tool(search, lambda run: [list(ranking) for ranking in read_run(run).values()])


def pyserini(settings: dict[str, Any]) -> Tool:
    """Pyserini's searcher; starts a JVM because importing it does."""
    from ccpretrieve.retrieval.lexical import start_java

    start_java()
    from pyserini.search.faiss import FaissSearcher

    searcher = FaissSearcher(settings["index"], object())  # no question is encoded
    hits, threads = settings["hits"], settings["threads"]

    def search(batches: Batches) -> list[dict[str, Any]]:
        names = [[str(number) for number in range(len(batch))] for batch in batches]
        return [
            searcher.batch_search(batch, of_batch, hits, threads)
            for batch, of_batch in zip(batches, names, strict=True)
        ]

    def ids(parts: list[dict[str, Any]]) -> Ids:
        return [[hit.docid for hit in hits] for part in parts for hits in part.values()]

    return Tool(search, ids)


#: Every tool, in the order in which they take turns.
TOOLS = {BARE: bare_faiss, "ours": ours, "ours, run": ours_with_run, "pyserini": pyserini}
