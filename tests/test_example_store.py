"""The store: what is left out is counted and told, what is kept comes back as it was."""

import json

import numpy as np
import pytest

from ccpretrieve.data import example_store as store_module
from ccpretrieve.data.example_store import ExampleStore, passage_key, prepare
from ccpretrieve.data.examples import Example, ExampleSource, open_examples
from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError


class Listed(ExampleSource):
    """Examples of a list."""

    def __init__(self, *examples, name="listed"):
        self.name = name
        self.listed = examples

    def examples(self):
        for number, example in enumerate(self.listed, 1):
            yield example, f"{self.name}:{number}"


def passages(*texts):
    return tuple(Passage(f"id-{text}", text, f"title {text}") for text in texts)


def example(question="q", positives=("p",), negatives=("n",), **more):
    return Example(question, passages(*positives), passages(*negatives), **more)


def made(tmp_path, *examples, **more):
    options = {"positives": None, "negatives": 2, **more}
    path = tmp_path / "examples.jsonl"
    prepared = prepare([Listed(*examples)], path, **options)
    return prepared, ExampleStore.open(path)


def test_examples_come_back_as_they_were_in_any_order(tmp_path):
    odd = Example(
        "誰\u2028が \u00a0\ud7ff 'x'?\nl2",
        (Passage("", "text\r\x00\u0085", ""), Passage("7", "b", "題")),
        (),
        "x y",
        "ja",
        ("a", "b\u2029"),
    )
    listed = [example("first", language="fi", id="1"), odd, example("third", negatives=())]
    prepared, store = made(tmp_path, *listed)
    assert prepared.count == len(store) == 3
    assert [store[i] for i in (2, 0, 1)] == [listed[2], listed[0], listed[1]]
    for number in (3, -1):
        with pytest.raises(IndexError):
            store[number]


def test_languages_are_known_by_number(tmp_path):
    codes = ["ja", "", 'od"d\\', "ja", "fi", "ja"]
    listed = [example(f"q{i}", language=code) for i, code in enumerate(codes)]
    prepared, store = made(tmp_path, *listed)
    assert store.languages == ("", "fi", "ja", 'od"d\\')
    assert {code: ids.tolist() for code, ids in store.of_language.items()} == {
        "": [1],
        "fi": [4],
        "ja": [0, 3, 5],
        'od"d\\': [2],
    }
    assert all(ids.dtype == np.int64 for ids in store.of_language.values())
    assert prepared.by_language == {"": 1, "fi": 1, "ja": 3, 'od"d\\': 1}


def test_a_language_may_have_any_name(tmp_path):
    name = 'Old "Japanese"\n' + 100 * "ja"
    _, store = made(tmp_path, example("a", language=name), example("b", language="ja"))
    assert store.languages == (name, "ja")
    assert store[0].language == name


def test_what_cannot_be_learned_from_is_left_out_with_its_reason_and_first_place(tmp_path, caplog):
    empty = Passage("e", " \n", "\t")
    prepared, store = made(
        tmp_path,
        example("good"),
        example(" \u3000"),
        example(""),
        example("no positive", positives=()),
        Example("empty positive", (empty,), ()),
        Example("one of two is empty", (empty, *passages("p")), ()),
    )
    assert prepared.count == 2
    assert prepared.dropped == {
        store_module.NO_QUESTION: 2,
        store_module.NO_POSITIVE: 1,
        store_module.EMPTY_POSITIVE: 1,
    }
    assert prepared.passages_dropped == {store_module.EMPTY: 1}
    assert store[1].positives == passages("p")
    told = [record.message for record in caplog.records]
    assert [line.split(";")[0] for line in told] == [
        "listed:2: no question",
        "listed:4: no positive passage",
        "listed:5: only empty positive passages",
    ]


def test_an_example_that_comes_again_is_kept_once_over_all_sources(tmp_path):
    one = example("q", ("p", "other"), ("n",))
    again = example("q", ("p",), ("another negative",))  # same question and first positive
    differs = example("q", ("other", "p"))
    path = tmp_path / "examples.jsonl"
    sources = [Listed(one, again, name="a"), Listed(differs, one, name="b")]
    prepared = prepare(sources, path, positives=1, negatives=1)
    assert prepared.count == 2
    assert prepared.dropped == {store_module.REPEATED: 2}
    store = ExampleStore.open(path)
    assert [store[i].positives for i in range(2)] == [passages("p"), passages("other")]


def test_negatives_that_are_positives_or_repeated_or_empty_do_not_count(tmp_path):
    positives = (Passage("1", "a", "A"), Passage("2", "b", "B"))
    negatives = (
        Passage("9", "b", "B"),  # text and title of the second positive, which is not kept
        Passage("1", "a, otherwise cut", "A"),  # id of the first
        Passage("3", "a", "B"),  # its text under another title: another passage
        Passage("", "c", ""),
        Passage("4", "c", ""),  # repeated
        Passage("", " ", ""),  # empty
        Passage("", "d", ""),
        Passage("", "e", ""),
    )
    prepared, store = made(tmp_path, Example("q", positives, negatives), positives=1, negatives=3)
    assert store[0].positives == positives[:1]
    assert [p.text for p in store[0].negatives] == ["a", "c", "d"]
    assert prepared.passages_dropped == {
        store_module.IS_POSITIVE: 2,
        store_module.TWICE: 1,
        store_module.EMPTY: 1,
    }
    assert prepared.fewer_negatives == 0


def test_passages_without_an_id_are_not_taken_for_one_another(tmp_path):
    _, store = made(tmp_path, Example("q", (Passage("", "p"),), (Passage("", "n"),)))
    assert store[0].negatives == (Passage("", "n"),)


def test_examples_with_fewer_negatives_than_asked_are_kept_and_counted(tmp_path):
    listed = [example(f"q{n}", negatives="abcd"[:n]) for n in range(5)]
    prepared, store = made(tmp_path, *listed, negatives=2)
    assert prepared.fewer_negatives == 2  # those with none and with one
    assert [len(store[i].negatives) for i in range(5)] == [0, 1, 2, 2, 2]
    prepared, store = made(tmp_path, *listed, negatives=0)
    assert prepared.fewer_negatives == 0
    assert all(store[i].negatives == () for i in range(5))


def test_nothing_left_is_refused_and_leaves_no_file(tmp_path):
    path = tmp_path / "examples.jsonl"
    with pytest.raises(UserError, match="listed: no example is left .*2 x no question"):
        prepare([Listed(example(""), example(" "))], path, positives=None, negatives=1)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_breaks_leaves_no_file(tmp_path):
    source = tmp_path / "train.jsonl"
    record = {"question": "q", "positive_ctxs": [{"text": "p"}]}
    source.write_text(json.dumps(record) + "\noops\n")
    with pytest.raises(UserError, match=r"train.jsonl:2: not JSON"):
        prepare([open_examples(str(source))], tmp_path / "out.jsonl", positives=None, negatives=1)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def test_the_same_sources_give_the_same_bytes(tmp_path):
    written = []
    for name in ("a", "b"):
        prepare([Listed(example("q"), example("r"))], tmp_path / name, positives=1, negatives=1)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_a_passage_s_key_is_its_title_and_text_and_not_its_id():
    key = passage_key(Passage("1", "text", "title"))
    assert key == passage_key(Passage("2", "text", "title", "ja"))
    others = [Passage("1", "text"), Passage("1", "title", "text"), Passage("1", "texttitle", "")]
    assert key not in {passage_key(other) for other in others}
    assert -(2**63) <= key < 2**63


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"", 1), (b'{"question": "q"}\n', 1), (b"cut", 1), (b'{"language": "", "id": 1}', 1)],
)
def test_a_foreign_file_is_refused(tmp_path, content, line):
    path = tmp_path / "examples.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path}:{line}: not an example"):
        ExampleStore.open(path)
    with pytest.raises(UserError, match="no such file"):
        ExampleStore.open(tmp_path / "gone")


def test_a_line_that_was_changed_is_refused_when_it_is_read(tmp_path):
    made(tmp_path, example("q"), example("r"))
    path = tmp_path / "examples.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"question": "r"', b'"quextion": "r"'))
    store = ExampleStore.open(path)
    assert store[0].question == "q"
    with pytest.raises(UserError, match=f"{path}:2: not an example"):
        store[1]
