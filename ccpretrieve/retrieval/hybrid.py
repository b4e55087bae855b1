"""Dense and lexical search of one corpus as one search, and what any of the three says of itself.

topics --Dense--> run, topics --Bm25--> run, both --fuse--> run
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ccpretrieve.data.records import Passage, Qrels, Topic
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval import bm25, fusion, names
from ccpretrieve.retrieval.bm25 import Bm25
from ccpretrieve.retrieval.dense import Dense
from ccpretrieve.retrieval.runfile import Run

DEPTH = 100  # that each part is searched to at least

logger = logging.getLogger(__name__)


class Hybrid:
    """A dense and a BM25 index of one corpus that are searched together.

    Args:
        dense: Searches vectors.
        lexical: Searches words.
        method: How their rankings are fused; see :mod:`.fusion`.
        weight: Of the fusion; None for its default.

    Attributes:
        dense: See above.
        lexical: See above.
        method: See above.
        weight: What was given or :meth:`tune` has chosen.
        tuned_on: What it was chosen on, for the sidecar; None if it was not.

    Raises:
        UserError: If the two are of different corpora.
    """

    def __init__(
        self, dense: Dense, lexical: Bm25, method: str, weight: float | None = None
    ) -> None:
        refuse_another_corpus(dense.index.path, dense.meta, lexical.path, lexical.meta)
        self.dense = dense
        self.lexical = lexical
        self.method = method
        self.weight = weight
        self.tuned_on: Mapping[str, Any] | None = None

    def search(self, topics: Sequence[Topic], hits: int) -> Run:
        """Find passages for questions, each part to a depth of 100 at least.

        Args:
            topics: The questions, each id once.
            hits: Most passages a question.

        Returns:
            Topic id -> passage id -> fused score, the best first.
        """
        return fusion.fuse(*self._parts(topics, hits), self.method, self.weight, hits)

    def tune(
        self, topics: Sequence[Topic], qrels: Qrels, where: Mapping[str, Any], hits: int = DEPTH
    ) -> None:
        """Choose the weight that is best for judged topics.

        Args:
            topics: Questions, other than those to be searched.
            qrels: Their judgements.
            where: What these are, for the sidecar.
            hits: That will be searched; lists of another depth have other weights.

        Raises:
            UserError: If none of them is judged.
        """
        asked = [topic for topic in topics if qrels.get(topic.id)]
        metric, before = f"mrr@{DEPTH}", self.dense.truncated
        self.weight = fusion.tune(qrels, *self._parts(asked, hits), self.method, metric)
        self.dense.truncated = before  # counts those that are searched
        self.tuned_on = {**where, "topics": len(asked), "metric": metric}

    def passages(self, docids: Collection[str]) -> dict[str, Passage]:
        """The passages of these ids; empty where the shards of the dense index are not at hand."""
        found = self.dense.index.passages(list(self.dense.rows(docids).values()))
        return {passage.id: passage for passage in found.values()}

    def _parts(self, topics: Sequence[Topic], hits: int) -> tuple[Run, Run]:
        depth = max(hits, DEPTH)
        return self.dense.search(topics, depth), self.lexical.search(topics, depth)


Searcher = Dense | Bm25 | Hybrid


def find_lexical(name: str, corpus: str, source: str) -> Path | None:
    """The folder of a BM25 index.

    Args:
        name: ``bm25``, a folder, or what Pyserini calls an index.
        corpus: Name of the corpus that is searched; empty if unknown.
        source: What the user calls it.

    Returns:
        The folder; None if the name is Pyserini's.

    Raises:
        UserError: If the corpus has no BM25 index, with the command that makes it.
    """
    if name != bm25.TAG:
        return Path(name) if Path(name).is_dir() else None
    if not corpus:
        raise UserError(f"--hybrid {name}: of which corpus? name it by --corpus")
    folder = names.index_folder(corpus, bm25.TAG)
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such index; make it: python -m ccpretrieve.index --lexical --corpus "
            f"{source}"
        )
    return folder


def refuse_another_corpus(
    dense: Path,
    dense_meta: Mapping[str, Any] | None,
    lexical: Path,
    lexical_meta: Mapping[str, Any],
) -> None:
    """Fail if two indexes say that they are of different passages.

    Raises:
        UserError: Naming both.
    """
    one = dense_meta["corpus"].get("fingerprint") if dense_meta else None
    two = lexical_meta["corpus"].get("fingerprint")
    if one is None or two is None:
        silent = dense if one is None else lexical
        logger.warning("%s: does not say of which passages it is; not compared", silent)
    elif one != two:
        raise UserError(
            f"{lexical}: holds other passages ({lexical_meta['corpus']['name']}, {two[:12]}) than "
            f"{dense} ({one[:12]}); remove the older one and make it again"
        )


def tag_of(searcher: Searcher, given: str | None = None) -> str:
    """Last column of a run; of a hybrid that of the dense part and ``bm25``.

    Args:
        searcher: What is searched.
        given: Takes the place of the index' own.

    Raises:
        UserError: If it cannot be part of a file name.
    """
    if isinstance(searcher, Hybrid):
        return f"{tag_of(searcher.dense, given)}-{bm25.TAG}"
    return names.check_tag(given or names.tag_in(folders(searcher)[0], searcher.meta))


def folders(searcher: Searcher) -> list[Path]:
    """Where its indexes are."""
    if isinstance(searcher, Hybrid):
        return [*folders(searcher.dense), *folders(searcher.lexical)]
    return [searcher.path if isinstance(searcher, Bm25) else searcher.index.path]


def describe(searcher: Searcher, hits: int) -> dict[str, Any]:
    """What a sidecar says of a search.

    Args:
        searcher: What was searched.
        hits: That were asked for.
    """
    if isinstance(searcher, Bm25):
        return {
            "corpus": searcher.meta["corpus"],
            "index": str(searcher.path),
            "kind": bm25.TAG,
            "analyzer": searcher.meta["analyzer"],
            "k1": searcher.k1,
            "b": searcher.b,
        }
    if isinstance(searcher, Dense):
        index, content = searcher.index, searcher.meta
        return {
            "corpus": content["corpus"] if content else None,
            "index": str(index.path),
            "kind": content["index"]["kind"] if content else None,
            "encoder": content["encoder"] if content else index.encoder.name,
            "truncated_questions": searcher.truncated,
        }
    return {**describe(searcher.dense, hits), "fusion": _describe_fusion(searcher, hits)}


def _describe_fusion(hybrid: Hybrid, hits: int) -> dict[str, Any]:
    dense, lexical = fusion.weights(hybrid.method, hybrid.weight)
    depth = max(hits, DEPTH)
    return {
        "method": hybrid.method,
        "formula": fusion.formula(hybrid.method, hybrid.weight),
        "weights": {"dense": dense, "lexical": lexical},
        "tuned_on": hybrid.tuned_on,
        "dense": {"tag": tag_of(hybrid.dense), "depth": depth},
        "lexical": {"tag": bm25.TAG, "depth": depth, **describe(hybrid.lexical, hits)},
    }
