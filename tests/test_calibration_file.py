"""A calibration on disk: what comes back, what is refused, which language is which."""

import numpy as np
import pytest

from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration_file import Calibration, Spread


def test_worked_example():
    # Rows (1, 10) and (3, 30): mu = (2, 20); sigma = (1, 10), the root of the mean of 1 + 1 and of
    # 100 + 100 over 2. A quarter turn W = [[0, 1], [-1, 0]] takes (x, y) to (-y, x).
    x = np.array([[1, 10], [3, 30]], dtype=np.float32)
    before = x.copy()
    shifted = Spread.fit(x, scale=False)
    assert shifted.transform(x).tolist() == [[-1, -10], [1, 10]]
    scaled = Spread.fit(x)
    assert scaled.transform(x).tolist() == [[-1, -1], [1, 1]]
    turn = np.array([[0, 1], [-1, 0]], dtype=np.float32)
    turned = Spread(scaled.mean, scaled.scale, turn)
    assert turned.transform(x).tolist() == [[1, -1], [-1, 1]]
    assert np.array_equal(x, before)


def test_a_dead_dimension_is_left_at_zero_and_gives_no_nan():
    x = np.array([[1, 5], [2, 5]], dtype=np.float32)
    assert Spread.fit(x).transform(x)[:, 1].tolist() == [0, 0]


def test_names_the_first_bad_embedding():
    x = np.ones((3, 2), dtype=np.float32)
    x[1, 0] = np.nan
    with pytest.raises(ValueError, match="embedding 1 of 3 holds a NaN"):
        Spread.fit(x)
    with pytest.raises(ValueError, match="N > 1"):
        Spread.fit(x[:1])


def test_a_file_gives_back_what_was_saved(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    saved = Calibration(
        {"ja": Spread.fit(x), "fi": Spread.fit(x, scale=False)},
        {"steps": ["shift"], "languages": {"ja": {"texts": 50}}},
    )
    saved.save(tmp_path / "c.safetensors")
    read = Calibration.load(tmp_path / "c.safetensors")
    assert read.notes == {"steps": ["shift"], "languages": {"ja": {"texts": 50}}}
    for language in ("ja", "fi"):
        np.testing.assert_array_equal(
            read.transform(x, language), saved.languages[language].transform(x)
        )
    assert len(read.fingerprint()) == 64


def test_mistakes_are_one_line(tmp_path):
    x = np.ones((2, 4), dtype=np.float32)
    (tmp_path / "c").write_text("no safetensors")
    with pytest.raises(UserError, match="not a calibration file"):
        Calibration.load(tmp_path / "c")
    with pytest.raises(UserError, match="not a calibration file"):
        Calibration.load(tmp_path / "absent")
    calibration = Calibration({"ja": Spread.fit(x)})
    with pytest.raises(UserError, match="unknown language 'jp'; did you mean 'ja'|allowed: ja"):
        calibration.transform(x, "jp")
    with pytest.raises(UserError, match="give --lang"):
        calibration.transform(x, "")
    with pytest.raises(UserError, match="another width"):
        calibration.transform(x[:, :3], "ja")


def test_a_file_of_other_tensors_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"ja.median": np.ones(3)}, tmp_path / "c")
    with pytest.raises(UserError, match="no mean, scale or rotation"):
        Calibration.load(tmp_path / "c")


ONES = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"ja.mean": np.ones(1, np.float32), "fi.mean": ONES}, r"fi\.mean is of shape \(4,\)"),
        ({"ja.mean": ONES[None], "ja.scale": ONES}, r"ja\.mean is of shape \(1, 4\)"),
        ({"ja.mean": np.array(1, np.float32)}, r"ja\.mean is of shape \(\)"),
        ({"ja.scale": ONES, "ja.mean": np.ones(7, np.float32)}, r"ja\.mean is of shape \(7,\)"),
        ({"ja.rotation": np.eye(4, 3, dtype=np.float32)}, r"ja\.rotation is of shape \(4, 3\)"),
        ({"ja.rotation": np.zeros((4, 4), np.float32)}, "no orthogonal map"),
        ({"ja.mean": ONES * np.nan}, "no number"),
        ({"ja.mean": np.ones(4, np.int64)}, "no number"),
        ({"ja.scale": ONES * 0}, "not positive"),
        ({"ja.scale": -ONES}, "not positive"),
    ],
)
def test_statistics_that_cannot_be_applied_are_refused(tmp_path, tensors, message):
    from safetensors.numpy import save_file

    save_file(tensors, tmp_path / "c")
    with pytest.raises(UserError, match=message):
        Calibration.load(tmp_path / "c")


def test_a_mean_of_one_number_is_not_spread_over_all_dimensions(tmp_path):
    Calibration({"ja": Spread(np.ones(1, np.float32))}).save(tmp_path / "c")
    with pytest.raises(UserError, match="another width"):
        Calibration.load(tmp_path / "c").transform(np.ones((2, 4), np.float32), "ja")


@pytest.mark.parametrize("notes", [[1], None, {"encoder": 1}, {"encoder": {"name": "e"}}])
def test_damaged_notes_are_refused(tmp_path, notes):
    Calibration({"ja": Spread(ONES)}, notes).save(tmp_path / "c")
    with pytest.raises(UserError, match="its notes are damaged"):
        Calibration.load(tmp_path / "c")


def test_rows_of_several_languages_are_each_calibrated_as_their_own():
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    calibration = Calibration({"ja": Spread.fit(x), "fi": Spread.fit(2 * x + 1)})
    mixed = ["ja", "fi", "fi", "ja", "fi", "ja"]
    together = calibration.transform(x, mixed)
    for row, language in enumerate(mixed):
        alone = calibration.transform(x[row : row + 1], language)
        np.testing.assert_array_equal(together[row : row + 1], alone)
