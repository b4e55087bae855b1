r"""Lines of text files, plain or gzipped, and what is said when a file is not what it should be.

A line ends at ``\n`` only: text of many scripts holds U+2028, U+0085 and their kin, which
``str.splitlines`` would cut at. Lines are decoded one by one, so that a wrong byte has its line
number. A byte order mark at the start and ``\r`` before the line end are read as if absent.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from ccpretrieve.errors import UserError

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"
BOM = "\ufeff"


class MalformedError(ValueError):
    """What is wrong with one line and what is needed; whoever knows the file adds ``file:line``."""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Stream the lines of a file that are not blank.

    Args:
        path: A UTF-8 text file; gzipped if it is named ``.gz`` or begins as gzip does.

    Yields:
        Line number, from 1, and the line without its end.

    Raises:
        UserError: If the file is missing, a folder, forbidden, not UTF-8, or damaged gzip.
    """
    number = 0
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(_unpacked(path, stream), 1):
                line = raw.decode().rstrip("\r\n")
                if number == 1:
                    line = line.removeprefix(BOM)
                if line and not line.isspace():
                    yield number, line
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} ({error.object[error.start]:#x}) is not UTF-8"
        raise UserError(f"{path}:{number}: {byte}; convert the file to UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        wrong = f"damaged or truncated gzip ({error})"
        raise UserError(f"{path}:{number + 1}: {wrong}; fetch or write the file again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _unpacked(path: Path, stream: io.BufferedReader) -> BinaryIO:
    """The stream itself, or what is packed in it."""
    if path.suffix == ".gz" or stream.peek(2)[:2] == GZIP_MAGIC:
        packed = cast(io.RawIOBase, gzip.GzipFile(fileobj=stream))
        return cast(BinaryIO, io.BufferedReader(packed, 1 << 17))
    return cast(BinaryIO, stream)


def unreadable(path: Path, error: OSError) -> UserError:
    """Say in one line why a file cannot be read and what to do."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: no such file; check the name")
    if isinstance(error, IsADirectoryError):
        return UserError(f"{path}: a folder stands where a file belongs; name a file in it")
    if isinstance(error, PermissionError):
        return UserError(f"{path}: no permission to read it; change its mode or its owner")
    return UserError(f"{path}: cannot be read: {error.strerror or error}")


def parsed(path: Path, parse: Callable[[str], T | None], holding: str) -> Iterator[tuple[int, T]]:
    """Parse a file line by line.

    Args:
        path: The file.
        parse: Makes an item of a line, or None of one to pass over, or raises MalformedError.
        holding: What the file should hold, for the message if it holds none.

    Yields:
        Line number, from 1, and the item.

    Raises:
        UserError: Naming file and line, if a line is malformed or cannot be read; naming the file,
            if there is no item at all.
    """
    empty = True
    for number, line in lines(path):
        try:
            item = parse(line)
        except MalformedError as error:
            raise UserError(f"{path}:{number}: {error}") from error
        if item is not None:
            empty = False
            yield number, item
    if empty:
        raise UserError(f"{path}: empty file; it should hold {holding}, one a line")
