r"""Lines of text files as bytes, with their places, and the cheap test for the language of one.

Where :mod:`ccpretrieve.data.lines` decodes every line that is not blank from the start of a file,
this gives all lines, undecoded, from any place on: a document reader must find its place again, and
must not spend time on lines that are not its own.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from ccpretrieve.data.lines import BOM, GZIP_MAGIC, unreadable
from ccpretrieve.errors import UserError

BUFFER = 1 << 17
LONGEST_LINE = 1 << 28  # bytes; more on one line is no document, and would fill the memory
BLANK = 16  # bytes; white space of other scripts is looked for in shorter lines only
LANG = re.compile(rb'"lang"\s*:\s*"([^"\\]*)"')


def raw_lines(path: Path, offset: int = 0, line: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Stream all lines of a file, blank ones too.

    Args:
        path: A text file; gzipped if it is named ``.gz`` or begins as gzip does.
        offset: Bytes to pass over; of what is packed, if it is gzipped.
        line: Lines that those bytes hold.

    Yields:
        Line number, from 1; the offset after the line; the line with its end.

    Raises:
        UserError: If the file is missing, a folder, forbidden, damaged gzip, or has a line that is
            too long to be held.
    """
    try:
        with path.open("rb") as file:
            stream = _unpacked(path, file)
            stream.seek(offset)
            while raw := stream.readline(LONGEST_LINE):
                line += 1
                offset += len(raw)
                if len(raw) == LONGEST_LINE:
                    wrong = f"a line of {LONGEST_LINE >> 20} MiB or more"
                    raise UserError(f"{path}:{line}: {wrong}; put each document on one line")
                yield line, offset, raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        wrong = f"damaged or truncated gzip ({error})"
        raise UserError(f"{path}:{line + 1}: {wrong}; fetch or write the file again") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _unpacked(path: Path, file: BinaryIO) -> BinaryIO:
    """The stream itself, or what is packed in it."""
    packed = path.suffix == ".gz" or file.read(2) == GZIP_MAGIC
    file.seek(0)
    if not packed:
        return file
    return cast(
        BinaryIO, io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), BUFFER)
    )


def is_blank(raw: bytes) -> bool:
    """Whether a line holds nothing but white space of any script, or a byte order mark."""
    if len(raw) > BLANK:
        return raw.isspace()
    return not raw.decode(errors="replace").strip().strip(BOM)


def decoded(path: Path, line: int, raw: bytes) -> str:
    """A line as text, without its end, and a byte order mark at the start of a file.

    Raises:
        UserError: Naming file and line, if it is not UTF-8.
    """
    try:
        text = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} ({error.object[error.start]:#x}) is not UTF-8"
        raise UserError(f"{path}:{line}: {byte}; convert the file to UTF-8") from error
    return text.removeprefix(BOM) if line == 1 else text


def tag_of(raw: bytes) -> str | None:
    r"""The ``"lang"`` of a line of JSON if it can be told without parsing; None if in doubt.

    In JSON a quotation mark within a string has a backslash before it, so ``"lang"`` with none
    inside and a colon behind it is a key. There is doubt if it is not there exactly once, if
    another ``{`` may have a key in an inner object, or if letters of it may be escaped.

    >>> tag_of(b'{ "text": "\\"lang\\": no", "lang" : "ja" }')
    'ja'
    """
    if raw.count(b'"lang"') != 1 or raw.count(b"{") != 1 or b"\\u006" in raw:
        return None
    match = LANG.search(raw)
    if match is None or raw[match.start() - 1 : match.start()] == b"\\":
        return None
    return match[1].decode(errors="replace")
