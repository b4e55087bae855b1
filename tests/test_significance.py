"""A difference is called significant only where the test says so, and the same every time."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.significance import TESTS, compare, p_values

pytestmark = pytest.mark.slow  # ranx takes seconds to import, and to compile the first time

QRELS = {f"q{t}": {"right": 1} for t in range(8)}


def run(*ranks):
    """A run with the relevant passage of each topic at the given rank."""
    return {
        f"q{t}": {"right" if r == rank else f"wrong{r}": -float(r) for r in range(1, 11)}
        for t, rank in enumerate(ranks)
    }


GOOD = run(1, 1, 2, 1, 1, 1, 2, 1)
POOR = run(5, 4, 9, 8, 6, 7, 5, 9)
PAIR = frozenset(("a", "b"))


def p_of(one, two, test):
    per_run = {"a": {"mrr": np.array(one, float)}, "b": {"mrr": np.array(two, float)}}
    return p_values(per_run, test)["mrr"][PAIR]


def test_students_test_on_a_case_worked_by_hand():
    # differences 1, 1, 1, 0: mean 3/4, standard deviation 1/2, t = (3/4) / (1/2 / sqrt 4) = 3;
    # with 3 degrees of freedom and x = t / sqrt 3, p = 1 - 2/pi (x / (1 + x^2) + arctan x)
    x = math.sqrt(3)
    p = 1 - 2 / math.pi * (x / (1 + x * x) + math.atan(x))
    assert p_of([1, 1, 1, 1], [0, 0, 0, 1], "student") == pytest.approx(p)


def test_fishers_test_on_a_case_worked_by_hand():
    # differences 1, 1, 1, 0: of the 8 ways to sign the ones, +++ and --- are as far from 0: 2/8
    assert p_of([1, 1, 1, 1], [0, 0, 0, 1], "fisher") == pytest.approx(2 / 8)


def test_tukeys_test_of_two_runs_is_the_unpaired_t_test():
    one, two = [0.1, 0.5, 0.9, 0.4], [0.0, 0.2, 0.6, 0.5]
    assert p_of(one, two, "tukey") == pytest.approx(ttest_ind(one, two).pvalue, abs=1e-6)


def test_tukeys_test_is_stricter_the_more_runs_there_are():
    rng = np.random.default_rng(0)
    per_run = {name: {"mrr": rng.random(20)} for name in "abcd"}
    two = {name: per_run[name] for name in "ab"}
    assert p_values(per_run, "tukey")["mrr"][PAIR] > p_values(two, "tukey")["mrr"][PAIR]


def test_fishers_p_values_repeat_and_are_near_students():
    rng = np.random.default_rng(0)
    one = rng.random(200)
    two = one + rng.normal(0.03, 0.2, 200)
    p = p_of(one, two, "fisher")
    assert p == p_of(one, two, "fisher") == p_of(two, one, "fisher")
    assert p == pytest.approx(ttest_rel(one, two).pvalue, abs=0.02)


@pytest.mark.parametrize("test", TESTS)
def test_the_better_run_is_marked_and_the_worse_is_not(test):
    found = compare(QRELS, {"good": GOOD, "poor": POOR}, ["mrr@100", "hits@100"], test)
    assert found.better_than("good", "mrr@100") == ["poor"]
    assert found.better_than("poor", "mrr@100") == []
    assert found.better_than("good", "hits@100") == []  # both find it always
    assert found.same("good", "poor") == ["hits@100"]


def test_a_smaller_alpha_marks_less():
    marked = [
        compare(QRELS, {"good": GOOD, "poor": POOR}, ["mrr"], alpha=alpha).better_than(
            "good", "mrr"
        )
        for alpha in (0.05, 1e-9)
    ]
    assert marked == [["poor"], []]


@pytest.mark.parametrize("test", TESTS)
def test_equal_runs_have_no_difference(test):
    found = compare(QRELS, {"a": GOOD, "b": GOOD, "c": POOR}, ["mrr", "hits"], test)
    assert found.same("a", "b") == ["mrr", "hits"]
    assert found.p_values["mrr"][PAIR] == 1
    assert found.p_values["hits"] == {
        frozenset(pair): 1 for pair in (("a", "b"), ("a", "c"), ("b", "c"))
    }
    assert found.better_than("a", "mrr") == ["c"]


@pytest.mark.parametrize("test", TESTS)
def test_a_difference_without_variance_has_a_p_value(test):
    p = p_of([0.3, 0.3, 0.3, 0.3, 0.3, 0.3], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1], test)
    # Fisher: 2 of the 2^6 ways to sign are as far from 0. The others: variance 0, so t is infinite
    assert p == pytest.approx(2 / 64 if test == "fisher" else 0, abs=1e-9)


@pytest.mark.parametrize("test", TESTS)
def test_one_run_or_one_topic_is_compared_with_nothing(test):
    assert compare(QRELS, {"a": GOOD}, ["mrr"], test).p_values == {}
    one = {"q0": QRELS["q0"]}
    found = compare(one, {"a": GOOD, "b": POOR}, ["mrr"], test)
    assert found.p_values == {}
    assert found.better_than("a", "mrr") == []


def test_an_unknown_test_is_an_error():
    with pytest.raises(UserError, match=r"unknown significance test 'studnet'.*'student'"):
        compare(QRELS, {"a": GOOD}, ["mrr"], "studnet")
