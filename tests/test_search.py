import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ccpretrieve
from ccpretrieve import encode, index, search
from ccpretrieve.config import EncodeConfig, IndexConfig
from ccpretrieve.data.records import Topic
from ccpretrieve.errors import UserError
from ccpretrieve.model import random_checkpoint
from ccpretrieve.model.calibration_file import Calibration, Spread
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.retrieval import hybrid
from ccpretrieve.retrieval.dense import Dense
from ccpretrieve.retrieval.faiss_index import Index, Lines
from ccpretrieve.retrieval.fusion import fuse
from ccpretrieve.retrieval.runfile import read_run
from ccpretrieve.search_config import SearchConfig


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    """A corpus of twelve passages in Mr.TyDi's layout, with two test questions."""
    path = tmp_path / "facts"
    (path / "collection").mkdir(parents=True)
    docs = [{"id": f"d{i}", "contents": f"T{i}\n\nfact number {i} a b c"} for i in range(12)]
    lines = "".join(json.dumps(doc) + "\n" for doc in docs)
    (path / "collection" / "docs.jsonl").write_text(lines)
    (path / "topic.test.tsv").write_text("1\tfact number 3\n2\twhat is a b c\n")
    (path / "qrels.test.txt").write_text("1 Q0 d3 1\n2 Q0 d0 1\n")
    return path


@pytest.fixture
def made(folder, tiny_checkpoint):
    config = EncodeConfig(corpus=str(folder), encoder=str(tiny_checkpoint), quiet=True)
    return encode.run(config)


def test_topics_become_a_run_in_the_order_of_the_inner_products(folder, made, tiny_checkpoint):
    run = search.run(SearchConfig(corpus=str(folder), hits=4))
    assert str(run) == "runs/facts.test.tiny-xlmr.trec"
    encoder = Encoder.load(tiny_checkpoint)
    queries = encoder.encode_queries(["fact number 3", "what is a b c"])
    passages = encoder.encode_passages([(f"T{i}", f"fact number {i} a b c") for i in range(12)])
    scores = queries @ passages.T
    ranking = read_run(run)
    for row, topic in enumerate(["1", "2"]):
        best = np.argsort(-scores[row])[:4]
        assert list(ranking[topic]) == [f"d{i}" for i in best]
        np.testing.assert_allclose(list(ranking[topic].values()), scores[row][best], rtol=1e-5)


def test_a_typed_hybrid_question_has_its_texts_without_reading_every_id(
    folder, made, tiny_checkpoint, monkeypatch
):
    """Each part finds two of twelve passages; BM25 the first and the last."""
    dense = Dense(Index.load(made))
    dense.index.encoder = Encoder.load(tiny_checkpoint)
    found = {"d0": 2.0, "d11": 1.0}
    lexical = SimpleNamespace(path=folder, meta=dense.meta, search=lambda *_: {"": found})
    monkeypatch.setattr(hybrid, "DEPTH", 2)
    fused = hybrid.Hybrid(dense, lexical, "rrf")
    best = dense.search([Topic("q", "fact number 3")], 2)["q"]
    read, take = [], Lines.take
    monkeypatch.setattr(Lines, "take", lambda *words: read.extend(words[1]) or take(*words))
    hits = fused.answer("fact number 3", 2)
    assert [hit.docid for hit in hits] == list(fuse({"q": best}, {"q": found}, "rrf", hits=2)["q"])
    assert len(read) == 4  # the ids of the two that the vectors found, and of the two texts
    assert any(hit.docid not in best for hit in hits)  # BM25 alone found it
    for hit in hits:
        number = int(hit.docid[1:])
        assert (hit.row, hit.passage.title) == (number, f"T{number}")
    wanted = {"d0", "d1", "d11", "nowhere"}  # d1 begins d10 and d11
    assert hybrid._rows(made / "docid", wanted) == {"d0": 0, "d1": 1, "d11": 11}
    (made / "shards").rename(made / "away")
    assert [hit.passage for hit in fused.answer("fact number 3", 2)] == [None, None]


def test_the_sidecar_says_what_made_the_run(folder, made):
    run = search.run(SearchConfig(corpus=str(folder)))
    sidecar = json.loads(run.with_name(f"{run.name}.json").read_text())
    assert sidecar["topics"] == str(folder)
    assert sidecar["split"] == "test"
    assert sidecar["index"] == str(made)
    assert sidecar["encoder"]["settings"]["pooling"] == "mean"
    assert sidecar["hits"] == 100


def test_more_hits_than_passages_are_all_of_them(folder, made):
    ranking = read_run(search.run(SearchConfig(corpus=str(folder), hits=1000)))
    assert {len(hits) for hits in ranking.values()} == {12}


def test_a_file_of_topics_is_searched_too(made, tmp_path):
    (tmp_path / "mine.tsv").write_text("7\tfact number 5\n")
    run = search.run(SearchConfig(index=made, topics="mine.tsv", tag="x"))
    assert str(run) == "runs/mine.x.trec"
    assert list(read_run(run)) == ["7"]


def test_a_typed_question_is_answered_with_text(made):
    text = search.run(SearchConfig("fact number 3", hits=2))
    assert text.count("\n") == 3
    assert "fact number" in text
    assert " 1. " in text
    assert " 2. " in text


def test_questions_from_standard_input_are_answered_one_by_one(made, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("fact number 3\n\nfact number 4\n"))
    search.main(["--hits", "1", "--quiet"])
    out, err = capsys.readouterr()
    assert out.count(" 1. ") == 2
    assert err == ""


def test_bytes_that_are_no_text_end_the_questions_with_their_line(made, monkeypatch, capsys):
    stream = io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbffact number 3\r\na \xff\nfact\n"), "utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(SystemExit) as stop:
        search.main(["--hits", "1", "--quiet"])
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert out == search.run(SearchConfig("fact number 3", hits=1)) + "\n"
    assert err == "error: standard input:2: byte 3 is not utf-8; convert it\n"


def test_a_closed_standard_input_is_said(made, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="standard input is closed; type a question, or give"):
        search.run(SearchConfig())


def test_a_prompt_is_shown_where_somebody_types(made, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("fact\n"))
    search.main(["--hits", "1"])
    assert capsys.readouterr().err == "question> question> "


def test_without_an_index_the_command_that_makes_one_is_named(folder, monkeypatch):
    with pytest.raises(
        UserError, match=r"no index in indexes/; make one: python -m ccpretrieve\.enc"
    ):
        search.run(SearchConfig())
    with pytest.raises(UserError, match=f"encode --corpus {folder}"):
        search.run(SearchConfig(corpus=str(folder)))


def test_several_indexes_are_listed_and_the_status_is_1(folder, made, tiny_checkpoint, capsys):
    config = EncodeConfig(corpus=str(folder), encoder=str(tiny_checkpoint), tag="two", quiet=True)
    encode.run(config)
    with pytest.raises(SystemExit) as stop:
        search.main([])
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert "indexes/facts.tiny-xlmr, indexes/facts.two; choose one with --index" in err
    chosen = search.run(SearchConfig(corpus=str(folder), tag="two"))
    assert str(chosen) == "runs/facts.test.two.trec"


def test_an_unfinished_index_is_not_searched(made):
    made.rename("indexes/facts.tiny-xlmr.partial")
    with pytest.raises(UserError, match="no index in indexes/"):
        search.run(SearchConfig("x"))


def test_another_encoder_is_refused_with_both_named(made, tmp_path):
    other = random_checkpoint.build(tmp_path / "other", ["a b c"], vocabulary=270, seed=5)
    with pytest.raises(
        UserError, match=r"was made with the encoder .*tiny-xlmr.* not with .*other"
    ):
        search.run(SearchConfig("x", encoder=str(other)))


def test_an_index_takes_no_other_encoder_from_python_either(made, tiny_checkpoint, tmp_path):
    other = random_checkpoint.build(tmp_path / "other", ["a b c"], vocabulary=270, seed=5)
    with pytest.raises(
        UserError, match=r"was made with the encoder .*tiny-xlmr.* not with .*other"
    ):
        Index.load(made, encoder=Encoder.load(other))
    with pytest.raises(UserError, match="settings pooling was 'mean', now 'cls'"):
        Index.load(made, encoder=Encoder.load(tiny_checkpoint, pooling="cls"))
    assert Index.load(made, encoder=Encoder.load(tiny_checkpoint)).search(["fact"], 1)


def test_an_index_older_than_a_setting_was_made_with_its_default(made, tiny_checkpoint):
    path = made / "meta.json"
    meta = json.loads(path.read_text())
    assert meta["encoder"]["settings"].pop("strip_question_mark") is False
    path.write_text(json.dumps(meta))
    assert Index.load(made, encoder=Encoder.load(tiny_checkpoint)).search(["fact"], 1)
    stripping = Encoder.load(tiny_checkpoint, strip_question_mark=True)
    with pytest.raises(UserError, match="settings strip_question_mark was False, now True"):
        Index.load(made, encoder=stripping)


def test_another_tag_is_an_error_and_a_longer_name_is_another_corpus(folder, made, tiny_checkpoint):
    with pytest.raises(UserError, match="no index is tagged 'nonexist'"):
        search.run(SearchConfig("x", tag="nonexist"))
    longer = folder.rename(folder.with_name("facts.2024"))
    with pytest.raises(UserError, match=r"no index of .*facts\.2024 in indexes/"):
        search.run(SearchConfig("x", corpus=str(longer)))


def test_a_run_is_not_written_over_what_is_searched(made, tmp_path):
    topics = tmp_path / "mine.tsv"
    topics.write_text("7\tfact number 5\n")
    before = (made / "docid").read_bytes()
    for output in (topics, made / "docid"):
        with pytest.raises(UserError, match="is what is searched; choose another file"):
            search.run(SearchConfig(index=made, topics=str(topics), output=output))
    assert topics.read_text() == "7\tfact number 5\n"
    assert (made / "docid").read_bytes() == before


def test_a_folder_is_no_run(made, folder, tmp_path):
    for output in (tmp_path, Path(), Path("/")):
        with pytest.raises(UserError, match="a folder; name a file"):
            search.run(SearchConfig(index=made, topics=str(folder), output=output))


def test_the_language_of_the_questions_is_one(made):
    with pytest.raises(UserError, match="unknown language 'japanes'; did you mean 'japanese'"):
        search.run(SearchConfig("fact", lang="japanes"))
    assert search.run(SearchConfig("fact", lang="Japanese"))


def test_what_a_file_of_topics_or_a_question_has_no_use_for_is_refused(made, tmp_path):
    (tmp_path / "mine.tsv").write_text("7\tfact number 5\n")
    with pytest.raises(UserError, match=r"--split dev: mine\.tsv is a file of topics; leave"):
        search.run(SearchConfig(topics="mine.tsv", split="dev"))
    for settings in ({"split": "test"}, {"output": Path("x.trec")}):
        for question in ("fact", None):
            with pytest.raises(UserError, match="goes with topics"):
                SearchConfig(question, **settings)
    with pytest.raises(UserError, match="did you mean 'test'"):
        search.run(SearchConfig(topics=str(tmp_path / "facts"), split="tset"))


def test_without_a_bm25_index_the_command_that_makes_it_is_named(folder, made):
    for settings in ({"tag": "bm25"}, {"hybrid": "bm25"}):
        with pytest.raises(
            UserError, match=rf"python -m ccpretrieve\.index --lexical --corpus {folder}$"
        ):
            search.run(SearchConfig(corpus=str(folder), **settings))


def test_two_indexes_of_different_passages_are_not_fused(folder, made):
    lexical = Path("indexes/facts.bm25")
    lexical.mkdir()
    content = {"corpus": {"name": "facts", "fingerprint": "0" * 64}, "language": "en"}
    (lexical / "meta.json").write_text(json.dumps({**content, "analyzer": "en"}))
    for name in ("bm25", str(lexical)):  # said before Java or an encoder is started
        with pytest.raises(
            UserError,
            match=r"^indexes/facts\.bm25: holds other passages .* than indexes/facts\.tin",
        ):
            search.run(SearchConfig(corpus=str(folder), hybrid=name))


def test_what_only_bm25_or_only_vectors_have_is_refused_for_the_other(folder, made):
    with pytest.raises(UserError, match=r"--k1 1\.2: goes with a BM25 index only"):
        search.run(SearchConfig(corpus=str(folder), k1=1.2))
    lexical = Path("indexes/facts.bm25")
    lexical.mkdir()
    (lexical / "segments_1").touch()
    for settings in ({"encoder": "x"}, {"device": "cpu"}, {"hybrid": "bm25"}):
        (flag,) = settings
        with pytest.raises(UserError, match=f"--{flag} .*: goes with an embedding index only"):
            search.run(SearchConfig(index=lexical, topics=str(folder), **settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": 0.5}, r"--weight 0\.5: goes with --hybrid"),
        ({"fusion": "alpha"}, "--fusion alpha: goes with --hybrid"),
        ({"hybrid": "bm25", "weight": 0.5}, r"--weight 0\.5: rrf has no weight; choose a --fusion"),
        ({"hybrid": "bm25", "tune_split": "dev"}, "--tune-split dev: rrf has no weight"),
        ({"hybrid": "bm25", "fusion": "minmx"}, "unknown fusion 'minmx'; did you mean 'minmax'"),
        ({"hybrid": "bm25", "fusion": "zscore", "weight": 1.5}, "--weight must be from 0 to 1"),
        ({"hybrid": "bm25", "fusion": "alpha", "weight": -1.0}, "--weight must be a number from 0"),
        (
            {"hybrid": "bm25", "fusion": "alpha", "weight": 1.0, "tune_split": "dev"},
            "--tune-split chooses the weight; leave --weight out",
        ),
        ({"k1": -0.1}, "--k1 must be a number from 0"),
        ({"b": 1.1}, r"--b must be from 0 to 1, got 1\.1"),
    ],
)
def test_a_fusion_that_cannot_be_is_refused_at_once(settings, said):
    with pytest.raises(UserError, match=said):
        SearchConfig(topics="x", **settings)


def test_a_weight_is_tuned_on_topics_alone():
    with pytest.raises(UserError, match="--tune-split dev: goes with topics"):
        SearchConfig("a question", hybrid="bm25", fusion="alpha", tune_split="dev")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "--embeddings needs a folder"),
        ({"lexical": True}, "--lexical needs a --corpus"),
        ({"corpus": "x", "embeddings": (Path("x"),)}, "--corpus goes with --lexical only"),
        ({"threads": 2, "embeddings": (Path("x"),)}, "--threads goes with --lexical only"),
        (
            {"lexical": True, "corpus": "x", "embeddings": (Path("x"),)},
            "--embeddings goes not with --lexical",
        ),
        ({"lexical": True, "corpus": "x", "factory": "SQ8"}, "--factory goes not with --lexical"),
        ({"lexical": True, "corpus": "x", "threads": 0}, "--threads must be at least 1"),
    ],
)
def test_words_and_vectors_are_not_indexed_in_one_call(settings, said):
    with pytest.raises(UserError, match=said):
        IndexConfig(**settings)


def test_ids_in_another_order_are_noticed(made):
    lines = (made / "docid").read_text().splitlines(keepends=True)
    (made / "docid").write_text("".join(reversed(lines)))
    with pytest.raises(UserError, match="docid changed since it was written"):
        search.run(SearchConfig("fact"))


def test_with_a_graph_beside_it_the_corpus_still_means_the_exact_index(folder, made):
    index.run(IndexConfig(embeddings=(made,), factory="HNSW8", queries=0))
    run = search.run(SearchConfig(corpus=str(folder)))
    assert str(run) == "runs/facts.test.tiny-xlmr.trec"


def test_topics_of_two_folders_do_not_write_the_same_run(made, tmp_path):
    runs = set()
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "topic.test.tsv").write_text("7\tfact number 5\n")
        config = SearchConfig(index=made, topics=str(tmp_path / name / "topic.test.tsv"))
        runs.add(str(search.run(config)))
    assert runs == {f"runs/{name}.topic.test.tiny-xlmr.trec" for name in "ab"}


def test_a_calibrated_index_is_searched_with_calibrated_questions(
    folder, tiny_checkpoint, tmp_path
):
    raw = Encoder.load(tiny_checkpoint, normalize=False)
    docs = [(f"T{i}", f"fact number {i} a b c") for i in range(12)]
    questions = ["fact number 3", "what is a b c"]
    spreads = {
        "en": Spread.fit(raw.encode_passages(docs)),
        "ja": Spread.fit(raw.encode_queries([*questions, "x y", "z"])),
    }
    file = tmp_path / "c.safetensors"
    Calibration(spreads).save(file)
    config = EncodeConfig(
        corpus=str(folder), encoder=str(tiny_checkpoint), calibration=file, lang="en", quiet=True
    )
    made = encode.run(config)
    run = search.run(SearchConfig(index=made, topics=str(folder), lang="ja"))

    def unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    passages = unit(spreads["en"].transform(raw.encode_passages(docs)))
    queries = unit(spreads["ja"].transform(raw.encode_queries(questions)))
    scores = (queries @ passages.T)[0]
    assert read_run(run)["1"] == pytest.approx({f"d{i}": scores[i] for i in range(12)}, abs=1e-5)
    with pytest.raises(UserError, match="give --lang"):
        search.run(SearchConfig("x", index=made))
    file.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="the calibration is not there; name it by --calibration"):
        search.run(SearchConfig("x", index=made, lang="ja"))
    assert search.run(SearchConfig("x", index=made, lang="ja", calibration=tmp_path / "moved"))
    Calibration({**spreads, "ja": spreads["en"]}).save(file)
    with pytest.raises(UserError, match="the calibration file is another one"):
        search.run(SearchConfig("x", index=made, lang="ja"))


def test_a_checkpoint_that_moved_is_found_by_its_new_name(folder, tiny_checkpoint, tmp_path):
    import shutil

    moved = shutil.copytree(tiny_checkpoint, tmp_path / "before")
    config = EncodeConfig(corpus=str(folder), encoder=str(moved), pooling="cls", quiet=True)
    encode.run(config)
    before = search.run(SearchConfig("fact"))
    moved.rename(tmp_path / "after")
    with pytest.raises(UserError, match="which is not to be had; give its place with --encoder"):
        search.run(SearchConfig("fact"))
    assert search.run(SearchConfig("fact", encoder=str(tmp_path / "after"))) == before


def test_settings_that_changed_since_are_refused_with_both_named(folder, tiny_checkpoint, tmp_path):
    import shutil

    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    encode.run(EncodeConfig(corpus=str(folder), encoder=str(copy), quiet=True))
    settings = json.loads((copy / "ccpretrieve.json").read_text())
    (copy / "ccpretrieve.json").write_text(json.dumps({**settings, "query_prefix": "q: "}))
    with pytest.raises(UserError, match="settings query_prefix was 'query: ', now 'q: '"):
        search.run(SearchConfig("fact"))


def test_a_setting_asked_for_at_encoding_holds_at_searching(folder, tiny_checkpoint):
    config = EncodeConfig(corpus=str(folder), encoder=str(tiny_checkpoint), pooling="cls")
    opened = Index.load(encode.run(config))
    assert opened.encoder.settings.pooling == "cls"


def test_an_index_that_pyserini_wrote_needs_its_encoder_named(made, tiny_checkpoint):
    ours = search.run(SearchConfig("fact number 3", index=made))
    (made / "meta.json").unlink()
    with pytest.raises(UserError, match="says nothing of its encoder; give --encoder"):
        search.run(SearchConfig("fact number 3", index=made))
    theirs = search.run(SearchConfig("fact number 3", index=made, encoder=str(tiny_checkpoint)))
    first = [line.split("  ")[0] for line in ours.splitlines()[::2]]
    assert [line.split("  ")[0] for line in theirs.splitlines()] == first  # no text at hand


def test_a_graph_index_gives_the_same_scores(folder, made):
    graph = index.run(IndexConfig(embeddings=(made,), factory="HNSW8", queries=5))
    assert str(graph) == "indexes/facts.tiny-xlmr.hnsw8"
    flat = read_run(search.run(SearchConfig(index=made, topics=str(folder), tag="flat")))
    hnsw = read_run(search.run(SearchConfig(index=graph, topics=str(folder), tag="hnsw")))
    for topic, hits in flat.items():
        assert hnsw[topic] == pytest.approx(hits, rel=1e-5)
    assert "T3" in search.run(SearchConfig("fact number 3", index=graph, hits=12))


def test_index_says_size_time_and_recall(made, caplog):
    with caplog.at_level("INFO", logger="ccpretrieve"):
        index.run(IndexConfig(embeddings=(made,), factory="SQ8", queries=5))
    assert "SQ8 over 12 vectors" in caplog.text
    assert "recall@1 against the flat index on 5 sampled passages: 1.0000" in caplog.text


def test_an_index_that_cannot_be_reported_on_is_not_finished(made, monkeypatch):
    before = sorted(path.name for path in Path("indexes").iterdir())

    def fail(*args):
        assert not Path("indexes/facts.tiny-xlmr.sq8").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(index, "recall", fail)
    with pytest.raises(KeyboardInterrupt):
        index.run(IndexConfig(embeddings=(made,), factory="SQ8", queries=5))
    assert sorted(path.name for path in Path("indexes").iterdir()) == before


def test_index_refuses_what_it_cannot_make_and_leaves_nothing(made):
    before = sorted(path.name for path in Path("indexes").iterdir())
    with pytest.raises(UserError, match="--factory 'Flatt'"):
        index.run(IndexConfig(embeddings=(made,), factory="Flatt"))
    with pytest.raises(UserError, match="exists; choose another --output"):
        index.run(IndexConfig(embeddings=(made,), output=made))
    for output in (Path(), Path("/"), Path("..")):
        with pytest.raises(UserError, match="exists; choose another --output"):
            index.run(IndexConfig(embeddings=(made,), output=output))
    with pytest.raises(UserError, match="--embeddings absent: no such folder"):
        index.run(IndexConfig(embeddings=(Path("absent"),)))
    assert sorted(path.name for path in Path("indexes").iterdir()) == before


def test_the_python_api_is_the_same_path_as_the_commands(folder, made, tiny_checkpoint):
    encoder = ccpretrieve.Encoder.load(tiny_checkpoint)
    opened = ccpretrieve.Index.load(made, encoder=encoder)
    hits = opened.search(["fact number 3"], 3)[0]
    assert ccpretrieve.search is search
    ranking = read_run(ccpretrieve.search.run(SearchConfig(corpus=str(folder))))
    expected = list(ranking["1"].items())[:3]
    assert [(hit.docid, pytest.approx(hit.score, rel=1e-6)) for hit in hits] == expected
    assert hits[0].passage.text.startswith("fact number")


def test_importing_the_package_imports_no_command_and_nothing_heavy():
    import subprocess

    code = "import sys, ccpretrieve; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith("ccpretrieve")] == ["ccpretrieve"]
    assert not {"torch", "faiss", "transformers"} & set(loaded)
    with pytest.raises(AttributeError, match="has no attribute 'Indexx'"):
        ccpretrieve.Indexx  # noqa: B018


def test_a_question_and_topics_at_once_are_refused():
    with pytest.raises(UserError, match="give a question or --topics, not both"):
        SearchConfig("x", topics="y")
    with pytest.raises(UserError, match="the question is empty"):
        SearchConfig("  ")
