"""Finds the documents of every language in a folder and below, or in one file.

The language of a file is what its name or its folder's says: ``ja.txt``, ``ja_news.txt``, or any
name in a folder ``ja`` or ``jpn_Jpan``. A file of JSON lines that say otherwise, or whose name says
nothing, is looked through once, whole, for the languages of its lines.
"""

import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ccpretrieve.data.document_files import FileDocuments, TextFile, tag_at
from ccpretrieve.data.languages import find, language
from ccpretrieve.data.lines import unreadable
from ccpretrieve.data.rawlines import is_blank, raw_lines
from ccpretrieve.data.readers import JSON_SUFFIXES, suffix
from ccpretrieve.data.tags import SEPARATOR, code_of
from ccpretrieve.errors import UserError

logger = logging.getLogger(__name__)

SUFFIXES = (*JSON_SUFFIXES, ".txt")
NOT_DOCUMENTS = {"readme", "license", "copying", "authors", "changelog", "document_ids"}
#: A folder's name that is nothing but a language: ``ja``, ``pt-BR``, ``jpn_Jpan``, ``20231101.ja``.
FOLDER = re.compile(r"(?:\d+\.)?[A-Za-z]{2,3}(?:[-_][A-Z][A-Za-z]{1,3})?")
HEAD = 1000  # lines of a file named after a language that are looked at before it is believed
LARGE = 1 << 28  # bytes of a file from which on looking for languages takes long enough to say so


def find_files(place: Path, wanted: Sequence[str]) -> dict[str, FileDocuments]:
    """Find documents.

    Args:
        place: Folder or file.
        wanted: Codes of the languages that will be read; all if empty. With any, what is in no
            language that can be told is left aside.

    Raises:
        UserError: If the place or a line cannot be read, or nothing says a language.
    """
    files: dict[str, list[TextFile]] = {}
    weights: Counter[str] = Counter()
    for file in _listing(place):
        sizes = _count_lines(file, wanted) if file.is_json else _of_name(file, wanted)
        if set(sizes) == {file.language}:
            file = replace(file, believed=True)
        for code, size in sizes.items():
            files.setdefault(code, []).append(file)
            weights[code] += file.weight * size // sizes.total()
    return {code: FileDocuments(code, files[code], weights[code]) for code in files}


def _listing(place: Path) -> list[TextFile]:
    """The files that may hold documents, in the order of their names."""
    try:
        root = place.parent if place.is_file() else place
        if place.is_file():
            names = [place.name]
        else:
            os.scandir(root).close()  # says what is wrong with it; os.walk says nothing
            names = [
                (Path(folder) / name).relative_to(root).as_posix()
                for folder, _, below in os.walk(root)
                for name in below
            ]
        paths = {name: root / name for name in sorted(names) if _may_hold(Path(name))}
        _refuse_twins(paths)
        return [TextFile(p, name, _size(p), _named(p, root)) for name, p in paths.items()]
    except OSError as error:
        raise unreadable(Path(error.filename or place), error) from error


def _size(path: Path) -> int:
    """Bytes of a file.

    Raises:
        UserError: If it is none, such as a pipe, which would be waited for, or a dangling link.
    """
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path}: a link to a file that is not there; mend or remove it")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: a pipe or a device, where a file belongs; move it away")
    return status.st_size


def _may_hold(path: Path) -> bool:
    """Whether a file, by its path below the folder that was named, may hold documents."""
    stem = path.name.lower().partition(".")[0]
    hidden = any(part.startswith(".") for part in path.parts)
    return suffix(path) in SUFFIXES and stem not in NOT_DOCUMENTS and not hidden


def _refuse_twins(paths: dict[str, Path]) -> None:
    """Fail if a file is there both packed and unpacked."""
    for name, path in paths.items():
        if name.endswith(".gz") and name.removesuffix(".gz") in paths:
            raise UserError(f"{path}: {path.stem} is there too; keep one of them")


def _named(path: Path, root: Path) -> str:
    """Code of the language that a file's name or its folder's says, ``""`` if none does.

    A name that is a language as a whole comes first, then a folder's, then a name that begins or
    ends in one.
    """
    name = Path(path.name.removesuffix(".gz")).stem
    row = find(name)
    if row is not None:
        return row.code
    folders = [*(folder.name for folder in path.relative_to(root).parents), root.resolve().name]
    for folder in folders:
        if code := code_of(folder) if FOLDER.fullmatch(folder) else "":
            return code
    return code_of(name)


def _of_name(file: TextFile, wanted: Sequence[str]) -> Counter[str]:
    """The language of a plain text."""
    if file.language:
        return Counter({file.language: 1})
    message = f"{file.path}: nothing says its language; rename it, to ja.txt if it is Japanese"
    if not wanted:
        raise UserError(message)
    logger.warning("%s; passed over", message)
    return Counter()


def _count_lines(file: TextFile, wanted: Sequence[str]) -> Counter[str]:
    """Bytes of the lines of each language; a name is believed if the first lines agree."""
    if file.language:
        sizes = _count_head(file, HEAD, wanted)
        if set(sizes) <= {file.language}:
            return sizes
    if file.size > LARGE:
        logger.info("%s: looking for its languages", file.path)
    return _count_head(file, None, wanted)


def _count_head(file: TextFile, most: int | None, wanted: Sequence[str]) -> Counter[str]:
    """Bytes of the lines of each language among the first lines; among all if None."""
    sizes: Counter[str] = Counter()
    unknown: set[str] = set()
    for number, _, raw in islice(raw_lines(file.path), most):
        if is_blank(raw):
            continue
        tag = tag_at(file, number, raw)
        code = code_of(tag) if tag else file.language
        if code:
            sizes[code] += len(raw)
        elif tag not in unknown:
            unknown.add(tag)
            _unknown(file, number, tag, wanted)
    return sizes


def _unknown(file: TextFile, number: int, tag: str, wanted: Sequence[str]) -> None:
    """Say that a tag is not in the table.

    Raises:
        UserError: If all languages are wanted.
    """
    try:
        name = language(SEPARATOR.split(tag)[0] or tag).name
        reason = f"language {tag!r} names a script that the table does not have for {name}"
    except UserError as error:
        reason = str(error)
    if not wanted:
        way = "or choose others with --languages and such lines are passed over"
        raise UserError(f"{file.path}:{number}: {reason}; {way}")
    logger.warning("%s:%d: %s; such lines are passed over", file.path, number, reason)
