"""Our encoder in Pyserini's two roles, as objects and under a name in its tables.

    FaissSearcher("indexes/sample-en.e5", QueryEncoder("intfloat/multilingual-e5-small"))
    register()  # then Pyserini's tables of encoder classes hold `ccp`

The vectors are those of :class:`ccpretrieve.model.encoder.Encoder`: pooling, prefix, lengths, how
title and text join, unit length and calibration come from the checkpoint. What Pyserini passes for
these (``max_length=256``, ``add_sep=False``, and ``pooling`` or ``l2_norm`` guessed from parts of a
path such as ``clip`` or ``dse``) are its own defaults and change nothing.

``QueryEncoder`` and ``DocumentEncoder`` are subclasses of Pyserini's, made on first use: importing
Pyserini takes about 15 CPU seconds and starts a JVM, importing this module does neither.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ccpretrieve.errors import UserError
from ccpretrieve.model.calibration_file import Embeddings
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.retrieval.lexical import start_java

#: Our key in Pyserini's tables, and so what ``encoder_class`` is called.
KEY = "ccp"


class _Queries:
    """Questions to vectors, as Pyserini's searchers ask for them.

    Args:
        encoder_dir: An encoder, or the checkpoint directory or hub name of one.
        device: A torch device, for a checkpoint named; None for cuda where there is one.
        prefix: Pyserini's ``--query-prefix``; only the checkpoint's own is accepted.
        fp16: Load the checkpoint named in float16.
        language: Language of the questions; needed by a calibration only.
        **ignored: What else Pyserini passes to every class.

    Raises:
        UserError: If the checkpoint cannot be loaded, or puts another prefix before queries.
    """

    def __init__(
        self,
        encoder_dir: str | Path | Encoder,
        *,
        device: str | None = None,
        prefix: str | None = None,
        fp16: bool = False,
        language: str = "",
        **ignored: Any,
    ) -> None:
        super().__init__()
        self.encoder = _open(encoder_dir, device, fp16=fp16)
        _same_prefix(prefix, self.encoder.settings.query_prefix, self.encoder.name)
        self.language = language
        self.has_model = True  # Pyserini's base class looks for encoded queries without it

    def encode(self, query: str, **ignored: Any) -> Embeddings:
        """Embed one question, shape ``(D,)``."""
        vector: Embeddings = self.encode_batch([query])[0]
        return vector

    def encode_batch(self, queries: Sequence[str], **ignored: Any) -> Embeddings:
        """Embed N questions, shape ``(N, D)``, in order."""
        return self.encoder.encode_queries(queries, language=self.language)


class _Documents:
    """Passages to vectors, as ``pyserini.encode`` asks for them.

    Args:
        model_name: An encoder, or the checkpoint directory or hub name of one.
        device: A torch device, for a checkpoint named; None for cuda where there is one.
        prefix: Pyserini's ``--prefix``; only the checkpoint's own is accepted.
        fp16: Load the checkpoint named in float16.
        language: Language of the passages; needed by a calibration only.
        **ignored: What else Pyserini passes to every class.

    Raises:
        UserError: If the checkpoint cannot be loaded, or puts another prefix before passages.
    """

    def __init__(
        self,
        model_name: str | Path | Encoder,
        *,
        device: str | None = None,
        prefix: str | None = None,
        fp16: bool = False,
        language: str = "",
        **ignored: Any,
    ) -> None:
        super().__init__()
        self.encoder = _open(model_name, device, fp16=fp16)
        _same_prefix(prefix, self.encoder.settings.passage_prefix, self.encoder.name)
        self.language = language

    def encode(
        self,
        texts: Sequence[str | None],
        titles: Sequence[str | None] | None = None,
        **ignored: Any,
    ) -> Embeddings:
        """Embed N passages.

        Args:
            texts: Their texts; Pyserini says None for an empty one.
            titles: Their titles, joined as the checkpoint's settings say.
            **ignored: What else Pyserini passes to every class.

        Returns:
            Shape ``(N, D)``, float32, in order.
        """
        titles = titles if titles is not None else [None] * len(texts)
        passages = [(title or "", text or "") for title, text in zip(titles, texts, strict=True)]
        return self.encoder.encode_passages(passages, language=self.language)


def _open(encoder: str | Path | Encoder, device: str | None, *, fp16: bool) -> Encoder:
    if isinstance(encoder, Encoder):
        return encoder
    return Encoder.load(encoder, device=device, dtype="float16" if fp16 else None)


def _same_prefix(asked: str | None, ours: str, name: str) -> None:
    if asked is not None and asked != ours:
        raise UserError(f"{name}: puts {ours!r} before each text, not the prefix {asked!r}")


@functools.cache
def encoder_classes() -> tuple[type, type]:
    """Our query and document encoder classes, subclasses of Pyserini's; imports Pyserini.

    Raises:
        UserError: If there is no Java for it, or it cannot be imported.
    """
    start_java()
    try:
        from pyserini.encode import DocumentEncoder, QueryEncoder
    except OSError as error:  # URLError is one
        raise UserError(
            "Pyserini cannot be imported; its version 2 fetches lists of indexes when it is, so "
            f"give it a network or install 'pyserini<2': {error}"
        ) from error
    return _mixed(_Queries, QueryEncoder), _mixed(_Documents, DocumentEncoder)


def _mixed(ours: type, base: type) -> type:
    body = {"__doc__": ours.__doc__, "__module__": __name__}
    return type(base.__name__, (ours, base), body)


def __getattr__(name: str) -> Any:
    """``QueryEncoder`` and ``DocumentEncoder``, made when somebody asks for one."""
    if name == "QueryEncoder":
        return encoder_classes()[0]
    if name == "DocumentEncoder":
        return encoder_classes()[1]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(encoder: Encoder | None = None, *, language: str = "", key: str = KEY) -> None:
    """Put our classes into Pyserini's tables of encoder classes.

    Args:
        encoder: Encodes whatever checkpoint Pyserini names; None to load the one it names.
        language: Language of queries and passages; needed by a calibration only.
        key: The name in the tables.

    Raises:
        UserError: If Pyserini cannot be imported.
    """
    queries, documents = encoder_classes()
    import pyserini.encode

    pyserini.encode.query_encoder_class_map[key] = _maker(queries, encoder, language)
    pyserini.encode.document_encoder_class_map[key] = _maker(documents, encoder, language)


def _maker(kind: type, encoder: Encoder | None, language: str) -> Callable[..., Any]:
    """What Pyserini calls, with keywords of its own, to make an encoder of a kind."""
    if encoder is None:
        return functools.partial(kind, language=language)
    return lambda **ignored: kind(encoder, language=language)


@contextlib.contextmanager
def in_place_of(key: str, encoder: Encoder, *, language: str = "") -> Iterator[None]:
    """Let a name that Pyserini's parsers know stand for an encoder of ours while the block runs.

    Raises:
        UserError: If Pyserini cannot be imported.
    """
    encoder_classes()
    import pyserini.encode

    tables = (pyserini.encode.query_encoder_class_map, pyserini.encode.document_encoder_class_map)
    before = [table[key] for table in tables]
    register(encoder, language=language, key=key)
    try:
        yield
    finally:
        for table, kind in zip(tables, before, strict=True):
            table[key] = kind
