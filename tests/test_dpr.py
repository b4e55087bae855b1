"""DPR's objective: towers, gradient caching, several processes, ranks; by hand and by loops."""

import json
import math
import os
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.multiprocessing

from ccpretrieve.data.example_store import passage_key
from ccpretrieve.data.examples import Example, open_examples
from ccpretrieve.data.inputs import Inputs
from ccpretrieve.data.question_batches import Choice, compose
from ccpretrieve.data.records import Passage
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.model import trainable
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.model.losses import dpr_loss
from ccpretrieve.training import dpr
from ccpretrieve.training.dpr import DprModule, DprObjective, known_positives
from ccpretrieve.training.dpr_preparation import make_evaluation
from ccpretrieve.training.process import Processes
from ccpretrieve.training.ranking import DevSet, RankingEvaluation, Searched, average_rank

NILE = Passage("1", "The Nile flows north.", "Nile")
SEA = Passage("2", "The Sea is wide and the day is long and a b c d e f g.", "Sea")
HILL = Passage("3", "x y z", "")
KING = Passage("4", "Egypt has a king of the day.", "King")
EXAMPLES = [
    Example("where does the Nile flow?", (NILE,), (SEA, HILL), "q0"),
    Example("what is wide", (SEA, KING), (HILL,), "q1"),
    Example("who has a king", (KING,), (NILE,), "q2"),
    Example("x y", (HILL,), (KING, SEA), "q3"),
]


def load(checkpoint, dropout=0.0):
    return trainable.load(checkpoint, masked=False, dropout=dropout)


def inputs(start):
    return Inputs(start.tokenizer, query_length=16, passage_length=16, title="pair")


def batch_of(start, examples=EXAMPLES, hard_negatives=1):
    choice = Choice(hard_negatives)
    return compose(examples, [choice(example) for example in examples], inputs(start))


def gradients(module):
    return {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def backward(module, batch):
    module.zero_grad()
    q, p = module(batch.questions, batch.passages)
    loss = dpr_loss(q, p, torch.from_numpy(batch.targets)).loss
    loss.backward()
    return float(loss.detach()), gradients(module)


def assert_same(found, expected, atol=1e-6):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=atol), name


def padded_by_hand(start, batch, pooling):
    """All texts of one side as one padded batch of transformers, nothing of ours."""
    sides = []
    for texts in (batch.questions, batch.passages):
        width = max(len(text.ids) for text in texts)
        ids = torch.full((len(texts), width), start.tokenizer.pad_token_id)
        mask = torch.zeros(len(texts), width, dtype=torch.long)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)] = torch.tensor(text.ids)
            mask[row, : len(text.ids)] = 1
        states = start.whole(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].float()
        sides.append(
            states[:, 0] if pooling == "cls" else (states * weights).sum(1) / weights.sum(1)
        )
    return sides


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_loss_and_gradients_are_those_of_one_padded_batch(tiny_checkpoint, pooling, chunk):
    start = load(tiny_checkpoint)
    batch = batch_of(start)
    module = DprModule(start, None, pooling, pass_tokens=20, chunk_size=chunk).train()
    loss, found = backward(module, batch)
    module.zero_grad()
    q, p = padded_by_hand(start, batch, pooling)
    scores = q @ p.T
    expected = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.targets))
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    assert_same(found, gradients(module), atol=1e-5)


def test_chunks_compute_the_same_draws_of_dropout_again(tiny_checkpoint, monkeypatch):
    start = load(tiny_checkpoint, dropout=0.3)
    batch = batch_of(start)
    module = DprModule(start, None, "mean", pass_tokens=1000, chunk_size=2).train()
    torch.manual_seed(5)
    cached = backward(module, batch)
    after = torch.rand(1)
    monkeypatch.setattr(dpr, "checkpoint", lambda call, *given, use_reentrant: call(*given))
    torch.manual_seed(5)
    held = backward(module, batch)
    assert torch.equal(after, torch.rand(1))  # nor is the training's own row of draws moved
    assert cached[0] == held[0]
    assert_same(cached[1], held[1], atol=1e-7)
    torch.manual_seed(6)
    assert backward(module, batch)[0] != held[0]  # dropout is on


def test_dropout_is_what_was_asked_for(tiny_checkpoint):
    for rate, same in ((0.0, True), (0.4, False)):
        start = load(tiny_checkpoint, dropout=rate)
        module = DprModule(start, None, "mean", pass_tokens=1000).train()
        batch = batch_of(start)
        one, other = (module.embed_questions(batch.questions) for _ in range(2))
        assert torch.equal(one, other) == same


def test_two_towers_encode_their_own_side_and_one_both(tiny_checkpoint):
    query, passage = load(tiny_checkpoint), load(tiny_checkpoint)
    with torch.no_grad():
        for parameter in passage.whole.parameters():
            parameter.mul_(0.5)
    batch = batch_of(query)
    two = DprModule(query, passage, "mean", pass_tokens=1000)
    one = DprModule(query, None, "mean", pass_tokens=1000)
    assert torch.equal(two.embed_questions(batch.questions), one.embed_questions(batch.questions))
    assert not torch.allclose(
        two.embed_passages(batch.passages), one.embed_passages(batch.passages), atol=1e-3
    )
    _, found = backward(two, batch)
    assert {name.partition(".")[0] for name in found} == {"query", "passage"}


def test_texts_are_seen_as_the_encoder_sees_them(tiny_checkpoint):
    start = load(tiny_checkpoint)
    module = DprModule(start, None, "mean", pass_tokens=40).eval()
    encoder = Encoder.load(
        tiny_checkpoint,
        device="cpu",
        normalize=False,
        query_prefix="",
        passage_prefix="",
        title="pair",
        max_length=16,
        strip_question_mark=True,
    )
    seen = Inputs(
        start.tokenizer,
        query_length=16,
        passage_length=16,
        title="pair",
        strip_question_mark=True,
    )
    passages = [NILE, SEA, HILL, KING]
    with torch.no_grad():
        p = module.embed_passages(seen.passages(passages)).numpy()
        q = module.embed_questions(seen.questions([e.question for e in EXAMPLES])).numpy()
    np.testing.assert_allclose(p, encoder.encode_passages(passages), atol=1e-5)
    np.testing.assert_allclose(q, encoder.encode_queries([e.question for e in EXAMPLES]), atol=1e-5)


def test_known_positives_and_copies_are_masked(tiny_checkpoint):
    batch = batch_of(load(tiny_checkpoint))
    # passages: NILE SEA | SEA HILL | KING NILE | HILL KING; q1 is answered by SEA and by KING
    masked = known_positives(batch, torch.from_numpy(batch.keys))
    assert masked.int().tolist() == [
        [1, 0, 0, 0, 0, 1, 0, 0],
        [0, 1, 1, 0, 1, 0, 0, 1],
        [0, 0, 0, 0, 1, 0, 0, 1],
        [0, 0, 0, 1, 0, 0, 1, 0],
    ]


# -- several processes --


def config(output, **settings):
    return FinetuneConfig(
        train=("x",), output=output, device="cpu", trackers=("none",), batch_size=2, **settings
    )


class _Fixed:
    """Hands out a batch once."""

    epoch = 0.5

    def __init__(self, batch):
        self.batch = batch

    def next(self):
        return self.batch

    def state_dict(self):
        return {}


def _one_of_two(rank, port, checkpoint, folder):
    """Gradients of one process of two, as the trainer takes them."""
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"},
    }
    torch.set_num_threads(1)
    start = load(checkpoint)
    settings = config(folder, mask_positives=True)
    processes = Processes(settings, folder)
    assert processes.count == 2
    # the first has two questions with a negative each, the second one of its two without
    own = [[EXAMPLES[0], EXAMPLES[1]], [EXAMPLES[2], Example("x y", (HILL,), (), "q3")]][rank]
    module = DprModule(start, None, "mean", pass_tokens=1000, chunk_size=2)
    objective = DprObjective(settings, module, _Fixed(batch_of(start, own)), processes)
    wrapped, _ = processes.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    objective.draw(1)
    with processes.gathering(wrapped, now=True):
        loss = objective.loss(wrapped)
        processes.backward(loss.value)
    mean = processes.mean({"loss": float(loss.value.detach())})["loss"]
    torch.save({"loss": mean, "gradients": gradients(module)}, folder / f"{rank}.pt")


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_from_the_batch_of_both(tiny_checkpoint, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_one_of_two, (port, tiny_checkpoint, tmp_path), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    start = load(tiny_checkpoint)
    examples = [*EXAMPLES[:3], Example("x y", (HILL,), (), "q3")]
    batch = batch_of(start, examples)
    module = DprModule(start, None, "mean", pass_tokens=1000)
    q, p = module(batch.questions, batch.passages)
    masked = known_positives(batch, torch.from_numpy(batch.keys))
    loss = dpr_loss(q, p, torch.from_numpy(batch.targets), masked=masked).loss
    loss.backward()
    for each in found:
        assert each["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
        assert_same(each["gradients"], gradients(module), atol=1e-5)


class _Counting(_Fixed):
    """Says how many batches it has handed out."""

    count = 0

    def next(self):
        self.count += 1
        return self.batch

    def state_dict(self):
        return {"count": self.count}


def test_what_was_drawn_and_not_learned_from_is_drawn_again_on_resuming(tiny_checkpoint, tmp_path):
    start = load(tiny_checkpoint)
    settings = config(tmp_path)
    module = DprModule(start, None, "mean", pass_tokens=1000)
    data = _Counting(batch_of(start))
    objective = DprObjective(settings, module, data, Processes(settings, tmp_path))
    objective.draw(2)  # another process could not draw its own: the state of before is kept
    assert objective.state_dict()["data"] == {"count": 0}
    for _ in range(2):
        objective.loss(module)
    assert objective.state_dict()["data"] == {"count": 2}


# -- scores while training --


@pytest.mark.parametrize(("measure", "rises"), [("rank", False), ("nll", False), ("mrr", True)])
def test_better_is_a_lower_rank_or_loss_or_a_higher_mrr(tiny_checkpoint, tmp_path, measure, rises):
    settings = config(tmp_path)  # its best_by is rank, also where only a corpus is searched
    start = load(tiny_checkpoint)
    module = DprModule(start, None, "mean", pass_tokens=1000)
    objective = DprObjective(
        *(settings, module, _Fixed(None), Processes(settings, tmp_path)),
        lambda towers: {measure: 0.5},
    )
    assert objective.evaluate() == {measure: 0.5}
    assert objective.better(0.6, 0.5) == rises
    assert objective.better(0.4, 0.5) != rises


def test_each_question_of_dev_brings_its_first_positive_and_its_hard_negatives(
    tiny_checkpoint, tmp_path
):
    records = [
        {
            "question": example.question,
            "positive_ctxs": [{"title": p.title, "text": p.text} for p in example.positives],
            "hard_negative_ctxs": [{"title": p.title, "text": p.text} for p in example.negatives],
        }
        for example in EXAMPLES
    ]
    other = {"title": "", "text": "also x y"}
    records[3]["positive_ctxs"].append(other)
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    alone = SimpleNamespace(first=True, wait=lambda: None, lead=lambda work: work())
    start = load(tiny_checkpoint)
    evaluation = make_evaluation(
        *(config(tmp_path / "out"), [open_examples(str(path))], inputs(start), tmp_path / "kept"),
        alone,
    )
    dev = evaluation.dev
    # pool: q0's NILE SEA HILL, q1's SEA HILL, q2's KING NILE, q3's HILL KING SEA, each once;
    # `other`, a second positive, is ranked by none
    expected = inputs(start).passages([NILE, SEA, HILL, KING])
    assert [text.ids.tolist() for text in dev.passages] == [text.ids.tolist() for text in expected]
    assert dev.targets.tolist() == [0, 1, 3, 2]
    assert [rows.tolist() for rows in dev.batched] == [[0, 1], [1, 2], [3, 0], [2, 3]]
    assert [rows.tolist() for rows in dev.known] == [[0], [1, 3], [3], [2]]


def test_vectors_that_are_no_numbers_are_not_ranked():
    vectors = torch.tensor([[1.0, 0.0], [float("nan"), 0.0]])
    texts = [_Text(0), _Text(1)]
    dev = DevSet(texts, texts, np.array([0, 1]), [np.array([0]), np.array([1])], [])
    evaluation = RankingEvaluation(
        *(dev, None),
        **{"best_by": "rank", "batch_size": 2, "similarity": "dot", "temperature": 1.0},
        mask_positives=False,
    )
    with pytest.raises(ValueError, match="NaN or infinity"):
        evaluation(_Given(vectors, vectors))


def test_the_average_rank_is_counted_from_nought_and_draws_count_half():
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    p = torch.tensor([[3.0, 1.0], [2.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    # q0 scores 3 2 1 1: row 2 is third, and shares that with row 3; q1 scores 1 1 1 0: row 0 has
    # two others beside it, none before
    assert average_rank(q, p, torch.tensor([2, 0])) == pytest.approx((2.5 + 1) / 2)
    assert average_rank(q, p, torch.tensor([0, 3])) == pytest.approx((0 + 3) / 2)


class _Given:
    """Towers that give texts the vectors they are told; the first token names one."""

    def __init__(self, q, p):
        self.q, self.p = q, p

    def embed_questions(self, texts):
        return torch.stack([self.q[text.ids[0]] for text in texts])

    def embed_passages(self, texts):
        return torch.stack([self.p[text.ids[0]] for text in texts])


class _Text:
    def __init__(self, number):
        self.ids = [number]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_scores_are_those_of_plain_loops(similarity, masks):
    generator = torch.Generator().manual_seed(0)
    q, p = torch.randn(5, 3, generator=generator), torch.randn(8, 3, generator=generator)
    targets = np.array([0, 2, 4, 6, 7])
    batched = [np.array([t, (t + 1) % 8]) for t in targets]
    known = [np.array([t, (t + 2) % 8]) for t in targets]
    texts = [_Text(n) for n in range(8)]
    dev = DevSet(texts[:5], texts, targets, batched, known)
    searched = Searched(
        {f"q{n}": texts[n] for n in range(5)},
        {f"p{n}": texts[n] for n in range(8)},
        {f"q{n}": {f"p{targets[n]}": 1} for n in range(5)},
    )
    evaluation = RankingEvaluation(
        dev,
        searched,
        best_by="mrr",
        batch_size=2,
        similarity=similarity,
        temperature=0.5,
        mask_positives=masks,
    )
    found = evaluation(_Given(q, p))
    assert list(found) == ["mrr", "rank", "nll"]
    if similarity == "cosine":
        q, p = (side / side.norm(dim=1, keepdim=True) for side in (q, p))
    scores = (q.double() @ p.double().T).numpy()
    ranks = [int((row > row[t]).sum()) for row, t in zip(scores, targets, strict=True)]
    assert found["rank"] == pytest.approx(np.mean(ranks))
    assert found["mrr"] == pytest.approx(np.mean([1 / (1 + rank) for rank in ranks]))
    losses = []
    for first in (0, 2, 4):  # batches of two questions, the last of one
        rows = range(first, min(first + 2, 5))
        candidates = [int(row) for i in rows for row in batched[i]]
        for i in rows:
            own = candidates.index(int(targets[i])) if first == 4 else 2 * (i - first)
            terms = [
                math.exp(scores[i, row] / 0.5)
                for place, row in enumerate(candidates)
                if place == own or not (masks and row in known[i])
            ]
            losses.append(-math.log(math.exp(scores[i, targets[i]] / 0.5) / sum(terms)))
    assert found["nll"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_keys_tell_passages_apart_by_what_they_say():
    assert passage_key(NILE) == passage_key(Passage("other", NILE.text, NILE.title))
    assert passage_key(NILE) != passage_key(Passage("1", NILE.text, ""))
