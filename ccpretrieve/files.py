"""Files that are whole or absent: partial name, fsync, rename; one writer at a time; hashes.

Every output of this project is written through here, so that a killed process, a full disk or a
second writer never leaves half a file under a final name.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ccpretrieve.errors import UserError

PARTIAL = ".partial"  # suffix of what is not finished
#: A large file is hashed in so many places, so many bytes in each; a smaller one as a whole.
_PLACES, _BLOCK = 64, 1 << 16


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing bytes; it appears, complete and on disk, when the block ends.

    Raises:
        UserError: If the disk is full, the folder cannot be written, or another process is writing
            the same file; nothing is left behind.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        lock = os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise writing_failed(path, error) from error
    try:
        if not _locked(lock):
            raise UserError(f"{path}: another process is writing it; wait for it to end")
        try:
            with partial.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
            sync_directory(path.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise writing_failed(path, error) from error
            raise
    finally:
        os.close(lock)


def _locked(descriptor: int) -> bool:
    """Take the kernel's lock on an open file or folder, unless another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def writing_failed(path: Path, error: OSError) -> UserError:
    """Say in one line why ``path`` could not be written and what to do."""
    if error.errno == errno.ENOSPC:
        return UserError(f"{path}: no space left on the disk; free some and run the command again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"{path}: no permission to write; choose another place to write to")
    return UserError(f"{path}: cannot be written: {error.strerror or error}")


def sync_directory(path: Path) -> None:
    """Make the names in a folder durable (a rename is not, until its folder is synced)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_files(folder: Path) -> None:
    """Make the content of all files in a folder durable, those of its folders too."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())


def make_directory(path: Path) -> Path:
    """Create a folder and its parents; return it.

    Raises:
        UserError: If it cannot be created, or a file stands in its place.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(f"{path}: a file stands where a folder belongs; move it away") from error
    except OSError as error:
        raise writing_failed(path, error) from error
    return path


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, keys in the order given, whole or not at all."""
    with atomic(path) as stream:
        stream.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: If it is missing, not text, or not JSON; the line is named.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def only_writer(folder: Path, task: str) -> Iterator[None]:
    """Create ``folder`` and hold its lock for the block.

    The lock is the kernel's, on the folder itself: it goes where the folder is renamed to, leaves
    no file, and ends with the process.

    Args:
        folder: What is written; removed at the end if it is empty.
        task: What the other process would be doing, for the message.

    Raises:
        UserError: If another process holds it, or the folder cannot be created.
    """
    descriptor = os.open(make_directory(folder), os.O_RDONLY)
    try:
        if not _locked(descriptor) or not _is_at(descriptor, folder):
            raise UserError(f"{folder}: another process is {task} here; wait for it to end")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if _is_at(descriptor, folder):
                    folder.rmdir()  # if nothing was written
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    """Whether an open folder still has this name: its writer may have finished and renamed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def finish(partial: Path, path: Path) -> None:
    """Give a finished folder its name; called within :func:`only_writer`.

    Raises:
        UserError: If something stands in its place.
    """
    try:
        partial.rename(path)
    except OSError as error:
        raise writing_failed(path, error) from error
    sync_directory(path.parent)


def slug(text: str) -> str:
    """Turn any words into part of a file name: lower case, ``[a-z0-9._-]`` and other letters.

    >>> slug("castorini/Mr TyDi")
    'castorini-mr-tydi'
    """
    return re.sub(r"[^\w.-]+", "-", text.lower()).strip("-.") or "unnamed"


def hash_files(files: dict[str, Path]) -> str:
    """SHA-256 over names and contents, in name order; the names are those given, not the paths."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with path.open("rb") as stream:
            digest.update(f"{name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def sampled_hash(path: Path, end: int | None = None) -> str:
    """SHA-256 over the size of a file and 64 KiB in 64 places of it, which costs next to nothing.

    Of a file up to 4 MiB it sees every byte. In a larger one it finds that another was put in its
    place, not that a single byte has changed.

    Args:
        path: The file.
        end: Hash only its first bytes, as if there were no more; all if None.
    """
    size = path.stat().st_size if end is None else min(end, path.stat().st_size)
    digest = hashlib.sha256(f"{size}\n".encode())
    last = max(0, size - _BLOCK)
    places: Sequence[int] = range(0, size, _BLOCK)
    if len(places) > _PLACES:
        places = [place * last // (_PLACES - 1) for place in range(_PLACES)]
    with path.open("rb") as stream:
        for place in places:
            stream.seek(place)
            digest.update(stream.read(min(_BLOCK, size - place)))
    return digest.hexdigest()
