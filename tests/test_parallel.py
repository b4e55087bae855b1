import gzip

import pytest

from ccpretrieve.data.parallel import held_pairs, join, read_pairs, read_parallel
from ccpretrieve.errors import UserError


def write(folder, **files):
    for name, lines in files.items():
        text = "".join(f"{line}\n" for line in lines)
        (folder / name.replace("__", "-").replace("_", ".")).write_text(text, encoding="utf-8")


@pytest.fixture
def tatoeba(tmp_path):
    """Three pairs, one without English."""
    write(
        tmp_path,
        fra__eng_fra=["un", "deux"],
        fra__eng_eng=["one", "two"],
        jpn__eng_jpn=["一", "二", "三"],
        jpn__eng_eng=["one", "two", "three"],
        jpn__kor_jpn=["一"],
        jpn__kor_kor=["일"],
    )
    (tmp_path / "README.md").write_text("not a text")
    return tmp_path


@pytest.fixture
def ntrex(tmp_path):
    """Three aligned languages, two documents."""
    write(
        tmp_path,
        en_txt=["one", "two", "three"],
        ja_txt=["一", "二", "三"],
        fr_txt=["un", "deux", "trois"],
    )
    (tmp_path / "DOCUMENT_IDS.txt").write_text("b.2\nb.2\na.1\n")
    return tmp_path


def test_pairs_with_english_in_tatoebas_layout(tatoeba):
    fra, jpn = read_parallel(tatoeba)
    assert (fra.name, fra.languages) == ("fra-eng", ("fr", "en"))
    assert fra.sides == (["un", "deux"], ["one", "two"])
    assert (jpn.name, len(jpn)) == ("jpn-eng", 3)
    assert jpn.documents is None


def test_any_spelling_selects_and_the_order_asked_for_is_kept(tatoeba):
    assert [text.name for text in read_parallel(tatoeba, ["ja", "French"])] == [
        "jpn-eng",
        "fra-eng",
    ]


def test_the_pivot_is_the_second_side_whatever_the_files_are_called(tatoeba):
    korean, english = read_parallel(tatoeba, ["ko", "en"], pivot="jpn")
    assert (korean.name, korean.sides) == ("kor-jpn", (["일"], ["一"]))
    assert (english.name, english.sides[1]) == ("eng-jpn", ["一", "二", "三"])


def test_without_a_pivot_all_pairs_or_those_among_the_languages_named(tatoeba):
    names = [text.name for text in read_parallel(tatoeba, pivot="")]
    assert names == ["fra-eng", "jpn-eng", "jpn-kor"]
    assert [text.name for text in read_parallel(tatoeba, ["ko", "ja"], pivot="")] == ["jpn-kor"]


def test_the_pivot_among_the_languages_says_nothing(tatoeba):
    assert [text.name for text in read_parallel(tatoeba, ["en", "fr"])] == ["fra-eng"]
    with pytest.raises(UserError, match="en has no pair with itself"):
        read_parallel(tatoeba, ["en"])


def test_aligned_files_pair_every_language_and_share_the_pivots_sentences(ntrex):
    fra, jpn = read_parallel(ntrex)
    assert (fra.name, fra.languages) == ("fra-eng", ("fr", "en"))
    assert fra.sides == (["un", "deux", "trois"], ["one", "two", "three"])
    assert fra.sides[1] is jpn.sides[1]
    # three languages make 3 * 2 / 2 pairs; by code en < fr < ja
    assert [text.name for text in read_parallel(ntrex, pivot="")] == [
        "eng-fra",
        "eng-jpn",
        "fra-jpn",
    ]


def test_documents_are_numbered_as_they_come_and_select_their_lines(ntrex):
    text = read_parallel(ntrex, ["ja"])[0]
    assert text.documents == (0, 0, 1)
    last = text.part(range(1, 9))
    assert last.sides == (["三"], ["three"])
    assert last.documents == (1,)
    assert (last.name, last.languages) == (text.name, text.languages)
    with pytest.raises(UserError, match="counted from 1 there are 2"):
        text.part([5])


def test_documents_of_a_pair_are_the_first_column_of_its_ids(tatoeba):
    (tatoeba / "fra-eng.ids.tsv").write_text("page/1\tblock 7\npage/1\tblock 8\n")
    fra, jpn = read_parallel(tatoeba)
    assert fra.documents == (0, 0)
    assert jpn.documents is None
    with pytest.raises(UserError, match="nothing says which document"):
        jpn.part([0])


def test_odd_characters_stay_and_only_line_feeds_end_lines(tmp_path):
    odd = "a\u2028b\u0085c\u00a0 "  # separators that str.splitlines would cut at
    (tmp_path / "fra-eng.fra").write_bytes(f"{odd}\r\nun\r\n".encode())
    (tmp_path / "fra-eng.eng").write_bytes(b"x\ny")  # no line feed at the end
    (text,) = read_parallel(tmp_path)
    assert text.sides == ([odd, "un"], ["x", "y"])


def test_gzip_and_lasers_own_names_are_read(tmp_path):
    (tmp_path / "tatoeba.fra-eng.fra.gz").write_bytes(gzip.compress(b"un\n"))
    (tmp_path / "tatoeba.fra-eng.eng").write_bytes(b"one\n")
    assert read_parallel(tmp_path)[0].sides == (["un"], ["one"])


def test_a_blank_line_is_an_error_since_it_would_shift_one_side(tatoeba):
    write(tatoeba, fra__eng_fra=["un", "", "deux"])
    with pytest.raises(UserError, match=r"fra-eng\.fra:2: blank line"):
        read_parallel(tatoeba)
    write(tatoeba, fra__eng_fra=["un", "deux", ""])  # at the end it shifts nothing
    assert len(read_parallel(tatoeba)[0]) == 2


def test_sides_of_different_length_are_an_error_that_names_the_line(tatoeba):
    write(tatoeba, fra__eng_fra=["un", "deux", "trois"])
    with pytest.raises(UserError, match=r"fra-eng\.fra:3: 3 lines, but 2 in fra-eng\.eng"):
        read_parallel(tatoeba)


def test_documents_of_another_length_are_an_error(ntrex):
    (ntrex / "DOCUMENT_IDS.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"DOCUMENT_IDS\.txt:2: 1 lines, but 3 in"):
        read_parallel(ntrex)


@pytest.mark.parametrize(
    ("languages", "pivot", "words"),
    [
        (["ko"], "en", "unknown language beside en in .*'ko'.*fr, ja"),
        (["fr", "xx"], "en", "unknown language 'xx'"),
        ((), "fi", "no text is paired with fi"),
        (["fr", "ko"], "", "no two of fr, ko make a pair"),
        (["fr", "fi"], "", "unknown language of .*'fi'"),
    ],
)
def test_a_language_that_is_not_there_is_named(tatoeba, languages, pivot, words):
    with pytest.raises(UserError, match=words):
        read_parallel(tatoeba, languages, pivot=pivot)


def test_half_a_pair_is_an_error(tatoeba):
    (tatoeba / "fra-eng.eng").unlink()
    with pytest.raises(UserError, match=r"fra-eng\.fra: there is no fra-eng\.eng beside it"):
        read_parallel(tatoeba)


def test_two_files_for_one_thing_are_an_error(tatoeba, tmp_path):
    write(tatoeba, eng__fra_eng=["a"], eng__fra_fra=["b"])
    with pytest.raises(UserError, match="of the same two languages; keep one"):
        read_parallel(tatoeba)
    again = tmp_path / "aligned"
    again.mkdir()
    write(again, ja_txt=["a"], japanese_txt=["b"], en_txt=["c"])
    with pytest.raises(UserError, match=r"ja\.txt is in japanese too"):
        read_parallel(again)


def test_a_pair_of_languages_we_do_not_know_is_passed_over_and_said(tatoeba, caplog):
    write(tatoeba, qqq__eng_qqq=["a"], qqq__eng_eng=["b"])
    assert len(read_parallel(tatoeba)) == 2
    assert "qqq-eng is no pair of languages we know" in caplog.text


def test_a_folder_without_parallel_text_says_what_it_should_hold(tmp_path):
    (tmp_path / "notes.txt").write_text("x\n")
    with pytest.raises(UserError, match="no parallel text; it should hold files such as fra-eng"):
        read_parallel(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        read_parallel(tmp_path / "absent")
    with pytest.raises(UserError, match="no such folder"):
        read_parallel(tmp_path / "notes.txt")


def test_an_empty_file_is_an_error(tatoeba):
    (tatoeba / "fra-eng.fra").write_text("")
    with pytest.raises(UserError, match=r"fra-eng\.fra: empty file"):
        read_parallel(tatoeba)


# -- pairs by their two languages --


def test_a_pair_that_the_folder_has_comes_in_the_order_asked_for(tatoeba):
    jpn, kor = read_pairs(tatoeba, [("ja", "ko"), ("Korean", "jpn")])
    assert (jpn.name, jpn.languages, jpn.sides) == ("jpn-kor", ("ja", "ko"), (["一"], ["일"]))
    assert (kor.name, kor.languages, kor.sides) == ("kor-jpn", ("ko", "ja"), (["일"], ["一"]))
    assert not jpn.joined
    assert jpn.pivot is None  # its files are its own: nothing says what they are in English
    assert held_pairs(tatoeba) == [("fr", "en"), ("ja", "en"), ("ja", "ko")]


def test_a_pair_that_the_folder_lacks_is_joined_where_the_pivot_is_the_same(tatoeba):
    (text,) = read_pairs(tatoeba, [("fr", "ja")])
    assert (text.name, text.languages, text.joined) == ("fra-jpn", ("fr", "ja"), True)
    assert text.sides == (["un", "deux"], ["一", "二"])
    assert text.pivot == ["one", "two"]
    write(tatoeba, jpn__eng_eng=["two ", "One", "two"])  # letter by letter
    (text,) = read_pairs(tatoeba, [("fr", "ja")])
    assert text.sides == (["deux"], ["三"])


def test_each_row_is_in_one_joined_pair_at_most(tatoeba):
    write(tatoeba, fra__eng_fra=["a", "b", "c"], fra__eng_eng=["x", "x", "y"])
    write(tatoeba, jpn__eng_jpn=["い", "ろ", "は"], jpn__eng_eng=["y", "x", "x"])
    (text,) = read_pairs(tatoeba, [("fr", "ja")])
    assert text.sides == (["a", "c"], ["ろ", "い"])  # the first of equal ones, in our order
    assert text.pivot == ["x", "y"]
    (other,) = read_pairs(tatoeba, [("ja", "fr")])
    assert other.sides == (["い", "ろ"], ["c", "a"])


def test_nothing_in_common_makes_an_empty_text(tatoeba):
    write(tatoeba, fra__eng_eng=["p", "q"])
    (text,) = read_pairs(tatoeba, [("fr", "ja")])
    assert len(text) == 0
    left, right = read_parallel(tatoeba)
    assert join(left, right) == text


def test_aligned_files_bring_the_pivot_along_and_keep_it_in_a_part(ntrex):
    (text,) = read_pairs(ntrex, [("ja", "fr")])
    assert (text.name, text.joined) == ("jpn-fra", False)
    assert text.pivot == ["one", "two", "three"]
    assert text.part([1]).pivot == ["three"]
    (with_pivot,) = read_pairs(ntrex, [("en", "ja")])
    assert with_pivot.sides == (["one", "two", "three"], ["一", "二", "三"])
    assert with_pivot.pivot is None


def test_a_pair_that_is_not_there_and_cannot_be_joined_is_an_error(tatoeba):
    with pytest.raises(UserError, match="no text pairs fr with ko, and none ko with en"):
        read_pairs(tatoeba, [("fr", "ko")])
    with pytest.raises(UserError, match="no text pairs ko with en$"):
        read_pairs(tatoeba, [("ko", "en")])
    with pytest.raises(UserError, match="no text pairs fr with fr"):
        read_pairs(tatoeba, [("fr", "fr")])
    write(tatoeba, eng__fra_eng=["a"], eng__fra_fra=["b"])
    with pytest.raises(UserError, match="of the same two languages; keep one"):
        read_pairs(tatoeba, [("fr", "ja")])


@pytest.mark.real
@pytest.mark.slow
def test_the_real_sets_are_read_whole(real_data):
    tatoeba = read_parallel(real_data / "tatoeba")
    assert (len(tatoeba), sum(map(len, tatoeba))) == (112, 88_877)
    ntrex = read_parallel(real_data / "ntrex")
    assert len(ntrex) == 40
    assert {(len(text), max(text.documents)) for text in ntrex} == {(1997, 122)}
    docs = read_parallel(real_data / "docs_aligned", pivot="")
    assert len(docs) == 30
    assert all(text.documents is not None for text in docs)
    (joined,) = read_pairs(real_data / "tatoeba", [("jpn", "deu")])
    english = [
        {
            line
            for line in (real_data / "tatoeba" / f"{code}-eng.eng").read_text().split("\n")
            if line
        }
        for code in ("jpn", "deu")
    ]
    assert len(joined) == len(english[0] & english[1]) == 487
