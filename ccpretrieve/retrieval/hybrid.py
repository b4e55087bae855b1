"""Dense and lexical search of one corpus as one search, and what any of the three says of itself.

topics --Dense--> run, topics --Bm25--> run, both --fuse--> run
"""

import logging
import mmap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ccpretrieve.data.records import Qrels, Topic
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval import bm25, fusion, names
from ccpretrieve.retrieval.bm25 import Bm25
from ccpretrieve.retrieval.dense import Dense
from ccpretrieve.retrieval.faiss_index import DOCID, Hit
from ccpretrieve.retrieval.runfile import Run

DEPTH = 100  # that each part is searched to at least
METRIC = f"mrr@{DEPTH}"  # that a weight is chosen by
_BLOCK = 1 << 24  # bytes of a file of ids that are counted together

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
            topics: Judged questions, other than those to be searched.
            qrels: Their judgements.
            where: What these are, for the sidecar.
            hits: That will be searched; lists of another depth have other weights.

        Raises:
            UserError: If none of them is judged.
        """
        before = self.dense.truncated
        self.weight = fusion.tune(qrels, *self._parts(topics, hits), self.method, METRIC)
        self.dense.truncated = before  # counts those that are searched
        self.tuned_on = describe_questions(where, len(topics))

    def answer(self, question: str, hits: int, language: str = "") -> list[Hit]:
        """Find passages for one question, with their text where the dense index has it at hand.

        Args:
            question: Its words.
            hits: Most passages.
            language: Of the question, for a calibration.

        Returns:
            The passages, the best first; the row of one that BM25 alone found is looked up.
        """
        index, depth = self.dense.index, max(hits, DEPTH)
        vectors = index.encoder.encode_queries([question], language=language)
        ((scores,), (places,)) = index.search_vectors(vectors, depth)
        real = places >= 0
        rows = dict(zip(index.docids.take(places[real]), places[real].tolist(), strict=True))
        dense = {"": dict(zip(rows, scores[real].tolist(), strict=True))}
        lexical = self.lexical.search([Topic("", question)], depth)
        found = fusion.fuse(dense, lexical, self.method, self.weight, hits)[""]
        if self.dense.meta is not None:  # else there are no texts
            rows |= _rows(index.path / DOCID, found.keys() - rows.keys())
        texts = index.passages([rows[docid] for docid in found if docid in rows])
        return [
            Hit(docid, score, rows.get(docid, -1), texts.get(rows.get(docid, -1)))
            for docid, score in found.items()
        ]

    def _parts(self, topics: Sequence[Topic], hits: int) -> tuple[Run, Run]:
        depth = max(hits, DEPTH)
        return self.dense.search(topics, depth), self.lexical.search(topics, depth)


def _rows(ids: Path, wanted: Collection[str]) -> dict[str, int]:
    """The lines of ids in a file of them, from 0; its bytes are searched, and none is decoded."""
    rows = {}
    with (
        ids.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for docid in wanted:
            line = f"\n{docid}\n".encode()
            first = content[: len(line) - 1] == line[1:]
            end = 0 if first else content.find(line) + 1
            if first or end:
                blocks = range(0, end, _BLOCK)
                rows[docid] = sum(content[at : min(at + _BLOCK, end)].count(b"\n") for at in blocks)
    return rows


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


def judged(
    topics: Sequence[Topic], qrels: Qrels, searched: Sequence[Topic], flag: str
) -> list[Topic]:
    """The questions that a weight can be tuned on.

    Args:
        topics: Questions.
        qrels: Their judgements.
        searched: Those that are to be ranked with that weight.
        flag: Which the user named the questions by.

    Raises:
        UserError: If one is to be ranked with it, under whatever name of a split.
    """
    asked = {(topic.id, topic.text) for topic in searched}
    known = [topic for topic in topics if qrels.get(topic.id)]
    if same := sum((topic.id, topic.text) in asked for topic in known):
        raise UserError(f"{flag}: holds {same} of the questions that are searched; tune on others")
    return known


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
    return describe_fusion(
        {"tag": tag_of(searcher.dense), **describe(searcher.dense, hits)},
        describe(searcher.lexical, hits),
        searcher.method,
        describe_weight(searcher.method, searcher.weight, searcher.tuned_on),
        max(hits, DEPTH),
    )


def describe_questions(where: Mapping[str, Any], judged: int) -> dict[str, Any]:
    """What a sidecar says of the questions that a weight was tuned on.

    Args:
        where: What they are: corpus, split.
        judged: How many of them.
    """
    return {**where, "topics": judged, "metric": METRIC}


def describe_weight(
    method: str, weight: float | None, tuned_on: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a sidecar says of the weight of a fusion.

    Args:
        method: The fusion.
        weight: Its weight; None for its default.
        tuned_on: The questions it was chosen on; None if it was not.
    """
    dense, lexical = fusion.weights(method, weight)
    return {
        "formula": fusion.formula(method, weight),
        "weights": {"dense": dense, "lexical": lexical},
        "tuned_on": tuned_on,
    }


def describe_fusion(
    dense: Mapping[str, Any],
    lexical: Mapping[str, Any],
    method: str,
    weight: Mapping[str, Any],
    depth: int,
) -> dict[str, Any]:
    """What a sidecar says of a fused search: all of the dense part, and how BM25's joins it.

    Args:
        dense: What :func:`describe` says of that part, and its tag.
        lexical: What :func:`describe` says of that part.
        method: The fusion.
        weight: As :func:`describe_weight` says it.
        depth: To which each part was searched.
    """
    return {
        **{name: value for name, value in dense.items() if name != "tag"},
        "fusion": {
            "method": method,
            **weight,
            "dense": {"tag": dense["tag"], "depth": depth},
            "lexical": {"tag": bm25.TAG, "depth": depth, **lexical},
        },
    }
