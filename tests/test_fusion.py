"""Fusion: every formula by hand, whatever the order and the ids; nothing is lost, nothing NaN."""

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ccpretrieve.errors import UserError
from ccpretrieve.retrieval import fusion
from ccpretrieve.retrieval.fusion import formula, fuse, tune
from ccpretrieve.retrieval.runfile import ordered, read_run, write_run
from ccpretrieve.search_config import FUSIONS

# Ranks in dense: a 1, b 2, c 3; in lexical: b 1, d 2, c 3.
DENSE = {"q": {"a": 0.9, "b": 0.8, "c": 0.5}}
LEXICAL = {"q": {"b": 12.0, "d": 8.0, "c": 4.0}}
WEIGHTED = [method for method in FUSIONS if method != "rrf"]


def random_runs(seed, topics=7, depth=30):
    """Two runs that share some passages and tie often."""
    rng = random.Random(seed)
    names = [f"d{number}" for number in range(2 * depth)]
    return tuple(
        {
            str(topic): {name: rng.randrange(20) / 7 for name in rng.sample(names, depth)}
            for topic in range(topics)
        }
        for _ in range(2)
    )


def test_reciprocal_ranks_are_added_with_sixty():
    assert fuse(DENSE, LEXICAL, "rrf")["q"] == pytest.approx(
        {"b": 1 / 62 + 1 / 61, "c": 1 / 63 + 1 / 63, "a": 1 / 61, "d": 1 / 62}
    )


def test_min_max_scores_are_a_weighted_sum_and_the_missing_add_nothing():
    # n(dense): a 1, b (0.8 - 0.5) / 0.4 = 0.75, c 0; n(lexical): b 1, d (8 - 4) / 8 = 0.5, c 0.
    # 0.7 a = 0.7; b = 0.7 * 0.75 + 0.3 = 0.825; c = 0; d = 0.3 * 0.5 = 0.15
    fused = fuse(DENSE, LEXICAL, "minmax", 0.7)["q"]
    assert fused == pytest.approx({"b": 0.825, "a": 0.7, "d": 0.15, "c": 0.0}, abs=1e-6)
    assert list(fused) == ["b", "a", "d", "c"]


def test_z_scores_are_a_weighted_sum_and_the_missing_get_the_lowest():
    # lexical: mean 8, variance (16 + 0 + 16) / 3, so z = +-4 / sqrt(32 / 3) = +-sqrt(1.5), 0 for d.
    # dense: mean 2.2 / 3; differences 1/6, 1/15, -7/30, variance (25 + 4 + 49) / 900 / 3 = 78/2700,
    # deviation 0.169967; z: a 0.980581, b 0.392232, c -1.372813
    a, b, c, high = 0.980581, 0.392232, -1.372813, math.sqrt(1.5)
    assert fuse(DENSE, LEXICAL, "zscore", 0.25)["q"] == pytest.approx(
        {
            "b": 0.25 * b + 0.75 * high,
            "d": 0.25 * c,  # not in dense: c's z, the lowest; its own is 0
            "a": 0.25 * a - 0.75 * high,
            "c": 0.25 * c - 0.75 * high,
        },
        abs=1e-5,
    )


def test_alpha_adds_raw_scores_and_the_missing_get_the_lowest():
    # a 0.9 + 0.1 * 4 (the lowest of lexical), b 0.8 + 1.2, c 0.5 + 0.4, d 0.5 + 0.8
    expected = {"b": 2.0, "a": 1.3, "d": 1.3, "c": 0.9}
    assert fuse(DENSE, LEXICAL, "alpha", 0.1)["q"] == pytest.approx(expected, abs=1e-6)
    # Ties go to the higher id, as trec_eval has it.
    assert list(fuse(DENSE, LEXICAL, "alpha", 0.1)["q"]) == ["b", "d", "a", "c"]


def test_alpha_is_what_pyserinis_hybrid_searcher_computes():
    """Its loop, read aloud: a list without the passage gives its own lowest score."""
    dense, lexical = random_runs(3)
    fused = fuse(dense, lexical, "alpha", 0.3)
    for topic, one in dense.items():
        two = lexical[topic]
        expected = {
            docid: one.get(docid, min(one.values())) + 0.3 * two.get(docid, min(two.values()))
            for docid in {*one, *two}
        }
        assert fused[topic] == pytest.approx(expected, rel=1e-6)


RANX = """
import random
from ccpretrieve.retrieval.fusion import fuse
from ccpretrieve.retrieval.metrics import load_ranx

ranx, rng = load_ranx(), random.Random(4)
names = [f"d{number:07}" for number in range(60)]


def run(known):
    scores = [score / 16 for score in rng.sample(range(500), 40)]
    return {"q": dict(zip(rng.sample(known, 40), scores))}


apart, same = (run(names), run(names)), (run(names[:40]), run(names[:40]))
for (one, two), method, weight, norm, name in (
    (apart, "rrf", None, None, "rrf"),
    (apart, "minmax", 0.25, "min-max", "wsum"),
    (same, "zscore", 0.25, "zmuv", "wsum"),
):
    params = {"weights": [0.25, 0.75]} if name == "wsum" else {}
    runs = [ranx.Run(one), ranx.Run(two)]
    theirs = dict(ranx.fuse(runs, norm=norm, method=name, params=params).run["q"])
    ours = fuse(one, two, method, weight)["q"]
    assert theirs.keys() == ours.keys(), method
    assert max(abs(theirs[docid] - ours[docid]) for docid in ours) < 1e-6, method
print("all of it")
"""


@pytest.mark.slow
def test_ranx_computes_the_same_for_scores_without_ties_and_z_scores_without_missing_passages():
    done = subprocess.run(
        [sys.executable, "-c", RANX],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},  # or it would compile for minutes
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr


@pytest.mark.parametrize("method", FUSIONS)
def test_the_result_depends_on_no_order_and_no_length_of_ids(method):
    dense, lexical = random_runs(1)
    fused = fuse(dense, lexical, method)

    def turned(run):
        return {topic: dict(reversed(run[topic].items())) for topic in reversed(run)}

    other = fuse(turned(dense), turned(lexical), method)
    assert {topic: list(hits.items()) for topic, hits in other.items()} == {
        topic: list(hits.items()) for topic, hits in fused.items()
    }

    def renamed(run):  # the order of the ids stays
        return {topic: {"x" * 40 + d: s for d, s in hits.items()} for topic, hits in run.items()}

    assert fuse(renamed(dense), renamed(lexical), method) == renamed(fused)


@pytest.mark.parametrize("method", FUSIONS)
def test_hits_are_the_first_of_the_whole_list_which_is_ordered_as_a_run_file_is(method, tmp_path):
    dense, lexical = random_runs(2)
    fused = fuse(dense, lexical, method)
    cut = fuse(dense, lexical, method, hits=9)
    for topic, hits in fused.items():
        assert list(hits.items()) == ordered(hits)
        assert list(cut[topic].items()) == list(hits.items())[:9]
        assert hits.keys() == dense[topic].keys() | lexical[topic].keys()
    for name, run in (("one", dense), ("two", lexical)):
        write_run(tmp_path / name, run, "x", {})
    assert fuse(read_run(tmp_path / "one"), read_run(tmp_path / "two"), method) == fused


@pytest.mark.parametrize("method", FUSIONS)
@pytest.mark.parametrize("weight", [None, 0.0, 1.0])
def test_a_topic_that_one_side_does_not_answer_keeps_the_others_ranking(method, weight):
    if method == "rrf":
        weight = None
    hits = {"a": -3.0, "b": 1.5, "c": 1.5, "d": 1.25}
    ranking = ["c", "b", "d", "a"]
    fused = fuse({"q": hits, "r": {}}, {"r": hits, "q": {}, "s": {}}, method, weight)
    assert [list(fused[topic]) for topic in "qrs"] == [ranking, ranking, []]
    assert list(fuse({"q": hits}, {}, method, weight)["q"]) == ranking


def test_a_single_hit_counts_whole_in_min_max_and_nothing_in_z_scores():
    # a 0.5 * 1 + 0; b: dense 0.5 * 0, lexical alone in its list 0.5 * 1; c the lowest, 0
    one, two = {"q": {"a": 2.0, "c": 1.0}}, {"q": {"b": 7.0}}
    assert fuse(one, two, "minmax")["q"] == {"b": 0.5, "a": 0.5, "c": 0.0}
    # z(dense): a 1, c -1, b is missing, -1; z(lexical) is 0 for all
    assert fuse(one, two, "zscore")["q"] == {"a": 0.5, "c": -0.5, "b": -0.5}


@pytest.mark.parametrize("method", FUSIONS)
def test_equal_scores_give_numbers_and_keep_every_passage(method):
    flat = {"q": {"a": 0.1, "b": 0.1, "c": 0.1}}
    fused = fuse(flat, {"q": {"c": 3.0, "d": 3.0}}, method)["q"]
    assert set(fused) == set("abcd")
    assert all(math.isfinite(score) for score in fused.values())
    if method == "minmax":
        assert fused == {"c": 1.0, "d": 0.5, "b": 0.5, "a": 0.5}
    if method == "zscore":
        assert set(fused.values()) == {0.0}


def test_scores_that_are_equal_in_a_run_file_are_equal():
    almost = {"q": {"a": 1.0, "b": 1.0 + 1e-9}}  # one 32-bit float
    fused = fuse(almost, {"q": {"c": 1.0}}, "minmax")["q"]
    assert fused["a"] == fused["b"] == 0.5


@pytest.mark.parametrize("method", WEIGHTED)
def test_a_weight_that_cannot_be_is_refused(method):
    for weight in (-0.1, math.nan, math.inf):
        with pytest.raises(UserError, match=f"the weight of {method} must be"):
            fuse(DENSE, LEXICAL, method, weight)
    if method != "alpha":
        with pytest.raises(UserError, match=r"must be from 0 to 1, got 1\.5"):
            formula(method, 1.5)


def test_what_is_no_fusion_or_no_score_is_refused():
    with pytest.raises(UserError, match="unknown fusion 'minmaxx'; did you mean 'minmax'"):
        fuse(DENSE, LEXICAL, "minmaxx")
    with pytest.raises(UserError, match=r"rrf has no weight, got 0\.5"):
        fuse(DENSE, LEXICAL, "rrf", 0.5)
    with pytest.raises(UserError, match="passage 'a' has the score nan"):
        fuse({"q": {"a": math.nan}}, LEXICAL, "rrf")


def test_a_formula_states_its_weights_and_what_the_missing_get():
    assert formula("minmax", 0.7) == (
        "score = 0.7 * n(dense) + 0.3 * n(lexical); n(s) = (s - lowest) / (highest - lowest) of "
        "the question's list, 1 if all are equal; a passage missing from a list gets 0; a question "
        "that only one list answers keeps that term, unweighted"
    )
    assert "dense + 0.1 * lexical; a passage missing from a list gets its lowest" in formula(
        "alpha"
    )
    assert "1 / (60 + rank in dense) + 1 / (60 + rank in lexical)" in formula("rrf")
    assert all(formula(method).isascii() for method in FUSIONS)


# -- the weight --


def judged_by(winner):
    """Runs of which one has the relevant passage first and the other last, and the judgements."""
    good = {"r": 3.0, "x": 2.0, "y": 1.0}
    bad = {"x": 3.0, "y": 2.9, "r": 1.0}
    runs = (good, bad) if winner == "dense" else (bad, good)
    return {"1": {"r": 1}, "2": {"r": 1}}, *({"1": run, "2": run} for run in runs)


@pytest.mark.slow
@pytest.mark.parametrize("method", WEIGHTED)
def test_the_weight_goes_to_the_side_that_judged_topics_favour(method):
    qrels, dense, lexical = judged_by("dense")
    chosen = tune(qrels, dense, lexical, method)
    assert next(iter(fuse(dense, lexical, method, chosen)["1"])) == "r"
    qrels, dense, lexical = judged_by("lexical")
    other = tune(qrels, dense, lexical, method)
    assert next(iter(fuse(dense, lexical, method, other)["1"])) == "r"
    assert (chosen < other) if method == "alpha" else (chosen > other)


@pytest.mark.slow
def test_the_weight_is_the_best_of_the_grid_and_where_several_are_the_one_nearest_the_default():
    # n(dense) x 1, y 0.95, r 0; n(lexical) r 1, x 0.5, y 0. r is first from w on where
    # 1 - w > w + (1 - w) / 2, so w < 1 / 3: of 0, 0.1, 0.2, 0.3 that is nearest to 0.5.
    qrels, dense, lexical = judged_by("lexical")
    assert tune(qrels, dense, lexical, "minmax") == 0.3
    qrels, dense, lexical = judged_by("dense")
    assert tune(qrels, dense, lexical, "minmax") == 0.7  # by symmetry, w > 2 / 3
    # Both alike: nothing is learned, and the default stays.
    assert tune(qrels, dense, dense, "minmax") == 0.5
    assert tune(qrels, dense, dense, "alpha") == 0.1
    # Topics that were not searched change nothing.
    more = {**qrels, "3": {"z": 1}}
    assert tune(more, dense, lexical, "minmax") == tune(qrels, dense, lexical, "minmax")


def test_without_judged_topics_or_a_weight_nothing_is_tuned():
    qrels, dense, lexical = judged_by("dense")
    with pytest.raises(UserError, match="no topic that was searched is judged"):
        tune({"9": {"r": 1}}, dense, lexical, "minmax")
    with pytest.raises(UserError, match="unknown fusion with a weight 'rrf'"):
        tune(qrels, dense, lexical, "rrf")


def test_the_grid_holds_both_ends_and_the_default_in_order():
    for method, grid in fusion.GRID.items():
        assert list(grid) == sorted(set(grid))
        assert grid[0] == 0.0
        assert fusion.DEFAULT[method] in grid
    assert fusion.GRID["minmax"][-1] == fusion.GRID["zscore"][-1] == 1.0
