"""A batch in several passes: every text once, like lengths together, one look-up of its tokens."""

import pytest
import torch
from torch import nn

from ccpretrieve.model import trainable
from ccpretrieve.model.passes import passes

LENGTHS = [3, 7, 1, 7, 2, 5]


def batch(lengths=LENGTHS, padding=1):
    ids = torch.full((len(lengths), max(lengths)), padding)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(5, 5 + length)
    return {"input_ids": ids, "attention_mask": (ids != padding).long()}


@pytest.mark.parametrize(
    ("tokens", "most", "places"),
    [
        (14, None, [[1, 3], [5, 0], [4, 2]]),  # 2 x 7; 2 x 5, a third would make 15; 2 x 2
        (14, 1, [[1], [3], [5], [0], [4], [2]]),
        (1, None, [[1], [3], [5], [0], [4], [2]]),  # longer than a pass: alone
        (1000, 4, [[1, 3, 5, 0], [4, 2]]),
        (1000, None, [[1, 3, 5, 0, 4, 2]]),
    ],
)
def test_texts_of_like_length_pass_together(tokens, most, places):
    embeddings = nn.Embedding(20, 3)
    made = list(passes(embeddings, batch(), LENGTHS, tokens, most))
    assert [each.places.tolist() for each in made] == places
    for each in made:
        longest = max(LENGTHS[place] for place in each.places)
        assert each.ids.shape == each.mask.shape == (len(each.places), longest)
        assert each.mask.sum(1).tolist() == [LENGTHS[place] for place in each.places]


def test_the_model_sees_the_embeddings_of_its_own_tokens():
    embeddings, inputs = nn.Embedding(20, 3), batch()
    for each in passes(embeddings, inputs, LENGTHS, 14):
        ids = inputs["input_ids"][each.places, : each.ids.shape[1]]
        assert torch.equal(each.table[each.ids], embeddings(ids))


def test_token_types_are_cut_alike_and_handed_on():
    given = batch([2, 4])
    given["token_type_ids"] = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1]])
    first, second = passes(nn.Embedding(20, 3), given, [2, 4], 4)
    assert first.more["token_type_ids"].tolist() == [[0, 0, 1, 1]]
    assert second.more["token_type_ids"].tolist() == [[0, 1]]


@pytest.mark.parametrize("tokens", [1, 14, 1000])
def test_tokens_are_looked_up_once_and_learn_as_in_one_padded_batch(tiny_checkpoint, tokens):
    model = trainable.load(tiny_checkpoint, masked=False, dropout=0.0).whole
    given, embeddings, calls = batch(), model.get_input_embeddings(), []
    weight = torch.rand(len(LENGTHS), model.config.hidden_size)
    model(**given).last_hidden_state[:, 0].mul(weight).sum().backward()
    expected = embeddings.weight.grad.clone()
    model.zero_grad()
    embeddings.register_forward_hook(lambda _, ids, __: calls.append(ids[0].tolist()))
    for each in passes(embeddings, given, LENGTHS, tokens):
        states = each.states(model)[:, 0].mul(weight[each.places]).sum()
        states.backward(retain_graph=True)
    assert calls == [sorted(set(given["input_ids"].flatten().tolist()))]
    assert torch.allclose(embeddings.weight.grad, expected, atol=1e-5)
    assert expected.abs().sum() > 0
