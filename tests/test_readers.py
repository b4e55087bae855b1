import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccpretrieve.data.readers import (
    read_answers,
    read_nq_topics,
    read_passages,
    read_qrels,
    read_topics,
    split_tsv,
)
from ccpretrieve.data.records import Passage, Question, Record, Topic
from ccpretrieve.errors import UserError

GOOD = '{"id": "a#0", "contents": "T\\n\\none"}\n'


@pytest.fixture
def write(tmp_path):
    """A function that writes bytes or text under a name and returns the path."""

    def write(name, content):
        path = tmp_path / name
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return write


def passages(path):
    return [record.passage for record in read_passages(path)]


def complaint(path, reader=read_passages):
    """What reading a file fails with; one line that begins with the file's name."""
    with pytest.raises(UserError) as caught:
        list(reader(path))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


# -- JSON lines --


def test_contents_are_split_at_the_first_blank_line_only(write):
    line = json.dumps({"id": "1#0", "contents": "Title\n\nfirst\n\nsecond"})
    assert passages(write("docs.jsonl", line)) == [Passage("1#0", "first\n\nsecond", "Title")]


def test_contents_without_a_blank_line_are_all_text(write):
    line = json.dumps({"id": "1", "contents": "one\ntwo"})
    assert passages(write("docs.json", line)) == [Passage("1", "one\ntwo", "")]


@pytest.mark.parametrize("name", ["id", "docid", "_id"])
def test_the_id_of_the_other_schema_has_three_names(write, name):
    line = json.dumps({name: "x", "title": "T", "text": "one"})
    assert passages(write("docs.jsonl", line)) == [Passage("x", "one", "T")]


def test_a_title_may_be_missing_and_a_text_empty(write):
    path = write("docs.jsonl", '{"id": "x", "text": ""}\n{"id": "y", "text": "b", "title": null}')
    assert passages(path) == [Passage("x", "", ""), Passage("y", "b", "")]


def test_a_number_may_be_an_id(write):
    assert passages(write("docs.jsonl", '{"id": 7, "text": "a"}'))[0].id == "7"


def test_a_record_says_where_it_stood(write):
    path = write("docs.jsonl", "\n" + GOOD + "  \n" + GOOD)
    assert [record.where for record in read_passages(path)] == [f"{path}:2", f"{path}:4"]
    assert next(read_passages(path)) == Record(Passage("a#0", "one", "T"), str(path), 2)


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz"])
def test_byte_order_mark_and_crlf_are_read_as_if_absent(write, name):
    windows = "\ufeff" + GOOD.replace("\n", "\r\n") * 2
    escaped = json.dumps({"id": "a#0", "contents": "T\r\n\r\none"})
    assert passages(write(name, windows + escaped)) == [Passage("a#0", "one", "T")] * 3


def test_lines_end_at_line_feeds_only_and_text_is_left_as_it_is(write):
    odd = "a\u2028b\u0085c\u00a0d\u200be\u0301\ufeff\x1cf"
    jsonl = write("docs.jsonl", json.dumps({"id": "x", "text": odd}, ensure_ascii=False))
    assert passages(jsonl) == [Passage("x", odd)]
    assert passages(write("docs.tsv", f"x\t{odd}\n")) == [Passage("x", odd)]
    assert read_topics(write("topics.tsv", f"x\t{odd}\n")) == [Topic("x", odd)]


def test_gzip_is_known_by_its_content_too(write, tmp_path):
    path = write("docs.jsonl.gz", GOOD).rename(tmp_path / "docs.jsonl")
    assert passages(path) == [Passage("a#0", "one", "T")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "b", "text": "x"', "not JSON at column"),
        ('{"id": "b", "text": "x"} {}', "more after the end"),
        ("[1]", "JSON of type list, not an object; each line must be one {...}"),
        ("[" * 100_000, "JSON that cannot be read"),
        ('{"id": ' + "1" * 5000 + "}", "JSON that cannot be read"),
        ('{"text": "x"}', 'no id; an "id" (or "docid") is needed'),
        ('{"id": 1.5, "text": "x"}', "id 1.5 is not a string"),
        ('{"id": true, "text": "x"}', "id True is not a string"),
        ('{"id": "", "text": "x"}', "the id is empty"),
        ('{"id": "b c", "text": "x"}', "id 'b c' holds white space, which a TREC run cannot carry"),
        ('{"id": "b ", "text": "x"}', "id 'b ' holds white space"),
        ('{"id": "b\\u00a0c", "text": "x"}', r"id 'b\xa0c' holds white space"),
        ('{"id": "b"}', 'no text; "contents", or "text" and "title", are needed'),
        ('{"id": "b", "text": ["x"]}', '"text" is of type list; a string is needed'),
        ('{"id": "b", "contents": 3}', '"contents" is of type int; a string is needed'),
        ('{"id": "b", "text": "x", "title": 3}', '"title" is of type int; a string is needed'),
        ('{"id": "b", "text": "\\ud83d"}', "half a character"),
    ],
)
def test_a_malformed_line_is_named(write, line, words):
    message = complaint(write("docs.jsonl", GOOD + line + "\n" + GOOD))
    assert message.startswith(":2: ")
    assert words in message


def test_a_pair_of_escapes_is_one_character(write):
    assert passages(write("docs.jsonl", r'{"id": "x", "text": "\ud83d\ude00"}'))[0].text == "😀"


# -- files that are not what they should be --


@pytest.mark.parametrize("content", ["", "\n \r\n", "\ufeff"])
@pytest.mark.parametrize("name", ["docs.jsonl", "docs.tsv", "docs.jsonl.gz"])
def test_an_empty_file_is_an_error(write, name, content):
    assert complaint(write(name, content)) == ": empty file; it should hold passages, one a line"


def test_a_header_alone_is_an_empty_file(write):
    assert "empty file" in complaint(write("docs.tsv", "id\ttext\ttitle\n"))


def test_wrong_encoding_is_named_by_line_and_byte(write):
    path = write("docs.jsonl", GOOD.encode() + '{"id": "é"}'.encode("latin-1"))
    assert complaint(path) == ":2: byte 9 (0xe9) is not UTF-8; convert the file to UTF-8"
    assert ":1: byte 1 (0xff)" in complaint(write("docs.tsv", "1\tx".encode("utf-16")))


def test_truncated_gzip_is_named_by_the_line_reached(tmp_path):
    # Random hexadecimal digits barely compress, so half of the bytes hold about half of the lines.
    lines = [json.dumps({"id": str(i), "text": f"{hash((i, 1)):x}" * 40}) for i in range(20_000)]
    whole = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "docs.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    read = []
    with pytest.raises(UserError, match="damaged or truncated gzip") as caught:
        read.extend(read_passages(path))
    assert 1000 < len(read) < 19_000
    assert str(caught.value).startswith(f"{path}:{len(read) + 1}: ")


def test_damaged_gzip_and_text_named_gz_are_errors(tmp_path):
    path = tmp_path / "docs.jsonl.gz"
    packed = bytearray(gzip.compress(GOOD.encode() * 100))
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)
    assert "damaged or truncated gzip" in complaint(path)
    path.write_text(GOOD)
    assert complaint(path).startswith(":1: damaged or truncated gzip")


def test_a_folder_in_place_of_a_file_and_a_missing_file_are_errors(tmp_path):
    (tmp_path / "docs.jsonl").mkdir()
    assert "a folder stands where a file belongs" in complaint(tmp_path / "docs.jsonl")
    assert "no such file" in complaint(tmp_path / "other.jsonl")
    assert "no such file" in complaint(tmp_path / "topics.tsv", read_topics)


def test_a_forbidden_file_is_an_error(write, monkeypatch):
    path = write("docs.jsonl", GOOD)

    def forbid(self, *args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbid)  # a mode of 000 does not stop root
    assert "no permission to read" in complaint(path)


def test_an_unknown_format_is_an_error(write):
    message = complaint(write("docs.parquet", "x"))
    assert message == ": unknown format; name it .jsonl, .json or .tsv (.gz of either)"


# -- TSV --


@pytest.mark.parametrize("name", ["psgs.tsv", "psgs.tsv.gz"])
def test_tsv_has_two_or_three_columns_and_perhaps_a_header(write, name):
    path = write(name, "id\ttext\ttitle\r\n1\tone\tT\r\n2\ttwo\r\n3\t\tU\r\n")
    assert passages(path) == [Passage("1", "one", "T"), Passage("2", "two"), Passage("3", "", "U")]


def test_a_header_gives_the_order_of_the_columns(write):
    path = write("psgs.tsv", "id\ttitle\ttext\n1\tT\tone\n")
    assert passages(path) == [Passage("1", "one", "T")]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("docid\ttext\ttitle", "1\tone\tT"),
        ("id\ttext\ttitle", "1\tone\tT"),  # DPR's
        ("_id\ttitle\ttext", "1\tT\tone"),
        ("DocID\tContents\tTitle", "1\tone\tT"),
        ("pid\tpassage\ttitle", "1\tone\tT"),
    ],
)
def test_the_headers_in_use_are_no_passages(write, header, row):
    path = write("psgs.tsv", f"{header}\n{row}\n")
    assert passages(path) == [Passage("1", "one", "T")]


def test_a_header_in_a_later_line_and_a_name_given_twice_are_passages(write):
    path = write("psgs.tsv", "id\tdocid\ttext\nid\ttext\n")
    assert [passage.id for passage in passages(path)] == ["id", "id"]


def test_quoted_fields_are_read_as_csv_and_stray_quotes_as_text(write):
    path = write(
        "psgs.tsv",
        '1\t"the ""big"" one"\tT\n'  # as DPR writes it
        '2\t"Who?" asks he\tT\n'  # closed, but not at the field's end
        '3\t"never closed\tT\n'
        '4\tin the "middle"\t"T ""U"""\n',
    )
    assert passages(path) == [
        Passage("1", 'the "big" one', "T"),
        Passage("2", '"Who?" asks he', "T"),
        Passage("3", '"never closed', "T"),
        Passage("4", 'in the "middle"', 'T "U"'),
    ]


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8")), min_size=2))
def test_what_csv_writes_is_split_as_csv_reads_it(fields):
    stream = io.StringIO()
    csv.writer(stream, delimiter="\t", lineterminator="").writerow(fields)
    assert split_tsv(stream.getvalue()) == fields


@given(st.text('ab"\t'))
def test_any_line_is_split_without_losing_a_letter(line):
    fields = split_tsv(line)
    assert [c for c in "".join(fields) if c in "ab"] == [c for c in line if c in "ab"]
    assert len(fields) <= line.count("\t") + 1


def test_a_long_field_of_quotes_is_split_at_once():
    line = '"' + '""' * 200_000 + "x"  # never closed; backtracking would take hours
    assert split_tsv(line) == [line]


def test_a_field_longer_than_csvs_limit_is_read(write):
    assert len(passages(write("psgs.tsv", '1\t"' + "x" * 200_000 + '"\tT'))[0].text) == 200_000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 two", "1 tab-separated fields; id<TAB>text<TAB>title is needed"),
        ("2\ta\tb\tc", "4 tab-separated fields"),
        ("2 3\ttwo", "id '2 3' holds white space"),
        ("\ttwo", "the id is empty"),
    ],
)
def test_a_malformed_row_is_named(write, line, words):
    message = complaint(write("psgs.tsv", f"1\tone\n{line}\n"))
    assert message.startswith(":2: ")
    assert words in message


def test_a_third_column_needs_a_header_that_names_it(write):
    message = complaint(write("psgs.tsv", "id\ttext\n1\tone\tT\n"))
    assert message == ":2: 3 tab-separated fields; id<TAB>text is needed"


@pytest.mark.parametrize("rest", ['two"\tT', 'and two"\tT', "two"])
def test_a_quoted_field_over_two_lines_is_refused_and_explained(write, rest):
    message = complaint(write("psgs.tsv", f'1\t"one\n{rest}\n'))
    assert message.startswith(":2: ")
    assert message.endswith("the line before leaves a quote open: put each passage on one line")


# -- topics --


@pytest.mark.parametrize("name", ["topic.test.tsv", "topics.txt", "topics.txt.gz"])
def test_topics_are_an_id_a_tab_and_a_question(write, name):
    path = write(name, '\ufeff1\tWho?\r\n\r\n2\t"Why"\tnot?\r\n')
    assert read_topics(path) == [Topic("1", "Who?"), Topic("2", '"Why"\tnot?')]


@pytest.mark.parametrize(
    "header", ["id\tquestion", "qid\tquery", "query_id\ttext", "Query-ID\tQuestion", "topic\tquery"]
)
def test_a_header_is_no_topic(write, header):
    assert read_topics(write("topics.tsv", f"{header}\n1\tWho?\n")) == [Topic("1", "Who?")]


def test_only_a_first_line_of_known_names_is_a_header(write):
    path = write("topics.tsv", "id\tquestion of identity\nqid\tquery\n")
    assert read_topics(path) == [Topic("id", "question of identity"), Topic("qid", "query")]
    message = complaint(write("more.tsv", "id\tquestion\tanswers\n1\tWho?\tHe\n"), read_topics)
    assert message == ":1: 3 columns; id<TAB>question is needed"


@pytest.mark.parametrize("name", ["question", "query", "text"])
def test_topics_may_be_json_lines(write, name):
    line = json.dumps({"id": 5, name: "誰?", "lang": "ja"})
    assert read_topics(write("dev.jsonl", line)) == [Topic("5", "誰?", "ja")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2", "no tab; id<TAB>question is needed"),
        ("2\t ", "no question, or an empty one"),
        ("who is it\t['he']", "id 'who is it' holds white space"),
        ("1\tagain", "topic '1' is on line 1 too"),
    ],
)
def test_a_malformed_topic_is_named(write, line, words):
    message = complaint(write("topics.tsv", f"1\tone\n{line}\n"), read_topics)
    assert message.startswith(":2: ")
    assert words in message


# -- judgements --


def test_qrels_are_separated_by_tabs_or_spaces_and_may_have_several_positives(write):
    path = write("qrels.txt", "q1\tQ0\td#1\t1\r\nq1 Q0 d#2 2\nq2   0 d#1 0\nq1 Q0 d#2 2\n")
    assert read_qrels(path) == {"q1": {"d#1": 1, "d#2": 2}, "q2": {"d#1": 0}}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("q1 d1 1", "3 columns; `topic Q0 passage grade` is needed"),
        ("q1 Q0 d2 yes", "grade 'yes' is not a whole number"),
        ("q1 Q0 d2 1_0", "grade '1_0' is not a whole number"),
        ("q1 Q0 d2 1.0", "grade '1.0' is not a whole number"),
        ("q1 Q0 d2 ١", "grade '١' is not a whole number"),
        ("q1 Q0 d1 0", "d1 for topic q1 has grade 0, but 1 on a line before"),
    ],
)
def test_a_malformed_judgement_is_named(write, line, words):
    message = complaint(write("qrels.txt", f"q1 Q0 d1 1\n{line}\n"), read_qrels)
    assert message.startswith(":2: ")
    assert words in message


# -- answers --


def test_answers_come_with_question_and_language(write):
    lines = [
        {"id": "q1", "lang": "ja", "question": "誰?", "answers": ["he", "she"], "split": "dev"},
        {"id": "q2", "question": "Who?", "answers": []},
    ]
    path = write("answers.jsonl", "\n".join(map(json.dumps, lines)))
    assert read_answers(path) == [
        Question(Topic("q1", "誰?", "ja"), ("he", "she")),
        Question(Topic("q2", "Who?"), ()),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "2", "question": "b"}', '"answers" is no list of strings'),
        ('{"id": "2", "question": "b", "answers": "x"}', '"answers" is no list of strings'),
        ('{"id": "2", "question": "b", "answers": [1]}', '"answers" is no list of strings'),
        ('{"id": "2", "answers": ["x"]}', "no question, or an empty one"),
        ('{"id": "2", "question": "b", "answers": [], "lang": 1}', '"lang" 1 is not a string'),
        ('{"id": "1", "question": "b", "answers": []}', "topic '1' is on line 1 too"),
    ],
)
def test_a_malformed_answer_is_named(write, line, words):
    good = '{"id": "1", "question": "a", "answers": ["x"]}\n'
    message = complaint(write("answers.jsonl", good + line), read_answers)
    assert message.startswith(":2: ")
    assert words in message


def test_nq_topics_are_numbered_and_their_answers_are_python(write):
    path = write("nq.txt", "who is it\t['he', \"it's\"]\nwhy\t['x\\ty']\n")
    assert read_nq_topics(path) == [
        (Topic("0", "who is it"), ["he", "it's"]),
        (Topic("1", "why"), ["x\ty"]),
    ]


def test_a_list_of_nq_answers_may_be_quoted_as_csv(write):
    # Python alone would read the outer quotes as one string and give no list.
    path = write("nq.txt", 'who sang\t"[\'Solange\', ""Destiny \'s Child""]"\r\n')
    assert read_nq_topics(path) == [(Topic("0", "who sang"), ["Solange", "Destiny 's Child"])]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("who", "1 fields; question<TAB>['answer', ...] is needed"),
        ("who\t['he'", "the answers are no Python list"),
        ("who\t__import__('os')", "the answers are no Python list"),
        ("who\t'he'", '"answers" is no list of strings'),
    ],
)
def test_a_malformed_nq_topic_is_named(write, line, words):
    message = complaint(write("nq.txt", f"a\t['b']\n{line}\n"), read_nq_topics)
    assert message.startswith(":2: ")
    assert words in message


# -- the real files; counts are those their READMEs state --

MRTYDI_QUERIES = {  # train, dev, test
    **{"ar": (12377, 3115, 1081), "bn": (1713, 440, 111), "en": (3547, 878, 744)},
    **{"fi": (6561, 1738, 1254), "id": (4902, 1224, 829), "ja": (3697, 928, 720)},
    **{"ko": (1295, 303, 421), "ru": (5366, 1375, 995), "sw": (2072, 526, 670)},
    **{"te": (3880, 983, 646), "th": (3319, 807, 1190)},
}
MRTYDI_TEST_JUDGEMENTS = {
    **{"ar": 1257, "bn": 130, "en": 935, "fi": 1451, "id": 961, "ja": 923, "ko": 492},
    **{"ru": 1168, "sw": 743, "te": 677, "th": 1368},
}


@pytest.mark.real
@pytest.mark.parametrize("code", MRTYDI_QUERIES)
def test_mrtydi_topics_and_judgements_have_the_counts_published(real_data, code):
    folder = real_data / "mrtydi_topics_qrels"
    for split, count in zip(("train", "dev", "test"), MRTYDI_QUERIES[code], strict=True):
        topics = read_topics(folder / f"topics.mrtydi-v1.1-{code}.{split}.txt.gz")
        qrels = read_qrels(folder / f"qrels.mrtydi-v1.1-{code}.{split}.txt")
        assert len(topics) == count
        assert set(qrels) == {topic.id for topic in topics}
    assert sum(map(len, qrels.values())) == MRTYDI_TEST_JUDGEMENTS[code]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("topics.nq.dev.txt", 8757),
        ("topics.nq.test.txt", 3610),
        ("topics.dpr.nq.dev.txt", 8757),
        ("topics.dpr.nq.test.txt", 3610),
        ("NQ-open.dev.jsonl", 3610),
        ("NQ-open.efficientqa.dev.1.1.jsonl", 1800),
        ("NQ-open.efficientqa.test.1.1.jsonl", 1769),
    ],
)
def test_natural_questions_have_the_counts_published(real_data, name, count):
    questions = read_nq_topics(real_data / "nq_topics" / name)
    assert len(questions) == count
    assert all(answers for _, answers in questions)


@pytest.mark.real
def test_xor_style_questions_are_read_as_topics_and_with_answers(real_data):
    paths = sorted((real_data / "xquad_xor").glob("*.jsonl"))
    assert len(paths) == 11
    for path in paths:
        questions = read_answers(path)
        assert len(questions) == 1190
        assert {question.topic.language for question in questions} == {path.suffixes[-2][1:]}
        assert read_topics(path) == [question.topic for question in questions]
