"""The loss against Algorithm 1, lines 13-15, read aloud in plain floats, and worked by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpretrieve.errors import UserError
from ccpretrieve.model.losses import ccp_loss, mlm_loss, same_sentence

WINDOWS = [0, 0, 1, 1, 1, 2]  # the last sentence has no partner
NO_BANK = torch.empty(0, 2)


def algorithm_1(z, windows, bank, tau, *, l2=True, mask=False, ignored=None):
    """Every pair's loss, rank and number of candidates: nothing is shared with the code."""
    everything = z.tolist() + bank.tolist()

    def score(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / (math.hypot(*a) * math.hypot(*b)) / tau if l2 else dot / tau

    losses, wins, candidates = [], [], []
    for c in range(len(windows)):
        for i in range(len(windows)):
            if c == i or windows[c] != windows[i]:
                continue
            terms, beaten = [], True
            for k in range(len(everything)):
                if k == c:
                    continue
                positive_of_c = k < len(windows) and windows[k] == windows[c]
                out = (mask and positive_of_c) or (ignored is not None and bool(ignored[c][k]))
                if out and k != i:
                    continue
                terms.append(score(everything[c], everything[k]))
                if not positive_of_c:
                    beaten = beaten and score(everything[c], everything[i]) > terms[-1]
            top = max(terms)
            total = sum(math.exp(term - top) for term in terms)
            losses.append(math.log(total) + top - score(everything[c], everything[i]))
            wins.append(beaten)
            candidates.append(len(terms))
    return losses, sum(wins) / len(wins), sum(candidates) / len(candidates)


def randoms(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize("window_positives", ["keep", "mask"])
@pytest.mark.parametrize("some_ignored", [False, True])
@pytest.mark.parametrize("temperature", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("bank_size", [0, 1, 7])
def test_agrees_with_algorithm_1(bank_size, temperature, some_ignored, window_positives, l2):
    z, bank = randoms(6, 4, seed=0), randoms(bank_size, 4, seed=1)
    ignored = randoms(6, 6 + bank_size, seed=2) > 0.5 if some_ignored else None
    losses, accuracy, candidates = algorithm_1(
        z,
        WINDOWS,
        bank,
        temperature,
        l2=l2,
        mask=window_positives == "mask",
        ignored=None if ignored is None else ignored.tolist(),
    )
    for reduction, expected in (("mean", sum(losses) / len(losses)), ("sum", sum(losses))):
        ours = ccp_loss(
            z,
            torch.tensor(WINDOWS),
            bank,
            temperature=temperature,
            l2=l2,
            reduction=reduction,
            window_positives=window_positives,
            ignored=ignored,
        )
        assert ours.per_pair.tolist() == pytest.approx(losses, rel=1e-9, abs=1e-9)
        assert ours.loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert ours.accuracy.item() == pytest.approx(accuracy)
        assert ours.candidates == pytest.approx(candidates)


def test_worked_example():
    # Two orthogonal windows of two identical sentences, tau = 1, no bank. From any sentence the
    # three others have cosine 1, 0, 0, so each pair costs log((e + 1 + 1) / e) = 0.5514.
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = ccp_loss(z, torch.tensor([0, 0, 1, 1]), NO_BANK, temperature=1.0)
    assert found.loss.item() == pytest.approx(0.5514, abs=5e-5)
    assert found.per_pair.shape == (4,)
    assert (found.accuracy.item(), found.candidates) == (1.0, 3.0)
    # A bank of one vector at cosine -1 to the first window and 0 to the second:
    # log((e + 2 + 1/e) / e) = 0.6265 twice and log((e + 3) / e) = 0.7437 twice; mean 0.6851.
    bank = torch.tensor([[-2.0, 0.0]])
    found = ccp_loss(z, torch.tensor([0, 0, 1, 1]), bank, temperature=1.0)
    assert found.loss.item() == pytest.approx(0.6851, abs=5e-5)
    assert found.candidates == 4.0


def test_other_positives_stay_or_leave():
    # One window of three identical vectors, nothing else: each of c's two candidates scores the
    # same, log 2; without the other positive only i itself is left, log 1.
    z, windows = torch.ones(3, 2), torch.zeros(3).long()
    keep = ccp_loss(z, windows, NO_BANK, temperature=0.1)
    mask = ccp_loss(z, windows, NO_BANK, temperature=0.1, window_positives="mask")
    assert keep.loss.item() == pytest.approx(math.log(2))
    assert mask.loss.item() == pytest.approx(0, abs=1e-6)
    assert (keep.candidates, mask.candidates) == (2.0, 1.0)


def test_an_ignored_positive_still_counts_for_its_own_pair():
    # As above; for row 0 candidate 1 is ignored: it leaves (0, 2), log 1, and stays in (0, 1).
    ignored = torch.zeros(3, 3).bool()
    ignored[0, 1] = True
    z = torch.ones(3, 2)
    found = ccp_loss(z, torch.zeros(3).long(), NO_BANK, temperature=0.1, ignored=ignored)
    two = math.log(2)
    assert found.per_pair.tolist() == pytest.approx([two, 0, two, two, two, two], abs=1e-6)


def test_a_draw_with_a_negative_is_not_won():
    z, windows = torch.ones(3, 2), torch.tensor([0, 0, 1])
    assert ccp_loss(z, windows, NO_BANK, temperature=1.0).accuracy.item() == 0


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=8).filter(lambda w: len(set(w)) < len(w)),
    st.integers(0, 6),
    st.integers(0, 1000),
)
def test_neither_length_nor_order_of_bank_and_batch_changes_the_loss(windows, bank_size, seed):
    z, bank = randoms(len(windows), 3, seed=seed), randoms(bank_size, 3, seed=seed + 1)
    ids = torch.tensor(windows)
    loss = ccp_loss(z, ids, bank, temperature=0.1).loss
    generator = torch.Generator().manual_seed(seed)
    batch_order = torch.randperm(len(z), generator=generator)
    bank_order = torch.randperm(bank_size, generator=generator)
    lengths = torch.rand(len(z), 1, generator=generator).double() + 0.1
    again = ccp_loss(
        (z * lengths)[batch_order], ids[batch_order], 3 * bank[bank_order], temperature=0.1
    )
    torch.testing.assert_close(again.loss, loss)
    assert loss >= 0


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize("window_positives", ["keep", "mask"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bank_size", [0, 3])
def test_gradients_are_those_of_the_formula(bank_size, reduction, window_positives, l2):
    bank, windows = randoms(bank_size, 4, seed=1), torch.tensor(WINDOWS)
    ignored = randoms(6, 6 + bank_size, seed=2) > 0.5

    def loss(z):
        return ccp_loss(
            z,
            windows,
            bank,
            temperature=0.3,
            l2=l2,
            reduction=reduction,
            window_positives=window_positives,
            ignored=ignored,
        ).loss

    assert torch.autograd.gradcheck(loss, randoms(6, 4, seed=0).requires_grad_())


def test_both_sides_of_a_pair_learn_and_the_bank_does_not():
    z = randoms(4, 3, seed=0).requires_grad_()
    bank = randoms(5, 3, seed=1).requires_grad_()
    windows = torch.tensor([0, 0, 1, 2])
    ccp_loss(z, windows, bank, temperature=0.1).loss.backward()
    assert bank.grad is None
    assert (z.grad.norm(dim=1) > 0).all()  # rows 2 and 3 as candidates


@pytest.mark.parametrize("l2", [True, False])
def test_a_low_temperature_overflows_nowhere(l2):
    # tau 0.01; without L2 scores reach tens of thousands. Identical, opposite and zero vectors too.
    z = torch.cat([randoms(6, 4, seed=0) * 10, torch.ones(2, 4), -torch.ones(1, 4)]).float()
    z = torch.cat([z, torch.zeros(1, 4)]).requires_grad_()
    windows = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    found = ccp_loss(z, windows, z[:5], temperature=0.01, l2=l2)
    found.loss.backward()
    assert torch.isfinite(found.per_pair).all()
    assert torch.isfinite(z.grad).all()


def test_a_row_with_everything_ignored_gives_no_nan():
    z = randoms(4, 3, seed=0).requires_grad_()
    for window_positives in ("keep", "mask"):
        found = ccp_loss(
            z,
            torch.tensor([0, 0, 1, 2]),
            randoms(2, 3, seed=1),
            temperature=0.1,
            window_positives=window_positives,
            ignored=torch.ones(4, 6).bool(),
        )
        with torch.autograd.set_detect_anomaly(True):
            found.loss.backward()
        # Each pair is left with its positive alone: certain.
        assert found.loss.item() == pytest.approx(0, abs=1e-12)
        assert torch.isfinite(z.grad).all()
        assert (found.candidates, found.accuracy.item()) == (1.0, 1.0)


def test_computes_in_float32_inside_autocast():
    z, bank = randoms(6, 4, seed=0).bfloat16(), randoms(7, 4, seed=1).bfloat16()
    windows = torch.tensor(WINDOWS)
    expected = ccp_loss(z.float(), windows, bank.float(), temperature=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ccp_loss(z, windows, bank, temperature=0.01)
    assert found.loss.dtype == torch.float32
    assert torch.equal(found.loss, expected.loss)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bank_of_half_precision_costs_no_more_than_its_rounding(dtype):
    z, bank = randoms(6, 64, seed=0).float(), randoms(50, 64, seed=1).float()
    windows = torch.tensor(WINDOWS)
    exact = ccp_loss(z, windows, bank, temperature=0.05).loss
    rounded = ccp_loss(z, windows, bank.to(dtype).float(), temperature=0.05).loss
    found = ccp_loss(z, windows, bank.to(dtype), temperature=0.05).loss
    assert torch.equal(found, rounded)
    # bfloat16 rounds a number by 2^-9 of itself at most, so a dot product and a length by 2^-9
    # each, and a score at tau 0.05 by 20 x 2^-8 = 0.08.
    assert found.item() == pytest.approx(exact.item(), abs=0.08)


def test_the_bank_is_left_as_it_is():
    bank = randoms(7, 4, seed=1)
    before = bank.clone()
    ccp_loss(randoms(6, 4, seed=0), torch.tensor(WINDOWS), bank, temperature=0.1)
    assert torch.equal(bank, before)


def test_finds_the_same_sentence_in_batch_and_bank():
    keys, bank_keys = torch.tensor([1, 2, 3, 1]), torch.tensor([2, 9, 3])
    assert same_sentence(keys, bank_keys).int().tolist() == [
        [0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 0, 0],
    ]
    # Windows 0 0 1 1: rows 0 and 1 leave out the copies of both, row 3 and the first of the bank;
    # rows 2 and 3 leave out row 0 and the last of the bank.
    assert same_sentence(keys, bank_keys, torch.tensor([0, 0, 1, 1])).int().tolist() == [
        [0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0, 0],
        [1, 0, 0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 0, 1],
    ]


def test_leaving_copies_out_keeps_the_other_positives_of_a_window():
    keys, windows = torch.tensor([1, 2, 3]), torch.zeros(3).long()
    ignored = same_sentence(keys, torch.tensor([1, 2, 3, 4]), windows)
    found = ccp_loss(
        randoms(3, 2, seed=0), windows, randoms(4, 2, seed=1), temperature=1.0, ignored=ignored
    )
    assert found.candidates == 3.0  # two positives and sentence 4


def test_keys_are_compared_in_all_their_bits():
    keys = torch.tensor([2**62, 2**62 + 1])
    assert not same_sentence(keys, keys.flip(0))[:, 2:].diagonal().any()
    assert same_sentence(keys, keys)[:, 2:].int().tolist() == [[1, 0], [0, 1]]


def test_mlm_agrees_with_loops():
    logits = randoms(2, 3, 5, seed=0)
    labels = torch.tensor([[-100, 4, 0], [2, -100, -100]])
    total = 0.0
    for b, t, label in ((0, 1, 4), (0, 2, 0), (1, 0, 2)):
        row = logits[b, t].tolist()
        total += math.log(sum(math.exp(x) for x in row)) - row[label]
    assert mlm_loss(logits, labels).item() == pytest.approx(total / 3)
    chosen = labels != -100
    selected = mlm_loss(logits[chosen], labels[chosen])
    assert selected.item() == pytest.approx(total / 3)


def test_mlm_gradients_and_precision():
    labels = torch.tensor([1, -100, 0])
    logits = randoms(3, 4, seed=0).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mlm_loss(x, labels), logits)
    half = logits.detach().bfloat16()
    assert mlm_loss(half, labels).dtype == torch.float32
    torch.testing.assert_close(mlm_loss(half, labels), mlm_loss(half.float(), labels))


def test_mlm_without_a_masked_token_is_zero_with_zero_gradients():
    logits = torch.randn(2, 3, 4, requires_grad=True)
    loss = mlm_loss(logits, torch.full((2, 3), -100))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(2, 3, 4))


def test_mistakes_are_named():
    z, windows, bank = torch.randn(4, 3), torch.tensor([0, 0, 1, 1]), torch.empty(0, 3)
    with pytest.raises(UserError, match="no two of the 4 sentences in this batch share a window"):
        ccp_loss(z, torch.arange(4), bank, temperature=0.1)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(UserError, match="--temperature must be above 0"):
            ccp_loss(z, windows, bank, temperature=temperature)
    with pytest.raises(UserError, match="did you mean 'mean'"):
        ccp_loss(z, windows, bank, temperature=0.1, reduction="means")
    with pytest.raises(UserError, match="allowed: keep, mask"):
        ccp_loss(z, windows, bank, temperature=0.1, window_positives="drop")
    with pytest.raises(ValueError, match="do not fit"):
        ccp_loss(z, windows, torch.empty(0, 2), temperature=0.1)
    with pytest.raises(ValueError, match="expected one window a row, 4"):
        ccp_loss(z, windows[:3], bank, temperature=0.1)
    with pytest.raises(ValueError, match=r"expected \(C, C \+ M\) = \(4, 4\)"):
        ccp_loss(z, windows, bank, temperature=0.1, ignored=torch.zeros(4, 5).bool())
    with pytest.raises(ValueError, match="do not fit labels"):
        mlm_loss(torch.randn(2, 3, 4), torch.zeros(2, 4).long())
