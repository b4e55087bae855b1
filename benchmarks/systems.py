"""The systems that a benchmark compares on one corpus: dense, BM25, and both fused.

    dense     encode, search                            runs/<topics>.<tag>.trec
    bm25      index --lexical, search                   runs/<topics>.bm25.trec
    hybrid    of the two runs above, :mod:`.fusion`     runs/<topics>.<tag>-bm25.trec

by the functions of those commands, so that what is there is not done again; an encoder is opened
once for all corpora, and a corpus is counted once for each index. Unless a weight is given or is
the default, it is chosen on other questions than those it is scored on: of another split, or of the
other half.
"""

import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve import encode, index, search
from ccpretrieve.config import EncodeConfig, EncoderConfig, IndexConfig
from ccpretrieve.data.census import Census, take_census
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.records import Qrels
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.files import read_json
from ccpretrieve.retrieval import bm25, fusion, hybrid, names
from ccpretrieve.retrieval.bm25 import Bm25
from ccpretrieve.retrieval.faiss_index import Index
from ccpretrieve.retrieval.hybrid import METRIC
from ccpretrieve.retrieval.runfile import (
    Run,
    digest,
    is_made_by,
    read_run,
    read_sidecar,
    write_run,
)
from ccpretrieve.search_config import RRF, SearchConfig

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

DENSE, BM25, HYBRID = SYSTEMS = ("dense", "bm25", "hybrid")
HALVES = "halves"
DEPTH = 100  # hits of a run
#: What a sidecar says of a search that is not said of what was searched.
_OF_THE_SEARCH = {
    *("topics", "split", "questions", "hits", "topic_count", "unanswered", "sha256"),
}

logger = logging.getLogger("ccpretrieve.benchmarks")


@dataclass(frozen=True)
class Searched:
    """A run on disk.

    Attributes:
        run: The file.
        passages: In the index.
    """

    run: Path
    passages: int


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How the systems are made and searched on one corpus; remembers what is made.

    Attributes:
        corpus: Name or folder.
        split: Of its topics.
        settings: Those that `encode` is handed on.
        fusion: rrf, minmax, zscore or alpha.
        weight: Of the fusion; None for its default, or what ``tune`` finds.
        tune: A split, or ``halves``; None to tune nothing.
        encoders: By name, those that are open; of several corpora one and the same.
    """

    corpus: str
    split: str
    settings: EncoderConfig
    fusion: str = RRF
    weight: float | None = None
    tune: str | None = None
    encoders: "dict[str, Encoder]" = field(default_factory=dict)
    _folders: dict[str, Path] = field(default_factory=dict, init=False)

    @functools.cached_property
    def opened(self) -> Corpus:
        """The corpus."""
        return open_corpus(self.corpus, self.settings.data_dir)

    @functools.cached_property
    def census(self) -> Census:
        """What one reading of the corpus found, as `encode` takes it."""
        return take_census(self.opened)

    def encoding(self, encoder: str, tag: str) -> EncodeConfig:
        """What `encode` is told."""
        return EncodeConfig(corpus=self.corpus, encoder=encoder, tag=tag, **self.settings.shared())

    def encoder(self, name: str, tag: str) -> "Encoder":
        """An encoder, opened on first use."""
        if name not in self.encoders:
            self.encoders[name] = encode.load_encoder(self.encoding(name, tag))
        return self.encoders[name]

    def dense(self, encoder: str, tag: str, split: str | None = None) -> Searched:
        """Encode and search, as far as that is not done."""
        if tag not in self._folders:
            opened = self.encoder(encoder, tag)
            self._folders[tag] = Path(encode.run(self.encoding(encoder, tag), opened, self.census))
        folder = self._folders[tag]

        def searcher() -> Index:
            found = Index.load(folder)
            found.encoder = self.encoder(encoder, tag)
            return found

        made = read_json(folder / "meta.json")
        expected = {"encoder": made["encoder"], "kind": made["index"]["kind"]}
        run = self._searched(folder, tag, split, searcher, {"corpus": made["corpus"], **expected})
        return Searched(run, int(made["index"]["count"]))

    def bm25(self, split: str | None = None) -> Searched:
        """Index the words and search, as far as that is not done."""
        if bm25.TAG not in self._folders:
            self._folders[bm25.TAG] = index.run(
                IndexConfig(
                    lexical=True,
                    corpus=self.corpus,
                    data_dir=self.settings.data_dir,
                    quiet=self.settings.quiet,
                )
            )
        folder = self._folders[bm25.TAG]
        made = bm25.read(folder)
        expected = {"corpus": made["corpus"], "analyzer": made["analyzer"]}
        expected |= {"k1": bm25.K1, "b": bm25.B}
        run = self._searched(folder, bm25.TAG, split, lambda: Bm25.open(folder), expected)
        return Searched(run, int(made["corpus"]["passages"]))

    def hybrid(self, encoder: str, tag: str) -> Searched:
        """Fuse the runs of the two; its sidecar says what that of ``search --hybrid`` says."""
        parts = self.dense(encoder, tag), self.bm25()
        dense, lexical = (read_run(part.run) for part in parts)
        fused, weight = self._fused(encoder, tag, dense, lexical)
        topics = self.opened.topics(self.split)
        one, two = (_searched_index(part.run) for part in parts)
        tag = f"{tag}-{bm25.TAG}"
        made_by = {
            "topics": self.corpus,
            "split": self.split,
            "questions": digest(topics),
            "tag": tag,
            "hits": DEPTH,
            **hybrid.describe_fusion(one, two, self.fusion, weight, DEPTH),
        }
        path = self._path(tag, self.split)
        write_run(path, {topic.id: fused.get(topic.id, {}) for topic in topics}, tag, made_by)
        return Searched(path, parts[0].passages)

    def _fused(
        self, encoder: str, tag: str, dense: Run, lexical: Run
    ) -> tuple[Run, dict[str, Any]]:
        """The fused run, and what a sidecar says of its weight."""
        corpus, method = self.opened, self.fusion
        topics = corpus.topics(self.split)
        if self.tune == HALVES:
            ids = [topic.id for topic in topics]
            qrels = corpus.qrels(self.split)
            run, weights = crossfit(ids, qrels, dense, lexical, method)
            where = {"corpus": corpus.name, "split": self.split}
            return run, describe_halves(where, ids, qrels, method, weights)
        weight, tuned_on = self.weight, None
        if self.tune is not None:
            qrels = corpus.qrels(self.tune)
            known = hybrid.judged(corpus.topics(self.tune), qrels, topics, f"--tune {self.tune}")
            one = read_run(self.dense(encoder, tag, self.tune).run)
            two = read_run(self.bm25(self.tune).run)
            weight = fusion.tune(qrels, one, two, method, METRIC)
            where = {"corpus": corpus.name, "split": self.tune}
            tuned_on = hybrid.describe_questions(where, len(known))
        run = fusion.fuse(dense, lexical, method, weight, DEPTH)
        return run, hybrid.describe_weight(method, weight, tuned_on)

    def _path(self, tag: str, split: str) -> Path:
        return names.run_file(f"{self.opened.name}.{split}", tag)

    def _searched(
        self,
        folder: Path,
        tag: str,
        split: str | None,
        searcher: "Callable[[], Index | Bm25]",
        expected: Mapping[str, Any],
    ) -> Path:
        """The run of an index, searched unless it is there and what a search would write."""
        split, corpus = split or self.split, self.opened
        path, topics = self._path(tag, split), corpus.topics(split)
        expected = {
            "topics": self.corpus,
            "split": split,
            "questions": digest(topics),
            "hits": DEPTH,
            **expected,
        }
        if is_made_by(path, expected):
            logger.info("%s: is there already", path)
            return path
        wanted = SearchConfig(
            corpus=self.corpus, split=split, index=folder, hits=DEPTH, output=path, tag=tag
        )
        name, spoken = f"{corpus.name}.{split}", corpus.topic_language
        return search.search_topics(wanted, searcher(), name, topics, spoken)


def _searched_index(run: Path) -> dict[str, Any]:
    """What the sidecar of a run says of the index that was searched."""
    said = read_sidecar(run) or {}
    return {name: value for name, value in said.items() if name not in _OF_THE_SEARCH}


def crossfit(
    topics: Sequence[str], qrels: Qrels, dense: Run, lexical: Run, method: str
) -> tuple[Run, tuple[float, float]]:
    """Fuse each half of the questions with the weight that is best for the other.

    Args:
        topics: Ids of all questions, judged or not.
        qrels: Judgements of both halves.
        dense: Topic id -> passage id -> score.
        lexical: Likewise.
        method: minmax, zscore or alpha.

    Returns:
        The fused run, and the weights of the first and the second half.
    """
    first, second = halved(topics)
    weights: list[float] = []
    run: Run = {}
    for asked, others in ((first, second), (second, first)):
        known = _of(dense, others), _of(lexical, others)
        weight = fusion.tune(_of(qrels, others), *known, method, METRIC)
        run |= fusion.fuse(_of(dense, asked), _of(lexical, asked), method, weight, DEPTH)
        weights.append(weight)
    return run, (weights[0], weights[1])


def describe_halves(
    where: Mapping[str, Any],
    topics: Sequence[str],
    qrels: Qrels,
    method: str,
    weights: tuple[float, float],
) -> dict[str, Any]:
    """What a sidecar says of a weight for each half: of every entry, that of either half.

    Args:
        where: What the questions are: corpus, split.
        topics: Their ids.
        qrels: Their judgements.
        method: The fusion.
        weights: Of the first and the second half.
    """
    halves, called = halved(topics), ("first half", "second half")
    said = {}
    for one, other in ((0, 1), (1, 0)):
        known = sum(bool(qrels.get(topic)) for topic in halves[other])
        tuned_on = hybrid.describe_questions({**where, "part": called[other]}, known)
        said[called[one]] = hybrid.describe_weight(method, weights[one], tuned_on)
    return {
        **{key: {name: of[key] for name, of in said.items()} for key in said[called[0]]},
        "parts": {
            name: [topic for topic in topics if topic in half]
            for name, half in zip(called, halves, strict=True)
        },
    }


def halved(ids: Sequence[str]) -> tuple[set[str], set[str]]:
    """Two halves, by a hash of the id: the same whatever the order."""
    ordered = sorted(ids, key=lambda name: hashlib.sha256(name.encode()).digest())
    return set(ordered[::2]), set(ordered[1::2])


def _of(values: Mapping[str, Any], topics: set[str]) -> dict[str, Any]:
    return {topic: value for topic, value in values.items() if topic in topics}
