"""A checkpoint on disk: where it is, whether it is whole, and a fingerprint of what it computes.

A checkpoint is a Hugging Face directory. Untied towers are two of them, ``query/`` and
``passage/``, inside one (section 4.3: the released script trains untied towers).
"""

import os
from pathlib import Path

from ccpretrieve.errors import UserError
from ccpretrieve.files import hash_files
from ccpretrieve.model import known
from ccpretrieve.model.settings import module_folders

QUERY, PASSAGE = "query", "passage"

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_VOCABULARY = ("tokenizer.json", "vocab*", "*.model", "sentencepiece*", "spiece*")
_WORDS = ("config.json", "tokenizer*", "vocab*", "sentencepiece*", "spiece*", "special_tokens*")
_LASER = ("laser2.*",)


def locate(name: str) -> Path:
    """The directory of a checkpoint: itself, or the local copy of a hub name or a short name.

    Raises:
        UserError: If there is no such directory and the hub cannot be reached, or nothing in it
            is a checkpoint.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        if path.exists():
            raise UserError(f"{name}: a file, where a checkpoint directory belongs")
        path = _elsewhere(name)
    for part in towers(path):
        if known.is_laser(part):
            _check_laser(part)
            continue
        if not (part / "config.json").is_file():
            raise UserError(f"{part}: not a checkpoint directory; it has no config.json")
        if not any(file for pattern in _WEIGHTS for file in part.glob(pattern)):
            raise UserError(f"{part}: no weights (model.safetensors) beside config.json")
        if not any(file for pattern in _VOCABULARY for file in part.glob(pattern)):
            raise UserError(f"{part}: no tokenizer (tokenizer.json) beside config.json")
    return path


def _check_laser(path: Path) -> None:
    from ccpretrieve.model.laser import check  # brings torch

    check(path)


def _elsewhere(name: str) -> Path:
    """Where a checkpoint lies that is no directory here."""
    if name.lower() == known.LASER:
        from ccpretrieve.model.laser import find  # brings torch

        return find()
    if (where := known.ELSEWHERE.get(name.lower())) is not None:
        raise UserError(f"encoder {name!r}: {where}")
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_local and "/" in name:
        raise UserError(f"encoder {name!r}: there is no such directory")
    from huggingface_hub import snapshot_download

    hub = known.hub_name(name)
    patterns = ["*.json", "*.txt", "*.model", "[0-9]_*/*", "*.safetensors"]
    try:
        path = Path(snapshot_download(hub, allow_patterns=patterns))
        if not any(path.rglob("*.safetensors")):
            path = Path(snapshot_download(hub, allow_patterns=[*patterns[:-1], _WEIGHTS[1]]))
        return path
    except Exception as error:  # the hub's client raises many kinds, all of them "not to be had"
        raise UserError(
            f"encoder {name!r}: no such directory here, and the hub has no answer "
            f"{f'for {hub} ' if hub != name else ''}({type(error).__name__}); "
            f"give the path of a checkpoint directory{known.hint(name)}"
        ) from error


def towers(path: Path) -> tuple[Path, ...]:
    """The directories that hold weights: two for untied towers, else the checkpoint itself."""
    parts = (path / QUERY, path / PASSAGE)
    return parts if all(part.is_dir() for part in parts) else (path,)


def tower(path: Path, role: str) -> Path:
    """The directory whose weights encode ``role``, ``query`` or ``passage``."""
    parts = towers(path)
    return parts[0] if len(parts) == 1 else path / role


def fingerprint(path: Path) -> str:
    """SHA-256 over weights, sizes and tokenizer, those of a Dense module included.

    The settings are not part of it; they are compared by themselves, so that a difference can be
    named. Moving or renaming the directory changes nothing.
    """
    files = {
        file.relative_to(path).as_posix(): file
        for part in towers(path)
        for folder in (part, *(path for kind, path in module_folders(part) if kind == "Dense"))
        for pattern in (*_WEIGHTS, *_WORDS, *_LASER)
        for file in folder.glob(pattern)
        if file.is_file()
    }
    return hash_files(files)


def default_encoder() -> str:
    """The encoder of a user who names none.

    Raises:
        UserError: If CCPRETRIEVE_ENCODER is not set; random weights are never a default.
    """
    name = os.environ.get("CCPRETRIEVE_ENCODER", "")
    if not name:
        raise UserError(
            "no encoder: give --encoder a checkpoint directory or a hub name such as "
            "intfloat/multilingual-e5-small, or set CCPRETRIEVE_ENCODER to one"
        )
    return name
