"""The sample collection: parallel over languages, every answer in every relevant passage."""

import json
from importlib.resources import files

import pytest

from ccpretrieve.data.registry import open_corpus

LANGUAGES = sorted(
    folder.name
    for folder in files("ccpretrieve.data").joinpath("sample").iterdir()
    if folder.is_dir()
)


def test_there_are_at_least_six_languages():
    assert {"en", "ja", "ar", "fi", "ru", "th", "sw"} <= set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_is_whole_and_parallel_to_english(language):
    corpus, english = open_corpus(f"sample-{language}"), open_corpus("sample-en")
    passages = {record.passage.id: record.passage for record in corpus.records()}
    assert list(passages) == [record.passage.id for record in english.records()]
    assert len(passages) >= 60
    assert all(passage.title and passage.text for passage in passages.values())
    topics, qrels = corpus.topics("test"), corpus.qrels("test")
    assert len(topics) >= 20
    assert [topic.id for topic in topics] == [topic.id for topic in english.topics("test")]
    assert qrels == english.qrels("test")
    assert set(qrels) == {topic.id for topic in topics}


@pytest.mark.parametrize("language", LANGUAGES)
def test_some_answer_stands_in_every_relevant_passage(language):
    corpus = open_corpus(f"sample-{language}")
    texts = {record.passage.id: record.passage.text for record in corpus.records()}
    qrels = corpus.qrels("test")
    for question in corpus.answers("test"):
        assert question.topic.language in (language, "")
        for docid in qrels[question.topic.id]:
            assert any(answer in texts[docid] for answer in question.answers), question


@pytest.mark.parametrize("language", [code for code in LANGUAGES if code != "en"])
def test_no_passage_was_left_in_english(language):
    def texts(code):
        path = files("ccpretrieve.data").joinpath("sample", code, "collection", "docs.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["contents"].split("\n\n", 1)[1] for line in lines]

    assert not set(texts(language)) & set(texts("en"))
