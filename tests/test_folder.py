import gzip
import json
import os
from pathlib import Path

import pytest

from ccpretrieve.data.folder import FileCorpus, FolderCorpus
from ccpretrieve.data.records import Question, Topic
from ccpretrieve.errors import UserError
from ccpretrieve.files import slug


def passage(identifier):
    return json.dumps({"id": identifier, "contents": f"T\n\ntext of {identifier}"}) + "\n"


@pytest.fixture
def tree(tmp_path):
    """A function that writes files, given as keyword-like pairs, and returns their folder."""

    def tree(files, place="some"):
        for name, content in files.items():
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            raw = content.encode()
            path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return tmp_path / place

    return tree


MRTYDI = {
    "collection/docs.jsonl.gz": passage("1#0") + passage("1#1"),
    "topic.train.tsv": "1\tWho?\n2\tWhat?\n",
    "topic.test.tsv": "3\tWhy?\n",
    "qrels.train.txt": "1 Q0 1#0 1\n2 Q0 1#1 1\n",
    "qrels.test.txt": "3\tQ0\t1#1\t1\n",
    "answers.jsonl": '{"id": "3", "lang": "ja", "question": "Why?", "answers": ["x"]}\n',
    "README.md": "Words.\n",
}


def ids(corpus):
    return [record.passage.id for record in corpus.records()]


def test_a_folder_in_mrtydis_layout_has_passages_topics_and_judgements(tree):
    corpus = FolderCorpus(tree(MRTYDI, "mrtydi/ja"))
    assert (corpus.name, corpus.language) == ("mrtydi-ja", "ja")
    assert ids(corpus) == ids(corpus) == ["1#0", "1#1"]
    assert corpus.topics("train") == [Topic("1", "Who?"), Topic("2", "What?")]
    assert corpus.qrels("test") == {"3": {"1#1": 1}}


def test_a_record_names_its_file_and_line(tree):
    folder = tree(MRTYDI)
    last = list(FolderCorpus(folder).records())[-1]
    assert last.where == f"{folder}/collection/docs.jsonl.gz:2"


def test_answers_without_a_split_serve_those_splits_whose_topics_they_answer(tree):
    corpus = FolderCorpus(tree(MRTYDI))
    assert corpus.answers("test") == [Question(Topic("3", "Why?", "ja"), ("x",))]
    with pytest.raises(UserError, match="none of its ids is a topic of some, split train"):
        corpus.answers("train")


def test_answers_of_a_split_go_before_those_without(tree):
    own = '{"id": "1", "question": "Who?", "answers": ["y"]}\n'
    corpus = FolderCorpus(tree({**MRTYDI, "answers.train.jsonl": own}))
    assert [question.answers for question in corpus.answers("train")] == [("y",)]
    assert [question.answers for question in corpus.answers("test")] == [("x",)]


@pytest.mark.parametrize("method", ["topics", "qrels"])
def test_an_unknown_split_is_answered_with_those_there_are(tree, method):
    corpus = FolderCorpus(tree(MRTYDI))
    with pytest.raises(UserError, match="'tset'; did you mean 'test'\\? allowed: test, train"):
        getattr(corpus, method)("tset")


@pytest.mark.parametrize("method", ["topics", "qrels", "answers"])
def test_a_corpus_of_passages_alone_says_what_it_lacks(tree, method):
    corpus = FolderCorpus(tree({"docs.jsonl": passage("1")}))
    with pytest.raises(UserError, match=f"some has no {method}; give a file"):
        getattr(corpus, method)("test")


def test_topics_without_passages_can_be_read_but_not_encoded(tree):
    corpus = FolderCorpus(tree({"topic.test.tsv": "1\tWho?\n", "qrels.test.txt": "1 Q0 d 1\n"}))
    assert corpus.topics("test") == [Topic("1", "Who?")]
    with pytest.raises(UserError, match="some has no passages"):
        next(corpus.records())


def test_a_folder_of_json_files_is_read_in_the_order_of_their_names(tree):
    files = {
        "b.jsonl": passage("2"),
        "c.json.gz": passage("3"),
        "a.jsonl": passage("1"),
        ".hidden.jsonl": passage("4"),
        "a.jsonl.partial": passage("5"),
    }
    assert ids(FolderCorpus(tree(files))) == ["1", "2", "3"]


def test_topics_and_answers_beside_the_passages_are_not_taken_for_passages(tree):
    files = {
        "docs.tsv": "id\ttext\n1\tone\n",
        "topic.test.tsv": "q\tWho?\n",
        "topics.tsv": "q\tWho?\n",
        "answers.jsonl": "{}\n",
    }
    corpus = FolderCorpus(tree(files))
    assert ids(corpus) == ["1"]
    assert corpus.topics("test") == [Topic("q", "Who?")]


def test_what_describes_a_run_is_not_taken_for_passages(tree):
    files = {
        "docs.tsv": "1\tone\n",
        "topic.test.tsv": "q\tWho?\n",
        "bm25.trec": "q Q0 1 1 1.0 t\n",
        "bm25.trec.json": "{}\n",
        "moved.trec.json": "{}\n",
        "mine.run": "q Q0 1 1 1.0 t\n",
        "mine.run.json": "{}\n",
    }
    corpus = FolderCorpus(tree(files))
    assert ids(corpus) == ["1"]
    assert corpus.topics("test") == [Topic("q", "Who?")]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "docs.jsonl")
    with pytest.raises(
        UserError, match=r"docs\.jsonl: a pipe or device, which cannot be read twice"
    ):
        FolderCorpus(tmp_path / "docs.jsonl")


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz"])
def test_a_single_file_is_a_corpus(tree, name):
    corpus = FolderCorpus(tree({name: passage("1")}, "wiki-ja") / name)
    assert (corpus.name, corpus.language) == ("wiki-ja", "ja")
    assert ids(corpus) == ["1"]


@pytest.mark.parametrize(
    ("place", "name", "language"),
    [
        ("xquad/ja", "xquad-ja", "ja"),
        ("xquad/japanese", "xquad-japanese", "ja"),
        ("xquad/ja/collection", "xquad-ja", "ja"),
        ("xquad/jpn/docs.jsonl", "xquad-jpn", "ja"),
        ("mrtydi-v1.1-japanese", "mrtydi-v1.1-japanese", "ja"),
        ("My Manuals (2)", "my-manuals-2", ""),
        ("資料", "資料", ""),
        ("notes/psgs.tsv", "psgs", ""),
    ],
)
def test_a_name_is_the_last_part_of_the_path_that_says_something(tree, place, name, language):
    content = "1\tone\n" if place.endswith(".tsv") else passage("1")
    inside = {"": content} if Path(place).suffix in {".jsonl", ".tsv"} else {"docs.jsonl": content}
    corpus = FolderCorpus(tree(inside, place))
    assert (corpus.name, corpus.language) == (name, language)


def test_name_and_language_can_be_given(tree):
    folder = tree({"docs.jsonl": passage("1")}, "ja")
    corpus = FolderCorpus(folder, name="mine", language="")
    assert (corpus.name, corpus.language) == ("mine", "")


def test_a_relative_path_names_the_corpus_by_where_it_is(tree, monkeypatch):
    folder = tree({"docs.jsonl": passage("1")}, "xquad/ja")
    monkeypatch.chdir(folder)
    assert FolderCorpus(Path(os.curdir)).name == "xquad-ja"
    assert FolderCorpus(Path("docs.jsonl")).name == "xquad-ja"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"notes.md": "x"}, r"no passages; expected collection/docs\.jsonl\[\.gz\]"),
        ({"collection/notes.md": "x"}, "some/collection: no passages; expected"),
        ({"a.json": "x", "b.tsv": "x"}, r"both a\.json and b\.tsv hold passages"),
        ({"a.jsonl": "x", "a.jsonl.gz": "x"}, r"a\.jsonl\.gz: a\.jsonl is there too"),
        ({"topic.test.tsv": "x", "topics.test.txt": "x"}, r"topic\.test\.tsv is there too"),
    ],
)
def test_a_folder_that_is_no_corpus_or_an_ambiguous_one_is_refused(tree, files, words):
    with pytest.raises(UserError, match=words):
        FolderCorpus(tree(files))


def test_an_empty_and_a_missing_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="no passages; expected"):
        FolderCorpus(tmp_path)
    with pytest.raises(UserError, match="no such folder or file"):
        FolderCorpus(tmp_path / "nowhere")


def test_a_corpus_can_be_made_of_files_named_one_by_one(tree):
    folder = tree({"one.jsonl": passage("1"), "two.tsv": "2\tb\n", "dev.txt": "q\tWho?\n"})
    corpus = FileCorpus(
        "mine",
        language="en",
        passages=[folder / "two.tsv", folder / "one.jsonl"],
        topics={"dev": folder / "dev.txt"},
    )
    assert ids(corpus) == ["2", "1"]
    assert corpus.topics("dev") == [Topic("q", "Who?")]


def test_a_slug_is_never_empty_and_holds_no_separator():
    assert slug("hf:Org/Data Set:ja") == "hf-org-data-set-ja"
    assert slug("//") == "unnamed"


XQUAD = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")


@pytest.mark.real
@pytest.mark.parametrize("code", XQUAD)
def test_xquad_has_the_counts_published(real_data, code):
    corpus = FolderCorpus(real_data / "xquad" / code)
    assert (corpus.name, corpus.language) == (f"xquad-{code}", code)
    records = list(corpus.records())
    assert len({record.passage.id for record in records}) == len(records) == 240
    assert all(record.passage.title and record.passage.text for record in records)
    topics, qrels, answers = corpus.topics("test"), corpus.qrels("test"), corpus.answers("test")
    assert len(topics) == len(qrels) == len(answers) == 1190
    assert [(q.topic.id, q.topic.text) for q in answers] == [(t.id, t.text) for t in topics]
    text = {record.passage.id: record.passage.text for record in records}
    for question in answers:  # every answer stands in its passage, as the README says
        (where,) = qrels[question.topic.id]
        assert all(answer in text[where] for answer in question.answers)


@pytest.mark.real
def test_jaquad_has_the_counts_published(real_data):
    corpus = FolderCorpus(real_data / "jaquad" / "ja")
    assert (corpus.name, corpus.language) == ("jaquad-ja", "ja")
    records = list(corpus.records())
    assert len({record.passage.id for record in records}) == len(records) == 11_144
    assert any("\n" in record.passage.text for record in records)
    for split, count in (("test", 3939), ("train", 31_748)):
        assert len(corpus.topics(split)) == len(corpus.qrels(split)) == count
        assert len(corpus.answers(split)) == count
