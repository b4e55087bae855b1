import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import (
    candidates,
    demo,
    encoding,
    estimates,
    measure,
    mrtydi,
    searchers,
    speed,
    systems,
)
from benchmarks.encoding import OURS, Encoding, Plan, Tool
from benchmarks.mrtydi import MrTydiConfig
from benchmarks.mrtydi_report import Measured, Report
from ccpretrieve import encode, search
from ccpretrieve.config import EncodeConfig
from ccpretrieve.data.records import Passage
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.model.settings import EncoderSettings, read_settings
from ccpretrieve.retrieval import bm25
from ccpretrieve.retrieval.fusion import formula
from ccpretrieve.retrieval.runfile import read_run, write_run
from ccpretrieve.search_config import SearchConfig

TEXTS = {
    "en": ["The Nile flows north", "a b c d e", "Egypt and the Sea", "x y z 0 1 2"],
    "ja": ["富士山は山です", "日本で一番高い", "高い山です。", "日本です。"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two languages in Mr.TyDi's layout; question i asks for passage i. Works in tmp_path."""
    monkeypatch.chdir(tmp_path)
    for code, texts in TEXTS.items():
        place = tmp_path / "data" / code
        (place / "collection").mkdir(parents=True)
        lines = [
            json.dumps({"id": f"{i}#0", "contents": f"title {i}\n\n{text}"})
            for i, text in enumerate(texts)
        ]
        (place / "collection" / "docs.jsonl").write_text("\n".join(lines) + "\n")
        topics = "".join(f"q{i}\t{text}\n" for i, text in enumerate(texts))
        (place / "topic.test.tsv").write_text(topics)
        judged = "".join(f"q{i} Q0 {i}#0 1\n" for i in range(len(texts)))
        (place / "qrels.test.txt").write_text(judged)
    return tmp_path / "data"


def config(folder, encoder, **more):
    return MrTydiConfig(data=folder, encoder=(str(encoder),), tag="tiny", **more)


def reciprocal_ranks(run):
    """By hand from the file: passage i is relevant for question i."""
    ranks = {}
    for line in Path(run).read_text().splitlines():
        topic, _, passage, rank, *_ = line.split()
        if passage == f"{topic[1:]}#0":
            ranks[topic] = 1 / int(rank)
    return ranks


@pytest.mark.slow
def test_mrtydi_measures_what_the_run_files_hold(folder, tiny_checkpoint):
    report = mrtydi.run(config(folder, tiny_checkpoint))
    assert report.languages == ("en", "ja")
    for code in report.languages:
        ranks = reciprocal_ranks(f"runs/data-{code}.test.tiny.trec")
        reached = report.measured["tiny"][code]
        assert reached.scores["mrr@100"] == pytest.approx(sum(ranks.values()) / 4)
        assert reached.scores["recall@100"] == 1.0  # four passages, all of them returned
        assert (reached.passages, reached.topics, reached.unanswered) == (4, 4, 0)
    text = str(report)
    assert "en has 4 passages and 4 questions, Mr.TyDi 32907100 and 744" in text
    assert "(paper)" not in text


@pytest.mark.slow
def test_mrtydi_does_nothing_twice_and_searches_again_what_changed(folder, tiny_checkpoint):
    wanted = config(folder, tiny_checkpoint, languages=("ja",))
    first = mrtydi.run(wanted)
    run = Path("runs/data-ja.test.tiny.trec")
    files = [run, *Path("indexes/data-ja.tiny").iterdir()]
    os.utime(run, ns=(1, 1))
    before = {path: path.stat().st_mtime_ns for path in files}
    assert mrtydi.run(wanted) == first
    assert {path: path.stat().st_mtime_ns for path in files} == before
    with (folder / "ja" / "topic.test.tsv").open("a") as stream:
        stream.write("q9\t日本\n")
    mrtydi.run(wanted)
    assert run.stat().st_mtime_ns != 1
    assert any(line.startswith("q9 ") for line in run.read_text().splitlines())
    changed = (folder / "ja" / "topic.test.tsv").read_text().replace("日本\n", "山\n")
    (folder / "ja" / "topic.test.tsv").write_text(changed)  # as many questions, other words
    os.utime(run, ns=(1, 1))
    mrtydi.run(wanted)
    assert run.stat().st_mtime_ns != 1
    run.write_text(run.read_text().replace("q9", "q8"))  # no longer what the sidecar describes
    mrtydi.run(wanted)
    assert "q8" not in run.read_text()


def reached(score):
    return Measured({"mrr@100": score, "recall@100": score}, 1, 2, 0)


def test_published_rows_stand_beside_ours_only_if_the_data_is_theirs():
    measured = {"ours": {"ja": reached(0.5)}}
    comparable = str(Report(measured, ("ja",), ()))
    lines = [line.split() for line in comparable.splitlines()]
    assert ["CCP", "(paper)", "-", "-"] in lines  # MRR@100 could not be had
    assert ["CCP", "(paper)", "0.800", "0.800"] in lines  # Recall@100
    assert ["BM25", "(Pyserini)", "0.212", "0.212"] in lines  # .2125, MRR@100
    assert lines.count(["ours", "(here)", "0.500", "0.500"]) == 2
    alien = str(Report(measured, ("ja",), ("ja has 1 passage",)))
    assert "(paper)" not in alien
    assert "(Pyserini)" not in alien
    assert "Not comparable" in alien
    assert "ja has 1 passage" in alien


def test_questions_without_a_hit_are_told():
    measured = {"ours": {"ja": Measured({"mrr@100": 0.5, "recall@100": 0.5}, 1, 7, 3)}}
    assert "ours, ja: 3 of 7 topics without a hit count 0" in str(Report(measured, ("ja",), ()))


@pytest.mark.slow
def test_mrtydi_sets_bm25_and_the_fusion_beside_the_dense_run(folder, tiny_checkpoint):
    wanted = config(folder, tiny_checkpoint, languages=("en",), systems=("dense", "bm25", "hybrid"))
    expected = str(mrtydi.run(replace(wanted, dry_run=True)))
    assert "en: 4 passages, to encode about" in expected
    assert "BM25 indexes that are left to make: data-en" in expected
    report = mrtydi.run(replace(wanted, fusion="rrf"))
    assert list(report.measured) == ["bm25", "tiny", "tiny-bm25"]
    for row in report.measured:
        ranks = reciprocal_ranks(f"runs/data-en.test.{row}.trec")
        reached = report.measured[row]["en"]
        assert reached.scores["mrr@100"] == pytest.approx(sum(ranks.values()) / 4)
    assert report.measured["bm25"]["en"].scores["mrr@100"] == 1.0  # the questions are the passages
    fused = Path("runs/data-en.test.tiny-bm25.trec.json")
    asked = SearchConfig(
        corpus=str(folder / "en"), hybrid="bm25", tag="tiny", output=Path("runs/by-search.trec")
    )
    theirs = json.loads(Path(f"{search.run(asked)}.json").read_text())
    assert json.loads(fused.read_text()) == theirs  # the hash of the run and its tag among it
    search.run(SearchConfig(corpus=str(folder / "en"), tag="bm25", k1=9.0, quiet=True))
    made = Path("runs/data-en.test.bm25.trec.json")
    assert json.loads(made.read_text())["k1"] == 9.0
    halves = mrtydi.run(replace(wanted, tune="halves"))
    assert json.loads(made.read_text())["k1"] == 0.9  # another BM25 is not taken for Pyserini's
    said = json.loads(fused.read_text())["fusion"]
    assert said["method"] == "minmax"
    assert said.keys() - theirs["fusion"].keys() == {"parts"}
    assert json.loads(str(replace(halves, form="json")))["measured"]["tiny"]["en"]["topics"] == 4
    assert mrtydi.estimated(wanted, mrtydi.setups(wanted)) == "nothing is left to encode"


@pytest.mark.slow
def test_an_encoder_is_opened_once_and_a_corpus_counted_once_for_each_index(
    folder, tiny_checkpoint, monkeypatch
):
    for code in TEXTS:  # other questions, to tune on
        (folder / code / "topic.dev.tsv").write_text(f"d0\t{TEXTS[code][2][:8]}\n")
        (folder / code / "qrels.dev.txt").write_text("d0 Q0 2#0 1\n")
    opened, counted = [], []
    load, census = Encoder.load, systems.take_census

    def loading(name, **options):
        opened.append(name)
        return load(name, **options)

    def counting(corpus, **options):
        counted.append(corpus.name)
        return census(corpus, **options)

    monkeypatch.setattr(Encoder, "load", loading)
    for module in (systems, encode, bm25):
        monkeypatch.setattr(module, "take_census", counting)
    wanted = config(folder, tiny_checkpoint, systems=("dense", "bm25", "hybrid"), tune="dev")
    first = mrtydi.run(wanted)
    assert opened == [str(tiny_checkpoint)]
    assert sorted(counted) == ["data-en"] * 2 + ["data-ja"] * 2
    again = mrtydi.run(wanted)
    assert again == first
    assert len(opened) == 2
    assert len(counted) == 8


def test_a_fused_run_holds_every_topic_and_says_which_were_ranked_with_which_weight(
    tmp_path, monkeypatch
):
    """q0 to q5 are judged and found, q6 is not judged, q7 is judged and found by neither."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en" / "collection").mkdir(parents=True)
    (tmp_path / "en" / "collection" / "docs.jsonl").write_text('{"id": "a", "contents": "x"}\n')
    ids = [f"q{n}" for n in range(8)]
    (tmp_path / "en" / "topic.test.tsv").write_text("".join(f"{i}\tword {i}\n" for i in ids))
    judged = [i for i in ids if i != "q6"]
    (tmp_path / "en" / "qrels.test.txt").write_text("".join(f"{i} Q0 a 1\n" for i in judged))
    for tag, best in (("tiny", "a"), ("bm25", "b")):
        worse = "b" if best == "a" else "a"
        run = {i: {best: 2.0, worse: 1.0} for i in ids[:7]} | {"q7": {}}
        said = {"tag": tag, "hits": 100, "corpus": {}, "index": f"indexes/{tag}", "kind": tag}
        write_run(Path(f"runs/{tag}.trec"), run, tag, said)
    made = systems.Setup(
        corpus=str(tmp_path / "en"),
        split="test",
        settings=config(tmp_path, "e"),
        fusion="minmax",
        tune="halves",
    )
    stub = systems.Searched
    monkeypatch.setattr(systems.Setup, "dense", lambda *_: stub(Path("runs/tiny.trec"), 1))
    monkeypatch.setattr(systems.Setup, "bm25", lambda *_: stub(Path("runs/bm25.trec"), 1))
    path = made.hybrid("e", "tiny").run
    assert list(read_run(path)) == ids[:7]
    said = json.loads(Path(f"{path}.json").read_text())
    assert (said["topic_count"], said["unanswered"]) == (8, ["q7"])
    assert said["index"] == "indexes/tiny"
    fused = said["fusion"]
    assert (fused["dense"], fused["lexical"]["index"]) == (
        {"tag": "tiny", "depth": 100},
        "indexes/bm25",
    )
    # dense alone is right, so weights above a half are: 0.6 is nearest to the default
    first, second = fused["parts"]["first half"], fused["parts"]["second half"]
    assert sorted(first + second) == ids
    assert len(first) == len(second) == 4
    for part, other, others in (
        ("first half", "second half", second),
        ("second half", "first half", first),
    ):
        assert fused["weights"][part] == {"dense": 0.6, "lexical": 0.4}
        assert fused["formula"][part] == formula("minmax", 0.6)
        assert fused["tuned_on"][part] == {
            "corpus": made.opened.name,
            "split": "test",
            "part": other,
            "topics": 4 - ("q6" in others),
            "metric": "mrr@100",
        }


def test_a_weight_is_not_tuned_on_the_questions_that_are_scored(folder):
    for name in ("topic", "qrels"):
        end = "tsv" if name == "topic" else "txt"
        copy = (folder / "en" / f"{name}.test.{end}").read_bytes()
        (folder / "en" / f"{name}.dev.{end}").write_bytes(copy)
    (made,) = mrtydi.setups(config(folder, "e", languages=("en",), tune="dev")).values()
    with pytest.raises(UserError, match="--tune dev: holds 4 of the questions that are searched"):
        made._fused("e", "tiny", {}, {})


def test_rows_that_would_share_their_files_are_refused(tmp_path):
    for names, called in (("a/final b/final", "final"), ("a/bm25", "bm25")):
        encoders = tuple(str(tmp_path / name) for name in names.split())
        wanted = MrTydiConfig(encoder=encoders)
        with pytest.raises(UserError, match=f"two rows, and their files, would be called {called}"):
            mrtydi.rows(wanted)
    with pytest.raises(UserError, match="the weight of minmax must be from 0 to 1, got 7"):
        MrTydiConfig(weight=7)


def test_json_holds_the_published_rows_and_the_means_too():
    content = json.loads(str(Report({"ours": {"ja": reached(0.5)}}, ("ja",), (), "json")))
    assert content["Recall@100"]["CCP (paper)"] == {"ja": 0.8, "avg": 0.8}
    assert content["MRR@100"]["CCP (paper)"]["ja"] is None
    assert content["MRR@100"]["ours (here)"] == {"ja": 0.5, "avg": 0.5}
    assert content["measured"]["ours"]["ja"]["topics"] == 2
    assert any(note.startswith("Pyserini: ") for note in content["notes"])


def test_what_is_above_bm25_is_marked():
    good = Measured({"mrr@100": 0.75, "recall@100": 0.5}, 1, 9, 0, ("mrr@100",))
    report = Report({"bm25": {"ja": reached(0.5)}, "ours": {"ja": good}}, ("ja",), ("other data",))
    assert "0.750ᵇ" in str(report)
    assert str(report).count("ᵇ") == 1
    assert "significantly above BM25" in str(report)
    page = str(replace(report, form="html"))
    assert "<td><b>0.750</b><sup>b</sup></td>" in page
    assert "<p>Not comparable" in page


def test_a_fusion_is_never_tuned_on_the_questions_it_ranks():
    """Dense is right for one half, BM25 for the other; each half takes the other's weight."""
    first, second = systems.halved([f"q{n}" for n in range(10)])
    assert first | second == {f"q{n}" for n in range(10)}
    assert len(first) == len(second) == 5
    qrels = {topic: {"gold": 1} for topic in first | second}
    right, wrong = {"gold": 2.0, "x": 1.0}, {"x": 2.0, "gold": 1.0}
    dense = {topic: right if topic in first else wrong for topic in qrels}
    lexical = {topic: wrong if topic in first else right for topic in qrels}
    run, weights = systems.crossfit(list(qrels), qrels, dense, lexical, "minmax")
    # on the second half BM25 alone is right: weights from 0 to below a half; and the reverse
    assert weights[0] < 0.5 < weights[1]
    assert all(next(iter(hits)) == "x" for hits in run.values())  # so that all are wrong


class FakeEncoder:
    """10 tokens a passage, 1 s each, and 100 s more to start up; vectors of width 8."""

    dim = 8

    def __init__(self, clock):
        self.clock = clock
        self.passes = 0

    def embed_passages(self, passages, *, language):
        self.clock.now += len(passages) + (0 if self.passes else 100)
        self.passes += 1
        return SimpleNamespace(tokens=10 * len(passages))

    def tokenize_passages(self, passages):
        return [SimpleNamespace(ids=[0] * 10) for _ in passages]

    def memory(self):
        return 1000


@pytest.mark.parametrize(
    ("passages", "machines", "expected"),
    [
        # tokens, seconds, vectors of 4 * 8 bytes; each vector twice, and 1.2 * 6 bytes of text
        (4, 1, (40, 4, 128, 2 * 128 + 1.2 * 24)),
        (8, 1, (80, 8, 256, 2 * 256 + 1.2 * 48)),
        (8, 2, (40, 4, 128, 128 + 1.2 * 24)),  # a part of two has no index
    ],
)
def test_what_encoding_takes_grows_with_the_passages(monkeypatch, passages, machines, expected):
    clock = FakeClock()
    monkeypatch.setattr(encode.time, "perf_counter", clock)
    sample = [Passage(str(n), "四a", "ti") for n in range(2)]  # 3 + 1 + 2 bytes
    asked = EncodeConfig(corpus="c", shard_size=10, shard_num=machines)
    takes = encode.estimate(FakeEncoder(clock), "", passages, sample, asked)
    assert (takes.tokens, takes.seconds, takes.vectors) == expected[:3]
    assert takes.disk == pytest.approx(expected[3])
    assert takes.memory == 1000 + 10 * (4 * 8 + 4000)


def test_an_estimate_is_said_in_a_line_and_several_are_summed(folder, monkeypatch):
    takes = encode.Estimate(tokens=1, seconds=7200, vectors=29e9, disk=58e9, memory=2e9)
    one = estimates.Expected("ja", 7_000_000, takes)
    assert "7,000,000 passages, to encode about 2.0 h, disk 58.00 GB, memory 2.0 GB" in str(one)
    said = estimates.total([one, one])
    assert said.startswith("together about 4.0 h on this machine and 116.00 GB of disk (")
    # A folder is counted, and its sample is drawn from all of it.
    seen = []
    monkeypatch.setattr(encode, "load_encoder", lambda _: "opened")
    monkeypatch.setattr(encode, "estimate", lambda *words: seen.append(words))
    (made,) = mrtydi.setups(config(folder, "e", languages=("en",))).values()
    assert estimates.expect(made, "e", "tiny").passages == 4
    assert seen[0][:3] == ("opened", "en", 4)
    assert [passage.id for passage in seen[0][3]] == ["0#0", "1#0", "2#0", "3#0"]


@pytest.mark.parametrize(
    ("code", "split", "passages", "topics", "words"),
    [
        ("ja", "test", 7_000_027, 720, ""),
        ("th", "test", 568_855, 1190, ""),
        ("th", "test", 240, 1190, "th has 240 passages"),  # XQuAD asks as many questions
        ("ja", "test", 7_000_027, 719, "and 719 questions"),
        ("ja", "dev", 7_000_027, 720, "split dev"),
        ("zh", "test", 240, 1190, "zh is no language of Mr.TyDi"),
    ],
)
def test_data_is_mrtydi_by_its_size(code, split, passages, topics, words):
    found = mrtydi.difference(code, split, passages, topics)
    assert words in found
    assert bool(found) == bool(words)


def test_languages_are_found_by_any_spelling_of_folder_and_flag(tmp_path):
    for name in ("mrtydi-v1.1-japanese", "ko", "notes"):
        (tmp_path / name).mkdir()
    wanted = MrTydiConfig(data=tmp_path, languages=("korean", "jpn"))
    assert mrtydi.find_sources(wanted) == {
        "ko": str(tmp_path / "ko"),
        "ja": str(tmp_path / "mrtydi-v1.1-japanese"),
    }
    assert list(mrtydi.find_sources(MrTydiConfig(data=tmp_path))) == ["ja", "ko"]
    with pytest.raises(UserError, match="unknown language of .*'th'.*allowed: ja, ko"):
        mrtydi.find_sources(MrTydiConfig(data=tmp_path, languages=("th",)))
    with pytest.raises(UserError, match="no such folder"):
        mrtydi.find_sources(MrTydiConfig(data=tmp_path / "none"))
    with pytest.raises(UserError, match="no folder in it"):
        mrtydi.find_sources(MrTydiConfig(data=tmp_path / "notes"))


def test_without_a_folder_the_registry_has_all_eleven():
    sources = mrtydi.find_sources(MrTydiConfig())
    assert len(sources) == 11
    assert sources["ja"] == "mrtydi-ja"


def test_one_tag_cannot_name_two_rows():
    with pytest.raises(UserError, match="--tag names one row"):
        MrTydiConfig(encoder=("a", "b"), tag="x")


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_stage_within_a_stage_counts_once_and_what_is_wrapped_is_put_back():
    clock = FakeClock()

    class Work:
        def inner(self):
            clock.now += 2

        def outer(self):
            clock.now += 1
            self.inner()
            clock.now += 1

        def items(self):
            for i in range(3):
                clock.now += 10
                yield i

    original = Work.outer
    with measure.Clocks(clock) as clocks:
        clocks.wrap(Work, "inner", "in")
        clocks.wrap(Work, "outer", "out")
        clocks.wrap(Work, "items", "generator")
        clock.now += 5
        Work().outer()
        for _ in Work().items():
            clock.now += 100  # the consumer's time
    assert clocks.seconds == {"in": 2, "out": 2, "generator": 30, "rest": 305}
    assert Work.outer is original


def test_peak_memory_is_no_less_than_what_is_resident_now():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert measure.peak_memory() >= pages * os.sysconf("SC_PAGE_SIZE") * 0.99


def test_a_pooled_corpus_holds_as_many_of_each_and_tells_languages_apart(folder, tmp_path):
    names = {code: str(folder / code) for code in TEXTS}
    count = encoding.prepare_corpus(names, 4, tmp_path / "pooled", None)
    passages = [record.passage for record in open_corpus(str(tmp_path / "pooled")).records()]
    assert count == len(passages) == 4
    assert [passage.id.partition(":")[0] for passage in passages] == ["en", "en", "ja", "ja"]
    for passage in passages:
        code, _, number = passage.id.partition(":")
        assert passage.text == TEXTS[code][int(number[0])]
        assert passage.title == f"title {number[0]}"
    assert encoding.prepare_corpus(names, 0, tmp_path / "all", None) == 8


def test_every_tool_is_told_the_same_settings(tiny_checkpoint, tmp_path):
    settings = EncoderSettings(pooling="mean", passage_prefix="p: ", title="join")
    path = encoding.prepare_checkpoint(str(tiny_checkpoint), tmp_path / "c", settings)
    assert read_settings(path, str(path))[0] == settings
    assert read_settings(tiny_checkpoint, "")[0] != settings  # the original is untouched
    weights = "model.safetensors"
    assert (path / weights).read_bytes() == (tiny_checkpoint / weights).read_bytes()


SETTINGS = EncoderSettings(
    pooling="mean",
    normalize=True,
    similarity="cosine",
    passage_length=64,
    query_length=64,
    passage_prefix="passage: ",
    title="join",
)


@pytest.fixture
def task(folder, tiny_checkpoint, tmp_path):
    """Settings of a candidate, over all eight passages."""
    names = {code: str(folder / code) for code in TEXTS}
    encoding.prepare_corpus(names, 0, tmp_path / "pooled", None)
    checkpoint = encoding.prepare_checkpoint(str(tiny_checkpoint), tmp_path / "staged", SETTINGS)
    return {
        "checkpoint": str(checkpoint),
        "corpus": str(tmp_path / "pooled"),
        "output": str(tmp_path / "index"),
        "vectors": str(tmp_path / "vectors.npy"),
        "prefix": "passage: ",
        "length": 64,
        "batch": 3,
        "threads": 1,
    }


def test_our_stages_add_up_and_leave_out_loading(task):
    result = candidates.ours({**task, "batch": 1024})
    assert {"census", "tokenize", "forward", "write shards", "write index"} <= set(result["stages"])
    assert "load" not in result["stages"]
    assert result["cpu"] == pytest.approx(sum(result["stages"].values()))
    assert np.load(task["vectors"]).shape == (8, 32)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_sentence_transformers_is_made_to_do_the_same_work(task):
    candidates.ours({**task, "batch": 1024})
    ours = np.load(task["vectors"])
    candidates.sentence_transformers(task)
    np.testing.assert_allclose(np.load(task["vectors"]), ours, atol=1e-5)


@pytest.fixture
def plan(tmp_path):
    return Plan(
        checkpoint=tmp_path,
        corpus=tmp_path,
        settings=SETTINGS,
        peers=("sentence-transformers", "pyserini"),
        batches=(16, 64),
        repeats=3,
        threads=1,
        work=tmp_path,
    )


def fake_child(calls, vectors):
    """In place of a process: batch 64 takes 4 s, 16 and 32 take 6 s, ours 3 s."""

    def in_child(task, settings, folder, *, threads):
        calls.append((task, settings["batch"]))
        np.save(settings["vectors"], vectors.get(task, np.eye(2)))
        cpu = {64: 4.0, 1024: 3.0}.get(settings["batch"], 6.0)
        stages = {"stages": {"forward": 2.0, "rest": 1.0}} if task == OURS else {}
        return {"cpu": cpu, "peak": 10**8 if task == OURS else 2 * 10**8, **stages}

    return in_child


def test_peers_are_tried_at_their_default_too_and_then_repeat_their_best(plan, monkeypatch):
    calls = []
    monkeypatch.setattr(encoding, "in_child", fake_child(calls, {}))
    tools = encoding.compare(plan)
    st, pyserini = "sentence-transformers", "pyserini"
    first = [(OURS, 1024), (st, 16), (st, 32), (st, 64), (pyserini, 16), (pyserini, 64)]
    later = [(OURS, 1024), (st, 64), (pyserini, 64)]
    assert calls == first + later + later
    report = str(Encoding("made up", 12, tools))
    # 12 passages in 3 s are 4 a second, in 4 s 3; 4 / 3 = 1.33; 100 MB / 200 MB = 0.5
    assert "ours / pyserini: 1.33x passages per CPU second, 0.50x peak memory" in report
    assert "sentence-transformers, CPU s by batch in the first round: 16: 6.00, 32: 6.00" in report
    assert "ours, CPU s by stage: forward 2.00, rest 1.00" in report
    row = next(line for line in report.splitlines() if line.startswith(OURS)).split()
    assert row == ["ours", "1024", "tokens", "4.00", "3.00", "(3.00,", "3.00)", "100", "1.000000"]


def test_a_tool_that_computes_other_vectors_is_no_comparison(plan, monkeypatch):
    # [1, 0] against [1, 0.1]: cosine 1 / sqrt(1.01) = 0.995
    other = {"pyserini": np.array([[1.0, 0.1], [0.0, 1.0]])}
    monkeypatch.setattr(encoding, "in_child", fake_child([], other))
    with pytest.raises(UserError, match=r"pyserini computes other vectors .*0\.995037"):
        encoding.compare(plan)


def test_the_median_and_not_the_best_run_decides_between_batches():
    tool = Tool(cpu={16: [1.0, 9.0, 9.0], 32: [5.0, 6.0, 5.5]}, peak={16: [1], 32: [3, 2, 9]})
    assert (tool.batch, tool.seconds, tool.memory) == (32, 5.5, 3)


@pytest.fixture
def vectors(tmp_path):
    """An index of 300 random vectors and 20 questions, as `speed search` prepares them."""
    from ccpretrieve.retrieval.index_builder import write_flat

    generator = np.random.default_rng(0)
    write_flat(tmp_path / "index", speed.unit_vectors(generator, 300, 16), 300, 16)
    (tmp_path / "docid").write_text("".join(f"{n // 10}#{n % 10}\n" for n in range(300)))
    np.save(tmp_path / "queries.npy", next(speed.unit_vectors(generator, 20, 16)))
    return {
        "index": str(tmp_path),
        "queries": str(tmp_path / "queries.npy"),
        "batch": 8,
        "hits": 10,
        "repeats": 2,
        "threads": 1,
        "tools": ["faiss", "ours", "ours, run"],
    }


def test_searchers_find_the_same_and_are_timed_as_often_as_asked(vectors):
    times = searchers.compare(vectors)
    assert list(times) == vectors["tools"]
    for of_tool in times.values():
        assert of_tool["equal"] == 1.0
        assert len(of_tool["wall"]) == len(of_tool["cpu"]) == 2
    rows = speed._search_rows(times)
    assert rows[1][0] == "faiss"
    assert rows[1][3:] == ["1.000", "1.000", "100.00%"]


def test_a_searcher_that_finds_something_else_is_told(vectors, monkeypatch):
    wrong = searchers.Tool(lambda batches: None, lambda _: [["0#0"]] * 20)
    monkeypatch.setitem(searchers.TOOLS, "wrong", lambda settings: wrong)
    assert searchers.compare({**vectors, "tools": ["faiss", "wrong"]})["wrong"]["equal"] == 0.0


@pytest.mark.slow
def test_pyserini_searches_the_same_index_in_a_process_of_its_own(vectors, tmp_path):
    asked = {**vectors, "tools": ["faiss", "pyserini"], "repeats": 1}
    times = measure.in_child("search", asked, tmp_path, threads=1)
    assert times["pyserini"]["equal"] == 1.0


@pytest.mark.slow
def test_pyserini_is_made_to_do_the_same_work(task, tmp_path):
    candidates.ours({**task, "batch": 1024})
    ours = np.load(task["vectors"])
    measure.in_child("pyserini", task, tmp_path, threads=1)
    np.testing.assert_allclose(np.load(task["vectors"]), ours, atol=1e-5)


@pytest.mark.slow
def test_what_a_child_says_the_user_can_put_right_is_passed_on(vectors, tmp_path):
    asked = {**vectors, "tools": ["faiss", "fais"]}
    with pytest.raises(UserError, match="unknown tool 'fais'; did you mean 'faiss'"):
        measure.in_child("search", asked, tmp_path, threads=1)
    with pytest.raises(RuntimeError, match=r"(?s)ended with status 1.*KeyError"):
        measure.in_child("search", {}, tmp_path, threads=1)


@pytest.mark.slow
def test_memory_is_measured_at_both_sizes(tmp_path):
    output = tmp_path / "figures.json"
    said = speed.run_memory(speed.MemorySpeedConfig(few=50, many=100, output=output))
    figures = json.loads(output.read_text())
    assert f"ratio {figures['100'][0] / figures['50'][0]:.3f}" in said
    assert min(figures["50"]) > 50e6  # bytes: torch alone takes more


def test_made_up_passages_of_a_small_corpus_begin_the_large_one(tmp_path):
    speed.write_made_up(tmp_path / "a" / "docs.jsonl", 12, 0)
    speed.write_made_up(tmp_path / "b" / "docs.jsonl", 30, 0)
    few, many = (
        [record.passage for record in open_corpus(str(tmp_path / name)).records()] for name in "ab"
    )
    assert few == many[:12]
    assert len({passage.id for passage in many}) == 30
    assert all(5 <= len(passage.text.split()) <= 30 for passage in many)


def test_an_unknown_measurement_is_a_wrong_flag(capsys):
    with pytest.raises(SystemExit) as stop:
        speed.main(["serch"])
    assert stop.value.code == 2
    assert "did you mean 'search'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: speed.EncodeSpeedConfig(passages=-1), "--passages"),
        (lambda: speed.EncodeSpeedConfig(batches=(16, 0)), "--batches"),
        (lambda: speed.EncodeSpeedConfig(languages=()), "--languages"),
        (lambda: speed.SearchSpeedConfig(hits=0), "--hits"),
        (lambda: speed.MemorySpeedConfig(few=0), "--few"),
    ],
)
def test_what_cannot_be_measured_names_its_flag(made, words):
    with pytest.raises(UserError, match=words):
        made()


@pytest.mark.slow
def test_the_demo_says_that_weights_are_random_scores_every_sample_and_can_be_run_again(tmp_path):
    config = demo.DemoConfig(languages=("en", "Finnish"), output=tmp_path / "demo")
    first, table, *answers, runs, last = demo.run(config)
    assert "RANDOM WEIGHTS" in first
    assert "RANDOM WEIGHTS" in last
    assert [line.split()[0] for line in table.splitlines()[1:3]] == ["sample-en", "sample-fi"]
    assert len(answers) == 2
    assert answers[0].startswith("sample-en, question 1: Which lake")
    files = [Path(line.strip()) for line in runs.splitlines()[1:]]
    assert all(path.is_file() for path in files)
    kept = {
        path: path.read_bytes() for path in sorted((tmp_path / "demo").rglob("*")) if path.is_file()
    }
    assert list(demo.run(config))[1] == table
    assert {path: path.read_bytes() for path in kept} == kept


def test_the_demo_has_a_sample_of_every_language_it_names():
    with pytest.raises(UserError, match="unknown language of the sample 'zh'"):
        demo.find_samples(["zh"])
    assert demo.find_samples(["japanese"]) == {"ja": "sample-ja"}
