import json

import numpy as np
import pytest

from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.merge import merge
from ccpretrieve.retrieval.store import MANIFEST, Store, differences

RECIPE = {"corpus": {"name": "c", "passages": 5}, "encoder": {"name": "e"}, "shard_size": 2}
PASSAGES = [Passage(f"d{i}", f"text {i}\n\nmore", f"T{i}") for i in range(5)]
VECTORS = np.arange(15, dtype=np.float32).reshape(5, 3)


def fill(path, numbers=(0, 1, 2), part=(0, 1), recipe=RECIPE):
    store = Store.begin(path, recipe, part)
    for number in numbers:
        rows = slice(2 * number, 2 * number + 2)
        store.add(number, PASSAGES[rows], VECTORS[rows], tokens=7, truncated=1)
    return store


def content(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_what_was_put_in_comes_out(tmp_path):
    fill(tmp_path / "s")
    store = Store.open(tmp_path / "s")
    assert store.count == 5
    assert (store.total("tokens"), store.total("truncated")) == (21, 3)
    vectors = np.concatenate([store.vectors(shard) for shard in store.shards.values()])
    np.testing.assert_array_equal(vectors, VECTORS)
    assert [p for shard in store.shards.values() for p in store.passages(shard)] == PASSAGES
    store.check_complete()


def test_lookup_finds_rows_over_shards(tmp_path):
    store = fill(tmp_path / "s")
    assert store.lookup([4, 0, 3, 3]) == {row: PASSAGES[row] for row in (0, 3, 4)}
    assert store.lookup([]) == {}


def test_text_that_json_or_lines_could_break_survives(tmp_path):
    passages = [Passage("1", "a\u2028b\x85c\r\nd\u00a0", "t\n"), Passage("2", "", "")]
    store = Store.begin(tmp_path / "s", RECIPE)
    store.add(0, passages, VECTORS[:2], tokens=1, truncated=0)
    assert list(Store.open(tmp_path / "s").passages(store.shards[0])) == passages
    assert store.shards[0].empty == 1


def test_going_on_after_a_stop_ends_with_the_same_bytes(tmp_path):
    fill(tmp_path / "whole")
    fill(tmp_path / "stopped", numbers=[0])
    (tmp_path / "stopped" / "00001.npy").write_bytes(b"killed before the manifest named it")
    (tmp_path / "stopped" / "00002.jsonl.partial").write_bytes(b"half")
    store = Store.begin(tmp_path / "stopped", RECIPE)
    assert list(store.shards) == [0]
    assert sorted(content(tmp_path / "stopped")) == ["00000.jsonl", "00000.npy", MANIFEST]
    fill(tmp_path / "stopped", numbers=[1, 2])
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_the_shards_of_several_machines_are_those_of_one(tmp_path):
    fill(tmp_path / "whole")
    a = fill(tmp_path / "a", numbers=[0, 2], part=(0, 2))
    b = fill(tmp_path / "b", numbers=[1], part=(1, 2))
    merge([b, a], tmp_path / "merged")
    assert content(tmp_path / "merged") == content(tmp_path / "whole")


def test_merging_names_what_is_missing_or_differs(tmp_path):
    a = fill(tmp_path / "a", numbers=[0], part=(0, 2))
    b = fill(tmp_path / "b", numbers=[1], part=(1, 2))
    with pytest.raises(UserError, match="shard 2 is missing"):
        merge([a, b], tmp_path / "merged")
    with pytest.raises(UserError, match="part 1 of 2 is missing; encode it with --shard-id 1"):
        merge([a], tmp_path / "merged")
    other = {**RECIPE, "shard_size": 3}
    c = fill(tmp_path / "c", numbers=[], part=(1, 2), recipe=other)
    with pytest.raises(UserError, match="shard_size was 2, now 3"):
        merge([a, c], tmp_path / "merged2")


def test_another_recipe_is_refused_with_each_difference_named(tmp_path):
    recipe = {"encoder": {"name": "e", "settings": {"pooling": "cls", "layer": -1}}}
    Store.begin(tmp_path / "s", recipe)
    other = {"encoder": {"name": "f", "settings": {"pooling": "mean", "layer": -1}}}
    with pytest.raises(UserError, match="encoder settings pooling was 'cls', now 'mean'; choose"):
        Store.begin(tmp_path / "s", other)
    assert differences(recipe, {"encoder": {**recipe["encoder"], "name": "moved"}}) == []


def test_another_part_is_refused(tmp_path):
    fill(tmp_path / "s", numbers=[], part=(0, 2))
    with pytest.raises(UserError, match="holds part 0 of 2, not 1 of 2"):
        Store.begin(tmp_path / "s", RECIPE, (1, 2))


@pytest.mark.parametrize(
    "name", ["notes.txt", "x.npy", "00001.txt", "00077.npy", "foreign.partial"]
)
def test_a_foreign_file_among_shards_is_named(tmp_path, name):
    fill(tmp_path / "s")
    (tmp_path / "s" / name).touch()
    for use in (Store.open, lambda path: Store.begin(path, RECIPE)):
        with pytest.raises(UserError, match=f"{name}: is no shard of this index"):
            use(tmp_path / "s")


def test_an_empty_or_foreign_manifest_is_named(tmp_path):
    (tmp_path / MANIFEST).write_text("")
    with pytest.raises(UserError, match=r"manifest\.json:1: not JSON"):
        Store.open(tmp_path)
    for foreign in ("{}", "[]", '{"format": 1, "shards": [{"a": 1}]}'):
        (tmp_path / MANIFEST).write_text(foreign)
        with pytest.raises(UserError, match="not a manifest of ours"):
            Store.open(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({"format": 99}))
    with pytest.raises(UserError, match="format 99 is not known"):
        Store.open(tmp_path)
    with pytest.raises(UserError, match="holds no embedding shards"):
        Store.open(tmp_path / "absent")


def test_a_missing_or_changed_shard_is_named(tmp_path):
    store = fill(tmp_path / "s")
    np.save(tmp_path / "s" / "00000.npy", VECTORS[:1])
    with pytest.raises(UserError, match=r"00000\.npy: holds .* the manifest says 2 vectors"):
        store.vectors(store.shards[0])
    with pytest.raises(UserError, match=r"00000\.npy: changed since it was written"):
        store.verify(store.shards[0])
    (tmp_path / "s" / "00000.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"00000\.npy: not a shard of vectors"):
        store.vectors(store.shards[0])
    (tmp_path / "s" / "00001.jsonl").write_text("")
    with pytest.raises(UserError, match=r"00001\.jsonl: changed since it was written"):
        store.verify(store.shards[1])
    (tmp_path / "s" / "00001.jsonl").unlink()
    with pytest.raises(UserError, match=r"shard file 00001\.jsonl is missing"):
        Store.open(tmp_path / "s")


def test_a_failing_disk_keeps_the_shards_before(tmp_path):
    store = fill(tmp_path / "s", numbers=[0])
    before = content(tmp_path / "s")
    (tmp_path / "s" / "00001.jsonl.partial").symlink_to("/dev/full")
    with pytest.raises(UserError, match="no space left"):
        store.add(1, PASSAGES[2:4], VECTORS[2:4], tokens=1, truncated=0)
    after = content(tmp_path / "s")
    assert {name: after[name] for name in before} == before
    assert list(Store.begin(tmp_path / "s", RECIPE).shards) == [0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_never_gets_in(tmp_path, bad):
    store = Store.begin(tmp_path / "s", RECIPE)
    with pytest.raises(ValueError, match="NaN or infinity"):
        store.add(0, PASSAGES[:1], np.array([[1, bad]], dtype=np.float32), tokens=1, truncated=0)
    with pytest.raises(ValueError, match="2 passages, vectors of shape"):
        store.add(0, PASSAGES[:2], VECTORS[:1], tokens=1, truncated=0)
