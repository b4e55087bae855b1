"""DPR's loss against a computation in plain floats, and what masking leaves out."""

import math

import pytest
import torch

from ccpretrieve.errors import UserError
from ccpretrieve.model.losses import dpr_loss


def batch(seed=0, questions=3, passages=7, width=4):
    generator = torch.Generator().manual_seed(seed)
    q, p = (
        torch.randn(n, width, generator=generator, dtype=torch.float64)
        for n in (questions, passages)
    )
    return q, p, torch.tensor([0, 2, 5])


def read_aloud(q, p, targets, *, cosine=False, temperature=1.0, masked=None):
    """The formula in loops over floats."""
    total, hits = 0.0, 0
    for i, target in enumerate(targets.tolist()):
        scores = []
        for k in range(len(p)):
            a, b = q[i].tolist(), p[k].tolist()
            score = sum(x * y for x, y in zip(a, b, strict=True))
            if cosine:
                score /= math.hypot(*a) * math.hypot(*b)
            scores.append(score / temperature)
        out = [masked is not None and bool(masked[i, k]) and k != target for k in range(len(p))]
        there = [score for score, gone in zip(scores, out, strict=True) if not gone]
        total -= scores[target] - math.log(sum(math.exp(score) for score in there))
        best = [s for k, s in enumerate(scores) if not out[k] and k != target]
        hits += all(scores[target] > other for other in best)
    return total / len(q), hits / len(q)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("similarity", "temperature"), [("dot", 1.0), ("cosine", 0.05)])
def test_the_loss_is_that_of_plain_loops(seed, similarity, temperature):
    q, p, targets = batch(seed)
    masked = torch.rand(3, 7, generator=torch.Generator().manual_seed(seed)) < 0.4
    for mask in (None, masked):
        result = dpr_loss(
            q, p, targets, similarity=similarity, temperature=temperature, masked=mask
        )
        cosine = similarity == "cosine"
        loss, accuracy = read_aloud(
            q, p, targets, cosine=cosine, temperature=temperature, masked=mask
        )
        assert float(result.loss) == pytest.approx(loss, abs=1e-12)
        assert float(result.accuracy) == pytest.approx(accuracy)


def test_a_question_has_its_own_passage_even_if_that_is_masked():
    q, p, targets = batch()
    masked = torch.ones(3, 7, dtype=torch.bool)
    result = dpr_loss(q, p, targets, masked=masked)
    assert float(result.loss) == 0  # nothing is left to be taken for it
    assert float(result.accuracy) == 1


def test_a_masked_passage_has_no_gradient_and_its_own_has():
    q, p, targets = batch()
    p.requires_grad_()
    masked = torch.zeros(3, 7, dtype=torch.bool)
    masked[:, 6] = True
    dpr_loss(q, p, targets, masked=masked).loss.backward()
    assert p.grad[6].abs().max() == 0
    assert all(p.grad[row].abs().max() > 0 for row in (0, 2, 5))


def test_a_draw_is_no_hit_and_half_precision_is_computed_in_full():
    q = torch.ones(1, 2)
    p = torch.ones(2, 2)
    assert float(dpr_loss(q, p, torch.tensor([0])).accuracy) == 0
    q, p, targets = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = dpr_loss(q.float(), p.float(), targets)
    assert half.loss.dtype == torch.float32
    assert float(half.loss) == pytest.approx(float(dpr_loss(q, p, targets).loss), rel=1e-5)


@pytest.mark.parametrize("change", ["width", "targets", "mask"])
def test_shapes_that_do_not_fit_are_told(change):
    q, p, targets = batch()
    masked = None
    if change == "width":
        p = p[:, :3]
    elif change == "targets":
        targets = targets[:2]
    else:
        masked = torch.zeros(3, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match="expected"):
        dpr_loss(q, p, targets, masked=masked)


def test_no_temperature_below_zero():
    with pytest.raises(UserError, match="--temperature must be above 0, got 0"):
        dpr_loss(*batch(), temperature=0)
