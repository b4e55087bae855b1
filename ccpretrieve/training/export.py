"""What comes of a run: a checkpoint that every command here, transformers and others load.

Heads and whatever else served the training stay behind, kept aside for resuming.
"""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ccpretrieve.errors import UserError
from ccpretrieve.files import (
    PARTIAL,
    make_directory,
    sync_directory,
    sync_files,
    write_json,
    writing_failed,
)
from ccpretrieve.model.part import os_error
from ccpretrieve.model.settings import FILE, EncoderSettings, write_settings
from ccpretrieve.model.tower import quiet_transformers


class Part(NamedTuple):
    """A Transformer to be written.

    Attributes:
        folder: Within the checkpoint; empty for the checkpoint itself.
        model: Of transformers.
        tokenizer: Likewise.
    """

    folder: str
    model: Any
    tokenizer: Any


def export(parts: Sequence[Part], settings: EncoderSettings, output: Path) -> None:
    """Write a checkpoint; each file whole, config.json last.

    Args:
        parts: One, or two untied towers in ``query`` and ``passage``.
        settings: Of the checkpoint; written beside each part and, of two, beside both.
        output: Its folder; other files there are left.

    Raises:
        UserError: If it cannot be written.
    """
    partial = output / f"export{PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(parts, settings, make_directory(partial))
        _move(partial, output)
    except UserError:
        raise
    except Exception as error:
        if (reason := os_error(error)) is None:
            raise
        raise writing_failed(output, reason) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(parts: Sequence[Part], settings: EncoderSettings, folder: Path) -> None:
    """All files of the checkpoint, durable."""
    for part in parts:
        place = make_directory(folder / part.folder)
        with quiet_transformers():
            part.model.save_pretrained(place)
            part.tokenizer.save_pretrained(place)
        write_settings(place, settings)
    if len(parts) > 1:  # sentence-transformers has no word for two
        write_json(folder / FILE, dataclasses.asdict(settings))
    sync_files(folder)


def _move(partial: Path, output: Path) -> None:
    for file in sorted(partial.rglob("*"), key=lambda path: path.name == "config.json"):
        if file.is_file():
            target = output / file.relative_to(partial)
            make_directory(target.parent)
            file.replace(target)
    sync_directory(output)
