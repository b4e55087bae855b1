"""Transforms planted in clouds: what they are, and what each step takes back."""

import numpy as np
import pytest

from benchmarks import planted
from benchmarks.planted import (
    BOTH,
    FACTOR,
    ROTATED,
    STRETCHED,
    PlantedConfig,
    plant,
    run,
    score,
)
from ccpretrieve.errors import UserError

COUNT, DIM = 300, 12


@pytest.fixture
def x():
    """Topics, a falling spectrum, and a mean far from zero."""
    draw = np.random.default_rng(0)
    topics = draw.normal(size=(20, DIM))
    rows = topics[draw.integers(20, size=COUNT)] + 0.7 * draw.normal(size=(COUNT, DIM))
    return (rows * np.arange(1, DIM + 1) ** -0.3 + 1).astype(np.float32)


def distances(rows):
    return np.linalg.norm(rows[:, None] - rows[None], axis=2)


def test_a_rotation_keeps_all_distances_but_for_the_factor(x):
    y, order = plant(x, ROTATED, 0, seed=3)
    assert sorted(order) == list(range(COUNT))
    np.testing.assert_allclose(distances(y), FACTOR * distances(x[order]), atol=1e-3)
    assert np.abs(y - x[order]).max() > 1


def test_stretching_keeps_every_dimension_to_itself(x):
    y, order = plant(x, STRETCHED, 0, seed=3)
    correlation = np.corrcoef(x[order].T, y.T)[:DIM, DIM:]
    np.testing.assert_allclose(np.diag(correlation), 1, atol=1e-5)
    spread = y.std(axis=0) / x.std(axis=0)
    assert spread.max() / spread.min() > 2


def test_noise_is_a_share_of_the_length(x):
    clean, order = plant(x, STRETCHED, 0, seed=3)
    noisy, _ = plant(x, STRETCHED, 0.2, seed=3)
    # Noise is drawn even if it has no length, so one seed plants one transform and order.
    stretch = clean.std(axis=0) / x.std(axis=0)
    noise = (noisy - clean) / stretch
    lengths = np.linalg.norm(noise, axis=1).mean() / np.linalg.norm(x, axis=1).mean()
    assert lengths == pytest.approx(0.2, rel=0.1)
    assert len(order) == COUNT


def test_each_planted_transform_is_taken_back_by_what_is_made_for_it(x):
    reached, kept = score(x, *plant(x, ROTATED, 0, seed=1), 1)
    assert reached["shift, rotate"] == 1
    assert reached["shift"] < 0.2
    assert kept >= 1
    reached, _ = score(x, *plant(x, STRETCHED, 0, seed=1), 1)
    assert reached["shift, scale"] == 1
    assert reached["raw"] < 1
    reached, _ = score(x, *plant(x, BOTH, 0, seed=1), 1)
    assert reached["shift, scale"] < 0.2


def test_where_no_turn_is_needed_none_is_counted(x):
    reached, turned = score(x, *plant(x, STRETCHED, 0, seed=1), 1)
    assert reached["all"] == 1
    assert turned <= 1  # after the scale the clouds lie over one another


@pytest.fixture
def config(tmp_path, tiny_checkpoint):
    lines = [f"The {a} of the {b}." for a in ("Nile", "sea", "day") for b in ("x", "y", "z")]
    (tmp_path / "en.txt").write_text("\n".join(lines) + "\n")
    return {"texts": str(tmp_path), "encoder": str(tiny_checkpoint), "noise": (0.1,)}


def test_the_table_has_a_row_for_each_transform_and_noise(config, monkeypatch):
    asked = []

    def scored(x, y, order, seed):
        asked.append((x.shape, y.shape, sorted(order), seed))
        return dict.fromkeys(planted.CHAINS, seed / 10), 1

    monkeypatch.setattr(planted, "score", scored)
    table = run(PlantedConfig(**config | {"noise": (0.0, 0.1)}, rows=9, seeds=(1, 2)))
    rows = [line.split() for line in table.splitlines() if line.split()[:1] and "/" in line]
    assert [row[:2] for row in rows] == [[kind, n] for kind in planted.KINDS for n in ("0", "0.1")]
    # seeds 1 and 2 give shares of 0.1 and 0.2; one turn each, of the two chains that rotate
    assert {tuple(row[2:]) for row in rows} == {(*["10.0/20.0"] * 5, "2", "of", "4")}
    assert [seed for *_, seed in asked] == [1, 2] * 6
    assert all(x == y and order == list(range(9)) for x, y, order, _ in asked)


def test_too_few_sentences_and_noise_below_zero_are_refused(config):
    with pytest.raises(UserError, match="has 9 sentences of en; lower --rows"):
        run(PlantedConfig(**config, rows=10))
    with pytest.raises(UserError, match="--noise must be 0 or more, got -1"):
        PlantedConfig(**config | {"noise": (-1.0,)})
