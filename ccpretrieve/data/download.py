"""Downloads that survive a cut: resumed, verified, whole or absent.

A file grows under ``<name>.partial`` and goes on from there after a cut, a Ctrl-C or a killed
process, if the server can (``Range``); otherwise it starts again. ``<name>.partial.version`` keeps
the server's version mark, so that half of an old file is never continued with half of a new one.
Verified are the length the server states and a hash: the publisher's where one is stated, else the
one recorded by the first download in ``<name>.sha256``. The work around it (temporary name, hash,
rename) is pooch's; :class:`Transfer` is the part that resumes.
"""

import contextlib
import gzip
import logging
import os
import re
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve.errors import UserError
from ccpretrieve.files import PARTIAL, atomic, make_directory, only_writer, writing_failed

if TYPE_CHECKING:
    import requests

logger = logging.getLogger(__name__)

ATTEMPTS = 4  # in a row without a new byte, then we give up
PAUSE = 0.5  # seconds before the next attempt; doubled each time nothing new came
TIMEOUT = 30.0  # seconds without an answer
CHUNK = 1 << 16
NO_CONNECTION = "no connection"
RETRIED = (408, 425, 429)  # statuses below 500 that pass


def download(url: str, target: Path, checksum: str = "") -> Path:
    """Fetch ``url`` into ``target``, going on from an earlier attempt.

    Args:
        url: Address, http or https.
        target: Final name. If it exists, nothing is done; to fetch again, remove it first.
        checksum: What the publisher states, as ``md5:...`` or ``sha256:...``. If empty, the file is
            compared with ``<target>.sha256``, which the first download writes.

    Returns:
        ``target``.

    Raises:
        UserError: If the address does not answer or has no such file, the disk is full, or the file
            does not verify (it is then removed); the message says what to put where by hand.
    """
    import pooch

    with (
        _no_empty_folders(target.parent),
        only_writer(target.with_name(target.name + ".fetching"), "downloading"),
    ):
        transfer = Transfer(target)
        if target.exists():
            transfer.clean()
            return target
        known = checksum or recorded(target)
        logger.info("downloading %s", url)
        pooch.get_logger().setLevel(logging.WARNING)
        try:
            pooch.retrieve(
                url,
                known_hash=known or None,
                fname=target.name,
                path=target.parent,
                downloader=transfer,
            )
        except UserError:
            raise
        except ValueError as error:  # pooch's only one: the hash
            transfer.clean()
            raise _wrong_hash(url, target, known, str(error)) from error
        except OSError as error:
            raise writing_failed(target, error) from error
        transfer.clean()
        if not known:
            digest = transfer.stated or f"sha256:{pooch.file_hash(str(target))}"
            with atomic(_record(target)) as stream:
                stream.write(f"{digest.removeprefix('sha256:')}  {target.name}\n".encode())
        return target


@contextlib.contextmanager
def _no_empty_folders(folder: Path) -> Iterator[None]:
    """Create a folder; if the block fails, remove it and its parents that were not there before.

    What holds a file, the beginning of a download say, stays.
    """
    new = [above for above in (folder, *folder.parents) if not above.exists()]
    make_directory(folder)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # something is in it
            for above in new:  # the inner ones first
                above.rmdir()
        raise


def _record(target: Path) -> Path:
    return target.with_name(target.name + ".sha256")


def recorded(target: Path) -> str:
    """The hash of an earlier download, ``""`` if there was none."""
    record = _record(target)
    if not record.is_file():
        return ""
    words = record.read_text(encoding="utf-8", errors="replace").split()
    if not words or not re.fullmatch("[0-9a-f]{64}", words[0]):
        raise UserError(f"{record}:1: not a SHA-256; remove the file to record a new one")
    return f"sha256:{words[0]}"


def _wrong_hash(url: str, target: Path, known: str, message: str) -> UserError:
    found = re.search(r"but got (\w+)", message)
    got = found[1] if found else "another one"
    if _record(target).is_file() and known == recorded(target):
        way_out = f"the first download's was recorded in {_record(target)}; remove that to accept"
    else:
        way_out = "that is what its publisher states; download again, or report that it changed"
    return UserError(f"{url}: expected {known} but got {got}, and removed it; {way_out}")


class Transfer:
    """Fetches one address through a partial file that the next attempt goes on from.

    Called by pooch as its ``downloader``.

    Attributes:
        stated: ``sha256:...`` as a server of hub files states it with the file, else ``""``.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.partial = target.with_name(target.name + PARTIAL)
        self.version = target.with_name(target.name + PARTIAL + ".version")
        self.stated = ""

    def __call__(self, url: str, output_file: str, pooch: Any = None) -> None:
        """Bring the whole of ``url`` to ``output_file``; the partial file stays until `clean`.

        Raises:
            UserError: If that cannot be done.
        """
        self._complete(url)
        self._verify(url)
        Path(output_file).unlink(missing_ok=True)
        try:
            os.link(self.partial, output_file)
        except OSError:  # a file system without links
            self.partial.replace(output_file)

    def clean(self) -> None:
        """Remove what was only for going on."""
        self.partial.unlink(missing_ok=True)
        self.version.unlink(missing_ok=True)

    def _complete(self, url: str) -> None:
        """Attempt until the file is whole; give up after ``ATTEMPTS`` that brought nothing new."""
        import requests
        import urllib3

        failures, most = 0, 0
        while True:
            try:
                if self._attempt(url):
                    return
                reason = f"the connection was cut after {self._size():,} bytes"
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                reason = _reason(error)
            failures = 0 if self._size() > most else failures + 1
            most = max(most, self._size())
            if failures >= ATTEMPTS:
                raise _by_hand(url, self.target, reason)
            level = logging.DEBUG if reason == NO_CONNECTION and not most else logging.INFO
            logger.log(level, "%s: %s; trying again", self.target.name, reason)
            time.sleep(PAUSE * 2**failures)

    def _attempt(self, url: str) -> bool:
        """One request; True when the file is whole."""
        import requests

        start = self._size()
        with requests.get(
            url, headers=self._headers(start), stream=True, timeout=TIMEOUT
        ) as answer:
            if answer.status_code == 416:  # nothing lies beyond `start`
                return self._was_whole(answer, start)
            if 400 <= answer.status_code < 500 and answer.status_code not in RETRIED:
                reason = f"the server answered {answer.status_code} {answer.reason}"
                raise _by_hand(url, self.target, reason)
            answer.raise_for_status()
            if not self._as_it_is(answer):
                raise _by_hand(url, self.target, "the server compresses what it was asked not to")
            first, total = _extent(answer)
            if first not in (0, start):
                self.clean()
                return False
            if first == 0:
                self._remember_version(answer)
            self.stated = _hub_hash(answer) or self.stated
            self._receive(answer, first, total)
            return total is None or self._size() == total

    def _receive(self, answer: "requests.Response", first: int, total: int | None) -> None:
        """Write the body behind the first ``first`` bytes of the partial file, to the disk."""
        try:
            stream = self.partial.open("r+b" if first else "wb")
        except OSError as error:
            raise writing_failed(self.partial, error) from error
        with stream, _progress(self.target.name, first, total) as bar:
            stream.seek(first)
            for chunk in answer.raw.stream(CHUNK, decode_content=False):
                try:
                    stream.write(chunk)
                except OSError as error:
                    raise writing_failed(self.target, error) from error
                bar.update(len(chunk))
            stream.flush()
            os.fsync(stream.fileno())

    def _as_it_is(self, answer: "requests.Response") -> bool:
        """Whether the bytes are the file's own; some servers say gzip of a file that is one."""
        encoding = answer.headers.get("Content-Encoding", "identity")
        return encoding == "identity" or (encoding == "gzip" and self.target.suffix == ".gz")

    def _headers(self, start: int) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}  # lengths and hashes are those of the file
        if start:
            headers["Range"] = f"bytes={start}-"
            if self.version.is_file():
                headers["If-Range"] = self.version.read_text(encoding="latin-1")
        return headers

    def _remember_version(self, answer: "requests.Response") -> None:
        mark = answer.headers.get("ETag", "")
        if not mark or mark.startswith("W/"):  # a weak one cannot vouch for bytes
            mark = answer.headers.get("Last-Modified", "")
        self.version.unlink(missing_ok=True)
        if mark:
            self.version.write_text(mark, encoding="latin-1")

    def _was_whole(self, answer: "requests.Response", start: int) -> bool:
        """Whether the partial file was the whole file already; if not, start afresh."""
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if total == str(start):
            return True
        self.clean()
        return False

    def _verify(self, url: str) -> None:
        """Compare with the hash that came with the file, if one did."""
        import pooch

        if self.stated:
            digest = f"sha256:{pooch.file_hash(str(self.partial))}"
            if digest != self.stated:
                self.clean()
                message = (
                    f"{url}: the server states {self.stated} but sent {digest}, and removed it"
                )
                raise UserError(f"{message}; download again")

    def _size(self) -> int:
        return self.partial.stat().st_size if self.partial.exists() else 0


def _extent(answer: "requests.Response") -> tuple[int, int | None]:
    """First byte and length of the whole file, None if the server does not tell."""
    if answer.status_code == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if not found:
            return -1, None
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = answer.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _hub_hash(answer: "requests.Response") -> str:
    """The hash that huggingface.co states of large files, on its redirect to the storage."""
    for hop in [*answer.history, answer]:
        mark = hop.headers.get("X-Linked-Etag", "").strip('"')
        if re.fullmatch("[0-9a-f]{64}", mark):
            return f"sha256:{mark}"
    return ""


def _reason(error: Exception) -> str:
    """One short clause instead of a nest of exceptions."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return f"no answer within {TIMEOUT:.0f} seconds"
    if isinstance(error, requests.exceptions.SSLError):
        return "the server's certificate cannot be verified"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy cannot be reached"
    if isinstance(error, requests.ConnectionError):
        return NO_CONNECTION
    return f"the connection was cut: {type(error).__name__}"


def _by_hand(url: str, target: Path, reason: str) -> UserError:
    return UserError(
        f"cannot download {url} ({reason}); where there is a network, fetch it and save it as "
        f"{target.name} in {target.parent}"
    )


@contextlib.contextmanager
def _progress(name: str, first: int, total: int | None) -> Iterator[Any]:
    """A bar on stderr when that is a terminal and nobody asked for quiet."""
    from tqdm import tqdm

    shown = sys.stderr.isatty() and logger.isEnabledFor(logging.INFO)
    with tqdm(
        desc=name, initial=first, total=total, unit="B", unit_scale=True, disable=not shown
    ) as bar:
        yield bar


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a tar archive to ``folder``, which appears when all of it is there.

    A top folder of the archive that has the name of ``folder`` becomes it.

    Returns:
        ``folder``.

    Raises:
        UserError: If a member would leave the folder, the archive is damaged, or the disk is full;
            nothing of it stays.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UserError("unpacking safely needs Python 3.11.4 or newer")
    partial = folder.with_name(folder.name + PARTIAL)
    with only_writer(folder.with_name(folder.name + ".unpacking"), "unpacking"):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
            inner = partial / folder.name
            (inner if inner.is_dir() else partial).rename(folder)
        except tarfile.FilterError as error:
            raise UserError(f"{archive}: refused: {error}; nothing was unpacked") from error
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{archive}: damaged ({error}); download it again") from error
        except OSError as error:
            raise writing_failed(folder, error) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder
