"""Listing and fetching: what a user reads, what is asked before, what ends up where."""

import functools
import gzip
import http.server
import io
import json
import logging
import re
import socket
import sys
import threading

import pytest

from ccpretrieve import corpora
from ccpretrieve.config import CorporaConfig
from ccpretrieve.data import download as download_module
from ccpretrieve.data.registry import RegisteredCorpus, table
from ccpretrieve.data.sources import Entry, Family, File
from ccpretrieve.errors import UserError

TOY = Family("toy", "Toy corpora", "CC0", "https://example.org")


@pytest.fixture(autouse=True)
def plain_logging(monkeypatch):
    """The package's log as a library has it, whatever command ran in this process before."""
    logger = logging.getLogger("ccpretrieve")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(level)


@pytest.fixture
def listing(tmp_path):
    def listing(*names, **settings):
        return corpora.run(CorporaConfig(names=names, data_dir=tmp_path, **settings))

    return listing


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Two corpora whose files a server on this machine has; the second one's sum to 200 MB."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "docs.jsonl.gz").write_bytes(gzip.compress(b'{"id": "1", "contents": "a\\n\\nb"}\n'))
    (served / "topics.tsv").write_text("q\tWhat?\n")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Handler, directory=str(served))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    entries = {}
    for name, size in (("toy-en", 0), ("toy-ja", 200_000_000)):
        passages = File(f"{name}/docs.jsonl.gz", f"{address}/docs.jsonl.gz", size)
        topics = {"test": File(f"{name}/topics.tsv", f"{address}/topics.tsv")}
        entries[name] = Entry(name, TOY, name[-2:], name[-2:], 1, passages, topics)
    monkeypatch.setattr(corpora, "table", lambda: entries)
    monkeypatch.setattr(corpora, "families", lambda: [TOY])
    monkeypatch.setattr(download_module, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield entries
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_overview_names_every_corpus(listing):
    text = listing()
    blocks = dict(block.split("\n", 1) for block in text.split("\n\n")[1:-1])
    named = set()
    for head, body in blocks.items():
        if head.endswith("-<lang>"):
            body = " ".join(body.split())
            codes = re.search(r"\d+ languages?: ([a-z ]+?) licence:", body)[1].split()
            named |= {head.replace("<lang>", code) for code in codes}
        else:
            named.add(head)
    assert named == set(table())
    assert text.startswith(f"{len(table())} corpora; folder: ")
    assert all("licence: " in body and "download: " in body for body in blocks.values())
    assert max(map(len, text.splitlines()[1:])) <= 100  # the first names a folder of any length


def test_the_overview_says_what_a_download_is_compared_with(listing):
    text = " ".join(listing().split())
    assert "about 9.0 GB and small files; hash stated by the hub" in text
    assert "about 2.6 GB and small files; hash recorded on first download; md5 published" in text


def test_json_holds_every_file_of_every_corpus(listing, tmp_path):
    whole = {item["name"]: item for item in json.loads(listing(format="json"))}
    assert set(whole) == set(table())
    japanese = whole["mrtydi-ja"]
    assert (japanese["language"], japanese["passages"]) == ("ja", 7_000_027)
    assert japanese["present"] is False
    assert whole["sample-en"]["present"] is True
    [passages] = [file for file in japanese["files"] if file["part"] == "passages"]
    assert passages["path"] == str(tmp_path / "mrtydi" / "ja" / "corpus.jsonl.gz")
    assert passages["bytes"] == 1_078_000_000
    assert whole["tatoeba-fra"]["topic_language"] == "fr"
    assert len([file for file in whole["jaquad"]["files"] if file["part"] == "source"]) == 34


def test_a_corpus_is_shown_file_by_file_and_a_family_line_by_line(listing, tmp_path):
    (tmp_path / "tatoeba").mkdir()
    (tmp_path / "tatoeba" / "fra-eng.fra").write_text("Un\n")
    text = listing("tatoeba-fra")
    assert f"topics test     present {tmp_path}/tatoeba/fra-eng.fra" in text
    assert f"passages        missing 30 kB {tmp_path}/tatoeba/fra-eng.eng\n" in text
    assert "/74bc6ae7ffb7cba670fe0f428d0ede9f666fb821/" in text
    lines = listing("tatoeba").splitlines()
    assert len(lines) == 112
    [french] = [line for line in lines if line.startswith("tatoeba-fra")]
    assert "french -> english" in french
    assert french.endswith("1/2 files")


def test_a_corpus_made_from_others_says_from_what(listing):
    assert re.search(
        r"made from +34 files to download, the first\n +from https://\S+/jaquad_train_0000\.json",
        listing("jaquad"),
    )


def test_an_unknown_name_offers_near_ones(listing):
    with pytest.raises(UserError) as stop:
        listing("tatoeba-fre")
    message = str(stop.value)
    assert message.startswith("unknown corpus 'tatoeba-fre'; did you mean 'tatoeba-fr")
    assert f"lists all {len(table())}" in message


def test_an_unknown_name_is_one_line_and_status_1(capsys):
    with pytest.raises(SystemExit) as stop:
        corpora.main(["mrtydi-jp"])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: unknown corpus 'mrtydi-jp'; did you mean 'mrtydi-ja'")
    assert error.count("\n") == 1


def test_fetch_brings_what_is_missing_and_the_corpus_opens(toys, listing, tmp_path):
    text = listing("toy-en", fetch=True)
    assert "missing" not in text
    assert text.count("sha256:") == 2
    corpus = RegisteredCorpus(toys["toy-en"], tmp_path)
    assert [record.passage.title for record in corpus.records()] == ["a"]
    assert [topic.text for topic in corpus.topics("test")] == ["What?"]
    assert sorted(path.name for path in (tmp_path / "toy-en").iterdir()) == [
        "docs.jsonl.gz",
        "docs.jsonl.gz.sha256",
        "topics.tsv",
        "topics.tsv.sha256",
    ]


def test_a_large_download_needs_a_yes(toys, listing, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # no terminal: nobody to ask
    with pytest.raises(UserError, match="about 200 MB to download; pass --yes"):
        listing("toy", fetch=True)
    assert not (tmp_path / "toy-en").exists()
    assert listing("toy", fetch=True, yes=True).count("2/2 files") == 2


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y\n", True), ("Yes\n", True), ("\n", False), ("", False)]
)
def test_on_a_terminal_a_large_download_is_asked_for(
    toys, listing, monkeypatch, capsys, answer, agreed
):
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    if agreed:
        assert "present" in listing("toy-ja", fetch=True)
    else:
        with pytest.raises(UserError, match="nothing downloaded"):
            listing("toy-ja", fetch=True)
    assert capsys.readouterr().err.endswith("download about 200 MB? [y/N] ")


def test_size_place_and_licence_are_said_before_a_download(toys, listing, tmp_path, caplog):
    with caplog.at_level("INFO", logger="ccpretrieve"):
        listing("toy", fetch=True, yes=True)
    first = caplog.messages[0]
    assert first == f"to download: 4 files, about 200 MB, to {tmp_path}\nlicence of toy: CC0"


def test_what_is_there_is_not_fetched_again(toys, listing, caplog):
    listing("toy", fetch=True, yes=True)
    caplog.clear()
    with caplog.at_level("INFO", logger="ccpretrieve"):
        listing("toy", fetch=True)  # nothing large is left to agree to
    assert caplog.messages == []


def test_without_a_network_the_message_says_what_to_put_where(toys, listing, tmp_path):
    gone = File("toy-xx/docs.jsonl", toys["toy-en"].passages.url.replace("docs.jsonl.gz", "gone"))
    toys["toy-xx"] = Entry("toy-xx", TOY, "en", "en", 1, gone)
    with pytest.raises(UserError, match=r"save it as docs\.jsonl in") as stop:
        listing("toy-xx", fetch=True)
    assert gone.url in str(stop.value)
    assert str(tmp_path / "toy-xx") in str(stop.value)


def test_a_fetch_that_fails_leaves_no_empty_folder(toys, tmp_path):
    url = toys["toy-en"].passages.url.replace("docs.jsonl.gz", "gone")
    toys["toy-xx"] = Entry("toy-xx", TOY, "en", "en", 1, File("toy-xx/deep/docs.jsonl", url))
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "new" / "data", tmp_path / "mine"):
        with pytest.raises(UserError, match="cannot download"):
            corpora.run(CorporaConfig(names=("toy-xx",), data_dir=folder, fetch=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "served"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_without_a_network_a_fetch_says_so_once(toys, listing, caplog):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens here
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/docs.jsonl"
        toys["toy-xx"] = Entry("toy-xx", TOY, "en", "en", 1, File("toy-xx/docs.jsonl", url))
        with (
            caplog.at_level("INFO", logger="ccpretrieve"),
            pytest.raises(UserError, match=r"cannot download .* \(no connection\)"),
        ):
            listing("toy-xx", fetch=True)
    assert not any("trying again" in message for message in caplog.messages)


@pytest.mark.parametrize("name", ["MRTYDI-JA", "MrTyDi-jp"])
def test_near_names_are_found_whatever_the_case(listing, name):
    with pytest.raises(UserError, match=f"unknown corpus '{name}'; did you mean 'mrtydi-ja'"):
        listing(name)


def test_fetch_without_names_is_refused():
    with pytest.raises(UserError, match="--fetch needs the names"):
        CorporaConfig(fetch=True)
