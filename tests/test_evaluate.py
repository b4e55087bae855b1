"""Runs are scored against the judgements of what was searched, and laid out for a reader."""

import json
from pathlib import Path

import pytest

from ccpretrieve import evaluate
from ccpretrieve.config import EvaluateConfig
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.runfile import sidecar_path, write_run
from ccpretrieve.retrieval.scoretable import Row, ScoreTable

FIRST, THIRD = {"right": 3.0, "x": 2.0, "y": 1.0}, {"right": 1.0, "x": 3.0, "y": 2.0}
GOOD = {f"q{t}": FIRST for t in range(6)}
POOR = {f"q{t}": THIRD if t else FIRST for t in range(6)}
METRICS = ("mrr@10", "hits@10")


@pytest.fixture
def corpus(tmp_path):
    """A folder in Mr.TyDi's layout with two splits of judgements."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    lines = [f"q{t}\tQ0\tright\t1\n" for t in range(6)]
    (folder / "qrels.test.txt").write_text("".join(lines))
    (folder / "qrels.dev.txt").write_text("".join(lines).replace("right", "x"))
    return folder


@pytest.fixture
def runs(tmp_path, corpus):
    """Two runs of the test split, one with an underscore in its name."""
    made_by = {"topics": str(corpus), "split": "test"}
    paths = tmp_path / "runs" / "tiny_good.trec", tmp_path / "runs" / "tiny_poor.trec"
    for path, run in zip(paths, (GOOD, POOR), strict=True):
        write_run(path, run, "tag", made_by)
    return paths


def config(*runs, **settings):
    return EvaluateConfig(run=runs, **{"metrics": METRICS, **settings})


@pytest.mark.slow
def test_a_run_is_scored_against_the_judgements_its_sidecar_names(runs, corpus):
    result = evaluate.run(config(runs[1]))
    # rank 1 for one topic, rank 3 for five: (1 + 5/3) / 6 = 0.4444
    assert result.comparison.scores["tiny_poor"].mean["mrr@10"] == pytest.approx(8 / 18)
    assert str(result) == (
        "run        MRR@10  Hits@10\n"
        "tiny_poor  0.4444   1.0000\n"
        "\n"
        f"6 topics judged in {corpus}, split test"
    )


@pytest.mark.slow
def test_a_file_or_another_split_may_be_named(runs, corpus):
    by_file = evaluate.run(config(runs[0], qrels=str(corpus / "qrels.dev.txt")))
    by_split = evaluate.run(config(runs[0], qrels=str(corpus), split="dev"))
    for result in (by_file, by_split):  # x stands second everywhere
        assert result.comparison.scores["tiny_good"].mean["mrr@10"] == pytest.approx(1 / 2)


@pytest.mark.slow
def test_runs_stand_side_by_side_with_marks_for_significance(runs):
    # differences 2/3 five times and 0: mean 5/9, s = 0.2722, t = 5/9 / (s / sqrt 6) = 5
    text = str(evaluate.run(config(*runs))).splitlines()
    assert text[:3] == [
        "   run        MRR@10   Hits@10",
        "a  tiny_good  1.0000ᵇ   1.0000",
        "b  tiny_poor  0.4444    1.0000",
    ]
    assert (
        "superscript: significantly better than that run (Student's paired t-test, p < 0.05)"
        in text
    )
    assert "no difference between a and b on any topic: Hits@10" in text


@pytest.mark.slow
def test_a_run_compared_with_its_copy_shows_no_difference(runs, tmp_path):
    copy = tmp_path / "copy.trec"
    copy.write_bytes(runs[0].read_bytes())
    text = str(evaluate.run(config(runs[0], copy)))
    assert "no difference between a and b on any topic: MRR@10, Hits@10" in text
    assert "nan" not in text
    assert "ᵃ" not in text
    assert "ᵇ" not in text


@pytest.mark.slow
def test_markdown_has_the_best_in_bold(runs):
    lines = str(evaluate.run(config(*runs, format="markdown"))).splitlines()
    assert lines[:4] == [
        "|  | run | MRR@10 | Hits@10 |",
        "| --- | --- | ---: | ---: |",
        r"| a | tiny\_good | **1.0000**ᵇ | 1.0000 |",
        r"| b | tiny\_poor | 0.4444 | 1.0000 |",
    ]


@pytest.mark.slow
def test_latex_escapes_names(runs):
    text = str(evaluate.run(config(*runs, format="latex")))
    assert r"a & tiny\_good & \textbf{1.0000}$^{b}$ & 1.0000 \\" in text.splitlines()


@pytest.mark.slow
def test_json_holds_everything(runs, corpus):
    content = json.loads(str(evaluate.run(config(*runs, format="json", per_topic=True))))
    good, poor = content["runs"]
    assert content["judgements"] == f"{corpus}, split test"
    assert content["metrics"] == list(METRICS)
    assert content["significance"] == {"test": "student", "alpha": 0.05}
    assert (good["name"], good["file"]) == ("tiny_good", str(runs[0]))
    assert poor["per_topic"]["q1"] == {"mrr@10": pytest.approx(1 / 3), "hits@10": 1.0}
    assert good["better_than"] == {"mrr@10": ["tiny_poor"], "hits@10": []}
    assert good["p_values"] == poor["p_values"] | {
        metric: {"tiny_poor": p["tiny_good"]} for metric, p in poor["p_values"].items()
    }
    assert good["p_values"]["hits@10"] == {"tiny_poor": 1.0}
    assert "per_topic" not in json.loads(str(evaluate.run(config(*runs, format="json"))))["runs"][0]


@pytest.mark.slow
def test_per_topic_scores_of_every_run_can_be_printed(runs):
    lines = str(evaluate.run(config(*runs, per_topic=True, metrics=("mrr@10",)))).splitlines()
    assert lines[-7:-4] == [
        "topic  MRR@10 a  MRR@10 b",
        "q0       1.0000    1.0000",
        "q1       1.0000    0.3333",
    ]


@pytest.mark.slow
def test_topics_that_count_otherwise_are_told(tmp_path):
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q0 0 right 1\nzeros 0 x 0\n" + "".join(f"m{i} 0 d 1\n" for i in range(6)))
    path = tmp_path / "x.trec"
    write_run(path, {"q0": FIRST, "zeros": FIRST, "new": FIRST}, "tag", {})
    assert str(evaluate.run(config(path, qrels=str(qrels)))).splitlines()[2:] == [
        "",
        f"8 topics judged in {qrels}",
        "without a relevant passage, counted 0 as trec_eval -c does: 1 topic (zeros)",
        "x: without a hit, counted 0: 6 topics (m0, m1, m2, m3, m4, ...)",
        "x: in the run but not judged, left out: 1 topic (new)",
    ]


@pytest.mark.slow
def test_a_single_topic_is_not_tested(tmp_path, runs):
    qrels = tmp_path / "one.txt"
    qrels.write_text("q1 0 right 1\n")
    text = str(evaluate.run(config(*runs, qrels=str(qrels))))
    assert "no significance test: it takes two topics or more" in text


def test_a_run_nothing_is_known_of_needs_judgements(tmp_path):
    path, questions = tmp_path / "x.trec", tmp_path / "questions.tsv"
    questions.write_text("q0\twhy?\n")
    for made_by in ({}, {"topics": None}, {"topics": str(questions), "split": "test"}):
        write_run(path, GOOD, "tag", made_by)
        with pytest.raises(UserError, match=r"x\.trec: nothing beside it .* give --qrels"):
            evaluate.run(config(path))
    sidecar_path(path).unlink()
    with pytest.raises(UserError, match="give --qrels"):
        evaluate.run(config(path))


def test_runs_of_different_topics_are_not_mixed(tmp_path, runs, corpus):
    other = tmp_path / "other.trec"
    write_run(other, GOOD, "tag", {"topics": str(corpus), "split": "dev"})
    with pytest.raises(UserError, match=r"split test, but .*other\.trec of .*, split dev"):
        evaluate.run(config(runs[0], other))


def test_a_split_the_run_was_not_made_of_is_refused(runs):
    with pytest.raises(UserError, match="split test, not dev"):
        evaluate.run(config(runs[0], split="dev"))


def test_judgements_of_other_topics_are_refused(tmp_path, runs):
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("101 0 right 1\n")
    with pytest.raises(UserError, match="no topic of the run is judged .* 'q0', .* '101'"):
        evaluate.run(config(runs[0], qrels=str(qrels)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"metrics": ("mmr@10",)}, "did you mean 'mrr@10'"),
        ({"per_topic": True, "format": "latex"}, "--per-topic goes with"),
        ({"qrels": "sample-eo"}, "unknown corpus 'sample-eo'"),
        ({"qrels": "none.txt"}, "none.txt: no such"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error(runs, settings, says):
    with pytest.raises(UserError, match=says):
        evaluate.run(config(runs[0], **settings))


def test_a_folder_is_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path(), Path("/"), tmp_path):
        with pytest.raises(UserError, match=": a folder; name a run file in it"):
            evaluate.run(config(path))


def test_a_run_is_given_once(runs):
    with pytest.raises(UserError, match=r"tiny_good\.trec is given twice"):
        evaluate.run(config(runs[0], runs[1], runs[0]))


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    paths = [tmp_path / "a" / "x.trec", tmp_path / "b" / "x.trec", tmp_path / "y.trec"]
    assert list(evaluate.named(paths)) == [str(paths[0]), str(paths[1]), "y"]


def test_the_command_prints_one_line_for_a_bad_run(tmp_path, capsys):
    path = tmp_path / "x.trec"
    path.write_text("q0 Q0 right 1 high tag\n")
    (tmp_path / "qrels.txt").write_text("q0 0 right 1\n")
    with pytest.raises(SystemExit) as stop:
        evaluate.main(["--run", str(path), "--qrels", str(tmp_path / "qrels.txt")])
    assert stop.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: {path}:1: the score 'high' is not a number\n"


@pytest.mark.slow
def test_the_command_takes_several_runs(runs, capsys):
    evaluate.main(["--run", str(runs[0]), str(runs[1]), "--metrics", "mrr@10", "--format", "text"])
    assert capsys.readouterr().out.splitlines()[0].split() == ["run", "MRR@10"]


def test_a_score_nobody_measured_is_a_dash_and_never_the_best():
    table = ScoreTable(
        ["ja", "fi"], [Row("paper", [0.5, None]), Row("here", [None, 0.25])], digits=2
    )
    assert table.render("text").splitlines() == [
        "run      ja    fi",
        "paper  0.50     -",
        "here      -  0.25",
    ]
    assert "**" not in table.render("markdown")
    assert json.loads(table.render("json"))["paper"] == {"ja": 0.5, "fi": None}


def test_html_marks_the_best_and_says_what_rows_are_better_than():
    rows = [Row("a", [0.5, None], ["b", ""], "a"), Row("b", [0.25, 1.0], ["", ""], "b")]
    assert ScoreTable(["x", "y"], rows, notes=["n < 2"], digits=2).render("html").splitlines() == [
        "<table>",
        "<tr><th></th><th>run</th><th>x</th><th>y</th></tr>",
        "<tr><th>a</th><th>a</th><td><b>0.50</b><sup>b</sup></td><td>-</td></tr>",
        "<tr><th>b</th><th>b</th><td>0.25</td><td>1.00</td></tr>",
        "</table>",
        "<p>n &lt; 2</p>",
    ]


def test_scores_that_are_printed_alike_are_best_alike():
    rows = [Row("a", [0.50001]), Row("b", [0.49999]), Row("c", [0.1])]
    bold = ScoreTable(["x"], rows, digits=3).render("markdown").count("**0.500**")
    assert bold == 2


@pytest.mark.parametrize(
    ("form", "name", "escaped"),
    [
        (
            "latex",
            "a_b%&#$^~{}\\",
            r"a\_b\%\&\#\$\textasciicircum{}\textasciitilde{}\{\}\textbackslash{}",
        ),
        ("markdown", "a_b|c*", r"a\_b\|c\*"),
        ("text", "a_b|c*", "a_b|c*"),
        ("html", "a<b>&c", "<th>a&lt;b&gt;&amp;c</th>"),
    ],
)
def test_names_are_escaped_as_the_format_needs(form, name, escaped):
    assert escaped in ScoreTable(["x"], [Row(name, [1.0])]).render(form)
