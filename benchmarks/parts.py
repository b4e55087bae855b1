"""Parts of a benchmark that are kept on disk, and refused to other settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory, read_json, write_json
from ccpretrieve.values import plain


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note what the parts in a folder are made with, or refuse those made with something else.

    Args:
        folder: Made if it is not there.
        settings: All that decides the parts.

    Raises:
        UserError: Naming a setting that differs.
    """
    asked = {name: plain(value) for name, value in settings.items()}
    path = make_directory(folder) / "settings.json"
    if not path.is_file():
        write_json(path, asked)
        return
    kept = read_json(path)
    for name in sorted({*asked, *kept}):
        if kept.get(name) != asked.get(name):
            raise UserError(
                f"{path}: parts were made with {name} {kept.get(name)}, not {asked.get(name)}; "
                "choose another --work"
            )
