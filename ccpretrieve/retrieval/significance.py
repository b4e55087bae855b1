"""Which run is better, and whether chance could have made it so: tests over topics.

The tests are ranx', by the function behind ``ranx.compare``, but for Fisher's. ranx draws its
permutations in threads that its seed does not reach: its p-values change from call to call (0.032
to 0.049 for the same thousand topics). scipy's randomization test is the same test, repeats, and
is exact for few topics. Tukey's test allows for the number of runs compared, the other two do not.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Qrels
from ccpretrieve.errors import unknown
from ccpretrieve.retrieval.metrics import Scores, load_ranx, score
from ccpretrieve.retrieval.runfile import Run

TESTS = {
    "student": "Student's paired t-test",
    "fisher": "Fisher's randomization test",
    "tukey": "Tukey's HSD test",
}
PERMUTATIONS = 10_000


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        scores: Run name -> its scores, in the order given.
        p_values: Metric name -> pair of run names -> p-value; empty where nothing can be tested
            (a single run, or fewer than two topics).
        test: A key of ``TESTS``.
        alpha: A difference is significant below this p-value.
    """

    scores: dict[str, Scores]
    p_values: dict[str, dict[frozenset[str], float]]
    test: str
    alpha: float

    def better_than(self, name: str, metric: str) -> list[str]:
        """The runs that ``name`` is significantly better than."""
        mean = {other: scores.mean[metric] for other, scores in self.scores.items()}
        tested = self.p_values.get(metric, {})
        return [
            other
            for other in mean
            if mean[name] > mean[other]
            and tested.get(frozenset((name, other)), math.inf) < self.alpha
        ]

    def same(self, name: str, other: str) -> list[str]:
        """The metrics by which two runs score alike on every topic: there is no difference."""
        one, two = self.scores[name].per_topic, self.scores[other].per_topic
        return [
            metric
            for metric in self.scores[name].mean
            if all(one[topic][metric] == two[topic][metric] for topic in one)
        ]


def compare(
    qrels: Qrels,
    runs: Mapping[str, Run],
    metrics: Sequence[str],
    test: str = "student",
    alpha: float = 0.05,
) -> Comparison:
    """Score several runs and test the difference of every two.

    Args:
        qrels: The judgements.
        runs: Run name -> run; one is allowed, and compared with nothing.
        metrics: Names such as ``mrr@100``.
        test: student, fisher or tukey.
        alpha: A difference is significant below this p-value.

    Raises:
        UserError: As :func:`score`, or for an unknown test.
    """
    if test not in TESTS:
        raise unknown("significance test", test, TESTS)
    scores = {name: score(qrels, run, metrics) for name, run in runs.items()}
    per_run = {
        name: {
            metric: np.array([topic[metric] for topic in scored.per_topic.values()])
            for metric in scored.mean
        }
        for name, scored in scores.items()
    }
    return Comparison(scores, p_values(per_run, test), test, alpha)


def p_values(
    per_run: Mapping[str, Mapping[str, NDArray[np.float64]]], test: str
) -> dict[str, dict[frozenset[str], float]]:
    """Test every pair of runs by every metric.

    Student's and Tukey's tests are ranx'. Fisher's is scipy's: ranx' own draws its permutations in
    threads that its seed does not reach, so its p-values change from call to call (0.032 to 0.049
    was seen); scipy's is the same test, repeats, and is exact for few topics.

    Args:
        per_run: Run name -> metric name -> scores, (topics,), in the same order of topics.
        test: A key of ``TESTS``.

    Returns:
        Metric name -> pair of run names -> p-value, 1 for runs that do not differ at all; empty for
        fewer than two runs or topics.
    """
    metrics = list(next(iter(per_run.values())))
    topics = len(next(iter(per_run.values()))[metrics[0]])
    if len(per_run) < 2 or topics < 2:
        return {}
    pairs = [frozenset(pair) for pair in combinations(per_run, 2)]
    if test == "fisher":
        return {
            metric: {
                pair: _fisher(*(per_run[name][metric] for name in sorted(pair))) for pair in pairs
            }
            for metric in metrics
        }
    with warnings.catch_warnings():  # zero variance; its outcome is dealt with below
        warnings.simplefilter("ignore", RuntimeWarning)
        tested: Any = load_ranx().statistical_tests.compute_statistical_significance(
            list(per_run), {name: dict(values) for name, values in per_run.items()}, test
        )
    return {
        metric: {pair: _number(tested[pair][metric]["p_value"]) for pair in pairs}
        for metric in metrics
    }


def _number(p_value: float) -> float:
    """A p-value without NaN, which both tests give for 0 / 0: no difference and no variance."""
    return 1.0 if math.isnan(p_value) else float(p_value)


def _fisher(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Two-sided randomization test of the mean difference: each topic's sign is a coin."""
    from scipy.stats import permutation_test

    result = permutation_test(
        (one - two,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=PERMUTATIONS,
        batch=500,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)
