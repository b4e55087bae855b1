"""``python -m ccpretrieve.finetune``: questions and passages to checkpoint, resumed, bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from ccpretrieve.config import EncodeConfig
from ccpretrieve.encode import run as encode
from ccpretrieve.errors import UserError
from ccpretrieve.finetune import run
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.model import random_checkpoint
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.search import run as search
from ccpretrieve.search_config import SearchConfig
from ccpretrieve.training.dpr import DprObjective
from ccpretrieve.training.finetuning import updates

ROOT = Path(__file__).parents[1]
THINGS = ["river", "mountain", "city", "water", "island", "king", "winter", "school"]
PLACES = ["north", "south", "egypt", "helsinki", "nile", "sea"]


def examples(count=24):
    """Questions about a thing in a place; the passage has both, the hard negative the thing."""
    made = []
    for number in range(count):
        thing, place = THINGS[number % 8], PLACES[number % 6]
        other = PLACES[(number + 1) % 6]
        made.append(
            {
                "question": f"{thing} {place}?",
                "answers": [place],
                "positive_ctxs": [{"title": thing, "text": f"the {thing} of {place} {number}"}],
                "hard_negative_ctxs": [{"title": thing, "text": f"a {thing} in {other} {number}"}],
            }
        )
    return made


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(examples()))
    return path


def config(questions, checkpoint, output, **settings):
    defaults = {
        **{"batch_size": 4, "max_steps": 6, "warmup_steps": 2, "learning_rate": 1e-3},
        **{"query_length": 16, "passage_length": 24, "device": "cpu", "trackers": ("none",)},
        **{"log_steps": 1, "save_steps": 2, "eval_steps": 2, "quiet": True, "tied": True},
        **{"encoder": str(checkpoint), "pooling": "mean"},
    }
    return FinetuneConfig(train=(str(questions),), output=output, **{**defaults, **settings})


def log(folder):
    lines = (folder / "training" / "log.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in made]


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_weights(one, other):
    for name, value in weights(one).items():
        np.testing.assert_allclose(value, weights(other)[name], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_the_result_is_a_checkpoint_that_everyone_loads(questions, tiny_checkpoint, tmp_path, tied):
    made = run(
        config(
            *(questions, tiny_checkpoint, tmp_path / "out"),
            **{"tied": tied, "similarity": "cosine", "temperature": 0.05, "title": "join"},
            strip_question_mark=False,
        )
    )
    ours = Encoder.load(made, device="cpu")
    assert ours.settings.similarity == "cosine"
    assert ours.settings.query_prefix == "query: "  # the start's own
    asked, passage = ["river north?"], "the river of north"
    q, p = ours.encode_queries(asked), ours.encode_passages([passage])
    assert np.abs(q - Encoder.load(tiny_checkpoint).encode_queries(asked)).max() > 1e-3
    from sentence_transformers import SentenceTransformer

    folders = {"query": made, "document": made}
    if not tied:
        folders = {"query": made / "query", "document": made / "passage"}
        one, other = weights(made / "query"), weights(made / "passage")
        assert any((one[name] != other[name]).any() for name in one)
    theirs = {
        name: SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        for name, folder in folders.items()
    }
    np.testing.assert_allclose(theirs["query"].encode(asked, prompt_name="query"), q, atol=1e-5)
    np.testing.assert_allclose(
        theirs["document"].encode([passage], prompt_name="document"), p, atol=1e-5
    )
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "p", "text": passage}) + "\n")
    index = encode(
        EncodeConfig(corpus=str(corpus), encoder=str(made), output=tmp_path / "index", quiet=True)
    )
    found = search(SearchConfig("river north?", index=index)).splitlines()[0]
    assert "p" in found


@pytest.mark.slow
def test_the_right_passage_is_learned(questions, tiny_checkpoint, tmp_path):
    out = run(
        config(
            *(questions, tiny_checkpoint, tmp_path / "out"),
            **{"max_steps": 60, "dropout": 0.0, "log_steps": 5, "eval_steps": 60},
            **{"similarity": "cosine", "temperature": 0.05, "learning_rate": 3e-3},
        )
    )
    losses = [line["dpr"] for line in log(out)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
def test_a_resumed_run_is_the_run_that_was_never_stopped(questions, tiny_checkpoint, tmp_path):
    settings = {"dev": (str(questions),), "negative": "random", "positive": "random"}
    whole = run(config(questions, tiny_checkpoint, tmp_path / "a", schedule="constant", **settings))
    run(
        config(
            questions, tiny_checkpoint, tmp_path / "b", schedule="constant", max_steps=4, **settings
        )
    )
    parts = run(
        config(
            *(questions, tiny_checkpoint, tmp_path / "b"),
            **{"resume": True, "schedule": "constant"},
            **settings,
        )
    )
    assert log(whole) == log(parts)
    assert_same_weights(whole, parts)


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_run_never_killed(questions, tiny_checkpoint, tmp_path):
    def words(output):
        return [
            *(sys.executable, "-m", "ccpretrieve.finetune", "--train", questions, "--tied"),
            *("--encoder", tiny_checkpoint, "--output", output, "--batch-size", "4"),
            *("--max-steps", "40", "--save-steps", "3", "--log-steps", "1", "--quiet"),
            *("--device", "cpu", "--trackers", "none", "--query-length", "16"),
            *("--passage-length", "24", "--warmup-steps", "2", "--learning-rate", "1e-3"),
        ]

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(words(tmp_path / "a"), cwd=ROOT, env=environment, check=True)
    killed = tmp_path / "b"
    child = subprocess.Popen(words(killed), cwd=ROOT, env=environment)
    end = time.monotonic() + 300
    while not list(killed.glob("training/step-*[0-9]")) and time.monotonic() < end:
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (killed / "config.json").exists()
    subprocess.run([*words(killed), "--resume"], cwd=ROOT, env=environment, check=True)
    assert_same_weights(tmp_path / "a", killed)


@pytest.mark.slow
def test_the_best_by_rank_becomes_the_checkpoint_and_patience_ends_a_run(
    questions, tiny_checkpoint, tmp_path
):
    out = run(
        config(
            *(questions, tiny_checkpoint, tmp_path / "out"),
            **{"dev": (str(questions),), "patience": 2, "max_steps": 200, "eval_steps": 1},
            **{"learning_rate": 0.5, "warmup_steps": 0, "schedule": "constant"},  # spoils all
        )
    )
    report = json.loads((out / "training" / "report.json").read_text())
    ranks = {line["step"]: line["rank"] for line in log(out) if "rank" in line}
    best = min(ranks, key=lambda step: (ranks[step], step))
    assert report["exported_step"] == best
    assert report["best"] == ranks[best]
    assert max(ranks) == best + 2 < 200


@pytest.mark.slow
def test_a_corpus_is_searched_while_training(questions, tiny_checkpoint, tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "collection").mkdir(parents=True)
    lines = [
        json.dumps({"id": f"p{n}", "contents": f"{thing}\n\nthe {thing}"})
        for n, thing in enumerate(THINGS)
    ]
    (corpus / "collection" / "docs.jsonl").write_text("\n".join(lines) + "\n")
    (corpus / "topic.dev.tsv").write_text("".join(f"q{n}\t{t}\n" for n, t in enumerate(THINGS)))
    (corpus / "qrels.dev.txt").write_text("".join(f"q{n} Q0 p{n} 1\n" for n in range(8)))
    out = run(
        config(
            *(questions, tiny_checkpoint, tmp_path / "out"),
            **{"dev_corpus": str(corpus), "best_by": "mrr", "max_steps": 2},
        )
    )
    (reached,) = [line["mrr"] for line in log(out) if "mrr" in line]
    index = encode(
        EncodeConfig(corpus=str(corpus), encoder=str(out), output=tmp_path / "index", quiet=True)
    )
    topics = str(corpus / "topic.dev.tsv")
    made = search(SearchConfig(index=index, topics=topics, output=tmp_path / "run.trec"))
    ranks = {}
    for line in Path(made).read_text().splitlines():
        topic, _, passage, rank, *_ = line.split()
        if passage[1:] == topic[1:]:
            ranks[topic] = 1 / int(rank)
    assert reached == pytest.approx(sum(ranks.values()) / 8, abs=1e-6)


def test_presets_are_the_papers_and_dprs(tmp_path):
    paper = FinetuneConfig(train=("nq",), output=tmp_path)
    assert (paper.batch_size, paper.learning_rate, paper.epochs) == (48, 1e-5, 20)
    assert (paper.tied, paper.similarity, paper.temperature) == (False, "dot", 1.0)
    assert (paper.warmup_steps, paper.clip, paper.weight_decay) == (1237, 2.0, 0.0)
    assert (paper.query_length, paper.passage_length, paper.title) == (256, 256, "pair")
    assert (paper.positive, paper.hard_negatives, paper.strip_question_mark) == ("first", 1, True)
    assert (paper.dropout, paper.seed, paper.pooling, paper.optimizer) == (0.1, 42, "cls", "adamw")
    dpr = FinetuneConfig.of_preset("dpr", train=("nq",), output=tmp_path, epochs=2)
    assert (dpr.batch_size, dpr.learning_rate, dpr.epochs) == (128, 2e-5, 2)  # what is given wins
    with pytest.raises(UserError, match="unknown preset 'dprr'"):
        FinetuneConfig.of_preset("dprr", train=("nq",), output=tmp_path)


def jsonl(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{"question": "who", "positive_ctxs": []}], "no positive passage"),
        ([{"question": " ", "positive_ctxs": [{"text": "x"}]}], "no question"),
        ([{"question": "who", "positive_ctxs": [{"text": " "}]}], "only empty positive passages"),
        ([{"question": "who", "positive_ctxs": [{"text": "x"}]}], "fewer than a batch"),
        ([{"question": "who"}], r"train\.jsonl:1: no \"positive_ctxs\""),
    ],
)
def test_bad_examples_are_one_line_and_leave_nothing(tmp_path, tiny_checkpoint, items, says):
    path = jsonl(tmp_path / "train.jsonl", *items)
    with pytest.raises(UserError, match=says):
        run(config(path, tiny_checkpoint, tmp_path / "out"))
    assert not any((tmp_path / "out").glob("*"))


def test_json_that_is_broken_is_named_by_its_line(tmp_path, tiny_checkpoint):
    path = jsonl(tmp_path / "train.jsonl", *examples(2))
    with path.open("a") as stream:
        stream.write('{"question": \n')
    with pytest.raises(UserError, match=r"train\.jsonl:3"):
        run(config(path, tiny_checkpoint, tmp_path / "out"))


def test_what_cannot_work_is_said_before_anything_is_read(tmp_path, tiny_checkpoint, questions):
    for settings, says in (
        ({"encoder": str(tmp_path / "absent")}, "no such directory"),
        ({"passage_length": 4096}, "takes at most"),
        ({"layers": 9}, "has 2 layers, not 9"),
        ({"dev_corpus": str(tmp_path / "absent")}, "absent"),
    ):
        with pytest.raises(UserError, match=says):
            run(config(questions, tiny_checkpoint, tmp_path / "out", **settings))
        assert not any((tmp_path / "out").glob("*"))


def test_a_checkpoint_of_two_towers_is_not_written_over(tmp_path, tiny_checkpoint, questions):
    for role in ("query", "passage"):
        shutil.copytree(tiny_checkpoint, tmp_path / "out" / role)
    with pytest.raises(UserError, match="holds a checkpoint; choose another folder"):
        run(config(questions, tiny_checkpoint, tmp_path / "out"))


def test_towers_that_read_texts_differently_are_refused(tmp_path, tiny_checkpoint, questions):
    shutil.copytree(tiny_checkpoint, tmp_path / "two" / "query")
    random_checkpoint.build(tmp_path / "two" / "passage", ["a b c"], vocabulary=270)
    with pytest.raises(UserError, match="its towers have different vocabularies"):
        run(config(questions, tmp_path / "two", tmp_path / "out", tied=False))
    with pytest.raises(UserError, match="has two towers; leave --tied out"):
        run(config(questions, tmp_path / "two", tmp_path / "out", tied=True))


def test_a_warm_up_longer_than_the_run_is_said(questions, tiny_checkpoint, tmp_path, caplog):
    settings = {"max_steps": 2, "save_steps": 9}
    run(config(questions, tiny_checkpoint, tmp_path / "a", warmup_steps=1, **settings))
    assert "--warmup-steps" not in caplog.text
    run(config(questions, tiny_checkpoint, tmp_path / "b", warmup_steps=2, **settings))
    assert "--warmup-steps 2: the rate never rises to --learning-rate in 2 updates" in caplog.text


def test_a_checkpoint_of_another_architecture_is_one_line(tmp_path, questions, tiny_checkpoint):
    strange = tmp_path / "strange"
    random_checkpoint.build(strange, ["a b c"], vocabulary=270)
    described = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps(described | {"model_type": "resnet"}))
    with pytest.raises(UserError, match="strange: cannot be loaded for training"):
        run(config(questions, strange, tmp_path / "out"))


def test_a_corpus_without_what_is_judged_is_refused(questions, tiny_checkpoint, tmp_path):
    (tmp_path / "c" / "collection").mkdir(parents=True)
    (tmp_path / "c" / "collection" / "docs.jsonl").write_text('{"id": "p1", "contents": "a b"}\n')
    (tmp_path / "c" / "topic.dev.tsv").write_text("q1\ta\n")
    (tmp_path / "c" / "qrels.dev.txt").write_text("q1 Q0 other 1\n")
    settings = {"dev_corpus": str(tmp_path / "c"), "best_by": "mrr"}
    with pytest.raises(UserError, match="none of the passages judged in split dev is in it"):
        run(config(questions, tiny_checkpoint, tmp_path / "out", **settings))


def test_a_question_alone_without_a_negative_is_refused(tmp_path, tiny_checkpoint):
    made = [{**example, "hard_negative_ctxs": []} for example in examples(4)]
    path = tmp_path / "train.json"
    path.write_text(json.dumps(made))
    with pytest.raises(UserError, match="no example has a hard negative"):
        run(config(path, tiny_checkpoint, tmp_path / "out", batch_size=1))
    made[3]["hard_negative_ctxs"] = examples(4)[3]["hard_negative_ctxs"]
    path.write_text(json.dumps(made))
    assert run(config(path, tiny_checkpoint, tmp_path / "out", batch_size=1, max_steps=1))


def test_settings_that_cannot_work_are_refused_at_once(tmp_path):
    for settings, says in (
        ({"train": ()}, "--train"),
        ({"temperature": 0.0}, "--temperature must be above 0"),
        ({"best_by": "mrr"}, "--best-by mrr is of --dev-corpus"),
        ({"patience": 2}, "--patience counts evaluations"),
        ({"batch_size": 1, "hard_negatives": 0}, "leaves no negative"),
        (
            {"batch_size": 1, "hard_negatives": 0, "accumulated_batch_size": 4},
            "leaves no negative",
        ),
        (
            {"negative": "random", "hard_negatives": 5, "negative_pool": 1},
            "--negative-pool 1 is less than --hard-negatives 5",
        ),
        ({"language_exponent": 0.5}, "add --mask-positives"),
        ({"dev_negatives": 2, "hard_negatives": 3}, "--dev-negatives must be at least 3"),
        ({"epochs": 0.0}, "--epochs must be above 0"),
        ({"chunk_size": 0}, "--chunk-size must be at least 1"),
        ({"positive": "last"}, "unknown positive"),
    ):
        with pytest.raises(UserError, match=says):
            FinetuneConfig(output=tmp_path, **{"train": ("x",), **settings})


def test_only_a_corpus_to_search_decides_by_what_it_finds(questions, tmp_path):
    settings = config(questions, "x", tmp_path, dev_corpus="c", max_steps=2)
    objective = DprObjective(settings, None, None, None, lambda module: {"mrr": 0.3})
    objective.evaluate()
    assert objective.better(0.4, 0.3)  # the higher is better, although ranks decide by default
    objective = DprObjective(settings, None, None, None, lambda module: {"rank": 3.0})
    objective.evaluate()
    assert objective.better(2.0, 3.0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"query_length": 4, "query_prefix": "a b c d"}, "--query-length 4: the prefix"),
        ({"passage_length": 4, "passage_prefix": "a b c d"}, "--passage-length 4: the prefix"),
        ({"query_length": 9999}, "use --query-length"),
    ],
)
def test_a_text_that_the_prefix_fills_is_refused_by_its_flag(
    questions, tiny_checkpoint, tmp_path, settings, says
):
    with pytest.raises(UserError, match=says):
        run(config(questions, tiny_checkpoint, tmp_path / "out", **settings))


@pytest.mark.slow
def test_a_model_that_names_its_width_otherwise_is_exported(questions, tiny_checkpoint, tmp_path):
    import transformers

    start = tmp_path / "distil"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)
    made = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=16, n_layers=1, n_heads=2, hidden_dim=16
    )
    transformers.DistilBertModel(made).save_pretrained(start)
    tokenizer.save_pretrained(start)
    out = run(config(questions, start, tmp_path / "out", max_steps=1))
    assert Encoder.load(out, device="cpu").encode_queries(["who"]).shape == (1, 16)


@pytest.mark.parametrize("kind", ["decoder", "no padding"])
def test_a_start_that_cannot_be_trained_is_one_line(questions, tmp_path, tiny_checkpoint, kind):
    start = tmp_path / "start"
    shutil.copytree(tiny_checkpoint, start)
    if kind == "decoder":
        described = {"model_type": "t5", "d_model": 8, "vocab_size": 400, "num_layers": 1}
        (start / "config.json").write_text(json.dumps(described | {"is_encoder_decoder": True}))
        says = "a t5 has a decoder, which is not trained here"
    else:
        path = start / "tokenizer_config.json"
        described = json.loads(path.read_text()) | {"pad_token": None}
        path.write_text(json.dumps(described | {"tokenizer_class": "PreTrainedTokenizerFast"}))
        (start / "special_tokens_map.json").unlink(missing_ok=True)
        says = "its tokenizer has no padding token"
    with pytest.raises(UserError, match=says):
        run(config(questions, start, tmp_path / "out"))
    assert not any((tmp_path / "out").glob("*"))


def test_epochs_without_end_are_max_steps(tmp_path):
    settings = FinetuneConfig(train=("x",), output=tmp_path, epochs=1e308, max_steps=7)
    assert updates(settings, batches=10, processes=1) == 7
    assert updates(FinetuneConfig(train=("x",), output=tmp_path, epochs=0.5), 10, 1) == 5
    accumulated = FinetuneConfig(
        train=("x",), output=tmp_path, batch_size=4, accumulated_batch_size=16, epochs=1.0
    )
    assert updates(accumulated, batches=10, processes=2) == 5  # two batches each an update
