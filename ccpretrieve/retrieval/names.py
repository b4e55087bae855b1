"""What outputs are called: ``indexes/<corpus>.<tag>/`` and ``runs/<topics>.<tag>.trec``."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccpretrieve.errors import UserError
from ccpretrieve.files import PARTIAL, slug
from ccpretrieve.retrieval import bm25, meta

INDEXES, RUNS = Path("indexes"), Path("runs")


def tag_of(encoder: str) -> str:
    """An encoder's name in file names and runs: the last part of its path or hub name."""
    return slug(encoder.rstrip("/").rsplit("/", 1)[-1])


def check_tag(tag: str) -> str:
    """Fail unless ``tag`` can be part of a file name and a column of a run.

    Raises:
        UserError: Otherwise.
    """
    if not re.fullmatch(r"\w[\w.-]*", tag) or tag.endswith(PARTIAL):
        raise UserError(f"--tag {tag!r} must be one word of letters, digits, '.', '-' and '_'")
    return tag


def index_folder(corpus: str, tag: str, part: tuple[int, int] = (0, 1)) -> Path:
    """Where the index of a corpus goes; a machine's part of it has its number in its name."""
    suffix = f".{part[0]}-of-{part[1]}" if part[1] > 1 else ""
    return INDEXES / f"{corpus}.{tag}{suffix}"


def tag_in(index: Path, content: Mapping[str, Any] | None) -> str:
    """Last part of an index' name: ``mrtydi-ja.ccp`` was made with ``ccp``.

    Args:
        index: Its folder.
        content: What it says of itself; None if it says nothing.
    """
    corpus = content["corpus"]["name"] if content else ""
    return slug(index.resolve().name.removeprefix(f"{corpus}."))


def indexes(corpus: str | None = None) -> list[Path]:
    """Finished folders of embedding indexes under ``indexes/``, by name.

    Args:
        corpus: Only those whose ``meta.json`` names this corpus; None for all, Pyserini's too.
    """
    if not INDEXES.is_dir():
        return []
    found = (path for path in sorted(INDEXES.iterdir()) if (path / "index").is_file())
    return [
        path
        for path in found
        if not path.name.endswith(PARTIAL) and (corpus is None or corpus == _corpus_of(path))
    ]


def lexical_indexes(corpus: str | None = None) -> list[Path]:
    """Finished folders of BM25 indexes under ``indexes/``, by name.

    Args:
        corpus: Only those whose ``meta.json`` names this corpus; None for all of ours.
    """
    found = sorted(INDEXES.glob(f"*.{bm25.TAG}"))
    return [
        path
        for path in found
        if (path / bm25.FILE).is_file() and corpus in (None, bm25.read(path)["corpus"]["name"])
    ]


def _corpus_of(index: Path) -> str | None:
    content = meta.read(index)
    return content["corpus"]["name"] if content else None


def kind_of(index: Path) -> str | None:
    """The FAISS factory string of an index; None where Pyserini wrote it."""
    content = meta.read(index)
    return content["index"]["kind"] if content else None


def topics_name(path: Path) -> str:
    """A file of topics in file names: its own name, and its folder's if it says only the split."""
    stem = re.sub(r"(\.(tsv|txt|jsonl|json|gz))+$", "", path.name)
    return slug(f"{path.absolute().parent.name}.{stem}" if stem.startswith("topic.") else stem)


def run_file(topics: str, tag: str) -> Path:
    """Where a run goes; ``topics`` is such as ``mrtydi-ja.test``."""
    return RUNS / f"{topics}.{tag}.trec"
