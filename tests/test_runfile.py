"""A run is written as trec_eval reads it, and read back as it was written."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import example, given
from hypothesis import strategies as st

from ccpretrieve.data.records import Topic
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.runfile import (
    digest,
    is_made_by,
    ordered,
    read_run,
    read_sidecar,
    sidecar_path,
    write_run,
)

WORDS = st.text(
    st.characters(exclude_categories=["C", "Z"], include_characters="\u0301٣\U00010330\uffee"),
    min_size=1,
    max_size=3,
)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
# ties, and scores that differ as doubles only
SCORES = st.sampled_from([0.5, 0.5 + 1e-12, 0.5 - 1e-12, -0.0, 0.0, 1e-50, 2.0]) | FLOATS


def bits(score):
    return np.float32(score).tobytes()


def write(path, run, **made_by):
    write_run(path, run, "tag", made_by)
    return path


@given(st.dictionaries(WORDS, SCORES, min_size=1, max_size=20))
@example({"\uffee": 1.0, "\U00010330": 1.0})  # UTF-16 would sort these two the other way round
def test_hits_are_ranked_where_trec_eval_ranks_them(scores):
    """Each passage in turn is the only relevant one, so its reciprocal rank tells its rank."""
    qrels = {docid: {docid: 1} for docid in scores}
    oracle = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"})
    found = oracle.evaluate(dict.fromkeys(scores, scores))
    for rank, (docid, _) in enumerate(ordered(scores), start=1):
        assert found[docid]["recip_rank"] == pytest.approx(1 / rank)


@given(st.dictionaries(WORDS, SCORES, min_size=1, max_size=20))
def test_a_run_read_back_has_the_scores_and_the_order_it_was_written_with(tmp_path_factory, scores):
    path = write(tmp_path_factory.mktemp("runs") / "x.trec", {"q": scores})
    back = read_run(path)["q"]
    assert list(back) == [docid for docid, _ in ordered(scores)]
    assert ordered(back) == ordered(scores)
    assert all(bits(back[docid]) == bits(scores[docid]) for docid in scores)


@given(FLOATS)
def test_neighbouring_scores_are_not_printed_alike(tmp_path_factory, score):
    with np.errstate(over="ignore"):
        above = float(np.nextafter(np.float32(score), np.float32(np.inf)))
    scores = {"a": above, "b": score} if np.isfinite(above) else {"b": score}
    text = write(tmp_path_factory.mktemp("runs") / "x.trec", {"q": scores}).read_text()
    assert len({line.split()[4] for line in text.splitlines()}) == len(scores)


def test_a_run_has_six_columns_and_ranks_from_one_in_every_topic(tmp_path):
    run = {"q2": {"d1": 0.25, "d2": 0.5}, "q1": {"d1": 0.1, "d10": 0.1}}
    assert write(tmp_path / "deep" / "er" / "x.trec", run).read_text() == (
        "q2 Q0 d2 1 0.5 tag\n"
        "q2 Q0 d1 2 0.25 tag\n"
        "q1 Q0 d10 1 0.100000001 tag\n"  # the nine digits of the float nearest to 0.1
        "q1 Q0 d1 2 0.100000001 tag\n"
    )


def test_the_sidecar_says_what_made_the_run_and_which_topics_have_no_hit(tmp_path):
    path = write(tmp_path / "x.v1.trec", {"q1": {}, "q2": {"d": 1.0}, "q3": {}}, index="indexes/i")
    assert sidecar_path(path) == tmp_path / "x.v1.trec.json"
    sidecar = read_sidecar(path)
    assert sidecar["index"] == "indexes/i"
    assert sidecar["unanswered"] == ["q1", "q3"]
    assert sidecar["topic_count"] == 3


def test_a_run_of_another_name_does_not_share_a_sidecar(tmp_path):
    assert sidecar_path(tmp_path / "x.txt") != sidecar_path(tmp_path / "x.trec")


def test_a_run_without_sidecar_was_made_by_nobody_knows_what(tmp_path):
    assert read_sidecar(tmp_path / "x.trec") is None


def test_a_run_changed_after_its_sidecar_is_warned_about(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("ccpretrieve"), "propagate", True)
    path = write(tmp_path / "x.trec", {"q": {"d": 1.0}})
    read_sidecar(path)
    assert not caplog.records
    path.write_text(path.read_text().replace("d", "e"))
    read_sidecar(path)
    assert "x.trec: changed since" in caplog.text


def test_a_run_never_lacks_its_sidecar(tmp_path, monkeypatch):
    """Killed before the run gets its name, after the sidecar got its own."""
    path = tmp_path / "x.trec"
    rename = Path.replace

    def killed(self, target):
        if target == path:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write(path, {"q": {"d": 1.0}})
    assert [found.name for found in tmp_path.iterdir()] == ["x.trec.json"]


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ({"q": {"d": float("nan")}}, r"topic 'q': passage 'd' has the score nan"),
        ({"q": {"a": 1.0, "d": float("-inf")}}, r"topic 'q': passage 'd' has the score -inf"),
        ({"q": {"d": 1e39}}, r"passage 'd' has the score 1e\+39"),  # infinite as a 32-bit float
        ({"q": {"a b": 1.0}}, r"passage id 'a b' is not one word"),
        ({"q": {"a\u3000b": 1.0}}, r"is not one word"),
        ({"q": {"a\n": 1.0}}, r"is not one word"),
        ({"q": {"": 1.0}}, r"passage id '' is not one word"),
        ({"": {"d": 1.0}}, r"topic id '' is not one word"),
        ({"q": {"\ud800": 1.0}}, r"not valid Unicode"),
        ({"q": {}}, r"none of 1 topics has a hit"),
        ({}, r"none of 0 topics has a hit"),
    ],
)
def test_what_a_run_cannot_carry_is_refused_and_the_old_run_stays(tmp_path, run, says):
    path = write(tmp_path / "x.trec", {"old": {"d": 1.0}})
    before = {found.name: found.read_bytes() for found in tmp_path.iterdir()}
    with pytest.raises(UserError, match=says) as error:
        write(path, {"good": {"d": 1.0}, **run} if any(run.values()) else run)
    assert str(error.value).startswith(f"{path}: not written: ")
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == before


@pytest.mark.parametrize("tag", ["", "two words", "new\nline"])
def test_a_tag_is_one_word(tmp_path, tag):
    with pytest.raises(UserError, match=r"the tag .* is not one word"):
        write_run(tmp_path / "x.trec", {"q": {"d": 1.0}}, tag, {})
    assert not list(tmp_path.iterdir())


def test_a_byte_order_mark_line_ends_blank_lines_and_tabs_change_nothing(tmp_path):
    plain, odd = tmp_path / "plain.trec", tmp_path / "odd.trec"
    plain.write_text("q Q0 d1 1 2.5 t\nq Q0 d2 2 1 t\n")
    odd.write_bytes(b"\xef\xbb\xbf\r\nq\tQ0\td1\t1\t2.5\tt\r\n\r\n   \nq  Q0 d2 2 1 t")
    assert read_run(odd) == read_run(plain) == {"q": {"d1": 2.5, "d2": 1.0}}


def test_white_space_that_trec_eval_does_not_know_stays_in_the_id(tmp_path):
    path = tmp_path / "x.trec"
    path.write_text("q Q0 a\u00a0b 1 2.5 t\n")
    assert read_run(path) == {"q": {"a\u00a0b": 2.5}}


def test_the_rank_column_is_ignored(tmp_path):
    path = tmp_path / "x.trec"
    path.write_text("q Q0 worse 1 1.0 t\nq Q0 better 2 2.0 t\n")
    assert [docid for docid, _ in ordered(read_run(path)["q"])] == ["better", "worse"]


GOOD = b"q Q0 d1 1 1.0 t\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD + b"q Q0 d2 2 1.0\n", ":2: 5 columns; a hit has six"),
        (GOOD + b"\nq Q0 d2 2 1.0 t u\n", ":3: 7 columns; a hit has six"),
        (GOOD + b"q Q0 d2 2 high t\n", ":2: the score 'high' is not a number"),
        (GOOD + b"q Q0 d2 2 1_0 t\n", ":2: the score '1_0' is not a number"),
        (GOOD + b"q Q0 d2 2 nan t\n", ":2: the score 'nan' cannot be ranked"),
        (GOOD + b"q Q0 d2 2 -inf t\n", ":2: the score '-inf' cannot be ranked"),
        (GOOD + b"q Q0 d2 2 1e39 t\n", ":2: the score '1e39' cannot be ranked"),
        (GOOD + b"r Q0 d1 1 1.0 t\nq Q0 d1 2 1.0 t\n", ":3: passage 'd1' of topic 'q' .* line 1 "),
        (GOOD + "q Q0 d\u00e9 2 1.0 t\n".encode("latin-1"), ":2: .* not UTF-8"),
        (GOOD.decode().encode("utf-16"), ":1: .* not UTF-8"),
        (b"", ": empty file; it should hold hits"),
        (b"\n \n", ": empty file; it should hold hits"),
    ],
)
def test_a_bad_run_is_an_error_with_its_line(tmp_path, content, says):
    path = tmp_path / "x.trec"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}{says}") as error:
        read_run(path)
    assert "\n" not in str(error.value)


def test_a_folder_or_a_missing_file_is_an_error_with_its_name(tmp_path):
    for path in (tmp_path, tmp_path / "none.trec"):
        with pytest.raises(UserError, match=f"^{path}: "):
            read_run(path)


@pytest.mark.parametrize("content", ["[]", "{"])
def test_a_sidecar_that_is_none_is_an_error_with_its_name(tmp_path, content):
    (tmp_path / "x.trec.json").write_text(content)
    with pytest.raises(UserError, match=r"x\.trec\.json"):
        read_sidecar(tmp_path / "x.trec")


def test_the_sidecar_is_json_that_keeps_other_scripts_readable(tmp_path):
    path = write(tmp_path / "x.trec", {"質問": {"答え": 1.0}, "空": {}}, topics="日本")
    text = sidecar_path(path).read_text()
    assert "空" in text
    assert json.loads(text)["topics"] == "日本"


def test_a_folder_is_no_run_and_has_no_sidecar(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path(), tmp_path, Path("/")):
        with pytest.raises(UserError, match="not written: a folder; name a file"):
            write_run(path, {"q": {"d": 1.0}}, "tag", {})
        assert read_sidecar(path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_known_by_what_made_it_and_only_unchanged(tmp_path):
    path = tmp_path / "a.trec"
    assert not is_made_by(path, {})
    write_run(path, {"1": {"d": 1.0}}, "t", {"corpus": {"name": "c"}, "hits": 9})
    assert is_made_by(path, {"corpus": {"name": "c"}, "hits": 9})
    assert not is_made_by(path, {"hits": 10})
    assert not is_made_by(path, {"questions": "abc"})  # it does not say
    path.write_text(path.read_text().replace("1 Q0", "2 Q0"))
    assert not is_made_by(path, {"hits": 9})


def test_questions_are_known_by_ids_words_and_language():
    one = [Topic("1", "a", "en"), Topic("2", "b", "en")]
    assert digest(one) == digest(list(one))
    for other in (
        one[::-1],
        one[:1],
        [Topic("1", "a", "fi"), one[1]],
        [Topic("1", "A", "en"), one[1]],
    ):
        assert digest(other) != digest(one)
