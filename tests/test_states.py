"""A run's folder: what may be removed, what may differ on resume, what is said of damage."""

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ccpretrieve.errors import UserError
from ccpretrieve.training import states as module
from ccpretrieve.training.states import FREE, States

ONE = SimpleNamespace(first=True, rank=0, count=1, wait=lambda: None, lead=lambda work: work())
ASKED = {"corpus": "hf:x", "accumulated_batch_size": 4, "schedule": "constant", "seed": 0}


def begun(output, processes=ONE, **settings):
    made = States(output, processes)
    made.check({**ASKED, **settings}, resume=False)
    made.begin({**ASKED, **settings}, resume=False)
    return made


def with_states(output, *steps, best=None):
    """A run that has saved states, the best of which is kept."""
    made = begun(output)
    for step in steps:
        made.save(step, {"value": step}, {}, best=best)
    return made


# -- what may be removed --


@pytest.mark.parametrize("name", ["notes.txt", "settings.json", "log.jsonl", "start"])
def test_a_folder_that_no_run_wrote_is_left_alone(tmp_path, name):
    theirs = tmp_path / "training" / name
    theirs.parent.mkdir()
    theirs.write_text('{"lr": 1}')
    with pytest.raises(UserError, match=rf"training: holds {name}, which is of no training"):
        begun(tmp_path)
    assert [path.name for path in theirs.parent.iterdir()] == [name]
    assert theirs.read_text() == '{"lr": 1}'


def test_only_what_a_run_writes_is_cleared(tmp_path):
    folder = begun(tmp_path).folder
    (folder / "notes.txt").write_text("mine")
    for name in ("census.json", "log.jsonl", "report.json.partial"):
        (folder / name).write_text("old")
    for name in ("start", "ccp", "step-00000004.partial"):
        (folder / name / "below").mkdir(parents=True)
    begun(tmp_path, seed=1)
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "settings.json"]
    assert json.loads((folder / "settings.json").read_text())["seed"] == 1


def test_a_linked_folder_is_written_through_and_a_link_in_it_is_not_followed(tmp_path):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    for folder in (disk, kept):
        folder.mkdir()
    (kept / "weights").write_text("x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "training").symlink_to(disk)
    begun(tmp_path / "out")
    (disk / "start").symlink_to(kept)
    begun(tmp_path / "out", seed=1)
    assert [path.name for path in disk.iterdir()] == ["settings.json"]
    assert (kept / "weights").exists()


def test_a_check_touches_nothing(tmp_path):
    folder = begun(tmp_path).folder
    (folder / "log.jsonl").write_text("old")
    States(tmp_path, ONE).check(ASKED, resume=False)
    assert (folder / "log.jsonl").read_text() == "old"
    States(tmp_path / "new", ONE).check(ASKED, resume=False)
    assert not (tmp_path / "new").exists()


def test_a_cleared_folder_is_gone(tmp_path):
    made = begun(tmp_path)
    made.clear()
    assert not made.folder.exists()
    made.clear()  # nothing there


# -- what may differ --


@pytest.mark.parametrize("name", FREE)
def test_what_decides_no_step_taken_may_differ_and_is_said(tmp_path, name, caplog):
    with_states(tmp_path, 4)
    settings = tmp_path / "training" / "settings.json"
    settings.write_text(json.dumps({**ASKED, name: 1}))
    with caplog.at_level(logging.INFO):
        States(tmp_path, ONE).check({**ASKED, name: 2}, resume=True)
    flag = name.replace("_", "-")
    assert caplog.messages == [f"--{flag}: the run was begun with 1, goes on with 2"]


def test_what_is_learned_may_not_differ(tmp_path):
    with_states(tmp_path, 4)
    with pytest.raises(UserError, match=r"--seed: the run in .* was begun with 0, not with 1"):
        States(tmp_path, ONE).check({**ASKED, "seed": 1}, resume=True)


def test_a_schedule_that_falls_to_the_last_step_keeps_its_last_step(tmp_path):
    made = begun(tmp_path, schedule="linear", max_steps=8, epochs=20.0)
    made.save(4, {}, {}, best=None)
    with pytest.raises(UserError, match="--max-steps: the run"):
        made.check({**ASKED, "schedule": "linear", "max_steps": 9, "epochs": 20.0}, resume=True)
    with pytest.raises(UserError, match="--epochs"):
        made.check({**ASKED, "schedule": "linear", "max_steps": 8, "epochs": 40.0}, resume=True)


@pytest.mark.parametrize("name", ["corpus", "encoder", "eval_parallel"])
def test_a_place_may_be_spelled_in_another_way(tmp_path, monkeypatch, name):
    (tmp_path / "data" / "texts").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data" / "texts")
    monkeypatch.chdir(tmp_path)
    made = begun(tmp_path / "out", **{name: "data/texts"})
    made.save(1, {}, {}, best=None)
    monkeypatch.chdir(tmp_path / "data")
    for spelling in ("texts/", "./texts/../texts", str(tmp_path / "link")):
        made.check({**ASKED, name: spelling}, resume=True)
    (tmp_path / "data" / "other").mkdir()
    for spelling in ("other", "hf:other", None):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')}: the run"):
            made.check({**ASKED, name: spelling}, resume=True)


def test_each_of_several_places_may_be_spelled_in_another_way(tmp_path, monkeypatch):
    (tmp_path / "a.json").touch()
    monkeypatch.chdir(tmp_path)
    made = begun(tmp_path / "out", train=["a.json", "nq"])
    made.save(1, {}, {}, best=None)
    made.check({**ASKED, "train": [str(tmp_path / "a.json"), "nq"]}, resume=True)
    with pytest.raises(UserError, match=r"--train: the run in .* was begun with"):
        made.check({**ASKED, "train": ["nq", "a.json"]}, resume=True)


# -- damage --


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no archive",
        b"(lp0\n.",
        b"\x80\x04junk",
        b"\x80\x02X\x05\x00\x00\x00helloq\x00.",
    ],
)
@pytest.mark.parametrize("name", ["common.pt", "rank-0.pt"])
def test_a_damaged_state_says_which_older_one_is_left(tmp_path, name, content):
    made = with_states(tmp_path, 2, 4, best=2)
    (made.path(4) / name).write_bytes(content)
    says = rf"step-00000004/{name}: cannot be read \(.*remove .*step-00000004 to resume from .* 2$"
    with pytest.raises(UserError, match=says):
        made.load()


def test_a_damaged_state_that_is_alone_is_not_said_to_have_an_older_one(tmp_path):
    made = with_states(tmp_path, 2, 4)  # that of step 2 is gone
    path = made.path(4) / "common.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="; no other state is kept; start anew in another --output"):
        made.load()


def test_a_part_of_a_state_that_is_missing_is_named(tmp_path):
    made = with_states(tmp_path, 4)
    (made.path(4) / "rank-0.pt").unlink()
    with pytest.raises(UserError, match=r"step-00000004/rank-0.pt: cannot be read \(No such file"):
        made.load()


def test_a_state_of_several_processes_is_resumed_with_as_many(tmp_path):
    two = SimpleNamespace(**{**vars(ONE), "count": 2})
    begun(tmp_path, two).save(4, {}, {}, best=None)
    with pytest.raises(UserError, match="written by 2 processes; resume with as many, not 1"):
        States(tmp_path, ONE).load()


@pytest.mark.parametrize("content", ["", "[1]", "{", "3"])
def test_damaged_settings_are_one_line(tmp_path, content):
    with_states(tmp_path, 4)
    (tmp_path / "training" / "settings.json").write_text(content)
    with pytest.raises(UserError, match=r"settings\.json"):
        States(tmp_path, ONE).check(ASKED, resume=True)


def test_lines_of_the_log_that_are_no_lines_of_a_log_are_dropped(tmp_path):
    made = with_states(tmp_path, 4)
    log = made.folder / "log.jsonl"
    bad = ["3", "[]", "{}", '{"step": null}', '{"step": "x"}', "\ud800", '{"ste']
    good = '{"step": 4}\n'
    log.write_bytes((good + "\n".join(bad)).encode("utf-8", "surrogatepass"))
    made.load()
    assert log.read_text() == good


# -- a full disk --


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("size", [1, 3_000_000])
def test_a_full_disk_is_called_so(monkeypatch, tmp_path, size):
    made = with_states(tmp_path, 4)
    honest = Path.open

    def full(self, *args, **kwargs):
        return honest(Path("/dev/full") if self.name == "common.pt" else self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match=r"common\.pt: no space left on the disk; free some"):
        made.save(6, {"weights": torch.zeros(size)}, {}, best=None)
    monkeypatch.undo()
    assert made.newest() == 4
    assert made.load()[0]["value"] == 4
    assert [path.name for path in made.folder.glob("step-*")] == ["step-00000004"]


def test_a_failure_that_is_of_no_write_keeps_torch_s_words(tmp_path, monkeypatch):
    def broken(state, stream):
        raise RuntimeError("something\nelse")

    made = begun(tmp_path)
    monkeypatch.setattr(module.torch, "save", broken)
    with pytest.raises(UserError, match="cannot be written: something else"):
        made.save(6, {"weights": torch.tensor(math.pi)}, {}, best=None)
