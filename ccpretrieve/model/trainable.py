"""A checkpoint opened for training: tokenizer, Transformer, head of masked language modelling.

For inference a checkpoint is opened by :mod:`ccpretrieve.model.tower`, which never computes
gradients.
"""

import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ccpretrieve.errors import UserError
from ccpretrieve.model.tower import max_positions, quiet_transformers

logger = logging.getLogger(__name__)

#: Where transformers keeps the head of masked language modelling, by kind of model.
_HEADS = ("lm_head", "cls")
#: Bytes of memory that each trained number takes: itself, its gradient, two moments.
BYTES = 16


class Trainable(NamedTuple):
    """What is trained.

    Attributes:
        tokenizer: Of transformers.
        encoder: The Transformer without a head.
        lm_head: From hidden states ``(..., D)`` to logits ``(..., V)``; its last layer shares the
            token embeddings. None if it was not asked for.
        whole: The module that holds both.
    """

    tokenizer: Any
    encoder: Any
    lm_head: nn.Module | None
    whole: Any


def load(
    path: Path, *, masked: bool, layers: int | None = None, dropout: float | None = None
) -> Trainable:
    """Open a checkpoint for training, in float32.

    Args:
        path: Checkpoint directory.
        masked: Whether the head of masked language modelling is needed; weights it lacks are drawn
            from torch's global generator, and the log says so.
        layers: Keep only so many of the first layers.
        dropout: Of the whole Transformer; None for the checkpoint's own.

    Raises:
        UserError: If it cannot be loaded, its Transformer lacks weights, or it has no such head or
            not so many layers.
    """
    import transformers
    from safetensors import SafetensorError

    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModel
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "output_loading_info": True,
        "trust_remote_code": False,
        "attn_implementation": "sdpa",
    }
    try:
        with quiet_transformers():
            whole, report = kind.from_pretrained(path, **options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: cannot be loaded for training: {reason}") from error
    encoder = whole.base_model
    head = _head(path, whole) if masked else None
    _check_missing(path, report["missing_keys"], encoder, masked=masked)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    if layers is not None:
        keep_layers(path, encoder, layers)
    if dropout is not None:
        for module in whole.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
    return Trainable(tokenizer, encoder, head, whole)


def check(
    path: Path,
    *,
    masked: bool,
    layers: int | None,
    prefix: str,
    length: int,
    whole_words: bool,
    flag: str = "--max-length",
) -> int:
    """Fail if training could not start from a checkpoint, before its weights are read.

    Args:
        path: Checkpoint directory.
        masked: Whether the head of masked language modelling is needed.
        layers: How many of the first layers are to be kept; None for all.
        prefix: What will be put before every sentence.
        length: Tokens that will be kept of a sentence.
        whole_words: Whether whole words will be masked.
        flag: What ``length`` was asked for by.

    Returns:
        D, the width of its hidden states.

    Raises:
        UserError: If it cannot be laid out, or is too small or without what is asked of it.
    """
    import transformers

    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModel
    try:
        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        with torch.device("meta"), quiet_transformers():
            whole = kind.from_config(config)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: cannot be loaded for training: {reason}") from error
    if config.is_encoder_decoder:
        raise UserError(f"{path}: a {config.model_type} has a decoder, which is not trained here")
    if tokenizer.pad_token_id is None:
        raise UserError(f"{path}: its tokenizer has no padding token")
    encoder = whole.base_model
    if masked:
        _head(path, whole)
    if layers is not None:
        keep_layers(path, encoder, layers)
    check_length(path, encoder, length, flag)
    check_prefix(tokenizer, prefix, length, flag)
    if whole_words and not tokenizer.is_fast:
        raise UserError(f"{path}: --whole-words needs a fast tokenizer (tokenizer.json)")
    return int(encoder.config.hidden_size)


def check_prefix(tokenizer: Any, prefix: str, length: int, flag: str = "--max-length") -> None:
    """Fail if a prefix leaves no token of a sentence.

    Raises:
        UserError: With the tokens that there are.
    """
    used = len(tokenizer(prefix, verbose=False)["input_ids"])
    if used >= length:
        raise UserError(
            f"{flag} {length}: the prefix {prefix!r} takes {used} tokens, special ones "
            "included, so nothing is left of a sentence; raise it"
        )


def check_memory(what: str, needed: int, device: torch.device, way: str) -> None:
    """Fail if something takes more memory than the device has in all.

    Args:
        what: It, as a flag with its value.
        needed: Bytes.
        device: Where it will be.
        way: What can be done.

    Raises:
        UserError: With both amounts.
    """
    if device.type == "cuda":
        there = int(torch.cuda.get_device_properties(device).total_memory)
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"{what} needs {needed / 1e9:,.0f} GB of memory, {device.type} has {there / 1e9:,.0f}; "
            f"{way}"
        )


def _head(path: Path, whole: Any) -> Any:
    """The head of masked language modelling.

    Raises:
        UserError: If the model has none where we know one.
    """
    head = next((getattr(whole, name) for name in _HEADS if hasattr(whole, name)), None)
    if head is None:
        raise UserError(
            f"{path}: a {whole.config.model_type} has no head for masked language modelling that "
            "is known here; use --mlm-share 0"
        )
    return head


def _check_missing(path: Path, missing: Any, encoder: nn.Module, *, masked: bool) -> None:
    """Fail if the Transformer lacks weights; say so if the head does."""
    own = set(encoder.state_dict())
    lacking = sorted(
        name
        for name in missing
        if (name in own or name.split(".", 1)[-1] in own) and "pooler." not in name
    )
    if lacking:
        raise UserError(
            f"{path}: lacks {len(lacking)} of the model's weights, {lacking[0]} first; random ones "
            "are never put in their place"
        )
    of_head = [name for name in missing if "pooler." not in name]
    if masked and of_head:
        logger.info(
            "%s: has no head for masked language modelling; %d of its weights begin at random",
            path,
            len(of_head),
        )


def keep_layers(path: Path, encoder: Any, layers: int) -> None:
    """Drop all but the first layers.

    Raises:
        UserError: If there are fewer, or they are not kept where BERT's kinds keep them.
    """
    stack = getattr(getattr(encoder, "encoder", None), "layer", None)
    if stack is None:
        kind = encoder.config.model_type
        raise UserError(f"{path}: the layers of a {kind} cannot be cut here; leave --layers out")
    if layers > len(stack):
        raise UserError(f"{path}: has {len(stack)} layers, not {layers}; lower --layers")
    encoder.encoder.layer = stack[:layers]
    encoder.config.num_hidden_layers = layers


def check_length(path: Path, encoder: Any, length: int, flag: str = "--max-length") -> None:
    """Fail if the model has no positions for so many tokens.

    Raises:
        UserError: With the most it takes.
    """
    limit = max_positions(encoder)
    if limit is not None and length > limit:
        raise UserError(
            f"{path}: takes at most {limit} tokens, asked for {length}; use {flag} {limit} or less"
        )


def recompute_activations(model: Any) -> None:
    """Compute activations again in the backward pass rather than keep them."""
    model.config.use_cache = False  # of earlier tokens, which transformers warns of otherwise
    enable = getattr(model, "activation_checkpointing_enable", None)  # its name from 5.24 on
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
