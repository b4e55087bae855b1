"""States of a training run on disk: whole or absent, the newest and the best kept.

<output>/training/settings.json     what was asked
<output>/training/log.jsonl         a line for each step that was logged
<output>/training/step-00000500/    common.pt, of all processes; rank-0.pt ... of each
<output>/training/best.json         which step scored best
"""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
SETTINGS, LOG = "settings.json", "log.jsonl"
NAME = re.compile(r"step-(\d{8})")
#: Settings that may differ when a run is resumed: they decide no step that was taken.
FREE = ("max_steps", "max_minutes", "log_steps", "save_steps", "eval_steps", "trackers")
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

    def begin(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Start a run in this folder, or check that it is the run to go on with.

        Raises:
            UserError: If there is one already that is not to be resumed, none to resume, or one
                with other settings.
        """
        newest, path = self.newest(), self.folder / SETTINGS
        asked = {name: value for name, value in settings.items() if name not in ASIDE}
        if not resume:
            if newest is not None:
                raise UserError(
                    f"{self.folder.parent}: holds a run up to step {newest}; add --resume to go on "
                    "with it, or choose another --output"
                )
            if self.processes.first:
                if self.folder.is_dir():  # of a run that never came to a state
                    shutil.rmtree(self.folder)
                write_json(make_directory(self.folder) / SETTINGS, asked)
            self.processes.wait()
            return
        if newest is None:
            raise UserError(f"{self.folder.parent}: holds no run to resume; leave --resume out")
        for name, before in read_json(path).items():
            free = name in FREE and not (name == "max_steps" and asked["schedule"] == "linear")
            if not free and asked.get(name) != before:
                flag = name.replace("_", "-")
                raise UserError(
                    f"--{flag}: the run in {self.folder.parent} was begun {_said(before)}, not "
                    f"{_said(asked.get(name))}; resume with what it was begun with"
                )

    def newest(self) -> int | None:
        """The last step that there is a whole state of."""
        if not self.folder.is_dir():
            return None
        found = [NAME.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir()]
        return max((int(match[1]) for match in found if match), default=None)

    def path(self, step: int) -> Path:
        """The state of a step."""
        return self.folder / f"step-{step:08d}"

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
                _save(partial / "common.pt", dict(common))
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
        path = self.path(newest if step is None else step)
        ranks = len(list(path.glob("rank-*.pt")))
        if ranks != self.processes.count:
            raise UserError(
                f"{path}: was written by {ranks} processes; resume with as many, not "
                f"{self.processes.count}"
            )
        common, own = _load(path / "common.pt"), _load(path / f"rank-{self.processes.rank}.pt")
        if step is None and self.processes.first:
            self._forget(newest)
        return common, own

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


def _said(value: Any) -> str:
    """What was asked for by a flag, in words."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    absent = value is None or value is False or value == ""
    return "without it" if absent else f"with {value}"


def _of(line: bytes, step: int) -> bool:
    """Whether a line of the log is whole and of a step up to ``step``."""
    try:
        return int(json.loads(line)["step"]) <= step
    except ValueError:
        return False  # the last one, cut by a kill


def _save(path: Path, state: dict[str, Any]) -> None:
    try:
        with path.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise writing_failed(path, error) from error
    except RuntimeError as error:  # what torch makes of a write that failed
        raise writing_failed(
            path, OSError(errno.EIO, f"{' '.join(str(error).split())[:200]}")
        ) from error


def _load(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{path}: cannot be read ({reason}); remove {path.parent} to resume from an older state"
        ) from error
    return state
