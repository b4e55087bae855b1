"""Faults that a hand could make in Algorithm 1, to be planted in the package one at a time.

A fault takes the honest function and its arguments, and returns what a faulty one would return.
``FAULTS`` says for each part of the package which function each fault replaces.
"""

import copy
import dataclasses
import itertools
import math
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from ccpretrieve.data import mixture, windows
from ccpretrieve.model import losses, memory_bank, projection
from ccpretrieve.training import ccp
from tests import oracle_ccp as oracle


def widened(honest, center, length, radius):
    return honest(center, length, radius + 1)


def narrowed(honest, center, length, radius):
    return [p for p in honest(center, length, radius) if abs(p - center) < radius]


def own_context(honest, center, length, radius):
    return sorted([*honest(center, length, radius), center])


def beyond_the_end(honest, center, length, radius):
    return honest(center, length + radius, radius)


def before_the_start(honest, center, length, radius):
    return [p - radius for p in honest(center + radius, length + radius, radius)]


def with_replacement(honest, center, length, radius, count, generator):
    allowed = windows.context(center, length, radius)
    return [int(generator.choice(allowed)) for _ in range(min(count, len(allowed)))]


def nearest(honest, center, length, radius, count, generator):
    return sorted(windows.context(center, length, radius), key=lambda p: abs(p - center))[:count]


def in_a_row(honest, center, length, radius, count, generator):
    allowed = windows.context(center, length, radius)
    if not allowed:
        return []
    start = int(generator.integers(max(1, len(allowed) - count + 1)))
    return allowed[start : start + count]


def off_by_one(honest, *arguments):
    return honest(*arguments[:2], arguments[2] + 1, *arguments[3:])


def center_drawn(honest, center, *rest):
    return [center, *honest(center, *rest)[1:]]


def of_the_window_before(honest, self, count):
    """Contexts of the wrong document, unless both windows are of one."""
    taken = honest(self, count)
    return [
        dataclasses.replace(window, contexts=taken[k - 1].contexts)
        for k, window in enumerate(taken)
    ]


def one_way(honest, ids):
    return honest(ids).triu()


def with_itself(honest, ids):
    return honest(ids) | torch.eye(len(ids), dtype=torch.bool)


def pairs_of(ids):
    """c and i of every pair, row by row."""
    m = oracle.mask(ids.tolist())
    found = [(c, i) for c, i in itertools.product(range(len(ids)), repeat=2) if m[c][i]]
    return torch.tensor(found).T


def scores(z, others, temperature, l2):
    if l2:
        z, others = F.normalize(z), F.normalize(others)
    return z @ others.T / temperature


def again(found, per_pair, reduction):
    """The same result with other losses of its pairs."""
    return found._replace(
        per_pair=per_pair, loss=per_pair.sum() if reduction == "sum" else per_pair.mean()
    )


def center_in_its_denominator(honest, z, ids, bank, *, reduction="mean", **settings):
    found = honest(z, ids, bank, **settings)
    c, i = pairs_of(ids)
    s = scores(z, z, settings["temperature"], settings["l2"])
    return again(found, torch.logaddexp(found.per_pair, s[c, c] - s[c, i]), reduction)


def raw_bank(honest, z, ids, bank, *, reduction="mean", **settings):
    found = honest(z, ids, bank[:0], **(settings | {"ignored": None}))
    c, i = pairs_of(ids)
    s = scores(z, z, settings["temperature"], settings["l2"])
    raw = F.normalize(z) @ bank.T / settings["temperature"]
    per_pair = torch.logaddexp(found.per_pair + s[c, i], raw.logsumexp(dim=1)[c]) - s[c, i]
    return again(found, per_pair, reduction)


def counted_one_way(honest, z, ids, bank, *, reduction="mean", **settings):
    found = honest(z, ids, bank, **settings)
    c, i = pairs_of(ids)
    return again(found, found.per_pair[c < i], reduction)


def positive_ignored(honest, z, ids, bank, *, reduction="mean", ignored=None, **settings):
    found = honest(z, ids, bank, ignored=ignored, **settings)
    if ignored is None:
        return again(found, found.per_pair, reduction)
    lost = ignored[tuple(pairs_of(ids))]
    per_pair = torch.where(lost, found.per_pair.expm1().log(), found.per_pair)
    return again(found, per_pair, reduction)


def tau_multiplied(honest, *arguments, temperature, **settings):
    return honest(*arguments, temperature=1 / temperature, **settings)


def never(name, value):
    """A setting that has no effect."""

    def fault(honest, *arguments, **settings):
        return honest(*arguments, **(settings | {name: value}))

    fault.__name__ = f"never_but_{name}_{value}"
    return fault


def mean_over_sentences(honest, z, ids, bank, *, reduction="mean", **settings):
    found = honest(z, ids, bank, reduction="sum", **settings)
    return found._replace(loss=found.loss / len(z)) if reduction == "mean" else found


def without_bank(honest, z, ids, bank, *, ignored=None, **settings):
    return honest(
        z, ids, bank[:0], ignored=None if ignored is None else ignored[:, : len(z)], **settings
    )


def counts_itself(honest, *arguments, **settings):
    found = honest(*arguments, **settings)
    return found._replace(candidates=found.candidates + 1)


def copies_in_the_bank_only(honest, keys, bank_keys, ids=None):
    found = honest(keys, bank_keys, ids)
    found[:, : len(keys)] = False
    return found


def copies_of_the_center_only(honest, keys, bank_keys, ids=None):
    return honest(keys, bank_keys)


def sides_swapped(honest, self, centers, contexts, *, step, generator=None):
    return honest(self, centers, contexts, step=step + 1, generator=generator)


def always_even(honest, self, centers, contexts, *, step, generator=None):
    return honest(self, centers, contexts, step=0, generator=generator)


def heads_swapped(honest, self, centers, contexts, *, step, generator=None):
    z_i, z_c = honest(self, contexts, centers, step=step + 1, generator=generator)
    return z_c, z_i


def both_sides_move(honest, self, centers, contexts, *, step, generator=None):
    made = honest(self, centers, contexts, step=step, generator=generator)
    honest(self, centers, contexts, step=step + 1, generator=generator)
    return made


def left_shuffled(honest, self, centers, contexts, *, step, generator=None):
    z_c, z_i = honest(self, centers, contexts, step=step, generator=generator)
    return z_c, z_i.flip(0)


def not_shuffled(honest, self, centers, contexts, *, step, generator=None):
    shuffle = torch.Generator()
    shuffle.set_state(generator.get_state())
    order = torch.randperm(len(contexts), generator=shuffle)
    z_c, z_i = honest(self, centers, contexts[order.argsort()], step=step, generator=generator)
    return z_c, z_i[order]


def contexts_without_gradient(honest, self, *arguments, **named):
    z_c, z_i = honest(self, *arguments, **named)
    return z_c, z_i.detach()


def parity_of_pairs(honest, self, centers, contexts, *, step, generator=None):
    return honest(self, centers, contexts, step=step // 2, generator=generator)


def evaluated_by_batch(honest, self, h, *, side=None):
    moved = copy.deepcopy(self)
    part = moved.heads[-1 if side == "contexts" else 0]
    norm, inner = getattr(part, "norm", None), part.inner(h).detach()
    if norm is not None:
        norm.running_mean, norm.running_var = inner.mean(0), inner.var(0, correction=0)
    return honest(moved, h, side=side)


def evaluation_moves(honest, self, h, *, side=None):
    z = honest(self, h, side=side)
    for norm in (m for m in self.modules() if isinstance(m, nn.BatchNorm1d)):
        norm.running_mean.mul_(0.9)
    return z


def both_train(honest, *arguments, batch_norm="asymmetric", **settings):
    batch_norm = "plain" if batch_norm == "asymmetric" else batch_norm
    return honest(*arguments, batch_norm=batch_norm, **settings)


def biased_running(honest, x, mean, variance, *rest, **named):
    before = variance.clone()
    y = honest(x, mean, variance, *rest, **named)
    if named.get("training"):
        part = before * (1 - named["momentum"])
        variance.copy_(part + (variance - part) * (len(x) - 1) / len(x))
    return y


def unbiased_inside(honest, x, mean, variance, gamma, beta, **named):
    y = honest(x, mean, variance, gamma, beta, **named)
    if named.get("training"):
        y = (y - beta) * math.sqrt((len(x) - 1) / len(x)) + beta
    return y


def still(honest, x, mean, variance, *rest, **named):
    return honest(x, mean.clone(), variance.clone(), *rest, **named)


def momentum_reversed(honest, *arguments, **named):
    if named.get("training"):
        named["momentum"] = 1 - named["momentum"]
    return honest(*arguments, **named)


def coarse(honest, *arguments, **named):
    return honest(*arguments, **(named | {"eps": 1e-3}))


def always_training(honest, x, mean, variance, *rest, **named):
    if named.get("training"):
        return honest(x, mean, variance, *rest, **named)
    return honest(x, mean.clone(), variance.clone(), *rest, **(named | {"training": True}))


def one_queue(honest, self, language, *rest):
    return honest(self, "every language", *rest)


def another_language(honest, self, language):
    return honest(self, {"en": "ja", "ja": "en"}.get(language, language))


def queue_each(honest, *arguments, kind="language", **settings):
    return honest(*arguments, kind="language", **settings)


def padded(filler):
    """MoCo's full bank from the first batch on."""

    def fault(honest, self, language):
        z, keys = honest(self, language)
        missing = self.size - len(z)
        rows_of = filler((missing, 2), dtype=z.dtype)
        return torch.cat([z, rows_of]), torch.cat([keys, torch.zeros(missing, dtype=keys.dtype)])

    fault.__name__ = f"padded_by_{filler.__name__}"
    return fault


def room(bank, language):
    """Rows to the end of the ring, as a counter of rows put in so far has it."""
    counts = bank.__dict__.setdefault("counted", Counter())
    return bank.size - counts[language] % bank.size


def rest_dropped(honest, self, language, z, keys):
    fitting = room(self, language)
    honest(self, language, z[:fitting], keys[:fitting])
    self.counted[language] += min(len(z), fitting)


def full_is_full(honest, self, language, z, keys):
    left = max(0, self.size - self.__dict__.setdefault("counted", Counter())[language])
    honest(self, language, z[:left], keys[:left])
    self.counted[language] += len(z[:left])


def first_rows(honest, self, language, z, keys):
    honest(self, language, z[: self.size], keys[: self.size])


def keys_out_of_step(honest, self, language, z, keys):
    honest(self, language, z, keys.roll(1))


def with_gradient(honest, self, language):
    z, keys = honest(self, language)
    return z.clone().requires_grad_(), keys


def forgets(honest, self, state):
    """Loads nothing."""


def filled_at_once(honest, self, module):
    self.updated()
    return honest(self, module)


def all_flip(honest, self, module):
    found = honest(self, module)
    self.step += found.name == "mlm"
    return found


def own_batch_queued(honest, z, ids, bank, *, ignored=None, **settings):
    return honest(z, ids, torch.cat([bank, z[len(z) // 2 :].detach()]), **settings)


def centers_enter(honest, which, centers, contexts, **named):
    return honest(which, contexts, centers, **named)


def trained_enter(honest, which, centers, contexts, *, step):
    return honest(which, centers, contexts, step=step + 1)


HEAD, BANK = (projection.Projection, "forward"), memory_bank.MemoryBank
LOSS, NORM = (losses, "ccp_loss"), (F, "batch_norm")
FAULTS = {
    "windows": [
        ((windows, "context"), widened),
        ((windows, "context"), narrowed),
        ((windows, "context"), own_context),
        ((windows, "context"), beyond_the_end),
        ((windows, "context"), before_the_start),
        ((windows, "draw_contexts"), with_replacement),
        ((windows, "draw_contexts"), nearest),
        ((windows, "draw_contexts"), in_a_row),
        ((windows, "same_window"), one_way),
        ((windows, "same_window"), with_itself),
    ],
    "stream": [
        ((mixture, "draw_contexts"), off_by_one),
        ((mixture, "draw_contexts"), center_drawn),
        ((mixture, "draw_contexts"), with_replacement),
        ((mixture, "draw_contexts"), nearest),
        ((mixture.WindowStream, "take"), of_the_window_before),
    ],
    "head": [
        (HEAD, sides_swapped),
        (HEAD, always_even),
        (HEAD, heads_swapped),
        (HEAD, both_sides_move),
        (HEAD, left_shuffled),
        (HEAD, not_shuffled),
        ((projection.Projection, "evaluate"), evaluated_by_batch),
        ((projection.Projection, "evaluate"), evaluation_moves),
        ((projection, "Projection"), both_train),
        ((projection, "Projection"), never("groups", 1)),
        ((projection, "Projection"), never("order", "centers-first")),
        ((projection, "Projection"), never("order", "evaluation-first")),
        ((projection, "Projection"), never("activation", "relu")),
        ((projection, "Projection"), never("heads", "one")),
        (NORM, biased_running),
        (NORM, unbiased_inside),
        (NORM, still),
        (NORM, momentum_reversed),
        (NORM, coarse),
        (NORM, always_training),
    ],
    "bank": [
        ((BANK, "enqueue"), one_queue),
        ((BANK, "enqueue"), rest_dropped),
        ((BANK, "enqueue"), full_is_full),
        ((BANK, "enqueue"), first_rows),
        ((BANK, "enqueue"), keys_out_of_step),
        ((BANK, "candidates"), another_language),
        ((BANK, "candidates"), padded(torch.zeros)),
        ((BANK, "candidates"), padded(torch.randn)),
        ((BANK, "candidates"), with_gradient),
        ((BANK, "load_state_dict"), forgets),
        ((memory_bank, "MemoryBank"), queue_each),
    ],
    "loss": [
        (LOSS, center_in_its_denominator),
        (LOSS, raw_bank),
        (LOSS, counted_one_way),
        (LOSS, positive_ignored),
        (LOSS, tau_multiplied),
        (LOSS, mean_over_sentences),
        (LOSS, without_bank),
        (LOSS, counts_itself),
        (LOSS, never("l2", False)),
        (LOSS, never("l2", True)),
        (LOSS, never("reduction", "sum")),
        (LOSS, never("reduction", "mean")),
        (LOSS, never("window_positives", "mask")),
        (LOSS, never("window_positives", "keep")),
        (LOSS, never("ignored", None)),
        ((losses, "same_sentence"), copies_in_the_bank_only),
        ((losses, "same_sentence"), copies_of_the_center_only),
    ],
    "run": [
        ((ccp.CcpObjective, "loss"), filled_at_once),
        ((ccp.CcpObjective, "loss"), all_flip),
        ((ccp, "ccp_loss"), own_batch_queued),
        ((ccp, "ccp_loss"), never("ignored", None)),
        ((ccp, "ccp_loss"), tau_multiplied),
        ((ccp, "entering"), centers_enter),
        ((ccp, "entering"), trained_enter),
        ((ccp, "same_sentence"), copies_of_the_center_only),
        (HEAD, sides_swapped),
        (HEAD, parity_of_pairs),
        (HEAD, contexts_without_gradient),
        (NORM, always_training),
        ((BANK, "candidates"), another_language),
        ((BANK, "enqueue"), rest_dropped),
    ],
}
