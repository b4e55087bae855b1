"""The bank against plain lists, and that nothing leaks between languages or steps."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpretrieve.errors import UserError
from ccpretrieve.model.losses import ccp_loss
from ccpretrieve.model.memory_bank import MemoryBank, entering


def held(bank, language):
    """What a language sees, as a set of (key, vector): the order of the ring is not promised."""
    vectors, keys = bank.candidates(language)
    pairs = list(zip(keys.tolist(), map(tuple, vectors.tolist()), strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def numbered(first, n, width=2):
    """Rows that say which they are; the key is the number."""
    keys = torch.arange(first, first + n)
    return keys[:, None] + torch.arange(width) / 8, keys


def test_worked_example():
    # Size 4, batches of 3: after 0 1 2 and 3 4 5, the oldest two have left; after 6 7 8, five.
    bank = MemoryBank(4, 2)
    seen = []
    for first in (0, 3, 6):
        bank.enqueue("ja", *numbered(first, 3))
        seen.append(sorted(key for key, _ in held(bank, "ja")))
    assert seen == [[0, 1, 2], [2, 3, 4, 5], [5, 6, 7, 8]]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.sampled_from(["ja", "ko", "fi"]), st.integers(0, 16)), max_size=12),
    st.sampled_from(["language", "shared"]),
)
def test_holds_the_newest_of_each_language_whatever_the_batches(size, batches, kind):
    bank, lists, first = MemoryBank(size, 2, kind=kind), {}, 0
    for language, n in batches:
        z, keys = numbered(first, n)
        first += n
        bank.enqueue(language, z, keys)
        queue = lists.setdefault("" if kind == "shared" else language, [])
        queue += list(zip(keys.tolist(), map(tuple, z.tolist()), strict=True))
        del queue[:-size]
        for other in ("ja", "ko", "fi", "th"):
            assert held(bank, other) == set(lists.get("" if kind == "shared" else other, []))
    assert bank.counts() == {name: len(queue) for name, queue in sorted(lists.items()) if queue}


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.lists(st.integers(1, 8), max_size=6), st.integers(1, 8))
def test_a_loaded_bank_is_the_saved_one_to_the_bit_and_goes_on_like_it(size, batches, more):
    bank, first = MemoryBank(size, 2), 0
    for n in batches:
        bank.enqueue("ja", *numbered(first, n))
        first += n
    file = io.BytesIO()
    torch.save(bank.state_dict(), file)
    file.seek(0)
    other = MemoryBank(size, 2)
    other.enqueue("ko", *numbered(100, 1))  # forgotten on loading
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(2):
        for language in ("ja", "ko"):
            for ours, theirs in zip(
                bank.candidates(language), other.candidates(language), strict=True
            ):
                assert torch.equal(ours, theirs)  # in the same places: sums come out the same
        bank.enqueue("ja", *numbered(first, more))
        other.enqueue("ja", *numbered(first, more))


def test_a_young_bank_is_saved_without_its_empty_rows():
    bank = MemoryBank(100_000, 4)
    bank.enqueue("ja", *numbered(0, 3, width=4))
    file = io.BytesIO()
    torch.save(bank.state_dict(), file)
    assert file.tell() < 10_000


def test_a_loaded_bank_shares_no_memory_with_the_state():
    bank, other = MemoryBank(2, 2), MemoryBank(2, 2)
    bank.enqueue("ja", *numbered(0, 2))
    other.load_state_dict(bank.state_dict())
    bank.enqueue("ja", *numbered(5, 2))
    assert sorted(key for key, _ in held(other, "ja")) == [0, 1]


def test_other_settings_are_refused_on_loading():
    state = MemoryBank(4, 2).state_dict()
    for other in (
        MemoryBank(3, 2),
        MemoryBank(4, 3),
        MemoryBank(4, 2, kind="shared"),
        MemoryBank(4, 2, dtype=torch.bfloat16),
    ):
        with pytest.raises(UserError, match="the saved memory bank has .* resume with"):
            other.load_state_dict(state)


def test_an_unseen_language_and_no_bank_have_no_candidates():
    bank = MemoryBank(4, 2, kind="none")
    bank.enqueue("ja", *numbered(0, 3))
    for nothing in (bank, MemoryBank(4, 2), MemoryBank(0, 2)):
        vectors, keys = nothing.candidates("ja")
        assert (vectors.shape, keys.shape, keys.dtype) == ((0, 2), (0,), torch.int64)
        assert nothing.bytes() == 0
    MemoryBank(0, 2).enqueue("ja", *numbered(0, 3))  # keeps nothing, and does not fail


def test_memory_is_taken_on_first_use_and_not_copied_for_a_step():
    bank = MemoryBank(8, 4, dtype=torch.bfloat16)
    assert bank.bytes() == 0
    bank.enqueue("ja", *numbered(0, 5, width=4))
    assert bank.bytes() == 8 * 4 * 2 + 8 * 8  # vectors of two bytes, keys of eight
    where = bank.candidates("ja")[0].data_ptr()
    bank.enqueue("ja", *numbered(5, 6, width=4))
    assert bank.candidates("ja")[0].data_ptr() == where
    assert bank.bytes() == 8 * 4 * 2 + 8 * 8
    bank.enqueue("ko", *numbered(11, 1, width=4))
    assert bank.bytes() == 2 * (8 * 4 * 2 + 8 * 8)


def test_vectors_are_kept_in_the_banks_dtype():
    bank = MemoryBank(4, 1, dtype=torch.bfloat16)
    bank.enqueue("ja", torch.tensor([[1.00390625]]), torch.tensor([7]))  # 1 + 2^-8, a draw to 1
    vectors, keys = bank.candidates("ja")
    assert vectors.dtype == torch.bfloat16
    assert (vectors.item(), keys.item()) == (1.0, 7)


def test_keys_keep_all_sixty_four_bits():
    keys = torch.tensor([-(2**63), 2**63 - 1])
    bank = MemoryBank(2, 1)
    bank.enqueue("ja", torch.zeros(2, 1), keys)
    assert torch.equal(bank.candidates("ja")[1], keys)


def test_no_gradient_and_no_later_change_enters():
    z = torch.randn(3, 2, requires_grad=True)
    bank = MemoryBank(4, 2)
    bank.enqueue("ja", z, torch.arange(3))
    vectors, _ = bank.candidates("ja")
    assert not vectors.requires_grad
    before = vectors.clone()
    with torch.no_grad():
        z.add_(1)
    assert torch.equal(bank.candidates("ja")[0], before)


def test_enqueueing_between_loss_and_backward_is_an_error_and_not_a_wrong_gradient():
    bank = MemoryBank(4, 2)
    bank.enqueue("ja", *numbered(1, 4))
    z = torch.randn(2, 2, requires_grad=True)
    loss = ccp_loss(z, torch.zeros(2).long(), bank.candidates("ja")[0], temperature=0.1).loss
    bank.enqueue("ja", *numbered(9, 1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_enters_is_the_contexts_or_both_or_the_side_in_evaluation_mode():
    z_c, z_i = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])

    def values(which, step):
        return entering(which, z_c, z_i, step=step).flatten().tolist()

    for step in (0, 1):
        assert values("contexts", step) == [3, 4]
        assert values("both", step) == [1, 2, 3, 4]
    assert values("evaluated", 0) == [3, 4]  # centres are in training mode at even steps
    assert values("evaluated", 1) == [1, 2]
    keys = entering("both", torch.tensor([5, 6]), torch.tensor([7, 8]), step=0)
    assert keys.tolist() == [5, 6, 7, 8]
    with pytest.raises(UserError, match="did you mean 'contexts'"):
        entering("context", z_c, z_i, step=0)


def test_mistakes_are_named():
    with pytest.raises(UserError, match="did you mean 'shared'"):
        MemoryBank(4, 2, kind="share")
    for size, width in ((-1, 2), (4, 0)):
        with pytest.raises(ValueError, match="need size >= 0 and width >= 1"):
            MemoryBank(size, width)
    for z, keys in (
        (torch.zeros(3, 3), torch.arange(3)),
        (torch.zeros(3, 2), torch.arange(2)),
        (torch.zeros(2), torch.arange(2)),
    ):
        with pytest.raises(ValueError, match=r"expected \(B, 2\) vectors and \(B,\) keys"):
            MemoryBank(4, 2).enqueue("ja", z, keys)


@pytest.mark.parametrize(("kind", "rings"), [("language", 3), ("shared", 1), ("none", 0)])
def test_the_most_memory_is_that_of_all_languages_rings(kind, rings):
    bank = MemoryBank(5, 4, kind=kind, dtype=torch.bfloat16)
    for language in ("en", "fi", "ja"):
        bank.enqueue(language, *numbered(0, 2, width=4))
    # five rows of four numbers of 2 bytes, and a key of 8 bytes each
    assert bank.most_bytes(3) == bank.bytes() == rings * 5 * (4 * 2 + 8)
