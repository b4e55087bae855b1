import json
import logging
from itertools import islice

import pytest

from ccpretrieve.data.document_hub import find_configs
from ccpretrieve.data.documents import open_documents
from ccpretrieve.errors import UserError

pytestmark = pytest.mark.slow  # imports datasets


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def rows(code, count, first=0):
    return [
        {"id": f"{code}{i}", "text": f"{code} text {i}\nmore"} for i in range(first, first + count)
    ]


def save(path, records):
    """Write rows as their file's suffix says."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=4)
    else:
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        path.write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def dataset(tmp_path):
    """A function that makes a data set: configuration -> file -> rows; gives its folder."""

    def dataset(name, configs):
        folder = tmp_path / name
        card = ["---", "configs:"]
        for config, files in configs.items():
            (folder / config).mkdir(parents=True)
            card += [f"- config_name: {config}", "  data_files:", "  - split: train", "    path:"]
            for file, records in files.items():
                save(folder / config / file, records)
                card.append(f"    - {config}/{file}")
        (folder / "README.md").write_text("\n".join([*card, "---", ""]))
        return str(folder)

    return dataset


@pytest.fixture(params=["parquet", "jsonl"])
def web(dataset, request):
    """A data set of the FineWeb-2 kind, three files for each of two languages."""
    kind = request.param
    return dataset(
        "web",
        {
            f"{code}_{script}": {
                f"{part}.{kind}": rows(code, 5 + part, 10 * part) for part in range(3)
            }
            for code, script in (("jpn", "Jpan"), ("fin", "Latn"), ("fin", "Cyrl"))
        },
    )


def ids(source, **part):
    return [document.id for document, _ in source.documents(**part)]


def test_each_language_is_read_from_the_configuration_named_after_it(web):
    sources = open_documents(f"hf:{web}")
    assert list(sources) == ["fi", "ja"]
    documents = [document for document, _ in sources["ja"].documents()]
    assert [document.id for document in documents] == [
        row["id"] for part in range(3) for row in rows("jpn", 5 + part, 10 * part)
    ]
    assert documents[0].text == "jpn text 0\nmore"
    assert documents[5].where == f"hf:{web}:jpn_Jpan:6"
    assert sources["fi"].source.endswith("fin_Latn")


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_pass_goes_on_after_any_document_as_if_it_had_not_stopped(web, shards):
    spec = f"hf:{web}:jpn_Jpan"
    everything = ids(open_documents(spec)["ja"])
    dealt = []
    for shard in range(shards):
        part = {"shard": shard, "shards": shards}
        whole = list(open_documents(spec)["ja"].documents(**part))
        dealt += [document.id for document, _ in whole]
        for stopped, (_, state) in list(enumerate(whole, 1))[:: shards * 2 - 1]:
            kept = json.loads(json.dumps(state))
            rest = open_documents(spec)["ja"].documents(kept, **part)
            assert [d for d, _ in rest] == [d for d, _ in whole[stopped:]]
    assert sorted(dealt) == sorted(everything)  # in 3 parts a file each, in 2 every other row


def test_a_source_can_be_read_again_and_by_two_at_once(web):
    source = open_documents(f"hf:{web}:jpn_Jpan")["ja"]
    first = ids(source)
    _, state = list(islice(source.documents(), 3))[-1]
    assert [document.id for document, _ in source.documents(state)] == first[3:]
    assert ids(source) == first
    both = zip(source.documents(), source.documents(), strict=True)
    assert [(a.id, b.id) for (a, _), (b, _) in both] == [(name, name) for name in first]


def test_a_state_of_another_data_set_is_refused(web):
    _, state = next(open_documents(f"hf:{web}:jpn_Jpan")["ja"].documents())
    with pytest.raises(UserError, match="fin_Latn: cannot go on .*: dataset was"):
        next(open_documents(f"hf:{web}:fin_Latn")["fi"].documents(state))


def test_rows_of_several_languages_are_told_apart_by_their_lang(dataset):
    records = [
        {"lang": "ja", "text": "a"},
        {"lang": "eng", "text": "b"},
        {"lang": "ja", "text": None},
        {"lang": "eng", "text": "c"},
    ]
    folder = dataset("mixed", {"default": {"x.jsonl": records}})
    with pytest.raises(UserError, match="nothing says its language; give --languages"):
        open_documents(f"hf:{folder}")
    sources = open_documents(f"hf:{folder}", ["ja", "en"])
    read = {code: [d.text for d, _ in source.documents()] for code, source in sources.items()}
    assert read == {"en": ["b", "c"], "ja": ["a", ""]}
    _, state = next(sources["en"].documents())
    assert [d.text for d, _ in sources["en"].documents(state)] == ["c"]


def test_rows_without_a_lang_are_in_the_one_language_asked_for(dataset):
    folder = dataset("bare", {"default": {"x.jsonl": [{"text": "a"}, {"text": "b"}]}})
    assert [d.text for d, _ in open_documents(f"hf:{folder}", ["ja"])["ja"].documents()] == [
        "a",
        "b",
    ]
    sources = open_documents(f"hf:{folder}", ["ja", "en"])
    with pytest.raises(UserError, match=':1: no "lang", and several languages may be here; ask'):
        next(sources["ja"].documents())


def test_rows_of_a_data_set_named_after_another_language_must_say_theirs(dataset):
    folder = dataset("wiki-fi", {"default": {"x.jsonl": [{"text": "a"}]}})
    assert [d.text for d, _ in open_documents(f"hf:{folder}")["fi"].documents()] == ["a"]
    assert list(open_documents(f"hf:{folder}", ["fi"])) == ["fi"]
    with pytest.raises(UserError, match=':1: no "lang"'):
        next(open_documents(f"hf:{folder}", ["ja"])["ja"].documents())


def test_what_is_broken_or_absent_is_one_line(dataset, web):
    folder = dataset("ja", {"ja": {"x.jsonl": [{"id": "a", "text": "x"}, {"id": "b", "text": 5}]}})
    failures = {
        "hf:": "hf: names no data set",
        f"hf:{web}/nowhere": "cannot be read: ",
        f"hf:{web}:kor_Hang": "cannot be read: ValueError",
    }
    for spec, message in failures.items():
        with pytest.raises(UserError, match=message) as caught:
            list(next(iter(open_documents(spec).values())).documents())
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no documents in th; there are fi, ja"):
        open_documents(f"hf:{web}", ["th"])
    with pytest.raises(UserError, match="is not a string|cannot be read|a string is needed"):
        list(open_documents(f"hf:{folder}")["ja"].documents())


def test_configurations_that_name_no_language_are_shown(dataset):
    folder = dataset("odd", {name: {"x.jsonl": [{"text": "a"}]} for name in ("small", "large")})
    with pytest.raises(UserError, match="none of small, large names a language; write hf:.*:<one"):
        find_configs(f"hf:{folder}", ["ja"])


def test_of_several_configurations_for_a_language_the_plainest_is_read_and_the_log_says_so(
    dataset, caplog
):
    names = ("jpn_Jpan_removed", "jpn_Jpan", "ja-Latn")  # the last is no Japanese of the table
    folder = dataset("web", {name: {"x.jsonl": [{"text": name}]} for name in names})
    with caplog.at_level(logging.DEBUG, "ccpretrieve"):
        source = open_documents(f"hf:{folder}")["ja"]
    assert [document.text for document, _ in source.documents()] == ["jpn_Jpan"]
    assert caplog.messages == ["ja is read from jpn_Jpan, not from jpn_Jpan_removed"]
