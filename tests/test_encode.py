import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from ccpretrieve import encode, index
from ccpretrieve.config import EncodeConfig, IndexConfig
from ccpretrieve.errors import UserError
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.retrieval.faiss_index import Index
from ccpretrieve.retrieval.store import FOLDER, Store

DOCS = [
    {"id": f"d{i}", "contents": f"Title {i}\n\n{'a b c ' * (i % 7)}text {i}"} for i in range(25)
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "wiki.jsonl", DOCS)


def write(path, docs):
    path.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    return path


def config(corpus, checkpoint, **changes):
    defaults = {"corpus": str(corpus), "encoder": str(checkpoint), "shard_size": 10, "quiet": True}
    return EncodeConfig(**{**defaults, **changes})


def content(folder):
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_index_holds_each_passages_vector_at_its_id(corpus, tiny_checkpoint):
    folder = encode.run(config(corpus, tiny_checkpoint))
    assert str(folder) == "indexes/wiki.tiny-xlmr"
    opened = Index.load(folder)
    assert list(opened.docids) == [doc["id"] for doc in DOCS]
    passages = [tuple(doc["contents"].split("\n\n", 1)) for doc in DOCS]
    expected = Encoder.load(tiny_checkpoint).encode_passages(passages)
    np.testing.assert_allclose(opened.faiss.reconstruct_n(0, 25), expected, atol=1e-6)


def test_meta_says_what_made_the_index(corpus, tiny_checkpoint):
    folder = encode.run(config(corpus, tiny_checkpoint, pooling="cls"))
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["corpus"]["passages"] == meta["index"]["count"] == 25
    assert meta["encoder"]["fingerprint"] == Encoder.load(tiny_checkpoint).fingerprint
    assert meta["encoder"]["settings"]["pooling"] == "cls"
    assert meta["encoder"]["asked"] == {"pooling": "cls"}


def test_encoding_again_changes_nothing(corpus, tiny_checkpoint):
    folder = encode.run(config(corpus, tiny_checkpoint))
    before = content(folder)
    assert encode.run(config(corpus, tiny_checkpoint)) == folder
    assert content(folder) == before


def test_equal_work_gives_equal_bytes(corpus, tiny_checkpoint):
    a = encode.run(config(corpus, tiny_checkpoint, tag="a"))
    b = encode.run(config(corpus, tiny_checkpoint, tag="b"))
    assert content(a) == content(b)


class Killed(BaseException):
    """Stands for a kill: nothing in the code may catch it."""


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_stopped_after_any_shard_it_ends_with_the_same_bytes(
    corpus, tiny_checkpoint, monkeypatch, shards
):
    whole = content(encode.run(config(corpus, tiny_checkpoint, tag="whole")))
    add, calls = Store.add, []

    def stop(store, number, *args, **kwargs):
        if len(calls) == shards:
            raise Killed
        calls.append(number)
        add(store, number, *args, **kwargs)

    monkeypatch.setattr(Store, "add", stop)
    with pytest.raises(Killed):
        encode.run(config(corpus, tiny_checkpoint))
    assert not Path("indexes/wiki.tiny-xlmr").exists()
    monkeypatch.setattr(Store, "add", add)
    embed, encoded = Encoder.embed_passages, []

    def count(encoder, passages, **kwargs):
        encoded.append(len(passages))
        return embed(encoder, passages, **kwargs)

    monkeypatch.setattr(Encoder, "embed_passages", count)
    assert content(encode.run(config(corpus, tiny_checkpoint))) == whole
    assert sum(encoded) == 25 - 10 * shards  # what was done is not done again


def test_another_corpus_or_setting_is_refused_not_mixed(corpus, tiny_checkpoint):
    folder = encode.run(config(corpus, tiny_checkpoint))
    before = content(folder)
    with pytest.raises(UserError, match="settings pooling was 'mean', now 'cls'"):
        encode.run(config(corpus, tiny_checkpoint, pooling="cls"))
    write(corpus, DOCS[:-1])
    with pytest.raises(UserError, match="corpus passages was 25, now 24"):
        encode.run(config(corpus, tiny_checkpoint))
    write(corpus, [*DOCS[:-1], {"id": "d24", "contents": "changed"}])
    with pytest.raises(UserError, match="corpus fingerprint was"):
        encode.run(config(corpus, tiny_checkpoint))
    assert content(folder) == before


def test_a_begun_index_refuses_another_encoder(corpus, tiny_checkpoint, tmp_path, monkeypatch):
    from ccpretrieve.model import random_checkpoint

    other = random_checkpoint.build(tmp_path / "other", ["a b c"], vocabulary=270, positions=300)
    monkeypatch.setattr(Store, "check_complete", lambda store: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        encode.run(config(corpus, tiny_checkpoint, output=Path("indexes/x")))
    with pytest.raises(UserError, match="was begun differently: encoder fingerprint was"):
        encode.run(config(corpus, other, output=Path("indexes/x")))


def test_the_parts_of_two_machines_merge_into_the_index_of_one(corpus, tiny_checkpoint):
    whole = encode.run(config(corpus, tiny_checkpoint))
    before = content(whole)
    parts = [
        encode.run(config(corpus, tiny_checkpoint, tag="two", shard_id=number, shard_num=2))
        for number in (0, 1)
    ]
    assert [str(part) for part in parts] == [f"indexes/wiki.two.{i}-of-2" for i in (0, 1)]
    with pytest.raises(UserError, match="part 1 of 2 is missing"):
        index.run(IndexConfig(embeddings=(parts[0],)))
    assert not any("partial" in name for name in os.listdir("indexes"))
    merged = index.run(IndexConfig(embeddings=tuple(parts)))
    assert str(merged) == "indexes/wiki.two"
    assert content(merged) == before


def test_a_part_is_not_taken_for_the_whole_nor_for_another_part(corpus, tiny_checkpoint):
    out = Path("indexes/x")
    encode.run(config(corpus, tiny_checkpoint, output=out, shard_id=0, shard_num=2))
    for wanted in ({"shard_id": 1, "shard_num": 2}, {}):
        with pytest.raises(UserError, match="holds part 0 of 2, not"):
            encode.run(config(corpus, tiny_checkpoint, output=out, **wanted))


def test_index_leaves_a_half_finished_encode_alone(corpus, tiny_checkpoint):
    folder = encode.run(config(corpus, tiny_checkpoint))
    half = folder.with_name("half.partial")
    (half / FOLDER).mkdir(parents=True)
    (half / FOLDER / "00000.npy").write_text("precious")
    with pytest.raises(UserError, match="--factory 'HNSW8x'"):
        index.run(
            IndexConfig(embeddings=(folder,), factory="HNSW8x", output=folder.with_name("half"))
        )
    assert (half / FOLDER / "00000.npy").read_text() == "precious"


def test_a_damaged_shard_is_named_and_made_again(corpus, tiny_checkpoint):
    whole = content(encode.run(config(corpus, tiny_checkpoint, tag="whole")))

    def stop(store):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "check_complete", stop)
        with pytest.raises(Killed):
            encode.run(config(corpus, tiny_checkpoint))
    damaged = Path("indexes/wiki.tiny-xlmr.partial/shards/00001.npy")
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"abcd")
    with pytest.raises(UserError, match=r"00001\.npy: changed .* remove that file and run"):
        encode.run(config(corpus, tiny_checkpoint))
    damaged.unlink()
    assert content(encode.run(config(corpus, tiny_checkpoint))) == whole


@pytest.mark.parametrize("name", ["shards/00001.npy", "shards/00002.jsonl", "docid", "index"])
def test_what_is_damaged_in_a_finished_index_is_made_again_as_the_message_says(
    corpus, tiny_checkpoint, name
):
    folder = encode.run(config(corpus, tiny_checkpoint))
    whole = content(folder)
    damaged = folder / name
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"ab")
    run, wanted = encode.run, config(corpus, tiny_checkpoint)
    if damaged.parent != folder:  # the shards, which `index` reads
        run, wanted = index.run, IndexConfig(embeddings=(folder,), factory="SQ8")
    with pytest.raises(UserError) as failure:
        run(wanted)
    advice = f"rename {folder} to {folder}.partial and run the encode command again"
    assert str(failure.value).endswith(advice)
    if "remove that file, rename" in str(failure.value):
        damaged.unlink()
    folder.rename(f"{folder}.partial")
    assert content(encode.run(config(corpus, tiny_checkpoint))) == whole


def test_a_corpus_that_changes_while_it_is_read_is_noticed(corpus, tiny_checkpoint, monkeypatch):
    taken = encode.take_census

    def then_shorten(*args, **kwargs):
        census = taken(*args, **kwargs)
        write(corpus, DOCS[:-2])
        return census

    monkeypatch.setattr(encode, "take_census", then_shorten)
    with pytest.raises(UserError, match="changed while it was being read"):
        encode.run(config(corpus, tiny_checkpoint))
    assert not Path("indexes/wiki.tiny-xlmr").exists()


def test_killed_at_any_write_it_ends_with_the_same_bytes(corpus, tiny_checkpoint):
    """Every fsync and every renaming is a moment to die at; none of them may show in the end."""
    whole = content(encode.run(config(corpus, tiny_checkpoint, tag="whole")))
    moments = [(os, "fsync"), (Path, "replace"), (Path, "rename")]

    def dying(original, counts, at):
        def call(*args, **kwargs):
            counts.append(1)
            if len(counts) == at:
                raise Killed
            return original(*args, **kwargs)

        return call

    at, killed = 0, True
    while killed:
        at, counts = at + 1, []
        wanted = config(corpus, tiny_checkpoint, tag=f"killed{at}")
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in moments:
                patch.setattr(owner, name, dying(getattr(owner, name), counts, at))
            try:
                encode.run(wanted)
                killed = False
            except Killed:
                pass
        assert content(encode.run(wanted)) == whole
    assert at > 30  # three shards of two files and a manifest each, index, docid, meta, the folder


def test_no_result_depends_on_the_batch_or_the_shard(corpus, tiny_checkpoint):
    a = encode.run(config(corpus, tiny_checkpoint, tag="a", batch_tokens=70, shard_size=3))
    b = encode.run(config(corpus, tiny_checkpoint, tag="b", batch_tokens=9000, shard_size=100))
    vectors = [Index.load(folder).faiss.reconstruct_n(0, 25) for folder in (a, b)]
    np.testing.assert_allclose(*vectors, atol=1e-5)


def test_empty_and_very_long_passages_are_encoded_and_counted(tmp_path, tiny_checkpoint, caplog):
    docs = [{"id": "e", "contents": ""}, {"id": "l", "contents": "word " * 10_000}, *DOCS]
    corpus = write(tmp_path / "wiki.jsonl", docs)
    with caplog.at_level("INFO", logger="ccpretrieve"):
        folder = encode.run(config(corpus, tiny_checkpoint))
    store = Store.open(folder / FOLDER)
    assert (store.total("truncated"), store.total("empty")) == (1, 1)
    assert "of 27 passages 1 were truncated to 64 tokens, 1 are empty" in caplog.text
    assert "passages/s" in caplog.text


def test_a_byte_order_mark_and_carriage_returns_are_read_as_if_absent(tmp_path, tiny_checkpoint):
    clean = write(tmp_path / "clean.jsonl", DOCS)
    dirty = tmp_path / "dirty.jsonl"
    dirty.write_bytes(b"\xef\xbb\xbf" + clean.read_bytes().replace(b"\n", b"\r\n"))
    folders = [encode.run(config(path, tiny_checkpoint)) for path in (clean, dirty)]
    names = ("index", "docid")
    a, b = ([(folder / name).read_bytes() for name in names] for folder in folders)
    assert a == b


def test_a_dry_run_writes_nothing(corpus, tiny_checkpoint):
    text = encode.run(config(corpus, tiny_checkpoint, dry_run=True))
    assert "passages        25, 0 of them empty" in text
    assert "32 wide" in text
    assert "indexes/wiki.tiny-xlmr" in text
    assert not Path("indexes").exists()


def test_the_first_of_several_duplicates_is_kept_when_asked_for(tmp_path, tiny_checkpoint):
    again = {"id": "d3", "contents": "again"}
    corpus = write(tmp_path / "wiki.jsonl", [*DOCS, again])
    with pytest.raises(UserError, match=r"wiki\.jsonl:26.*wiki\.jsonl:4|wiki\.jsonl:4.*:26"):
        encode.run(config(corpus, tiny_checkpoint))
    folder = encode.run(config(corpus, tiny_checkpoint, on_duplicate="first"))
    opened = Index.load(folder)
    assert len(opened) == 25
    assert opened.passages([3])[3].title == "Title 3"


def test_a_second_encoder_of_the_same_index_is_refused(corpus, tiny_checkpoint):
    from ccpretrieve.files import only_writer

    with (
        only_writer(Path("indexes/wiki.tiny-xlmr.partial"), "encoding"),
        pytest.raises(UserError, match="another process is encoding here"),
    ):
        encode.run(config(corpus, tiny_checkpoint))


def broken(tmp_path, name):
    """A corpus that is broken in the named way, and what its error must say."""
    path = tmp_path / "wiki.jsonl"
    good = json.dumps(DOCS[0]).encode() + b"\n"
    if name == "directory":
        path.mkdir()
        return path, "wiki.jsonl"
    lines = {
        "json": (good + b'{"id": "x", "contents"\n', "wiki.jsonl:2: "),
        "id": (good + b'{"contents": "x"}\n', "wiki.jsonl:2: "),
        "space": (good + b'{"id": "a b", "contents": "x"}\n', "wiki.jsonl:2: "),
        "duplicate": (good + good, "wiki.jsonl:2"),
        "encoding": (good + b'{"id": "x", "contents": "\xff"}\n', "wiki.jsonl:2: "),
        "empty": (b"", "wiki.jsonl: "),
    }
    if name in lines:
        path.write_bytes(lines[name][0])
        return path, lines[name][1]
    path = tmp_path / "wiki.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join([good] * 3000))[:-200])
    return path, "wiki.jsonl.gz:"


@pytest.mark.parametrize(
    "name", ["json", "id", "space", "duplicate", "encoding", "empty", "gzip", "directory"]
)
def test_a_broken_corpus_is_one_line_and_leaves_nothing(tmp_path, tiny_checkpoint, name, capsys):
    path, expected = broken(tmp_path, name)
    before = set(os.listdir(tmp_path))
    argv = ["--corpus", str(path), "--encoder", str(tiny_checkpoint)]
    with pytest.raises(SystemExit) as stop:
        encode.main(argv)
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert expected in err
    assert set(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pooling", "men"], "unknown pooling 'men'; did you mean 'mean'?"),
        (["--layer", "9"], "has layers 0 to 2"),
        (["--max-length", "600"], "takes at most 512 tokens"),
        (["--tag", "a b"], "--tag 'a b' must be one word"),
        (["--corpus", "mrtydi-jp"], "did you mean 'mrtydi-ja'"),
        (["--corpus", "absent/wiki.jsonl"], "absent/wiki.jsonl"),
        (["--encoder", "absent/checkpoint/x"], "there is no such directory"),
        (["--calibration", "absent"], "not a calibration file"),
    ],
)
def test_a_wrong_wish_is_one_line_and_leaves_nothing(
    corpus, tiny_checkpoint, tmp_path, capsys, flags, message
):
    before = set(os.listdir(tmp_path))
    argv = ["--corpus", str(corpus), "--encoder", str(tiny_checkpoint)]
    if flags[0] in argv:
        argv[argv.index(flags[0]) + 1] = flags[1]
    else:
        argv += flags
    with pytest.raises(SystemExit) as stop:
        encode.main(argv)
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert set(os.listdir(tmp_path)) == before


def test_a_full_disk_keeps_the_shards_and_the_command_goes_on(corpus, tiny_checkpoint, monkeypatch):
    whole = content(encode.run(config(corpus, tiny_checkpoint, tag="whole")))
    add, calls = Store.add, []

    def full(store, number, *args, **kwargs):
        if number == 1 and not calls:
            calls.append(number)
            (store.path / "00001.npy.partial").symlink_to("/dev/full")
        add(store, number, *args, **kwargs)

    monkeypatch.setattr(Store, "add", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        encode.run(config(corpus, tiny_checkpoint))
    assert Path("indexes/wiki.tiny-xlmr.partial").is_dir()
    assert content(encode.run(config(corpus, tiny_checkpoint))) == whole


def test_a_place_that_cannot_be_written_is_said_at_once(
    corpus, tiny_checkpoint, tmp_path, monkeypatch
):
    read = []
    monkeypatch.setattr(encode, "take_census", lambda *args, **kwargs: read.append(args))
    (tmp_path / "file").write_text("")
    for dry_run in (False, True):
        for output, message in (("/proc/self/x", "/proc/self/x: "), ("file/x", "file: a file sta")):
            with pytest.raises(UserError, match=message):
                encode.run(config(corpus, tiny_checkpoint, output=Path(output), dry_run=dry_run))
    assert read == []  # said before the corpus is read
    assert (tmp_path / "file").read_text() == ""


def test_an_output_that_is_something_else_is_left_alone(corpus, tiny_checkpoint, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="exists and is no index of ours"):
        encode.run(config(corpus, tiny_checkpoint, output=tmp_path / "mine"))
    with pytest.raises(UserError, match="exists and is no index of ours"):
        encode.run(config(corpus, tiny_checkpoint, output=tmp_path / "mine", dry_run=True))
    assert os.listdir(tmp_path / "mine") == []
