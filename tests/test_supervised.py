"""The supervised recipe: mined, trained, evaluated, each part once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import supervised
from benchmarks.parts import claim
from benchmarks.supervised import SupervisedConfig
from ccpretrieve.commandline import parse
from ccpretrieve.errors import UserError

ROOT = Path(__file__).parents[1]
WORDS = [
    "Nile river flows",
    "sea of Egypt",
    "tall green hills",
    "old stone walls",
    "deep blue lake",
]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """One language in Mr.TyDi's layout; question i asks for passage i, in train and test."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "en"
    (folder / "collection").mkdir(parents=True)
    lines = [json.dumps({"id": f"{n}", "contents": f"t\n\n{text}"}) for n, text in enumerate(WORDS)]
    (folder / "collection" / "docs.jsonl").write_text("\n".join(lines) + "\n")
    for split in ("train", "test"):
        topics = [f"{split}{n}\t{text} {WORDS[n - 1]}\n" for n, text in enumerate(WORDS)]
        (folder / f"topic.{split}.tsv").write_text("".join(topics))
        judged = [f"{split}{n} Q0 {n} 1\n" for n in range(len(WORDS))]
        (folder / f"qrels.{split}.txt").write_text("".join(judged))
    return tmp_path / "data"


@pytest.mark.slow
def test_the_recipe_mines_trains_and_scores_start_and_result_once(data, tiny_checkpoint, tmp_path):
    config = SupervisedConfig(
        **{"data": data, "encoder": str(tiny_checkpoint), "work": tmp_path / "out", "quiet": True},
        **{"batch_size": 2, "epochs": 1.0, "warmup_steps": 0, "ratio": None, "negatives": 2},
        **{"query_length": 16, "passage_length": 16},
    )
    stopped = supervised.run(replace(config, max_minutes=1e-9))  # after one of three updates
    assert "epoch 0.40 of 1; the same command goes on" in str(stopped)  # 2 of 5 examples
    report = supervised.run(config)
    start, made = report.measured
    assert made == "out"
    assert report.measured[start]["en"].topics == report.measured[made]["en"].topics == 5
    examples = [
        json.loads(line) for line in (tmp_path / "out" / "en.jsonl").read_text().splitlines()
    ]
    assert len(examples) == 5
    assert all(example["hard_negative_ctxs"] for example in examples)  # each shares words of two
    assert (tmp_path / "out" / "out" / "query" / "config.json").is_file()  # untied, as the paper
    before = (tmp_path / "out" / "en.jsonl").stat().st_mtime_ns
    assert supervised.run(config) == report
    assert (tmp_path / "out" / "en.jsonl").stat().st_mtime_ns == before


def test_parts_of_other_settings_are_refused_and_the_setting_is_named(tmp_path):
    claim(tmp_path / "w", {"seed": 1, "data": tmp_path})
    claim(tmp_path / "w", {"seed": 1, "data": tmp_path})
    with pytest.raises(UserError, match="made with seed 1, not 2; choose another --work"):
        claim(tmp_path / "w", {"seed": 2, "data": tmp_path})


def test_the_recipe_in_the_folder_is_one_that_can_be_read():
    path = ROOT / "benchmarks" / "recipes" / "mrtydi-supervised.yaml"
    config = parse(SupervisedConfig, ["--config", str(path)], "benchmarks.supervised")
    assert len(config.languages) == 11
    assert (config.batch_size, config.learning_rate, config.tied) == (48, 1e-5, False)
