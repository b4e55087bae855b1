"""The command `calibrate`, and what `encode` and `search` make of its file."""

import json
import math
import shutil

import numpy as np
import pytest
from safetensors import safe_open

from ccpretrieve.calibrate import run
from ccpretrieve.calibration_config import CalibrateConfig
from ccpretrieve.config import EncodeConfig
from ccpretrieve.encode import run as encode
from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration_file import Calibration
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.search import run as search
from ccpretrieve.search_config import SearchConfig

FINNISH = ["Helsinki on Suomen pääkaupunki.", "Tampere on kaupunki.", "Turku on vanha kaupunki."]
JAPANESE = ["富士山は高い山です。", "東京は日本の首都です。", "琵琶湖は大きい湖です。"]


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "fi.txt").write_text("\n".join(FINNISH) + "\n")
    lines = [{"id": "1", "lang": "ja", "sentences": JAPANESE}]
    (folder / "ja.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def fitted(tmp_path, texts, encoder, **settings):
    path = tmp_path / "made" / "c.safetensors"
    report = run(
        CalibrateConfig(
            texts=str(texts), encoder=str(encoder), output=path, device="cpu", **settings
        )
    )
    return path, report


def test_statistics_are_those_of_the_texts_as_pooled(tmp_path, texts, tiny_checkpoint):
    path, report = fitted(tmp_path, texts, tiny_checkpoint, shrinkage="0")
    calibration = Calibration.load(path)
    plain = Encoder.load(tiny_checkpoint, device="cpu", normalize=False)
    for code, sentences in (("fi", FINNISH), ("ja", JAPANESE)):
        vectors = plain.encode_queries(sentences)
        spread = calibration.languages[code]
        np.testing.assert_allclose(spread.mean, vectors.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(spread.scale, vectors.std(axis=0), atol=1e-6)
        assert calibration.notes["languages"][code]["texts"] == 3
    assert "fi: 3 texts" in report
    assert "ja: 3 texts" in report


def test_the_file_says_what_it_was_fitted_with(tmp_path, texts, tiny_checkpoint):
    path, _ = fitted(tmp_path, texts, tiny_checkpoint, steps="shift", layer=1)
    with safe_open(path, framework="numpy") as tensors:
        assert sorted(tensors.keys()) == ["fi.mean", "ja.mean"]
    notes = Calibration.load(path).notes
    assert notes["steps"] == ["shift"]
    assert notes["encoder"]["layer"] == 1
    assert notes["encoder"]["prefix"] == "query: "
    assert len(notes["languages"]["fi"]["sha256"]) == 64


def test_a_sentence_that_comes_again_counts_once_and_most_is_the_limit(
    tmp_path, texts, tiny_checkpoint
):
    (texts / "fi.txt").write_text("\n".join([FINNISH[0]] * 5 + FINNISH) + "\n")
    path, _ = fitted(tmp_path, texts, tiny_checkpoint)
    assert Calibration.load(path).notes["languages"]["fi"]["texts"] == 3
    path, _ = fitted(tmp_path, texts, tiny_checkpoint, most=2)
    assert Calibration.load(path).notes["languages"]["ja"]["texts"] == 2


def write_passages(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


def test_stored_embeddings_give_the_same_as_their_text(tmp_path, texts, tiny_checkpoint):
    write_passages(
        tmp_path / "fi.jsonl", [{"id": str(i), "text": text} for i, text in enumerate(FINNISH)]
    )
    index = encode(
        EncodeConfig(
            corpus=str(tmp_path / "fi.jsonl"),
            encoder=str(tiny_checkpoint),
            output=tmp_path / "index",
            normalize=False,
            device="cpu",
            shard_size=2,
        )
    )
    output = tmp_path / "stored.safetensors"
    run(CalibrateConfig(embeddings=(index,), output=output))
    path, _ = fitted(tmp_path, texts, tiny_checkpoint, role="passage", languages=("fi",))
    stored, made = (Calibration.load(p).languages["fi"] for p in (output, path))
    np.testing.assert_allclose(stored.mean, made.mean, atol=1e-6)
    np.testing.assert_allclose(stored.scale, made.scale, atol=1e-6)
    with pytest.raises(UserError, match="unknown language 'ja'"):
        run(CalibrateConfig(embeddings=(index,), output=output, languages=("ja",)))


def test_vectors_of_unit_length_are_no_vectors_as_pooled(tmp_path, tiny_checkpoint):
    write_passages(tmp_path / "fi.jsonl", [{"id": "1", "text": FINNISH[0]}])
    index = encode(
        EncodeConfig(
            corpus=str(tmp_path / "fi.jsonl"),
            encoder=str(tiny_checkpoint),
            output=tmp_path / "index",
            device="cpu",
        )
    )
    with pytest.raises(UserError, match="of unit length; .*--no-normalize"):
        run(CalibrateConfig(embeddings=(index,), output=tmp_path / "c"))


def test_passages_and_questions_are_calibrated_each_as_their_own_language(
    tmp_path, texts, tiny_checkpoint
):
    path, _ = fitted(tmp_path, texts, tiny_checkpoint)
    tags = ["fi", "jpn", "fi", "ja"]
    passages = [FINNISH[0], JAPANESE[0], FINNISH[1], JAPANESE[1]]
    write_passages(
        tmp_path / "mixed.jsonl",
        [
            {"id": str(i), "text": text, "lang": tag}
            for i, (text, tag) in enumerate(zip(passages, tags, strict=True))
        ],
    )
    index = encode(
        EncodeConfig(
            corpus=str(tmp_path / "mixed.jsonl"),
            encoder=str(tiny_checkpoint),
            output=tmp_path / "index",
            calibration=path,
            device="cpu",
        )
    )
    encoder = Encoder.load(tiny_checkpoint, device="cpu", calibration=path)
    from ccpretrieve.retrieval.faiss_index import Index

    stored = Index.load(index).faiss.reconstruct_n(0, 4)
    for row, (text, tag) in enumerate(zip(passages, ("fi", "ja", "fi", "ja"), strict=True)):
        alone = encoder.encode_passages([text], language=tag)[0]
        np.testing.assert_allclose(stored[row], alone, atol=1e-6)

    topics = tmp_path / "topics.jsonl"
    write_passages(
        topics,
        [
            {"id": "q1", "question": "Mikä on pääkaupunki?", "lang": "fi"},
            {"id": "q2", "question": "高い山は？"},
        ],
    )
    run_file = search(
        SearchConfig(
            index=index, topics=str(topics), lang="ja", output=tmp_path / "run.trec", device="cpu"
        )
    )
    found = {}
    for line in run_file.read_text().splitlines():
        topic, _, docid, _, score, _ = line.split()
        found[topic, docid] = float(score)
    for topic, text, tag in (("q1", "Mikä on pääkaupunki?", "fi"), ("q2", "高い山は？", "ja")):
        expected = stored @ encoder.encode_queries([text], language=tag)[0]
        for row, score in enumerate(expected):
            assert found[topic, str(row)] == pytest.approx(score, abs=1e-5)
    with pytest.raises(UserError, match="needs the language of the text; give --lang, or tag it"):
        search(SearchConfig(index=index, topics=str(topics), output=tmp_path / "r", device="cpu"))


def test_a_passage_of_another_language_makes_another_corpus(tmp_path):
    from ccpretrieve.data.census import take_census
    from ccpretrieve.data.registry import open_corpus

    prints = set()
    for number, tag in enumerate(("", "fi", "ja")):
        path = tmp_path / f"{number}.jsonl"
        write_passages(path, [{"id": "1", "text": "a"} | ({"lang": tag} if tag else {})])
        prints.add(take_census(open_corpus(str(path))).fingerprint)
    assert len(prints) == 3


def test_a_calibration_of_other_vectors_is_refused(tmp_path, texts, tiny_checkpoint):
    path, _ = fitted(tmp_path, texts, tiny_checkpoint, layer=1)
    with pytest.raises(UserError, match="was fitted with layer 1, not -1; give --layer 1"):
        Encoder.load(tiny_checkpoint, device="cpu", calibration=path)
    Encoder.load(tiny_checkpoint, device="cpu", calibration=path, layer=1)
    calibration = Calibration.load(path)
    notes = dict(calibration.notes)
    notes["encoder"] = {**notes["encoder"], "fingerprint": "0" * 64}
    Calibration(calibration.languages, notes).save(path)
    with pytest.raises(UserError, match="other weights than"):
        Encoder.load(tiny_checkpoint, device="cpu", calibration=path, layer=1)


def test_a_checkpoints_own_calibration_is_not_even_read(tmp_path, texts, tiny_checkpoint):
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, copy)
    settings = json.loads((copy / "ccpretrieve.json").read_text())
    (copy / "ccpretrieve.json").write_text(json.dumps(settings | {"calibration": "absent"}))
    path, _ = fitted(tmp_path, texts, copy, layer=1)
    assert Calibration.load(path).notes["encoder"]["layer"] == 1


def test_a_file_that_is_no_calibration_is_never_written_over(tmp_path, texts, tiny_checkpoint):
    asked = {"texts": str(texts), "encoder": str(tiny_checkpoint), "device": "cpu"}
    for file in (texts / "fi.txt", tiny_checkpoint / "model.safetensors"):
        before = file.read_bytes()
        with pytest.raises(UserError, match="is there and is no calibration"):
            run(CalibrateConfig(output=file, **asked))
        assert file.read_bytes() == before
    for _ in range(2):  # a calibration may be fitted again
        run(CalibrateConfig(output=tmp_path / "c", **asked))


def test_a_place_that_cannot_be_written_is_said_before_anything_is_encoded(
    tmp_path, texts, tiny_checkpoint
):
    with pytest.raises(UserError, match=r"c\.safetensors: .*[Nn]ot a directory"):
        run(
            CalibrateConfig(
                texts=str(tmp_path / "none"),
                encoder=str(tiny_checkpoint),
                output=texts / "fi.txt" / "c.safetensors",
            )
        )


def test_too_little_text_is_said_before_anything_is_encoded(
    tmp_path, texts, tiny_checkpoint, monkeypatch
):
    monkeypatch.setattr(Encoder, "encode_queries", None)
    (texts / "sw.txt").write_text("Nairobi ni mji.\n")
    with pytest.raises(UserError, match="sw: 1 texts; a mean and a spread needs? 2"):
        fitted(tmp_path, texts, tiny_checkpoint)
    dim = Encoder.load(tiny_checkpoint).dim
    needed = math.ceil((dim + 1) / 0.8)
    steps = {"steps": "rotate", "languages": ("fi", "ja"), "pivot": "Japanese"}
    with pytest.raises(UserError, match=f"fi: 3 texts; a rotation of {dim} .* needs {needed}"):
        fitted(tmp_path, texts, tiny_checkpoint, **steps)
    with pytest.raises(UserError, match=f"--most 5: a rotation of {dim} dimensions needs {needed}"):
        fitted(tmp_path, texts, tiny_checkpoint, most=5, **steps)


def test_a_pivot_may_be_spelled_in_any_way(tmp_path, texts, tiny_checkpoint):
    fitted(tmp_path, texts, tiny_checkpoint, pivot="jpn")
    with pytest.raises(UserError, match="unknown language 'klingon'"):
        fitted(tmp_path, texts, tiny_checkpoint, pivot="klingon")


def test_stored_passages_of_another_language_or_without_text_are_not_counted(
    tmp_path, tiny_checkpoint
):
    def encoded(name, items):
        write_passages(tmp_path / f"{name}.jsonl", items)
        return encode(
            EncodeConfig(
                corpus=str(tmp_path / f"{name}.jsonl"),
                encoder=str(tiny_checkpoint),
                output=tmp_path / name,
                normalize=False,
                lang="fi",
                device="cpu",
            )
        )

    passages = [{"id": str(i), "text": text} for i, text in enumerate(FINNISH)]
    plain = encoded("plain", [*passages, {"id": "e", "text": ""}])
    output = tmp_path / "c"
    run(CalibrateConfig(embeddings=(plain,), output=output, languages=("Finnish",)))
    assert Calibration.load(output).notes["languages"]["fi"]["texts"] == 3
    with pytest.raises(UserError, match="its vectors are named twice"):
        run(CalibrateConfig(embeddings=(plain, plain), output=output))
    mixed = encoded("mixed", [*passages, {"id": "j", "text": JAPANESE[0], "lang": "ja"}])
    with pytest.raises(UserError, match="said to be in fi, and passage j is in ja"):
        run(CalibrateConfig(embeddings=(mixed,), output=output))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give --texts, or --embeddings"),
        ({"texts": "t", "embeddings": ("e",)}, "give --texts, or --embeddings"),
        ({"embeddings": ("e",), "layer": 3}, "--layer goes with --texts"),
        ({"texts": "t", "steps": "shift,sclae"}, "unknown step 'sclae'; did you mean 'scale'"),
        ({"texts": "t", "steps": "scale,shift"}, "in the order shift,scale,rotate"),
        ({"texts": "t", "steps": "shift,shift"}, "each once"),
        ({"texts": "t", "shrinkage": "2"}, "--shrinkage must be auto or lie from 0 to 1, got 2"),
        ({"texts": "t", "shrinkage": "much"}, "got much"),
        ({"texts": "t", "statistic": "range"}, "unknown statistic 'range'"),
        ({"texts": "t", "most": 1}, "--most must be at least 2"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_read(tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        CalibrateConfig(output=tmp_path / "c", **settings)


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, texts, tiny_checkpoint):
    (texts / "sw.txt").write_text("Nairobi ni mji.\n")
    with pytest.raises(UserError, match="sw: 1 texts; .*leave it out of --languages"):
        fitted(tmp_path, texts, tiny_checkpoint)
    assert not (tmp_path / "made").exists()
    with pytest.raises(UserError, match="a folder; name a file"):
        run(CalibrateConfig(texts=str(texts), output=tmp_path, encoder=str(tiny_checkpoint)))
    with pytest.raises(UserError, match="no such folder"):
        run(CalibrateConfig(embeddings=(tmp_path / "none",), output=tmp_path / "c"))
