"""Downloads from a server on this machine that cuts, lies, forgets and refuses."""

import hashlib
import io
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ccpretrieve.data import download as module
from ccpretrieve.data.download import download, recorded, unpack
from ccpretrieve.errors import UserError
from ccpretrieve.files import only_writer

BODY = bytes(range(256)) * 2000  # 512,000 bytes, several reads long
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves `server.body` at /file as the settings of the server say."""

    def do_GET(self):
        server = self.server
        server.requests.append(dict(self.headers))
        if server.statuses:
            self.send_error(server.statuses.pop(0))
            return
        if self.path != "/file":
            self.send_error(404)
            return
        start = self.first_byte()
        if start >= len(server.body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(server.body) - start))
        if start:
            last = len(server.body) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(server.body)}")
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        rest = server.body[start:]
        self.wfile.write(rest[: server.cuts.pop(0)] if server.cuts else rest)
        self.wfile.flush()
        server.hold.wait(server.held)
        self.close_connection = True  # before all was sent, if cut

    def first_byte(self):
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        mark = self.headers.get("If-Range", self.server.headers.get("ETag"))
        if not found or not self.server.ranges or mark != self.server.headers.get("ETag"):
            return 0
        return int(found[1])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.body, server.ranges, server.headers = BODY, True, {"ETag": '"one"'}
    server.cuts, server.statuses, server.requests = [], [], []
    server.hold, server.held = threading.Event(), 0.0
    server.url = f"http://127.0.0.1:{server.server_port}/file"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_pause_no_proxy(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def ranges(server):
    return [request.get("Range") for request in server.requests]


def test_a_whole_download_records_its_hash_and_leaves_nothing_else(server, tmp_path):
    target = download(server.url, tmp_path / "new" / "file.bin")
    assert target.read_bytes() == BODY
    assert names(target.parent) == ["file.bin", "file.bin.sha256"]
    # the format of sha256sum, so that `sha256sum -c` checks it
    assert (target.parent / "file.bin.sha256").read_text() == f"{SHA256}  file.bin\n"


def test_a_cut_connection_is_resumed_where_it_stopped(server, tmp_path):
    server.cuts = [200_000, 100_000]
    assert download(server.url, tmp_path / "file").read_bytes() == BODY
    assert ranges(server) == [None, "bytes=200000-", "bytes=300000-"]
    assert {request["Accept-Encoding"] for request in server.requests} == {"identity"}


def test_without_ranges_it_starts_again(server, tmp_path):
    server.ranges, server.cuts = False, [200_000]
    assert download(server.url, tmp_path / "file").read_bytes() == BODY
    assert ranges(server) == [None, "bytes=200000-"]


def test_an_endless_series_of_cuts_ends(server, tmp_path):
    server.ranges, server.cuts = False, [200_000] * 50
    with pytest.raises(UserError, match="the connection was cut") as stop:
        download(server.url, tmp_path / "file")
    assert len(server.requests) == 1 + module.ATTEMPTS  # the first brought something new
    assert f"save it as file in {tmp_path}" in str(stop.value)
    assert (tmp_path / "file.partial").stat().st_size == 200_000
    assert not (tmp_path / "file").exists()


def test_the_next_call_goes_on_from_an_earlier_one(server, tmp_path):
    server.ranges, server.cuts = False, [200_000] * 5
    with pytest.raises(UserError):
        download(server.url, tmp_path / "file")
    server.ranges = True
    assert download(server.url, tmp_path / "file").read_bytes() == BODY
    assert ranges(server)[-1] == "bytes=200000-"
    assert names(tmp_path) == ["file", "file.sha256"]


def test_half_of_an_old_version_is_not_continued_with_half_of_a_new_one(server, tmp_path):
    server.ranges, server.cuts = False, [200_000] * 5
    with pytest.raises(UserError):
        download(server.url, tmp_path / "file")
    server.ranges, server.headers, server.body = True, {"ETag": '"two"'}, BODY[::-1]
    assert download(server.url, tmp_path / "file").read_bytes() == BODY[::-1]
    assert server.requests[-1]["If-Range"] == '"one"'


@pytest.mark.parametrize("length", [len(BODY), len(BODY) + 5])
def test_a_partial_file_that_has_all_or_too_much(server, tmp_path, length):
    (tmp_path / "file.partial").write_bytes((BODY + b"stale")[:length])
    assert download(server.url, tmp_path / "file").read_bytes() == BODY


@pytest.mark.slow
def test_a_killed_process_leaves_a_partial_file_and_the_next_one_resumes(server, tmp_path):
    server.cuts, server.held = [300_000], 60.0  # sends so much, then keeps the line open
    partial, target = tmp_path / "file.partial", tmp_path / "file"
    code = (
        "import sys; from pathlib import Path; from ccpretrieve.data.download import download;"
        "download(sys.argv[1], Path(sys.argv[2]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, server.url, str(target)]) as process:
        deadline = time.monotonic() + 60
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    kept = partial.stat().st_size
    assert 0 < kept <= 300_000
    assert not target.exists()
    server.hold.set()
    assert download(server.url, target).read_bytes() == BODY
    assert ranges(server) == [None, f"bytes={kept}-"]


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    (tmp_path / "file").write_bytes(b"put here by hand")
    assert download(server.url, tmp_path / "file").read_bytes() == b"put here by hand"
    assert server.requests == []


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_published_hash_that_fits(server, tmp_path, algorithm):
    digest = hashlib.new(algorithm, BODY).hexdigest()
    assert download(server.url, tmp_path / "file", f"{algorithm}:{digest}").read_bytes() == BODY
    assert names(tmp_path) == ["file"]


def test_a_published_hash_that_does_not_fit_removes_the_file_and_names_both(server, tmp_path):
    published = f"md5:{'0' * 32}"
    with pytest.raises(UserError, match="publisher states") as stop:
        download(server.url, tmp_path / "file", published)
    assert published in str(stop.value)
    assert hashlib.md5(BODY).hexdigest() in str(stop.value)
    assert names(tmp_path) == []


def test_a_later_download_is_compared_with_the_first(server, tmp_path):
    download(server.url, tmp_path / "file").unlink()
    download(server.url, tmp_path / "file").unlink()
    server.body = BODY[:-1]
    with pytest.raises(UserError, match="recorded in") as stop:
        download(server.url, tmp_path / "file")
    assert SHA256 in str(stop.value)
    assert hashlib.sha256(BODY[:-1]).hexdigest() in str(stop.value)
    assert names(tmp_path) == ["file.sha256"]
    (tmp_path / "file.sha256").unlink()  # the way out that the message names
    assert download(server.url, tmp_path / "file").read_bytes() == BODY[:-1]


def test_a_record_that_is_no_hash_is_named(tmp_path):
    (tmp_path / "file.sha256").write_text("soon\n")
    with pytest.raises(UserError, match=r"file\.sha256:1: not a SHA-256"):
        recorded(tmp_path / "file")


def test_the_hash_a_hub_states_is_compared_and_recorded(server, tmp_path):
    server.headers["X-Linked-Etag"] = f'"{SHA256}"'
    download(server.url, tmp_path / "file")
    assert recorded(tmp_path / "file") == f"sha256:{SHA256}"
    server.headers["X-Linked-Etag"] = f'"{"a" * 64}"'
    with pytest.raises(UserError, match=f"states sha256:{'a' * 64} but sent sha256:{SHA256}"):
        download(server.url, tmp_path / "other")
    assert names(tmp_path) == ["file", "file.sha256"]


def test_an_address_without_a_file_is_refused_at_once(server, tmp_path):
    with pytest.raises(UserError, match=r"answered 404 .*save it as file in") as stop:
        download(server.url + "s", tmp_path / "file")
    assert len(server.requests) == 1
    assert server.url + "s" in str(stop.value)
    assert names(tmp_path) == []


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.statuses = [503, 429]
    assert download(server.url, tmp_path / "file").read_bytes() == BODY
    server.statuses = [503] * 9
    with pytest.raises(UserError, match="answered 503"):
        download(server.url, tmp_path / "other")


def test_what_is_compressed_unasked_is_not_saved_under_a_wrong_name(server, tmp_path):
    server.headers["Content-Encoding"] = "gzip"
    with pytest.raises(UserError, match="compresses"):
        download(server.url, tmp_path / "file")
    assert names(tmp_path) == []


def test_a_gzip_file_that_is_also_called_compressed_is_saved_as_it_is(server, tmp_path):
    server.headers["Content-Encoding"] = "gzip"
    assert download(server.url, tmp_path / "file.gz").read_bytes() == BODY


def test_only_one_process_downloads_a_file_at_a_time(server, tmp_path):
    with only_writer(tmp_path / "file.fetching", "downloading"):
        with pytest.raises(UserError, match="another process is downloading here"):
            download(server.url, tmp_path / "file")
        assert download(server.url, tmp_path / "other").read_bytes() == BODY
    assert download(server.url, tmp_path / "file").read_bytes() == BODY


def test_no_network_names_address_file_and_folder(tmp_path):
    with socket.socket() as closed:  # bound, not listening: nobody answers there
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/docs.jsonl.gz"
        with pytest.raises(UserError) as stop:
            download(url, tmp_path / "docs.jsonl.gz")
    message = str(stop.value)
    assert "\n" not in message
    assert f"cannot download {url} (no connection)" in message
    assert f"save it as docs.jsonl.gz in {tmp_path}" in message


def test_a_full_disk_is_said_in_one_line(server, tmp_path, monkeypatch):
    (tmp_path / "file.partial").symlink_to("/dev/full")
    with pytest.raises(UserError, match="no space left on the disk"):
        download(server.url, tmp_path / "file")


def tar_of(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_becomes_the_folder_it_holds(tmp_path):
    archive = tar_of(tmp_path / "set.tar.gz", {"set/a/b.txt": b"b", "set/c.txt": b"c"})
    folder = unpack(archive, tmp_path / "set")
    assert (folder / "a" / "b.txt").read_bytes() == b"b"
    assert names(folder) == ["a", "c.txt"]
    assert names(tmp_path) == ["set", "set.tar.gz"]


@pytest.mark.parametrize("name", ["../evil.txt", "set/../../evil.txt"])
def test_an_archive_cannot_leave_its_folder(tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = tar_of(tmp_path / "set.tar.gz", {"set/good.txt": b"g", name: b"e"})
    with pytest.raises(UserError, match=r"refused.*nothing was unpacked"):
        unpack(archive, inside / "set")
    assert names(inside) == []
    assert names(tmp_path) == ["inside", "set.tar.gz"]


def test_a_truncated_archive_unpacks_nothing(tmp_path):
    archive = tar_of(tmp_path / "set.tar.gz", {"set/a.txt": BODY})
    archive.write_bytes(archive.read_bytes()[:-600])
    with pytest.raises(UserError, match="damaged"):
        unpack(archive, tmp_path / "set")
    assert names(tmp_path) == ["set.tar.gz"]
