"""Retrieval across languages: the same index raw and calibrated, by the commands' own functions."""

import json
import shutil

import numpy as np
import pytest

from benchmarks.crosslingual import Comparison, CrosslingualConfig, run
from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration_file import Calibration, Spread
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.model.settings import read_settings, write_settings
from ccpretrieve.retrieval import meta

TEXTS = {
    "en": ["The Nile flows north", "a b c d e", "Egypt and the Sea", "x y z 0 1 2"],
    "fi": ["Helsinki on kaupunki", "Suomen suurin", "pääkaupunki", "suurin on Helsinki"],
}


@pytest.fixture
def data(tmp_path):
    """Two languages, question i asking for passage i."""
    for code, texts in TEXTS.items():
        place = tmp_path / "data" / code
        (place / "collection").mkdir(parents=True)
        lines = [json.dumps({"id": f"{i}", "contents": text}) for i, text in enumerate(texts)]
        (place / "collection" / "docs.jsonl").write_text("\n".join(lines) + "\n")
        topics = "".join(f"q{i}\t{text}\n" for i, text in enumerate(texts))
        (place / "topic.test.tsv").write_text(topics)
        judged = "".join(f"q{i} Q0 {i} 1\n" for i in range(len(texts)))
        (place / "qrels.test.txt").write_text(judged)
    return tmp_path / "data"


@pytest.fixture
def calibration(tmp_path, tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint, device="cpu", normalize=False)
    path = tmp_path / "c.safetensors"
    spreads = {code: Spread.fit(encoder.encode_queries(texts)) for code, texts in TEXTS.items()}
    Calibration(spreads, {}).save(path)
    return path


def ranks(passages, questions):
    """Reciprocal ranks by hand: passage i answers question i; cosine."""
    scores = questions @ passages.T
    return np.mean([1 / (1 + (row > row[i]).sum()) for i, row in enumerate(scores)])


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_both_ways_are_scored_and_the_change_is_between_them(
    tmp_path, data, calibration, tiny_checkpoint
):
    config = CrosslingualConfig(
        data=data,
        calibration=calibration,
        encoder=str(tiny_checkpoint),
        work=tmp_path / "work",
        quiet=True,
    )
    report = run(config)
    encoder = Encoder.load(tiny_checkpoint, device="cpu", normalize=False)
    passages = encoder.encode_passages(TEXTS["en"])
    learned = Calibration.load(calibration)
    for code, texts in TEXTS.items():
        questions = encoder.encode_queries(texts)
        raw = ranks(unit(passages), unit(questions))
        calibrated = ranks(
            unit(learned.transform(passages, "en")), unit(learned.transform(questions, code))
        )
        assert report.ways["raw"][code]["mrr@100"] == pytest.approx(raw)
        assert report.ways["calibrated"][code]["mrr@100"] == pytest.approx(calibrated)
    change = report.ways["calibrated"]["fi"]["mrr@100"] - report.ways["raw"]["fi"]["mrr@100"]
    last = str(report).splitlines()[-1]
    assert last.startswith("mean of 1")  # the passages' own language is not in the mean
    assert f"{change:+.4f}" in last
    alone = Comparison("en", {way: {"en": scores["en"]} for way, scores in report.ways.items()})
    assert "mean" not in str(alone)
    for way, is_calibrated in (("raw", False), ("calibrated", True)):
        made = meta.read(tmp_path / "work" / f"en.{way}.index")
        assert (made["encoder"]["calibration"] is not None) == is_calibrated


def test_a_checkpoint_that_calibrates_by_itself_is_refused(
    tmp_path, data, calibration, tiny_checkpoint
):
    own = shutil.copytree(tiny_checkpoint, tmp_path / "own")
    settings, _ = read_settings(own, str(own))
    write_settings(own, settings.override(calibration="c.safetensors"))
    with pytest.raises(UserError, match=r"names a calibration of its own, c\.safetensors"):
        run(CrosslingualConfig(data=data, calibration=calibration, encoder=str(own)))


def test_a_language_that_is_not_there_is_named(data, calibration, tiny_checkpoint):
    config = {"data": data, "calibration": calibration, "encoder": str(tiny_checkpoint)}
    with pytest.raises(UserError, match="no folder ja; it has en, fi"):
        run(CrosslingualConfig(**config, languages=("ja",)))
    (data / "ja").mkdir()
    with pytest.raises(UserError, match="no statistics of ja"):
        run(CrosslingualConfig(**config, languages=("ja",)))
