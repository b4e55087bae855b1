"""What turns hidden states into embeddings, and where each setting comes from (3.1, 4.2, 4.3).

The paper pools in two ways: the first token of the last layer for pretraining and passage
retrieval (3.1, 4.3), and the mean of layer 14 for Tatoeba (4.2). Other encoders have other habits.
A setting is taken from the first of these that states it:

1. ``ccpretrieve.json`` beside the weights, ours;
2. sentence-transformers' ``modules.json``, its prompts and similarity;
3. the table of :mod:`ccpretrieve.model.known`;
4. the paper's retrieval setting, which is the default of each field below.

What a caller asks for wins over all of them (:meth:`EncoderSettings.override`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ccpretrieve.config import POOLINGS, SIMILARITIES, TITLES, one_of
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import read_json
from ccpretrieve.model import known

FILE = "ccpretrieve.json"
_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")  # what kinds of models call theirs


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Everything that decides which vector a text gets from given weights.

    Attributes:
        pooling: ``cls`` the first token, ``mean`` over tokens without padding, or ``pooler``: the
            model's own tanh layer over the first token (LaBSE).
        layer: Which hidden states are pooled: 0 the embeddings, N the N-th layer, -1 the last.
        normalize: Scale vectors to unit length.
        similarity: ``dot``, or ``cosine``, which implies ``normalize``.
        query_length: Tokens kept of a query, special ones included.
        passage_length: Tokens kept of a passage, special ones included.
        query_prefix: Put before every query.
        passage_prefix: Put before every passage, that is before its title.
        title: ``pair`` two segments, ``join`` title, space, text, ``drop`` the text alone.
        strip_question_mark: Strip the last ``?`` of a query, as DPR's own fine-tuning does.
        calibration: Calibration file beside the checkpoint, by relative path; None for none.
    """

    pooling: str = "cls"
    layer: int = -1
    normalize: bool = False
    similarity: str = "dot"
    query_length: int = 256
    passage_length: int = 256
    query_prefix: str = ""
    passage_prefix: str = ""
    title: str = "pair"
    strip_question_mark: bool = False
    calibration: str | None = None

    def __post_init__(self) -> None:
        one_of("pooling", self.pooling, (*POOLINGS, "pooler"))
        one_of("similarity", self.similarity, SIMILARITIES)
        one_of("title", self.title, TITLES)
        if self.similarity == "cosine" and not self.normalize:
            raise UserError("similarity cosine needs unit vectors; set normalize to true")

    def override(self, **asked: Any) -> Self:
        """These settings with those of ``asked`` that are not None.

        ``max_length`` stands for both lengths, and ``similarity="cosine"`` brings ``normalize``
        unless that is given too; ``normalize=False`` likewise brings ``dot``.

        Raises:
            UserError: If the result cannot work.
        """
        stated = {name: value for name, value in asked.items() if value is not None}
        if (length := stated.pop("max_length", None)) is not None:
            stated |= {"query_length": length, "passage_length": length}
        if stated.get("similarity") == "cosine":
            stated.setdefault("normalize", True)
        if stated.get("normalize") is False:
            stated.setdefault("similarity", "dot")
        return dataclasses.replace(self, **stated)


def read_settings(directory: Path, name: str) -> tuple[EncoderSettings, str]:
    """Find the settings of a checkpoint.

    Args:
        directory: Where its files lie.
        name: As the user wrote it, a directory or hub name: the key to the table of known models.

    Returns:
        The settings, and in words where they came from.

    Raises:
        UserError: If a file that should say so is broken or asks for what is not implemented.
    """
    if (directory / FILE).is_file():
        stated = read_json(directory / FILE)
        return _from_mapping(stated, directory / FILE), FILE
    defaults = known.lookup(name)
    sources = [f"the table of known models ({name})"] if defaults is not None else []
    stated = dict(defaults or {})
    if (directory / "modules.json").is_file():
        stated |= from_modules(directory)
        sources.insert(0, "modules.json")
    if not sources:
        return EncoderSettings(), "the paper (the checkpoint states none)"
    return _from_mapping(stated, directory), " and ".join(sources)


def _from_mapping(stated: Mapping[str, Any], source: Path) -> EncoderSettings:
    names = {field.name: type(field.default) for field in dataclasses.fields(EncoderSettings)}
    if not isinstance(stated, Mapping):
        raise UserError(f"{source}: expected an object of settings")
    for name, value in stated.items():
        if name not in names:
            raise UserError(f"{source}: {unknown('setting', name, tuple(names))}")
        may_be_none = names[name] is type(None)  # a path, or none
        if type(value) is not names[name] and not (may_be_none and isinstance(value, str)):
            raise UserError(f"{source}: setting {name!r} cannot be {value!r}")
    try:
        return EncoderSettings(**stated)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def write_settings(directory: Path, settings: EncoderSettings) -> None:
    """Write ``ccpretrieve.json``, and ``modules.json`` so that sentence-transformers agrees.

    ``modules.json`` is left out where sentence-transformers has no word for the setting: a layer
    other than the last, or the model's own pooler. Titles as a pair and question marks stripped it
    has no word for either; a passage without a title and a question without a mark get the same
    vector.
    """
    from ccpretrieve.files import write_json

    write_json(directory / FILE, dataclasses.asdict(settings))
    if settings.layer != -1 or settings.pooling == "pooler" or settings.calibration:
        return
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * settings.normalize
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    config = read_json(directory / "config.json")
    width = next(config[name] for name in _WIDTHS if name in config)
    for path in paths[1 : len(kinds)]:
        (directory / path).mkdir(exist_ok=True)
    pooling = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": settings.pooling == "cls",
        "pooling_mode_mean_tokens": settings.pooling == "mean",
    }
    write_json(directory / "1_Pooling" / "config.json", pooling)
    write_json(
        directory / "sentence_bert_config.json",
        {"max_seq_length": settings.passage_length, "do_lower_case": False},
    )
    prompts = {"query": settings.query_prefix, "document": settings.passage_prefix}
    write_json(
        directory / "config_sentence_transformers.json",
        {"prompts": prompts, "similarity_fn_name": settings.similarity},
    )
    write_json(directory / "modules.json", modules)


def inside(directory: Path, name: str) -> Path:
    """A file of a checkpoint by its relative path.

    Raises:
        UserError: If it would lie outside the checkpoint.
    """
    path = directory / name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise UserError(f"{directory}: names {name!r}, which lies outside it")
    return path


def module_folders(directory: Path) -> list[tuple[str, Path]]:
    """Kind and folder of each sentence-transformers module, in order; empty without any.

    Raises:
        UserError: If ``modules.json`` is not a list of modules.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return []
    try:
        return [
            (str(module["type"]).rsplit(".", 1)[-1], inside(directory, module["path"]))
            for module in read_json(path)
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: expected modules with `type` and `path`") from error


def from_modules(directory: Path) -> dict[str, Any]:
    """The settings that sentence-transformers' files state.

    Raises:
        UserError: If a module or pooling is not implemented here; a vector would differ silently.
    """
    stated: dict[str, Any] = {"title": "join"}
    for kind, folder in module_folders(directory):
        if kind == "Pooling":
            stated["pooling"] = _pooling(read_json(folder / "config.json"), folder)
        elif kind == "Normalize":
            stated["normalize"] = True
        elif kind == "Transformer" and folder != directory:
            raise UserError(
                f"{directory}: its Transformer in {folder.name}/ is not read; move it up"
            )
        elif kind not in ("Transformer", "Dense"):
            raise UserError(f"{directory / 'modules.json'}: module {kind} is not implemented here")
    if length := _length(directory):
        stated |= {"query_length": length, "passage_length": length}
    more = directory / "config_sentence_transformers.json"
    return stated | _prompts(_optional(more), more)


def _optional(path: Path) -> Mapping[str, Any]:
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: expected an object")
    return content


def _length(directory: Path) -> int | None:
    """Where sentence-transformers cuts: as stated, else at the tokenizer's or model's length."""
    sizes = _optional(directory / "sentence_bert_config.json")
    if sizes.get("do_lower_case"):
        raise UserError(f"{directory}: do_lower_case is not implemented here")
    if sizes.get("max_seq_length"):
        return int(sizes["max_seq_length"])
    config = _optional(directory / "config.json")
    rows = config.get("max_position_embeddings")
    offset = (
        (config.get("pad_token_id") or 0) + 1 if "roberta" in str(config.get("model_type")) else 0
    )
    stated = _optional(directory / "tokenizer_config.json").get("model_max_length")
    lengths = [stated, rows - offset if rows else None]
    known_lengths = [int(n) for n in lengths if n is not None and n < 1_000_000]
    return min(known_lengths, default=None)


def _pooling(config: Mapping[str, Any], folder: Path) -> str:
    names = {"cls_token": "cls", "cls": "cls", "mean_tokens": "mean", "mean": "mean"}
    modes: list[Any] = [
        name.removeprefix("pooling_mode_")
        for name, value in config.items()
        if name.startswith("pooling_mode_") and value is True
    ] or [config.get("pooling_mode")]
    if len(modes) != 1 or modes[0] not in names:
        raise UserError(f"{folder / 'config.json'}: pooling {modes} is not implemented here")
    if config.get("include_prompt") is False:
        raise UserError(f"{folder / 'config.json'}: pooling without the prompt is not implemented")
    return names[modes[0]]


def _prompts(config: Mapping[str, Any], source: Path) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name"))
    query = prompts.get("query", default)
    passage = next((prompts[n] for n in ("passage", "document", "corpus") if n in prompts), default)
    if query:
        stated["query_prefix"] = query
    if passage:
        stated["passage_prefix"] = passage
    similarity = config.get("similarity_fn_name") or "cosine"  # sentence-transformers' default
    if similarity == "cosine":
        stated |= {"similarity": "cosine", "normalize": True}
    elif similarity not in ("dot", "dot_product"):
        raise UserError(f"{source}: similarity {similarity!r} is not implemented here")
    return stated
