"""Multilingual dense retrieval by contrastive context prediction (CCP).

The commands are modules of this package (``python -m ccpretrieve.encode``). Importing the package
imports none of them: ``Encoder``, ``Index`` and ``search`` are found on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccpretrieve import search
    from ccpretrieve.model.encoder import Encoder
    from ccpretrieve.retrieval.faiss_index import Index

__version__ = "0.1.0"
__all__ = ["Encoder", "Index", "__version__", "search"]


def __getattr__(name: str) -> Any:
    """Import ``Encoder``, ``Index`` or ``search`` when somebody asks for it."""
    if name == "Encoder":
        return importlib.import_module("ccpretrieve.model.encoder").Encoder
    if name == "Index":
        return importlib.import_module("ccpretrieve.retrieval.faiss_index").Index
    if name == "search":
        return importlib.import_module("ccpretrieve.search")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
