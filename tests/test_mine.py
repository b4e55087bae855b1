"""Mining: which hits become hard negatives, and what is written of them."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ccpretrieve import encode, index, mine
from ccpretrieve.commandline import parse
from ccpretrieve.config import EncodeConfig, IndexConfig
from ccpretrieve.data.records import Passage, Record, Topic
from ccpretrieve.errors import UserError
from ccpretrieve.mine_config import MineConfig
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.retrieval.dense import Dense, open_index
from ccpretrieve.retrieval.mining import Pool, Rules, fold, holds

ROOT = Path(__file__).parents[1]
HITS = {"best": 9.0, "gold": 8.0, "near": 7.9, "far": 4.0, "copy": 3.0, "void": 2.0, "last": 1.0}
TEXTS = {name: f"text of {name}" for name in HITS} | {"copy": "text of gold", "void": " "}


def mined(rules, answers=(), best=8.0):
    """Negatives of one question, whose positive is `gold`, and the reasons why others are none."""
    pool = Pool(rules)
    pool.add("q", ["gold"], HITS, best)
    records = [Record(Passage(name, text), "f", 1) for name, text in TEXTS.items()]
    pool.look(records, {"q": list(answers)})
    reasons = Counter()
    return [docid for docid, _ in pool.choose(0, reasons)], reasons


# --- which hits are negatives ---


def test_negatives_are_the_best_hits_that_are_no_positive_no_copy_of_one_and_not_empty():
    assert mined(Rules(negatives=9)) == (
        ["best", "near", "far", "last"],
        {"positive": 1, "copy of another": 1, "empty": 1},
    )
    assert mined(Rules(negatives=2))[0] == ["best", "near"]


def test_of_two_hits_with_one_text_the_better_is_kept():
    pool = Pool(Rules(negatives=3))
    pool.add("q", ["p"], {"x": 2.0, "y": 1.0})
    pool.look([Record(Passage(i, "same", "title"), "f", 1) for i in ("y", "x")], {})
    assert pool.choose(0, Counter()) == [("x", 2.0)]


def test_the_best_ranks_can_be_skipped():
    negatives, reasons = mined(Rules(negatives=9, skip_top=3))
    assert (negatives, reasons["rank skipped"]) == (["far", "last"], 2)  # the third is the positive


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"ratio": 0.95}, ["far", "last"]),  # below 0.95 * 8 = 7.6
        ({"ratio": 1.0}, ["near", "far", "last"]),  # below 8
        ({"ratio": 0.5}, ["last"]),  # below 4, which is no longer below
        ({"margin": 0.0}, ["near", "far", "last"]),
        ({"margin": 4.5}, ["last"]),  # below 3.5
        ({"ratio": 1.0, "margin": 2.0}, ["far", "last"]),  # the stricter of the two
    ],
)
def test_what_scores_like_the_positive_is_left_out(rule, kept):
    assert mined(Rules(negatives=9, **rule))[0] == kept


def test_without_a_score_to_compare_with_nothing_is_close():
    assert len(mined(Rules(negatives=9, ratio=0.5), best=None)[0]) == 4


def test_a_passage_with_an_answer_in_text_or_title_is_no_negative():
    negatives, reasons = mined(Rules(negatives=9), answers=["of  FAR"])
    assert (negatives, reasons["contains an answer"]) == (["best", "near", "last"], 1)
    pool = Pool(Rules(negatives=1))
    pool.add("q", ["p"], {"x": 1.0})
    pool.add("other", ["p"], {"x": 1.0})
    pool.look([Record(Passage("x", "a river", "Nile"), "f", 1)], {"q": ["nile"]})
    assert [len(pool.choose(number, Counter())) for number in (0, 1)] == [0, 1]


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("The House of us all", "US", True),
        ("A house", "US", False),
        ("in 2015", "15", False),
        ("高さは15メートル", "15", True),
        ("高さは115メートル", "15", False),
        ("奈良の大仏", "奈良", True),
        ("ＮＡＲＡ 　Park", "nara park", True),
        ("Nokian tehdas", "Nokia", True),  # inflected
        ("anything", "", False),
        ("c++ and c", "c++", True),
    ],
)
def test_a_short_answer_stands_alone_and_a_longer_one_may_be_inflected(text, answer, found):
    assert holds(fold(text), [fold(answer)]) is found


def test_a_random_choice_depends_on_seed_and_question_alone_and_keeps_the_order_of_rank():
    pools = []
    for topics in (["q", "r"], ["r", "s", "q"]):
        pool = Pool(Rules(negatives=5, choice="random", seed=3))
        for topic in topics:
            pool.add(topic, ["p"], {f"d{i}": 100.0 - i for i in range(40)})
        pool.look([Record(Passage(f"d{i}", f"text {i}"), "f", 1) for i in range(40)], {})
        pools.append({t: pool.choose(i, Counter()) for i, t in enumerate(topics)})
    assert pools[0]["q"] == pools[1]["q"]
    assert pools[0]["r"] == pools[1]["r"] != pools[0]["q"]
    scores = [score for _, score in pools[0]["q"]]
    assert len(set(scores)) == 5
    assert scores == sorted(scores, reverse=True) != [100.0, 99.0, 98.0, 97.0, 96.0]


# --- the settings ---


def test_the_flag_of_the_source_is_from_on_the_line_and_in_yaml(tmp_path):
    words = ["--corpus", "c", "--output", "o", "--from", "indexes/x", "--ratio", "0.9"]
    config = parse(MineConfig, words, "mine")
    assert config.from_ == "indexes/x"
    (tmp_path / "m.yaml").write_text(parse(MineConfig, [*words, "--print-config"], "mine"))
    assert "from: indexes/x\n" in (tmp_path / "m.yaml").read_text()
    assert parse(MineConfig, ["--config", str(tmp_path / "m.yaml")], "mine") == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"negatives": 0}, "--negatives must be at least 1"),
        ({"negatives": 8, "skip_top": 95}, "--depth must be at least 103, got 100"),
        ({"ratio": 0.0}, "--ratio must be above 0"),
        ({"margin": -1.0}, "--margin must be at least 0"),
        ({"choice": "best"}, "unknown choice 'best'"),
        ({"encoder": "x"}, "--encoder goes with an index"),
        ({"batch_tokens": 9}, "--batch-tokens goes with an index"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings, message):
    with pytest.raises(UserError, match=message):
        MineConfig(corpus="c", output=Path("o"), **settings)


# --- the command, on an index of ours ---


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(here):
    """Twelve passages; three questions, of which the third has no relevant passage."""
    path = here / "facts"
    (path / "collection").mkdir(parents=True)
    docs = [{"id": f"d{i}", "contents": f"T{i}\n\nfact number {i} a b c"} for i in range(12)]
    lines = "".join(json.dumps(doc) + "\n" for doc in docs)
    (path / "collection" / "docs.jsonl").write_text(lines)
    (path / "topic.train.tsv").write_text("1\tfact number 3\n2\twhat is a b c\n3\tfact\n")
    (path / "qrels.train.txt").write_text("1 Q0 d3 1\n1 Q0 d4 2\n2 Q0 d0 1\n2 Q0 d1 0\n3 Q0 d1 0\n")
    (path / "answers.train.jsonl").write_text(
        '{"id": "1", "question": "fact number 3", "answers": ["number 7", "T5"]}\n'
    )
    return path


@pytest.fixture
def made(folder, tiny_checkpoint):
    return encode.run(EncodeConfig(corpus=str(folder), encoder=str(tiny_checkpoint), quiet=True))


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def settings(folder, made, **more):
    more = {"output": Path("out/train.jsonl"), "quiet": True, **more}
    return MineConfig(corpus=str(folder), from_=str(made), **more)


def test_hard_negatives_are_the_nearest_passages_by_brute_force(folder, made, tiny_checkpoint):
    first, second = read(mine.run(settings(folder, made, negatives=3)))
    encoder = Encoder.load(tiny_checkpoint)
    vectors = encoder.encode_passages([(f"T{i}", f"fact number {i} a b c") for i in range(12)])
    for line, positives in ((first, {3, 4}), (second, {0})):
        scores = encoder.encode_queries([line["question"]])[0] @ vectors.T
        best = [i for i in np.argsort(-scores) if i not in positives][:3]
        negatives = line["hard_negative_ctxs"]
        assert [each["passage_id"] for each in negatives] == [f"d{i}" for i in best]
        np.testing.assert_allclose([n["score"] for n in negatives], scores[best], rtol=1e-5)
        assert [n["title"] for n in negatives] == [f"T{i}" for i in best]
        assert [n["text"] for n in negatives] == [f"fact number {i} a b c" for i in best]


def test_positives_come_by_grade_and_a_question_without_one_is_counted(folder, made):
    path = mine.run(settings(folder, made, negatives=11))
    lines = read(path)
    assert [line["id"] for line in lines] == ["1", "2"]
    assert [each["passage_id"] for each in lines[0]["positive_ctxs"]] == ["d4", "d3"]
    assert lines[0]["positive_ctxs"][0]["text"] == "fact number 4 a b c"
    assert lines[0]["answers"] == lines[0]["negative_ctxs"] == []
    sidecar = json.loads(Path(f"{path}.json").read_text())
    # 12 hits each; the first question has 2 positives among them, and so 10 negatives of 11
    assert sidecar["counts"] == {
        "questions": 2,
        "negatives": 21,
        "questions with fewer negatives than asked": 1,
        "questions without hits": 0,
        "questions left out, having no positive": 1,
        "positives that the corpus does not have": 0,
    }
    assert sidecar["left out"] == {"positive": 3}
    assert (sidecar["from"], sidecar["depth"]) == (str(made), 100)
    assert sidecar["index"]["corpus"]["name"] == "facts"


def test_the_same_bytes_come_out_twice(folder, made):
    config = settings(folder, made, choice="random", negatives=4)
    before = mine.run(config).read_bytes()
    sidecar = Path("out/train.jsonl.json").read_bytes()
    assert mine.run(config).read_bytes() == before
    assert Path("out/train.jsonl.json").read_bytes() == sidecar


def test_files_of_questions_judgements_and_answers_are_taken(folder, made):
    config = settings(
        folder,
        made,
        topics=str(folder / "topic.train.tsv"),
        qrels=str(folder / "qrels.train.txt"),
        answers=folder / "answers.train.jsonl",
        negatives=11,
        lang="Finnish",
    )
    first, second = read(mine.run(config))
    ids = {each["passage_id"] for each in first["hard_negative_ctxs"]}
    assert ids == {f"d{i}" for i in range(12)} - {"d3", "d4", "d5", "d7"}
    assert (first["answers"], first["lang"]) == (["number 7", "T5"], "fi")
    assert len(second["hard_negative_ctxs"]) == 11
    with pytest.raises(UserError, match="--split dev: .* are files; leave it out"):
        mine.run(
            settings(folder, made, topics=config.topics, qrels=config.qrels, split="dev", lang="fi")
        )


def test_a_positive_below_the_depth_is_scored_and_its_ratio_holds(folder, made, tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint)
    vectors = encoder.encode_passages([(f"T{i}", f"fact number {i} a b c") for i in range(12)])
    scores = encoder.encode_queries(["fact number 3"])[0] @ vectors.T
    order = np.argsort(-scores)
    worst = order[-1]
    (folder / "qrels.train.txt").write_text(f"1 Q0 d{worst} 1\n")
    limit = (scores[order[2]] + scores[order[3]]) / 2  # so that the three best are too close
    ratio = float(limit / scores[worst])
    config = settings(folder, made, negatives=4, depth=6, ratio=ratio)
    (line,) = read(mine.run(config))
    assert [n["passage_id"] for n in line["hard_negative_ctxs"]] == [f"d{i}" for i in order[3:6]]
    assert json.loads(Path("out/train.jsonl.json").read_text())["left out"] == {
        "scores like a positive": 3
    }


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF2,Flat"])
def test_scores_of_given_passages_are_their_inner_products(made, tiny_checkpoint, factory):
    kind = (
        made
        if factory == "Flat"
        else index.run(IndexConfig(embeddings=(made,), factory=factory, queries=0, quiet=True))
    )
    dense = Dense(open_index(kind, None))
    found = dense.scores(
        [Topic("1", "fact number 3"), Topic("2", "b")], {"1": ["d9", "x"], "2": []}
    )
    encoder = Encoder.load(tiny_checkpoint)
    expected = (
        encoder.encode_queries(["fact number 3"])
        @ encoder.encode_passages([("T9", "fact number 9 a b c")]).T
    )
    assert found == {"1": {"d9": pytest.approx(float(expected[0, 0]), abs=1e-5)}, "2": {}}


def test_an_index_of_another_corpus_is_refused(folder, made):
    (folder / "collection" / "docs.jsonl").write_text('{"id": "d3", "contents": "a"}\n')
    with pytest.raises(UserError, match=r"names 11 passages that facts does not have, such as d"):
        mine.run(settings(folder, made, negatives=1))
    assert not Path("out/train.jsonl").exists()


def test_positives_that_the_corpus_does_not_have_are_counted(folder, made):
    (folder / "qrels.train.txt").write_text("1 Q0 gone 1\n2 Q0 d0 1\n2 Q0 gone 1\n")
    path = mine.run(settings(folder, made))
    assert [line["id"] for line in read(path)] == ["2"]
    counts = json.loads(Path(f"{path}.json").read_text())["counts"]
    assert counts["positives that the corpus does not have"] == 2
    assert counts["questions left out, having no positive"] == 2
    (folder / "qrels.train.txt").write_text("1 Q0 gone 1\n")
    with pytest.raises(UserError, match="facts has none of the relevant passages"):
        mine.run(settings(folder, made))


def test_the_output_takes_the_place_of_nothing_that_is_read(folder, made):
    for name in ("topic.train.tsv", "qrels.train.txt", "answers.train.jsonl"):
        flag = name.partition(".")[0].replace("topic", "topics")
        path = folder / name
        read = path if flag == "answers" else str(path)
        with pytest.raises(UserError, match=f"--output {path}: is what is read"):
            mine.run(settings(folder, made, output=path, **{flag: read}))
    with pytest.raises(UserError, match="--output .*facts: a folder; name a file"):
        mine.run(settings(folder, made, output=folder))


def test_questions_and_judgements_that_do_not_meet_are_refused(folder, made):
    (folder / "qrels.train.txt").write_text("9 Q0 d3 1\n")
    with pytest.raises(UserError, match="none of 3 questions has a relevant passage"):
        mine.run(settings(folder, made))
    (folder / "qrels.train.txt").write_text("1 Q0 d3 1\n")
    (folder / "a.jsonl").write_text('{"id": "8", "question": "q", "answers": ["a"]}\n')
    with pytest.raises(UserError, match="none of its ids is a question's"):
        mine.run(settings(folder, made, answers=folder / "a.jsonl"))


# --- the command, by BM25 ---


@pytest.mark.slow
def test_by_bm25_the_command_prints_its_file_alone_and_writes_the_same_again(here):
    words = ["--corpus", "sample-en", "--split", "test", "--negatives", "3", "--ratio", "0.98"]
    outputs = []
    for name in ("one.jsonl", "two.jsonl"):
        done = subprocess.run(
            [sys.executable, "-m", "ccpretrieve.mine", *words, "--output", name],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert (done.returncode, done.stdout) == (0, f"{name}\n"), done.stderr
        outputs.append(Path(name).read_bytes())
    assert outputs[0] == outputs[1]
    lines = read(Path("one.jsonl"))
    assert len(lines) == 24
    assert {len(line["hard_negative_ctxs"]) for line in lines} <= {0, 1, 2, 3}
    assert any(len(line["hard_negative_ctxs"]) == 3 for line in lines)
    for line in lines:
        positives = {each["passage_id"] for each in line["positive_ctxs"]}
        assert not positives & {each["passage_id"] for each in line["hard_negative_ctxs"]}
