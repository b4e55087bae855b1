"""A checkpoint with only some rows and layers of another, written whole or not at all.

Which weights have a row for each word piece is not guessed from their names: the model is laid out
twice without memory, the second time with one piece more, and the shapes are compared; so too for
the weights of the layers that are left out. The language-model head counts, tied or not, with its
bias. Everything else is copied bit for bit under its own name.

RoBERTa's kinds count positions from the padding id, so there that id does not move.
"""

import contextlib
import copy
import dataclasses
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from ccpretrieve.errors import UserError
from ccpretrieve.files import (
    PARTIAL,
    finish,
    only_writer,
    read_json,
    sync_files,
    write_json,
    writing_failed,
)
from ccpretrieve.model import known, settings
from ccpretrieve.model.checkpoint import towers

JSON = dict[str, Any]

logger = logging.getLogger(__name__)

_COPIED = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "special_tokens_map.json",
)


@contextlib.contextmanager
def created(output: Path, task: str) -> Iterator[Path]:
    """A folder to fill; it becomes ``output`` when the block ends, and is gone if that fails.

    Args:
        output: The folder to be.
        task: What is being done, for whoever finds it locked.

    Raises:
        UserError: If ``output`` is there already, is being made, or cannot be written.
    """
    partial = output.with_name(output.name + PARTIAL)
    with only_writer(partial, task):
        check_free(output)
        _empty(partial)  # what a killed process left
        try:
            yield partial
            sync_files(partial)
            finish(partial, output)
        except BaseException as error:
            _empty(partial)
            if (reason := os_error(error)) is not None:
                raise writing_failed(output, reason) from error
            raise


def os_error(error: BaseException) -> OSError | None:
    """An error of the system, also as libraries in Rust pass it on: by its number, in words."""
    if isinstance(error, OSError):
        return error
    number = re.search(r"\(os error ([0-9]+)\)", str(error))
    if number is None or isinstance(error, UserError):  # the latter has said it already
        return None
    return OSError(int(number[1]), os.strerror(int(number[1])))


def check_free(output: Path) -> None:
    """Fail if there is something where a folder is to be made.

    Raises:
        UserError: So that nothing is written over.
    """
    if output.exists():
        raise UserError(f"{output}: is there already; choose another place or remove it")


def _empty(folder: Path) -> None:
    for item in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(item) if item.is_dir() else item.unlink()


def read_config(source: Path, layers: int | None) -> Any:
    """The configuration of a checkpoint that can be cut.

    Raises:
        UserError: If it cannot be read, is DPR's or two untied towers, or has fewer layers.
    """
    from transformers import AutoConfig

    if len(towers(source)) > 1:
        raise UserError(f"{source}: holds two towers; trim query/ and passage/ one by one")
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{source}: cannot be loaded as a checkpoint: {reason}") from error
    if config.model_type == "dpr":
        raise UserError(f"{source}: a DPR checkpoint cannot be trimmed; start from its BERT")
    if layers is not None and not 0 < layers <= config.num_hidden_layers:
        raise UserError(f"{source}: has {config.num_hidden_layers} layers; cannot keep {layers}")
    return config


def named_ids(config: Any, size: int) -> set[int]:
    """Ids that the config names, and all up to the padding id where positions count from it."""
    named = {
        row
        for name, value in config.to_dict().items()
        if name.endswith("_token_id")
        for row in (value if isinstance(value, list) else [value])
        if isinstance(row, int) and 0 <= row < size
    }
    embeddings = getattr(next(_laid_out(config)), "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    padding: int | None = getattr(table, "padding_idx", None)
    return named | (set(range(padding + 1)) if padding is not None else set())


def _laid_out(config: Any) -> Iterator[Any]:
    """The model without memory: bare, and with a language-model head where it has such a form."""
    import torch
    from transformers import AutoModel, AutoModelForMaskedLM

    with torch.device("meta"):
        yield AutoModel.from_config(copy.deepcopy(config))
    with contextlib.suppress(ValueError), torch.device("meta"):
        yield AutoModelForMaskedLM.from_config(copy.deepcopy(config))


def _shapes(config: Any, **changes: int) -> dict[str, tuple[int, ...]]:
    """Shape of each weight, by its name without the prefix of the bare model."""
    config = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(config, name, value)
    return {
        name.removeprefix(f"{model.base_model_prefix}."): tuple(weight.shape)
        for model in _laid_out(config)
        for name, weight in model.state_dict().items()
    }


def write(source: Path, output: Path, config: Any, kept: Sequence[int], layers: int | None) -> None:
    """Write weights, configuration and settings; the tokenizer is another's.

    Args:
        source: Checkpoint directory.
        output: Folder to fill.
        config: What :func:`read_config` read.
        kept: Rows of the embeddings to keep, rising.
        layers: The first N layers, or None for all.

    Raises:
        UserError: If the weights are broken, or have no row for a piece of the tokenizer.
    """
    from safetensors.torch import save_file

    shapes = _shapes(config)
    longer = _shapes(config, vocab_size=config.vocab_size + 1)
    by_piece = {
        name: next(axis for axis, size in enumerate(shape) if size != longer[name][axis])
        for name, shape in shapes.items()
        if shape != longer[name]
    }
    left_out = set(shapes) - set(_shapes(config, num_hidden_layers=layers) if layers else shapes)
    prefix = next(_laid_out(config)).base_model_prefix + "."
    tensors, cut = {}, 0
    for name, weight in _weights(source):
        own = name.removeprefix(prefix)
        if own in by_piece:
            weight = _rows(source, name, weight, kept, by_piece[own])
            cut += 1
        if own not in left_out:
            tensors[name] = weight
    if not cut:
        raise UserError(f"{source}: no embeddings under a name that {config.model_type} has")
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    _write_config(source, output, config, kept, layers)
    _write_settings(source, output, layers)


def _weights(source: Path) -> Iterator[tuple[str, Any]]:
    """Name and value of each weight of a checkpoint, of one file or several."""
    import torch
    from safetensors import SafetensorError, safe_open

    for file in _weight_files(source):
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as stream:
                    for name in stream.keys():  # noqa: SIM118 (not a mapping)
                        yield name, stream.get_tensor(name)
            else:
                for name, weight in torch.load(file, weights_only=True, map_location="cpu").items():
                    yield name, weight.clone()  # tied ones share memory, which may not be saved
        except (OSError, SafetensorError, RuntimeError, EOFError, UnpicklingError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{file}: weights cannot be read: {reason}") from error


def _weight_files(source: Path) -> list[Path]:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (source / name).is_file():
            return [source / name]
        if (index := source / f"{name}.index.json").is_file():
            names = sorted(set(read_json(index)["weight_map"].values()))
            return [settings.inside(source, name) for name in names]
    raise UserError(f"{source}: no weights (model.safetensors) beside config.json")


def _rows(source: Path, name: str, weight: Any, kept: Sequence[int], axis: int) -> Any:
    import torch

    if weight.shape[axis] <= kept[-1]:
        raise UserError(
            f"{source}: {name} has {weight.shape[axis]} rows, too few for piece {kept[-1]} of its "
            "tokenizer"
        )
    return weight.index_select(axis, torch.tensor(kept)).contiguous()


def _write_config(
    source: Path, output: Path, config: Any, kept: Sequence[int], layers: int | None
) -> None:
    """Write the configuration with its sizes and ids put right."""
    stated: JSON = read_json(source / "config.json")
    rows = {old: new for new, old in enumerate(kept)}
    for name, value in config.to_dict().items():
        if name.endswith("_token_id"):
            many = isinstance(value, list)
            moved = [rows.get(row) for row in value] if many else rows.get(value)
            if name in stated or moved != value:
                stated[name] = moved
    stated["vocab_size"] = len(kept)
    if layers is not None:
        depth = config.num_hidden_layers
        stated[config.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = layers
        if len(stated.get("layer_types") or ()) == depth:
            stated["layer_types"] = stated["layer_types"][:layers]
    write_json(output / "config.json", stated)


def _write_settings(source: Path, output: Path, layers: int | None) -> None:
    """Write what turns hidden states into vectors, as far as it still holds."""
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, output / name)
    for _, folder in settings.module_folders(source):
        if folder.resolve() != source.resolve() and folder.is_dir():
            shutil.copytree(folder, output / folder.relative_to(source))
    by_name = known.lookup(str(source)) is not None  # its new name will not be in the table
    if not by_name and not (source / settings.FILE).is_file():
        return
    stated, _ = settings.read_settings(source, str(source))
    if layers is not None and stated.layer > layers:
        logger.warning("%s pools layer %d; now the last of %d", source, stated.layer, layers)
        stated = dataclasses.replace(stated, layer=-1)
    if stated.calibration is not None and layers is not None:
        logger.warning("%s: its calibration was fitted on all layers and is left out", source)
        stated = dataclasses.replace(stated, calibration=None)
    if stated.calibration is not None:
        target = settings.inside(output, stated.calibration)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(settings.inside(source, stated.calibration), target)
    write_json(output / settings.FILE, dataclasses.asdict(stated))


def write_tokenizer(source: Path, output: Path, spec: JSON, kept: Sequence[int]) -> None:
    """Write ``tokenizer.json`` and what goes with it; older forms of the vocabulary are left out.

    Args:
        source: Checkpoint directory.
        output: Folder to fill.
        spec: The smaller tokenizer.
        kept: The ids that it keeps, rising.
    """
    write_json(output / "tokenizer.json", spec)
    path = source / "tokenizer_config.json"
    if not path.is_file():
        return
    stated: JSON = read_json(path)
    rows = {old: new for new, old in enumerate(kept)}
    if isinstance(added := stated.get("added_tokens_decoder"), Mapping):
        stated["added_tokens_decoder"] = {
            str(rows[int(row)]): token for row, token in added.items() if int(row) in rows
        }
    write_json(output / path.name, stated)
