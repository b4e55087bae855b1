"""One Transformer with its tokenizer and pooling: token ids to vectors (sections 3.1 and 4.2).

    h  = hidden states of layer L            (B, T, D)
    v  = pool(h)                             (B, D), see ccpretrieve.model.pooling

Only the layers up to L are run, the unused pooler is dropped, and hidden states of other layers
are never kept.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ccpretrieve.data.tokens import Segments, Tokens, pad, tokenize
from ccpretrieve.errors import UserError
from ccpretrieve.files import read_json
from ccpretrieve.model.fused import FusedLayers
from ccpretrieve.model.pooling import pool
from ccpretrieve.model.settings import EncoderSettings, module_folders

#: Architectures whose hidden states of layer N do not depend on later layers nor on a last norm.
_STACKED = {"bert", "roberta", "xlm-roberta", "camembert", "electra"}
#: Those among them whose layer is BERT's own.
_FUSED = {"bert", "roberta", "xlm-roberta", "camembert"}


class Tower:
    """A checkpoint's Transformer on a device, ready to encode.

    Args:
        path: Checkpoint directory.
        settings: Pooling and layer are used here; the rest by the encoder.
        device: A torch device.
        dtype: Of weights and computation; embeddings come out as float32.

    Raises:
        UserError: If the checkpoint is broken or incomplete, or lacks the layer asked for.
    """

    def __init__(
        self, path: Path, settings: EncoderSettings, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.path = path
        self.device = device
        self.tokenizer, self.model = _load(path, dtype, keep_pooler=settings.pooling == "pooler")
        self.model.to(device).eval().requires_grad_(False)
        self.pooling = settings.pooling
        self.layer = self._use_layers(settings.layer)
        self.size: int = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self.fused = self._fuse()
        self.dense = [_Dense(folder, device, dtype) for folder in _dense_folders(path)]
        self.dim = self.dense[-1].width if self.dense else int(self.model.config.hidden_size)
        for length in (settings.query_length, settings.passage_length):
            self._check_length(length)

    def _use_layers(self, layer: int) -> int:
        """Cut the stack above the pooled layer; return the index into the states that are left."""
        depth = int(self.model.config.num_hidden_layers)
        if not -1 <= layer <= depth:
            raise UserError(f"{self.path}: has layers 0 to {depth} (-1 the last), not {layer}")
        if layer not in (-1, depth) and self.model.config.model_type in _STACKED:
            self.model.encoder.layer = self.model.encoder.layer[:layer]
            return -1
        return -1 if layer == depth else layer

    def _fuse(self) -> FusedLayers | None:
        """The faster way through the layers, where their last states are all that is needed."""
        config = self.model.config
        relative = getattr(config, "position_embedding_type", "absolute") not in (None, "absolute")
        if config.model_type not in _FUSED or relative or self.layer != -1:
            return None
        return FusedLayers(self.model) if self.pooling != "pooler" else None

    def _check_length(self, length: int) -> None:
        limit = max_positions(self.model)
        if limit is not None and length > limit:
            raise UserError(
                f"{self.path}: takes at most {limit} tokens, asked for {length}; "
                f"use --max-length {limit} or less"
            )

    def tokenize(self, texts: Sequence[Segments], length: int) -> Iterator[Tokens]:
        """Turn texts, or (title, text) pairs, into token ids.

        Args:
            texts: Any number.
            length: Tokens kept, special ones included; the longer segment is cut first.

        Yields:
            One item a text, in order.
        """
        return tokenize(self.tokenizer, texts, length)

    def forward(self, batch: Sequence[Tokens]) -> Tensor:
        """Embed one batch, without gradients.

        Returns:
            Shape ``(B, D)``, float32, not normalised.
        """
        inputs = self._pad(batch)
        if self.fused is not None:
            return self._finish(self._pool(self.fused(inputs), inputs["attention_mask"], None))
        everything = self.layer != -1
        output = self.model(**inputs, output_hidden_states=everything)
        states = output.hidden_states[self.layer] if everything else output.last_hidden_state
        return self._finish(self._pool(states, inputs["attention_mask"], output))

    def _finish(self, pooled: Tensor) -> Tensor:
        for dense in self.dense:
            pooled = dense(pooled)
        return pooled.float()

    def _pool(self, states: Tensor, mask: Tensor, output: Any) -> Tensor:
        if self.pooling == "pooler":
            pooled: Tensor = output.pooler_output
            return pooled
        return pool(states, mask, self.pooling)

    def _pad(self, batch: Sequence[Tokens]) -> dict[str, Tensor]:
        inputs = pad(batch, self.tokenizer.pad_token_id)
        return {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}


def max_positions(model: Any) -> int | None:
    """Longest input in tokens, or None if positions are relative.

    RoBERTa's kinds number positions from the padding row + 1, so 514 rows hold 512 tokens.
    """
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if isinstance(table, torch.nn.Embedding):
        first = 0 if table.padding_idx is None else table.padding_idx + 1
        return table.num_embeddings - first
    rows = getattr(model.config, "max_position_embeddings", None)
    return int(rows) if rows is not None else None


def _load(path: Path, dtype: torch.dtype, *, keep_pooler: bool) -> tuple[Any, Any]:
    """Tokenizer and model; nothing randomly initialised, nothing said about what is unused."""
    from safetensors import SafetensorError
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            # The model first: reading it takes its memory twice, so let nothing else be there yet.
            model, report = _model(path, dtype)
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: cannot be loaded as a checkpoint: {reason}") from error
    missing = sorted(
        name for name in report["missing_keys"] if keep_pooler or not name.startswith("pooler.")
    )
    if missing:
        raise UserError(
            f"{path}: lacks {len(missing)} of the model's weights, {missing[0]} first; "
            "random ones are never put in their place"
        )
    if not keep_pooler and hasattr(model, "pooler"):
        model.pooler = None
    if keep_pooler and getattr(model, "pooler", None) is None:
        raise UserError(f"{path}: pooling 'pooler' needs a model that has one; use cls or mean")
    if tokenizer.pad_token_id is None:
        raise UserError(f"{path}: its tokenizer has no padding token")
    return tokenizer, model


def _model(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The bare Transformer of a checkpoint, and transformers' report of how it was filled.

    DPR's classes wrap a BERT; without a projection its last hidden states are their own. Of a model
    that has a decoder (mBART's kind) the encoder is taken. Code that comes with a checkpoint is
    never run.
    """
    import transformers

    options = {"dtype": dtype, "output_loading_info": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    if config.model_type != "dpr":
        model, report = transformers.AutoModel.from_pretrained(path, **options)
        return _encoder_of(model, report) if config.is_encoder_decoder else (model, report)
    if config.projection_dim:
        raise UserError(f"{path}: DPR with a projection is not implemented here")
    kind = (config.architectures or ["DPRQuestionEncoder"])[0]
    if kind not in ("DPRContextEncoder", "DPRQuestionEncoder"):
        raise UserError(f"{path}: {kind} encodes neither questions nor passages")
    del options["trust_remote_code"]
    wrapper, report = getattr(transformers, kind).from_pretrained(path, **options)
    inner = wrapper.ctx_encoder if kind == "DPRContextEncoder" else wrapper.question_encoder
    report["missing_keys"] = {name.split("bert_model.", 1)[-1] for name in report["missing_keys"]}
    return inner.bert_model, report


def _encoder_of(model: Any, report: dict[str, Any]) -> tuple[Any, Any]:
    """The encoder of a model with a decoder, and what is missing of it, by its own names."""
    inside = "encoder."
    report["missing_keys"] = {
        name.removeprefix(inside) for name in report["missing_keys"] if name.startswith(inside)
    }
    return model.get_encoder(), report


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bar and no load report: what matters of it is checked by the caller."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _dense_folders(path: Path) -> list[Path]:
    return [folder for kind, folder in module_folders(path) if kind == "Dense"]


class _Dense(torch.nn.Module):
    """A sentence-transformers ``Dense`` module: activation(W v + b)."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        config = read_json(folder / "config.json")
        activation = str(config["activation_function"]).rsplit(".", 1)[-1]
        if activation not in ("Tanh", "Identity", "ReLU", "GELU"):
            raise UserError(f"{folder}: activation {activation} is not implemented here")
        self.width = int(config["out_features"])
        self.linear = torch.nn.Linear(config["in_features"], self.width, bias=config["bias"])
        self.linear.load_state_dict(_dense_weights(folder))
        self.linear.to(device, dtype)
        self.activation = getattr(torch.nn, activation)()

    def forward(self, v: Tensor) -> Tensor:
        out: Tensor = self.activation(self.linear(v))
        return out


def _dense_weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if (folder / "model.safetensors").is_file():
        state = load_file(folder / "model.safetensors")
    else:
        state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    return {name.removeprefix("linear."): value for name, value in state.items()}
