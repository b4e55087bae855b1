import json

import numpy as np
import pytest

from benchmarks import tatoeba
from benchmarks.tatoeba import Report, TatoebaConfig, document_range
from ccpretrieve.data.parallel import ParallelText, read_parallel
from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration import Calibration, Spread
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.retrieval.bitext import STEPS, accuracy_by_step

TEXTS = {
    "en": ["The Nile flows north", "a b c d e", "Egypt and the Sea", "x y z 0 1 2", "capital"],
    "ja": ["富士山は山です", "日本で一番高い", "高い山です。", "日本です。", "一番"],
    "fi": ["Helsinki on", "suurin kaupunki", "ja Suomen", "pääkaupunki", "on ja"],
}
DOCUMENTS = ["a", "a", "b", "c", "c"]


@pytest.fixture
def folder(tmp_path):
    """Three aligned languages in three documents."""
    for code, lines in TEXTS.items():
        (tmp_path / f"{code}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "DOCUMENT_IDS.txt").write_text("\n".join(DOCUMENTS) + "\n")
    return tmp_path


def config(folder, encoder, **more):
    return TatoebaConfig(data=folder, encoder=(str(encoder),), **more)


def test_scores_are_those_of_the_encoders_questions_unnormalised(folder, tiny_checkpoint):
    report = tatoeba.run(config(folder, tiny_checkpoint))
    (encoded,) = report.encoders.values()
    assert [text.name for text in encoded.scored] == ["fin-eng", "jpn-eng"]
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    x, y = (encoder.encode_queries(TEXTS[code]) for code in ("ja", "en"))
    assert encoded.scored[1].steps == accuracy_by_step(x, y)
    assert encoded.scored[1].pairs == 5
    for step in STEPS:
        for direction in (0, 1):
            mean = np.mean([text.steps[step][direction] for text in encoded.scored])
            assert encoded.average(step)[direction] == pytest.approx(mean)


def test_pooling_layer_and_prefix_are_the_checkpoints_unless_asked(folder, tiny_checkpoint):
    own = tatoeba.run(config(folder, tiny_checkpoint, languages=("ja",)))
    assert "mean of the last layer, prefix 'query: '" in str(own)
    asked = tatoeba.run(
        config(folder, tiny_checkpoint, languages=("ja",), pooling="cls", layer=1, query_prefix="")
    )
    assert "cls of layer 1, no prefix" in str(asked)
    encoder = Encoder.load(
        tiny_checkpoint, normalize=False, pooling="cls", layer=1, query_prefix=""
    )
    x, y = (encoder.encode_queries(TEXTS[code]) for code in ("ja", "en"))
    (encoded,) = asked.encoders.values()
    assert encoded.scored[0].steps == accuracy_by_step(x, y)


def test_a_calibration_of_the_checkpoints_own_is_left_out(folder, tiny_checkpoint, tmp_path):
    plain = tatoeba.run(config(folder, tiny_checkpoint)).encoders
    copy = tmp_path / tiny_checkpoint.name
    copy.mkdir()
    for file in tiny_checkpoint.iterdir():
        if file.is_file() and file.name != "ccpretrieve.json":
            (copy / file.name).symlink_to(file)
    settings = json.loads((tiny_checkpoint / "ccpretrieve.json").read_text())
    settings["calibration"] = "c.safetensors"
    (copy / "ccpretrieve.json").write_text(json.dumps(settings))
    noise = np.random.default_rng(0).normal(size=(5, Encoder.load(tiny_checkpoint).dim))
    spread = Spread.fit(noise.astype(np.float32))
    Calibration(dict.fromkeys(TEXTS, spread)).save(copy / "c.safetensors")
    calibrated = tatoeba.run(config(folder, copy)).encoders
    (before,), (after,) = plain.values(), calibrated.values()
    assert after.scored == before.scored


def test_a_side_that_several_texts_share_is_encoded_once(folder, tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    encoded = []
    embed = encoder.embed_queries
    encoder.embed_queries = lambda side: encoded.append(tuple(side)) or embed(side)
    tatoeba.measure(encoder, read_parallel(folder))
    assert sorted(encoded) == sorted(map(tuple, TEXTS.values()))


def test_documents_are_counted_from_1(folder, tiny_checkpoint):
    report = tatoeba.run(config(folder, tiny_checkpoint, documents="2-3", languages=("ja",)))
    (encoded,) = report.encoders.values()
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    x, y = (encoder.encode_queries(TEXTS[code][2:]) for code in ("ja", "en"))
    assert encoded.scored[0].steps == accuracy_by_step(x, y)
    assert (document_range(None), document_range("7")) == (None, range(6, 7))
    assert document_range("81-123") == range(80, 123)
    for wrong in ("0-3", "3-2", "a", "", "1-", "-3", "1-2-3"):
        with pytest.raises(UserError, match="give numbers from 1"):
            config(folder, tiny_checkpoint, documents=wrong)


def test_the_table_and_the_json_say_the_same(folder, tiny_checkpoint, tmp_path):
    output = tmp_path / "new" / "scores.json"
    report = tatoeba.run(config(folder, tiny_checkpoint, output=output))
    written = json.loads(output.read_text())
    (made,) = written["encoders"].values()
    lines = str(report).splitlines()
    assert "statistics of the test text itself" in " ".join(lines)
    for name in ("fin-eng", "jpn-eng"):
        (line,) = [line for line in lines if line.startswith(name)]
        shares = [
            made["pairs"][name][step][direction]
            for step in STEPS
            for direction in ("forward", "backward", "mean")
        ]
        assert line.split() == [name, "5", *(f"{100 * share:.1f}" for share in shares)]
    (line,) = [line for line in lines if line.startswith("average")]
    shares = [made["average"][step]["mean"] for step in STEPS]
    assert line.split()[3::3] == [f"{100 * share:.1f}" for share in shares]
    assert made["settings"]["pooling"] == "mean"
    assert made["settings"]["normalize"] is False


def test_cut_sentences_are_counted_and_said(folder, tiny_checkpoint):
    report = tatoeba.run(config(folder, tiny_checkpoint, languages=("ja",), max_length=4))
    (encoded,) = report.encoders.values()
    encoder = Encoder.load(tiny_checkpoint, max_length=4)
    cut = [encoder.embed_queries(TEXTS[code]).truncated for code in ("ja", "en")]
    assert min(cut) > 0
    assert encoded.scored[0].truncated == sum(cut)
    assert f"{encoded.scored[0].truncated} sentences were cut at 4 tokens" in str(report)


def test_several_encoders_have_a_table_each(folder, tiny_checkpoint, tmp_path):
    other = tmp_path / "other"
    other.symlink_to(tiny_checkpoint)
    report = tatoeba.run(
        TatoebaConfig(data=folder, encoder=(str(tiny_checkpoint), str(other)), languages=("fi",))
    )
    assert isinstance(report, Report)
    first, second = report.encoders.values()
    assert first.scored == second.scored
    assert list(report.encoders) == ["tiny-xlmr", "other"]
    with pytest.raises(UserError, match="end in the same name"):
        TatoebaConfig(data=folder, encoder=("a/x", "b/x/"))


def test_one_pair_is_no_test(tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    text = ParallelText("fra-eng", ("fr", "en"), (["un"], ["one"]))
    with pytest.raises(UserError, match="fra-eng: one pair makes no test"):
        tatoeba.measure(encoder, [text])


@pytest.mark.real
@pytest.mark.slow
def test_the_real_encoder_reaches_what_was_measured_before_it_was_written(real_data, real_encoder):
    # Measured by other code: French, mean pooling of layer 6, 80.2 / 85.5 / 87.1 per cent.
    report = tatoeba.run(
        TatoebaConfig(
            data=real_data / "tatoeba",
            encoder=(str(real_encoder),),
            languages=("fra",),
            pooling="mean",
            layer=6,
            query_prefix="",
        )
    )
    (encoded,) = report.encoders.values()
    reached = [100 * encoded.scored[0].steps[step].mean for step in STEPS]
    assert reached == pytest.approx([80.2, 85.5, 87.1], abs=0.15)
