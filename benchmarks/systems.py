"""The systems that a benchmark compares on one corpus: dense, BM25, and both fused.

    dense     encode, search                            runs/<topics>.<tag>.trec
    bm25      index --lexical, search                   runs/<topics>.bm25.trec
    hybrid    of the two runs above, :mod:`.fusion`     runs/<topics>.<tag>-bm25.trec

by the functions of those commands, so that what is there is not done again. The weight of a fusion
is given, or chosen on other questions than those it is scored on: of another split, or of the other
half.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccpretrieve import encode, index, search
from ccpretrieve.config import RRF, EncodeConfig, IndexConfig, SearchConfig
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.records import Qrels
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.files import read_json
from ccpretrieve.retrieval import bm25, fusion, names
from ccpretrieve.retrieval.runfile import Run, digest, is_made_by, read_run, write_run

DENSE, BM25, HYBRID = SYSTEMS = ("dense", "bm25", "hybrid")
HALVES = "halves"
DEPTH = 100  # hits of a run
METRIC = f"mrr@{DEPTH}"  # that a weight is chosen by

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
    """How the systems are made and searched.

    Attributes:
        corpus: Name or folder.
        split: Of its topics.
        settings: Of `encode`, by name.
        machine: Device and the like, by name.
        data_dir: Where corpora lie.
        fusion: rrf, minmax, zscore or alpha.
        weight: Of the fusion; None for its default, or what ``tune`` finds.
        tune: A split, or ``halves``; None to tune nothing.
        quiet: Whether to say nothing.
    """

    corpus: str
    split: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    data_dir: Path | None = None
    fusion: str = RRF
    weight: float | None = None
    tune: str | None = None
    quiet: bool = False

    def opened(self) -> Corpus:
        """The corpus."""
        return open_corpus(self.corpus, self.data_dir)

    def dense(self, encoder: str, tag: str, split: str | None = None) -> Searched:
        """Encode and search, as far as that is not done."""
        shared = {"data_dir": self.data_dir, "quiet": self.quiet, **self.machine}
        folder = encode.run(
            EncodeConfig(corpus=self.corpus, encoder=encoder, tag=tag, **self.settings, **shared)
        )
        assert isinstance(folder, Path)
        return self._searched(folder, tag, split, encoder=encoder, **self.machine)

    def bm25(self, split: str | None = None) -> Searched:
        """Index the words and search, as far as that is not done."""
        folder = index.run(
            IndexConfig(lexical=True, corpus=self.corpus, data_dir=self.data_dir, quiet=self.quiet)
        )
        return self._searched(folder, bm25.TAG, split)

    def hybrid(self, encoder: str, tag: str) -> Searched:
        """Fuse the runs of the two, with a weight from other questions than are ranked."""
        parts = self.dense(encoder, tag), self.bm25()
        dense, lexical = (read_run(part.run) for part in parts)
        fused, said = self._fused(encoder, tag, dense, lexical)
        tag = f"{tag}-{bm25.TAG}"
        path = names.run_file(f"{self.opened().name}.{self.split}", tag)
        made_by = {
            "topics": self.corpus,
            "split": self.split,
            "tag": tag,
            "hits": DEPTH,
            "fusion": {**said, "runs": [str(part.run) for part in parts]},
        }
        write_run(path, fused, tag, made_by)
        return Searched(path, parts[0].passages)

    def _fused(
        self, encoder: str, tag: str, dense: Run, lexical: Run
    ) -> tuple[Run, dict[str, Any]]:
        """The fused run, and what a sidecar says of it."""
        if self.tune == HALVES:
            run, weights = crossfit(self.opened().qrels(self.split), dense, lexical, self.fusion)
            said = [fusion.formula(self.fusion, weight) for weight in weights]
            return run, {"method": self.fusion, "formula": said, "tuned_on": "the other half"}
        weight = self.weight
        if self.tune is not None:
            one = read_run(self.dense(encoder, tag, self.tune).run)
            two = read_run(self.bm25(self.tune).run)
            weight = fusion.tune(self.opened().qrels(self.tune), one, two, self.fusion, METRIC)
        run = fusion.fuse(dense, lexical, self.fusion, weight, DEPTH)
        formula = fusion.formula(self.fusion, weight)
        return run, {"method": self.fusion, "formula": formula, "tuned_on": self.tune}

    def _searched(self, folder: Path, tag: str, split: str | None, **options: Any) -> Searched:
        split = split or self.split
        corpus = self.opened()
        path = names.run_file(f"{corpus.name}.{split}", tag)
        wanted = SearchConfig(
            corpus=self.corpus,
            split=split,
            index=folder,
            hits=DEPTH,
            output=path,
            tag=tag,
            data_dir=self.data_dir,
            quiet=self.quiet,
            **options,
        )
        made = read_json(folder / "meta.json")
        expected = {
            "topics": self.corpus,
            "split": split,
            "questions": digest(corpus.topics(split)),
            "corpus": made["corpus"],
            "hits": DEPTH,
        }
        if tag == bm25.TAG:
            expected |= {"analyzer": made["analyzer"], "k1": bm25.K1, "b": bm25.B}
        else:
            expected |= {"encoder": made["encoder"], "kind": made["index"]["kind"]}
        if is_made_by(path, expected):
            logger.info("%s: is there already", path)
        else:
            search.run(wanted)
        passages = made["corpus"]["passages"] if tag == bm25.TAG else made["index"]["count"]
        return Searched(path, int(passages))


def crossfit(
    qrels: Qrels, dense: Run, lexical: Run, method: str
) -> tuple[Run, tuple[float, float]]:
    """Fuse each half of the questions with the weight that is best for the other.

    Args:
        qrels: Judgements of both halves.
        dense: Topic id -> passage id -> score.
        lexical: Likewise.
        method: minmax, zscore or alpha.

    Returns:
        The fused run, and the weights of the first and the second half.
    """
    first, second = halved(list(qrels))
    weights: list[float] = []
    run: Run = {}
    for asked, others in ((first, second), (second, first)):
        known = _of(dense, others), _of(lexical, others)
        weight = fusion.tune(_of(qrels, others), *known, method, METRIC)
        run |= fusion.fuse(_of(dense, asked), _of(lexical, asked), method, weight, DEPTH)
        weights.append(weight)
    return run, (weights[0], weights[1])


def halved(ids: Sequence[str]) -> tuple[set[str], set[str]]:
    """Two halves, by a hash of the id: the same whatever the order."""
    ordered = sorted(ids, key=lambda name: hashlib.sha256(name.encode()).digest())
    return set(ordered[::2]), set(ordered[1::2])


def _of(values: Mapping[str, Any], topics: set[str]) -> dict[str, Any]:
    return {topic: value for topic, value in values.items() if topic in topics}
