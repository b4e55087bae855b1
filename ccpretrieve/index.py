"""Build another index: ``python -m ccpretrieve.index --embeddings DIR --factory HNSW32``.

Any FAISS factory string over the shards that `encode` left; several folders of shards, one from
each machine, are merged first. Says how much of the exact result the new index finds.

``--lexical --corpus mrtydi-ja`` indexes the words instead, for BM25: indexes/mrtydi-ja.bm25.
"""

import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ccpretrieve.commandline import command
from ccpretrieve.config import IndexConfig
from ccpretrieve.data.languages import language
from ccpretrieve.errors import UserError
from ccpretrieve.files import PARTIAL, finish, make_directory, only_writer, slug
from ccpretrieve.retrieval import bm25, names
from ccpretrieve.retrieval.merge import merge
from ccpretrieve.retrieval.meta import shards
from ccpretrieve.retrieval.store import FOLDER, Store

if TYPE_CHECKING:
    from ccpretrieve.retrieval.faiss_index import Index

logger = logging.getLogger("ccpretrieve.index")
DEPTH = 100  # of recall@100


def run(config: IndexConfig) -> Path:
    """Build the index and return its folder.

    Raises:
        UserError: If a folder holds no complete shards of ours, FAISS does not know the factory
            string, or the output exists; with ``--lexical``, as :func:`.bm25.build` says.
    """
    if config.corpus is not None:
        return _lexical(config, config.corpus)
    stores = [Store.open(shards(folder)) for folder in config.embeddings]
    output = config.output or _default_output(config, stores)
    _refuse_existing(output)
    partial = output.with_name(f"{output.name}.index{PARTIAL}")
    with only_writer(partial, "building an index"):
        _refuse_existing(output)
        _empty(partial)  # what a killed call left; nothing of it can be gone on from
        begun = time.perf_counter()
        try:
            store = _fill(config, stores, output, partial)
            report(config, output, partial, store, time.perf_counter() - begun)
        except BaseException:
            _empty(partial)
            raise
        finish(partial, output)
    return output


def _lexical(config: IndexConfig, source: str) -> Path:
    """Index the words of a corpus, unless that is done."""
    from ccpretrieve.data.registry import open_corpus

    corpus = open_corpus(source, config.data_dir)
    return bm25.build(
        corpus,
        config.output or names.index_folder(corpus.name, bm25.TAG),
        language=language(config.lang).code if config.lang else "",
        threads=config.threads or os.cpu_count() or 1,
    )


def _refuse_existing(output: Path) -> None:
    if output.exists():
        raise UserError(f"{output}: exists; choose another --output")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _default_output(config: IndexConfig, stores: Sequence[Store]) -> Path:
    """Beside the embeddings: ``<embeddings>.<factory>``; merged parts lose their number first."""
    folder = config.embeddings[0]
    number, machines = stores[0].part
    if machines > 1:
        folder = folder.with_name(folder.name.removesuffix(f".{number}-of-{machines}"))
        if config.factory == "Flat":
            return folder
    return folder.with_name(f"{folder.name}.{slug(config.factory)}")


def _fill(config: IndexConfig, stores: Sequence[Store], output: Path, partial: Path) -> Store:
    """Write the index into ``partial``; its shards too if they have to be merged."""
    from ccpretrieve.retrieval.index_builder import build

    if len(stores) == 1 and stores[0].part[1] == 1:
        shards = os.path.relpath(stores[0].path.resolve(), output.parent.resolve() / output.name)
        build(stores[0], partial, config.factory, shards, seed=config.seed)
        return stores[0]
    store = merge(stores, make_directory(partial / FOLDER))
    build(store, partial, config.factory, FOLDER, seed=config.seed)
    return store


def report(config: IndexConfig, output: Path, folder: Path, store: Store, seconds: float) -> None:
    """Log size, time, and recall against the exact result on sampled passages as questions.

    Args:
        config: What was asked for.
        output: What the index will be called.
        folder: Where it is, beside ``output``.
        store: What it was made from.
        seconds: That took.
    """
    from ccpretrieve.retrieval.faiss_index import INDEX, Index

    size = (folder / INDEX).stat().st_size
    logger.info(
        "%s: %s over %d vectors, %.1f MB, built in %.1f s",
        *(output, config.factory, store.count, size / 1e6, seconds),
    )
    if config.factory != "Flat" and config.queries:
        found = recall(Index.load(folder), config.queries, config.seed)
        logger.info(
            "recall@%d against the flat index on %d sampled passages: %.4f",
            *(_depth(store), min(config.queries, store.count), found),
        )


def _depth(store: Store) -> int:
    """100, or a tenth of a small collection, all of which any index would find."""
    return min(DEPTH, max(1, store.count // 10))


def recall(index: "Index", queries: int, seed: int) -> float:
    """Share of the exact first 100 that an index finds among its own first 100.

    Args:
        index: The index; its shards are at hand.
        queries: Sampled passages whose vectors are searched.
        seed: Of the sample.
    """
    from ccpretrieve.retrieval.index_builder import exact, sample

    store = Store.open(index.path / index.meta["embeddings"])
    vectors = sample(store, queries, seed)
    _, truth = exact(store, vectors, _depth(store))
    _, rows = index.search_vectors(vectors, _depth(store))
    found = sum(len(set(a) & set(b)) for a, b in zip(truth.tolist(), rows.tolist(), strict=True))
    return found / truth.size


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`IndexConfig`."""
    command(run, IndexConfig, "index", argv)


if __name__ == "__main__":
    main()
