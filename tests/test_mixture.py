"""Shuffled windows of several languages: nothing lost, nothing twice, resumable to the sample."""

import itertools
import json

import pytest

from ccpretrieve.data.cleaning import Cleaner, CleaningRules
from ccpretrieve.data.documents import Document, DocumentSource
from ccpretrieve.data.mixture import LanguageDraw, Sampling, WindowStream, smoothed
from ccpretrieve.data.windows import context
from ccpretrieve.errors import UserError


class Listed(DocumentSource):
    """Documents of a list, of so many sentences each."""

    def __init__(self, lengths, language="en"):
        self.language = language
        self.weight = sum(lengths)
        self.lengths = lengths

    def documents(self, state=None, *, shard=0, shards=1):
        start = 0 if state is None else state["next"]
        for number in range(start, len(self.lengths)):
            if number % shards == shard:
                sentences = tuple(
                    f"This is sentence {letters(s)} of document {letters(number)}."
                    for s in range(self.lengths[number])
                )
                made = Document(f"d{number}", self.language, sentences=sentences)
                yield made, {"next": number + 1}


def letters(number):
    """A number in letters, as cleaning folds digits."""
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


def stream(lengths, *, seed=0, shard=0, shards=1, **sampling):
    cleaner = Cleaner("en", CleaningRules())
    how = Sampling(**{"pool": 8, **sampling})
    return WindowStream(Listed(lengths), cleaner, how, seed=seed, shard=shard, shards=shards)


def place(sentence):
    """Document and position of a sentence of ``Listed``."""
    words = sentence.rstrip(".").split()
    number = {letter: digit for digit, letter in enumerate("abcdefghij")}
    digits = ["".join(str(number[letter]) for letter in words[at]) for at in (3, 6)]
    return int(digits[1]), int(digits[0])


LENGTHS = [5, 3, 12, 2, 7, 4, 1, 9, 3, 6, 2, 2, 8]


def test_every_sentence_is_the_center_once_in_a_pass():
    # the document of one sentence has no window
    expected = sorted((d, s) for d, n in enumerate(LENGTHS) if n > 1 for s in range(n))
    for pool in (1, 4, 100):  # one document after another; several; all at once
        drawn = stream(LENGTHS, pool=pool)
        centers = [place(drawn.take(1)[0].center) for _ in range(2 * len(expected))]
        assert sorted(centers[: len(expected)]) == expected
        assert sorted(centers) == sorted(2 * expected)
        assert drawn.passes == 1


def test_the_context_is_drawn_from_the_center_s_own_document():
    for window in stream(LENGTHS, radius=2, contexts=3).take(200):
        document, center = place(window.center)
        around = [place(sentence) for sentence in window.contexts]
        assert window.document == f"d{document}"
        assert {d for d, _ in around} == {document}
        assert {s for _, s in around} <= set(context(center, LENGTHS[document], 2))
        assert 1 <= len(around) == len(set(around)) <= 3


def test_a_batch_is_of_different_documents_while_there_are_enough():
    drawn = stream([9] * 30, pool=8)
    for _ in range(20):
        assert len({window.document for window in drawn.take(8)}) == 8
    few = stream([9] * 3, pool=8).take(6)  # three documents for six windows
    assert sorted(w.document for w in few) == ["d0", "d0", "d1", "d1", "d2", "d2"]
    assert len({window.center for window in few}) == 6


def test_few_documents_are_not_read_again_while_they_have_sentences_left():
    drawn = stream([9] * 3, pool=512)
    drawn.take(6)  # more than there are documents
    drawn.take(6)
    assert drawn.passes == 0
    assert len(drawn.state_dict()["pool"]) == 3
    alone = stream([9], pool=512, positive="random")  # another document is asked for, and none is
    alone.take(4)
    assert alone.passes == 0


def test_the_controls_draw_what_they_say():
    for window in stream(LENGTHS, positive="same").take(50):
        assert window.contexts == (window.center,)
    for window in stream(LENGTHS, positive="random").take(50):
        assert place(window.contexts[0])[0] != place(window.center)[0]


@pytest.mark.parametrize("taken", [0, 1, 7, 100, 333])
def test_a_stream_goes_on_at_the_very_sample(taken):
    whole = stream(LENGTHS, pool=4)
    whole.take(taken)
    state = json.loads(json.dumps(whole.state_dict()))
    rest = whole.take(150)
    resumed = stream(LENGTHS, pool=4)
    resumed.load_state_dict(state)
    assert resumed.take(150) == rest
    assert resumed.state_dict() == whole.state_dict()


def test_processes_share_the_documents():
    documents = [
        {window.document for window in stream(LENGTHS, shard=shard, shards=3).take(300)}
        for shard in range(3)
    ]
    for one, two in itertools.combinations(documents, 2):
        assert not one & two
    assert set.union(*documents) == {f"d{n}" for n, length in enumerate(LENGTHS) if length > 1}


def test_another_seed_is_another_order():
    assert stream(LENGTHS, seed=1).take(9) != stream(LENGTHS, seed=2).take(9)
    assert stream(LENGTHS, seed=1).take(9) == stream(LENGTHS, seed=1).take(9)


def test_a_process_without_any_pair_says_that_it_is_its_part_which_has_none():
    dealt = [9, 1] * 3  # all documents of two sentences are dealt to the first
    assert len(stream(dealt, shard=0, shards=2).take(5)) == 5
    with pytest.raises(UserError, match=r"no document in part 2 of 2 has .*fewer processes$"):
        stream(dealt, shard=1, shards=2).take(5)


def test_a_language_without_any_pair_is_an_error():
    with pytest.raises(UserError, match=r"^en: no document has two sentences left"):
        stream([1, 1, 0, 1]).take(1)


def test_small_languages_come_more_often_than_their_share():
    # p = n^0.3 / sum: 10000^0.3 = 15.849, 10^0.3 = 1.9953
    drawn = smoothed({"en": 10_000, "sw": 10}, 0.3)
    assert drawn["en"] == pytest.approx(15.849 / (15.849 + 1.9953), abs=1e-4)
    assert smoothed({"en": 30, "sw": 10}, 1.0) == {"en": 0.75, "sw": 0.25}
    assert smoothed({"en": 30, "sw": 10}, 0.0) == {"en": 0.5, "sw": 0.5}


def test_languages_are_drawn_with_their_probability():
    draw = LanguageDraw({"en": 0.7, "sw": 0.3}, seed=0)
    share = sum(draw() == "en" for _ in range(4000)) / 4000
    assert abs(share - 0.7) < 0.03  # 4 sigma = 4 sqrt(0.21 / 4000) = 0.029


class Changing(Listed):
    """Documents whose content is said to be what ``read`` and ``whole`` say."""

    read, whole = "r", "w"

    def content(self, state=None):
        return self.whole if state is None else f"{self.read}{state['next']}"


def changing(read="r", whole="w"):
    source = Changing(LENGTHS)
    source.read, source.whole = read, whole
    return WindowStream(source, Cleaner("en", CleaningRules()), Sampling(pool=4), seed=0)


def resumed(begun, then):
    """A stream that goes on from another, after the check of what its documents say."""
    then.load_state_dict(begun.state_dict())
    then.check(begun.content(begun.state_dict()))
    return then.take(3)


def test_a_stream_goes_on_while_what_was_read_is_the_same(caplog):
    begun = changing()
    begun.take(2)
    assert len(resumed(begun, changing())) == 3
    assert not caplog.records
    assert len(resumed(begun, changing(whole="other"))) == 3
    assert caplog.messages == [
        "en: documents that were not read yet have changed; they are read as they are now"
    ]
    with pytest.raises(UserError, match="en: documents that were read already are not what they"):
        resumed(begun, changing(read="other"))


def test_after_a_pass_everything_was_read():
    begun = changing()
    begun.take(200)
    assert begun.passes > 0
    with pytest.raises(UserError, match="documents that were read already"):
        resumed(begun, changing(whole="other"))


def test_before_the_first_document_nothing_was_read():
    assert len(resumed(changing(), changing(read="other", whole="other"))) == 3
