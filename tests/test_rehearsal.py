import gzip
import importlib
import json

import pytest

from benchmarks import rehearsal
from benchmarks.growth import Cost, Report
from benchmarks.rehearsal import RehearsalConfig
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError

MB = 10**6


def costs(*seconds, peak=100 * MB):
    return [Cost(wall=2 * each, cpu=each, peak=peak) for each in seconds]


def report(**stages):
    return Report("heading", stages, {})


def test_fixed_costs_and_the_small_collection_are_no_part_of_growth():
    # 7 s whatever the size, and 0.01 s a passage
    linear = {100: costs(8.0), 1100: costs(18.0), 10_100: costs(108.0)}
    made = report(linear=linear)
    assert made.above("linear", 1100) == pytest.approx(10)
    assert made.growth("linear", 10_100) == pytest.approx(1)  # (100 / 10) / (10000 / 1000)


def test_growth_is_of_the_least_seconds_and_what_is_outside_is_named():
    # quadratic: 1e-6 s a pair of passages; 1000 -> 1 s, 2000 -> 4 s, above 0 at the small size
    square = {0: costs(5.1, 5.0, 9.0), 1000: costs(6.0, 6.1, 7.0), 2000: costs(50.0, 9.0)}
    steady = {0: costs(5.0), 1000: costs(6.0), 2000: costs(7.1)}
    made = report(square=square, steady=steady)
    assert made.growth("square", 2000) == pytest.approx(2)  # (4 / 1) / 2
    assert made.growth("steady", 2000) == pytest.approx(1.05)  # (2.1 / 1) / 2
    assert "worst growth 2.00 (square)" in made.verdict()
    assert "outside: square" in made.verdict()
    assert made.figures()["growth"] == {"square": 2.0, "steady": pytest.approx(1.05)}


def test_growth_within_the_spread_of_fixed_costs_is_withheld():
    # At the small size the median is 0.3 s above the least: 30 % of 1 s, more than 15 %.
    noisy = {10: costs(5.3, 5.0, 5.4), 100: costs(6.0, 6.1, 6.2), 1000: costs(16.0)}
    flat = {10: costs(5.0), 100: costs(4.9), 1000: costs(5.0)}  # nothing above them at all
    steady = {10: costs(5.0), 100: costs(6.0), 1000: costs(16.0)}
    made = report(noisy=noisy, flat=flat, steady=steady)
    assert made.unsure("noisy") == pytest.approx(0.3)
    assert made.growth("noisy", 1000) is None
    assert made.growth("flat", 1000) is None
    assert made.growth("steady", 1000) == pytest.approx(1)
    assert "noisy: 1.00 CPU s above its fixed costs at 100" in made.verdict()
    assert made.rows()[3][-1] == "-"


def test_what_grows_by_less_is_named_and_not_called_outside():
    trained = {10: costs(1.0), 1010: costs(11.0), 10_010: costs(20.0)}  # 10 s of it are training
    verdict = report(trained=trained).verdict()
    assert "outside: none" in verdict
    assert "less than linearly: trained" in verdict


def test_the_largest_peak_of_all_runs_is_held_against_the_target():
    few = {10: costs(1.0), 100: [*costs(2.0), *costs(2.0, peak=3100 * MB)], 1000: costs(12.0)}
    assert "largest peak 3100 MB (few, 100): MORE than 3 GB" in report(few=few).verdict()
    few[100] = costs(2.0, peak=3000 * MB)
    assert "largest peak 3000 MB (few, 100): within 3 GB" in report(few=few).verdict()


def test_a_collection_is_read_as_mrtydis_and_each_question_asks_for_its_passage(tmp_path):
    rehearsal.write_collection(tmp_path / "made-up-en", 95, 10, seed=0)
    corpus = open_corpus(str(tmp_path / "made-up-en"), None)
    texts = {record.passage.id: record.passage.text for record in corpus.records()}
    topics, qrels = corpus.topics("test"), corpus.qrels("test")
    assert (len(texts), len(topics), corpus.language) == (95, 10, "en")
    judged = [next(iter(qrels[topic.id])) for topic in topics]
    assert judged[0] == "0#0"
    assert judged[-1] == "8#5"  # the 10th of 10: passage 9 * 95 // 10 = 85
    for topic, docid in zip(topics, judged, strict=True):
        assert set(topic.text.split()) <= set(texts[docid].split())


def test_a_larger_collection_begins_as_a_smaller_one(tmp_path):
    for count in (20, 60):
        rehearsal.write_collection(tmp_path / str(count), count, 5, seed=3)
    few, many = (
        gzip.decompress((tmp_path / f"{count}/collection/docs.jsonl.gz").read_bytes())
        for count in (20, 60)
    )
    assert many.startswith(few)
    assert many.count(b"\n") == 60


def test_a_process_is_measured_by_itself(tmp_path):
    script = "x = b'x' * 300_000_000; import time; t = time.process_time() + 0.3\n"
    script += "while time.process_time() < t: pass\nprint(len(x))"
    cost = rehearsal.launch(["-c", script], tmp_path / "said.json", threads=1)
    assert (tmp_path / "said.json").read_text() == "300000000\n"
    assert cost.peak > 300 * MB
    assert 0.3 < cost.cpu < 30
    assert cost.wall > 0.3


def test_what_a_command_says_is_wrong_is_said(tmp_path):
    words = ["-m", "ccpretrieve.evaluate", "--run", str(tmp_path / "none.trec")]
    with pytest.raises(UserError, match=r"none\.trec: no such file"):
        rehearsal.launch(words, tmp_path / "said.json", threads=1)
    with pytest.raises(RuntimeError, match="status 3"):
        rehearsal.launch(["-c", "raise SystemExit(3)"], tmp_path / "said.json", threads=1)


@pytest.fixture
def here(monkeypatch, capsys):
    """Stages in this process, at 1 s and 0.01 s a passage, as if each were one of its own."""
    launched = []

    def launch(words, printed, threads):
        if words[0] == "-c":
            rehearsal.make_encoder(words[2], int(words[3]))
        else:
            capsys.readouterr()
            importlib.import_module(words[1]).main(words[2:])
            printed.write_text(capsys.readouterr().out)
            launched.append((printed.parts[-3], printed.parts[-2]))
        size = int(launched[-1][0]) if launched else 0
        return Cost(1.0, 1 + 0.01 * size, 100 * MB)

    monkeypatch.setattr(rehearsal, "launch", launch)
    monkeypatch.setattr(rehearsal, "RUNS", 1)
    return launched


@pytest.mark.slow
def test_all_commands_run_at_every_size_and_none_twice(tmp_path, here):
    asked = RehearsalConfig(
        passages=(60, 120),
        fixed=20,
        questions=5,
        factories=("SQ8",),
        work=tmp_path / "work",
        output=tmp_path / "figures.json",
    )
    made = rehearsal.run(asked)
    names = ["encode", "index SQ8", "index BM25", "search dense", "search BM25", "evaluate"]
    assert list(made.costs) == names
    assert [growth for name in names if (growth := made.growth(name, 120))] == pytest.approx(
        [1] * 6
    )
    assert made.scores[120]["bm25"]["mrr@100"] > 0.9  # half the words of a passage, by BM25
    assert len(here) == len(set(here)) == 18
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["costs"]["encode"]["120"][0]["cpu"] == pytest.approx(2.2)
    (tmp_path / "work/120/search-dense/costs.json").unlink()  # as if killed there
    assert str(rehearsal.run(asked)) == str(made)
    assert here[18:] == [("120", "search-dense")]
    with pytest.raises(UserError, match="questions 5, not 6"):
        rehearsal.run(RehearsalConfig(**{**vars(asked), "questions": 6}))


def test_sizes_that_cannot_be_compared_are_refused():
    with pytest.raises(UserError, match="ascend"):
        RehearsalConfig(passages=(5000, 4000))
    with pytest.raises(UserError, match="more than --fixed, 2000"):
        RehearsalConfig(passages=(1000, 3000))
    with pytest.raises(UserError, match="two sizes"):
        RehearsalConfig(passages=(3000,))
    with pytest.raises(UserError, match="--fixed must be at least 300"):
        RehearsalConfig(fixed=200, questions=300)
