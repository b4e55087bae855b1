import errno
import multiprocessing
import os

import pytest

from ccpretrieve import files
from ccpretrieve.errors import UserError, unknown


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), files.atomic(path) as stream:
        stream.write(bytes(1 // 0))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_the_final_name_appears_only_when_the_block_ends(tmp_path):
    with files.atomic(tmp_path / "x") as stream:
        stream.write(b"new")
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EACCES, "no permission"),
        (errno.EROFS, "no permission"),
        (errno.EIO, "cannot be written"),
    ],
)
def test_a_failing_disk_is_one_line_that_names_the_file(tmp_path, number, words):
    with pytest.raises(UserError, match=words) as failure, files.atomic(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path / "x") in str(failure.value)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_really_full(tmp_path):
    (tmp_path / f"x{files.PARTIAL}").symlink_to("/dev/full")
    with pytest.raises(UserError, match="no space left"):
        files.write_json(tmp_path / "x", "content")
    assert os.listdir(tmp_path) == []


def test_broken_json_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": 1,\n"b" 2}')
    with pytest.raises(UserError, match=r"x\.json:2: not JSON"):
        files.read_json(path)


def test_json_with_a_byte_order_mark_is_read_as_if_it_had_none(tmp_path):
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert files.read_json(tmp_path / "x.json") == {"a": 1}


def _hold(folder, held, done):
    with files.only_writer(folder, "holding"):
        (folder / "work").touch()
        held.set()
        done.wait(30)


def test_a_second_writer_is_refused_and_a_dead_one_is_no_obstacle(tmp_path):
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "out", held, done))
    process.start()
    assert held.wait(30)
    with (
        pytest.raises(UserError, match="another process is holding here"),
        files.only_writer(tmp_path / "out", "holding"),
    ):
        pass
    process.kill()
    process.join()
    with files.only_writer(tmp_path / "out", "holding"):
        assert (tmp_path / "out" / "work").exists()


def test_a_refused_writer_takes_nothing_from_the_one_that_has_written_nothing_yet(tmp_path):
    with files.only_writer(tmp_path / "out", "holding"):
        for _ in range(2):  # had the first removed the folder, the second would hold a new one
            with (
                pytest.raises(UserError, match="another process is holding here"),
                files.only_writer(tmp_path / "out", "holding"),
            ):
                pass


def test_a_writer_that_wrote_nothing_leaves_no_folder(tmp_path):
    with files.only_writer(tmp_path / "out", "holding"):
        pass
    assert os.listdir(tmp_path) == []


def test_finish_moves_the_folder_without_its_lock(tmp_path):
    with files.only_writer(tmp_path / "out.partial", "holding"):
        (tmp_path / "out.partial" / "work").touch()
        files.finish(tmp_path / "out.partial", tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["work"]


def test_the_hash_depends_on_names_and_contents_not_on_places(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_text("same")
    a, b = tmp_path / "a" / "x", tmp_path / "b" / "x"
    assert files.hash_files({"x": a}) == files.hash_files({"x": b})
    assert files.hash_files({"x": a}) != files.hash_files({"y": a})
    b.write_text("other")
    assert files.hash_files({"x": a}) != files.hash_files({"x": b})


def test_an_unknown_name_says_what_is_near_and_what_is_allowed():
    message = str(unknown("pooling", "men", ["cls", "mean"]))
    assert message == "unknown pooling 'men'; did you mean 'mean'? allowed: cls, mean"
    assert "allowed: cls, mean" in str(unknown("pooling", "zzz", ["cls", "mean"]))
