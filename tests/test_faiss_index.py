from pathlib import Path

import faiss
import numpy as np
import pytest

from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError
from ccpretrieve.files import sampled_hash
from ccpretrieve.retrieval import faiss_index
from ccpretrieve.retrieval.faiss_index import Index, Lines, reason
from ccpretrieve.retrieval.index_builder import build, exact, sample, write_flat
from ccpretrieve.retrieval.store import FOLDER, Store

COUNT, DIM, SHARD = 500, 16, 64
ENCODER = {
    **{"name": "e", "fingerprint": "f", "dtype": "float32"},
    **{"settings": {}, "asked": {}, "calibration": None},
}
QUERIES = np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float32)


def vectors(count=COUNT):
    return np.random.default_rng(0).normal(size=(count, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / FOLDER
    recipe = {"corpus": {"name": "c", "passages": COUNT}, "encoder": ENCODER, "shard_size": SHARD}
    made = Store.begin(path, recipe)
    for number in range(-(-COUNT // SHARD)):
        rows = range(number * SHARD, min(COUNT, (number + 1) * SHARD))
        passages = [Passage(f"d{row}", f"text {row}") for row in rows]
        made.add(number, passages, vectors()[rows.start : rows.stop], tokens=0, truncated=0)
    return made


def built(store, folder, kind):
    folder.mkdir()
    build(store, folder, kind, str(store.path))
    return Index.load(folder)


def by_hand(queries, matrix, k):
    scores = queries.astype(np.float64) @ matrix.astype(np.float64).T
    order = np.argsort(-scores, axis=1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), order


def test_a_flat_index_is_the_bytes_that_faiss_writes(store, tmp_path):
    built(store, tmp_path / "flat", "Flat")
    theirs = faiss.IndexFlatIP(DIM)
    theirs.add(vectors())
    faiss.write_index(theirs, str(tmp_path / "theirs"))
    assert (tmp_path / "flat" / "index").read_bytes() == (tmp_path / "theirs").read_bytes()
    docids = (tmp_path / "flat" / "docid").read_text()
    assert docids == "".join(f"d{row}\n" for row in range(COUNT))


def test_flat_search_equals_a_matrix_product(store, tmp_path):
    index = built(store, tmp_path / "flat", "Flat")
    scores, rows = index.search_vectors(QUERIES, 10)
    expected_scores, expected_rows = by_hand(QUERIES, vectors(), 10)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)


def test_an_index_larger_than_memory_is_mapped_and_gives_the_same_result(
    store, tmp_path, monkeypatch
):
    index = built(store, tmp_path / "flat", "Flat")
    file = str((tmp_path / "flat" / "index").resolve())
    assert f"{file}\n" not in Path("/proc/self/maps").read_text()
    monkeypatch.setattr(faiss_index, "free_memory", lambda: 1)
    mapped = Index.load(tmp_path / "flat")
    assert f"{file}\n" in Path("/proc/self/maps").read_text()
    for ours, theirs in zip(
        mapped.search_vectors(QUERIES, 10), index.search_vectors(QUERIES, 10), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_search_over_shards_equals_search_over_the_index(store, tmp_path):
    index = built(store, tmp_path / "flat", "Flat")
    for hits in (1, 10, 100, COUNT + 1):
        scores, rows = exact(store, QUERIES, hits)
        expected_scores, expected_rows = index.search_vectors(QUERIES, hits)
        np.testing.assert_array_equal(rows, expected_rows)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize(
    "kind", ["HNSW16", "IVF8,Flat", "SQ8", "SQfp16", "IVF8,PQ4x4", "PCA8,Flat"]
)
def test_other_kinds_find_most_of_the_exact_result_by_inner_product(store, tmp_path, kind):
    index = built(store, tmp_path / "other", kind)
    scores, rows = index.search_vectors(QUERIES, 10)
    assert index.faiss.metric_type == faiss.METRIC_INNER_PRODUCT
    assert (np.diff(scores, axis=1) <= 1e-6).all()
    _, truth = by_hand(QUERIES, vectors(), 10)
    found = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, truth, strict=True)])
    assert found > {"IVF8,PQ4x4": 0.2, "PCA8,Flat": 0.3}.get(kind, 0.9)


def test_scores_of_a_graph_are_inner_products_not_distances(store, tmp_path):
    index = built(store, tmp_path / "hnsw", "HNSW16")
    scores, rows = index.search_vectors(QUERIES, 5)
    for query, row_scores, row in zip(QUERIES, scores, rows, strict=True):
        np.testing.assert_allclose(row_scores, vectors()[row] @ query, rtol=1e-5)


def test_more_hits_than_passages_gives_every_passage_once(store, tmp_path):
    index = built(store, tmp_path / "flat", "Flat")
    scores, rows = index.search_vectors(QUERIES[:2], COUNT + 100)
    assert rows.shape == scores.shape == (2, COUNT)
    assert sorted(rows[0]) == list(range(COUNT))


def test_no_questions_give_no_hits(store, tmp_path):
    scores, rows = built(store, tmp_path / "flat", "Flat").search_vectors(QUERIES[:0], 3)
    assert scores.shape == rows.shape == (0, 3)


def test_questions_of_another_width_or_without_a_number_are_refused(store, tmp_path):
    index = built(store, tmp_path / "flat", "Flat")
    with pytest.raises(UserError, match=r"holds vectors of width 16, the questions .*\(20, 8\)"):
        index.search_vectors(QUERIES[:, :8], 3)
    with pytest.raises(ValueError, match="NaN or infinity"):
        index.search_vectors(np.full((1, DIM), np.nan, dtype=np.float32), 3)


def test_faiss_is_left_as_it_was(store, tmp_path):
    index = built(store, tmp_path / "flat", "Flat")
    before = faiss.cvar.distance_compute_blas_threshold
    index.search_vectors(QUERIES, 3)
    assert faiss.cvar.distance_compute_blas_threshold == before


def test_a_passage_named_twice_is_an_error_and_no_lost_hit(store, tmp_path):
    index = built(store, tmp_path / "flat", "Flat")
    assert len(index.rank(QUERIES, COUNT)[0]) == COUNT
    docid = tmp_path / "flat" / "docid"
    docid.write_text(docid.read_text().replace("d499\n", "d498\n"))
    with pytest.raises(UserError, match="docid changed since it was written"):
        Index.load(tmp_path / "flat")
    (tmp_path / "flat" / "meta.json").unlink()  # as if Pyserini had written it
    with pytest.raises(UserError, match="names a passage twice"):
        Index.load(tmp_path / "flat").rank(QUERIES, COUNT)


def test_a_sample_is_drawn_without_replacement_and_again_the_same(store):
    drawn = sample(store, 100, seed=3)
    assert len(np.unique(drawn, axis=0)) == 100
    np.testing.assert_array_equal(drawn, sample(store, 100, seed=3))
    assert not np.array_equal(drawn, sample(store, 100, seed=4))
    np.testing.assert_array_equal(sample(store, COUNT + 5, seed=0), vectors())


def test_ids_and_vectors_that_disagree_are_refused(store, tmp_path):
    built(store, tmp_path / "flat", "Flat")
    docid = tmp_path / "flat" / "docid"
    docid.write_text(docid.read_text().removesuffix("d499\n"))
    with pytest.raises(UserError, match="index holds 500 vectors, docid 499 ids; remove"):
        Index.load(tmp_path / "flat")
    docid.write_text("")
    with pytest.raises(UserError, match="docid: is empty"):
        Index.load(tmp_path / "flat")


def test_a_folder_or_file_that_is_no_index_is_named(store, tmp_path):
    with pytest.raises(UserError, match="no index here"):
        Index.load(tmp_path / "absent")
    built(store, tmp_path / "flat", "Flat")
    (tmp_path / "flat" / "index").write_bytes(b"not faiss at all")
    with pytest.raises(UserError, match="FAISS cannot read it") as failure:
        Index.load(tmp_path / "flat")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("kind", ["Flat", "HNSW16", "SQ8"])
def test_another_index_of_the_same_size_is_noticed(store, tmp_path, kind):
    built(store, tmp_path / "index", kind)
    file = tmp_path / "index" / "index"
    size = file.stat().st_size
    other = faiss.read_index(str(file))
    other.reset()
    other.add(vectors()[::-1].copy())
    faiss.write_index(other, str(file))
    assert (file.stat().st_size, other.ntotal) == (size, COUNT)
    with pytest.raises(UserError, match="index changed since it was written; remove .*/index and"):
        Index.load(tmp_path / "index")


def test_a_large_file_is_hashed_at_places_from_its_first_byte_to_its_last(tmp_path):
    path, size = tmp_path / "large", 64 * 65536 + 10_000_000
    path.write_bytes(bytes(size))
    before = sampled_hash(path)
    found = []
    for place in (0, size // 2, size - 1, 70_000):  # blocks of 65,536 begin every 224,772 bytes
        with path.open("r+b") as stream:
            stream.seek(place)
            stream.write(b"x")
        found.append(sampled_hash(path))
        with path.open("r+b") as stream:
            stream.seek(place)
            stream.write(b"\0")
    assert [digest != before for digest in found[::2]] == [True, True]
    assert found[3] == before
    path.write_bytes(bytes(size + 1))
    assert sampled_hash(path) != before


def test_a_small_file_is_hashed_whole(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(bytes(200_000))
    before = sampled_hash(path)
    for place in (0, 65_535, 65_536, 150_000, 199_999):
        content = bytearray(200_000)
        content[place] = 1
        path.write_bytes(content)
        assert sampled_hash(path) != before


def test_what_faiss_says_is_given_in_whole_words():
    where = "Error in void faiss::f(const float*) [with T = int] at /x/faiss/a b/C.cpp:66: "
    long = (
        where.replace("a b/", "") + "Error: 'nx >= (k)' failed: Number of points (20) " + "a " * 99
    )
    assert reason(RuntimeError(where.replace("a b/", "") + "no such thing")) == "no such thing"
    assert reason(RuntimeError(long)).startswith("Number of points (20) a a")
    assert reason(RuntimeError(long)).endswith(" a ...")
    bare = where.replace("a b/", "") + "Error: 'metric == METRIC_L2' failed"
    assert reason(RuntimeError(bare)) == "'metric == METRIC_L2' failed"


def test_an_index_that_compares_by_distance_is_refused(store, tmp_path):
    built(store, tmp_path / "flat", "Flat")
    other = faiss.IndexFlatL2(DIM)
    other.add(vectors())
    faiss.write_index(other, str(tmp_path / "flat" / "index"))
    with pytest.raises(UserError, match="compares by distance"):
        Index.load(tmp_path / "flat")


def test_an_unknown_or_untrainable_factory_string_is_one_line(store, tmp_path):
    (tmp_path / "x").mkdir()
    for kind, message in [
        ("Flatt", "--factory"),
        ("IVF9000,Flat", "cannot train"),
        ("HNSW0", "0"),
        ("IVF0,Flat", "0"),
    ]:
        with pytest.raises(UserError, match=message) as failure:
            build(store, tmp_path / "x", kind, "shards")
        assert "\n" not in str(failure.value)


def test_a_shard_changed_after_it_was_written_stops_the_build(store, tmp_path):
    import shutil

    copy = Store.open(shutil.copytree(store.path, tmp_path / FOLDER))
    changed = np.load(copy.path / "00003.npy")
    changed[0, 0] += 1
    np.save(copy.path / "00003.npy", changed)
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match=r"00003\.npy: changed since"):
        build(copy, tmp_path / "x", "Flat", "shards")
    assert not (tmp_path / "x" / "index").exists()


def test_blocks_that_do_not_add_up_leave_no_file(tmp_path):
    with pytest.raises(ValueError, match="blocks of 3 rows, 4 were announced"):
        write_flat(tmp_path / "index", iter([vectors(3)]), 4, DIM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["a\nb\nc\n", "a\nb\nc", "a\r\nb\r\nc\r\n"])
def test_lines_are_found_by_number_whatever_ends_them(tmp_path, text):
    (tmp_path / "docid").write_bytes(text.encode())
    lines = Lines(tmp_path / "docid")
    assert list(lines) == ["a", "b", "c"]
    assert (lines[-1], lines[0:2]) == ("c", ["a", "b"])
    with pytest.raises(IndexError):
        lines[3]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_many_lines_at_once_are_the_same_as_one_by_one(tmp_path, end):
    (tmp_path / "docid").write_bytes("".join(f"山{i}{end}" for i in range(50)).encode())
    rows = np.random.default_rng(0).integers(0, 50, size=2000)
    expected = [f"山{row}" for row in rows]
    lines = Lines(tmp_path / "docid")
    assert [lines[int(row)] for row in rows[:100]] == expected[:100]
    assert lines.take(rows) == expected
    assert lines.take(rows[:5]) == expected[:5]


def test_lines_in_other_scripts_survive(tmp_path):
    (tmp_path / "docid").write_text("富士山#0\nпривет\u2028\n", newline="\n")
    assert list(Lines(tmp_path / "docid")) == ["富士山#0", "привет\u2028"]
