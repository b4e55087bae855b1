"""Windows: Context(s_c), the mask m, and the keys of sentences."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from ccpretrieve.data.windows import context, draw_contexts, same_window, sentence_keys


@pytest.mark.parametrize(
    ("center", "length", "radius", "expected"),
    [
        # { p : c - w <= p <= c + w, p != c } within 0 .. l - 1
        (3, 9, 2, [1, 2, 4, 5]),
        (0, 9, 2, [1, 2]),
        (8, 9, 2, [6, 7]),
        (1, 3, 5, [0, 2]),
        (0, 1, 2, []),
        (0, 2, 1, [1]),
    ],
)
def test_the_context_is_everything_within_the_radius_but_the_center(
    center, length, radius, expected
):
    assert context(center, length, radius) == expected


def test_drawn_contexts_are_different_and_of_the_context():
    generator = np.random.default_rng(0)
    for _ in range(200):
        drawn = draw_contexts(4, 10, 3, 4, generator)
        assert len(set(drawn)) == 4
        assert set(drawn) <= {1, 2, 3, 5, 6, 7}
    assert sorted(draw_contexts(0, 3, 5, 9, generator)) == [1, 2]  # there are no more


def test_every_position_of_the_context_is_drawn_as_often():
    generator = np.random.default_rng(1)
    counts = dict.fromkeys(context(5, 20, 2), 0)
    for _ in range(8000):
        counts[draw_contexts(5, 20, 2, 1, generator)[0]] += 1
    # 2000 each expected; the deviation is below 4 sigma = 4 sqrt(8000 / 4 * 3 / 4) = 155
    assert all(abs(count - 2000) < 155 for count in counts.values())


def test_the_mask_joins_different_sentences_of_one_window():
    mask = same_window(torch.tensor([0, 1, 0, 1, 2, 0]))
    pairs = {(c, i) for c, i in mask.nonzero().tolist()}
    assert pairs == {(0, 2), (2, 0), (0, 5), (5, 0), (2, 5), (5, 2), (1, 3), (3, 1)}


def test_keys_tell_sentences_apart_and_not_their_case_or_spacing():
    keys = sentence_keys(["One two", "one  TWO ", "one two three", ""])
    assert keys[0] == keys[1]
    assert len(set(keys.tolist())) == 3


def test_keys_are_the_same_in_every_process():
    program = (
        "from ccpretrieve.data.windows import sentence_keys; print(*sentence_keys(['a', 'ß']))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert [int(key) for key in said.split()] == sentence_keys(["a", "ß"]).tolist()
