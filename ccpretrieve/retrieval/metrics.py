"""How good a ranking is: MRR, Recall, nDCG and hits, equal to trec_eval's, by ranx.

With r_1, r_2, ... the grades of the hits of a topic in trec_eval's order, a hit relevant if its
grade is 1 or more, and R relevant passages judged:

    mrr@K     1 / rank of the first relevant hit among the first K, else 0    recip_rank (cut)
    recall@K  relevant hits among the first K / R                             recall_K
    ndcg@K    sum_{i<=K} r_i / log2(i + 1), over that of the ideal ranking    ndcg_cut_K
    hits@K    1 if any of the first K is relevant, else 0                     success_K

Without ``@K`` the whole run counts. Means are those of ``trec_eval -c``: every judged topic counts,
with 0 if the run has no hit for it, and with 0 if none of its judgements is relevant; only a topic
without any judgement is left out. All of these are reported.

ranx counts; what it is given leaves it nothing to guess (each of these was seen to go wrong):
topics are paired by position here, hits are ordered here, and passages are numbers instead of
strings: ranx compiles anew for every length of the longest id, and orders ties arbitrarily.
"""

import re
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Qrels
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.retrieval.runfile import Run, ordered

MEASURES = {"mrr": "MRR", "recall": "Recall", "ndcg": "nDCG", "hits": "Hits"}
RANX_NAMES = {"mrr": "reciprocal_rank", "recall": "recall", "ndcg": "ndcg", "hits": "hit_rate"}
TOPICS_AT_ONCE = 512  # bounds the memory of the padded arrays
NOT_RELEVANT, NO_JUDGEMENT = -1.0, -2.0  # numbers of passages that can match nothing


class Metric(NamedTuple):
    """A measure and the rank it is cut at.

    Attributes:
        measure: A key of ``MEASURES``.
        cutoff: Hits that count; None for all.
    """

    measure: str
    cutoff: int | None

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """Read ``mrr@100`` or ``mrr``.

        Raises:
            UserError: If there is no such measure, or the cut-off is not a whole number from 1.
        """
        measure, at, cutoff = name.lower().partition("@")
        if measure not in MEASURES:
            known = [f"{each}{at}{cutoff}" for each in MEASURES]
            forms = ", ".join(f"{each}@K" for each in MEASURES)
            raise unknown("metric", name, known, f"allowed: {forms}, such as mrr@100")
        if at and not re.fullmatch("[1-9][0-9]{0,8}", cutoff):
            raise UserError(f"metric {name!r}: after @ comes a whole number from 1, as in mrr@100")
        return cls(measure, int(cutoff) if at else None)

    @property
    def name(self) -> str:
        """``mrr@100``."""
        return self.measure if self.cutoff is None else f"{self.measure}@{self.cutoff}"

    @property
    def label(self) -> str:
        """``MRR@100``, as tables spell it."""
        return self.name.replace(self.measure, MEASURES[self.measure])


def parse_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Read metric names, each once.

    Raises:
        UserError: If there is none, or one is wrong.
    """
    if not names:
        raise UserError("no metric given; name some of " + ", ".join(f"{m}@K" for m in MEASURES))
    return tuple(dict.fromkeys(map(Metric.parse, names)))


@dataclass(frozen=True)
class Scores:
    """How good a run is.

    Attributes:
        per_topic: Topic -> metric name -> score; every judged topic, in the judgements' order.
        mean: Metric name -> mean over ``per_topic``.
        unanswered: Judged topics without a hit; each counts 0.
        without_relevant: Judged topics none of whose judgements is relevant; each counts 0.
        left_out: Topics that the judgements name but say nothing about; they do not count.
        unjudged: Topics of the run that have no judgement; they do not count.
    """

    per_topic: dict[str, dict[str, float]]
    mean: dict[str, float]
    unanswered: tuple[str, ...]
    without_relevant: tuple[str, ...]
    left_out: tuple[str, ...]
    unjudged: tuple[str, ...]


def score(qrels: Qrels, run: Run, metrics: Sequence[str]) -> Scores:
    """Score a run against judgements.

    Raises:
        UserError: If no topic has a judgement, a metric is unknown, or a score is not finite.
    """
    parsed = parse_metrics(metrics)
    topics = [topic for topic, grades in qrels.items() if grades]
    if not topics:
        raise UserError("the judgements hold no judged topic; nothing can be scored")
    chunks = [topics[i : i + TOPICS_AT_ONCE] for i in range(0, len(topics), TOPICS_AT_ONCE)]
    values = np.concatenate([_values(qrels, run, chunk, parsed) for chunk in chunks], axis=1)
    names = [metric.name for metric in parsed]
    return Scores(
        per_topic={
            topic: dict(zip(names, column, strict=True))
            for topic, column in zip(topics, values.T.tolist(), strict=True)
        },
        mean=dict(zip(names, values.mean(axis=1).tolist(), strict=True)),
        unanswered=tuple(topic for topic in topics if not run.get(topic)),
        without_relevant=tuple(topic for topic in topics if max(qrels[topic].values()) < 1),
        left_out=tuple(topic for topic, grades in qrels.items() if not grades),
        unjudged=tuple(topic for topic in run if not qrels.get(topic)),
    )


def _values(
    qrels: Qrels, run: Run, topics: Sequence[str], metrics: Sequence[Metric]
) -> NDArray[np.float64]:
    """Scores of some topics: (metrics, topics)."""
    functions = load_ranx().metrics
    cutoffs = [metric.cutoff for metric in metrics]
    depth = None if None in cutoffs else max(cutoff for cutoff in cutoffs if cutoff)
    judged, ranked = _numbered(qrels, run, topics, depth)
    return np.stack(
        [
            getattr(functions, RANX_NAMES[metric.measure])(judged, ranked, metric.cutoff or 0)
            for metric in metrics
        ]
    )


def _numbered(
    qrels: Qrels, run: Run, topics: Sequence[str], depth: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Judgements and hits as ranx counts them, padded with passages that match nothing.

    The relevant passages of a topic are numbered from 0, best grade first; all others are alike.

    Returns:
        (topics, most relevant, 2): number and grade, grades falling as ranx' ideal ranking needs;
        (topics, most hits, 2): number and a score that falls strictly, so that nothing ties.
    """
    relevant = [
        sorted(((d, g) for d, g in qrels[topic].items() if g >= 1), key=lambda pair: -pair[1])
        for topic in topics
    ]
    hits = [ordered(run.get(topic, {}))[:depth] for topic in topics]
    judged = np.full((len(topics), max(1, *map(len, relevant), 1), 2), [NO_JUDGEMENT, 0.0])
    ranked = np.full((len(topics), max(1, *map(len, hits), 1), 2), [NOT_RELEVANT, 0.0])
    ranked[:, :, 1] = -np.arange(ranked.shape[1])
    for row, (pairs, found) in enumerate(zip(relevant, hits, strict=True)):
        number = {docid: float(n) for n, (docid, _) in enumerate(pairs)}
        judged[row, : len(pairs), 0] = np.arange(len(pairs))
        judged[row, : len(pairs), 1] = [grade for _, grade in pairs]
        ranked[row, : len(found), 0] = [number.get(docid, NOT_RELEVANT) for docid, _ in found]
    return judged, ranked


def load_ranx() -> types.ModuleType:
    """Import ranx; its own source has escape sequences that Python warns about on compiling it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="invalid escape sequence")
        import ranx
        import ranx.metrics
        import ranx.statistical_tests
    return ranx  # type: ignore[no-any-return]
