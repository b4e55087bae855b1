"""What a pretraining leaves behind when it ends early, and what it can go on from."""

import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from ccpretrieve.data.batches import Batch
from ccpretrieve.errors import UserError
from ccpretrieve.model.losses import ccp_loss
from ccpretrieve.model.projection import Projection
from ccpretrieve.pretrain import run
from ccpretrieve.training.health import Health
from ccpretrieve.training.process import Processes
from ccpretrieve.training.states import WRITTEN
from ccpretrieve.training.watch import Seen, Watch

from .test_pretrain import ROOT, config, documents, log, weights

__all__ = ["documents"]  # a fixture


def broken_at(path, number):
    """Break a line without a change of the file's size; what was there comes back."""
    before = path.read_text()
    lines = before.splitlines()
    lines[number - 1] = lines[number - 1][:-1] + "!"
    path.write_text("\n".join(lines) + "\n")
    return before


# -- documents --


def test_a_line_that_cannot_be_read_ends_a_run_with_its_last_update_and_mended_it_goes_on(
    documents, tiny_checkpoint, tmp_path
):
    settings = {"census_documents": 5, "shuffle_buffer": 4, "save_steps": 100, "eval_steps": 100}
    settings |= {"max_steps": 14, "languages": ("en",)}
    whole = run(config(documents, tiny_checkpoint, tmp_path / "a", **settings))
    before = broken_at(documents / "en.jsonl", 10)
    broken = config(documents, tiny_checkpoint, tmp_path / "b", **settings)
    with pytest.raises(UserError) as caught:
        run(broken)
    (state,) = (tmp_path / "b" / "training").glob("step-*")
    step = int(state.name[5:])
    assert 0 < step < 14
    assert str(caught.value).startswith(f"{documents / 'en.jsonl'}:10: not JSON at column")
    assert f"; the state of step {step} is kept" in str(caught.value)
    again = config(documents, tiny_checkpoint, tmp_path / "b", **settings, resume=True)
    with pytest.raises(UserError, match="en.jsonl:10: not JSON"):
        run(again)
    (documents / "en.jsonl").write_text(before)
    mended = run(again)
    for name, weight in weights(whole).items():
        torch.testing.assert_close(weight, weights(mended)[name], atol=1e-6, rtol=0)
    for one, two in zip(log(whole), log(mended), strict=True):
        assert one == pytest.approx(two, abs=1e-6)


def test_documents_that_were_read_may_not_change(documents, tiny_checkpoint, tmp_path):
    run(config(documents, tiny_checkpoint, tmp_path / "out", max_steps=1))
    path = documents / "en.jsonl"
    path.write_text(path.read_text().replace("river", "RIVER"))  # as long
    with pytest.raises(UserError, match="en: documents that were read already are not what they"):
        run(config(documents, tiny_checkpoint, tmp_path / "out", max_steps=2, resume=True))


@pytest.mark.parametrize("now", [("en",), ("en", "fi", "sw")])
def test_a_language_that_came_or_went_is_named(documents, tiny_checkpoint, tmp_path, now):
    run(config(documents, tiny_checkpoint, tmp_path / "out", max_steps=1))
    text = (documents / "fi.jsonl").read_text()
    (documents / "fi.jsonl").unlink()
    for code in now[1:]:
        (documents / f"{code}.jsonl").write_text(text.replace('"lang": "fi"', f'"lang": "{code}"'))
    says = f"was begun with documents in en, fi; there are {', '.join(now)} now"
    with pytest.raises(UserError, match=says):
        run(config(documents, tiny_checkpoint, tmp_path / "out", max_steps=2, resume=True))


def test_an_output_among_the_documents_is_refused(documents, tiny_checkpoint):
    with pytest.raises(UserError, match="lies in the folder of --corpus, where all files are read"):
        run(config(documents, tiny_checkpoint, documents / "runs" / "out"))
    assert sorted(path.name for path in documents.glob("*.jsonl")) == ["en.jsonl", "fi.jsonl"]
    assert not (documents / "runs" / "out").exists()


# -- what is removed and left --


def test_a_start_that_fails_removes_nothing_and_leaves_nothing(
    documents, tiny_checkpoint, tmp_path
):
    theirs = tmp_path / "out" / "training" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    for corpus in (tmp_path / "missing", documents):
        with pytest.raises(UserError, match=r"missing|notes\.txt, which is of no training"):
            run(config(corpus, tiny_checkpoint, tmp_path / "out"))
    assert theirs.read_text() == "mine"
    for number, corpus in enumerate((tmp_path / "missing", documents)):
        output = tmp_path / f"new{number}"
        with pytest.raises(UserError):  # the census finds fewer sentences than a batch has
            run(config(corpus, tiny_checkpoint, output, batch_size=512, accumulated_batch_size=512))
        assert not output.exists()


def test_a_run_writes_nothing_that_it_would_not_clear(documents, tmp_path):
    settings = {"encoder": None, "from_scratch": True, "scratch_vocabulary": 300, "layers": 1}
    settings |= {"scratch_width": 16, "scratch_heads": 2, "max_steps": 1, "trackers": None}
    out = run(config(documents, "", tmp_path / "out", **settings))
    names = {path.name for path in (out / "training").iterdir()}
    assert {"start", "census.json", "log.jsonl", "report.json", "step-00000001"} <= names
    assert [name for name in names if not WRITTEN.fullmatch(name)] == []


@pytest.mark.parametrize("content", ["", "[]", '{"en": 3}', '{"en": {"documents": 3}}'])
def test_a_damaged_census_can_be_taken_anew(documents, tiny_checkpoint, tmp_path, content):
    settings = {"max_steps": 2, "languages": ("en",)}
    run(config(documents, tiny_checkpoint, tmp_path / "out", **settings, save_steps=1))
    census = tmp_path / "out" / "training" / "census.json"
    before = census.read_text()
    census.write_text(content)
    again = config(documents, tiny_checkpoint, tmp_path / "out", **settings, resume=True)
    with pytest.raises(UserError, match=r"census\.json: damaged; remove it"):
        run(again)
    census.unlink()
    run(again)
    assert census.read_text() == before


# -- other settings --


def test_a_run_goes_on_with_another_rate_type_and_size_of_passes(
    documents, tiny_checkpoint, tmp_path, caplog
):
    run(config(documents, tiny_checkpoint, tmp_path / "out", max_steps=2))
    others = {"learning_rate": 1e-4, "head_learning_rate": 1e-5, "warmup_steps": 1, "clip": 0.5}
    others |= {"dtype": "bfloat16", "pass_tokens": 60, "gradient_checkpointing": True}
    spelled = documents.parent / "." / "documents" / ".." / "documents"
    with caplog.at_level(logging.INFO):
        out = run(config(spelled, tiny_checkpoint, tmp_path / "out", **others, resume=True))
    assert [line["learning_rate"] for line in log(out)][2:] == pytest.approx([1e-4] * 4)
    said = {message.split(":")[0] for message in caplog.messages if "was begun" in message}
    assert said == {f"--{name.replace('_', '-')}" for name in (*others, "max_steps")}


# -- the log --


def test_vitals_of_the_last_batch_before_a_state_are_in_the_next_line_of_the_log():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(8, 6, generator=generator)
    windows = np.array([0, 1, 2, 3] * 2)
    none = np.zeros((8, 1), np.int64)
    batch = Batch("ccp", "en", none, none, None, windows, windows, 4, ("d",) * 4)
    projection = Projection(6)
    result = ccp_loss(h, torch.from_numpy(windows), torch.zeros(0, 6), temperature=0.1)

    def watch():
        return Watch(Health(), projection, lambda _: h, temperature=0.1, l2=True, probe_steps=9)

    begun, resumed, later = watch(), watch(), watch()
    begun.saw(Seen(batch, h, torch.randn(5, 6, generator=generator), result))
    state = begun.state_dict()
    resumed.load_state_dict(state)
    measured = begun.measure()
    assert len(measured) == 9  # the accuracy in the bank among them
    assert all(map(math.isfinite, measured.values()))
    assert resumed.measure() == measured
    assert resumed.health.state_dict() == begun.health.state_dict()
    assert resumed.measure() == {}  # said once
    later.load_state_dict(state)
    newer = Seen(batch, 2 * h + 1, None, result)
    later.saw(newer)
    assert later.measure()["alignment"] != measured["alignment"]  # of the newer batch


# -- processes --


def test_a_process_that_was_to_be_one_of_several_and_is_alone_says_so(
    tmp_path, monkeypatch, caplog
):
    settings = config(tmp_path, "x", tmp_path / "out", trackers=("none",))
    with caplog.at_level(logging.INFO):
        Processes(settings, tmp_path)
        assert caplog.messages == ["processes: 1 on cpu, in float32"]
        caplog.clear()
        for name in ("MASTER_ADDR", "ACCELERATE_MIXED_PRECISION"):
            monkeypatch.setenv(name, "no")
        Processes(settings, tmp_path)
    assert "was to start several processes, and this one trains alone" in caplog.messages[-1]


@pytest.mark.slow
def test_of_two_processes_one_of_which_cannot_read_both_keep_their_last_update(
    documents, tiny_checkpoint, tmp_path
):
    broken_at(documents / "en.jsonl", 10)
    settings = [
        *("--batch-size", "2", "--accumulated-batch-size", "8", "--bank-size", "10"),
        *("--max-length", "24", "--save-steps", "100", "--device", "cpu", "--languages", "en"),
        *("--census-documents", "5", "--shuffle-buffer", "2", "--min-characters", "5"),
        *("--max-steps", "12", "--quiet"),
    ]
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"),
        *("--num_processes", "2", "-m", "ccpretrieve.pretrain", "--corpus", documents),
        *("--encoder", tiny_checkpoint, "--output", tmp_path / "out", *settings),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    failed = subprocess.run(
        list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert failed.returncode == 1
    assert "en.jsonl:10: not JSON" in failed.stderr
    assert "another process could not read its documents; the state of step" in failed.stderr
    (folder,) = (tmp_path / "out" / "training").glob("step-*")
    states = [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1)]
    one, two = (state["objective"]["data"] for state in states)
    assert (one["draw"], one["tasks"]) == (two["draw"], two["tasks"])  # at the same batch
    assert {state["objective"]["updates"] for state in states} == {int(folder.name[5:])}
