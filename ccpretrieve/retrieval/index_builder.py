"""Build a FAISS index from shards, in Pyserini's layout.

A flat index is written block by block, so making it needs no memory for all vectors. Any other kind
is FAISS's own, filled shard by shard. Similarity is the inner product in every kind; HNSW too.
"""

import hashlib
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, sampled_hash, write_json
from ccpretrieve.retrieval import meta as metadata
from ccpretrieve.retrieval.faiss_index import DOCID, INDEX, Vectors, reason
from ccpretrieve.retrieval.store import Store

#: Vectors that train a quantiser: at least these, and so many per centroid (FAISS asks for 39).
_TRAIN, _TRAIN_PER_CENTROID = 100_000, 64


def write_flat(path: Path, blocks: Iterator[Vectors], count: int, dim: int) -> None:
    """Write FAISS's flat inner-product index block by block.

    The file is the one of ``faiss.write_index(IndexFlatIP)``: FAISS writes the header of an empty
    index here, and its two counts are filled in (rows at byte 8; floats in the last eight).

    Raises:
        ValueError: If the blocks do not add up to ``count`` rows of ``dim``.
    """
    import faiss

    header = bytearray(faiss.serialize_index(faiss.IndexFlatIP(dim)).tobytes())
    struct.pack_into("<q", header, 8, count)
    struct.pack_into("<Q", header, len(header) - 8, count * dim)
    written = 0
    with atomic(path) as stream:
        stream.write(header)
        for block in blocks:
            if block.shape[1] != dim:
                raise ValueError(f"a block of width {block.shape[1]} among width {dim}")
            stream.write(np.ascontiguousarray(block, dtype=np.float32).data.cast("B"))
            written += len(block)
        if written != count:
            raise ValueError(f"blocks of {written} rows, {count} were announced")


def build(store: Store, folder: Path, kind: str, shards: str, *, seed: int = 0) -> None:
    """Build ``index``, ``docid`` and ``meta.json`` in a folder, from verified shards.

    Args:
        store: Complete shards.
        folder: Where to; exists.
        kind: FAISS factory string.
        shards: Where the shards are, relative to the finished folder.
        seed: Of the training sample.

    Raises:
        UserError: If a shard changed since it was written, or FAISS does not know ``kind``.
    """
    store.check_complete()
    shard_list = list(store.shards.values())
    dim = store.vectors(shard_list[0]).shape[1]

    def verified() -> Iterator[Vectors]:
        for shard in shard_list:
            store.verify(shard)
            yield store.vectors(shard)

    if kind == "Flat":
        write_flat(folder / INDEX, verified(), store.count, dim)
    else:
        _write(_fill(_new(kind, dim), store, verified(), seed), folder / INDEX)
    digest = hashlib.sha256()
    with atomic(folder / DOCID) as stream:
        for shard in shard_list:
            ids = "".join(f"{passage.id}\n" for passage in store.passages(shard)).encode()
            digest.update(ids)
            stream.write(ids)
    described = {
        **{"kind": kind, "count": store.count, "dim": dim, "docid": digest.hexdigest()},
        "sampled": sampled_hash(folder / INDEX),
    }
    content = metadata.build(store.recipe, described, shards)
    write_json(folder / metadata.FILE, content)


def _new(kind: str, dim: int) -> Any:
    import faiss

    if re.search(r"(IVF|HNSW|NSG)0+(\D|$)", kind):
        raise UserError(f"--factory {kind!r}: the number of lists or links cannot be 0")
    try:
        index: Any = faiss.index_factory(dim, kind, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(
            f"--factory {kind!r}: FAISS cannot make it for width {dim}: {reason(error)}"
        ) from error
    if kind.startswith("HNSW"):
        index.hnsw.efConstruction, index.hnsw.efSearch = 200, 128
    return index


def _fill(index: Any, store: Store, blocks: Iterator[Vectors], seed: int) -> Any:
    import faiss

    if not index.is_trained:
        vectors = sample(store, max(_TRAIN, _TRAIN_PER_CENTROID * _centroids(index)), seed)
        try:
            index.train(vectors)
        except RuntimeError as error:
            raise UserError(
                f"{len(vectors)} vectors cannot train this index: {reason(error)}"
            ) from error
    try:
        for block in blocks:
            index.add(np.ascontiguousarray(block))
    except RuntimeError as error:
        raise UserError(f"this kind of index cannot be filled so: {reason(error)}") from error
    if lists := _centroids(index):
        # Searching one list of many finds little; a sixteenth of them is FAISS's usual compromise.
        faiss.ParameterSpace().set_index_parameter(index, "nprobe", max(8, lists // 16))
    return index


def _centroids(index: Any) -> int:
    import faiss

    inverted = faiss.try_extract_index_ivf(index)
    return int(inverted.nlist) if inverted is not None else 0


def exact(store: Store, vectors: Vectors, hits: int) -> tuple[Vectors, NDArray[np.int64]]:
    """Exact search shard by shard, whatever kind of index was built.

    Args:
        store: Complete shards.
        vectors: Shape ``(N, D)``.
        hits: Most rows a vector.

    Returns:
        Scores and rows, each of shape ``(N, min(hits, store.count))``, the best first.
    """
    import faiss

    best = faiss.ResultHeap(len(vectors), min(hits, store.count), keep_max=True)
    first = 0
    for shard in store.shards.values():
        block = np.ascontiguousarray(store.vectors(shard))
        scores, rows = faiss.knn(
            vectors, block, min(best.k, len(block)), faiss.METRIC_INNER_PRODUCT
        )
        best.add_result(scores, rows + first)
        first += shard.count
    best.finalize()
    return best.D, best.I


def sample(store: Store, size: int, seed: int) -> Vectors:
    """Vectors drawn without replacement over all shards, in row order, shape ``(size, D)``."""
    rows = np.random.default_rng(seed).permutation(store.count)[:size]
    rows.sort()
    parts, first = [], 0
    for shard in store.shards.values():
        here = rows[(rows >= first) & (rows < first + shard.count)] - first
        parts.append(np.asarray(store.vectors(shard)[here]))
        first += shard.count
    return np.concatenate(parts)


def _write(index: Any, path: Path) -> None:
    import faiss

    with atomic(path) as stream:
        try:
            writer: Any = getattr(faiss, "PyCallbackIOWriter")(stream.write)  # noqa: B009 - untyped
            faiss.write_index(index, writer)
        except RuntimeError as error:
            raise UserError(
                f"{path}: this kind of index cannot be stored: {reason(error)}"
            ) from error
