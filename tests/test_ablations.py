"""The ablations: every cell can be trained, finished cells are kept, and gains are those stated."""

import json

import pytest

from benchmarks import ablations
from benchmarks.ablation_cells import CELLS, AblationConfig, Result
from benchmarks.ablation_report import claims, report
from benchmarks.ablations import run
from ccpretrieve.errors import UserError

from .test_pretrain import WORDS, write_documents


def result(raw, *, warnings=()):
    hows = [f"{p} {s}" for p in ("cls", "mean") for s in ("raw", "shifted", "shifted and scaled")]
    accuracy = {how: {"fra-eng": raw, "deu-eng": raw} for how in hows}
    health = {"effective_rank": 9.0, "uniformity": -1.0, "warnings": list(warnings)}
    return Result({"ccp": 5.0}, health, accuracy, 1.0)


def test_every_cell_has_settings_that_can_work(tmp_path):
    config = AblationConfig(corpus="documents", tatoeba=tmp_path)
    for cell in CELLS.values():
        made = config.training(cell, 0, tmp_path)
        for name, value in cell.change.items():
            assert getattr(made, name) == value
        assert made.max_steps == 120


def test_a_claim_shows_where_the_change_is_beyond_the_seeds_and_goes_its_way(tmp_path):
    config = AblationConfig(corpus="documents", tatoeba=tmp_path)
    start = result(0.20).accuracy
    results = {
        "base": [result(0.40), result(0.42)],  # mean 41, standard deviation 1.41
        "bn-none": [result(0.20), result(0.20)],  # "training fails": no better than the start
        "bn-plain": [result(0.30), result(0.34)],  # "terrible"; deviation 2.83, -9 is beyond twice
        "bank-shared": [result(0.50), result(0.50)],  # "ruins the result", and is better
        "batch-16": [result(0.39)],  # "slightly worse", within twice 1.41
        "radius-1": [result(0.38)],  # "slightly worse", beyond it
    }
    lines = report(config, start, results).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("What the paper claims"))
    said = [line.strip().split("  ") for line in lines[first + 3 :]]
    assert [(words[0], words[-1].strip()) for words in said] == [
        ("bn-none", "shows"),
        ("bn-plain", "worse, but it learns"),
        ("bank-shared", "the opposite"),
        ("batch-16", "no difference"),
        ("radius-1", "shows"),
    ]
    alone = claims(config, start, {n: each[:1] for n, each in results.items()})[1]
    assert alone.count("one seed: not judged") == 5  # no spread, no verdict
    plain = next(line for line in lines if line.startswith("bn-plain") and "learns" in line)
    assert "-9.0" in plain
    assert "2.8" in plain


def test_the_gain_is_over_the_best_control_and_comes_first(tmp_path):
    config = AblationConfig(corpus="documents", tatoeba=tmp_path)
    start = result(0.20).accuracy
    results = {
        "base": [result(0.40), result(0.44)],
        "control-random": [result(0.30), result(0.30)],
        "control-same": [result(0.35), result(0.37)],
    }
    # 40 - 35 and 44 - 37: 5 and 7, mean 6, standard deviation sqrt(2) = 1.41
    # 40 - 20 and 44 - 20: 20 and 24, mean 22, standard deviation 2.83
    first = report(config, start, results).splitlines()[0]
    assert first == (
        "CCP over its best control (control-same), cls raw: +6.0 ±1.4 points; "
        "over the start: +22.0 ±2.8 points."
    )


def test_warnings_stand_beside_their_cell(tmp_path):
    config = AblationConfig(corpus="documents", tatoeba=tmp_path)
    said = report(
        config, result(0.2).accuracy, {"bn-plain": [result(0.1, warnings=["leak: at step 9 ..."])]}
    )
    line = next(line for line in said.splitlines() if line.lstrip().startswith("bn-plain"))
    assert line.rstrip().endswith("leak")
    assert "terrible" in line


@pytest.mark.slow
def test_finished_cells_are_kept(tmp_path, tiny_checkpoint, monkeypatch):
    parallel = tmp_path / "parallel"
    parallel.mkdir()
    for code in ("eng", "fin"):
        words = WORDS["en" if code == "eng" else "fi"]
        (parallel / f"fin-eng.{code}").write_text("".join(f"{word}\n" for word in words))
    config = AblationConfig(
        corpus=str(write_documents(tmp_path / "documents", documents=30, sentences=6)),
        tatoeba=parallel,
        encoder=str(tiny_checkpoint),
        languages=("en", "fi"),
        tested=("fin",),
        cells=("base", "no-l2"),
        seeds=(0, 1),
        steps=10,
        layers=1,
        batch_size=4,
        bank_size=16,
        output=tmp_path / "ablations",
        quiet=True,
    )
    said = run(config)
    made = sorted(path.name for path in config.output.iterdir())
    assert [name for name in made if name.endswith(".json")] == [
        *("base.0.json", "base.1.json", "no-l2.0.json", "start.json"),
    ]
    assert "losses.png" in made
    assert not [path for path in config.output.iterdir() if path.is_dir()]
    monkeypatch.setattr(ablations, "_train", None)  # nothing is trained again
    assert run(config) == said
    kept = json.loads((config.output / "base.0.json").read_text())
    assert kept["settings"].pop("patience") is None  # as if there had been no such setting yet
    (config.output / "base.0.json").write_text(json.dumps(kept))
    assert run(config) == said
    kept["settings"]["temperature"] = 0.5
    (config.output / "base.0.json").write_text(json.dumps(kept))
    with pytest.raises(UserError, match=r"base\.0\.json: was trained with other settings"):
        run(config)


def test_a_cell_there_is_none_of_is_an_error(tmp_path):
    with pytest.raises(UserError, match="unknown cell 'bn-plane'; did you mean 'bn-plain'"):
        AblationConfig(corpus="documents", tatoeba=tmp_path, cells=("bn-plane",))
