"""Tests of benchmarks.xor_retrieve: questions of the sample in two languages, English passages."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import xor_retrieve
from benchmarks.xor_retrieve import DEPTH, Report, XorRetrieveConfig, read_questions
from ccpretrieve.data.records import Passage, Question, Record, Topic
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.metrics import answer_recall
from ccpretrieve.retrieval.runfile import read_run
from ccpretrieve.retrieval.submission import Prediction

LANGUAGES = ("ja", "ru")


def write(path, questions):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(question) + "\n" for question in questions))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Six questions each, asked in two languages under the same ids, answers in English."""
    monkeypatch.chdir(tmp_path)
    answers = {q.topic.id: list(q.answers) for q in open_corpus("sample-en").answers("test")}
    for code in LANGUAGES:
        asked = open_corpus(f"sample-{code}").topics("test")[:6]
        write(
            tmp_path / "asked" / f"xor_dev_retrieve.{code}.jsonl",
            [
                {"id": t.id, "lang": code, "question": t.text, "answers": answers[t.id]}
                for t in asked
            ],
        )
    return tmp_path / "asked"


def config(folder, **more):
    return XorRetrieveConfig(data=folder, passages="sample-en", **more)


def by_hand(budget):
    """Language -> share of hits: the sample's questions whose answer a text of the file holds."""
    answers = {q.topic.id: q.answers for q in open_corpus("sample-en").answers("test")}
    entries = json.loads(Path("runs/asked.dev.tiny.json").read_text(encoding="utf-8"))
    shares = {}
    for code in LANGUAGES:
        ours = [entry for entry in entries if entry["lang"] == code]
        found = []
        for entry in ours:
            recall = answer_recall(
                [Question(Topic(entry["id"], "?", code), answers[entry["id"]])],
                [Prediction(entry["id"], code, tuple(entry["ctxs"]))],
                budget,
            )
            found.append(recall.mean)
        shares[code] = sum(found) / 6
    return shares


@pytest.mark.slow
def test_one_command_writes_the_submission_and_scores_it_and_does_nothing_twice(
    folder, tiny_checkpoint, monkeypatch
):
    wanted = config(folder, encoder=(str(tiny_checkpoint),), tag="tiny")
    report = xor_retrieve.run(wanted)
    path = Path("runs/asked.dev.tiny.json")
    entries = json.loads(path.read_text(encoding="utf-8"))
    assert [(e["lang"], e["id"]) for e in entries] == [
        (code, str(i)) for code in LANGUAGES for i in range(1, 7)
    ]
    # The texts are those of the run, in its order, without titles.
    texts = {r.passage.id: r.passage.text for r in open_corpus("sample-en").records()}
    run = read_run(Path("runs/asked.dev.tiny.trec"))
    for entry in entries:
        ranked = run[f"{entry['lang']}:{entry['id']}"]
        assert entry["ctxs"] == [texts[docid] for docid in ranked]
        assert len(ranked) == min(DEPTH, len(texts))
    for budget in (2000, 5000):
        assert report.measured["tiny"][budget].per_language == by_hand(budget)
    assert len(report.measured["tiny"][5000].missing) == 0
    # 64 passages of some 75 words are no 5,000 tokens.
    assert "too few passages to fill 5000 tokens for 12 questions: 1 (ja)" in str(report)

    # Its file alone gives the same scores.
    alone = xor_retrieve.run(config(folder, predictions=path))
    assert alone.scores(2000)["asked.dev.tiny"] == report.scores(2000)["tiny"]

    searches = []
    search = xor_retrieve.search.run
    monkeypatch.setattr(
        xor_retrieve, "search", SimpleNamespace(run=lambda c: searches.append(search(c)))
    )
    assert xor_retrieve.run(wanted) == report
    assert searches == []
    # A question that is asked in other words under the same id is searched again.
    file = folder / "xor_dev_retrieve.ja.jsonl"
    lines = file.read_text().splitlines()
    write(file, [json.loads(line) | {"question": "Nile?"} for line in lines])
    xor_retrieve.run(wanted)
    assert len(searches) == 1


@pytest.mark.slow
def test_the_registrys_files_are_searched_by_name(tmp_path, tiny_checkpoint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "data" / "xor-retrieve"
    question = {"id": "7", "lang": "ja", "question": "何?", "answers": ["cat"]}
    write(place / "xor_dev_retrieve_eng_span_v1_1.jsonl", [question])
    del question["answers"]
    write(place / "xor_test_retrieve_eng_span_q_only_v1_1.jsonl", [question])
    passages = 'id\ttext\ttitle\n1\t"a ""cat"" sat"\tCat\n2\ta dog\tcat\n'
    (place / "enwiki_20190201_w100.tsv").write_text(passages)
    wanted = {"data_dir": tmp_path / "data", "encoder": (str(tiny_checkpoint),), "tag": "tiny"}
    report = xor_retrieve.run(XorRetrieveConfig(**wanted))
    assert report.scores(2000)["tiny"] == {"ja": 1.0}
    (entry,) = json.loads(Path("runs/xor-retrieve.dev.tiny.json").read_text())
    assert sorted(entry["ctxs"]) == ['a "cat" sat', "a dog"]  # texts without titles
    assert "DrDecr-large (its model card)" in str(report)

    test = xor_retrieve.run(XorRetrieveConfig(split="test", **wanted))
    assert Path("runs/xor-retrieve.test.tiny.json").is_file()
    assert "not scored: no question has an answer here" in str(test)


def report_of(form="text", differences="", missing="miss"):
    questions = [Question(Topic(str(i), "?", "ja"), ("cat",)) for i in range(1, 5)]
    given = [
        Prediction("1", "ja", ("a cat",)),
        Prediction("2", "ja", ()),
        Prediction("9", "ja", ("x",)),
    ]
    measured = {b: answer_recall(questions, given, b, missing=missing) for b in (2000, 5000)}
    return Report({"ours": measured}, {"ours": Path("ours.json")}, differences, form, missing)


def test_what_is_missing_empty_short_and_unknown_is_said_below_the_tables():
    text = str(report_of())
    assert "without a prediction, counted as misses: 2 questions: 3 (ja), 4 (ja)" in text
    assert "with an empty list of passages, counted as misses: 1 question: 2 (ja)" in text
    assert "predicted but not asked, left out: 1 question: 9 (ja)" in text
    assert "R@5kt: too few passages to fill 5000 tokens for 2 questions" in text
    assert "without a prediction, left out, as officially" in str(report_of(missing="official"))


def test_published_rows_are_dashes_or_the_model_cards_and_only_beside_the_same_data():
    lines = [line.split() for line in str(report_of()).splitlines()]
    assert ["CCP", "(paper)", "-", "-"] in lines
    assert ["DrDecr-large", "(its", "model", "card)", "0.631", "0.631"] in lines
    assert ["DrDecr-large", "(its", "model", "card)", "0.697", "0.697"] in lines
    text = str(report_of(differences="they are not of this"))
    assert "(paper)" not in text
    assert "left out: they are not of this" in text


def test_all_formats_hold_the_scores_and_the_notes():
    # 1 of 4 questions.
    content = json.loads(str(report_of("json")))
    assert content["R@2kt"]["ours (here)"] == {"ja": 0.25, "avg": 0.25}
    assert any("without a prediction" in note for note in content["notes"])
    for form, row in (("markdown", "| ours (here) |"), ("latex", "ours (here) &")):
        assert row in str(report_of(form))
        assert "without a prediction" in str(report_of(form))


def test_questions_are_chosen_by_language_in_any_spelling(folder):
    asked = read_questions(config(folder, languages=("Russian",)))
    assert [(q.topic.language, q.topic.id) for q in asked] == [("ru", str(i)) for i in range(1, 7)]
    with pytest.raises(UserError, match="unknown language of the questions 'fi'"):
        read_questions(config(folder, languages=("fi",)))


def test_a_choice_of_languages_has_files_of_its_own(folder):
    assert config(folder).name == "asked"
    assert config(folder, languages=("Russian", "ja")).name == "asked-ja-ru"
    assert config(folder, languages=("jpn", "ru")).name == "asked-ja-ru"
    assert XorRetrieveConfig(languages=("te",)).name == "xor-retrieve-te"


def test_questions_that_cannot_be_used_are_refused_in_a_line(folder):
    with pytest.raises(UserError, match=r"no file xor_train_\*\.jsonl in it"):
        read_questions(config(folder, split="train"))
    question = {"id": "1", "question": "?", "answers": ["x"]}
    bad = folder / "xor_dev_z.jsonl"
    for line, message in (
        (question, """z.jsonl: question '1' has no "lang"""),
        (question | {"lang": "ja"}, r"z.jsonl: question '1' \(ja\) stands twice"),
        ({"id": "1", "lang": "fi", "question": "?"}, r"z.jsonl:1: \"answers\" is no list"),
    ):
        write(bad, [line])
        with pytest.raises(UserError, match=message):
            read_questions(config(folder))


def test_settings_that_do_not_go_together_are_refused():
    for message, settings in {
        "--encoder: not with --predictions": {"predictions": Path("x"), "encoder": ("e",)},
        "--pooling: not with --predictions": {"predictions": Path("x"), "pooling": "cls"},
        "--device: not with --predictions": {"predictions": Path("x"), "device": "cpu"},
        "--calibration: not with": {"predictions": Path("x"), "calibration": Path("c")},
        "unknown pooling 'max'": {"pooling": "max"},
        "--tag names one row": {"tag": "t", "encoder": ("a", "b")},
        "unknown missing 'zero'": {"missing": "zero"},
        "unknown format": {"format": "yaml"},
    }.items():
        with pytest.raises(UserError, match=message):
            XorRetrieveConfig(**settings)


def test_only_the_texts_that_were_retrieved_are_held_and_reading_stops_at_the_last():
    read = []

    def records():
        for i in range(100):
            read.append(i)
            yield Record(Passage(f"p{i}", f"text {i}", "title"), "file", i + 1)

    corpus = SimpleNamespace(name="corpus", records=records)
    assert xor_retrieve.look_up(corpus, {"p3", "p7"}) == {"p3": "text 3", "p7": "text 7"}
    assert read == list(range(8))
    with pytest.raises(UserError, match="corpus: has no passage 'q' any more"):
        xor_retrieve.look_up(corpus, {"p3", "q"})
