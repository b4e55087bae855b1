"""The head against Algorithm 1, lines 6-12, read aloud in plain floats, and what must not leak."""

import copy
import math

import pytest
import torch

from ccpretrieve.errors import UserError
from ccpretrieve.model.losses import ccp_loss
from ccpretrieve.model.projection import Projection, training_side

EPS = 1e-5  # of batch norm, torch's


def build(width=3, *, seed=0, **settings):
    """A head in float64 whose batch norm is not the identity to start with."""
    torch.manual_seed(seed)
    projection = Projection(width, **settings).double()
    for g in projection.heads:
        if g.norm is not None:
            with torch.no_grad():
                for x in (g.norm.weight, g.norm.bias, g.norm.running_mean):
                    x.copy_(torch.randn_like(x))
                g.norm.running_var.copy_(torch.rand_like(g.norm.running_var) + 0.5)
    return projection


def rows(n, *, seed, width=3):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)).double()


class Aloud:
    """One g with its running statistics, as nested lists."""

    def __init__(self, g, momentum=0.1, activation="relu"):
        self.W1, self.b1 = g.inner.weight.tolist(), g.inner.bias.tolist()
        self.W2, self.b2 = g.outer.weight.tolist(), g.outer.bias.tolist()
        self.momentum, self.activation = momentum, activation
        if g.norm is not None:
            self.gamma, self.beta = g.norm.weight.tolist(), g.norm.bias.tolist()
            self.mean, self.var = g.norm.running_mean.tolist(), g.norm.running_var.tolist()

    @staticmethod
    def linear(W, b, x):
        return [sum(w * v for w, v in zip(line, x, strict=True)) + b[j] for j, line in enumerate(W)]

    def act(self, x):
        if self.activation == "gelu":
            return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
        return max(0.0, x) if self.activation == "relu" else x

    def finish(self, a, mean, var):
        z = []
        for row in a:
            y = [
                self.act((x - m) / math.sqrt(v + EPS) * s + t)
                for x, m, v, s, t in zip(row, mean, var, self.gamma, self.beta, strict=True)
            ]
            z.append(self.linear(self.W2, self.b2, y))
        return z

    def training(self, h):
        a = [self.linear(self.W1, self.b1, row) for row in h]
        mean, var, n = [], [], len(h)
        for j in range(len(a[0])):
            column = [row[j] for row in a]
            m = sum(column) / n
            squares = sum((x - m) ** 2 for x in column)
            mean.append(m)
            var.append(squares / n)
            self.mean[j] += self.momentum * (m - self.mean[j])
            self.var[j] += self.momentum * (squares / (n - 1) - self.var[j])
        return self.finish(a, mean, var)

    def evaluation(self, h):
        a = [self.linear(self.W1, self.b1, row) for row in h]
        return self.finish(a, self.mean, self.var)


def close(tensor, lists):
    torch.testing.assert_close(
        tensor, torch.tensor(lists, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("order", ["centers-first", "evaluation-first"])
@pytest.mark.parametrize("heads", ["one", "two"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "none"])
def test_agrees_with_algorithm_1_step_by_step(order, heads, activation):
    projection = build(
        hidden=4, output=2, heads=heads, order=order, activation=activation, momentum=0.3
    )
    of_centers = Aloud(projection.heads[0], 0.3, activation)
    of_contexts = of_centers if heads == "one" else Aloud(projection.heads[1], 0.3, activation)
    for step in range(5):
        h_c, h_i = rows(4, seed=step), rows(5, seed=100 + step)
        z_c, z_i = projection(h_c, h_i, step=step)
        if step % 2 == 1:
            expected_c = of_centers.evaluation(h_c.tolist())
            expected_i = of_contexts.training(h_i.tolist())
        elif order == "centers-first":
            expected_c = of_centers.training(h_c.tolist())
            expected_i = of_contexts.evaluation(h_i.tolist())
        else:
            expected_i = of_contexts.evaluation(h_i.tolist())
            expected_c = of_centers.training(h_c.tolist())
        close(z_c, expected_c)
        close(z_i, expected_i)
        close(projection.heads[0].norm.running_mean, of_centers.mean)
        close(projection.heads[-1].norm.running_var, of_contexts.var)
        close(projection.evaluate(h_i, side="contexts"), of_contexts.evaluation(h_i.tolist()))


def test_worked_example():
    # One dimension, both linear layers the identity, no activation. Step 0, centres 1 and 3: mean
    # 2, variance 1, so z_c = -1, 1; contexts 2 and 6 by the running mean 0 and variance 1: as they
    # are. The running mean is then 0.9 x 0 + 0.1 x 2 = 0.2 and the running variance
    # 0.9 x 1 + 0.1 x 2 = 1.1 (2 is the unbiased variance).
    # Step 1, the same: z_c = 0.8 / sqrt(1.1) = 0.7628 and 2.8 / sqrt(1.1) = 2.6697; contexts of
    # mean 4 and variance 4 are -1, 1. With centres first, the contexts of step 0 are
    # 1.8 / sqrt(1.1) = 1.7162 and 5.8 / sqrt(1.1) = 5.5301.
    h_c, h_i = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [6.0]])

    def identity(order):
        projection = Projection(1, activation="none", order=order)
        with torch.no_grad():
            for linear in (projection.heads[0].inner, projection.heads[0].outer):
                linear.weight.fill_(1.0)
                linear.bias.zero_()
        return projection

    def numbers(z):
        return [x.flatten().tolist() for x in z]

    def near(*pair):
        return pytest.approx(pair, abs=2e-4)

    projection = identity("evaluation-first")
    assert numbers(projection(h_c, h_i, step=0)) == [near(-1, 1), near(2, 6)]
    norm = projection.heads[0].norm
    assert (norm.running_mean.item(), norm.running_var.item()) == near(0.2, 1.1)
    assert numbers(projection(h_c, h_i, step=1)) == [near(0.7628, 2.6697), near(-1, 1)]
    first = identity("centers-first")
    assert numbers(first(h_c, h_i, step=0)) == [near(-1, 1), near(1.7162, 5.5301)]


def test_centers_are_in_training_mode_at_even_steps():
    assert [training_side(step) for step in range(4)] == ["centers", "contexts"] * 2


def in_other_company(h, *, seed):
    """The same first row among others."""
    return torch.cat([h[:1], 3 * rows(len(h) - 1, seed=seed) + 1])


@pytest.mark.parametrize("heads", ["one", "two"])
@pytest.mark.parametrize("step", [0, 1])
def test_only_the_training_side_depends_on_the_rest_of_its_batch(step, heads):
    h_c, h_i = rows(6, seed=1), rows(6, seed=2)
    z_c, z_i = build(heads=heads)(h_c, h_i, step=step)
    crowd_c, _ = build(heads=heads)(in_other_company(h_c, seed=3), h_i, step=step)
    _, crowd_i = build(heads=heads)(h_c, in_other_company(h_i, seed=4), step=step)
    assert torch.allclose(crowd_c[0], z_c[0]) == (step == 1)
    assert torch.allclose(crowd_i[0], z_i[0]) == (step == 0)


@pytest.mark.parametrize("step", [0, 1])
def test_the_running_side_depends_on_nothing_else_of_its_step(step):
    h_c, h_i = rows(6, seed=1), rows(6, seed=2)
    first = build()(h_c, h_i, step=step)[1 - step]
    other_c = rows(6, seed=3) if step == 0 else in_other_company(h_c, seed=3)
    other_i = rows(6, seed=4) if step == 1 else in_other_company(h_i, seed=4)
    again = build()(other_c, other_i, step=step)[1 - step]
    assert torch.equal(first[0], again[0])


@pytest.mark.parametrize("step", [0, 1])
def test_running_statistics_are_updated_once_and_by_the_training_side_alone(step):
    projection = build()
    norm = projection.heads[0].norm
    before = norm.running_mean.clone()
    sides = rows(6, seed=1), rows(6, seed=2) + 5
    projection(*sides, step=step)
    assert norm.num_batches_tracked.item() == 1
    inner = projection.heads[0].inner
    expected = 0.9 * before + 0.1 * inner(sides[step]).mean(dim=0)
    torch.testing.assert_close(norm.running_mean, expected)


def test_with_two_heads_each_side_has_its_own_weights_and_statistics():
    projection = build(heads="two")
    first, second = projection.heads
    kept = second.norm.running_mean.clone()
    z_c, z_i = projection(rows(4, seed=1), rows(4, seed=2), step=0)
    assert torch.equal(second.norm.running_mean, kept)
    z_c.sum().backward(retain_graph=True)
    assert first.inner.weight.grad is not None
    assert second.inner.weight.grad is None
    z_i.sum().backward()
    assert second.inner.weight.grad is not None


def test_train_and_eval_of_the_module_change_nothing():
    h_c, h_i = rows(4, seed=1), rows(4, seed=2)
    for step in (0, 1):
        a = build().train()(h_c, h_i, step=step)
        b = build().eval()(h_c, h_i, step=step)
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


@pytest.mark.parametrize("batch_norm", ["asymmetric", "plain", "shuffled", "none"])
def test_evaluating_leaves_every_statistic_and_relates_no_rows(batch_norm):
    projection = build(batch_norm=batch_norm)
    before = {name: value.clone() for name, value in projection.state_dict().items()}
    h = rows(5, seed=1)
    z = projection.evaluate(h)
    torch.testing.assert_close(projection.evaluate(h[2:3]), z[2:3])
    for name, value in projection.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_plain_agrees_with_both_sides_read_aloud_in_training_mode():
    projection = build(batch_norm="plain")
    aloud = Aloud(projection.heads[0])
    h_c, h_i = rows(4, seed=1), rows(3, seed=2)
    z_c, z_i = projection(h_c, h_i, step=1)
    close(z_c, aloud.training(h_c.tolist()))
    close(z_i, aloud.training(h_i.tolist()))
    close(projection.heads[0].norm.running_var, aloud.var)


@pytest.mark.parametrize("step", [0, 1])
def test_plain_batch_norm_lets_the_loss_see_the_batch_and_asymmetric_hides_one_side(step):
    # One pair, scored against a bank that never changes. Its loss may change with the company of
    # either sentence only through statistics of the batch.
    bank = rows(8, seed=9)

    def loss_of_first_pair(batch_norm, h_c, h_i):
        z_c, z_i = build(batch_norm=batch_norm)(h_c, h_i, step=step)
        pair = torch.stack([z_c[0], z_i[0]])
        return ccp_loss(pair, torch.zeros(2, dtype=torch.int64), bank, temperature=0.5).loss.item()

    h_c, h_i = rows(6, seed=1), rows(6, seed=2)
    crowds = (in_other_company(h_c, seed=3), h_i), (h_c, in_other_company(h_i, seed=4))
    for batch_norm, sees in (("plain", {0, 1}), ("asymmetric", {step})):
        alone = loss_of_first_pair(batch_norm, h_c, h_i)
        changed = {
            side
            for side, crowd in enumerate(crowds)
            if abs(loss_of_first_pair(batch_norm, *crowd) - alone) > 1e-9
        }
        assert changed == sees


def test_plain_batch_norm_cancels_whatever_a_whole_batch_has_in_common():
    h_c, h_i, common = rows(6, seed=1), rows(6, seed=2), rows(1, seed=3)
    plain = build(batch_norm="plain")(h_c, h_i, step=0)
    moved = build(batch_norm="plain")(h_c + common, h_i + common, step=0)
    torch.testing.assert_close(moved[0], plain[0])
    torch.testing.assert_close(moved[1], plain[1])
    asymmetric = build()(h_c, h_i, step=0)
    moved = build()(h_c + common, h_i + common, step=0)
    torch.testing.assert_close(moved[0], asymmetric[0])
    assert not torch.allclose(moved[1], asymmetric[1])


def test_shuffled_groups_the_contexts_at_random_and_puts_rows_back_in_order():
    projection = build(batch_norm="shuffled", groups=2)
    aloud = Aloud(projection.heads[0])
    h_c, h_i = rows(5, seed=1), rows(6, seed=2)
    z_c, z_i = projection(h_c, h_i, step=0, generator=torch.Generator().manual_seed(7))
    # Groups are as even as can be: 3 + 2 centres as they stand, 3 + 3 contexts as drawn.
    close(z_c, aloud.training(h_c[:3].tolist()) + aloud.training(h_c[3:].tolist()))
    drawn = torch.randperm(6, generator=torch.Generator().manual_seed(7)).tolist()
    expected = [None] * 6
    for members in (drawn[:3], drawn[3:]):
        grouped = aloud.training([h_i[member].tolist() for member in members])
        for member, z in zip(members, grouped, strict=True):
            expected[member] = z
    close(z_i, expected)
    close(projection.heads[0].norm.running_mean, aloud.mean)


def test_shuffled_draws_from_its_generator_alone():
    h = rows(8, seed=1)
    state = torch.get_rng_state()
    projection = build(batch_norm="shuffled", groups=2)
    torch.set_rng_state(state)
    generator = torch.Generator().manual_seed(1)
    z_c, z_i = projection(h, h, step=0, generator=generator)
    again_c, again_i = projection(h, h, step=0, generator=generator)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(z_c, again_c)
    assert not torch.allclose(z_i, again_i)  # other groups
    with pytest.raises(ValueError, match="generator"):
        projection(h, h, step=0)


def test_none_is_two_linear_layers_without_statistics():
    projection = build(batch_norm="none")
    h = rows(1, seed=1)  # one row is enough
    z_c, z_i = projection(h, h + 1, step=0)
    aloud = Aloud(projection.heads[0])
    for z, row in ((z_c, h), (z_i, h + 1)):
        inner = aloud.linear(aloud.W1, aloud.b1, row[0].tolist())
        close(z, [aloud.linear(aloud.W2, aloud.b2, [max(0.0, x) for x in inner])])
    assert not list(projection.buffers())
    assert sorted(projection.state_dict()) == [
        f"heads.0.{layer}.{kind}" for layer in ("inner", "outer") for kind in ("bias", "weight")
    ]


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"heads": "two"},
        {"batch_norm": "plain"},
        {"batch_norm": "shuffled", "groups": 2},
        {"batch_norm": "none"},
    ],
    ids=str,
)
def test_gradients_are_those_of_what_was_computed(how, step):
    # The running statistics are read by one side, then updated by the other: the backward pass
    # must see them as they were read.
    projection = build(2, hidden=3, output=2, activation="gelu", **how)
    names, values = zip(*projection.named_parameters(), strict=True)

    def project(h_c, h_i, *weights):
        return torch.func.functional_call(
            copy.deepcopy(projection),  # the same statistics every time
            dict(zip(names, weights, strict=True)),
            (h_c, h_i),
            {"step": step, "generator": torch.Generator().manual_seed(0)},
        )

    inputs = [rows(4, seed=1, width=2), rows(5, seed=2, width=2), *values]
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(project, inputs)


@pytest.mark.parametrize("order", ["centers-first", "evaluation-first"])
@pytest.mark.parametrize("step", [0, 1])
def test_no_gradient_passes_through_the_running_statistics(step, order):
    sides = [rows(4, seed=1).requires_grad_(), rows(4, seed=2).requires_grad_()]
    z = build(order=order)(*sides, step=step)
    training, running = step, 1 - step
    (own,) = torch.autograd.grad(z[running].sum(), sides[running])
    assert own.abs().sum() > 0
    z = build(order=order)(*sides, step=step)
    assert torch.autograd.grad(z[running].sum(), sides[training], allow_unused=True) == (None,)


def test_a_state_dict_carries_everything_to_the_next_step():
    projection, other = build(seed=0), build(seed=1)
    projection(rows(4, seed=1), rows(4, seed=2), step=0)
    other.load_state_dict(projection.state_dict())
    for step in (1, 2):
        a = projection(rows(4, seed=3), rows(4, seed=4), step=step)
        b = other(rows(4, seed=3), rows(4, seed=4), step=step)
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


@pytest.mark.parametrize("batch_norm", ["asymmetric", "plain", "shuffled", "none"])
def test_computes_in_float32_under_autocast_and_from_a_bfloat16_encoder(batch_norm):
    h = rows(8, seed=1).bfloat16()

    def project(h):
        projection = build(batch_norm=batch_norm, groups=2).float()
        z = projection(h, h, step=0, generator=torch.Generator().manual_seed(0))
        return (*z, projection.evaluate(h), *projection.buffers())

    expected = project(h.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x, y in zip(project(h), expected, strict=True):
            assert x.dtype == y.dtype
            assert torch.equal(x, y)


@pytest.mark.parametrize("step", [0, 1])
def test_one_window_has_no_statistics_and_says_what_to_do(step):
    sides = [rows(3, seed=1), rows(3, seed=2)]
    sides[step] = sides[step][:1]
    with pytest.raises(UserError, match=r"needs 2 windows, this batch has 1; raise --batch-size"):
        build()(*sides, step=step)
    build()(*sides, step=step + 1)  # running statistics need no company
    with pytest.raises(UserError, match=r"2 windows in each of its 2 groups, this batch has 3"):
        build(batch_norm="shuffled", groups=2)(rows(3, seed=1), rows(4, seed=2), step=0)


def test_names_that_are_not_allowed_are_answered_with_those_that_are():
    for setting in ("batch_norm", "activation", "heads", "order"):
        with pytest.raises(UserError, match="allowed: "):
            Projection(3, **{setting: "planar"})
    for setting in ({"groups": 0}, {"momentum": 0.0}):
        with pytest.raises(ValueError, match="groups must be 1 or more"):
            Projection(3, **setting)
    with pytest.raises(UserError, match="did you mean 'centers'"):
        build().evaluate(rows(2, seed=1), side="centres")
    with pytest.raises(ValueError, match="told a side"):
        build(heads="two").evaluate(rows(2, seed=1))


def test_widths_are_the_encoders_unless_given():
    assert Projection(5).output == 5
    narrow = Projection(5, hidden=7, output=2)
    z_c, z_i = narrow(torch.randn(3, 5), torch.randn(4, 5), step=0)
    assert (z_c.shape, z_i.shape, narrow.output) == ((3, 2), (4, 2), 2)
    assert narrow.heads[0].norm.num_features == 7


def far(rows, width=6, seed=0):
    """Vectors whose mean is far from 0 and whose spread is small, as a CLS start has them."""
    generator = torch.Generator().manual_seed(seed)
    return 5 + 0.01 * torch.randn(rows, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("order", ["centers-first", "evaluation-first"])
@pytest.mark.parametrize("step", [0, 1])
def test_the_first_batch_sets_the_running_statistics_and_both_sides_are_normalised_by_it(
    order, step
):
    torch.manual_seed(0)
    head = Projection(6, statistics="first-batch", order=order).double()
    norm = head.heads[0].norm
    sides = [far(8), far(8, seed=1)]
    z = head(*sides, step=step)
    inner = head.heads[0].inner(sides[step])  # of the side in training mode
    torch.testing.assert_close(norm.running_mean, inner.mean(dim=0))
    torch.testing.assert_close(norm.running_var, inner.var(dim=0))  # unbiased, as torch keeps it
    with torch.no_grad():
        torch.testing.assert_close(z[1 - step], head.evaluate(sides[1 - step]))
    again = [far(8, seed=2), far(8, seed=3)]
    inner = head.heads[0].inner(again[1 - step])
    expected = 0.9 * norm.running_mean + 0.1 * inner.mean(dim=0)
    head(*again, step=step + 1)  # from now on as ever
    torch.testing.assert_close(norm.running_mean, expected)


def test_a_head_taken_up_again_does_not_take_its_next_batch_for_the_first():
    torch.manual_seed(0)
    head = Projection(6, statistics="first-batch").double()
    head(far(8), far(8, seed=1), step=0)
    again = Projection(6, statistics="first-batch").double()
    again.load_state_dict(head.state_dict())
    for each in (head, again):
        each(far(8, seed=2), far(8, seed=3), step=1)
    torch.testing.assert_close(
        again.heads[0].norm.running_mean, head.heads[0].norm.running_mean, atol=0, rtol=0
    )
