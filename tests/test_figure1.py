import json
import re
import shutil
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from benchmarks import clouds, drawing, figure1, gains
from benchmarks.clouds import Column, Picture, draw_clouds
from benchmarks.drawing import Fonts, save, style
from benchmarks.figure1 import Figure1Config
from benchmarks.gains import Gain, draw_gains, read_gains
from benchmarks.projection import calibrate, panel, pca, projection
from benchmarks.sample import choose
from benchmarks.tatoeba import TatoebaConfig
from benchmarks.tatoeba import run as tatoeba
from ccpretrieve.errors import UserError
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.retrieval.bitext import STEPS, accuracy

LINES = 60
WORDS = {
    "en": ["The Nile", "flows", "capital", "Sea"],
    "ja": ["富士山", "日本で", "高い", "です。"],
    "ar": ["النيل", "هو أطول", "نهر", "أفريقيا"],
}


def sentence(code, row):
    """Another for each row."""
    words = WORDS[code]
    more = [words[row // 16]] * (row % 3)
    return " ".join([words[row % 4], words[row // 4 % 4], *more, str(row)])


@pytest.fixture
def folder(tmp_path):
    """Three aligned languages in 20 documents of three lines."""
    path = tmp_path / "text"
    path.mkdir()
    for code in WORDS:
        lines = [sentence(code, row) for row in range(LINES)]
        (path / f"{code}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    numbers = [f"document {row // 3}" for row in range(LINES)]
    (path / "DOCUMENT_IDS.txt").write_text("\n".join(numbers) + "\n")
    return path


@pytest.fixture
def only_base(monkeypatch):
    """No font but the one that comes with matplotlib."""
    from matplotlib.font_manager import fontManager

    kept = [font for font in fontManager.ttflist if font.name.startswith("DejaVu Sans")]
    monkeypatch.setattr(fontManager, "ttflist", kept)


def config(folder, encoder, output, **more):
    settings = {"languages": ("en", "ja"), "points": 24, "quiet": True} | more
    return Figure1Config(data=folder, encoder=(str(encoder),), output=output, **settings)


def random_picture(seed=0, columns=2, n=60, sentences=None):
    """Two clouds with an offset between them, that are each other's translation."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(columns):
        x = rng.normal(size=(n, 8)).astype(np.float32)
        y = x + rng.normal(scale=0.3, size=(n, 8)).astype(np.float32)
        before, after = panel((x, y + 4), pca, "E"), panel((x, y), pca, "E")
        made.append(Column(f"encoder {number}", "mean pooling", before, after))
    marked = tuple(sorted(rng.choice(n, 5, replace=False).tolist()))
    words = sentences or [(f"sentence {i}", f"lause {i}") for i in range(5)]
    return Picture(("English", "Finnish"), ("en", "fi"), made, marked, words, (), "a note")


def drawn(picture):
    """The figure, drawn once, with the places of all texts known."""
    with style():
        figure = draw_clouds(picture, Fonts())
        figure.draw_without_rendering()
    return figure


def by_gid(axes, gid):
    (found,) = [artist for artist in axes.get_children() if artist.get_gid() == gid]
    return found


# -- the panels --


def test_marked_translations_are_joined_and_numbered():
    picture = random_picture()
    figure = drawn(picture)
    panels = [step for name in ("before", "after") for step in map_columns(picture, name)]
    assert len(figure.axes) == len(panels) == 4
    for axes, each in zip(figure.axes, panels, strict=True):
        for number, row in enumerate(picture.marked, 1):
            ends = np.array(by_gid(axes, f"pair {number}").get_data()).T
            np.testing.assert_array_equal(ends, [cloud[row] for cloud in each.clouds])
        for side in (0, 1):
            marks = by_gid(axes, f"marked {side + 1}").get_offsets()
            np.testing.assert_array_equal(marks, each.clouds[side][list(picture.marked)])
        assert {text.get_text() for text in axes.texts} == set("12345")


def map_columns(picture, name):
    return [getattr(column, name) for column in picture.columns]


def test_every_point_is_drawn_at_one_scale_in_both_directions():
    picture = random_picture(columns=1, n=37)
    figure = drawn(picture)
    assert len(figure.axes) == 2
    (column,) = picture.columns
    for axes, each in zip(figure.axes, (column.before, column.after), strict=True):
        for side in (0, 1):
            points = by_gid(axes, f"cloud {side + 1}").get_offsets()
            np.testing.assert_array_equal(points, each.clouds[side])
            inside = axes.transAxes.inverted().transform(axes.transData.transform(points))
            assert inside.min() > 0
            assert inside.max() < 1
        unit = axes.transData.transform([[0, 0], [1, 0], [0, 1]])
        assert unit[1, 0] - unit[0, 0] == pytest.approx(unit[2, 1] - unit[0, 1])


@pytest.mark.parametrize("seed", range(4))
def test_no_number_covers_another_or_leaves_its_panel(seed):
    figure = drawn(random_picture(seed))
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        for one, two in combinations(boxes, 2):
            assert not one.overlaps(two)
        for box in boxes:
            assert axes.bbox.contains(*box.min)
            assert axes.bbox.contains(*box.max)


def test_no_text_of_the_page_covers_another_or_is_cut_off():
    long = [("an English sentence of many words " * 9, "ei " * 80)] * 5
    for picture in (random_picture(), random_picture(columns=1), random_picture(sentences=long)):
        figure = drawn(picture)
        boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
        boxes += [axes.bbox for axes in figure.axes]
        boxes += [legend.get_window_extent() for legend in figure.legends]
        for box in boxes:
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y0 >= 0
            assert box.y1 <= figure.bbox.y1
        for one, two in combinations(boxes, 2):
            assert not (one.overlaps(two) and _area(one, two) > 0)


def _area(one, two):
    wide = min(one.x1, two.x1) - max(one.x0, two.x0)
    high = min(one.y1, two.y1) - max(one.y0, two.y0)
    return max(0, wide - 1) * max(0, high - 1)


def test_languages_differ_in_shape_and_in_lightness():
    # Relative luminance with linear weights, as a grey print would show: 0 black, 1 white.
    from matplotlib.colors import to_rgb

    for first, second in (clouds.CLOUDS, clouds.MARKS, (gains.SCALED_STYLE, gains.RAW_STYLE)):
        assert first["marker"] != second["marker"]
        faces = [each.get("facecolor") or each["markerfacecolor"] for each in (first, second)]
        dark, light = (np.dot(to_rgb(face), (0.2126, 0.7152, 0.0722)) for face in faces)
        assert light - dark > 0.4


def test_below_each_panel_stand_accuracy_and_variance():
    picture = random_picture(columns=1)
    said = " ".join(text.get_text() for text in drawn(picture).texts)
    for each in (picture.columns[0].before, picture.columns[0].after):
        forward, backward = (100 * share for share in each.accuracy)
        assert f"the translation: {(forward + backward) / 2:.1f} %" in said
        assert f"(en → fi {forward:.1f}, fi → en {backward:.1f})" in said
        assert f"axes: {100 * each.variance:.0f} % of the variance" in said


# -- projection and calibration --


def test_pca_shows_the_two_largest_variances_of_both_clouds_together():
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(n, 5)).astype(np.float32) * [5, 1, 3, 1, 1] for n in (30, 20))
    y[:, 2] += 4
    left, right, share = pca(x, y)
    both = np.concatenate([x, y])
    values = np.linalg.eigvalsh(np.cov(both.T))[::-1]  # another way than the SVD
    assert share == pytest.approx(values[:2].sum() / values.sum())
    plane = np.concatenate([left, right])
    np.testing.assert_allclose(np.cov(plane.T), np.diag(values[:2]), atol=1e-9)
    assert left[:, 0].mean() < right[:, 0].mean()  # the first language on the left


def test_calibrated_clouds_have_equal_means_and_unit_spread_where_they_were_fitted():
    rng = np.random.default_rng(2)
    x = rng.normal(3, 2, size=(50, 6)).astype(np.float32)
    y = rng.normal(-1, 5, size=(40, 6)).astype(np.float32)
    for cloud in calibrate((x, y), (x, y)):
        np.testing.assert_allclose(cloud.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(cloud.std(axis=0), 1, atol=1e-5)
    # Other vectors of the same two languages come near each other: each mean of 50 has a standard
    # error of 2 / sqrt(50) and 5 / sqrt(40), which is 0.14 and 0.16 of a spread; before, the means
    # were 4 apart.
    other = (rng.normal(3, 2, size=(50, 6)), rng.normal(-1, 5, size=(40, 6)))
    left, right = calibrate(other, (x, y))
    assert np.abs(left.mean(axis=0) - right.mean(axis=0)).max() < 1


def test_vectors_that_are_all_the_same_are_refused():
    same = np.ones((5, 3), np.float32)
    with pytest.raises(UserError, match="out/e: gives all sentences the same vector"):
        panel((same, same), pca, "out/e")


@pytest.mark.slow  # imports scikit-learn
def test_tsne_places_all_points_the_same_way_each_time_and_claims_no_variance():
    x, y = np.random.default_rng(3).normal(size=(2, 20, 5)).astype(np.float32)
    first, second = (projection("tsne", 7)(x, y) for _ in range(2))
    assert first[2] is None
    assert first[0].shape == first[1].shape == (20, 2)
    for one, two in zip(first[:2], second[:2], strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_projection_that_is_not_installed_says_how_to_have_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UserError, match="--projection umap needs umap-learn: pip install umap-l"):
        projection("umap", 0)


# -- text --


def test_nothing_that_is_drawn_is_fitted_on_nor_any_other_line_of_its_document(folder):
    sample = choose(folder, ("en", "ja"), points=25)
    assert [len(side) for side in sample.drawn] == [25, 25]
    # Documents have 3 lines: 25 pairs take 8 of them and a line of a ninth, and 11 are left.
    assert [len(side) for side in sample.fitted] == [33, 33]
    place = {sentence(code, row): row // 3 for code in WORDS for row in range(LINES)}
    shown, others = ({place[line] for line in side} for side in (sample.drawn[0], sample.fitted[0]))
    assert len(shown) == 9
    assert not shown & others
    assert [place[line] for line in sample.drawn[0]] == [place[line] for line in sample.drawn[1]]
    assert "33 other sentences a language, of other documents" in sample.note


def test_a_sentence_drawn_is_not_fitted_on_from_another_folder_either(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    sample = choose(folder, ("en", "ja"), points=20)
    for code, side in zip(("en", "ja"), sample.drawn, strict=True):
        lines = [*side[:5], *(f"{code} {row}" for row in range(4))]
        (other / f"{code}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    again = choose(folder, ("en", "ja"), points=20, fitted_on=other)
    assert again.drawn == sample.drawn
    assert again.fitted == ([f"en {row}" for row in range(4)], [f"ja {row}" for row in range(4)])
    assert "4 other sentences a language of other" in again.note


def test_marked_pairs_are_of_the_shorter_half_and_change_with_the_seed_only(folder):
    samples = [choose(folder, ("en", "ja"), points=24, seed=seed) for seed in (0, 0, 1)]
    assert samples[0] == samples[1]
    assert samples[0].drawn != samples[2].drawn
    for sample in samples:
        lengths = [len(a) + len(b) for a, b in zip(*sample.drawn, strict=True)]
        assert len(set(sample.marked)) == 5
        assert all(lengths[row] <= np.median(lengths) + 0.5 for row in sample.marked)
        for row, line in zip(sample.marked, sample.lines, strict=True):
            assert sample.drawn[0][row] == sentence("en", line - 1)


def test_languages_come_in_the_order_asked_for_and_english_is_at_hand_without_them(folder):
    sample = choose(folder, ("ja", "ar"), points=10)
    assert sample.drawn[0][0].split()[0] in " ".join(WORDS["ja"])
    assert sample.english == tuple(sentence("en", line - 1) for line in sample.lines)
    reverse = choose(folder, ("ar", "ja"), points=10)
    assert reverse.drawn == sample.drawn[::-1]


def test_a_pair_that_is_only_there_through_english_is_joined(tmp_path):
    for code in ("jpn", "ara"):
        short = {"jpn": "ja", "ara": "ar"}[code]
        for name, lines in ((code, short), ("eng", "en")):
            text = "\n".join(sentence(lines, row) for row in range(30)) + "\n"
            (tmp_path / f"{code}-eng.{name}").write_text(text, encoding="utf-8")
    sample = choose(tmp_path, ("ja", "ar"), points=10)
    assert "joined at English" in sample.note
    assert len(sample.fitted[0]) == 20
    assert sample.english[0] == sentence("en", sample.lines[0] - 1)


def test_text_that_cannot_be_drawn_is_refused_in_a_line(folder, tmp_path):
    cases = {
        "has 60 lines, too few for --points 61": {"points": 61},
        "beside the 59 --points 1 sentences are left": {"points": 59},
        "no text pairs en with sw": {"languages": ("en", "sw")},
    }
    (folder / "DOCUMENT_IDS.txt").unlink()
    for message, settings in cases.items():
        with pytest.raises(UserError, match=re.escape(message)):
            choose(folder, **{"languages": ("en", "ja"), **settings})


# -- fonts --


def test_a_script_without_a_font_is_left_out_and_english_stays(only_base, tmp_path):
    pairs = [(f"It is number {i}.", f"นี่คือหมายเลข {i}") for i in range(5)]
    picture = random_picture(sentences=pairs)
    svg, png = save(lambda: draw_clouds(picture, Fonts()), tmp_path / "en-th")
    text = svg.read_text(encoding="utf-8")
    assert all(f">{english}</text>" in text for english, _ in pairs)
    assert "หมาย" not in text
    assert png.read_bytes()[:4] == b"\x89PNG"


def test_a_script_that_a_font_has_is_text_in_the_svg(only_base, tmp_path):
    import matplotlib as mpl

    pairs = [(f"It is number {i}.", f"هذا هو الرقم {i}") for i in range(5)]
    svg, _ = save(lambda: draw_clouds(random_picture(sentences=pairs), Fonts()), tmp_path / "en-ar")
    text = svg.read_text(encoding="utf-8")
    shaped = mpl.__version_info__ >= (3, 11)  # letters are joined, from right to left
    assert all((arabic in text) == shaped for _, arabic in pairs)


def test_english_stands_in_where_neither_language_has_a_font(only_base):
    pairs = [(f"日本語 {i}", f"ภาษาไทย {i}") for i in range(5)]
    picture = random_picture(sentences=pairs)
    english = tuple(f"in English {i}" for i in range(5))
    figure = drawn(replace(picture, english=english))
    shown = [text.get_text() for text in figure.texts]
    assert set(english) <= set(shown)
    assert not any("語" in text or "ภ" in text for text in shown)


def test_a_sentence_too_long_for_the_page_is_cut_between_letters_with_an_ellipsis():
    with style():
        page = drawing.Page(7, 1)
        text = page.text(0, 0.5, "a\u0301" * 400)  # each letter with an accent of its own
        drawing.fit(text, 2.0)
        assert re.fullmatch("(a\u0301)+…", text.get_text())
        assert 1.9 < text.get_window_extent().width / page.figure.dpi <= 2.0
        short = page.text(0, 0.5, "short")
        drawing.fit(short, 2.0)
        assert short.get_text() == "short"


def test_what_is_no_font_is_refused(tmp_path):
    path = tmp_path / "x.ttf"
    path.write_text("no font")
    with pytest.raises(UserError, match=r"x\.ttf: not a font"):
        Fonts([path])


# -- the command --


def test_equal_input_gives_equal_bytes(folder, tiny_checkpoint, tmp_path):
    first, second = (
        figure1.run(config(folder, tiny_checkpoint, tmp_path / name)).files for name in "ab"
    )
    assert [path.name for path in first] == ["en-ja.svg", "en-ja.png", "en-ja.json"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert "<dc:date>" not in first[0].read_text(encoding="utf-8")


def test_figures_are_those_of_the_encoders_questions_unnormalised(
    folder, tiny_checkpoint, tmp_path
):
    report = figure1.run(
        config(folder, tiny_checkpoint, tmp_path, layer=(1,), pooling=("cls",), names=("CCP",))
    )
    sample = choose(folder, ("en", "ja"), points=24)
    encoder = Encoder.load(tiny_checkpoint, normalize=False, layer=1, pooling="cls")
    x, y = (encoder.encode_queries(side) for side in sample.drawn)
    before, after = json.loads((tmp_path / "en-ja.json").read_text())["panels"]
    reached = accuracy(x, y)
    assert (before["forward"], before["backward"]) == reached
    assert before["encoder"] == "CCP"
    assert before["settings"] == "cls pooling, layer 1"
    left, right = (encoder.encode_queries(side) for side in sample.fitted)
    x, y = ((v - f.mean(axis=0)) / f.std(axis=0) for v, f in ((x, left), (y, right)))
    assert (after["forward"], after["backward"]) == pytest.approx(accuracy(x, y), abs=1 / 24 + 1e-9)
    marked = json.loads((tmp_path / "en-ja.json").read_text())["marked"]
    assert [tuple(each["sentences"]) for each in marked] == list(report.picture.sentences)
    for number, each in enumerate(marked, 1):
        assert each["number"] == number
        assert each["sentences"] == [sentence(code, each["line"] - 1) for code in ("en", "ja")]
    assert f"{100 * reached.mean:.1f}" in str(report)


def test_two_encoders_take_a_layer_each(folder, tiny_checkpoint, tmp_path):
    two = (str(tiny_checkpoint), str(tiny_checkpoint))
    asked = Figure1Config(
        data=folder,
        languages=("en", "ja"),
        encoder=two,
        layer=(1, -1),
        points=24,
        marked=3,
        output=tmp_path,
        quiet=True,
    )
    first, second = figure1.run(asked).picture.columns
    assert first.settings == "mean pooling, layer 1"
    assert second.settings == "mean pooling, last layer"
    assert not np.array_equal(first.before.clouds[0], second.before.clouds[0])


def test_settings_that_cannot_work_are_refused(folder):
    data = {"data": folder, "languages": ("en", "ja")}
    cases = {
        "give --data and --languages": {},
        "--encoder a: goes with --data": {"encoder": ("a",), "accuracies": folder},
        "two different ones": {"data": folder, "languages": ("en", "eng")},
        "--languages needs two": {"data": folder, "languages": ("en",)},
        "unknown language 'klingon'": {"data": folder, "languages": ("en", "klingon")},
        "--encoder takes one or two, got 3": data | {"encoder": ("a", "b", "c")},
        "--layer has 2 values for 1 --encoder": data | {"layer": (1, 2)},
        "--names has 1 values for 2 --encoder": data | {"encoder": ("a", "b"), "names": ("x",)},
        "unknown projection 'pka'; did you mean 'pca'": data | {"projection": "pka"},
        "unknown pooling": data | {"pooling": ("men",)},
        "--marked 5: there are only 4 --points": data | {"points": 4},
    }
    for message, settings in cases.items():
        with pytest.raises(UserError, match=re.escape(message)):
            Figure1Config(**settings)


# -- gains --


def scores(**pairs):
    """A file's content: of each pair its accuracies by step."""
    made = {
        pair.replace("_", "-"): {
            step: {"forward": each, "mean": each} for step, each in zip(STEPS, values, strict=True)
        }
        for pair, values in pairs.items()
    }
    return {"encoders": {"e5": {"pairs": made}}}


def test_gains_are_read_and_drawn_best_first(tmp_path):
    path = tmp_path / "scores.json"
    made = scores(fra_eng=(0.5, 0.6, 0.7), tha_eng=(0.9, 0.85, 0.8), jpn_kor=(0.2, 0.3, 0.75))
    path.write_text(json.dumps(made))
    (found,) = read_gains(path).values()
    assert found[1] == Gain("Thai", 0.9, 0.85, 0.8)
    with style():
        figure = draw_gains("e5", found)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["Thai", "Japanese – Korean", "French"]
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in axes.texts] == ["−10.0", "+55.0", "+20.0"]
    for row, (name, ends) in enumerate(zip(names, ([90, 80], [20, 75], [50, 70]), strict=True)):
        line = by_gid(axes, f"gain {name}")
        np.testing.assert_allclose(line.get_xdata(), ends)
        assert list(line.get_ydata()) == [row, row]
        assert (line.get_linestyle() == "-") == (name != "Thai")  # a loss is dotted
    said = " ".join(text.get_text() for text in figure.texts)
    assert "average of 3: 53.3 % raw, 75.0 % shifted and scaled" in said  # 160 / 3 and 225 / 3
    assert "statistics of the test text itself" in said
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in figure.texts)


def test_all_languages_stand_on_the_page_in_several_columns():
    many = [Gain(f"language {i}", i / 200, i / 190, i / 180) for i in range(112)]
    with style():
        figure = draw_gains("e5", many)
        figure.draw_without_rendering()
    assert len(figure.axes) == 3
    names = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert names == [f"language {i}" for i in reversed(range(112))]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
        assert min(box.x0 for box in boxes) > 0
        assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("encoders"), "encoders is missing or empty"),
        (lambda c: c["encoders"].clear(), "encoders is missing or empty"),
        (lambda c: c["encoders"]["e5"].pop("pairs"), "encoders.e5.pairs is missing"),
        (lambda c: pair(c).pop("shifted"), "encoders.e5.pairs.fra-eng.shifted is missing"),
        (lambda c: pair(c)["raw"].pop("mean"), "encoders.e5.pairs.fra-eng.raw.mean is missing"),
        (lambda c: pair(c)["raw"].update(mean=80.2), "raw.mean is 80.2, not a share from 0 to 1"),
        (lambda c: pair(c)["raw"].update(mean=True), "raw.mean is True, not a share"),
        (lambda c: pair(c)["raw"].update(mean=float("nan")), "raw.mean is nan, not a share"),
        (lambda c: pair(c)["raw"].update(mean=10**400), "0, not a share"),
    ],
)
def test_scores_with_something_missing_are_refused(tmp_path, change, message):
    path = tmp_path / "scores.json"
    content = scores(fra_eng=(0.5, 0.6, 0.7))
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=re.escape(message)):
        read_gains(path)


def test_a_calibration_of_the_checkpoints_own_is_not_even_read(folder, tiny_checkpoint, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, copy)
    settings = json.loads((copy / "ccpretrieve.json").read_text())
    (copy / "ccpretrieve.json").write_text(json.dumps(settings | {"calibration": "absent"}))
    encoder = figure1._load(config(folder, copy, tmp_path / "out"), 0, str(copy))
    assert encoder.calibration is None


def pair(content):
    return content["encoders"]["e5"]["pairs"]["fra-eng"]


def test_the_scores_that_the_tatoeba_benchmark_writes_are_drawn(folder, tiny_checkpoint, tmp_path):
    path = tmp_path / "scores.json"
    tatoeba(TatoebaConfig(data=folder, encoder=(str(tiny_checkpoint),), output=path, quiet=True))
    report = figure1.run(Figure1Config(accuracies=path, output=tmp_path / "out", quiet=True))
    assert report.picture is None
    names = [f"accuracies.{tiny_checkpoint.name}.{kind}" for kind in ("svg", "png")]
    assert [file.name for file in report.files] == names
    svg = report.files[0].read_text(encoding="utf-8")
    assert ">Arabic</text>" in svg
    assert ">Japanese</text>" in svg
    again = figure1.run(Figure1Config(accuracies=path, output=tmp_path / "again", quiet=True))
    for one, two in zip(report.files, again.files, strict=True):
        assert one.read_bytes() == two.read_bytes()
