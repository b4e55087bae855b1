"""``meta.json``: what an index says of itself, and who may search it.

    corpus       name, language, fingerprint, passages
    encoder      name, fingerprint, settings, the settings asked for by flag, calibration
    index        kind (the FAISS factory string), count, dim, SHA-256 of docid and of samples of
                 index
    embeddings   folder of the shards, relative to the index
    versions     of what computed it

An index is searched with the weights and settings it was made with. Nothing else is close: another
prefix or pooling gives plausible rankings that are quietly worse.
"""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ccpretrieve
from ccpretrieve.errors import UserError
from ccpretrieve.files import read_json
from ccpretrieve.model.checkpoint import locate
from ccpretrieve.model.settings import EncoderSettings
from ccpretrieve.retrieval.store import FOLDER, differences

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

FILE = "meta.json"
#: What a description must have, by type.
_SHAPE: dict[str, Any] = {
    "corpus": {"name": str},
    "encoder": {
        "name": str,
        "fingerprint": str,
        "settings": dict,
        "asked": dict,
        "calibration": (dict, type(None)),
    },
    "index": {"kind": str, "count": int, "dim": int, "docid": str},
    "embeddings": str,
}


def describe_encoder(encoder: "Encoder", asked: Mapping[str, Any], language: str) -> dict[str, Any]:
    """What has to be equal for two vectors to be comparable, as plain values.

    Args:
        encoder: The encoder.
        asked: Settings asked for over the checkpoint's own.
        language: Of the text, as far as a calibration uses it.
    """
    calibration = encoder.calibration
    return {
        "name": str(encoder.path.resolve()) if Path(encoder.name).is_dir() else encoder.name,
        "fingerprint": encoder.fingerprint,
        "dtype": str(encoder.dtype).removeprefix("torch."),
        "settings": vars(encoder.settings),
        "asked": {name: value for name, value in asked.items() if value is not None},
        "calibration": calibration
        and {
            "name": str(calibration.path and calibration.path.resolve()),
            "own": encoder.calibration_is_own,
            "fingerprint": calibration.fingerprint(),
            "language": language,
        },
    }


def build(recipe: Mapping[str, Any], index: Mapping[str, Any], shards: str) -> Any:
    """The content of ``meta.json``; holds no time of day, so that equal work gives equal bytes.

    Args:
        recipe: Of the shards: corpus and encoder.
        index: Kind, count, dim, the SHA-256 of ``docid``, and
            :func:`~ccpretrieve.files.sampled_hash` of ``index``.
        shards: Their folder, relative to the index.
    """
    return {
        "corpus": recipe["corpus"],
        "encoder": recipe["encoder"],
        "index": {"metric": "inner product", **index},
        "embeddings": shards,
        "versions": {
            "ccpretrieve": ccpretrieve.__version__,
            **{name: _version(name) for name in ("torch", "transformers", "faiss-cpu", "numpy")},
        },
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read(folder: Path) -> Mapping[str, Any] | None:
    """The meta of an index folder; None for an index that Pyserini wrote.

    Raises:
        UserError: If ``meta.json`` is not ours.
    """
    if not (folder / FILE).is_file():
        return None
    meta: Mapping[str, Any] = read_json(folder / FILE)
    if not _fits(meta, _SHAPE):
        raise UserError(f"{folder / FILE}: not a description of an index of ours")
    return meta


def shards(folder: Path) -> Path:
    """The shards of an index folder, also of one that points to another's.

    Raises:
        UserError: If there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"--embeddings {folder}: no such folder; encode makes one")
    content = read(folder)
    return folder / (content["embeddings"] if content else FOLDER)


def _fits(value: Any, shape: Any) -> bool:
    """Whether nested plain values have the keys and types of ``_SHAPE``."""
    if not isinstance(shape, dict):
        return isinstance(value, shape)
    return isinstance(value, dict) and all(
        name in value and _fits(value[name], part) for name, part in shape.items()
    )


def open_encoder(
    folder: Path, name: str | None, *, calibration: Path | None = None, **options: Any
) -> "Encoder":
    """The encoder that an index was made with, checked to be the same.

    Args:
        folder: The index.
        name: Checkpoint, if it is not where the index says or the index says nothing.
        calibration: Calibration file, if it is not where the index says.
        **options: ``device``, ``dtype`` and ``batch_tokens`` of :meth:`Encoder.load`.

    Raises:
        UserError: If it cannot be had, or differs in weights or settings; both are named.
    """
    from ccpretrieve.model.encoder import Encoder

    meta = read(folder)
    if meta is None:
        if name is None:
            raise UserError(f"{folder}: says nothing of its encoder; give --encoder")
        return Encoder.load(name, calibration=calibration, **options)
    made = meta["encoder"]
    encoder = Encoder.load(
        name or _where(folder, made["name"]),
        calibration=calibration or _calibration(made["calibration"]),
        **options,
        **made["asked"],
    )
    refuse_another(folder, meta, encoder)
    return encoder


def _where(folder: Path, name: str) -> str:
    """The encoder that made an index, if it still is where it was."""
    try:
        locate(name)
    except UserError as error:
        raise UserError(
            f"{folder}: was made with the encoder {name}, which is not to be had; "
            "give its place with --encoder"
        ) from error
    return name


def _calibration(made: Mapping[str, Any] | None) -> Path | None:
    """The file an index was calibrated with; None for none, or for the checkpoint's own."""
    if made is None or made["own"]:
        return None
    if not Path(made["name"]).is_file():
        raise UserError(f"{made['name']}: the calibration is not there; name it by --calibration")
    return Path(made["name"])


def refuse_another(folder: Path, meta: Mapping[str, Any], encoder: "Encoder") -> None:
    """Fail unless an encoder is the one that an index was made with.

    Raises:
        UserError: If weights, settings or calibration differ; both are named.
    """
    made = meta["encoder"]
    now = describe_encoder(encoder, made["asked"], "")
    if now["fingerprint"] != made["fingerprint"]:
        raise UserError(
            f"{folder}: was made with the encoder {made['name']} "
            f"({made['fingerprint'][:12]}), not with {now['name']} ({now['fingerprint'][:12]}); "
            "search with the first, or encode again with the second, under another --tag"
        )
    before = vars(EncoderSettings()) | made["settings"]  # settings that are newer than the index
    changed = differences({"settings": before}, {"settings": now["settings"]})
    old, new = made["calibration"] or {}, now["calibration"] or {}
    if old.get("fingerprint") != new.get("fingerprint"):
        changed.append("the calibration file is another one")
    if changed:
        raise UserError(
            f"{folder}: was made with other settings of {made['name']}: {'; '.join(changed)}; "
            "put them back, or encode again under another --tag"
        )
