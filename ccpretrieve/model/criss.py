"""CRISS (Tran et al. 2020): its fairseq checkpoint, of mBART's shape, to a checkpoint of ours.

    criss.3rd.pt, dict.txt, sentence.bpe.model  ->  config.json, model.safetensors,
                                                    tokenizer.json, ccpretrieve.json

Only the encoder is kept (transformers lays a decoder without layers beside it, which is never run):

    x = LN(sqrt(D) E[token] + P[2 + place])        without the root where no_scale_embedding
    x = x + Attention(LN(x));  x = x + W_2 act(W_1 LN(x))        in each layer
    v = mean over all tokens of LN(x)

Text is cut into word pieces (:mod:`ccpretrieve.model.criss_pieces`), and ``</s>`` ends it. No
language code is put to it: fairseq's script for sentence retrieval
(examples/criss/sentence_retrieval) sets none for the encoder. The rows of language codes and
``<mask>``, which fairseq appends to those of ``dict.txt``, are therefore left out.

The file is a pickle. Nothing in it is run: tensors, plain values and ``argparse.Namespace``, which
holds fairseq's settings, are read, anything else is refused.
"""

import argparse
import dataclasses
import logging
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve.errors import UserError
from ccpretrieve.files import write_json
from ccpretrieve.model import settings
from ccpretrieve.model.criss_pieces import Pieces
from ccpretrieve.model.known import KNOWN
from ccpretrieve.model.part import created

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

_OFFSET = 2  # rows of P before the first place: fairseq counts from the padding row + 1
_ACTIVATIONS = ("gelu", "relu")
_TABLE, _PLACES = "embed_tokens.weight", "embed_positions.weight"
_NO_WEIGHTS = {"version", "embed_positions._float_tensor"}


@dataclass(frozen=True)
class Converted:
    """What became of a checkpoint.

    Attributes:
        source: The fairseq file.
        layers: Of the encoder.
        width: D.
        pieces: Rows of ``dict.txt`` and special ones.
        unknown: Pieces of SentencePiece that ``dict.txt`` has not, which are ``<unk>``.
        left_out: Rows of language codes and ``<mask>``.
    """

    source: Path
    layers: int
    width: int
    pieces: int
    unknown: int
    left_out: int


def convert(source: Path, output: Path) -> Converted:
    """Convert a fairseq checkpoint.

    Args:
        source: The ``.pt`` file, or a folder with one; ``dict.txt`` and the SentencePiece model lie
            beside it.
        output: Directory to create; whole or absent.

    Raises:
        UserError: If a file is missing, broken, unsafe, of another shape, or does not belong to
            the others; or ``output`` exists or cannot be written.
    """
    from safetensors.torch import save_file

    file = _one(source, "*.pt") if source.is_dir() else source
    pieces = Pieces.read(file.parent / "dict.txt", _one(file.parent, "*.model"))
    content = load(file)
    weights = _encoder(content, file)
    config = _config(_arguments(content, file), len(weights[_PLACES]) - _OFFSET, file)
    _check_shapes(weights, config, file)
    rows = len(weights[_TABLE])
    weights["shared.weight"] = pieces.table(weights.pop(_TABLE), file)
    config.vocab_size = len(weights["shared.weight"])
    with created(output, "converting a checkpoint") as partial:
        config.save_pretrained(partial)
        named = {
            name if name == "shared.weight" else f"encoder.{name}": tensor.float().contiguous()
            for name, tensor in weights.items()
        }
        save_file(named, partial / "model.safetensors", metadata={"format": "pt"})
        pieces.save_tokenizer(partial, config.max_position_embeddings)
        _write_settings(partial, config.max_position_embeddings)
    return Converted(
        source=file,
        layers=config.encoder_layers,
        width=config.d_model,
        pieces=pieces.size,
        unknown=len(pieces.unknown),
        left_out=rows - pieces.size,
    )


def _one(folder: Path, pattern: str) -> Path:
    """The only file of its kind in a folder.

    Raises:
        UserError: If there is none, or there are several.
    """
    found = sorted(folder.glob(pattern))
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(f"{folder}: no {pattern} here; a fairseq checkpoint has one")
    names = ", ".join(path.name for path in found)
    raise UserError(f"{folder}: which {pattern} of {names}? give its path, or keep one there")


def _write_settings(folder: Path, places: int) -> None:
    """Write ``ccpretrieve.json`` alone: sentence-transformers would run the decoder."""
    own = settings.EncoderSettings(**KNOWN["criss"])
    length = min(own.passage_length, places)
    own = dataclasses.replace(own, query_length=length, passage_length=length)
    write_json(folder / settings.FILE, dataclasses.asdict(own))


# -- the pickle --


def load(file: Path) -> Mapping[str, Any]:
    """Read a fairseq checkpoint without running anything that is in it.

    Raises:
        UserError: If it is missing or broken, or holds an object of a class that is not let in.
    """
    import torch

    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(
                file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
            )
    except FileNotFoundError as error:
        raise UserError(f"{file}: no such file") from error
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        if named is None:
            raise UserError(f"{file}: not a checkpoint that torch wrote") from error
        raise UserError(
            f"{file}: holds a {named[1]}, and classes other than argparse.Namespace are not loaded "
            "because a pickle can run anything; save its 'model' and 'args' alone where you trust "
            "it, and convert that"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"{file}: cannot be read as a checkpoint: {reason}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        raise UserError(f"{file}: has no 'model'; it is no checkpoint of fairseq's")
    return content


def _arguments(content: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Fairseq's settings of the model: ``args``, or ``cfg.model`` in later versions."""
    stated = content.get("args")
    if stated is None:
        stated = _plain(content.get("cfg")).get("model")
    if not _plain(stated):
        raise UserError(f"{file}: has neither 'args' nor 'cfg' with the sizes of the model")
    return _plain(stated)


def _plain(stated: object) -> Mapping[str, Any]:
    values = vars(stated) if isinstance(stated, argparse.Namespace) else stated
    return values if isinstance(values, Mapping) else {}


# -- the encoder --


def _encoder(content: Mapping[str, Any], file: Path) -> "dict[str, Tensor]":
    """Weights of the encoder by their names within it, which are transformers' too."""
    named = {
        name.removeprefix("encoder."): tensor
        for name, tensor in content["model"].items()
        if name.startswith("encoder.") and name.removeprefix("encoder.") not in _NO_WEIGHTS
    }
    for name in (_TABLE, _PLACES):
        if name not in named:
            raise UserError(f"{file}: has no encoder.{name}; it is not of mBART's shape")
    return named


def _config(stated: Mapping[str, Any], places: int, file: Path) -> Any:
    """Sizes for transformers, with a decoder of no layers.

    Raises:
        UserError: If a size is missing, or the activation is another.
    """
    from transformers import MBartConfig

    fairseq = ("encoder_layers", "encoder_ffn_embed_dim", "encoder_attention_heads")
    for name in (*fairseq, "encoder_embed_dim"):
        if type(stated.get(name)) is not int:
            raise UserError(f"{file}: its settings do not say {name}")
    layers, inner, heads = (stated[name] for name in fairseq)
    activation = stated.get("activation_fn")
    if activation not in _ACTIVATIONS:
        raise UserError(f"{file}: activation_fn {activation!r} is not implemented here")
    if code := stated.get("encoder_langtok"):
        logger.info("%s: trained with the code of the %s language before a text", file, code)
        logger.info("as in fairseq's script for sentence retrieval, none is put there")
    return MBartConfig(
        architectures=["MBartModel"],
        d_model=stated["encoder_embed_dim"],
        encoder_layers=layers,
        encoder_ffn_dim=inner,
        encoder_attention_heads=heads,
        decoder_layers=0,
        decoder_ffn_dim=inner,
        decoder_attention_heads=heads,
        max_position_embeddings=places,
        activation_function=activation,
        scale_embedding=not stated.get("no_scale_embedding", False),
    )


def _check_shapes(weights: "Mapping[str, Tensor]", config: Any, file: Path) -> None:
    """Fail unless the weights are just those of mBART's encoder.

    Raises:
        UserError: Naming the first that is missing, too many, or of another shape.
    """
    import torch
    from transformers import MBartModel

    with torch.device("meta"):
        expected = {
            name: tuple(tensor.shape)
            for name, tensor in MBartModel(config).encoder.state_dict().items()
        }
    expected[_TABLE] = (len(weights[_TABLE]), config.d_model)
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            raise UserError(
                f"{file}: encoder.{name} is {found.get(name, 'missing')}, in mBART's shape "
                f"{expected.get(name, 'there is none')}"
            )
