import gzip
import json
import logging
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpretrieve.data import document_files, document_finding, rawlines
from ccpretrieve.data.documents import Document, open_documents
from ccpretrieve.data.rawlines import tag_of
from ccpretrieve.data.tags import code_of, plainness
from ccpretrieve.errors import UserError


def line(**record):
    return json.dumps(record, ensure_ascii=False) + "\n"


def written(path, text):
    """Write a file, packed if it is named so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def texts(source, **part):
    return [document.text for document, _ in source.documents(**part)]


@pytest.fixture
def mixed(tmp_path):
    """A folder of every kind of file, with a file of several languages; its documents by code."""
    folder = tmp_path / "corpus"
    generator = random.Random(0)
    expected = {"ja": [], "en": [], "fi": []}
    lines = []
    for number in range(60):
        code = generator.choice(["ja", "en"])
        text = f"{code} {number} {{}}" if number % 7 == 0 else f"{code} {number}"
        lines.append(line(lang=code, text=text) + "\n" * (number % 5 == 0))
        expected[code].append(text)
    written(folder / "all.jsonl.gz", "".join(lines))
    written(folder / "en" / "part-1.txt", "one\ntwo\n\n\nthree\n \nfour")
    expected["en"] += ["one\ntwo", "three", "four"]
    written(folder / "fi_news.json", line(text="yksi") + line(text="kaksi") + line(text=""))
    expected["fi"] += ["yksi", "kaksi", ""]
    written(folder / "ja.txt.gz", "一\n\n二\n三\n")
    expected["ja"] += ["一", "二\n三"]
    return folder, expected


# -- what is found --


def test_every_language_has_its_documents_file_by_file(mixed):
    folder, expected = mixed
    sources = open_documents(str(folder))
    assert list(sources) == ["en", "fi", "ja"]
    assert {code: texts(source) for code, source in sources.items()} == expected
    assert {source.language for source in sources.values()} == set(sources)


def test_a_document_knows_where_it_is_from(tmp_path):
    path = written(
        tmp_path / "x.jsonl",
        "\n"
        + line(id=7, lang="Japanese", sentences=["一。", "二。"])
        + line(lang="fin", text="a\nb"),
    )
    sources = open_documents(str(path))
    (japanese, _), (finnish, _) = [next(sources[code].documents()) for code in ("ja", "fi")]
    assert japanese == Document("7", "ja", "", ("一。", "二。"), str(path), 2)
    assert finnish == Document(f"{path}:3", "fi", "a\nb", (), str(path), 3)
    assert finnish.where == f"{path}:3"


def test_plain_text_is_numbered_by_its_first_line(tmp_path):
    path = written(tmp_path / "th.txt", "\n\na\nb\n\n\u3000\n\nc\n")
    documents = [document for document, _ in open_documents(str(path))["th"].documents()]
    assert [(d.id, d.line, d.text) for d in documents] == [
        ("th.txt:3", 3, "a\nb"),
        ("th.txt:8", 8, "c"),
    ]


def test_documents_of_one_sentence_or_none_are_passed_on(tmp_path):
    records = [{"sentences": []}, {"sentences": ["one"]}, {"text": ""}, {"text": None}]
    path = written(tmp_path / "en.jsonl", "".join(line(**record) for record in records))
    documents = [document for document, _ in open_documents(str(path))["en"].documents()]
    assert [document.sentences for document in documents] == [(), ("one",), (), ()]
    assert [document.text for document in documents] == [""] * 4


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ja.txt", "ja"),
        ("japanese.txt.gz", "ja"),
        ("ja_news.txt", "ja"),
        ("jpn_Jpan.txt", "ja"),
        ("wiki-ja.txt", "ja"),
        ("ja/part-0.txt", "ja"),
        ("jpn_Jpan/train/part-0.txt", "ja"),
        ("20231101.ja/part-0.txt", "ja"),
        ("ja/my_corpus.txt", "ja"),  # though "my" is Burmese
        ("fi/ja.txt", "ja"),
        ("zh-Hant.txt", "zh"),
    ],
)
def test_the_name_of_a_file_or_of_its_folder_says_the_language(tmp_path, name, code):
    written(tmp_path / "some_corpus" / name, "text\n")
    assert list(open_documents(str(tmp_path / "some_corpus"))) == [code]


def test_the_folder_that_is_named_may_say_the_language(tmp_path):
    written(tmp_path / "ja" / "part-0.txt", "text\n")
    assert list(open_documents(str(tmp_path / "ja"))) == ["ja"]
    assert list(open_documents(str(tmp_path / "ja" / "part-0.txt"))) == ["ja"]


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("ja", "ja"),
        ("JPN", "ja"),
        ("pt-BR", "pt"),
        ("hin_Deva", "hi"),
        ("hin_Latn", ""),  # Hindi is not written so in the table
        ("ja-Latn", ""),
        ("srp_Latn", "sr"),
        ("20231101.ja", "ja"),
        ("20231101.zh-min-nan", ""),
        ("cmn_Hani", "zh"),
        ("default", ""),
        ("", ""),
    ],
)
def test_tags_of_web_corpora_are_languages_in_a_script_they_are_written_in(tag, code):
    assert code_of(tag) == code


def test_of_several_tags_the_usual_script_and_then_the_shortest_comes_first():
    assert sorted(["srp_Latn", "srp_Cyrl", "srp_Cyrl_removed"], key=plainness) == [
        "srp_Cyrl",
        "srp_Cyrl_removed",
        "srp_Latn",
    ]


def test_languages_may_be_chosen_by_any_name_and_come_in_order_of_their_codes(mixed):
    folder, expected = mixed
    sources = open_documents(str(folder), ["japanese", "fin", "fi"])
    assert list(sources) == ["fi", "ja"]
    assert texts(sources["ja"]) == expected["ja"]


def test_a_language_that_is_not_there_is_answered_with_those_that_are(mixed):
    folder, _ = mixed
    with pytest.raises(UserError) as caught:
        open_documents(str(folder), ["ja", "th", "ko"])
    assert str(caught.value) == f"{folder}: no documents in th, ko; there are en, fi, ja"
    with pytest.raises(UserError, match="unknown language 'jp'; did you mean 'jpn'"):
        open_documents(str(folder), ["jp"])


def test_nothing_found_says_what_is_needed(tmp_path):
    for files in ((), ("README.md", "README.txt", ".hidden/ja.txt", "ja.txt.partial")):
        for name in files:
            written(tmp_path / name, "text\n")
        with pytest.raises(UserError, match="no documents; .* or text in ja.txt .*, are needed"):
            open_documents(str(tmp_path))
    with pytest.raises(UserError, match="nowhere: no such file"):
        open_documents(str(tmp_path / "nowhere"))


def test_a_tag_that_is_in_no_table_is_named_with_its_line_unless_others_were_asked_for(
    tmp_path, caplog
):
    path = written(
        tmp_path / "x.jsonl",
        line(lang="en", text="a") + line(lang="jp", text="b") + line(lang="hin_Latn", text="c") * 2,
    )
    with pytest.raises(UserError) as caught:
        open_documents(str(path))
    assert str(caught.value).startswith(f"{path}:2: unknown language 'jp'; did you mean 'jpn'")
    assert "--languages" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        assert texts(open_documents(str(path), ["en"])["en"]) == ["a"]
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [
        f"{path}:2",
        f"{path}:3",
    ]
    assert "script" in caplog.messages[1]


def test_plain_text_without_a_language_is_an_error_unless_others_were_asked_for(tmp_path, caplog):
    folder = tmp_path / "some_corpus"
    nameless = written(folder / "part.txt", "x\n")
    written(folder / "ja.txt", "一\n")
    with pytest.raises(UserError, match=r"part\.txt: nothing says its language; rename it"):
        open_documents(str(folder))
    assert texts(open_documents(str(folder), ["ja"])["ja"]) == ["一"]
    assert caplog.messages[0].startswith(f"{nameless}: nothing says its language")


def test_a_file_that_is_there_packed_and_unpacked_would_be_read_twice(tmp_path):
    written(tmp_path / "ja.jsonl", line(text="x"))
    written(tmp_path / "ja.jsonl.gz", line(text="x"))
    with pytest.raises(UserError, match=r"ja\.jsonl\.gz: ja\.jsonl is there too; keep one"):
        open_documents(str(tmp_path))


def test_a_name_that_the_lines_deny_is_not_believed(tmp_path):
    written(tmp_path / "no_filter.jsonl", line(lang="ja", text="a") + line(lang="en", text="b"))
    sources = open_documents(str(tmp_path))  # "no" is Norwegian
    assert {code: texts(source) for code, source in sources.items()} == {"en": ["b"], "ja": ["a"]}


def test_a_file_whose_first_lines_deny_its_name_is_looked_through_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(document_finding, "HEAD", 2)
    codes = ["ja", "en", "ja", "fi"]
    written(tmp_path / "no.jsonl", "".join(line(lang=code, text=code) for code in codes))
    assert list(open_documents(str(tmp_path))) == ["en", "fi", "ja"]


def test_another_language_behind_the_lines_looked_at_is_passed_over_and_told(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(document_finding, "HEAD", 2)
    path = written(
        tmp_path / "ja.jsonl",
        line(text="a") + line(lang="ja", text="b") + line(lang="en", text="c") * 2 + line(text="d"),
    )
    sources = open_documents(str(path))
    assert list(sources) == ["ja"]
    assert texts(sources["ja"]) == ["a", "b", "d"]
    assert [message.split("; ")[0] for message in caplog.messages] == [
        f"{path}:3: language 'en' in a file named after ja"
    ]


def test_the_weight_is_the_bytes_of_each_languages_lines(tmp_path):
    lines = {code: line(lang=code, text=code * size) for code, size in (("en", 40), ("fi", 500))}
    written(tmp_path / "all.jsonl", "".join(lines.values()))
    written(tmp_path / "fi.txt", "x" * 99 + "\n")
    weights = {code: source.weight for code, source in open_documents(str(tmp_path)).items()}
    assert weights == {"en": len(lines["en"]), "fi": len(lines["fi"]) + 100}
    packed = written(
        tmp_path / "packed" / "ja.txt.gz", "".join(random.Random(0).choices("abcdefgh \n", k=9999))
    )
    weight = open_documents(str(packed))["ja"].weight
    assert weight == packed.stat().st_size * document_files.PACKED


# -- going on --


@pytest.mark.parametrize("code", ["en", "fi", "ja"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_pass_goes_on_after_any_document_as_if_it_had_not_stopped(mixed, code, shards):
    folder, expected = mixed
    parts = []
    for shard in range(shards):
        part = {"shard": shard, "shards": shards}
        whole = list(open_documents(str(folder))[code].documents(**part))
        parts.append([document.text for document, _ in whole])
        for stopped, (_, state) in enumerate(whole, 1):
            kept = json.loads(json.dumps(state))
            rest = list(open_documents(str(folder))[code].documents(kept, **part))
            assert rest == whole[stopped:]
    dealt = [expected[code][shard::shards] for shard in range(shards)]
    assert parts == dealt


def test_two_passes_at_once_do_not_disturb_each_other(mixed):
    folder, expected = mixed
    source = open_documents(str(folder))["ja"]
    first, second = source.documents(), source.documents()
    both = [(next(first)[0].text, next(second)[0].text) for _ in expected["ja"]]
    assert both == [(text, text) for text in expected["ja"]]


def test_a_state_of_other_files_or_another_part_is_refused(mixed):
    folder, _ = mixed
    _, state = next(open_documents(str(folder))["ja"].documents())
    with pytest.raises(UserError, match="ja documents: cannot go on .*: shards was 1 and is 2"):
        next(open_documents(str(folder))["ja"].documents(state, shards=2))
    written(folder / "ja_more.txt", "more\n")  # behind the place
    next(open_documents(str(folder))["ja"].documents(state))
    written(folder / "a_ja.txt", "more\n")  # before it
    with pytest.raises(UserError, match=r"cannot go on .* stood: file was 'all.jsonl.gz' and is"):
        next(open_documents(str(folder))["ja"].documents(state))


@pytest.mark.parametrize("name", ["en.jsonl", "en.txt"])
def test_the_hash_of_what_was_read_is_that_of_the_bytes_before_the_place(tmp_path, name):
    end = "\n" if name == "en.txt" else ""
    one, two, three = (
        (line(text=word) if name == "en.jsonl" else f"{word}\n") + end
        for word in ("aa", "bb", "cc")
    )
    first = written(tmp_path / "a_en.txt", "first\n")
    path = written(tmp_path / name, one + two + three)
    source = open_documents(str(tmp_path))["en"]
    states = [state for _, state in source.documents()]
    before, whole = [source.content(state) for state in states], source.content()
    path.write_text(one + two + three.replace("cc", "dd") + three)
    mended = open_documents(str(tmp_path))["en"]
    kept = [mended.content(state) == said for state, said in zip(states, before, strict=True)]
    assert kept == [True, True, True, False]
    assert mended.content() != whole
    first.write_text("other\n")  # as long
    other = open_documents(str(tmp_path))["en"]
    assert not {other.content(state) for state in states} & set(before)


def test_of_a_gzipped_file_that_is_being_read_every_byte_counts(tmp_path):
    path = written(tmp_path / "en.txt.gz", "aa\n\nbb\n\ncc\n")
    source = open_documents(str(path))["en"]
    state = next(source.documents())[1]
    before = source.content(state)
    written(path, "aa\n\nbb\n\ndd\n")
    assert open_documents(str(path))["en"].content(state) != before


def test_a_part_that_does_not_exist_is_a_bug(mixed):
    folder, _ = mixed
    with pytest.raises(ValueError, match="shard 2 is not one of 2"):
        next(open_documents(str(folder))["ja"].documents(shard=2, shards=2))


def test_text_without_blank_lines_is_cut_between_paragraphs_and_goes_on_there(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(document_files, "LONGEST", 8)
    path = written(
        tmp_path / "en.txt", "aaaa\nbbbb\ncc\ndddddddddd\ne\n"
    )  # 5 + 5 >= 8, 3 + 11 >= 8
    source = open_documents(str(path))["en"]
    whole = list(source.documents())
    assert [document.text for document, _ in whole] == ["aaaa\nbbbb", "cc\ndddddddddd", "e"]
    assert [document.line for document, _ in whole] == [1, 3, 5]
    assert list(source.documents(whole[0][1])) == whole[1:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz", "en.txt"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, name):
    import tracemalloc

    def peak(documents):
        path = written(
            tmp_path / str(documents) / name,
            "".join(
                line(lang="en" if i % 2 else "fi", text="x" * 500) + "\n" for i in range(documents)
            ),
        )
        tracemalloc.start()
        read = sum(1 for _ in open_documents(str(path))["en"].documents())
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert read == (documents if name == "en.txt" else documents // 2)
        return held

    assert peak(8_000) < 1.2 * peak(2_000)


# -- the cheap test --

SPACE = st.sampled_from(["", " ", "\t", "  "])
WORDS = st.sampled_from(
    ['"lang": "en"', "lang", '"', "\\", "{", "}", ":", "é", '\\"lang": "en"', "a"]
)
VALUES = st.recursive(
    st.lists(WORDS, max_size=4).map("".join) | st.none() | st.integers(0, 9),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["lang", "b"]), inner)
    ),
    max_leaves=4,
)
RECORDS = st.dictionaries(
    st.sampled_from(["text", "lang", "id", 'x"lang', "language"]),
    VALUES,
) | st.fixed_dictionaries({"lang": st.sampled_from(["ja", "en", "pt-BR", ""]), "text": VALUES})


@settings(max_examples=300, deadline=None)
@given(RECORDS, SPACE, SPACE, SPACE, st.booleans())
def test_a_tag_told_without_parsing_is_the_one_that_parsing_finds(
    record, before, after, around, escaped
):
    raw = around + json.dumps(
        record, ensure_ascii=escaped, separators=(before + "," + after, before + ":" + after)
    )
    told = tag_of(raw.encode())
    if told is not None:
        assert told == json.loads(raw)["lang"]


@pytest.mark.parametrize(
    "raw",
    [
        '{"text": "x", "lang" : "ja"}',
        '{"lang":"ja","text":"\\"lang\\": \\"en\\" and \\\\"}',
        '\ufeff{"lang"\t:  "ja"}\r\n',
        '{"text": "\\u65e5\\u672c", "lang": "ja", "n": [1, 2]}',
    ],
)
def test_ordinary_lines_are_told_without_parsing(raw):
    assert tag_of(raw.encode()) == "ja"


@pytest.mark.parametrize(
    "raw",
    [
        '{"meta": {"lang": "en"}, "text": "x"}',  # not the line's own
        '{"lang": "en", "l\\u0061ng": "ja"}',  # the last of two keys counts
        '{"lang": "j\\u0061"}',
        '{"lang": "en", "lang": "ja"}',
        '{"lang": ["en"]}',
        '{"text": "x"}',
    ],
)
def test_lines_that_may_deceive_are_parsed(raw):
    assert tag_of(raw.encode()) is None


def test_keys_of_inner_objects_and_escapes_do_not_change_the_language(tmp_path):
    written(
        tmp_path / "x.jsonl",
        '{"meta": {"lang": "en"}, "lang": "ja", "text": "a"}\n'
        '{"text": "b {", "lang":\t"j\\u0061"}\n'
        '{"text": "c", "meta": [{"lang": "ja"}], "l\\u0061ng": "en"}\n',
    )
    sources = open_documents(str(tmp_path / "x.jsonl"))
    assert {code: texts(source) for code, source in sources.items()} == {
        "en": ["c"],
        "ja": ["a", "b {"],
    }


# -- what is broken --


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ('{"lang": "ja", "text": "x"', "not JSON at column"),
        ("[1]", "JSON of type list, not an object"),
        ('{"lang": "ja"}', 'no "sentences" and no "text"; one of them is needed'),
        ('{"lang": "ja", "text": 5}', '"text" is of type int; a string is needed'),
        ('{"lang": "ja", "sentences": "x"}', '"sentences" is no list of strings'),
        ('{"lang": "ja", "sentences": ["x", 1]}', '"sentences" is no list of strings'),
        ('{"lang": "ja", "text": "x", "id": [1]}', r"id \[1\] is not a string"),
        ('{"lang": "ja", "text": "\\ud83d"}', ".* half a character"),
        ('{"lang": 3, "text": "x"}', '"lang" 3 is not a string'),
    ],
)
def test_a_broken_line_is_named(tmp_path, broken, message):
    path = written(tmp_path / "ja.jsonl", line(text="x") + "\n" + broken + "\n")
    with pytest.raises(UserError, match=rf"^{path}:3: {message}") as caught:
        texts(open_documents(str(path))["ja"])
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_named_rather_than_waited_for(tmp_path):
    written(tmp_path / "en.txt", "x\n")
    pipe = tmp_path / "fi.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=rf"^{pipe}: a pipe or a device, where a file belongs"):
        open_documents(str(tmp_path))
    pipe.unlink()
    link = tmp_path / "ja.txt"
    link.symlink_to(tmp_path / "gone.txt")
    with pytest.raises(UserError, match=rf"^{link}: a link to a file that is not there"):
        open_documents(str(tmp_path))
    link.unlink()
    link.symlink_to(tmp_path / "en.txt")
    assert list(open_documents(str(tmp_path))) == ["en", "ja"]


def test_a_tag_of_separators_alone_is_shown_as_it_is(tmp_path):
    path = written(tmp_path / "x.jsonl", line(lang="..", text="a"))
    with pytest.raises(UserError, match=rf"^{path}:1: unknown language '\.\.'"):
        open_documents(str(path))


def test_a_line_without_a_language_is_named(tmp_path):
    path = written(tmp_path / "x.jsonl", line(lang="ja", text="x") + line(text="y"))
    with pytest.raises(
        UserError, match=rf'^{path}:2: no "lang"; add it, or name the file ja\.jsonl'
    ):
        open_documents(str(path))
    path = written(tmp_path / "x.jsonl", line(lang="ja", text="x") + line(lang="", text="y"))
    with pytest.raises(UserError, match=rf'^{path}:2: no "lang"'):
        open_documents(str(path))


@pytest.mark.parametrize("name", ["ja.jsonl", "ja.txt", "ja.txt.gz"])
def test_bytes_that_are_no_utf8_are_named(tmp_path, name):
    good = line(text="x") if "json" in name else "x\n"
    path = written(tmp_path / name, good.encode() + b"\n" + b'{"text": "\xff"}\n')
    with pytest.raises(UserError, match=rf"^{path}:3: byte 11 \(0xff\) is not UTF-8"):
        texts(open_documents(str(path))["ja"])


def test_damaged_gzip_is_named(tmp_path):
    path = tmp_path / "ja.txt.gz"
    path.write_bytes(gzip.compress(random.Random(0).randbytes(5000).hex().encode())[:-2000])
    with pytest.raises(UserError, match=rf"^{path}:1: damaged or truncated gzip"):
        texts(open_documents(str(path))["ja"])


def test_a_line_that_would_fill_the_memory_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(rawlines, "LONGEST_LINE", 1 << 20)
    path = written(tmp_path / "ja.txt.gz", "x\n\n" + "x" * (1 << 20))
    with pytest.raises(UserError, match=rf"^{path}:3: a line of 1 MiB or more; put each document"):
        texts(open_documents(str(path))["ja"])


@pytest.mark.real
@pytest.mark.parametrize("folder", ["longdocs", "longdocs_wiki", "ntrex/docs"])
def test_real_documents_are_all_read(real_data, folder):
    for code, source in open_documents(str(real_data / folder)).items():
        with gzip.open(real_data / folder / f"{code}.jsonl.gz", "rt", encoding="utf-8") as stream:
            ids = [json.loads(row)["id"] for row in stream]
        assert [document.id for document, _ in source.documents()] == ids
