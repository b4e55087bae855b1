import importlib.util
import json
import shutil
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks import tatoeba
from benchmarks.bitext_scores import SHAPES, Encoded, Scored
from benchmarks.bitext_texts import PRESETS, Trial, find_trials, pairs_of
from benchmarks.bitext_vectors import Sides, digest
from benchmarks.layered import LayeredEncoder
from benchmarks.table import read_published
from benchmarks.tatoeba import Report, TatoebaConfig, document_range
from ccpretrieve.commandline import parse
from ccpretrieve.data.languages import language
from ccpretrieve.data.parallel import ParallelText, read_parallel
from ccpretrieve.data.sources import TATOEBA_LANGUAGES
from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration_file import Calibration, Spread
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.model.settings import EncoderSettings
from ccpretrieve.retrieval import isomorphism
from ccpretrieve.retrieval.bitext import RAW, SHIFTED, STEPS, Accuracy, accuracy, accuracy_by_step

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
    made = {"name": "x", "fingerprint": "0" * 64, "pooling": "mean", "layer": 1}
    Calibration(dict.fromkeys(TEXTS, spread), {"encoder": made}).save(copy / "c.safetensors")
    (after,) = tatoeba.run(config(folder, copy)).encoders.values()
    assert after.scored == before.scored  # not even asked whether it fits


def test_scores_take_no_other_files_place(folder, tiny_checkpoint):
    text = folder / "ja.txt"
    before = text.read_bytes()
    with pytest.raises(UserError, match=r"ja\.txt: is there and holds no scores"):
        tatoeba.run(config(folder, tiny_checkpoint, output=text))
    assert text.read_bytes() == before
    with pytest.raises(UserError, match="a folder; name a file"):
        tatoeba.run(config(folder, tiny_checkpoint, output=folder))
    with pytest.raises(UserError, match="the picture's own name"):
        config(folder, tiny_checkpoint, layer="all", output=folder / "layers.svg")
    for _ in range(2):
        tatoeba.run(config(folder, tiny_checkpoint, output=folder / "scores.json"))


def test_a_side_that_several_texts_share_is_encoded_once(folder, tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    encoded = []
    embed = encoder.embed_queries
    encoder.embed_queries = lambda side: encoded.append(tuple(side)) or embed(side)
    tatoeba.measure(encoder, [Trial(text) for text in read_parallel(folder)])
    assert sorted(encoded) == sorted(map(tuple, TEXTS.values()))


def test_documents_are_counted_from_1(folder, tiny_checkpoint):
    report = tatoeba.run(config(folder, tiny_checkpoint, documents="2-3", languages=("ja",)))
    (encoded,) = report.encoders.values()
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    x, y = (encoder.encode_queries(TEXTS[code][2:]) for code in ("ja", "en"))
    assert encoded.scored[0].steps == accuracy_by_step(x, y)
    assert (document_range(None), document_range("7")) == (None, range(6, 7))
    assert document_range("81-123") == range(80, 123)
    for wrong in ("0-3", "3-2", "a", "1-", "-3", "1-2-3"):
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
    with pytest.raises(UserError, match="fra-eng: one pair; two or more make a test"):
        tatoeba.measure(encoder, [Trial(text)])


# -- which texts --


def test_presets_are_xtremes_36_and_xnlis_14_languages_and_tatoeba_has_them():
    assert [len(PRESETS[name]) for name in ("xtreme", "xnli")] == [36, 14]
    for codes in PRESETS.values():
        assert len(set(codes)) == len(codes)
        assert set(codes) <= set(TATOEBA_LANGUAGES)
        assert "eng" not in codes
        assert all(language(code).iso3 == code for code in codes)
    codes = {language(code).code for code in PRESETS["xnli"]}
    assert " ".join(sorted(codes)) == "ar bg de el es fr hi ru sw th tr ur vi zh"


def write_pair(folder, pair, *sides):
    for code, lines in zip(pair.split("-"), sides, strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{pair}.{code}").write_text(text, encoding="utf-8")


@pytest.fixture
def centred(tmp_path):
    """Tatoeba's layout: three languages with English, one pair without it."""
    english = TEXTS["en"]
    write_pair(tmp_path, "fin-eng", TEXTS["fi"], english)
    write_pair(tmp_path, "jpn-eng", TEXTS["ja"][::-1], english[::-1])
    write_pair(tmp_path, "kor-eng", ["가", "나"], ["Apples", "Pears"])
    write_pair(tmp_path, "fin-kor", ["kolme", "kala"], ["셋", "물고기"])
    return tmp_path


def test_a_preset_stands_for_its_languages(folder):
    with pytest.raises(UserError, match="unknown language beside en in .*'ar'"):
        find_trials(folder, ("xnli",), (), None)


def test_pairs_alone_are_scored_alone_and_together_with_languages_named(centred):
    def named(languages, pairs):
        return [trial.text.name for trial in find_trials(centred, languages, pairs, None)]

    assert named((), ()) == ["fin-eng", "jpn-eng", "kor-eng"]
    assert named((), ("fin-jpn",)) == ["fin-jpn"]
    assert named(("ko",), ("fin-jpn", "ko-fi")) == ["kor-eng", "fin-jpn", "kor-fin"]
    assert named((), ("all",)) == ["fin-kor"]
    assert named((), ("ja-en",)) == ["jpn-eng"]
    with pytest.raises(UserError, match="holds no pair without English; name pairs"):
        named(("fi", "ja"), ("all",))


def test_what_a_pair_is_compared_with_is_its_own_sentences_in_english_where_they_are(centred):
    joined, given = find_trials(centred, (), ("jpn-fin", "fin-kor"), None)
    # joined at all five English sentences, in the order of the first language
    assert joined.text.sides == (TEXTS["ja"][::-1], TEXTS["fi"][::-1])
    assert joined.same
    assert [text.name for text in joined.english] == ["jpn-eng", "fin-eng"]
    assert joined.english[1].sides == (TEXTS["fi"][::-1], TEXTS["en"][::-1])
    # given: only the languages' own texts with English are there
    assert not given.same
    assert [len(text) for text in given.english] == [5, 2]
    (centred / "kor-eng.kor").unlink()
    (centred / "kor-eng.eng").unlink()
    (given,) = find_trials(centred, (), ("fin-kor",), None)
    assert given.english == ()


def test_aligned_files_give_any_two_languages_and_their_documents(folder):
    (trial,) = find_trials(folder, (), ("ja-fi",), "2-3")
    assert trial.text.sides == (TEXTS["ja"][2:], TEXTS["fi"][2:])
    assert trial.same
    assert trial.english[0].sides == (TEXTS["ja"][2:], TEXTS["en"][2:])
    assert [trial.text.name for trial in find_trials(folder, (), ("all",), None)] == ["fin-jpn"]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (("fra",), "'fra': give two languages, such as fra-deu"),
        (("all", "fra-deu"), "'all': give two languages"),
        (("fra-",), "give two languages"),
        (("fra-fr",), "fra-fr: one language twice"),
        (("fra-dee",), "unknown language 'dee'"),
    ],
)
def test_what_is_no_pair_is_refused_before_anything_is_read(tmp_path, pairs, words):
    with pytest.raises(UserError, match=words):
        TatoebaConfig(data=tmp_path, pairs=pairs)
    assert pairs_of(["fra-deu", "French-de", "ja-ko"]) == [("fr", "de"), ("ja", "ko")]


def test_too_few_joined_pairs_are_refused_with_their_number(centred):
    with pytest.raises(UserError, match="kor-jpn: no pair with the same English sentence; two"):
        find_trials(centred, (), ("kor-jpn",), None)


# -- the loss without English --


def scored(name, mean, **more):
    return Scored(name, 100, 0, dict.fromkeys(STEPS, Accuracy(mean, mean)), **more)


def test_the_loss_is_the_mean_with_english_less_the_pair():
    english = (scored("fra-eng", 0.9), scored("deu-eng", 0.7))
    pair = scored("fra-deu", 0.65, english=english)
    # (90 + 70) / 2 - 65 = 15 points
    assert pair.loss(RAW) == pytest.approx(0.15)
    assert scored("fra-deu", 0.65).loss(RAW) is None
    gain = scored("fra-spa", 0.85, english=english)
    encoded = Encoded(EncoderSettings(), [pair, gain, scored("fra-eng", 0.9)])
    lines = str(Report("d", {"x": encoded})).splitlines()
    heads = next(line for line in lines if line.split()[:1] == ["pairs"])
    first, second = (line.split() for line in lines if line.startswith("fra-") and "*" in line)
    assert heads.split()[:5] == ["pairs", "->", "<-", "mean", "loss"]
    assert first[:6] == ["fra-deu*", "100", "65.0", "65.0", "65.0", "+15.0"]
    assert second[5] == "-5.0"
    averages = {line[:23].strip(): line.split() for line in lines if line.startswith("average")}
    # without English (15 - 5) / 2 = 5 points; with it there is nothing to lose
    assert averages["average without English"][6] == "+5.0"
    assert averages["average with English"][6] == "-"


def test_the_loss_is_measured_on_the_sentences_of_the_pair(folder, tiny_checkpoint):
    report = tatoeba.run(config(folder, tiny_checkpoint, pairs=("ja-fi",)))
    (encoded,) = report.encoders.values()
    (pair,) = encoded.scored
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    ja, fi, en = (encoder.encode_queries(TEXTS[code]) for code in ("ja", "fi", "en"))
    for step in STEPS:
        with_english = [accuracy_by_step(side, en)[step].mean for side in (ja, fi)]
        expected = np.mean(with_english) - accuracy_by_step(ja, fi)[step].mean
        assert pair.loss(step) == pytest.approx(expected)
    text = str(report)
    assert "jpn-fin " in text
    assert "jpn-fin*" not in text
    # 5 pairs are few, and the paper has no number beside ours
    assert "fewer than 100 pairs, so that accuracy says little: jpn-fin" in text
    assert "LaBSE (paper)" in text


# -- a calibration fitted elsewhere --


def calibration_file(path, tiny_checkpoint, codes, notes=None):
    """Statistics of each language, those of its texts moved a little, and a rotation but en's."""
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    spreads = {}
    for place, code in enumerate(codes):
        spread = Spread.fit(encoder.encode_queries(TEXTS[code]) + 0.1 * place)
        noise = np.random.default_rng(place).normal(size=(encoder.dim, encoder.dim))
        turn = None if code == "en" else np.linalg.qr(noise)[0].astype(np.float32)
        spreads[code] = Spread(spread.mean, spread.scale, turn)
    Calibration(spreads, notes or {}).save(path)
    return spreads


def test_a_calibration_is_applied_step_by_step_and_is_apart_from_the_upper_bound(
    folder, tiny_checkpoint, tmp_path
):
    file = tmp_path / "f.safetensors"
    spreads = calibration_file(file, tiny_checkpoint, ("en", "ja", "fi"))
    report = tatoeba.run(
        config(folder, tiny_checkpoint, languages=("ja",), pairs=("ja-fi",), calibration=(file,))
    )
    (encoded,) = report.encoders.values()
    with_english, pair = encoded.scored
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    vectors = {code: encoder.encode_queries(TEXTS[code]) for code in TEXTS}
    for text, codes in ((with_english, ("ja", "en")), (pair, ("ja", "fi"))):
        x, y = (vectors[code] for code in codes)
        a, b = (spreads[code] for code in codes)
        assert text.fitted["raw"] == text.steps[RAW] == accuracy(x, y)
        assert text.fitted["shift"] == accuracy(x - a.mean, y - b.mean)
        assert text.fitted["rotate"] == accuracy(a.transform(x), b.transform(y))
        assert text.steps == accuracy_by_step(x, y)
    lines = str(report).splitlines()
    titles = [line for line in lines if line.startswith("tiny-xlmr: ")]
    assert ["calibrated by f.safetensors" in title for title in titles] == [True, False]
    assert "upper bound" in titles[1]
    heads = [line.split() for line in lines if line.split()[:1] == ["raw"]]
    assert heads == [["raw", "shift", "+scale", "+rotate"], ["raw", "shift", "+scale"]]
    # beside the paper's, of which nothing is known
    (paper,) = [line.split() for line in lines if line.startswith("CCP (paper)")][:1]
    assert paper == ["CCP", "(paper)", "-", "-", "-", "-"]


def test_languages_and_steps_that_a_calibration_lacks_are_dashes_and_withhold_the_average(
    folder, tiny_checkpoint, tmp_path
):
    file = tmp_path / "f.safetensors"
    spreads = calibration_file(file, tiny_checkpoint, ("en", "ja"))
    Calibration({code: Spread(each.mean) for code, each in spreads.items()}).save(file)
    report = tatoeba.run(config(folder, tiny_checkpoint, calibration=(file,)))
    lines = [line.split() for line in str(report).splitlines()]
    finnish, japanese = (
        next(row for row in lines if row[:1] == [n]) for n in ("fin-eng", "jpn-eng")
    )
    assert finnish[5:] == ["-"] * 9
    assert japanese[8:] == ["-"] * 6  # neither scale nor rotation
    assert "-" not in japanese[:8]
    whole, some = [row for row in lines if row[:1] in (["average"], ["average,"])][:2]
    assert whole[4:] == ["-"] * 9
    assert some[:3] == ["average,", "1", "calibrated"]
    assert some[3:9] == japanese[2:8]
    assert "no statistics of a language in the calibration: fin-eng" in str(report)


def test_a_calibration_of_other_vectors_or_of_no_language_at_hand_is_refused(
    folder, tiny_checkpoint, tmp_path
):
    file = tmp_path / "f.safetensors"
    calibration_file(file, tiny_checkpoint, ("ja",))
    with pytest.raises(UserError, match="has statistics of ja, of both languages of no text"):
        tatoeba.run(config(folder, tiny_checkpoint, calibration=(file,)))
    Calibration({code: Spread(np.ones(3, np.float32)) for code in TEXTS}).save(file)
    with pytest.raises(UserError, match="fitted on vectors of another width"):
        tatoeba.run(config(folder, tiny_checkpoint, calibration=(file,)))
    fingerprint = Encoder.load(tiny_checkpoint).fingerprint
    made = {"name": "x", "fingerprint": fingerprint, "pooling": "mean", "layer": 1}
    calibration_file(file, tiny_checkpoint, tuple(TEXTS), {"encoder": made})
    with pytest.raises(UserError, match="fitted with layer 1, not -1"):
        tatoeba.run(config(folder, tiny_checkpoint, calibration=(file,)))
    tatoeba.run(config(folder, tiny_checkpoint, calibration=(file,), layer=1))
    with pytest.raises(UserError, match="2 files for 1 encoders"):
        config(folder, tiny_checkpoint, calibration=(file, file))
    with pytest.raises(UserError, match="does not go with --layer all"):
        config(folder, tiny_checkpoint, calibration=(file,), layer="all")


# -- layers --


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_one_forward_pass_gives_the_vectors_of_every_layer(tiny_checkpoint, pooling):
    encoder = LayeredEncoder.load(tiny_checkpoint, normalize=False, pooling=pooling)
    tower = encoder._tower("query")
    passes = []
    forward = tower.forward
    tower.forward = lambda batch: passes.append(len(batch)) or forward(batch)
    texts = TEXTS["ja"] + TEXTS["fi"]
    layers, truncated = encoder.embed_layers(texts)
    assert sum(passes) == len(texts)
    assert list(layers) == [0, 1, 2]
    assert truncated == 0
    for layer, vectors in layers.items():
        alone = Encoder.load(tiny_checkpoint, normalize=False, pooling=pooling, layer=layer)
        assert vectors == pytest.approx(alone.encode_queries(texts), abs=1e-5)


def test_layers_of_an_architecture_without_the_faster_way_agree_too(tiny_checkpoint, monkeypatch):
    from ccpretrieve.model.tower import Tower

    fast, _ = LayeredEncoder.load(tiny_checkpoint, normalize=False).embed_layers(TEXTS["ja"])
    monkeypatch.setattr(Tower, "_fuse", lambda self: None)
    slow, _ = LayeredEncoder.load(tiny_checkpoint, normalize=False).embed_layers(TEXTS["ja"])
    for layer, vectors in fast.items():
        assert slow[layer] == pytest.approx(vectors, abs=1e-5)


def test_a_curve_over_layers_is_a_table_a_file_and_two_pictures(folder, tiny_checkpoint, tmp_path):
    output = tmp_path / "new" / "layers.json"
    report = tatoeba.run(config(folder, tiny_checkpoint, layer="all", output=output))
    written = json.loads(output.read_text())["encoders"]
    assert list(written) == [f"tiny-xlmr layer {layer}" for layer in range(3)]
    alone = tatoeba.run(config(folder, tiny_checkpoint, layer=1))
    assert (
        written["tiny-xlmr layer 1"]["pairs"] == alone.to_json()["encoders"]["tiny-xlmr"]["pairs"]
    )
    rows = [line.split() for line in str(report).splitlines()]
    (row,) = [row for row in rows if row[:1] == ["1"]]
    means = [alone.encoders["tiny-xlmr"].average(step).mean for step in STEPS]
    assert row[1:] == [f"{100 * mean:.1f}" for mean in means]
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in output.with_suffix(".svg").read_text()
    again = tmp_path / "again.json"
    tatoeba.run(config(folder, tiny_checkpoint, layer="all", output=again))
    for suffix in (".svg", ".png"):
        assert again.with_suffix(suffix).read_bytes() == output.with_suffix(suffix).read_bytes()


def test_without_matplotlib_no_layer_is_encoded(folder, tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tatoeba, "load", None)
    with pytest.raises(UserError, match="drawing needs matplotlib: pip install matplotlib"):
        tatoeba.run(config(folder, tiny_checkpoint, layer="all", output=folder / "l.json"))


def test_the_layer_is_a_number_or_all_on_the_line_and_in_a_file(tmp_path):
    def layer(*words):
        return parse(TatoebaConfig, ["--data", "d", *words], "benchmarks.tatoeba").layer

    assert [layer(), layer("--layer", "all"), layer("--layer", "-1")] == [None, "all", -1]
    (tmp_path / "c.yaml").write_text("layer: all\n")
    assert layer("--config", str(tmp_path / "c.yaml")) == "all"
    with pytest.raises(UserError, match="--layer 'top': give a number, or all"):
        TatoebaConfig(data=tmp_path, layer="top")


# -- vectors that are kept --


def test_kept_vectors_are_used_again_only_for_the_same_text_and_settings(
    folder, tiny_checkpoint, tmp_path, monkeypatch
):
    def go(**more):
        return tatoeba.run(config(folder, tiny_checkpoint, vectors=tmp_path / "v", **more))

    encoded = []
    embed = Encoder.embed_queries
    monkeypatch.setattr(
        Encoder, "embed_queries", lambda self, side: encoded.append(len(side)) or embed(self, side)
    )
    first = go(max_length=4)
    assert len(encoded) == 3
    assert go(max_length=4).to_json() == first.to_json()  # what was cut is known too
    assert len(encoded) == 3
    go(max_length=5)
    assert len(encoded) == 6
    for change in ({"query_prefix": ""}, {"pooling": "cls"}, {"layer": 1}, {"dtype": "bfloat16"}):
        go(max_length=5, **change)
    assert len(encoded) == 18
    (folder / "ja.txt").write_text("\n".join(TEXTS["ja"][::-1]) + "\n", encoding="utf-8")
    go(max_length=5)
    assert len(encoded) == 19


def test_kept_vectors_know_whether_question_marks_were_stripped(tiny_checkpoint, tmp_path):
    for code in ("ja", "en"):
        lines = "".join(f"{line}?\n" for line in TEXTS[code])
        (tmp_path / f"{code}.txt").write_text(lines, encoding="utf-8")
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy" / tiny_checkpoint.name)
    stated = json.loads((copy / "ccpretrieve.json").read_text())
    (copy / "ccpretrieve.json").write_text(json.dumps(stated | {"strip_question_mark": True}))
    for path in (tiny_checkpoint, copy):
        tatoeba.run(config(tmp_path, path, vectors=tmp_path / "v"))
    kept = [load_file(file)["vectors"] for file in (tmp_path / "v" / "tiny-xlmr").iterdir()]
    assert len(kept) == 4  # two sides, each with and without its marks
    assert not any(np.allclose(a, b) for a, b in combinations(kept, 2))


def test_kept_vectors_of_all_layers_serve_a_run_of_one(folder, tiny_checkpoint, tmp_path):
    output = tmp_path / "l.json"
    more = {"vectors": tmp_path / "v", "languages": ("ja",)}
    whole = tatoeba.run(config(folder, tiny_checkpoint, layer="all", output=output, **more))
    again = tatoeba.run(config(folder, tiny_checkpoint, layer="all", output=output, **more))
    assert again.to_json() == whole.to_json()
    assert len(list((tmp_path / "v" / "tiny-xlmr").iterdir())) == 6  # two sides, three layers
    one = tatoeba.run(config(folder, tiny_checkpoint, layer=1, **more))
    assert one.encoders["tiny-xlmr"].scored == whole.encoders["tiny-xlmr layer 1"].scored
    assert len(list((tmp_path / "v" / "tiny-xlmr").iterdir())) == 6


def test_a_file_of_vectors_that_is_damaged_or_anothers_is_an_error(
    folder, tiny_checkpoint, tmp_path
):
    more = {"vectors": tmp_path / "v", "languages": ("ja",)}
    tatoeba.run(config(folder, tiny_checkpoint, **more))
    one, two = (tmp_path / "v" / "tiny-xlmr").iterdir()
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    with pytest.raises(UserError, match="holds other vectors than its name says; remove it"):
        tatoeba.run(config(folder, tiny_checkpoint, **more))
    one.write_bytes(kept[:-100])
    with pytest.raises(UserError, match="damaged: .*; remove it"):
        tatoeba.run(config(folder, tiny_checkpoint, **more))


def test_a_side_is_held_until_its_last_use(tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint, normalize=False)
    side = TEXTS["ja"]
    text = ParallelText("jpn-jpn", ("ja", "ja"), (side, list(side)))
    sides = Sides(encoder, [text])
    assert sides.encode(side) is sides.encode(side)
    assert not sides.held
    assert digest(["a", "b"]) != digest(["ab"]) != digest(["b", "a"])


# -- isomorphism --


def test_isomorphism_of_two_encoders_stands_side_by_side_with_the_change(tiny_checkpoint, tmp_path):
    lines = {code: [f"{word} {n}" for n in range(4) for word in TEXTS[code]] for code in TEXTS}
    for code, each in lines.items():
        (tmp_path / f"{code}.txt").write_text("\n".join(each) + "\n", encoding="utf-8")
    other = tmp_path / "other"
    other.mkdir()
    for file in tiny_checkpoint.iterdir():
        if file.is_file() and file.name != "ccpretrieve.json":
            (other / file.name).symlink_to(file)
    settings = json.loads((tiny_checkpoint / "ccpretrieve.json").read_text())
    (other / "ccpretrieve.json").write_text(json.dumps(settings | {"pooling": "cls"}))
    report = tatoeba.run(
        TatoebaConfig(data=tmp_path, encoder=(str(tiny_checkpoint), str(other)), isomorphism=True)
    )
    before, after = report.encoders.values()
    for encoded, pooling in ((before, "mean"), (after, "cls")):
        encoder = Encoder.load(tiny_checkpoint, normalize=False, pooling=pooling)
        x, y = (encoder.encode_queries(lines[code]) for code in ("ja", "en"))
        shape = encoded.scored[1].shape
        assert shape["RSIM"] == pytest.approx(isomorphism.rsim(x, y))
        assert shape["hubs <-"] == pytest.approx(isomorphism.hubness(y, x))
        assert list(shape) == list(SHAPES)
    text = str(report)
    table = text[text.index("Isomorphism") :].splitlines()
    (row,) = [line.split() for line in table if line.startswith("jpn-eng")][:1]
    one, two = before.scored[1].shape["CKA"], after.scored[1].shape["CKA"]
    assert row[4:7] == [f"{one:.3f}", f"{two:.3f}", f"{two - one:+.3f}"]
    content = report.to_json()["encoders"]["other"]["pairs"]["jpn-eng"]["isomorphism"]
    assert content == pytest.approx(after.scored[1].shape)


def test_isomorphism_that_so_few_rows_do_not_allow_is_a_dash(folder, tiny_checkpoint):
    report = tatoeba.run(config(folder, tiny_checkpoint, languages=("ja",), isomorphism=True))
    text = str(report)
    table = text[text.index("Isomorphism") :].splitlines()
    assert [line.split()[1:] for line in table if line.startswith("jpn")] == [["-"] * len(SHAPES)]
    json.dumps(report.to_json(), allow_nan=False)


# -- formats --


def test_every_format_holds_the_same_cells(folder, tiny_checkpoint):
    report = tatoeba.run(config(folder, tiny_checkpoint, pairs=("ja-fi",), languages=("ja",)))
    (encoded,) = report.encoders.values()
    share = f"{100 * encoded.scored[1].steps[SHIFTED].forward:.1f}"
    forms = {form: replace(report, form=form) for form in ("markdown", "latex", "json")}
    markdown = str(forms["markdown"]).splitlines()
    (row,) = [line for line in markdown if line.startswith("| jpn-fin |")]
    assert [cell.strip() for cell in row.strip("|").split("|")][6] == share
    (head,) = [line for line in markdown if "shift mean" in line]
    assert head.count("|") == row.count("|") == 15
    latex = str(forms["latex"]).splitlines()
    (row,) = [line for line in latex if line.startswith("jpn-fin &")]
    assert row.removesuffix(r"\\").split(" & ")[6] == share
    assert all(line.startswith("%") for line in latex[:2])
    assert sum(r"\multicolumn{4}{c}{shift}" in line for line in latex) == 1
    assert json.loads(str(forms["json"])) == report.to_json()


@pytest.mark.parametrize("name", ["tatoeba-steps-paper", "tatoeba-english-paper"])
def test_nothing_is_quoted_as_the_papers_that_nobody_could_read(name):
    published = read_published(name)
    assert published.rows
    assert not any(published.rows.values())
    assert "dashes" in " ".join(published.source)


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
