"""Tests of R@kt in ccpretrieve.retrieval.metrics: by hand, and against tests/oracle_answer_recall.

A made-up word is one token, so that budgets can be counted.
"""

import hashlib
import heapq
import importlib.util
import json
from pathlib import Path

import pytest

from ccpretrieve.data.readers import read_answers
from ccpretrieve.data.records import Question, Topic
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.metrics import answer_recall, first_tokens
from ccpretrieve.retrieval.submission import Prediction, read_submission, write_submission
from ccpretrieve.retrieval.words import word_tokenize

ORACLE = Path(__file__).with_name("oracle_answer_recall.py")


def question(topic, *answers, language="ja"):
    return Question(Topic(topic, "What?", language), answers)


def predicted(topic, *passages, language="ja"):
    return Prediction(topic, language, passages)


def hit(answers, passages, tokens):
    recall = answer_recall([question("q", *answers)], [predicted("q", *passages)], tokens)
    return recall.hits["ja"]["q"]


@pytest.fixture(scope="module")
def oracle():
    if not ORACLE.is_file():
        pytest.skip(f"no {ORACLE.name} beside this file")
    spec = importlib.util.spec_from_file_location("oracle_answer_recall", ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.recall_at_tokens


# -- what a hit is --


@pytest.mark.parametrize(
    ("answers", "passages", "tokens", "expected"),
    [
        (["b c"], ["a b c d"], 3, True),  # the first 3 tokens: a b c
        (["b c"], ["a b c d"], 2, False),  # a b
        (["b"], ["xx", "a b"], 3, True),  # xx a b: the budget runs on over passages
        (["b"], ["xx", "a b"], 2, False),
        (["c d"], ["a b c", "d e"], 4, True),  # across two passages
        (["c d"], ["a b c", "", "  ", "d e"], 4, True),  # a passage without tokens leaves no gap
        (["at"], ["a Cathode"], 9, True),  # inside a word
        (["cat"], ["a Cat"], 9, False),  # the case counts
        (["Cat"], ["cat", "Cat"], 9, True),
        (["zz", "cat"], ["a cat"], 9, True),  # any of the answers
        (["$5,000"], ["It cost $5,000."], 99, False),  # tokens: $ 5,000
        (["5,000"], ["It cost $5,000."], 99, True),
        (["10%"], ["Only 10% left"], 99, False),
        (["(1990)"], ["In it (1990) we"], 99, False),
        (["Yes"], ["Yes it is"], 99, True),  # only "yes" and "no" are dropped
        (["yes", "cat"], ["yes dog"], 99, False),  # yes is not searched for
        (["cat"], [], 99, False),
    ],
)
def test_a_hit_is_an_answer_within_the_first_tokens(answers, passages, tokens, expected):
    assert hit(answers, passages, tokens) is expected


def test_the_last_passage_is_cut_at_exactly_the_budget():
    # "Aa bb. Cc dd." is Aa bb . Cc dd . = 6 tokens; 2 of the second fill 8.
    texts, full = first_tokens(["Aa bb. Cc dd.", "ee ff gg", "hh"], 8)
    assert (texts, full) == (["Aa bb . Cc dd .", "ee ff"], True)


def test_a_budget_that_is_just_met_is_full():
    assert first_tokens(["a b", "c"], 3) == (["a b", "c"], True)
    assert first_tokens(["a b", "c"], 4) == (["a b", "c"], False)


# -- what counts --


def test_questions_with_no_answer_but_yes_and_no_do_not_count():
    questions = [question("1", "cat"), question("2", "yes"), question("3", "no", "yes")]
    questions += [question("4")]
    recall = answer_recall(questions, [predicted(str(n), "a cat yes no") for n in range(1, 5)], 9)
    assert recall.hits == {"ja": {"1": True}}
    assert recall.unsearched == [("ja", "2"), ("ja", "3"), ("ja", "4")]


def test_the_mean_is_over_languages_not_over_questions():
    # ja: 1 of 1; fi: 1 of 4. Mean (1 + 1/4) / 2 = 0.625; over questions it would be 2/5.
    questions = [question("1", "cat")]
    questions += [question(str(n), "cat", language="fi") for n in range(2, 6)]
    texts = {"1": "cat", "2": "cat", "3": "dog", "4": "dog", "5": "dog"}
    given = [predicted(q.topic.id, texts[q.topic.id], language=q.topic.language) for q in questions]
    recall = answer_recall(questions, given, 9)
    assert recall.per_language == {"ja": 1.0, "fi": 0.25}
    assert recall.mean == 0.625


def test_a_question_without_a_prediction_is_a_miss_and_officially_left_out():
    # fi is not predicted at all: 0 here, absent officially.
    questions = [question("1", "cat"), question("2", "cat"), question("3", "cat", language="fi")]
    given = [predicted("1", "a cat")]
    ours = answer_recall(questions, given, 9)
    assert (ours.per_language, ours.mean) == ({"ja": 0.5, "fi": 0.0}, 0.25)
    official = answer_recall(questions, given, 9, missing="official")
    assert (official.per_language, official.mean) == ({"ja": 1.0}, 1.0)
    assert ours.missing == official.missing == [("ja", "2"), ("fi", "3")]


def test_an_answer_that_any_text_holds_is_no_hit_without_a_prediction(caplog):
    questions = [question("1", ""), question("2", "")]
    recall = answer_recall(questions, [predicted("1")], 9)
    assert recall.hits == {"ja": {"1": True, "2": False}}
    assert "2 questions have an empty answer" in caplog.text


def test_too_few_passages_and_none_at_all_are_noted_by_budget():
    questions = [question("1", "cat"), question("2", "cat"), question("3", "yes")]
    given = [predicted("1", "a cat sat"), predicted("2"), predicted("3", "a")]
    assert answer_recall(questions, given, 3).short == [("ja", "2")]
    more = answer_recall(questions, given, 4)
    assert (more.short, more.empty) == ([("ja", "1"), ("ja", "2")], [("ja", "2")])


def test_the_same_id_in_two_languages_is_two_questions():
    questions = [question("1", "cat"), question("1", "cat", language="fi")]
    given = [predicted("1", "dog"), predicted("1", "cat", language="fi")]
    assert answer_recall(questions, given, 9).per_language == {"ja": 0.0, "fi": 1.0}


# -- beside ranx --


def test_within_one_passage_differs_from_a_hit_only_where_an_answer_crosses_passages():
    texts = {
        "inside": ("a cat", "sat"),
        "across": ("a", "cat sat"),  # "a cat" begins in one and ends in the next
        "cut": ("x y a", "cat"),  # 3 tokens: cut before cat
        "none": ("dog",),
        "empty": (),
    }
    questions = [question(name, "a cat") for name in texts] + [question("missing", "a cat")]
    recall = answer_recall(questions, [predicted(name, *p) for name, p in texts.items()], 3)
    expected = dict.fromkeys([*texts, "missing"], False)
    assert recall.hits["ja"] == expected | {"inside": True, "across": True}
    assert recall.within["ja"] == expected | {"inside": True}
    assert recall.within_per_language == {"ja": 1 / 6}


def test_relevance_is_cut_at_the_same_token_as_the_text():
    # "cat" is the 4th token: with 3 the passage that holds it is not relevant either.
    for tokens, expected in ((3, False), (4, True)):
        recall = answer_recall([question("q", "cat")], [predicted("q", "x y", "z cat")], tokens)
        assert recall.hits["ja"]["q"] is recall.within["ja"]["q"] is expected


# -- what cannot be scored --


@pytest.mark.parametrize(
    ("questions", "given", "message"),
    [
        ([question("1", "a")] * 2, [predicted("1", "a")], "stands twice"),
        ([question("1", "a")], [predicted("1", "a")] * 2, "stands twice"),
        ([question("1", "a")], [predicted("2", "a")], r"predicted is \('ja', '2'\), asked"),
        ([question("1", "a")], [], "predicted is nothing"),
        ([question("1", "no")], [predicted("1", "a")], "no question counts"),
        (
            [question("1", "a"), question("2", "a", language="fi")],
            [predicted("1", "a", language="fi")],
            "'1' is predicted in language 'fi' and asked in 'ja'",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused_in_a_line(questions, given, message):
    with pytest.raises(UserError, match=message):
        answer_recall(questions, given, 9)


def test_an_unknown_treatment_of_missing_predictions_is_refused():
    with pytest.raises(UserError, match="did you mean 'official'"):
        answer_recall([question("1", "a")], [predicted("1", "a")], 9, missing="oficial")


def test_predictions_for_no_question_do_not_count_and_are_noted():
    given = [predicted("1", "a"), predicted("9", "a"), predicted("1", "a", language="te")]
    recall = answer_recall([question("1", "a")], given, 9)
    assert recall.unknown == [("ja", "9"), ("te", "1")]
    assert recall.hits == {"ja": {"1": True}}


# -- the submission file --


def test_a_submission_reads_as_it_was_written(tmp_path):
    predictions = [predicted("-7", "Nile\n\nflows", "富士"), predicted("1", language="fi")]
    path = tmp_path / "runs" / "s.json"
    write_submission(path, predictions)
    assert read_submission(path) == predictions
    assert json.loads(path.read_text(encoding="utf-8"))[0] == {
        "id": "-7",
        "lang": "ja",
        "ctxs": ["Nile\n\nflows", "富士"],
    }


def test_q_id_is_read_where_there_is_no_id(tmp_path):
    path = tmp_path / "s.json"
    entries = [{"q_id": "a", "lang": "ja", "ctxs": []}]
    entries += [{"id": "b", "q_id": "c", "lang": "ja", "ctxs": []}]
    path.write_text(json.dumps(entries))
    assert [prediction.id for prediction in read_submission(path)] == ["a", "b"]


GOOD = '{"id": "1", "lang": "ja", "ctxs": ["a"]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a list of predictions, or an empty one"),
        ("{}", "not a list of predictions"),
        (f"{GOOD}\n{GOOD}", r"s\.json:2: not JSON"),
        (f"[{GOOD}, 3]", "entry 2: is of type int"),
        (f'[{GOOD}, {{"lang": "ja", "ctxs": []}}]', "entry 2: no id"),
        (f'[{GOOD}, {{"id": "2", "ctxs": []}}]', """entry 2: question '2' has no "lang"""),
        (f'[{GOOD}, {{"id": "2", "lang": "ja"}}]', """entry 2: question '2' has no list "ctxs"""),
        ('[{"id": "2", "lang": "ja", "ctxs": ["a", {}]}]', "entry 1: .* passage 2 is of type dict"),
        (f"[{GOOD}, {GOOD}]", r"entry 2: question '1' \(ja\) has entry 1 already"),
    ],
)
def test_a_malformed_submission_is_refused_with_its_place(text, message, tmp_path):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_submission(tmp_path / "s.json")
    assert "\n" not in str(caught.value)


# -- an implementation written apart --


def compare(oracle, questions, given, tokens, missing="miss"):
    """Both implementations' shares and means, asserted to be alike; ours is returned."""
    ours = answer_recall(questions, given, tokens, missing=missing)
    entries = [{"id": p.id, "lang": p.language, "ctxs": list(p.passages)} for p in given]
    asked = [
        {"id": q.topic.id, "lang": q.topic.language, "answers": list(q.answers)} for q in questions
    ]
    shares, mean = oracle(entries, asked, tokens, TOKENS.__getitem__, missing)
    assert ours.per_language == pytest.approx(shares, abs=1e-12)
    assert ours.mean == pytest.approx(mean, abs=1e-12)
    return ours


class Cached(dict):
    """Text -> its tokens."""

    def __missing__(self, text):
        self[text] = word_tokenize(text)
        return self[text]


TOKENS = Cached()


@pytest.mark.parametrize("missing", ["miss", "official"])
@pytest.mark.parametrize("tokens", [1, 3, 7, 50])
def test_an_independent_implementation_agrees_on_edge_cases(oracle, tokens, missing):
    answers = [["yes"], ["no", "yes"], [], ["Yes"], ["c d"], ["$5"], ["a"], ["no", "x"], ["E"]]
    passages = [
        (),
        ("",),
        ("a b c", "d e."),
        ("Yes it cost $5.", "a x"),
        ("E", "e", "a b c d e f g"),
    ]
    questions, given = [], []
    for language in ("ja", "fi", "te", "ko"):
        for i, some in enumerate(answers):
            for j, texts in enumerate(passages):
                topic = f"{language}{i}.{j}"
                questions.append(question(topic, *some, language=language))
                if language != "ko" and (i + j) % 3:
                    given.append(predicted(topic, *texts, language=language))
    given.append(predicted("unknown", "a"))
    recall = compare(oracle, questions, given, tokens, missing)
    assert recall.missing
    assert ("ko" in recall.hits) is (missing == "miss")


LANGUAGES = ["ar", "de", "el", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh"]


@pytest.fixture(scope="module")
def english(real_data):
    """Texts of the passages, and question id -> words of the question."""
    if not (real_data / "xquad_xor").is_dir():
        pytest.skip(f"no xquad_xor in {real_data}")
    corpus = open_corpus(str(real_data / "xquad" / "en"))
    questions = {topic.id: set(topic.text.lower().split()) for topic in corpus.topics("test")}
    return [record.passage.text for record in corpus.records()], questions


@pytest.fixture(scope="module")
def by_words(english):
    """Question id -> passages that share most words with it."""
    passages, questions = english
    bags = {text: set(text.lower().split()) for text in passages}
    return {
        topic: heapq.nlargest(18, passages, key=lambda text: len(words & bags[text]))
        for topic, words in questions.items()
    }


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_an_independent_implementation_agrees_on_every_question_of_real_text(
    language, english, by_words, real_data, oracle
):
    questions = read_answers(
        real_data / "xquad_xor" / f"xor_dev_retrieve_eng_span.{language}.jsonl"
    )
    assert len(questions) == 1190
    texts, _ = english
    some, close = [], []
    for q in questions:
        first = int(hashlib.sha256(f"{q.topic}".encode()).hexdigest(), 16) % (len(texts) - 9)
        some.append(predicted(q.topic.id, *texts[first : first + 9], language=language))
        close.append(predicted(q.topic.id, *by_words[q.topic.id], language=language))
    by_chance = compare(oracle, questions, some, 700)
    compare(oracle, questions, some[::2], 700, "official")
    found = compare(oracle, questions, close, 2000)
    assert 0 < by_chance.mean < found.mean < 1
    for ours in (by_chance, found):
        assert all(
            ours.hits[language][topic] >= is_in for topic, is_in in ours.within[language].items()
        )
