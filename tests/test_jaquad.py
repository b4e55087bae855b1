"""The benchmark of fine-tuning: what is tested is never mined from, and finished parts are kept."""

import gzip
import json
import re
from pathlib import Path

import pytest

from benchmarks import examples, jaquad
from benchmarks.jaquad import JAQUAD, JaquadConfig, Report, subset
from ccpretrieve import finetune, mine
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.errors import UserError
from ccpretrieve.model.settings import read_settings

WORDS = "abcdefgh"


@pytest.fixture
def corpus(tmp_path):
    """Eight passages p0 to p7; p0 and p1 are judged for the test, p2 to p5 for training."""
    folder = tmp_path / "ja"
    (folder / "collection").mkdir(parents=True)
    with gzip.open(folder / "collection" / "docs.jsonl.gz", "wt", encoding="utf-8") as stream:
        for number, word in enumerate(WORDS):
            contents = f"title\n\n{word} {word} {WORDS[number - 1]}"
            stream.write(json.dumps({"id": f"p{number}", "contents": contents}) + "\n")
    for split, numbers in (("test", (0, 1)), ("train", (2, 3, 4, 5))):
        topics = [f"{split}{n}\t{WORDS[n]}?\n" for n in numbers]
        (folder / f"topic.{split}.tsv").write_text("".join(topics))
        judged = [f"{split}{n}\tQ0\tp{n}\t1\n" for n in numbers]
        (folder / f"qrels.{split}.txt").write_text("".join(judged))
    (folder / "answers.train.jsonl").write_text("")
    return folder


def config(tmp_path, corpus, tiny_checkpoint, **settings):
    defaults = {
        **{"jaquad": corpus, "encoder": str(tiny_checkpoint), "work": tmp_path / "work"},
        **{"passages": 4, "layers": 1, "batch_size": 2, "minutes": 0.001, "quiet": True},
        **{"query_length": 12, "passage_length": 16},
    }
    return JaquadConfig(**{**defaults, **settings})


@pytest.fixture
def mining(monkeypatch):
    """Stands in for mining: every training question gets p6 as its hard negative."""
    seen = []

    def run(config):
        pool = FolderCorpus(Path(config.corpus))
        seen.append(sorted(record.passage.id for record in pool.records()))
        texts = {record.passage.id: record.passage.text for record in pool.records()}
        with config.output.open("w", encoding="utf-8") as stream:
            for topic, grades in pool.qrels("train").items():
                example = {
                    "question": topic,
                    "positive_ctxs": [{"title": "", "text": texts[docid]} for docid in grades],
                    "hard_negative_ctxs": [{"title": "", "text": texts["p6"]}],
                }
                stream.write(json.dumps(example) + "\n")

    monkeypatch.setattr(mine, "run", run)
    return seen


def test_the_tested_collection_holds_all_that_is_judged_and_a_choice_by_hash(
    tmp_path, corpus, tiny_checkpoint
):
    folder = FolderCorpus(subset(config(tmp_path, corpus, tiny_checkpoint)))
    ids = {record.passage.id for record in folder.records()}
    others = sorted((f"p{n}" for n in range(2, 8)), key=jaquad._hash)
    assert ids == {"p0", "p1", *others[:2]}
    assert [topic.id for topic in folder.topics("test")] == ["test0", "test1"]
    assert folder.qrels("test") == {"test0": {"p0": 1}, "test1": {"p1": 1}}


def test_a_whole_run_trains_both_ways_scores_them_and_keeps_its_parts(
    tmp_path, corpus, tiny_checkpoint, mining
):
    asked = config(tmp_path, corpus, tiny_checkpoint, xquad=corpus.parent, languages=("ja",))
    report = jaquad.run(asked)
    assert mining == [[f"p{n}" for n in range(2, 8)]]  # no passage of the test
    assert list(report.scores) == ["start", "hard negatives", "in-batch only"]
    assert set(report.scores["start"]) == {JAQUAD, "XQuAD ja"}
    for cell, hard in (("hard-negatives", 1), ("in-batch-only", 0)):
        run = json.loads((asked.work / cell / "training" / "settings.json").read_text())
        assert (run["hard_negatives"], run["tied"], run["layers"]) == (hard, True, 1)
        settings, _ = read_settings(asked.work / cell, cell)
        assert (settings.pooling, settings.similarity, settings.title) == ("mean", "cosine", "join")
    assert re.search(r"hard negatives: \d+ updates of 2 questions in", str(report))
    again = jaquad.run(asked)  # nothing is trained or mined again
    assert (again.scores, again.notes, len(mining)) == (report.scores, report.notes, 1)
    for name, of, value in (("seed", 42, 1), ("minutes", 0.001, 2)):
        with pytest.raises(UserError, match=f"made with {name} {of}, not {value}; choose another"):
            jaquad.run(config(tmp_path, corpus, tiny_checkpoint, **{name: value}))


def test_a_training_that_was_stopped_goes_on_for_the_rest_of_its_minutes(
    tmp_path, corpus, tiny_checkpoint, mining, monkeypatch
):
    asked = config(tmp_path, corpus, tiny_checkpoint, minutes=0.5)
    train, seen = jaquad.mined(asked), []
    monkeypatch.setattr(jaquad, "SETTINGS", {**jaquad.SETTINGS, "max_steps": 3})
    output = jaquad.trained(asked, "in-batch only", train)
    report = output / "training" / "report.json"
    seconds = json.loads(report.read_text())["seconds"]
    report.unlink()  # as if stopped before the end
    monkeypatch.setattr(finetune, "run", lambda settings: seen.append(settings) or output)
    jaquad.trained(asked, "in-batch only", train)
    assert seen[0].resume
    assert seen[0].max_minutes == pytest.approx(0.5 - seconds / 60)


def test_gains_are_in_points_beside_the_start():
    scores = {"start": {"a": 0.5}, "hard negatives": {"a": 0.625}, "in-batch only": {"a": 0.45}}
    table = str(Report(scores, ["data: 2"]))
    assert "50.0" in table
    assert "62.5 (+12.5)" in table
    assert "45.0 (-5.0)" in table


def test_a_cell_that_is_none_is_refused(tmp_path, corpus, tiny_checkpoint):
    with pytest.raises(UserError, match="--cells hard: one of hard negatives, in-batch only"):
        config(tmp_path, corpus, tiny_checkpoint, cells=("hard",))


def test_made_up_examples_are_dprs_and_every_one_is_read(tmp_path):
    path = tmp_path / "train.json"
    examples.write_examples(path, 60_000)  # of some 22 kB each
    records = json.loads(path.read_text())
    assert 60_000 <= path.stat().st_size < 90_000
    assert {len(record["hard_negative_ctxs"]) for record in records} == {examples.NEGATIVES}
    asked = {"train": str(path), "store": str(tmp_path / "store"), "batches": 2}
    assert examples.examples(asked)["count"] == len(records) == 3
