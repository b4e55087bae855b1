"""Scores are trec_eval's, on any run and any judgements."""

import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.metrics import Metric, score
from ccpretrieve.retrieval.runfile import ordered, write_run

pytestmark = pytest.mark.slow  # ranx takes seconds to import, and to compile the first time

# our metric -> trec_eval's measure, its name in the answer, where the run is cut
ORACLE = {
    "mrr@3": ("recip_rank", "recip_rank", 3),
    "mrr@100": ("recip_rank", "recip_rank", 100),
    "mrr": ("recip_rank", "recip_rank", None),
    "recall@5": ("recall.5", "recall_5", None),
    "recall@100": ("recall.100", "recall_100", None),
    "recall": ("set_recall", "set_recall", None),
    "ndcg@10": ("ndcg_cut.10", "ndcg_cut_10", None),
    "ndcg@100": ("ndcg_cut.100", "ndcg_cut_100", None),
    "ndcg": ("ndcg", "ndcg", None),
    "hits@1": ("success.1", "success_1", None),
    "hits@100": ("success.100", "success_100", None),
}
IDS = st.integers(0, 30).map("d{}".format)
TOPICS = st.integers(0, 5).map("q{}".format)
TIED = st.sampled_from([0.5, 0.5 + 1e-12, 0.5 - 1e-12, 0.0, -0.0, 1.5, -2.0])
QRELS = st.dictionaries(
    TOPICS, st.dictionaries(IDS, st.integers(-1, 3), max_size=20), min_size=1
).filter(lambda qrels: any(qrels.values()))
RUNS = st.dictionaries(TOPICS, st.dictionaries(IDS, TIED, max_size=30))


def expected(qrels, run, metric):
    """Per-topic values of pytrec_eval; it leaves unanswered topics out."""
    measure, name, cut = ORACLE[metric]
    # trec_eval cannot cut a run for one measure only, so it is given the first hits
    run = {topic: dict(ordered(hits)[:cut]) for topic, hits in run.items() if hits}
    # pytrec_eval's nDCG reads past its table of gains, and may never return, where no grade of a
    # topic is 0 or more; nothing is relevant there, and every measure is 0
    qrels = {
        topic: dict(grades)
        for topic, grades in qrels.items()
        if max(grades.values(), default=-1) >= 0
    }
    found = pytrec_eval.RelevanceEvaluator(qrels, {measure}).evaluate(run)
    return {topic: values[name] for topic, values in found.items()}


def check_against_trec_eval(qrels, run):
    scores = score(qrels, run, list(ORACLE))
    judged = [topic for topic, grades in qrels.items() if grades]
    assert list(scores.per_topic) == judged
    for metric in ORACLE:
        oracle = expected(qrels, run, metric)
        for topic in judged:
            ours = scores.per_topic[topic][metric]
            assert ours == pytest.approx(oracle.get(topic, 0.0), abs=1e-6), (metric, topic)
        # -c: the sum over what is answered, by the number of all judged topics
        assert scores.mean[metric] == pytest.approx(sum(oracle.values()) / len(judged), abs=1e-6)


@settings(deadline=None)
@given(QRELS, RUNS)
def test_scores_are_trec_evals_with_ties_grades_and_missing_topics(qrels, run):
    check_against_trec_eval(qrels, run)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_trec_evals_on_runs_longer_than_the_cut(seed):
    rng = np.random.default_rng(seed)
    ids = [f"{kind}{i}" for kind in "dé質" for i in range(80)]
    qrels, run = {}, {}
    for topic in map(str, range(600)):  # more than are scored at once
        judged, found = rng.permutation(ids)[: rng.integers(1, 40)], rng.permutation(ids)
        qrels[topic] = {docid: int(rng.integers(-1, 4)) for docid in judged.tolist()}
        run[topic] = {
            d: float(rng.integers(0, 9)) / 7 for d in found[: rng.integers(0, 240)].tolist()
        }
    check_against_trec_eval(qrels, run)


def test_means_are_those_the_trec_eval_program_prints(tmp_path):
    """The real trec_eval 9.0.4, which Pyserini brings along in its jar."""
    program = trec_eval_program(tmp_path)
    rng = np.random.default_rng(5)
    run = {
        f"q{t}": {f"d{i}": float(rng.integers(0, 4)) for i in rng.permutation(90)[:60].tolist()}
        for t in range(20)
    }
    qrels = {
        f"q{t}": {f"d{i}": int(rng.integers(0, 3)) for i in rng.permutation(90)[:8].tolist()}
        for t in range(5, 25)  # five topics of the run are not judged, five are not answered
    }
    qrels["q7"] = dict.fromkeys(qrels["q7"], 0)  # judged, nothing relevant: counts 0
    write_run(tmp_path / "x.trec", run, "tag", {})
    lines = [f"{t} 0 {d} {g}\n" for t, grades in qrels.items() for d, g in grades.items()]
    (tmp_path / "qrels").write_text("".join(lines))
    metrics = ["mrr@100", "recall@100", "ndcg@10", "hits@5"]
    names = ["recip_rank", "recall.100", "ndcg_cut.10", "success.5"]
    options = [option for name in names for option in ("-m", name)]
    answer = subprocess.run(
        [program, "-c", *options, tmp_path / "qrels", tmp_path / "x.trec"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    printed = [float(line.split()[-1]) for line in answer.splitlines()]
    scores = score(qrels, run, metrics)
    assert [scores.mean[metric] for metric in metrics] == pytest.approx(printed, abs=5.1e-5)
    assert scores.without_relevant == ("q7",)
    assert len(scores.unanswered) == len(scores.unjudged) == 5


def trec_eval_program(folder):
    """Unpack trec_eval from Pyserini's jar, or skip."""
    package = find_spec("pyserini")
    jars = package and Path(package.origin).parent.glob("resources/jars/anserini-*-fatjar.jar")
    member = "trec_eval/trec_eval-linux-amd64"
    for jar in jars or ():
        with zipfile.ZipFile(jar) as archive:
            if sys.platform == "linux" and member in archive.namelist():
                program = Path(archive.extract(member, folder))
                program.chmod(0o755)
                return program
    pytest.skip("no trec_eval program for this machine in Pyserini's jar")


def test_a_worked_ranking():
    # trec order: b (3), then a and c tied at 2: c before a, then d (1). Grades: a 2, b 0, c 1, x 1.
    qrels = {"q": {"a": 2, "b": 0, "c": 1, "x": 1}}
    run = {"q": {"a": 2.0, "b": 3.0, "c": 2.0, "d": 1.0}}
    per_topic = score(qrels, run, ["mrr@2", "mrr@1", "recall@2", "recall@3", "hits@1", "ndcg@3"])
    assert per_topic.per_topic["q"] == pytest.approx(
        {
            "mrr@2": 1 / 2,  # c stands second
            "mrr@1": 0,  # b is judged and not relevant
            "recall@2": 1 / 3,  # c of a, c, x
            "recall@3": 2 / 3,  # c and a
            "hits@1": 0,
            # DCG = 0/log2(2) + 1/log2(3) + 2/log2(4) = 0.63093 + 1 = 1.63093
            # ideal 2, 1, 1: 2/1 + 1/1.58496 + 1/2 = 2 + 0.63093 + 0.5 = 3.13093
            "ndcg@3": 1.63093 / 3.13093,
        },
        abs=1e-5,
    )


@pytest.mark.parametrize("metric", ["mrr@100", "recall@100", "ndcg@100", "hits@100", "ndcg", "mrr"])
def test_one_relevant_passage_at_the_only_rank_is_perfect_however_deep_the_cut(metric):
    assert score({"q": {"d": 1}}, {"q": {"d": 0.0}}, [metric]).mean == {metric: 1.0}


def test_an_ideal_ranking_longer_than_the_run_still_divides():
    # three relevant, one found at rank 1: DCG 1; ideal 1 + 1/log2(3) + 1/log2(4) = 2.13093
    scores = score({"q": {"a": 1, "b": 1, "c": 1}}, {"q": {"a": 1.0}}, ["ndcg@10", "recall@10"])
    assert scores.mean == pytest.approx({"ndcg@10": 1 / 2.13093, "recall@10": 1 / 3}, abs=1e-5)


def test_every_topic_that_does_not_count_as_usual_is_named():
    qrels = {"hit": {"d": 1}, "miss": {"d": 1}, "zeros": {"d": 0}, "empty": {}}
    run = {"stranger": {"d": 1.0}, "zeros": {"d": 1.0}, "miss": {}, "hit": {"d": 1.0}}
    scores = score(qrels, run, ["mrr@10"])
    assert scores.unanswered == ("miss",)
    assert scores.without_relevant == ("zeros",)
    assert scores.left_out == ("empty",)
    assert scores.unjudged == ("stranger",)
    assert scores.mean == {"mrr@10": pytest.approx(1 / 3)}  # 1 + 0 + 0 over hit, miss, zeros


def test_the_order_of_topics_and_passages_in_the_run_does_not_matter():
    qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}}
    run = {"q1": {"d1": 2.0, "d3": 1.0}, "q2": {"d3": 2.0, "d2": 1.0}}
    turned = {topic: dict(reversed(hits.items())) for topic, hits in reversed(run.items())}
    assert score(qrels, turned, ["mrr"]) == score(qrels, run, ["mrr"])


def test_nothing_judged_is_an_error():
    with pytest.raises(UserError, match="no judged topic"):
        score({"q": {}}, {"q": {"d": 1.0}}, ["mrr"])


def test_a_score_that_cannot_be_ranked_is_an_error():
    with pytest.raises(UserError, match="'d' has the score nan"):
        score({"q": {"d": 1}}, {"q": {"d": float("nan")}}, ["mrr"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mmr@10", "unknown metric 'mmr@10'; did you mean 'mrr@10'"),
        ("map", "unknown metric 'map'.* allowed: mrr@K, recall@K, ndcg@K, hits@K"),
        ("mrr@", "after @ comes a whole number"),
        ("mrr@0", "after @ comes a whole number"),
        ("mrr@-1", "after @ comes a whole number"),
        ("mrr@1.5", "after @ comes a whole number"),
        ("", "unknown metric ''"),
    ],
)
def test_a_metric_that_there_is_none_of_is_an_error(name, says):
    with pytest.raises(UserError, match=says):
        score({"q": {"d": 1}}, {"q": {"d": 1.0}}, [name])


def test_no_metric_is_an_error():
    with pytest.raises(UserError, match="no metric given"):
        score({"q": {"d": 1}}, {"q": {"d": 1.0}}, [])


def test_a_metric_is_named_in_any_case_and_counted_once():
    assert Metric.parse("nDCG@10").name == "ndcg@10"
    assert Metric.parse("ndcg@10").label == "nDCG@10"
    assert list(score({"q": {"d": 1}}, {"q": {"d": 1.0}}, ["MRR", "mrr"]).mean) == ["mrr"]


def test_ranx_is_imported_without_a_warning_where_it_was_never_compiled(tmp_path):
    """Python warns of ranx' escape sequences only while it compiles the source."""
    source = Path(find_spec("ranx").origin).parent
    shutil.copytree(source, tmp_path / "ranx", ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; "
        "from ccpretrieve.retrieval.metrics import load_ranx; print(load_ranx().__file__)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", program, tmp_path, root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout) == ("", f"{tmp_path / 'ranx' / '__init__.py'}\n")
