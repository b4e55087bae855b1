"""DPR's batches: composed as by hand, every example once an epoch, resumable to the very batch."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from transformers import BatchEncoding

from ccpretrieve.data.example_order import ExampleOrder
from ccpretrieve.data.example_store import ExampleStore, passage_key, prepare
from ccpretrieve.data.examples import Example, ExampleSource
from ccpretrieve.data.inputs import Inputs
from ccpretrieve.data.question_batches import Choice, QuestionBatcher, compose
from ccpretrieve.data.records import Passage
from ccpretrieve.data.tokens import Tokens
from ccpretrieve.errors import UserError


class Listed(ExampleSource):
    """Examples of a list."""

    name = "listed"

    def __init__(self, examples):
        self.listed = examples

    def examples(self):
        for number, example in enumerate(self.listed, 1):
            yield example, f"listed:{number}"


class Letters:
    """In the place of Inputs: a letter is a token."""

    def questions(self, questions):
        return [Tokens([ord(letter) for letter in text]) for text in questions]

    def passages(self, passages):
        return [Tokens([ord(letter) for letter in each.text]) for each in passages]


def spelled(texts):
    return ["".join(map(chr, text.ids)) for text in texts]


def passages(*texts):
    return tuple(Passage("", text) for text in texts)


def numbered(number, language="", negatives=1):
    """Example ``q3`` with the positive ``p3`` and the negatives ``n3.0`` ..."""
    others = passages(*(f"n{number}.{i}" for i in range(negatives)))
    return Example(f"q{number}", passages(f"p{number}"), others, f"id{number}", language)


def stored(tmp_path, examples, negatives=8):
    path = tmp_path / "examples.jsonl"
    prepare([Listed(examples)], path, positives=None, negatives=negatives)
    return ExampleStore.open(path)


@pytest.fixture
def thirteen(tmp_path):
    return stored(tmp_path, [numbered(i, negatives=3) for i in range(13)])


def batcher(store, size=3, *, choice=None, inputs=None, **more):
    options = {"seed": 1, **more}
    inputs = inputs or Letters()
    return QuestionBatcher(store, inputs, batch_size=size, choice=choice or Choice(), **options)


def asked(drawn, count):
    """Numbers of the next so many examples, batch after batch."""
    numbers = []
    while len(numbers) < count:
        numbers += [int(name[2:]) for name in drawn.next().names]
    return numbers


# -- composition --


def test_a_batch_is_dprs_positive_and_hard_negatives_of_question_after_question():
    # DPR appends to one list, question by question: its positive, then its hard negatives, at most
    # two here; and notes at which place the positive went in.
    #   q0: 0 p0, 1 n0.0, 2 n0.1   (of three)     q1: 3 p1   (has none)     q2: 4 p2, 5 n2.0
    examples = [numbered(0, negatives=3), numbered(1, negatives=0), numbered(2, negatives=1)]
    choice = Choice(hard_negatives=2)
    batch = compose(examples, [choice(example) for example in examples], Letters())
    assert spelled(batch.questions) == ["q0", "q1", "q2"]
    assert spelled(batch.passages) == ["p0", "n0.0", "n0.1", "p1", "p2", "n2.0"]
    assert batch.targets.tolist() == [0, 3, 4]
    assert batch.targets.dtype == batch.keys.dtype == np.int64
    assert batch.names == ["id0", "id1", "id2"]
    assert batch.tokens == 3 * 2 + 3 * 2 + 3 * 4


@pytest.mark.parametrize("hard", [0, 1])
def test_a_full_batch_has_one_plus_h_passages_a_question(thirteen, hard):
    batch = batcher(thirteen, 5, choice=Choice(hard_negatives=hard)).next()
    assert len(batch.passages) == 5 * (1 + hard)
    assert batch.targets.tolist() == [row * (1 + hard) for row in range(5)]
    for question, target in zip(spelled(batch.questions), batch.targets, strict=True):
        assert spelled(batch.passages)[target] == question.replace("q", "p")


def test_keys_tell_copies_of_a_target_and_other_known_positives():
    # q0 is answered by A and B, q1 by B alone, q2 by a copy of A with another id; C answers none.
    a, b, c = passages("A", "B", "C")
    examples = [
        Example("q0", (a, b), (c,)),
        Example("q1", (b,), ()),
        Example("q2", (Passage("9", "A"),), ()),
    ]
    choice = Choice(hard_negatives=1)
    batch = compose(examples, [choice(example) for example in examples], Letters())
    assert spelled(batch.passages) == ["A", "C", "B", "A"]
    known = np.stack([np.isin(batch.keys, answering) for answering in batch.known])
    assert known.tolist() == [
        [True, False, True, True],
        [False, False, True, False],
        [True, False, False, True],
    ]
    assert batch.keys[1] == passage_key(c)
    assert all(known[row, target] for row, target in enumerate(batch.targets))


def test_a_batch_knows_its_language_if_it_has_but_one():
    def language(*codes):
        examples = [numbered(i, code) for i, code in enumerate(codes)]
        return compose(examples, [Choice()(each) for each in examples], Letters()).language

    assert language("ja", "ja") == "ja"
    assert language("ja", "ko") == ""


def test_an_example_without_an_id_is_named_by_its_question():
    example = Example("What is it? " * 10, passages("p"), ())
    batch = compose([example], [Choice()(example)], Letters())
    assert batch.names == [("What is it? " * 10)[:40]]


def test_random_choices_come_to_all_passages_and_first_ones_to_the_first(tmp_path):
    listed = [Example(f"q{i}", passages("a", "b", "c"), passages(*"uvwxyz")) for i in range(4)]
    listed = [Example(e.question, e.positives, e.negatives, f"id{i}") for i, e in enumerate(listed)]
    store = stored(tmp_path, listed)

    def drawn(positive, negative):
        choice = Choice(2, positive, negative)
        blocks = Counter()
        draws = batcher(store, 4, choice=choice)
        for _ in range(100):
            texts = spelled(draws.next().passages)
            blocks.update(tuple(texts[row : row + 3]) for row in range(0, 12, 3))
        return blocks

    assert drawn("first", "first") == {("a", "u", "v"): 400}
    positives = Counter()
    for (positive, *negatives), count in drawn("random", "first").items():
        assert negatives == ["u", "v"]
        positives[positive] += count
    # 400 draws of three: 133 each on average, standard deviation 9.4
    assert all(90 < positives[name] < 180 for name in "abc")
    pairs = drawn("first", "random")
    assert {positive for positive, *_ in pairs} == {"a"}
    assert all(one != other for _, one, other in pairs)
    assert {name for _, *pair in pairs for name in pair} == set("uvwxyz")


# -- order --


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_example_comes_once_an_epoch_over_all_processes(thirteen, size, processes):
    # 13 is divided by none of the batches but 1: the last one wraps into the next epoch
    ranks = [batcher(thirteen, size, rank=r, processes=processes) for r in range(processes)]
    epochs = 4
    together = []
    for _ in range(-(-13 * epochs // (size * processes))):
        for rank in ranks:
            together += asked(rank, size)
    orders = [together[13 * e : 13 * (e + 1)] for e in range(epochs)]
    assert all(sorted(order) == list(range(13)) for order in orders)
    assert len({tuple(order) for order in orders}) == epochs  # shuffled anew


def test_the_order_does_not_depend_on_how_many_processes_share_it(thirteen):
    choice = Choice(2, "random", "random")
    alone = batcher(thirteen, 6, choice=choice)
    pair = [batcher(thirteen, 3, choice=choice, rank=r, processes=2) for r in range(2)]
    for _ in range(6):
        whole, halves = alone.next(), [each.next() for each in pair]
        assert whole.names == halves[0].names + halves[1].names
        texts = [spelled(half.passages) for half in halves]
        assert spelled(whole.passages) == texts[0] + texts[1]


def test_seeds_differ_and_global_random_states_do_not_matter(thirteen):
    first = asked(batcher(thirteen, seed=1), 39)
    np.random.seed(7)  # noqa: NPY002 - that it does not matter is what is tested
    assert asked(batcher(thirteen, seed=1), 39) == first
    assert asked(batcher(thirteen, seed=2), 39) != first


def test_the_epoch_is_counted_over_all_processes(thirteen):
    drawn = batcher(thirteen, 2, rank=1, processes=2)
    assert (drawn.epoch, drawn.steps_per_epoch) == (0.0, 4)  # of four questions each, 13 in all
    drawn.next()
    assert drawn.epoch == pytest.approx(4 / 13)
    for _ in range(3):
        drawn.next()
    assert drawn.epoch == pytest.approx(16 / 13)


def mixed(tmp_path, **sizes):
    numbers = itertools.count()
    return stored(
        tmp_path, [numbered(next(numbers), code) for code, n in sizes.items() for _ in range(n)]
    )


def test_languages_come_by_their_smoothed_share(tmp_path):
    # n = 90 and 10, a = 0.5: p = 9.49 / (9.49 + 3.16) = 0.75 and 0.25; of 100 an epoch 75 and 25
    store = mixed(tmp_path, fi=90, ja=10)
    drawn = batcher(store, 20, language_exponent=0.5)
    epochs = [asked(drawn, 100) for _ in range(4)]
    for numbers in epochs:
        assert Counter(n < 90 for n in numbers) == {True: 75, False: 25}
    finnish = [n for n in itertools.chain(*epochs) if n < 90]
    for start in range(0, 270, 90):  # none comes again before all others have
        assert sorted(finnish[start : start + 90]) == list(range(90))
    japanese = Counter(n for n in itertools.chain(*epochs) if n >= 90)
    assert set(japanese.values()) == {10}  # 100 draws of ten
    alike = Counter(n < 90 for n in asked(batcher(store, 20, language_exponent=0), 100))
    assert alike == {True: 50, False: 50}


def test_batches_of_one_language_are_so_and_lose_no_example(tmp_path):
    # batches of 4 over both processes: 22 = 5 batches and 2, which wait for the next epoch
    store = mixed(tmp_path, fi=22, ja=9, ko=4)
    ranks = [batcher(store, 2, one_language=True, rank=r, processes=2) for r in range(2)]
    seen, languages = {"fi": [], "ja": [], "ko": []}, []
    while ranks[0].epoch < 4:
        batches = [rank.next() for rank in ranks]
        (code,) = {batch.language for batch in batches}
        seen[code] += [int(name[2:]) for batch in batches for name in batch.names]
        languages.append(code)
    # after four epochs: 88 // 4 = 22 batches, 36 // 4 = 9, 16 // 4 = 4
    assert Counter(languages) == {"fi": 22, "ja": 9, "ko": 4}
    assert languages[:9] != sorted(languages[:9])  # languages take turns
    for code, first, size in (("fi", 0, 22), ("ja", 22, 9), ("ko", 31, 4)):
        for start in range(0, 4 * size, size):
            assert sorted(seen[code][start : start + size]) == list(range(first, first + size))


def test_fewer_examples_than_a_batch_are_refused(tmp_path):
    store = mixed(tmp_path, fi=22, ja=3)
    batcher(store, 25)
    with pytest.raises(UserError, match="25 examples are fewer than a batch, 26 over all"):
        batcher(store, 13, processes=2)
    with pytest.raises(UserError, match="3 examples of language 'ja' are fewer than a batch"):
        batcher(store, 4, one_language=True)


@pytest.mark.parametrize("together", [1, 7, 48, 49, 50])
def test_no_batch_holds_an_example_twice_where_two_epochs_meet(together):
    order = ExampleOrder({"en": np.arange(50)}, together=together, seed=4)
    taken = [order.take() for _ in range(200 // together + 40)]
    assert all(len(set(batch)) == together for batch in taken)
    for epoch in range(4):  # and each is a permutation still
        drawn = [number for batch in taken for number in batch][epoch * 50 : epoch * 50 + 50]
        assert sorted(drawn) == list(range(50))
    if together < 49:  # a batch of all but one leaves no choice
        assert taken[0] != taken[50 // together]


def test_an_order_of_many_languages_stays_in_proportion_for_long():
    of_language = {f"l{i}": np.arange(i * 100, i * 100 + 10 + i) for i in range(12)}
    order = ExampleOrder(of_language, together=7, exponent=1.0, seed=3)
    counts = Counter(n for _ in range(50 * order.count // 7) for n in order.take())
    assert set(counts.values()) <= {49, 50}  # 50 epochs less a part of a batch
    assert order.epochs == pytest.approx(50, abs=7 / order.count)


# -- resuming --


def content(batch):
    return (
        spelled(batch.questions),
        spelled(batch.passages),
        batch.targets.tolist(),
        batch.keys.tolist(),
        [known.tolist() for known in batch.known],
        batch.language,
        batch.names,
    )


@pytest.mark.parametrize(
    "mixing",
    [{}, {"language_exponent": 0.3}, {"one_language": True, "language_exponent": 0.7}],
    ids=["as-it-comes", "smoothed", "one-language"],
)
def test_resumed_at_any_point_the_very_same_batches_come(tmp_path, mixing):
    numbers = itertools.count()
    listed = [
        numbered(next(numbers), code, negatives=5)
        for code, n in (("fi", 17), ("ja", 6))
        for _ in range(n)
    ]
    store = stored(tmp_path, listed)

    def start():
        choice = Choice(2, "random", "random")
        return batcher(store, 2, choice=choice, rank=1, processes=2, **mixing)

    whole = start()
    states, batches = [], []
    for _ in range(20):  # more than three epochs of 23
        states.append(json.dumps(whole.state_dict()))
        batches.append(content(whole.next()))
    states.append(json.dumps(whole.state_dict()))
    for point in range(20):
        resumed = start()
        resumed.load_state_dict(json.loads(states[point]))
        assert [content(resumed.next()) for _ in range(20 - point)] == batches[point:]
        assert json.dumps(resumed.state_dict()) == states[-1]  # counts too
        assert resumed.epoch == whole.epoch


def test_a_run_goes_on_with_its_own_examples_and_batches_only(tmp_path, thirteen):
    state = batcher(thirteen).state_dict()
    (tmp_path / "other").mkdir()
    other = stored(tmp_path / "other", [numbered(i) for i in range(13)])
    with pytest.raises(UserError, match="not the examples that this run began with"):
        batcher(other).load_state_dict(state)
    with pytest.raises(UserError, match="was 3 questions and is now 4"):
        batcher(thirteen, 2, processes=2).load_state_dict(state)


# -- tokens --

PASSAGES = [
    Passage("1", "a b c", "The Nile"),
    Passage("2", "x y z " * 60, "Helsinki"),
    Passage("3", "no title here"),
    Passage("4", "k l m", "The river Nile in Egypt " * 20),
]


def inputs_of(encoder, tokenizer):
    settings = encoder.settings
    return Inputs(
        tokenizer,
        settings.query_length,
        settings.passage_length,
        settings.query_prefix,
        settings.passage_prefix,
        settings.title,
        settings.strip_question_mark,
    )


@pytest.mark.parametrize("title", ["pair", "join", "drop"])
def test_passages_and_questions_are_tokenised_as_the_encoder_does(tiny_checkpoint, title):
    from transformers import AutoTokenizer

    from ccpretrieve.model.encoder import Encoder

    encoder = Encoder.load(tiny_checkpoint, title=title, strip_question_mark=True)
    inputs = inputs_of(encoder, AutoTokenizer.from_pretrained(tiny_checkpoint))
    theirs = list(encoder.tokenize_passages(PASSAGES))
    ours = inputs.passages(PASSAGES)
    assert [text.ids.tolist() for text in ours] == [tokens.ids.tolist() for tokens in theirs]
    assert [text.truncated for text in ours] == [tokens.truncated for tokens in theirs]
    assert [text.truncated for text in ours] == [False, True, False, title != "drop"]
    for question, seen in (("who? is it?", "query: who? is it"), ("誰？", "query: 誰？")):
        (text,) = inputs.questions([question])
        assert text.ids.tolist() == inputs.tokenizer(seen)["input_ids"]
    alike = [inputs.questions([question])[0].ids for question in ("a b?", "a b")]
    np.testing.assert_array_equal(*alike)
    np.testing.assert_array_equal(encoder.encode_queries(["a b?"]), encoder.encode_queries(["a b"]))


def slow_tokenizer(seen):
    """Of transformers' slow kind: a token a letter, and no word of what was cut."""

    def tokenizer(texts, *, max_length=None, **_):
        if isinstance(texts, str):
            return {"input_ids": [1] * len(texts)}
        seen.extend(texts)
        return BatchEncoding({"input_ids": [[1] * len(text[:max_length]) for text in texts]})

    return tokenizer


def test_a_question_loses_its_last_ascii_mark_only_if_asked():
    seen = []
    asking = ["who?", "who??", "who", "who? ", "誰？", "?", " ?"]
    inputs = Inputs(slow_tokenizer(seen), query_prefix="q: ", strip_question_mark=True)
    inputs.questions(asking)  # the last two would be left with nothing
    assert seen == ["q: who", "q: who?", "q: who", "q: who? ", "q: 誰？", "q: ?", "q:  ?"]
    seen.clear()
    Inputs(slow_tokenizer(seen)).questions(asking)
    assert seen == asking


def test_what_a_slow_tokenizer_cuts_is_counted_and_what_just_fits_is_not():
    texts = Inputs(slow_tokenizer([]), query_length=4).questions(["who", "who?", "whose", ""])
    assert [len(text.ids) for text in texts] == [3, 4, 4, 0]
    assert [text.truncated for text in texts] == [False, False, True, False]


def test_segment_ids_come_with_pairs_where_the_tokenizer_has_them(tmp_path):
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    inputs = Inputs(BertTokenizerFast(str(tmp_path / "vocab.txt")), passage_length=8)
    texts = inputs.passages([Passage("", "c d e", "a b"), Passage("", "f"), Passage("", "g", "a")])
    # [CLS] a b [SEP] c d e [SEP]; [CLS] f [SEP]; [CLS] a [SEP] g [SEP]
    assert [text.ids.tolist() for text in texts] == [
        [2, 5, 6, 3, 7, 8, 9, 3],
        [2, 10, 3],
        [2, 5, 3, 11, 3],
    ]
    types = [None if text.types is None else text.types.tolist() for text in texts]
    assert types == [[0, 0, 0, 0, 1, 1, 1, 1], None, [0, 0, 0, 1, 1]]
    assert not any(text.truncated for text in texts)
    assert inputs.passages([]) == []


def test_a_long_list_of_texts_keeps_its_order(tiny_checkpoint):
    # more than are tokenised by one call, with and without a title
    from transformers import AutoTokenizer

    inputs = Inputs(AutoTokenizer.from_pretrained(tiny_checkpoint))
    many = [Passage("", f"text {i}", f"T{i}" if i % 3 else "") for i in range(1300)]
    for text, passage in zip(inputs.passages(many), many, strict=True):
        (alone,) = inputs.passages([passage])
        np.testing.assert_array_equal(text.ids, alone.ids)


def test_what_was_cut_and_what_was_missing_is_counted(tmp_path, tiny_checkpoint):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    listed = [
        Example("a b c " * 30, passages("a"), passages("b " * 40, "c"), "id0"),
        Example("a", passages("a b c " * 30, "d"), passages("e"), "id1"),
        Example("b", passages("x"), (), "id2"),
    ]
    store = stored(tmp_path, listed)
    drawn = batcher(store, 3, choice=Choice(hard_negatives=2), inputs=Inputs(tokenizer, 16, 16))
    for times in (1, 2):
        assert max(len(text.ids) for text in drawn.next().passages) == 16
        # passages: 1 + 2, 1 + 1, 1; two of them are long
        assert drawn.counts == {
            "questions": 3 * times,
            "passages": 6 * times,
            "truncated_questions": times,
            "truncated_passages": 2 * times,
            "fewer_negatives": 2 * times,
        }
