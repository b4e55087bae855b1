"""Hybrid rankings: what a dense and a lexical (BM25) search found, ranked as one list.

With d and l the scores of a passage in the two lists of a question, the best first:

    rrf      1 / (60 + rank of d) + 1 / (60 + rank of l)       Cormack, Clarke, Buettcher 2009
    minmax   w n(d) + (1 - w) n(l),  n(s) = (s - lowest) / (highest - lowest)
    zscore   w z(d) + (1 - w) z(l),  z(s) = (s - mean) / standard deviation
    alpha    d + alpha l                                       the Mr.TyDi paper, Pyserini

A passage that is in one list only gets from the other 0 (rrf, minmax) or what the last of that list
gets (zscore, alpha; Pyserini's ``HybridSearcher`` does so). Where all scores of a list are equal,
as with a single hit, n is 1 and z is 0. A question that one of the searches does not answer keeps
the other's list, by its term alone with no weight; so no ranking is lost to a weight of 0.

Scores count as a run file keeps them, as 32-bit floats, and ties are broken as trec_eval breaks
them (:func:`.runfile.ordered`), so that lists give the same ranking from memory and from files.

These are the fusions that ranx calls ``rrf`` and ``wsum`` (with ``min-max`` and ``zmuv``), and a
test says so. They are not computed by ranx: it compiles for 80 CPU seconds to add two numbers a
passage, orders ties arbitrarily, makes 0 of all scores that are equal, and gives a passage that a
list does not have the z of that list's mean, above half of what the list does have.
"""

import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.config import between, one_of
from ccpretrieve.data.records import Qrels
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.runfile import Run, ordered
from ccpretrieve.search_config import ALPHA, FUSIONS, MINMAX, RRF, ZSCORE

K = 60  # of rrf
#: Weights where nobody names one: halves; of alpha, Pyserini's.
DEFAULT = {MINMAX: 0.5, ZSCORE: 0.5, ALPHA: 0.1}
_TENTHS = tuple(step / 10 for step in range(11))
#: Weights that are tried. How large alpha has to be depends on the encoder: its scores may lie
#: between 0.7 and 0.9, or about 80, and BM25's go to some 30.
GRID = {
    MINMAX: _TENTHS,
    ZSCORE: _TENTHS,
    ALPHA: (0.0, *(float(f"{n}e{power}") for power in (-3, -2, -1, 0) for n in (1, 2, 5)), 10.0),
}

logger = logging.getLogger(__name__)
Scores = NDArray[np.float64]


class _Terms(NamedTuple):
    """What is added for one question.

    Attributes:
        passages: The union of both lists, P ids.
        dense: Its terms, shape (P,); None where that search found nothing.
        lexical: Likewise.
    """

    passages: list[str]
    dense: Scores | None
    lexical: Scores | None


def fuse(
    dense: Mapping[str, Mapping[str, float]],
    lexical: Mapping[str, Mapping[str, float]],
    method: str,
    weight: float | None = None,
    hits: int | None = None,
) -> Run:
    """Rank what two searches found as one list a question.

    Args:
        dense: Topic id -> passage id -> score, in any order.
        lexical: Likewise; a topic that one of the two does not have has no hits there.
        method: rrf, minmax, zscore or alpha.
        weight: Share of the dense scores, 0 to 1; for alpha, the factor of the lexical ones, from
            0. None for that of ``DEFAULT``; rrf has none.
        hits: Most passages a question; None for all.

    Returns:
        Topic id -> passage id -> score, the best first; topics in the order of ``dense``, then
        those of ``lexical`` alone.

    Raises:
        UserError: If there is no such method, the weight cannot be its, or a score is not finite.
    """
    shares = weights(method, weight)
    return _ranked(_prepared(dense, lexical, method), shares, hits)


def tune(
    qrels: Qrels,
    dense: Mapping[str, Mapping[str, float]],
    lexical: Mapping[str, Mapping[str, float]],
    method: str,
    metric: str = "mrr@100",
) -> float:
    """The weight of ``GRID`` that ranks judged topics best.

    Among weights that are equally good, the one nearest to that of ``DEFAULT``, then the smaller.

    Args:
        qrels: Judgements; topics that neither search has been asked count for nothing.
        dense: As in :func:`fuse`.
        lexical: As in :func:`fuse`.
        method: minmax, zscore or alpha.
        metric: As in :mod:`.metrics`.

    Raises:
        UserError: If the method has no weight, or no topic of the runs is judged.
    """
    from ccpretrieve.retrieval.metrics import score

    one_of("fusion with a weight", method, tuple(GRID))
    searched = dense.keys() | lexical.keys()
    judged = {topic: grades for topic, grades in qrels.items() if topic in searched}
    if not any(judged.values()):
        raise UserError("no topic that was searched is judged; tune on topics that are")
    one, two = ({topic: run.get(topic, {}) for topic in judged} for run in (dense, lexical))
    terms = _prepared(one, two, method)
    reached = {}
    for weight in GRID[method]:
        run = _ranked(terms, weights(method, weight), None)
        (mean,) = score(judged, run, [metric]).mean.values()
        reached[weight] = round(mean, 9)  # equal to rounding is equal
    best = max(reached.values())
    chosen = min(
        (weight for weight, mean in reached.items() if mean == best),
        key=lambda weight: (abs(weight - DEFAULT[method]), weight),
    )
    logger.info("%s: weight %g, %s %.4f on %d topics", method, chosen, metric, best, len(judged))
    return chosen


def weights(method: str, weight: float | None = None) -> tuple[float, float]:
    """What the dense and the lexical term are multiplied with.

    Raises:
        UserError: If there is no such method, or the weight cannot be its.
    """
    one_of("fusion", method, FUSIONS)
    if method == RRF:
        if weight is not None:
            raise UserError(f"rrf has no weight, got {weight:g}")
        return 1.0, 1.0
    between(f"the weight of {method}", weight, math.inf if method == ALPHA else 1)
    given = DEFAULT[method] if weight is None else weight
    return (1.0, given) if method == ALPHA else (given, round(1 - given, 12))


def formula(method: str, weight: float | None = None) -> str:
    """A fusion in words, as a sidecar states it.

    Raises:
        UserError: As :func:`weights` does.

    >>> print(formula("alpha", 0.2).split(";")[0])
    score = dense + 0.2 * lexical
    """
    dense, lexical = weights(method, weight)
    said = {
        RRF: f"1 / ({K} + rank in dense) + 1 / ({K} + rank in lexical); a passage missing from a "
        "list gets 0",
        MINMAX: f"{dense:g} * n(dense) + {lexical:g} * n(lexical); n(s) = (s - lowest) / "
        "(highest - lowest) of the question's list, 1 if all are equal; a passage missing from a "
        "list gets 0",
        ZSCORE: f"{dense:g} * z(dense) + {lexical:g} * z(lexical); z(s) = (s - mean) / standard "
        "deviation of the question's list, 0 if all are equal; a passage missing from a list gets "
        "its lowest z",
        ALPHA: f"dense + {lexical:g} * lexical; a passage missing from a list gets its lowest "
        "score",
    }
    return (
        f"score = {said[method]}; a question that only one list answers keeps that term, unweighted"
    )


def _prepared(
    dense: Mapping[str, Mapping[str, float]],
    lexical: Mapping[str, Mapping[str, float]],
    method: str,
) -> dict[str, _Terms]:
    """Topic id -> its terms, which no weight changes."""
    prepared = {}
    for topic in [*dense, *(topic for topic in lexical if topic not in dense)]:
        lists = [dict(ordered(run.get(topic, {}))) for run in (dense, lexical)]
        passages = list(dict.fromkeys(passage for each in lists for passage in each))
        terms = [_term(method, each, passages) if each else None for each in lists]
        prepared[topic] = _Terms(passages, *terms)
    return prepared


def _term(method: str, scores: Mapping[str, float], passages: list[str]) -> Scores:
    """What a list adds to each passage, before it is weighted; shape (P,).

    Args:
        method: The fusion.
        scores: Passage id -> score, the best first, at least one.
        passages: P ids, those of the list among them.
    """
    values = np.array(list(scores.values()))
    equal = values[0] == values[-1]
    if method == RRF:
        values, missing = 1 / (K + 1 + np.arange(len(values))), 0.0
    elif method == MINMAX:
        span = values[0] - values[-1]
        values, missing = np.ones_like(values) if equal else (values - values[-1]) / span, 0.0
    elif method == ZSCORE:
        values = np.zeros_like(values) if equal else (values - values.mean()) / values.std()
        missing = float(values[-1])
    else:
        missing = float(values[-1])
    known = dict(zip(scores, values.tolist(), strict=True))
    return np.array([known.get(passage, missing) for passage in passages])


def _ranked(prepared: Mapping[str, _Terms], shares: tuple[float, float], hits: int | None) -> Run:
    """Add the weighted terms of every topic."""
    run: Run = {}
    for topic, (passages, dense, lexical) in prepared.items():
        if dense is None or lexical is None:
            found = dense if dense is not None else lexical
            total = found if found is not None else np.empty(0)
        else:
            total = shares[0] * dense + shares[1] * lexical
        run[topic] = dict(ordered(dict(zip(passages, total.tolist(), strict=True)))[:hits])
    return run
