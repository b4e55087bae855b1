"""States of a training run on disk: whole or absent, the newest and the best kept.

<output>/training/settings.json     what was asked
<output>/training/census.json       what was found in the documents
<output>/training/start/            the checkpoint it starts from, if one was made
<output>/training/examples.jsonl    what is learned from in fine-tuning, and dev.jsonl scored
<output>/training/ccp/ or dpr/      of the trackers
<output>/training/log.jsonl         a line for each step that was logged
<output>/training/step-00000500/    common.pt, of all processes; rank-0.pt ... of each
<output>/training/report.json       of the end
"""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from ccpretrieve.errors import UserError
from ccpretrieve.files import (
    PARTIAL,
    atomic,
    make_directory,
    read_json,
    sync_directory,
    write_json,
    writing_failed,
)
from ccpretrieve.training.process import Processes

logger = logging.getLogger(__name__)

FOLDER = "training"
SETTINGS, CENSUS, START, LOG = "settings.json", "census.json", "start", "log.jsonl"
EXAMPLES, DEV = "examples.jsonl", "dev.jsonl"
NAME = re.compile(r"step-(\d{8})")
#: What a run writes into its folder, and nothing else of it may be removed.
WRITTEN = re.compile(
    r"(settings\.json|census\.json|start|ccp|dpr|log\.jsonl|step-\d{8}|report\.json"
    r"|(examples|dev)\.jsonl?)(\.partial)?"
)
#: Settings that may differ when a run is resumed: they decide how it is computed, how long and how
#: fast it learns, and what is told of it, not what it learns.
FREE = (
    *("max_steps", "max_minutes", "log_steps", "save_steps", "eval_steps", "probe_steps"),
    *("epochs", "patience", "chunk_size", "data_dir"),
    *("learning_rate", "head_learning_rate", "warmup_steps", "clip"),
    *("device", "dtype", "bank_device", "pass_tokens", "gradient_checkpointing", "compile"),
    "trackers",
)
#: Those that decide when a run ends, and by that the rates of a linear schedule.
ENDS = ("max_steps", "epochs")
#: Settings that may name a place, which has many spellings.
PLACES = ("corpus", "encoder", "eval_parallel", "train", "dev", "dev_corpus", "data_dir")
#: Settings that are not of the run itself.
ASIDE = ("quiet", "resume", "output")


class States:
    """The folder of a run's states.

    Args:
        output: Folder of the trained checkpoint.
        processes: Those that write.
    """

    def __init__(self, output: Path, processes: Processes) -> None:
        self.folder = output / FOLDER
        self.processes = processes

    def check(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Fail unless a run may be begun in this folder, or is the one to go on with.

        Raises:
            UserError: If there is one already that is not to be resumed, none to resume, one with
                other settings; or if what is there was written by no run.
        """
        newest = self.newest()
        if resume:
            if newest is None:
                raise UserError(f"{self.folder.parent}: holds no run to resume; leave --resume out")
            self._compare(_identity(settings))
        elif newest is not None:
            raise UserError(
                f"{self.folder.parent}: holds a run up to step {newest}; add --resume to go on "
                "with it, or choose another --output"
            )
        elif found := self._foreign():
            raise UserError(
                f"{self.folder}: holds {found}, which is of no training; choose another --output, "
                "or move it away"
            )

    def begin(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Start a run in this folder that :meth:`check` has looked at, unless one goes on there."""

        def start() -> None:
            self.clear()
            write_json(make_directory(self.folder) / SETTINGS, _identity(settings))

        self.processes.wait()
        if not resume:
            self.processes.lead(start)

    def clear(self) -> None:
        """Remove what a run wrote that never came to a state; the folder too if it is empty then.

        Raises:
            UserError: If it cannot be removed.
        """
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            try:
                if WRITTEN.fullmatch(path.name):
                    shutil.rmtree(path) if _is_folder(path) else path.unlink()
            except OSError as error:
                raise writing_failed(path, error) from error
        if _is_folder(self.folder) and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _foreign(self) -> str:
        """A name in the folder that shows that no run wrote it; empty if one did."""
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        if not names or names == [SETTINGS + PARTIAL]:  # killed at the very start
            return ""
        if SETTINGS not in names:
            return names[0]
        try:
            return "" if "accumulated_batch_size" in self._settings() else SETTINGS
        except UserError:
            return SETTINGS

    def _settings(self) -> dict[str, Any]:
        """What the run was begun with."""
        path = self.folder / SETTINGS
        settings = read_json(path)
        if not isinstance(settings, dict):
            raise UserError(f"{path}: not the settings of a run; start anew in another --output")
        return settings

    def _compare(self, asked: Mapping[str, Any]) -> None:
        """Refuse settings that a run cannot be resumed with; say which others differ."""
        for name, before in self._settings().items():
            now = asked.get(name)
            if now == (_resolved(before) if name in PLACES else before):
                continue
            flag = name.replace("_", "-")
            if name not in FREE or (name in ENDS and asked.get("schedule") == "linear"):
                raise UserError(
                    f"--{flag}: the run in {self.folder.parent} was begun {_said(before)}, not "
                    f"{_said(now)}; resume with what it was begun with"
                )
            logger.info("--%s: the run was begun %s, goes on %s", flag, _said(before), _said(now))

    def newest(self) -> int | None:
        """The last step that there is a whole state of."""
        return max(_steps(self.folder), default=None)

    def path(self, step: int) -> Path:
        """The state of a step."""
        return state_path(self.folder, step)

    def save(
        self, step: int, common: Mapping[str, Any], own: Mapping[str, Any], *, best: int | None
    ) -> None:
        """Write a state, then remove those that are neither the newest nor the best.

        Args:
            step: Of the state.
            common: What is the same in all processes.
            own: Of this process.
            best: The step that scored best so far, which is kept beside this one.

        Raises:
            UserError: If it cannot be written; older states are kept.
        """
        first, wait = self.processes.first, self.processes.wait
        path = self.path(step)
        partial = path.with_name(path.name + PARTIAL)
        if first:
            shutil.rmtree(partial, ignore_errors=True)
            make_directory(partial)
        wait()
        try:
            _save(partial / f"rank-{self.processes.rank}.pt", dict(own))
            if first:
                _save(partial / "common.pt", {**common, "processes": self.processes.count})
        except UserError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        wait()
        if first:
            sync_directory(partial)
            shutil.rmtree(path, ignore_errors=True)
            partial.rename(path)
            sync_directory(self.folder)
            self._prune({step, best})
        wait()

    def _prune(self, kept: set[int | None]) -> None:
        for path in self.folder.iterdir():
            match = NAME.fullmatch(path.name.removesuffix(PARTIAL))
            if match and (int(match[1]) not in kept or path.name.endswith(PARTIAL)):
                going = path.with_name(path.name.removesuffix(PARTIAL) + PARTIAL)
                path.rename(going)  # never half a state under a whole one's name
                shutil.rmtree(going)

    def load(self, step: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a state; what was logged after the newest is forgotten.

        Args:
            step: Which; None for the newest.

        Returns:
            What all processes share, and what is this one's own.

        Raises:
            UserError: If there is none, it cannot be read, or it is of another number of processes.
        """
        newest = self.newest()
        if newest is None:
            raise UserError(f"{self.folder.parent}: holds no run to resume; leave --resume out")
        at = newest if step is None else step
        common = self._load(at, "common.pt")
        count = common.get("processes")
        if count is None:
            raise self.damaged(at, KeyError("processes"), "common.pt")
        if count != self.processes.count:
            raise UserError(
                f"{self.path(at)}: was written by {count} processes; resume with as many, not "
                f"{self.processes.count}"
            )
        own = self._load(at, f"rank-{self.processes.rank}.pt")
        if step is None and self.processes.first:
            self._forget(newest)
        return common, own

    def _load(self, step: int, name: str) -> dict[str, Any]:
        try:
            state = torch.load(self.path(step) / name, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for bytes that are not its own
            raise self.damaged(step, error, name) from error
        if not isinstance(state, dict):
            raise self.damaged(step, TypeError("it holds no state"), name)
        return state

    def damaged(self, step: int, error: Exception, name: str = "") -> UserError:
        """Say that a state, or a file of it, cannot be read, and what is left to do."""
        kept = [other for other in _steps(self.folder) if other != step]
        way = "no other state is kept; start anew in another --output"
        if kept:
            way = f"remove {self.path(step)} to resume from the state of step {max(kept)}"
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
        said = f"{type(error).__name__}: {reason}" if isinstance(error, KeyError) else reason
        return UserError(f"{self.path(step) / name}: cannot be read ({said}); {way}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append a line to the log."""
        if not self.processes.first:
            return
        line = json.dumps({"step": step, **values}) + "\n"
        try:
            with (self.folder / LOG).open("a", encoding="utf-8") as stream:
                stream.write(line)
        except OSError as error:
            raise writing_failed(self.folder / LOG, error) from error

    def _forget(self, step: int) -> None:
        """Drop lines of the log after a step: those steps are taken again."""
        path = self.folder / LOG
        if path.is_file():
            kept = [line for line in path.read_bytes().splitlines(keepends=True) if _of(line, step)]
            with atomic(path) as stream:
                stream.writelines(kept)


def begun(output: Path) -> bool:
    """Whether a run that left a state may be gone on with in a folder."""
    return bool(_steps(output / FOLDER))


def state_path(folder: Path, step: int) -> Path:
    """Where the state of a step lies."""
    return folder / f"step-{step:08d}"


def minutes_behind(output: Path) -> float:
    """Minutes that the newest state of a run was trained for; there must be one."""
    path = state_path(output / FOLDER, max(_steps(output / FOLDER))) / "common.pt"
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return float(state["progress"]["seconds"]) / 60


def _steps(folder: Path) -> list[int]:
    """Those that there are whole states of."""
    if not folder.is_dir():
        return []
    found = [NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_dir()]
    return [int(match[1]) for match in found if match]


def _identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which a run is known again."""
    return {
        name: _resolved(value) if name in PLACES else value
        for name, value in settings.items()
        if name not in ASIDE
    }


def _resolved(value: Any) -> Any:
    """The one spelling of a place, or of each of several; a hub name or another stays as it is."""
    if isinstance(value, list | tuple):
        return [_resolved(each) for each in value]
    if not isinstance(value, str | Path):
        return value
    path = Path(value).expanduser()
    return str(path.resolve()) if path.exists() else str(value)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _said(value: Any) -> str:
    """What was asked for by a flag, in words."""
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    absent = value is None or value is False or value == ""
    return "without it" if absent else f"with {value}"


def _of(line: bytes, step: int) -> bool:
    """Whether a line of the log is whole and of a step up to ``step``."""
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, TypeError, KeyError):
        return False  # the last one, cut by a kill


class _Written:
    """A stream that remembers why it could not be written, which torch does not say."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.stream.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.stream.flush()


def _save(path: Path, state: dict[str, Any]) -> None:
    written: Any = None
    try:
        with path.open("wb") as stream:
            written = _Written(stream)
            torch.save(state, written)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise writing_failed(path, error) from error
    except RuntimeError as error:  # what torch makes of a write that failed
        other = OSError(errno.EIO, " ".join(str(error).split())[:200])
        raise writing_failed(path, (written and written.error) or other) from error
