"""The main job on real text with a real encoder, against a computation that shares no code."""

import gzip
import json

import pytest

from benchmarks.check import SAME, CheckConfig, run

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
