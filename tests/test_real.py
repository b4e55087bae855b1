"""The main job on real text with a real encoder, against a computation that shares no code."""

import gzip
import json
import subprocess
import sys

import pytest

from benchmarks.check import SAME, CheckConfig, run
from ccpretrieve.retrieval.runfile import read_run

PASSAGES = 24  # of each language; the whole collection is for `python -m benchmarks.check`
LANGUAGES = ("en", "th")

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def part(real_data, tmp_path_factory):
    """The first passages of XQuAD in two scripts, with the questions that they answer."""
    folder = tmp_path_factory.mktemp("xquad")
    for code in LANGUAGES:
        source, target = real_data / "xquad" / code, folder / code
        (target / "collection").mkdir(parents=True)
        packed = (source / "collection" / "docs.jsonl.gz").read_bytes()
        kept = gzip.decompress(packed).splitlines(keepends=True)[:PASSAGES]
        (target / "collection" / "docs.jsonl.gz").write_bytes(gzip.compress(b"".join(kept)))
        docids = {json.loads(line)["id"] for line in kept}
        judged = (source / "qrels.test.txt").read_text().splitlines()
        judged = [line for line in judged if line.split()[2] in docids][::3]
        (target / "qrels.test.txt").write_text("\n".join(judged) + "\n")
        wanted = {line.split()[0] for line in judged}
        topics = (source / "topic.test.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        topics = [line for line in topics if line.split("\t")[0] in wanted]
        (target / "topic.test.tsv").write_text("".join(topics), encoding="utf-8")
    return folder


def test_scores_equal_an_independent_computation_and_pyserinis(part, real_encoder, tmp_path):
    config = CheckConfig(
        data=part, encoder=real_encoder, languages=LANGUAGES, work=tmp_path, pyserini=True
    )
    comparison = run(config)
    assert list(comparison.ways) == ["ours", "independent", "Pyserini"]
    assert comparison.furthest <= SAME
    assert all(row["mrr@100"] > 0.8 for row in comparison.ways["ours"].values())


def test_scores_across_languages_equal_an_independent_computation(part, real_encoder, tmp_path):
    config = CheckConfig(
        data=part, encoder=real_encoder, languages=LANGUAGES, work=tmp_path, pooled=True
    )
    comparison = run(config)
    assert comparison.furthest <= SAME
    assert all(row["mrr@100"] > 0.7 for row in comparison.ways["ours"].values())


#: Pyserini's own command, on the Java that ours finds; Thai needs one with the module of its rules.
PYSERINI = """
import runpy, sys
from ccpretrieve.retrieval.lexical import start_java
start_java()
sys.argv = ["pyserini.search.lucene", *sys.argv[1:]]
runpy.run_module("pyserini.search.lucene", run_name="__main__")
"""


@pytest.mark.parametrize("code", LANGUAGES)
def test_bm25_is_pyserinis_own_run_of_the_same_index(code, part, tmp_path):
    def call(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]

    corpus = str(part / code)
    call("-m", "ccpretrieve.index", "--lexical", "--corpus", corpus)
    ours, theirs = tmp_path / "ours.trec", tmp_path / "theirs.trec"
    call("-m", "ccpretrieve.search", "--corpus", corpus, "--tag", "bm25", "--output", str(ours))
    asked = {
        **{
            "--index": str(next((tmp_path / "indexes").iterdir())),
            "--topics": f"{corpus}/topic.test.tsv",
        },
        **{"--language": code, "--hits": "100", "--output": str(theirs)},
    }
    call("-c", PYSERINI, *(word for pair in asked.items() for word in pair))
    mine, expected = read_run(ours), read_run(theirs)
    assert sum(map(len, expected.values())) > len(expected) > 20
    for topic, hits in expected.items():
        assert mine[topic].keys() == hits.keys()
        for docid, score in hits.items():
            assert mine[topic][docid] == pytest.approx(score, abs=1e-5)
