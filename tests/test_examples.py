"""Examples in every spelling: read as they are, streamed, and refused with file and place."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ccpretrieve.data.examples import open_examples, to_example
from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError


def context(name, **more):
    return {"title": f"T{name}", "text": f"text {name}", **more}


def dpr(question="who?", **more):
    return {"question": question, "answers": ["x"], "positive_ctxs": [context("p")], **more}


def write_array(path, records):
    content = json.dumps(records, ensure_ascii=False, indent=1).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def write_lines(path, records):
    content = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def read(name, **more):
    return [example for example, _ in open_examples(name, **more).examples()]


def refused(name, **more):
    with pytest.raises(UserError) as caught:
        read(name, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- what is read --


def test_dprs_array_and_its_lines_packed_or_not_give_the_same_examples(tmp_path):
    records = [dpr(f"q{i}? 日本 é", hard_negative_ctxs=[context(i)]) for i in range(7)]
    files = [
        write_array(tmp_path / "a.json", records),
        write_array(tmp_path / "a.json.gz", records),
        write_lines(tmp_path / "a.jsonl", records),
        write_lines(tmp_path / "a.jsonl.gz", records),
        write_lines(
            tmp_path / "lines.json", records
        ),  # what a file begins with tells, not its name
        write_array(tmp_path / "array.jsonl", records),
    ]
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf \n" + (tmp_path / "a.json").read_bytes())
    first, *others = [
        [(e.question, e.positives, e.negatives, e.answers) for e in read(name)]
        for name in [*files, str(marked)]
    ]
    assert [question for question, *_ in first] == [f"q{i}? 日本 é" for i in range(7)]
    assert first[3][1:] == (
        (Passage("", "text p", "Tp"),),
        (Passage("", "text 3", "T3"),),
        ("x",),
    )
    assert all(other == first for other in others)


def test_tevatrons_spelling_is_read_beside_dprs(tmp_path):
    record = {
        "query_id": "17",
        "query": "誰?",
        "positive_passages": [{"docid": "1#0", "title": "T", "text": "yes"}],
        "negative_passages": [{"docid": "1#1", "title": "T", "text": "no"}],
    }
    (example,) = read(write_lines(tmp_path / "train.jsonl", [record]))
    assert (example.id, example.question) == ("17", "誰?")
    assert example.positives == (Passage("1#0", "yes", "T"),)
    assert example.negatives == (Passage("1#1", "no", "T"),)


@pytest.mark.parametrize("field", ["passage_id", "psg_id", "docid", "id"])
def test_a_passage_s_id_goes_by_any_name_and_a_number_is_a_string(field):
    record = {"question": "q", "positive_ctxs": [{"text": "t", field: 12}]}
    assert to_example(record).positives == (Passage("12", "t", ""),)


def test_ordinary_negatives_stand_in_only_where_there_are_no_hard_ones():
    both = dpr(hard_negative_ctxs=[context("h")], negative_ctxs=[context("n")])
    assert [p.text for p in to_example(both).negatives] == ["text h"]
    without = dpr(hard_negative_ctxs=[], negative_ctxs=[context("n")])
    assert [p.text for p in to_example(without).negatives] == ["text n"]


def test_an_example_without_an_id_is_named_by_where_it_stands(tmp_path):
    array = write_array(tmp_path / "a.json", [dpr(), dpr(id="mine"), dpr()])
    assert [e.id for e in read(array)] == [f"{array}, record 1", "mine", f"{array}, record 3"]
    lines = write_lines(tmp_path / "a.jsonl", [dpr(), dpr(id=7)])
    assert [e.id for e in read(lines)] == [f"{lines}:1", "7"]


def test_a_record_s_language_wins_over_that_of_the_file(tmp_path):
    records = [dpr(lang="fi"), dpr(language="Japanese"), dpr(), dpr(lang="xx-made-up")]
    named = write_lines(tmp_path / "train.ko.jsonl", records)
    assert [e.language for e in read(named)] == ["fi", "ja", "ko", "xx-made-up"]
    plain = write_lines(tmp_path / "train.jsonl", records)
    assert [e.language for e in read(plain)] == ["fi", "ja", "", "xx-made-up"]


def test_the_training_file_of_a_registered_corpus_is_found_by_its_name(tmp_path):
    (tmp_path / "nq").mkdir()
    write_array(tmp_path / "nq" / "biencoder-nq-train.json", [dpr("from train")])
    write_array(tmp_path / "nq" / "biencoder-nq-dev.json", [dpr("from dev")])
    for split in ("train", "dev"):
        source = open_examples("nq", split, tmp_path)
        assert source.name == "nq"
        (example,) = [example for example, _ in source.examples()]
        assert (example.question, example.language) == (f"from {split}", "en")
    with pytest.raises(UserError, match="unknown split of nq's training 'test'"):
        open_examples("nq", "test", tmp_path)


# -- topics, judgements and passages --


@pytest.fixture
def folder(tmp_path):
    """A corpus in Mr.TyDi's layout: passages a#0 .. a#5, three topics."""
    place = tmp_path / "made" / "ja"
    (place / "collection").mkdir(parents=True)
    passages = [{"id": f"a#{i}", "contents": f"Title {i}\n\ntext {i}"} for i in range(6)]
    write_lines(place / "collection" / "docs.jsonl", passages)
    (place / "topic.train.tsv").write_text("1\tfirst?\n2\tsecond?\n3\tthird?\n")
    (place / "qrels.train.txt").write_text(
        "1 Q0 a#4 1\n1 Q0 a#2 2\n1 Q0 a#5 0\n2 Q0 a#0 1\n9 Q0 a#1 1\n"
    )
    return place


def test_a_corpus_gives_its_topics_with_what_is_judged_the_highest_grade_first(folder):
    # of topic 3 nothing is judged: it comes without positives, for the store to count
    source = open_examples(str(folder))
    examples, places = zip(*source.examples(), strict=True)
    assert [e.question for e in examples] == ["first?", "second?", "third?"]
    assert [[p.id for p in e.positives] for e in examples] == [["a#2", "a#4"], ["a#0"], []]
    assert [[p.id for p in e.negatives] for e in examples] == [["a#5"], [], []]
    assert examples[0].positives[0] == Passage("a#2", "text 2", "Title 2")
    assert {e.language for e in examples} == {"ja"}
    assert places[0] == "made-ja, topic 1"


def test_judged_passages_that_the_corpus_lacks_are_told(folder, caplog):
    (folder / "qrels.train.txt").write_text("1 Q0 a#2 1\n1 Q0 gone 1\n")
    assert [p.id for p in read(str(folder))[0].positives] == ["a#2"]
    assert "1 of 2 judged passages are not in the corpus, gone the first" in caplog.text


def test_topics_and_judgements_that_do_not_meet_are_refused(folder):
    (folder / "qrels.train.txt").write_text("77 Q0 a#2 1\n")
    assert "no topic of split train has a judgement" in refused(str(folder))


def test_a_split_that_a_corpus_lacks_names_those_it_has(folder):
    said = refused(str(folder), split="trian")
    assert "did you mean 'train'" in said


@pytest.mark.real
def test_jaquad_s_training_questions_come_with_their_passage(real_data):
    if not (real_data / "jaquad").is_dir():
        pytest.skip("no jaquad in the real text")
    source = open_examples(str(real_data / "jaquad" / "ja"))
    examples = [example for example, _ in source.examples()]
    assert len(examples) == 31748  # training questions, as its README counts
    assert all(len(e.positives) == 1 and e.language == "ja" for e in examples)
    assert examples[1].question == "手塚治虫の出身地はどこになりますか?"
    assert "手塚" in examples[1].positives[0].text


# -- the hub --


@pytest.mark.slow  # imports datasets
def test_a_data_set_is_streamed_by_split(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place = tmp_path / "set-ja"
    place.mkdir()
    for split in ("train", "dev"):
        records = [
            {
                "query_id": f"{split}{i}",
                "query": f"q{i}",
                "positive_passages": [{"docid": f"{i}", "title": None, "text": "yes"}],
                "negative_passages": [],
            }
            for i in range(3)
        ]
        write_lines(place / f"{split}.jsonl", records)
    (place / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - split: train\n    path: train.jsonl\n  - split: dev\n    path: dev.jsonl\n---\n"
    )
    source = open_examples(f"hf:{place}", "dev")
    examples, places = zip(*source.examples(), strict=True)
    assert [e.id for e in examples] == ["dev0", "dev1", "dev2"]
    assert examples[2].positives == (Passage("2", "yes"),)
    assert examples[0].language == "ja"
    assert places[2] == f"hf:{place}:3"
    assert "unknown split" in refused(f"hf:{place}", split="test")
    assert "hf: names no data set" in refused("hf:")


# -- what is refused --


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (b'{"question": "q2", }]', "not JSON"),  # a comma too many
        (b'{"question": "q2"', "premature EOF"),  # cut off
        (b'{"question": "q\xff2"}]', "invalid bytes in UTF8"),
        (b'{"question": NaN}]', "not JSON"),
        (b"7]", "JSON of type int"),
        (b'["q2"]]', "JSON of type list"),
        (b'{"question": "q2"}]', 'no "positive_ctxs"'),
    ],
)
def test_what_is_wrong_in_an_array_is_named_by_file_and_record(tmp_path, tail, reason):
    path = tmp_path / "train.json"
    path.write_bytes(
        b"[" + json.dumps(dpr()).encode() + b",\n" + json.dumps(dpr()).encode() + b",\n" + tail
    )
    said = refused(str(path))
    assert said.startswith(f"{path}, record 3: ")
    assert reason in said


def test_more_after_the_array_is_named_too(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps([dpr(), dpr()]) + "\n" + json.dumps([dpr()]))
    assert refused(str(path)).startswith(f"{path}, record 3: not JSON (parse error: trailing")


def test_examples_before_a_broken_record_are_read(tmp_path):
    path = tmp_path / "train.json"
    path.write_text("[" + json.dumps(dpr("q1")) + "," + json.dumps(dpr("q2")) + ", oops]")
    stream = open_examples(str(path)).examples()
    assert [next(stream)[0].question, next(stream)[0].question] == ["q1", "q2"]
    with pytest.raises(UserError, match="record 3"):
        next(stream)


def test_a_broken_line_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(dpr()) + "\n\n{oops\n")
    assert refused(str(path)).startswith(f"{path}:3: not JSON")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": 7}, '"question" is of type int'),
        ({"question": None}, '"question" is no string'),
        ({"positive_ctxs": "p"}, '"positive_ctxs" is of type str; a list is needed'),
        ({"positive_ctxs": None}, 'no "positive_ctxs" (DPR) and no "positive_passages"'),
        ({"positive_ctxs": ["p"]}, "positive_ctxs[0] is of type str"),
        ({"hard_negative_ctxs": {}}, '"hard_negative_ctxs" is of type dict'),
        ({"hard_negative_ctxs": [{"title": "T"}]}, '"hard_negative_ctxs[0].text" is no string'),
        ({"positive_ctxs": [{"text": "t", "title": 1}]}, '"positive_ctxs[0].title" is of type int'),
        ({"positive_ctxs": [{"text": "t", "psg_id": 1.5}]}, "id 1.5 is not a string"),
        ({"answers": "x"}, '"answers" is no list of strings'),
        ({"lang": 3}, '"lang" 3 is not a string'),
        ({"id": True}, "id True is not a string"),
    ],
)
def test_a_broken_shape_says_which_field_of_which_line(tmp_path, change, reason):
    path = write_lines(tmp_path / "train.jsonl", [dpr(), {**dpr(), **change}])
    said = refused(path)
    assert said.startswith(f"{path}:2: ")
    assert reason in said


def test_half_a_character_in_a_line_is_refused(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "\\ud800", "positive_ctxs": []}\n')
    assert refused(str(path)).startswith(f"{path}:1: a \\ud... escape is half a character")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"[]", b" [ ]\n"])
def test_a_file_without_examples_is_refused(tmp_path, content):
    path = tmp_path / "train.json"
    path.write_bytes(content)
    assert "should hold questions with passages" in refused(str(path))


@pytest.mark.parametrize("write", [write_array, write_lines])
def test_a_damaged_archive_is_refused(tmp_path, write):
    path = Path(write(tmp_path / "train.json.gz", [dpr(f"q{os.urandom(8)}") for _ in range(200)]))
    path.write_bytes(path.read_bytes()[:-20])
    said = refused(str(path))
    assert said.startswith(str(path))
    assert "damaged or truncated gzip" in said


def test_a_name_that_is_nothing_is_refused(tmp_path):
    assert "no such folder or file" in refused(str(tmp_path / "gone.json"))
    with pytest.raises(UserError, match="unknown corpus 'nqq'; did you mean 'nq'"):
        open_examples("nqq")


# -- memory --

MEASURE = """
import resource, sys
from pathlib import Path
from ccpretrieve.data.example_store import prepare
from ccpretrieve.data.examples import open_examples

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

small, large, output = sys.argv[1:]
prepare([open_examples(small)], Path(output), positives=1, negatives=1)  # what is imported
before = peak()
made = prepare([open_examples(large)], Path(output), positives=1, negatives=1)
print(made.count, peak() - before)
"""


@pytest.mark.slow
def test_an_array_streams_in_flat_memory(tmp_path):
    # 1,000 examples of 20 passages of 1,500 letters, as NQ's: 31 MB; held, they would take more
    passage = "long text " * 150
    count, size = 1000, 0
    large = tmp_path / "large.json"
    with large.open("w") as stream:
        stream.write("[")
        for number in range(count):
            negatives = [context(f"{number} {i} {passage}") for i in range(20)]
            record = dpr(f"question {number}", hard_negative_ctxs=negatives)
            size += stream.write(("," if number else "") + json.dumps(record))
        stream.write("]")
    assert size > 30_000_000
    small = write_array(tmp_path / "small.json", [dpr()])
    command = [sys.executable, "-c", MEASURE, small, str(large), str(tmp_path / "out.jsonl")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    read_count, grown = map(int, done.stdout.split())
    assert read_count == count
    assert grown < 6_000_000  # measured: below 3 MB
