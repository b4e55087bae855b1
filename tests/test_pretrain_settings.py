"""``python -m ccpretrieve.pretrain``: what cannot work is said at once, what is done is told."""

import contextlib
import errno
import io
import json
import logging
import os
import resource
import runpy
import sys

import numpy as np
import pytest

from ccpretrieve.data.documents import open_documents
from ccpretrieve.errors import UserError
from ccpretrieve.model import part, trainable, vocabulary
from ccpretrieve.pretrain import run
from ccpretrieve.training import preparation
from ccpretrieve.training.alignment import read_texts
from ccpretrieve.training.process import Processes
from ccpretrieve.training_config import PretrainConfig, TrainingConfig
from ccpretrieve.values import read_yaml, to_yaml

WORDS = ["river", "mountain", "city", "water", "island", "people", "king", "winter", "school"]
TEXTS = [f"{a} and {b} and {c}." for a in WORDS for b in WORDS for c in WORDS]


def write(folder, *documents, language="en"):
    """One document a list of sentences."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"lang": language, "sentences": sentences}) for sentences in documents]
    (folder / f"{language}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def documents(tmp_path):
    draw = np.random.default_rng(0)
    made = [[" ".join(draw.choice(WORDS, 6)) + "." for _ in range(6)] for _ in range(14)]
    return write(tmp_path / "documents", *made)


def config(documents, checkpoint, output, **settings):
    defaults = {
        **{"batch_size": 4, "accumulated_batch_size": 8, "max_steps": 1, "warmup_steps": 2},
        **{"bank_size": 10, "max_length": 24, "learning_rate": 1e-3, "log_steps": 1},
        **{"device": "cpu", "trackers": (), "quiet": True, "min_characters": 5},
        **{"encoder": None if settings.get("from_scratch") else str(checkpoint)},
        **{"shuffle_buffer": 6},
    }
    return PretrainConfig(corpus=str(documents), output=output, **{**defaults, **settings})


@contextlib.contextmanager
def largest_file(size):
    """The system refuses to make a file larger, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# -- refused on construction --


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"accumulated_batch_size": 0}, "--accumulated-batch-size must be at least 1, got 0"),
        ({"accumulated_batch_size": -8}, "--accumulated-batch-size must be at least 1, got -8"),
        ({"scratch_width": 128}, "--scratch-width 128: sizes an encoder made from scratch; add"),
        ({"scratch_vocabulary": 500}, "--scratch-vocabulary 500: sizes an encoder made"),
        ({"from_scratch": True, "scratch_width": 30}, "--scratch-width 30 must be a multiple of"),
        ({"from_scratch": True, "scratch_vocabulary": 262}, "must be at least 263, got 262"),
        ({"bank_device": "meta"}, "--bank-device meta holds shapes and no numbers"),
        ({"trackers": ("none", "wandb")}, "--trackers none goes with no other"),
        ({"patience": 3}, "--patience counts evaluations; give --eval-parallel"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(tmp_path, settings, says):
    with pytest.raises(UserError, match=says):
        config(tmp_path, "E", tmp_path / "out", **settings)


# -- refused before the corpus is counted --


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"layers": 9, "trim_vocabulary": True}, "has 2 layers, not 9; lower --layers"),
        ({"layers": 9}, "has 2 layers, not 9; lower --layers"),
        ({"max_length": 600, "trim_vocabulary": True}, "at most 512 tokens, asked for 600"),
        ({"bank_device": "gpu"}, "device 'gpu' cannot be used"),
        ({"prefix": "a b c d e f g h i j k l"}, "nothing is left of a sentence; raise it"),
        ({"bank_size": 10**12}, r"--bank-size 10{12} x 1 languages needs \S+ GB of memory, cpu"),
        ({"head_output": 10**12}, "a projection head of 32 x 32 x 10{12} needs"),
        ({"head_hidden": 10**12}, "a projection head of 32 x 10{12} x 32 needs"),
        ({"from_scratch": True, "scratch_width": 4 * 10**9}, "needs .*; lower --head-hidden"),
        (
            {"from_scratch": True, "scratch_width": 2**20, "head_hidden": 8, "head_output": 8},
            "an encoder of 4 layers, --scratch-width 1048576 needs .*; lower --scratch-width",
        ),
    ],
)
def test_what_is_known_without_the_corpus_is_said_before_it_is_counted(
    documents, tiny_checkpoint, tmp_path, monkeypatch, settings, says
):
    def counted(*_):
        pytest.fail("the corpus is counted first")

    monkeypatch.setattr(preparation, "take_censuses", counted)
    settings = {"max_length": 12, **settings}
    with pytest.raises(UserError, match=says):
        run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))


def test_a_model_without_a_head_for_masked_modelling_is_refused_before_its_weights_are_read(
    tiny_checkpoint, tmp_path
):
    from transformers import CLIPTextConfig

    CLIPTextConfig().save_pretrained(tmp_path)
    asked = {"layers": None, "prefix": "", "length": 8, "whole_words": False}
    with pytest.raises(UserError, match="cannot be loaded for training: .*CLIPTextConfig"):
        trainable.check(tmp_path, masked=True, **asked)
    assert trainable.check(tiny_checkpoint, masked=True, **asked) == 32


# -- what is in the corpus --


@pytest.mark.parametrize(
    ("sentences", "says"),
    [
        # a sentence of under 5 characters is too short
        (
            [["No.", "No."], ["Yes."]],
            r"en: 0 sentences are left after .* \(dropped: 3 too short\)$",
        ),
        (
            [[f"A sentence of {word} alone.", "No."] for word in WORDS],
            r"en: no document has two sentences left .* \(dropped: 9 too short\)$",
        ),
    ],
)
def test_where_too_little_is_left_it_is_said_what_was_dropped_and_why(
    tiny_checkpoint, tmp_path, sentences, says
):
    documents = write(tmp_path / "documents", *sentences)
    with pytest.raises(UserError, match=says):
        run(config(documents, tiny_checkpoint, tmp_path / "out"))


def test_a_census_that_stopped_early_proves_no_lack(documents, tiny_checkpoint, tmp_path):
    # one document of six sentences was counted, and a batch has eight
    run(
        config(
            documents,
            tiny_checkpoint,
            tmp_path / "out",
            census_documents=1,
            batch_size=8,
        )
    )


def test_sentences_of_another_document_need_another_document(tiny_checkpoint, tmp_path):
    documents = write(tmp_path / "documents", [f"A sentence of {word}." for word in WORDS])
    with pytest.raises(UserError, match="en: only 1 documents have .* --positive random"):
        run(config(documents, tiny_checkpoint, tmp_path / "out", positive="random"))


def test_a_tag_that_the_corpus_has_may_be_asked_for(tmp_path):
    documents = write(tmp_path, ["他们说的话很长。", "这是另一句话。"], language="zh-Hant")
    assert list(open_documents(str(documents), ("zh-Hant",))) == ["zh"]
    with pytest.raises(UserError, match="unknown language 'zh-Latn'"):
        open_documents(str(documents), ("zh-Latn",))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("5-9", "--eval-documents 5-9: .*no line is of these .* counted from 1 there are 2"),
        ("0", "--eval-documents 0: .*give numbers from 1"),
    ],
)
def test_documents_to_score_by_are_counted_from_1_and_named_with_their_flag(tmp_path, asked, says):
    for code in ("en", "fi"):
        (tmp_path / f"{code}.txt").write_text("a\nb\nc\n")
    (tmp_path / "DOCUMENT_IDS.txt").write_text("first\nfirst\nsecond\n")
    with pytest.raises(UserError, match=says):
        read_texts(tmp_path, (), asked)


# -- what is told --


def told(caplog):
    return "\n".join(record.getMessage() for record in caplog.records)


def test_what_was_not_measured_is_not_called_healthy(documents, tiny_checkpoint, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ccpretrieve")
    out = run(config(documents, tiny_checkpoint, tmp_path / "out", mlm_share=1.0))
    assert "healthy" not in told(caplog)
    assert "health: too little was measured to judge it (0 lines of the log" in told(caplog)
    report = json.loads((out / "training" / "report.json").read_text())
    assert report["health"]["unmeasured"] == ["leak", "collapse"]


def test_sentences_that_were_cut_are_counted_in_the_log(
    documents, tiny_checkpoint, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "ccpretrieve")
    settings = {"max_length": 5, "prefix": "", "max_steps": 2}
    run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))
    # six words and a full stop are more than the three tokens beside <s> and </s>; two updates of
    # eight windows of two sentences
    assert "32 of about 32 sentences were cut to --max-length 5 tokens" in told(caplog)


def test_the_banks_size_is_said_at_the_start(documents, tiny_checkpoint, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ccpretrieve")
    run(config(documents, tiny_checkpoint, tmp_path / "out", bank_size=5_000_000))
    # 5 million vectors of 32 numbers of 4 bytes, and a key of 8 bytes each: 0.68 GB
    assert "memory bank: up to 0.68 GB in 1 languages" in told(caplog)


def test_under_python_m_the_command_says_how_it_went(
    documents, tiny_checkpoint, tmp_path, monkeypatch, capsys
):
    words = [
        *("--corpus", documents, "--encoder", tiny_checkpoint, "--output", tmp_path / "out"),
        *("--batch-size", "4", "--accumulated-batch-size", "8", "--max-steps", "2"),
        *("--bank-size", "10", "--max-length", "24", "--device", "cpu", "--trackers", "none"),
        *("--max-minutes", "0.00001"),
    ]
    monkeypatch.setattr(sys, "argv", ["pretrain", *map(str, words)])
    monkeypatch.delitem(sys.modules, "ccpretrieve.pretrain")
    runpy.run_module("ccpretrieve.pretrain", run_name="__main__")
    assert "stopped after 1e-05 minutes at step 1 of 2; --resume goes on" in capsys.readouterr().err


def test_the_bar_ends_where_the_run_does(documents, tiny_checkpoint, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    settings = {"max_steps": 3, "quiet": False}
    run(config(documents, tiny_checkpoint, tmp_path / "out", **settings))
    last = sys.stderr.getvalue().strip().splitlines()[-1].rpartition("\r")[2]
    assert last.startswith("100%")
    assert " 3/3 " in last


def test_recomputed_activations_give_transformers_nothing_to_warn_of(tiny_checkpoint, caplog):
    import torch
    from transformers.utils import logging as theirs

    model = trainable.load(tiny_checkpoint, masked=False).whole.train()
    trainable.recompute_activations(model)
    theirs.warning_once.cache_clear()
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        model(input_ids=torch.tensor([[0, 5, 6, 2]]))
    finally:
        logger.removeHandler(caplog.handler)
    assert "use_cache" not in told(caplog)


# -- trackers --


def test_an_empty_list_of_trackers_survives_print_config(tmp_path):
    asked = TrainingConfig(output=tmp_path, trackers=())
    (tmp_path / "settings.yaml").write_text(to_yaml(asked))
    assert read_yaml(tmp_path / "settings.yaml", TrainingConfig)["trackers"] == ()
    assert "\ntrackers:" not in to_yaml(TrainingConfig(output=tmp_path))


def test_none_is_no_tracker(documents, tiny_checkpoint, tmp_path):
    out = run(config(documents, tiny_checkpoint, tmp_path / "out", trackers=("none",)))
    assert not list(out.rglob("*tfevents*"))


def test_a_tracker_that_cannot_write_is_warned_of_once_and_training_goes_on(
    tmp_path, caplog, capfd
):
    pytest.importorskip("tensorboard")
    processes = Processes(
        TrainingConfig(output=tmp_path, trackers=("tensorboard",), device="cpu"), tmp_path
    )
    processes.track("ccp", {"batch_size": 2})
    with largest_file(1000):
        for step in range(200):
            processes.log({"loss": 1.0, "accuracy": 0.5}, step)
        processes.end()
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warned == [
        "what trackers keep cannot be written (File too large); going on without them"
    ]
    assert "Traceback" not in capfd.readouterr().err


def test_a_tracker_that_cannot_begin_is_warned_of(tmp_path, caplog):
    pytest.importorskip("tensorboard")
    (tmp_path / "ccp").write_text("a file where its folder belongs")
    processes = Processes(
        TrainingConfig(output=tmp_path, trackers=("tensorboard",), device="cpu"), tmp_path
    )
    processes.track("ccp", {"batch_size": 2})
    processes.log({"loss": 1.0}, 1)
    processes.end()
    assert "going on without them" in told(caplog)


# -- a full disk --


@pytest.mark.parametrize("size", [100, 3000, 100_000])  # no settings, no tokenizer, no weights
def test_an_encoder_that_cannot_be_made_is_one_line(tmp_path, size):
    made = tmp_path / "start"
    sizes = {"vocabulary": 400, "width": 64, "layers": 2, "heads": 2, "positions": 64}
    with largest_file(size), pytest.raises(UserError, match=r"start: cannot be written: File too"):
        vocabulary.from_scratch(made, TEXTS, **sizes, seed=0)
    assert not list(tmp_path.iterdir())


def test_a_trimmed_encoder_that_cannot_be_written_is_one_line(tiny_checkpoint, tmp_path):
    with largest_file(30_000), pytest.raises(UserError, match="start: cannot be written: File too"):
        vocabulary.trim(tiny_checkpoint, tmp_path / "start", TEXTS)
    assert not list(tmp_path.iterdir())


def test_libraries_in_rust_say_the_systems_number():
    # as tokenizers and safetensors word it
    full = part.os_error(Exception("No space left on device (os error 28)"))
    assert full.errno == errno.ENOSPC
    assert full.strerror == os.strerror(errno.ENOSPC)
    assert part.os_error(Exception("a bug")) is None
    said = UserError("x: weights cannot be read: No such file or directory (os error 2)")
    assert part.os_error(said) is None
