"""Our encoder inside Pyserini: its objects, its commands, and the vectors that come out."""

import importlib
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ccpretrieve import encode
from ccpretrieve import pyserini as verb
from ccpretrieve.commandline import parse
from ccpretrieve.config import EncodeConfig
from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration_file import Calibration, Spread
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.pyserini import PyseriniConfig, prepare, run
from ccpretrieve.retrieval import pyserini_plugin as plugin
from ccpretrieve.retrieval.faiss_index import Index

ROOT = Path(__file__).parents[1]
WORDS = ["Nile", "flows", "Egypt", "Sea", "Helsinki", "capital", "river", "Japan", "Moscow", "by"]
QUERIES = {
    "q1": "Where does the Nile flow?",
    "q2": "pääkaupunki",
    "q10": "日本で一番高い山",
    "q3": "столица России",
}
ENCODE = ("encoder", "input", "output")
K = 7


def passages():
    """30 passages whose words overlap but which are all different; every third without a title."""
    for number in range(30):
        picked = [WORDS[(number * step) % len(WORDS)] for step in (1, 2, 3, 5, 7)]
        title = f"{picked[0]} {number}" if number % 3 else ""
        yield f"doc{number}#0", title, f"{' '.join(picked)} in {1900 + 7 * number}"


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint):
    return Encoder.load(tiny_checkpoint, device="cpu")


@pytest.fixture(scope="module")
def pyserini():
    """Pyserini, imported once; the handler it adds to the root logger is taken away again."""
    before = list(logging.getLogger().handlers)
    plugin.encoder_classes()
    importlib.import_module("pyserini.search.faiss")
    logging.getLogger().handlers[:] = before
    return importlib.import_module("pyserini")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The passages as Pyserini reads them, one JSON object a line, each field under its key."""
    path = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    lines = [json.dumps({"id": i, "title": t, "text": x}) for i, t, x in passages()]
    path.write_text("\n".join(lines) + "\n")
    return path.parent


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    path = tmp_path_factory.mktemp("topics") / "topics.tsv"
    path.write_text("".join(f"{i}\t{text}\n" for i, text in QUERIES.items()))
    return path


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.encode_passages([(title, text) for _, title, text in passages()])


@pytest.fixture(scope="module")
def expected(encoder, vectors):
    """Query -> its K best (docid, score) by brute force in numpy."""
    ids = [i for i, _, _ in passages()]
    scores = encoder.encode_queries(list(QUERIES.values())) @ vectors.T
    order = np.argsort(-scores, axis=1)[:, :K]
    return {
        query: [(ids[column], scores[row, column]) for column in order[row]]
        for row, query in enumerate(QUERIES)
    }


@pytest.fixture(scope="module")
def index(tmp_path_factory, vectors):
    """A directory in Pyserini's layout, written without Pyserini."""
    import faiss

    path = tmp_path_factory.mktemp("index")
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    faiss.write_index(flat, str(path / "index"))
    (path / "docid").write_text("".join(f"{i}\n" for i, _, _ in passages()))
    return path


def read_index(path):
    """Docids and vectors of an index that Pyserini wrote."""
    import faiss

    flat = faiss.read_index(str(path / "index"))
    return (path / "docid").read_text().split(), flat.reconstruct_n(0, flat.ntotal)


def read_run(path):
    found = {}
    for line in path.read_text().splitlines():
        topic, _, docid, _, score, _ = line.split()
        found.setdefault(topic, []).append((docid, float(score)))
    return found


def same_hits(found, expected):
    assert [docid for docid, _ in found] == [docid for docid, _ in expected]
    assert [score for _, score in found] == pytest.approx([s for _, s in expected], abs=1e-4)


def encode_words(corpus, output, checkpoint, *more):
    return (
        *("input", "--corpus", str(corpus), "--fields", "title", "text"),
        *("output", "--embeddings", str(output), "--to-faiss"),
        *("encoder", "--encoder", str(checkpoint), *more),
    )


def search_words(index, checkpoint, topics, output, *more):
    paths = ("--index", index, "--encoder", checkpoint, "--topics", topics, "--output", output)
    return (*map(str, paths), "--hits", str(K), *more)


# --- what reaches Pyserini, without Pyserini ---


def test_encoding_gets_our_class_device_dimension_and_the_fields_of_the_input(tiny_checkpoint):
    words = encode_words("C", "O", tiny_checkpoint, "--batch-size", "8")
    got, encoder, language = prepare(words, *ENCODE)
    at = got.index("encoder") + 1
    added = [
        *("--encoder-class", "auto", "--device", str(encoder.device)),
        *("--dimension", "32", "--fields", "title", "text"),
    ]
    assert got[at : at + len(added)] == added
    assert (*got[:at], *got[at + len(added) :]) == words
    assert (encoder.name, language) == (str(tiny_checkpoint), "")


def test_searching_gets_our_class_and_device_and_keeps_empty_words(tiny_checkpoint):
    words = ["--index", "I", "--encoder", str(tiny_checkpoint), "--instruction-config", ""]
    got, encoder, language = prepare([*words, "--lang", "sw", "--encoder-class", "ccp"], "")
    assert got == ["--encoder-class", "auto", "--device", str(encoder.device), *words]
    assert language == "sw"


def test_in_a_hybrid_search_only_the_dense_part_is_touched(tiny_checkpoint):
    sparse = ["sparse", "--encoder", "castorini/unicoil", "--lang", "ja", "fusion", "--alpha", "1"]
    words = ["dense", "--index", "I", f"--encoder={tiny_checkpoint}", *sparse, "run", "--topics"]
    got, encoder, language = prepare(words, "dense", "sparse", "fusion", "run")
    added = ["--encoder-class", "auto", "--device", str(encoder.device)]
    assert (got, language) == (["dense", *added, *words[1:]], "")


@pytest.mark.parametrize(
    "words",
    [
        ["--index", "I", "--encoded-queries", "Q"],
        ["--index", "I", "--encoder", "castorini/ance", "--encoder-class", "ance", "--lang", "x"],
        ["--help"],
    ],
)
def test_without_an_encoder_of_ours_pyserini_gets_the_words_as_they_are(words):
    assert prepare(words, "") == (words, None, "")


@pytest.mark.parametrize(
    "flags",
    [
        ["--pooling", "cls"],
        ["--pool", "cls"],
        ["--prefix", "query: "],
        ["--max-length", "256"],
        ["--dimension", "768"],
        ["--add-sep"],
        ["--multimodal"],
    ],
)
def test_a_flag_that_contradicts_the_checkpoint_is_refused_by_name(tiny_checkpoint, flags):
    with pytest.raises(UserError, match=rf"{flags[0]}.* contradicts .*ccpretrieve\.json"):
        prepare(encode_words("C", "O", tiny_checkpoint, *flags), *ENCODE)


def test_a_query_prefix_or_tokenizer_of_another_model_is_refused(tiny_checkpoint):
    words = ["--encoder", str(tiny_checkpoint)]
    with pytest.raises(UserError, match="--query-prefix 'passage: ' contradicts .* 'query: '"):
        prepare([*words, "--query-prefix", "passage: "], "")
    with pytest.raises(UserError, match="--tokenizer 'bert-base-uncased' contradicts"):
        prepare([*words, "--tokenizer", "bert-base-uncased"], "")


def test_flags_that_say_what_the_checkpoint_says_are_accepted(tiny_checkpoint):
    agreeing = ["--pooling", "mean", "--l2-norm", "--prefix", "passage: ", "--max-length", "64"]
    words = encode_words("C", "O", tiny_checkpoint, *agreeing, "--dimension", "32")
    assert prepare(words, *ENCODE)[0][-len(agreeing) - 2 :] == [*agreeing, "--dimension", "32"]


def test_fields_the_encoder_cannot_take_are_refused_and_left_out_where_nobody_asked(
    tiny_checkpoint,
):
    words = encode_words("C", "O", tiny_checkpoint)
    more = ["input", "--fields", "url", "title", "text", *words[6:]]
    got = prepare(more, *ENCODE)[0]
    at = got.index("encoder")
    assert got[got.index("--fields", at) :][:3] == ["--fields", "title", "text"]
    for fields in (["title"], ["text", "url"]):
        with pytest.raises(UserError, match=f"--fields {' '.join(fields)}: .*`title text`"):
            prepare([*words, "--fields", *fields], *ENCODE)


def test_fp16_is_the_type_of_the_weights(tiny_checkpoint):
    words = ["--encoder", str(tiny_checkpoint), "--device", "cpu"]
    assert str(prepare(words, "")[1].dtype) == "torch.float32"
    assert str(prepare([*words, "--fp16"], "")[1].dtype) == "torch.float16"


def test_a_gpu_that_is_not_there_is_an_error_and_no_cpu_in_its_place(tiny_checkpoint):
    with pytest.raises(UserError, match="device 'cuda:99' cannot be used"):
        prepare(["--encoder", str(tiny_checkpoint), "--device", "cuda:99"], "")


@pytest.mark.parametrize("own", [[], ["--quiet"]])
def test_everything_after_the_commands_name_is_pyserinis(monkeypatch, own):
    seen = []
    monkeypatch.setattr(verb, "command", lambda run, config, name, argv: seen.append(argv))
    theirs = ["--help", "--quiet", "--config", "x", "--", "-y", ""]
    verb.main([*own, "search.lucene", *theirs])
    assert parse(PyseriniConfig, seen[0], "pyserini") == PyseriniConfig(
        command="search.lucene", arguments=tuple(theirs), quiet=bool(own)
    )


def test_the_printed_settings_run_the_same_command(tmp_path):
    words = ["--print-config", "encode", "--", "input", "--corpus", "C", "--to-faiss"]
    (tmp_path / "c.yaml").write_text(parse(PyseriniConfig, words, "pyserini"))
    again = parse(PyseriniConfig, ["--config", str(tmp_path / "c.yaml")], "pyserini")
    assert (again.command, again.arguments) == ("encode", tuple(words[3:]))


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("encode", [], "encode: `encoder`, `input`, `output` missing; it takes encoder, input"),
        ("encode", ["input", "--corpus", "x", "encoder"], "encode: `output` missing"),
        ("search.hybrid", ["dense"], "search.hybrid: `sparse`, `fusion`, `run` missing"),
        ("search", ["--topics", "absent.tsv"], "--topics absent.tsv: no such file"),
        ("search.lucene", ["--topics=absent/topics"], "--topics absent/topics: no such file"),
    ],
)
def test_what_pyserini_would_fail_on_is_said_before_it_is_imported(
    monkeypatch, command, words, message
):
    monkeypatch.setattr(plugin, "encoder_classes", None)
    monkeypatch.setattr("ccpretrieve.retrieval.lexical.start_java", None)
    with pytest.raises(UserError) as failure:
        run(PyseriniConfig(command=command, arguments=tuple(words)))
    assert str(failure.value).startswith(message)


@pytest.mark.slow
def test_topics_that_pyserini_does_not_know_are_one_line(tiny_checkpoint, index, tmp_path):
    words = search_words(index, tiny_checkpoint, "no-such-topics", tmp_path / "run")
    with pytest.raises(UserError, match="--topics no-such-topics: no such file, and Pyserini"):
        run(PyseriniConfig(command="search", arguments=words))


def test_commands_are_known_by_their_full_module_name_and_others_are_not():
    assert PyseriniConfig(command="pyserini.index.lucene").command == "pyserini.index.lucene"
    with pytest.raises(UserError, match=r"unknown command 'index\.lucen'; did you mean"):
        PyseriniConfig(command="index.lucen")


@pytest.mark.slow
def test_importing_the_plugin_and_the_verb_imports_no_pyserini_and_starts_no_java():
    code = (
        "import sys, ccpretrieve.pyserini; assert 'torch' not in sys.modules;"
        "import ccpretrieve.retrieval.pyserini_plugin;"
        "assert not {'pyserini', 'jnius', 'jnius_config'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# --- Pyserini itself ---


@pytest.mark.slow
def test_faiss_searcher_with_our_query_encoder_gives_what_numpy_gives(
    pyserini, encoder, index, expected
):
    from pyserini.search.faiss import FaissSearcher

    searcher = FaissSearcher(str(index), plugin.QueryEncoder(encoder))
    batch = searcher.batch_search(list(QUERIES.values()), list(QUERIES), k=K)
    for query, text in QUERIES.items():
        for hits in (searcher.search(text, k=K), batch[query]):
            same_hits([(hit.docid, hit.score) for hit in hits], expected[query])


@pytest.mark.slow
def test_pyserini_on_our_index_and_we_on_pyserinis_find_the_same(
    pyserini, tiny_checkpoint, corpus, encoder, tmp_path, monkeypatch
):
    from pyserini.search.faiss import FaissSearcher

    monkeypatch.chdir(tmp_path)
    config = EncodeConfig(corpus=str(corpus), encoder=str(tiny_checkpoint), shard_size=7, tag="x")
    ours = encode.run(config)
    run(PyseriniConfig(command="encode", arguments=encode_words(corpus, "theirs", tiny_checkpoint)))
    searcher = FaissSearcher(str(ours), plugin.QueryEncoder(tiny_checkpoint))
    on_ours = Index.load(ours).search(list(QUERIES.values()), K)
    on_theirs = Index.load("theirs", encoder=encoder).search(list(QUERIES.values()), K)
    for text, mine, other in zip(QUERIES.values(), on_ours, on_theirs, strict=True):
        expected = [(hit.docid, hit.score) for hit in searcher.search(text, k=K)]
        same_hits([(hit.docid, hit.score) for hit in mine], expected)
        same_hits([(hit.docid, hit.score) for hit in other], expected)


def test_pyserinis_search_takes_no_other_encoder_than_the_index(
    tiny_checkpoint, corpus, topics, tmp_path, monkeypatch
):
    from ccpretrieve.model import random_checkpoint

    monkeypatch.chdir(tmp_path)
    config = EncodeConfig(corpus=str(corpus), encoder=str(tiny_checkpoint), pooling="cls", tag="x")
    ours = encode.run(config)
    other = random_checkpoint.build(tmp_path / "other", ["a b c"], vocabulary=270, seed=5)
    with pytest.raises(UserError, match=r"was made with the encoder .*, not with .*other"):
        prepare(search_words(ours, other, topics, "run.trec"), "")
    _, encoder, _ = prepare(search_words(ours, tiny_checkpoint, topics, "run.trec"), "")
    assert encoder.settings.pooling == "cls"  # as asked for when the index was made


@pytest.mark.slow
def test_the_objects_are_pyserinis_and_their_vectors_ours_whatever_pyserini_passes(
    pyserini, encoder, tiny_checkpoint
):
    from pyserini.encode import DocumentEncoder, QueryEncoder

    noise = {"tokenizer_name": None, "pooling": "cls", "l2_norm": False, "multimodal": False}
    queries = plugin.QueryEncoder(str(tiny_checkpoint), device="cpu", prefix=None, **noise)
    documents = plugin.DocumentEncoder(model_name=str(tiny_checkpoint), device="cpu", **noise)
    assert isinstance(queries, QueryEncoder)
    assert isinstance(documents, DocumentEncoder)
    texts = list(QUERIES.values())
    ours = encoder.encode_queries(texts)
    np.testing.assert_allclose(queries.encode_batch(texts), ours, atol=1e-6)
    np.testing.assert_allclose(queries.encode(texts[0], max_length=2), ours[0], atol=1e-6)
    assert queries.encode(texts[0]).shape == (encoder.dim,)
    loud = {"fp16": False, "max_length": 2, "add_sep": True}
    titles = ["Nile", None, "", "Moscow"]
    pairs = [(title or "", text) for title, text in zip(titles, texts, strict=True)]
    np.testing.assert_allclose(
        documents.encode(texts, titles=titles, **loud), encoder.encode_passages(pairs), atol=1e-6
    )
    np.testing.assert_allclose(
        documents.encode([*texts, None]), encoder.encode_passages([*texts, ""]), atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("title", ["pair", "join", "drop"])
def test_titles_come_in_as_the_setting_says(pyserini, tiny_checkpoint, title):
    encoder = Encoder.load(tiny_checkpoint, device="cpu", title=title)
    documents = plugin.DocumentEncoder(encoder)
    got = documents.encode(["flows north"], titles=["Nile"])
    whole = {"pair": ("Nile", "flows north"), "join": "Nile flows north", "drop": "flows north"}
    np.testing.assert_allclose(got, encoder.encode_passages([whole[title]]), atol=1e-6)


@pytest.mark.slow
def test_a_calibration_reaches_pyserini_with_the_language_and_not_without(
    pyserini, tiny_checkpoint, encoder, tmp_path
):
    from pyserini.encode import document_encoder_class_map, query_encoder_class_map

    fitted = tmp_path / "calibration.safetensors"
    mean = np.linspace(-1, 1, encoder.dim, dtype=np.float32)
    Calibration({"fi": Spread(mean=mean)}).save(fitted)
    calibrated = Encoder.load(tiny_checkpoint, device="cpu", calibration=fitted)
    ours = calibrated.encode_queries(["Helsinki"], language="fi")
    assert np.abs(ours - encoder.encode_queries(["Helsinki"])).max() > 0.1
    with plugin.in_place_of("auto", calibrated, language="fi"):
        queries = query_encoder_class_map["auto"](encoder_dir="x", device="cuda:0", pooling="cls")
        documents = document_encoder_class_map["auto"](model_name="x", device="cuda:0")
    np.testing.assert_allclose(queries.encode("Helsinki"), ours[0], atol=1e-6)
    np.testing.assert_allclose(
        documents.encode(["Helsinki"]),
        calibrated.encode_passages(["Helsinki"], language="fi"),
        atol=1e-6,
    )
    with pytest.raises(UserError, match="needs the language"):
        plugin.QueryEncoder(calibrated).encode("Helsinki")


@pytest.mark.slow
def test_register_adds_our_name_and_leaves_the_others(pyserini, tiny_checkpoint, encoder):
    from pyserini.encode import document_encoder_class_map, query_encoder_class_map

    before = dict(query_encoder_class_map), dict(document_encoder_class_map)
    try:
        plugin.register()
        queries = query_encoder_class_map["ccp"](
            encoder_dir=str(tiny_checkpoint), tokenizer_name=None, device="cpu", prefix=None
        )
        documents = document_encoder_class_map["ccp"](model_name=str(tiny_checkpoint), device="cpu")
        others = [{k: t[k] for k in t if k != "ccp"} for t in _tables()]
    finally:
        for table in _tables():
            table.pop("ccp", None)
    assert others == list(before)
    np.testing.assert_allclose(queries.encode("Nile"), encoder.encode_queries(["Nile"])[0], 1e-5)
    np.testing.assert_allclose(documents.encode(["Nile"]), encoder.encode_passages(["Nile"]), 1e-5)
    with pytest.raises(UserError, match="not the prefix 'Q: '"):
        plugin.QueryEncoder(encoder, prefix="Q: ")


def _tables():
    from pyserini.encode import document_encoder_class_map, query_encoder_class_map

    return query_encoder_class_map, document_encoder_class_map


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ccp-dpr-nq", "finance", "clips", "models.dse", "sentence-transformers", "contriever"]
)
def test_both_commands_take_a_checkpoint_of_ours_whatever_its_path_contains(
    pyserini, tiny_checkpoint, corpus, topics, vectors, expected, tmp_path, name
):
    checkpoint, index = tmp_path / name, tmp_path / "index"
    shutil.copytree(tiny_checkpoint, checkpoint)
    before = [dict(table) for table in _tables()]
    argv = list(sys.argv)
    words = encode_words(corpus, index, checkpoint, "--batch-size", "8")
    run(PyseriniConfig(command="encode", arguments=words))
    ids, written = read_index(index)
    assert ids == [i for i, _, _ in passages()]
    np.testing.assert_allclose(written, vectors, atol=1e-5)

    words = search_words(index, checkpoint, topics, tmp_path / "run.trec", "--encoder-class", "ccp")
    run(PyseriniConfig(command="search", arguments=words))
    found = read_run(tmp_path / "run.trec")
    assert set(found) == set(QUERIES)
    for query, hits in found.items():
        same_hits(hits, expected[query])
    assert [dict(table) for table in _tables()] == before
    assert sys.argv == argv


@pytest.mark.slow
def test_as_a_module_on_the_command_line_it_writes_the_index_of_our_vectors(
    tiny_checkpoint, corpus, vectors, tmp_path
):
    checkpoint = tmp_path / "dpr" / "checkpoint"
    shutil.copytree(tiny_checkpoint, checkpoint)
    words = encode_words(corpus, tmp_path / "index", checkpoint)
    done = subprocess.run(
        [sys.executable, "-m", "ccpretrieve.pyserini", "encode", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "encodes with the settings of ccpretrieve.json" in done.stderr
    np.testing.assert_allclose(read_index(tmp_path / "index")[1], vectors, atol=1e-5)


@pytest.mark.slow
def test_text_with_blank_lines_is_read_from_keys_of_its_own_and_refused_inside_contents(
    pyserini, tiny_checkpoint, encoder, tmp_path
):
    title, text = "Nile", "flows north\n\nthrough Egypt\n\nto the Sea"
    (tmp_path / "keys.jsonl").write_text(json.dumps({"id": "a", "title": title, "text": text}))
    words = encode_words(tmp_path / "keys.jsonl", tmp_path / "index", tiny_checkpoint)
    run(PyseriniConfig(command="encode", arguments=words))
    ours = encoder.encode_passages([(title, text)])
    np.testing.assert_allclose(read_index(tmp_path / "index")[1], ours, atol=1e-5)

    contents = [
        {"id": "a", "contents": "Nile\n\nflows"},
        {"id": "b", "contents": f"Nile\n\n{text}"},
    ]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in contents))
    words = encode_words(tmp_path / "one.jsonl", tmp_path / "other", tiny_checkpoint)
    words = ["input", "--delimiter", r"\n\n", *words[1:]]
    with pytest.raises(
        UserError, match=r"one\.jsonl:2: `contents` splits into 4 fields .* names 2"
    ):
        run(PyseriniConfig(command="encode", arguments=words))


@pytest.mark.slow
def test_where_pyserini_stops_without_a_word_of_failure_it_is_an_error(
    pyserini, tiny_checkpoint, topics, tmp_path
):
    words = search_words(tmp_path / "no-such-index", tiny_checkpoint, topics, tmp_path / "run")
    with pytest.raises(UserError, match="Pyserini gave up"):
        run(PyseriniConfig(command="search", arguments=words))
    assert not (tmp_path / "run").exists()
