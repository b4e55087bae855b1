"""``python -m ccpretrieve.pretrain``: documents to checkpoint, killed and resumed, bad input."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ccpretrieve.errors import UserError
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.pretrain import run
from ccpretrieve.training_config import PretrainConfig

ROOT = Path(__file__).parents[1]
WORDS = {
    "en": ["river", "mountain", "city", "water", "island", "people", "king", "winter", "school"],
    "fi": ["joki", "vuori", "kaupunki", "vesi", "saari", "ihmiset", "kuningas", "talvi", "koulu"],
}


def write_documents(folder, languages=("en", "fi"), documents=14, sentences=6):
    """Documents each about two words of its own, so that a neighbour can be told."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for language in languages:
        words = WORDS[language]
        lines = []
        for number in range(documents):
            about = generator.choice(words, 2, replace=False)
            made = [" ".join([*about, *generator.choice(words, 4)]) + "." for _ in range(sentences)]
            lines.append(
                json.dumps({"id": f"{language}{number}", "lang": language, "sentences": made})
            )
        (folder / f"{language}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def documents(tmp_path):
    return write_documents(tmp_path / "documents")


def config(documents, checkpoint, output, **settings):
    defaults = {
        **{"batch_size": 4, "accumulated_batch_size": 8, "max_steps": 6, "warmup_steps": 2},
        **{"bank_size": 10, "max_length": 24, "learning_rate": 1e-3, "log_steps": 1},
        **{"save_steps": 2, "probe_steps": 2, "device": "cpu", "trackers": (), "quiet": True},
        **{"encoder": str(checkpoint), "shuffle_buffer": 6, "min_characters": 5},
        **{"eval_steps": 2},
    }
    return PretrainConfig(corpus=str(documents), output=output, **{**defaults, **settings})


def weights(folder):
    return load_file(folder / "model.safetensors")


def log(folder):
    lines = (folder / "training" / "log.jsonl").read_text().splitlines()
    made = [json.loads(line) for line in lines]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in made]


def test_the_head_may_learn_while_the_encoder_stands_still(documents, tiny_checkpoint, tmp_path):
    import torch

    outputs, losses = [], []
    for rate in (None, 1e-2):
        settings = config(
            documents,
            tiny_checkpoint,
            tmp_path / str(rate),
            learning_rate=1e-30,
            head_learning_rate=rate,
            mlm_share=0.0,
            warmup_steps=0,
        )
        outputs.append(run(settings))
        losses.append([line["ccp"] for line in log(settings.output)])
    for name, weight in weights(outputs[0]).items():
        torch.testing.assert_close(weights(outputs[1])[name], weight, rtol=0, atol=1e-12)
    assert losses[0][0] == losses[1][0]  # before the first update
    assert abs(losses[0][-1] - losses[1][-1]) > 1e-3


@pytest.mark.slow
def test_the_result_is_a_checkpoint_that_everyone_loads(documents, tiny_checkpoint, tmp_path):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    out = run(config(documents, tiny_checkpoint, tmp_path / "out"))
    before, after = weights(tiny_checkpoint), weights(out)
    assert before.keys() == after.keys()  # no head
    assert any(not torch.equal(before[name], after[name]) for name in before)
    questions = ["The river flows north.", "joki virtaa"]
    ours = Encoder.load(out).encode_queries(questions)
    theirs = SentenceTransformer(str(out), device="cpu").encode(questions, prompt_name="query")
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    tokens = AutoTokenizer.from_pretrained(out)(
        [f"query: {question}" for question in questions], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        states = AutoModel.from_pretrained(out).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"][:, :, None]
    mean = (states * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(ours, torch.nn.functional.normalize(mean).numpy(), atol=1e-6)
    report = json.loads((out / "training" / "report.json").read_text())
    assert report["step"] == report["exported_step"] == 6
    assert {line["step"] for line in log(out)} == set(range(1, 7))


@pytest.mark.slow
def test_the_loss_falls_where_context_can_be_told(tmp_path, tiny_checkpoint):
    documents = write_documents(tmp_path / "documents", documents=60)
    settings = {
        **{"batch_size": 16, "accumulated_batch_size": 16, "max_steps": 60, "mlm_share": 0.0},
        **{"pooling": "mean", "save_steps": 60, "shuffle_buffer": 60, "temperature": 0.1},
    }
    out = run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))
    losses = [line["ccp"] for line in log(out)]
    bounds = [line["bound"] for line in log(out)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.3
    assert np.mean(bounds[-10:]) > np.mean(bounds[:10]) + 0.3
    report = json.loads((out / "training" / "report.json").read_text())
    assert report["health"]["verdict"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mlm_share": 0.0, "batch_norm": "shuffled", "batch_size": 8, "mask_duplicates": True},
        {"contexts": 2, "bank": "shared", "bank_entries": "both", "bank_dtype": "bfloat16"},
        {"bank": "none", "head": "two", "batch_norm": "plain", "whole_words": True},
        {"optimizer": "adamw", "weight_decay": 0.01, "schedule": "linear", "l2": False},
        {"dtype": "bfloat16"},
        {"layers": 1, "freeze_embeddings": True, "gradient_checkpointing": True},
    ],
    ids=lambda settings: "-".join(settings) or "defaults",
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(
    documents, tiny_checkpoint, tmp_path, settings
):
    whole = run(config(documents, tiny_checkpoint, tmp_path / "a", **settings))
    shorter = {"max_steps": 3} if settings.get("schedule") != "linear" else {"max_minutes": 1e-9}
    run(config(documents, tiny_checkpoint, tmp_path / "b", **settings, **shorter))
    resumed = run(config(documents, tiny_checkpoint, tmp_path / "b", **settings, resume=True))
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weight, weights(resumed)[name], atol=1e-6, rtol=0)
    for one, two in zip(log(whole), log(resumed), strict=True):
        assert one == pytest.approx(two, abs=1e-6)


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_it_is_the_run_never_killed(
    documents, tiny_checkpoint, tmp_path
):
    settings = {"max_steps": 8, "save_steps": 1}
    whole = run(config(documents, tiny_checkpoint, tmp_path / "a", **settings))
    command = [
        *(sys.executable, "-m", "ccpretrieve.pretrain", "--corpus", documents),
        *("--encoder", tiny_checkpoint, "--output", tmp_path / "b", "--batch-size", "4"),
        *("--accumulated-batch-size", "8", "--max-steps", "8", "--warmup-steps", "2"),
        *("--bank-size", "10", "--max-length", "24", "--learning-rate", "1e-3"),
        *("--log-steps", "1", "--save-steps", "1", "--probe-steps", "2", "--device", "cpu"),
        *("--shuffle-buffer", "6", "--min-characters", "5", "--quiet"),
    ]
    states = tmp_path / "b" / "training"
    killed = 0
    for kill_after in (1, 4, 6):
        resume = ["--resume"] if any(states.glob("step-*[0-9]")) else []
        process = subprocess.Popen([*map(str, command), *resume], cwd=ROOT, stderr=subprocess.PIPE)
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            if any(int(path.name[5:13]) >= kill_after for path in states.glob("step-*")):
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed == 3
    subprocess.run([*map(str, command), "--resume"], cwd=ROOT, check=True)
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weight, weights(tmp_path / "b")[name], atol=1e-6, rtol=0)
    assert [line["step"] for line in log(tmp_path / "b")] == list(range(1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_no_result_depends_on_how_sentences_pass_through_the_transformer(tmp_path, share):
    # without dropout, whose draws do
    from ccpretrieve.model import random_checkpoint

    documents = write_documents(tmp_path / "documents")
    checkpoint = random_checkpoint.build(tmp_path / "start", WORDS["en"] * 9, vocabulary=300)
    settings = json.loads((checkpoint / "config.json").read_text())
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (checkpoint / "config.json").write_text(json.dumps(settings))
    made = [
        run(
            config(
                documents,
                checkpoint,
                tmp_path / str(tokens),
                pass_tokens=tokens,
                mlm_share=share,
                max_steps=3,
            )
        )
        for tokens in (1, 60, 100_000)
    ]
    for name, weight in weights(made[0]).items():
        for other in made[1:]:
            torch.testing.assert_close(weight, weights(other)[name], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_two_processes_train_one_model(documents, tiny_checkpoint, tmp_path):
    settings = [
        *("--batch-size", "2", "--accumulated-batch-size", "8", "--max-steps", "4"),
        *("--bank-scope", "all", "--bank-size", "10", "--max-length", "24", "--log-steps", "1"),
        *("--save-steps", "2", "--device", "cpu", "--shuffle-buffer", "6"),
        *("--min-characters", "5", "--quiet"),
    ]
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
    ]
    command = [
        *(*launch, "-m", "ccpretrieve.pretrain", "--corpus", documents),
        *("--encoder", tiny_checkpoint, "--output", tmp_path / "out", *settings),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{tmp_path / 'out'}\n"  # from the first alone
    states = [
        torch.load(tmp_path / f"out/training/step-00000004/rank-{rank}.pt", weights_only=True)
        for rank in (0, 1)
    ]
    sums = [state["weights"] for state in states]
    assert sums[0] == sums[1]  # gradients were averaged
    banks = [state["objective"]["bank"]["rings"] for state in states]
    assert banks[0].keys() == banks[1].keys()  # the same languages at each step
    for language, ring in banks[0].items():
        assert torch.equal(ring["vectors"], banks[1][language]["vectors"])  # and the same rows
    streams = [state["objective"]["data"]["streams"] for state in states]
    pools = [{entry[0] for entry in stream["en"]["pool"]} for stream in streams]
    assert not pools[0] & pools[1]  # of different documents
    assert Encoder.load(tmp_path / "out").encode_queries(["a"]).shape == (1, 32)


@pytest.mark.slow
def test_two_processes_killed_and_resumed_are_those_never_killed(
    documents, tiny_checkpoint, tmp_path
):
    def launch(output, *more):
        settings = [
            *("--batch-size", "2", "--accumulated-batch-size", "8", "--bank-size", "10"),
            *("--max-length", "24", "--save-steps", "2", "--device", "cpu", "--contexts", "2"),
            *("--bank-scope", "all", "--shuffle-buffer", "6", "--min-characters", "5", "--quiet"),
        ]
        command = [
            *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"),
            *("--num_processes", "2", "-m", "ccpretrieve.pretrain", "--corpus", documents),
            *("--encoder", tiny_checkpoint, "--output", output, *settings, *more),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, check=True
        )
        return output

    whole = launch(tmp_path / "a", "--max-steps", "4")
    parts = launch(tmp_path / "b", "--max-steps", "2")
    launch(parts, "--max-steps", "4", "--resume")
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weight, weights(parts)[name], atol=1e-6, rtol=0)


@pytest.mark.slow
def test_the_two_views_of_one_sentence_differ_by_dropout(documents, tiny_checkpoint, tmp_path):
    from ccpretrieve.training.ccp import CcpModule

    seen = []
    honest = CcpModule.embed

    def embed(self, ids, attention, lengths):
        h = honest(self, ids, attention, lengths)
        seen.append(h.detach())
        return h

    settings = {"positive": "same", "mlm_share": 0.0, "max_steps": 2, "probe_steps": 100}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CcpModule, "embed", embed)
        run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))
    for h in seen:
        assert (h[:4] - h[4:]).abs().max() > 1e-4


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_is_one_line(
    documents, tiny_checkpoint, tmp_path, monkeypatch
):
    from safetensors import SafetensorError
    from transformers import XLMRobertaModel

    def full(*args, **kwargs):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(XLMRobertaModel, "save_pretrained", full)
    settings = {"max_steps": 1, "mlm_share": 0.0}
    with pytest.raises(UserError, match="out: no space left on the disk; free some"):
        run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["training"]
    monkeypatch.undo()
    out = run(config(documents, tiny_checkpoint, tmp_path / "out", **settings, resume=True))
    assert (out / "config.json").is_file()


@pytest.mark.slow
def test_the_best_state_becomes_the_checkpoint(documents, tiny_checkpoint, tmp_path):
    parallel = tmp_path / "parallel"
    parallel.mkdir()
    for code in ("en", "fi"):
        (parallel / f"{code}.txt").write_text("".join(f"{word}\n" for word in WORDS[code]))
    settings = {"eval_parallel": parallel, "eval_steps": 1, "max_steps": 5, "learning_rate": 0.03}
    out = run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))
    lines = [line for line in log(out) if "parallel_accuracy" in line]
    scores = {line["step"]: line["parallel_accuracy"] for line in lines}
    report = json.loads((out / "training" / "report.json").read_text())
    best = max(scores, key=lambda step: (scores[step], -step))
    assert report["exported_step"] == best
    assert report["best"] == pytest.approx(scores[best])
    state = torch.load(out / "training" / f"step-{best:08d}" / "common.pt", weights_only=True)[
        "module"
    ]
    for name, weight in weights(out).items():
        kept = next(value for key, value in state.items() if key.endswith(name))
        assert torch.equal(weight, kept)


@pytest.mark.slow
def test_from_scratch_needs_no_encoder(documents, tmp_path):
    settings = {
        **{"encoder": None, "from_scratch": True, "scratch_vocabulary": 300, "layers": 1},
        **{"scratch_width": 16, "scratch_heads": 2, "max_steps": 2},
    }
    out = run(config(documents, "", tmp_path / "out", **settings))
    assert Encoder.load(out).encode_queries(["river"]).shape == (1, 16)


@pytest.mark.slow
def test_a_trimmed_vocabulary_keeps_what_the_corpus_uses(documents, tiny_checkpoint, tmp_path):
    out = run(
        config(documents, tiny_checkpoint, tmp_path / "out", trim_vocabulary=True, max_steps=1)
    )
    key = "embeddings.word_embeddings.weight"
    assert weights(out)[key].shape[0] < weights(tiny_checkpoint)[key].shape[0]


def test_one_writer_at_a_time(documents, tiny_checkpoint, tmp_path):
    from ccpretrieve.files import only_writer

    with (
        only_writer(tmp_path / "out", "training"),
        pytest.raises(UserError, match="another process"),
    ):
        run(config(documents, tiny_checkpoint, tmp_path / "out"))


def jsonl(path, *items):
    path.mkdir()
    (path / "en.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.mark.parametrize(
    ("items", "says"),
    [
        (
            [
                {"lang": "en", "sentences": [f"A sentence of {word} alone."]}
                for word in ("river", "mountain", "city", "water", "island")
            ],
            "en: no document has two sentences left after cleaning, so there is no pair",
        ),
        ([{"lang": "en", "text": ""}], "en: 0 sentences are left after cleaning, fewer than"),
        (
            [{"lang": "en", "sentences": ["The first of two.", "The second of two."]}],
            "en: 2 sentences are left after cleaning, fewer than a batch of 4; leave it out",
        ),
        ([{"lang": "xx-klingon", "text": "A text of no language."}], "unknown language 'xx"),
    ],
)
def test_documents_that_give_no_batch_are_an_error(tmp_path, tiny_checkpoint, items, says):
    documents = jsonl(tmp_path / "documents", *items)
    with pytest.raises(UserError, match=says):
        run(config(documents, tiny_checkpoint, tmp_path / "out"))
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_document_that_cannot_be_read_is_named_with_its_line(
    documents, tiny_checkpoint, tmp_path
):
    with (documents / "en.jsonl").open("a") as stream:
        stream.write("{broken\n")
    with pytest.raises(UserError, match=r"en\.jsonl:15: "):
        run(config(documents, tiny_checkpoint, tmp_path / "out"))


def test_gzipped_documents_are_documents(documents, tiny_checkpoint, tmp_path):
    plain = run(config(documents, tiny_checkpoint, tmp_path / "a", max_steps=2))
    for path in list(documents.iterdir()):
        with gzip.open(f"{path}.gz", "wb") as stream:
            stream.write(path.read_bytes())
        path.unlink()
    packed = run(config(documents, tiny_checkpoint, tmp_path / "b", max_steps=2))
    for name, weight in weights(plain).items():
        assert torch.equal(weight, weights(packed)[name])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_length": 100_000}, "takes at most 512 tokens, asked for 100000"),
        ({"layers": 9}, "has 2 layers, not 9"),
        ({"eval_parallel": Path("/nowhere")}, "/nowhere"),
        ({"bank_device": "gpu"}, "device 'gpu' cannot be used"),
        ({"languages": ("sw",)}, "sw"),
        ({"encoder": "/nowhere/at/all"}, "nowhere"),
    ],
)
def test_what_the_encoder_or_the_corpus_lacks_is_said(
    documents, tiny_checkpoint, tmp_path, settings, says
):
    with pytest.raises(UserError, match=says):
        run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temperature": 0.0}, "--temperature must be above 0"),
        ({"bank": "languages"}, "unknown bank 'languages'; did you mean 'language'"),
        ({"mlm_share": 1.5}, "--mlm-share must lie from 0 to 1"),
        ({"radius": 1, "contexts": 3}, "a radius of 1 has 2 at most"),
        ({"batch_norm": "shuffled"}, "2 windows in each of its 4 groups"),
        ({"eval_languages": ("fr",)}, "need --eval-parallel"),
        ({"encoder": None, "from_scratch": True, "scratch_heads": 0}, "--scratch-heads must be"),
        ({"encoder": None, "from_scratch": True, "trim_vocabulary": True}, "leave --trim-voc"),
        ({"from_scratch": True}, "leave --encoder out"),
        ({"batch_size": 1, "accumulated_batch_size": 1}, "--batch-size must be at least 2"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(
    documents, tiny_checkpoint, tmp_path, settings, says
):
    with pytest.raises(UserError, match=says):
        config(documents, tiny_checkpoint, tmp_path / "out", **settings)
