"""One-language batches and the masks of masked language modelling."""

import json

import numpy as np
import pytest
from transformers import AutoTokenizer

from ccpretrieve.data.batches import LONGEST_WORD, Batcher, Masking, mask_tokens
from ccpretrieve.data.cleaning import Cleaner, CleaningRules
from ccpretrieve.data.mixture import LanguageDraw, Sampling, WindowStream
from ccpretrieve.data.windows import Window, sentence_keys
from ccpretrieve.errors import UserError

from .test_mixture import Listed


def batcher(checkpoint, *, seed=0, share=0.5, windows=4, length=24, contexts=1):
    streams = {
        name: WindowStream(
            Listed([6, 4, 9, 5, 3, 8], name),
            Cleaner(name, CleaningRules()),
            Sampling(pool=4, contexts=contexts),
            seed=seed,
        )
        for name in ("en", "fi")
    }
    return Batcher(
        streams,
        LanguageDraw({"en": 0.5, "fi": 0.5}, seed),
        AutoTokenizer.from_pretrained(checkpoint),
        windows=windows,
        length=length,
        prefix="query: ",
        masking=Masking(share),
        seed=seed,
    )


def test_a_batch_is_of_one_language_centers_first(tiny_checkpoint):
    made = batcher(tiny_checkpoint, share=0.0, contexts=2).next()
    assert made.task == "ccp"
    assert made.labels is None
    assert made.centers == 4
    assert made.windows[:4].tolist() == [0, 1, 2, 3]
    assert made.windows[4:].tolist() == sorted(made.windows[4:].tolist())
    assert set(made.windows[4:].tolist()) == {0, 1, 2, 3}
    assert made.ids.shape == made.attention.shape
    assert len(made.keys) == len(made.ids)
    assert made.tokens == made.attention.sum()


def test_a_batch_holds_the_sentences_behind_the_prefix(tiny_checkpoint):
    makes = batcher(tiny_checkpoint, length=64)
    window = Window("d", "The Nile flows north.", ("Москва является столицей.",))
    made = makes.collate("en", "ccp", [window])
    texts = makes.tokenizer.batch_decode(made.ids, skip_special_tokens=True)
    assert texts == ["query: The Nile flows north.", "query: Москва является столицей."]
    assert made.keys.tolist() == sentence_keys([window.center, *window.contexts]).tolist()
    assert makes.truncated == 0


def test_what_was_cut_is_counted(tiny_checkpoint):
    length = len(AutoTokenizer.from_pretrained(tiny_checkpoint)("query: a a")["input_ids"])
    makes = batcher(tiny_checkpoint, length=length)
    made = makes.collate("en", "ccp", [Window("d", "a b c d e f g h i j", ("a a",))])
    assert made.lengths == [length, length]
    assert makes.truncated == 1  # the second is as long as may be, and whole


def test_tasks_are_drawn_with_their_share(tiny_checkpoint):
    makes = batcher(tiny_checkpoint, share=0.25, windows=2)
    tasks = [makes.next().task for _ in range(400)]
    assert abs(tasks.count("mlm") / 400 - 0.25) < 0.09  # 4 sigma = 0.087


def test_batches_go_on_at_the_very_sample(tiny_checkpoint):
    whole = batcher(tiny_checkpoint)
    for _ in range(9):
        whole.next()
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = batcher(tiny_checkpoint)
    resumed.load_state_dict(state)
    for _ in range(12):
        expected, made = whole.next(), resumed.next()
        assert (made.task, made.language) == (expected.task, expected.language)
        np.testing.assert_array_equal(made.ids, expected.ids)
        np.testing.assert_array_equal(made.keys, expected.keys)
        if expected.labels is not None:
            np.testing.assert_array_equal(made.labels, expected.labels)


MASK, ORDINARY = 4, np.arange(5, 1000)


def masked(ids, special, words=None, probability=0.15, seed=0):
    return mask_tokens(
        ids,
        special,
        words,
        probability=probability,
        mask_id=MASK,
        ordinary=ORDINARY,
        generator=np.random.default_rng(seed),
    )


def test_of_the_picked_tokens_most_are_masked_some_replaced_some_kept():
    ids = np.full((200, 100), 7)
    changed, labels = masked(ids, np.zeros_like(ids, dtype=bool))
    picked = labels != -100
    assert abs(picked.mean() - 0.15) < 0.011  # 4 sigma = 4 sqrt(0.1275 / 20000) = 0.0101
    fate = changed[picked]
    count = picked.sum()
    # 4 sigma of a share of 3000: 0.8 +- 0.03, 0.1 +- 0.022
    assert abs((fate == MASK).mean() - 0.8) < 0.03
    assert abs(((fate != MASK) & (fate != 7)).mean() - 0.1) < 0.022
    assert abs((fate == 7).mean() - 0.1) < 0.022
    assert count > 2000
    assert (changed[~picked] == 7).all()
    assert (labels[picked] == 7).all()
    assert (ids == 7).all()


def test_special_tokens_and_padding_are_never_masked():
    ids = np.arange(40).reshape(2, 20)
    special = ids % 3 == 0
    changed, labels = masked(ids, special, probability=1.0)
    assert (labels[special] == -100).all()
    assert (changed[special] == ids[special]).all()
    assert (labels[~special] == ids[~special]).all()


def test_a_batch_never_has_nothing_to_find():
    ids = np.array([[0, 9, 2]])
    _, labels = masked(ids, np.array([[True, False, True]]), probability=0.0)
    assert labels.tolist() == [[-100, 9, -100]]
    _, labels = masked(ids, np.ones((1, 3), bool), probability=0.5)
    assert labels.tolist() == [[-100, -100, -100]]  # unless there is nothing


def test_whole_words_are_masked_together_unless_they_are_too_long():
    row = [-1, 0, 0, 0, 1, 2, 2, *([3] * (LONGEST_WORD + 1)), -1]
    words = np.array([row])
    ids = np.arange(10, 10 + len(row))[None]
    special = words < 0
    split = False
    for seed in range(60):
        _, labels = masked(ids, special, words, probability=0.4, seed=seed)
        picked = (labels != -100)[0]
        if picked.sum() > 1:  # one alone is what is picked when nothing is
            assert len(set(picked[1:4].tolist())) == 1
            assert len(set(picked[5:7].tolist())) == 1
        split |= len(set(picked[7:-1].tolist())) == 2
    assert split


def test_the_pieces_of_a_word_are_one_word_to_the_tokenizer(tiny_checkpoint):
    makes = batcher(tiny_checkpoint, share=1.0, length=64)
    encoded = makes.tokenizer(["Mediterranean Sea"], return_tensors="np")
    numbers = makes._words(encoded, encoded["input_ids"].shape)[0].tolist()
    assert numbers[0] == numbers[-1] == -1
    inside = numbers[1:-1]
    assert inside == sorted(inside)
    assert set(inside) == {0, 1}
    assert inside.count(0) > 1


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_masked_batch_has_its_answers(tiny_checkpoint, whole_words):
    makes = batcher(tiny_checkpoint, share=1.0)
    makes.masking = Masking(1.0, 0.3, whole_words)
    made = makes.next()
    assert made.task == "mlm"
    assert made.labels.shape == made.ids.shape
    picked = made.labels != -100
    assert picked.any()
    special = [makes.tokenizer.cls_token_id, makes.tokenizer.pad_token_id]
    assert not np.isin(made.labels[picked], special).any()
    assert (made.attention[picked] == 1).all()


def same(one, two):
    return one.task == two.task and np.array_equal(one.ids, two.ids)


def test_batches_drawn_ahead_are_those_that_would_have_come(tiny_checkpoint):
    plain, ahead = batcher(tiny_checkpoint), batcher(tiny_checkpoint)
    for count in (1, 3):
        ahead.draw_ahead(count)
        for _ in range(count):
            assert same(plain.next(), ahead.next())
        assert ahead.state_dict() == plain.state_dict()


def test_what_was_drawn_and_not_taken_comes_again_from_the_state(tiny_checkpoint):
    drawn, resumed = batcher(tiny_checkpoint), batcher(tiny_checkpoint)
    drawn.next()
    drawn.draw_ahead(3)
    first = drawn.next()
    resumed.load_state_dict(json.loads(json.dumps(drawn.state_dict())))
    assert same(resumed.next(), first)


def test_the_state_after_a_draw_that_failed_is_the_one_before_it(tiny_checkpoint, monkeypatch):
    drawn, resumed, whole = (batcher(tiny_checkpoint) for _ in range(3))
    for made in (drawn, whole):
        made.next()
    honest = WindowStream.take
    takes = iter([True, True, False])

    def take(self, count):
        windows = honest(self, count)
        if not next(takes):
            raise UserError("a broken line")
        return windows

    with monkeypatch.context() as patch:
        patch.setattr(WindowStream, "take", take)
        with pytest.raises(UserError, match="a broken line"):
            drawn.draw_ahead(4)
    resumed.load_state_dict(json.loads(json.dumps(drawn.state_dict())))
    for _ in range(6):
        assert same(resumed.next(), whole.next())
