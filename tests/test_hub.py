import json
from typing import NamedTuple

import pytest

from ccpretrieve.data.hub import HubCorpus, IrdsCorpus
from ccpretrieve.data.records import Passage, Topic
from ccpretrieve.errors import UserError


@pytest.fixture(scope="module")
def irds(tmp_path_factory):
    """ir_datasets with a home of its own, so that the user's is neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IR_DATASETS_HOME", str(tmp_path_factory.mktemp("irds")))
        import ir_datasets

        yield ir_datasets


@pytest.fixture
def register(irds, monkeypatch):
    """A function that puts data sets into the registry for one test."""
    known = dict(irds.registry._registered)
    monkeypatch.setattr(irds.registry, "_registered", known)

    def register(name, dataset):
        irds.registry.register(name, irds.Dataset(dataset))

    return register


@pytest.fixture
def made(irds, register, tmp_path):
    """A data set with a split below it, all read from files."""
    (tmp_path / "docs.tsv").write_text("d1\tone\nd2\ttwo\n", encoding="utf-8")
    (tmp_path / "topics.tsv").write_text("q1\tWho?\n", encoding="utf-8")
    (tmp_path / "qrels.txt").write_text("q1 0 d2 1\nq1 0 d1 0\n", encoding="utf-8")
    paths = {
        "docs_tsv": str(tmp_path / "docs.tsv"),
        "queries_tsv": str(tmp_path / "topics.tsv"),
        "qrels_trec": str(tmp_path / "qrels.txt"),
    }
    register("made", irds.create_dataset(docs_tsv=paths["docs_tsv"]))
    register("made/test", irds.create_dataset(**paths))


class Stub:
    """A data set of documents given one by one."""

    def __init__(self, documents, lang=None):
        self.documents = documents
        self.lang = lang

    def docs_handler(self):
        return self

    def docs_lang(self):
        return self.lang

    def docs_iter(self):
        return iter(self.documents)


def test_passages_topics_and_judgements_come_from_ir_datasets(made):
    corpus = IrdsCorpus("made")
    assert corpus.name == "irds-made"
    records = list(corpus.records())
    assert [record.passage for record in records] == [Passage("d1", "one"), Passage("d2", "two")]
    assert records[1].where == "irds:made:2"
    assert corpus.topics("test") == [Topic("q1", "Who?")]
    assert corpus.qrels("test") == {"q1": {"d2": 1, "d1": 0}}


def test_a_split_may_be_named_with_the_data_set(made):
    corpus = IrdsCorpus("made/test")
    assert corpus.topics("test") == [Topic("q1", "Who?")]
    assert [record.passage.id for record in corpus.records()] == ["d1", "d2"]


def test_an_unknown_split_or_data_set_is_answered_with_near_ones(made):
    with pytest.raises(UserError, match="'tset'; did you mean 'test'"):
        IrdsCorpus("made").topics("tset")
    with pytest.raises(UserError, match="unknown ir_datasets name 'mr-tydi/jp'; did you mean"):
        IrdsCorpus("mr-tydi/jp")


def test_a_data_set_without_splits_has_one_set_of_topics(irds):
    assert IrdsCorpus("vaswani")._split("test", "queries").dataset_id() == "vaswani"


def test_mrtydi_there_has_its_languages_and_splits(irds):
    corpus = IrdsCorpus("mr-tydi/ja")
    assert (corpus.name, corpus.language) == ("irds-mr-tydi-ja", "ja")
    assert corpus._split("dev", "qrels").dataset_id() == "mr-tydi/ja/dev"


def test_a_corpus_of_passages_alone_says_what_it_lacks(register):
    register("bare", Stub([]))
    for method in (IrdsCorpus("bare").topics, IrdsCorpus("bare").qrels):
        with pytest.raises(UserError, match="irds:bare has no (queries|qrels); give a file"):
            method("test")


class Whole(NamedTuple):
    doc_id: str
    text: str


class Titled(NamedTuple):
    doc_id: str
    title: str
    text: str


class Page(NamedTuple):
    doc_id: str
    url: str
    title: str
    body: str


class Other(NamedTuple):
    doc_id: str
    abstract: str

    def default_text(self):
        return self.abstract


@pytest.mark.parametrize(
    ("document", "passage"),
    [
        (Whole("d", "one\n\ntwo"), Passage("d", "one\n\ntwo")),
        (Titled("d", "T", "one"), Passage("d", "one", "T")),
        (Page("d", "http://", "T", "one"), Passage("d", "one", "T")),
        (Other("d", "one"), Passage("d", "one")),
        (Titled("d", "T", ""), Passage("d", "", "T")),
    ],
)
def test_every_class_of_documents_has_an_id_a_text_and_perhaps_a_title(register, document, passage):
    register("stub", Stub([document], "fi"))
    corpus = IrdsCorpus("stub")
    assert corpus.language == "fi"
    assert [record.passage for record in corpus.records()] == [passage]


def test_mrtydis_text_is_title_blank_line_text(register):
    register("mr-tydi/xx", Stub([Whole("1#0", "T\n\none\n\ntwo")]))
    (record,) = IrdsCorpus("mr-tydi/xx").records()
    assert record.passage == Passage("1#0", "one\n\ntwo", "T")


def test_an_id_no_run_can_carry_is_named_by_its_place(register):
    register("stub", Stub([Whole("a", ""), Whole("b c", "")]))
    with pytest.raises(UserError, match="irds:stub:2: id 'b c' holds white space"):
        list(IrdsCorpus("stub").records())


def test_a_missing_network_is_one_line(register):
    class Unreachable(Stub):
        def docs_iter(self):
            yield Whole("a", "")
            raise ConnectionError("no route\nto host")

    register("stub", Unreachable([]))
    with pytest.raises(UserError, match="irds:stub: cannot be read: ConnectionError: no route; "):
        list(IrdsCorpus("stub").records())


def test_all_that_ir_datasets_says_of_a_failed_download_is_one_line(register, irds, capsys):
    class Chatty(Stub):
        def docs_iter(self):
            irds.log.easy().info("download error")
            irds.log.easy().warn("Download failed")
            pool = "HTTPSConnectionPool(host='x'): Max retries (Caused by Name('x'))"
            raise RuntimeError("All sources failed", [ConnectionError(pool)])

    register("stub", Chatty([]))
    with pytest.raises(UserError, match="cannot be read: RuntimeError: All sources failed; check"):
        list(IrdsCorpus("stub").records())
    assert capsys.readouterr().err == ""


# -- the hub; a local folder is read through the same library --


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A function that writes JSON lines into files and returns their folder, as a hub name."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def hub(**files):
        folder = tmp_path / "sets"
        folder.mkdir()
        for name, rows in files.items():
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        return str(folder)

    return hub


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        {"docid": "d#1", "title": "T", "text": "one\n\ntwo"},
        {"_id": "d#1", "title": "T", "text": "one\n\ntwo"},
        {"id": "d#1", "contents": "T\n\none\n\ntwo"},
    ],
)
def test_rows_are_read_as_json_lines_are(hub, row):
    corpus = HubCorpus(hub(docs=[row, {**row, **{k: "e" for k in row if k.endswith("id")}}]))
    records = list(corpus.records())
    assert [record.passage for record in records] == [
        Passage("d#1", "one\n\ntwo", "T"),
        Passage("e", "one\n\ntwo", "T"),
    ]
    assert records[1].where == f"{corpus.source}:2"


@pytest.mark.slow
def test_passages_are_looked_for_in_the_train_split_where_there_are_several(hub):
    folder = hub(train=[{"id": "a", "text": "one"}], test=[{"id": "b", "text": "two"}])
    assert [record.passage.id for record in HubCorpus(folder).records()] == ["a"]


def test_splits_none_of_which_is_known_to_hold_passages_are_named():
    corpus = HubCorpus("some/set")
    assert corpus._passage_split(["queries", "corpus", "train"]) == "corpus"
    assert corpus._passage_split(["anything"]) == "anything"
    with pytest.raises(UserError, match="none of the splits dev, test is called corpus or train"):
        corpus._passage_split(["dev", "test"])


@pytest.mark.slow
def test_rows_without_text_and_wrong_configurations_are_one_line(hub):
    folder = hub(docs=[{"id": "a", "text": "x"}, {"id": "b", "text": None}])
    with pytest.raises(UserError, match=":2: no text"):
        list(HubCorpus(folder).records())
    with pytest.raises(UserError, match="cannot be read: ValueError: .*Available: "):
        list(HubCorpus(folder, "wrong").records())
    with pytest.raises(UserError, match="cannot be read: FileNotFoundError"):
        list(HubCorpus(folder + "/nowhere").records())


@pytest.mark.slow
def test_a_data_set_that_cannot_be_reached_is_one_line(hub, monkeypatch):
    import datasets

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'some/set' on the Hub\n(offline)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError, match="hf:some/set: cannot be read: ConnectionError: Couldn't"):
        list(HubCorpus("some/set").records())


def test_a_hub_corpus_is_named_after_data_set_and_configuration():
    corpus = HubCorpus("castorini/mr-tydi-corpus", "japanese")
    assert (corpus.name, corpus.language) == ("hf-castorini-mr-tydi-corpus-japanese", "ja")
    assert HubCorpus("someone/wiki-fi").language == "fi"


def test_a_hub_corpus_has_passages_only():
    with pytest.raises(UserError, match="passages only; give a file of topics with --topics"):
        HubCorpus("some/set").topics("test")
    with pytest.raises(UserError, match="passages only; give a file of judgements with --qrels"):
        HubCorpus("some/set").qrels("test")
