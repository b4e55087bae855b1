"""What outputs are called: ``indexes/<corpus>.<tag>/`` and ``runs/<topics>.<tag>.trec``."""

import re
from pathlib import Path

from ccpretrieve.errors import UserError
from ccpretrieve.files import PARTIAL, slug

INDEXES, RUNS = Path("indexes"), Path("runs")


def tag_of(encoder: str) -> str:
    """An encoder's name in file names and runs: the last part of its path or hub name."""
    return slug(encoder.rstrip("/").rsplit("/", 1)[-1])


def check_tag(tag: str) -> str:
    """Fail unless ``tag`` can be part of a file name and a column of a run.

    Raises:
        UserError: Otherwise.
    """
    if not re.fullmatch(r"[\w.-]+", tag):
        raise UserError(f"--tag {tag!r} must be one word of letters, digits, '.', '-' and '_'")
    return tag


def index_folder(corpus: str, tag: str, part: tuple[int, int] = (0, 1)) -> Path:
    """Where the index of a corpus goes; a machine's part of it has its number in its name."""
    suffix = f".{part[0]}-of-{part[1]}" if part[1] > 1 else ""
    return INDEXES / f"{corpus}.{tag}{suffix}"


def indexes(corpus: str | None = None) -> list[Path]:
    """Finished index folders under ``indexes/``, of one corpus or all, by name."""
    if not INDEXES.is_dir():
        return []
    return sorted(
        path
        for path in INDEXES.iterdir()
        if (path / "index").is_file()
        and not path.name.endswith(PARTIAL)
        and (corpus is None or path.name.startswith(f"{corpus}."))
    )


def run_file(topics: str, tag: str) -> Path:
    """Where a run goes; ``topics`` is such as ``mrtydi-ja.test``."""
    return RUNS / f"{topics}.{tag}.trec"
