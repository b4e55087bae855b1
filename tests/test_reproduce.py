"""The checklist: what is judged, by what, and what is kept."""

import json
from dataclasses import MISSING, replace
from pathlib import Path

import pytest

from benchmarks import checklist_measures as measures
from benchmarks import checklist_needs as needs
from benchmarks import mrtydi, reproduce
from benchmarks.checklist import items
from benchmarks.checklist_item import AtHand, Item
from benchmarks.reproduce import ReproduceConfig, judge, tick
from benchmarks.table import AVERAGE, PAPER
from ccpretrieve.calibration_config import CalibrateConfig
from ccpretrieve.commandline import parse
from ccpretrieve.errors import UserError
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.training_config import PretrainConfig
from ccpretrieve.values import plain

CHECKLIST = {item.name: item for item in items()}
PATHS = ["--output", "o"]
COMMANDS = {
    "pretrain": (PretrainConfig, ["--corpus", "documents", *PATHS]),
    "finetune": (FinetuneConfig, ["--train", "nq", *PATHS]),
    "calibrate": (CalibrateConfig, ["--texts", "documents", *PATHS]),
}


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Nothing at hand, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return AtHand(tmp_path / "data", None, tmp_path / "ablations", quiet=True)


@pytest.fixture
def made_up():
    """An item of two columns and their mean that is kept, and the columns it was measured for."""
    calls = []

    def measure(at, column):
        calls.append(column)
        if column == at.encoder:
            raise UserError("cannot be measured")
        return {"score": {"ja": 0.4, "ko": 0.2}[column]}

    expected = {"score": {"ja": 0.4, "ko": None, AVERAGE: 0.35}}
    item = Item("made-up", "Table 0", "command", "nothing", expected, "me", measure=measure)
    return replace(item, lacks=lambda at, column: "", kept=True), calls


# -- verdicts --


@pytest.mark.parametrize(
    ("expected", "measured", "verdict"),
    [
        (0.820, 0.8205, "match"),  # half of the last digit
        (0.820, 0.8206, "near"),
        (0.820, 0.830, "near"),  # a point
        (0.820, 0.8301, "off"),
        (0.820, 0.8095, "off"),
        (1081, 1081, "match"),
        (1081, 1080, "off"),  # a count is right or wrong
        ("3e-05", "2e-05", "off"),  # and so is a setting
        (None, 0.5, "no number"),
        (0.820, None, "not run"),
        (None, None, "not run"),
    ],
)
def test_a_number_is_judged_by_its_distance_and_a_count_by_equality(expected, measured, verdict):
    assert judge(expected, measured) == verdict


def test_a_stand_in_is_never_judged_even_if_it_equals_the_published_number():
    assert judge(0.820, 0.820, stand_in=True) == "stand-in"
    assert judge("best", None, stand_in=True) == "not run"


# -- what is on the list --


def test_the_published_rows_are_those_of_the_files_and_holes_stay_holes():
    ccp = CHECKLIST["mrtydi-ccp"].expected
    assert (ccp["Recall@100"]["ja"], ccp["Recall@100"][AVERAGE]) == (0.800, 0.818)
    assert set(ccp["MRR@100"].values()) == {None}
    assert CHECKLIST["mrtydi-bm25"].expected["MRR@100"]["te"] == 0.5283
    assert CHECKLIST["xor-retrieve-drdecr"].expected["R@5kt"][AVERAGE] == 0.768
    assert not CHECKLIST["tatoeba-english"].expected


def test_every_item_has_a_command_and_says_what_it_needs_and_no_two_share_a_name():
    assert len(CHECKLIST) == len(items())
    for item in CHECKLIST.values():
        assert "python -m " in item.command
        assert item.needs
        assert item.source or item.stand_in


def test_only_stand_ins_take_the_encoder_of_the_reader():
    for item in CHECKLIST.values():
        if item.measure is not None and item.encoder is None:
            assert item.stand_in, item.name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_papers_settings_are_a_file_that_the_command_takes(name):
    config, words = COMMANDS[name]
    built = parse(config, ["--config", str(PAPER / f"{name}.yaml"), *words], name)
    for flag, value in measures.stated(name, config).items():
        assert measures.said(getattr(built, flag.replace("-", "_"))) == value


def test_a_default_that_is_not_the_papers_is_off_and_what_it_leaves_open_is_no_number(at):
    result = tick(CHECKLIST["settings-pretrain"], at, Path("work"), asked=False)
    verdicts = {flag: result.verdict(flag, "value") for flag in result.item.expected}
    assert {flag for flag, verdict in verdicts.items() if verdict == "off"} == {
        "pooling",  # the checkpoint's own
        "reduction",  # the mean, which does not outweigh masked language modelling
    }
    assert verdicts["bank-size"] == verdicts["learning-rate"] == "match"
    assert verdicts["temperature"] == verdicts["radius"] == "no number"


def test_hours_grow_with_passages_layers_and_the_square_of_the_width():
    hour = round(12.3 * 3600)  # passages of one thread
    assert needs.cpu_hours(hour, 12, 384) == pytest.approx(1)
    assert needs.cpu_hours(hour, 24, 768) == pytest.approx(8)  # 2 x 2 x 2


# -- measuring --


def test_what_takes_long_is_measured_when_asked_for_and_shown_ever_after(at, made_up):
    item, calls = made_up
    work = Path("work")
    before = tick(item, at, work, asked=False)
    assert (before.summary, calls) == ("not run", [])
    assert before.reasons == {"not asked for (`--run made-up`)": ["ja", "ko"]}
    asked = tick(item, at, work, asked=True)
    assert calls == ["ja", "ko"]
    assert asked.measured["score"] == {"ja": 0.4, "ko": 0.2, AVERAGE: pytest.approx(0.3)}
    assert asked.summary == "1 match, 1 off, 1 no number"  # ja; the mean, .3 for .35; ko
    assert tick(item, at, work, asked=False).measured == asked.measured
    assert tick(item, at, work, asked=True).measured == asked.measured
    assert calls == ["ja", "ko"]


def test_a_column_that_cannot_be_measured_ends_nothing_and_withholds_the_mean(at, made_up):
    item, calls = made_up
    failing = tick(item, replace(at, encoder="ja"), Path("work"), asked=True)
    assert calls == ["ja", "ko"]
    assert failing.measured["score"] == {"ko": 0.2, AVERAGE: None}
    assert failing.reasons == {"it failed here": ["ja"]}
    mended = tick(item, at, Path("work"), asked=True)
    assert calls == ["ja", "ko", "ja"]  # ko was kept
    assert mended.measured["score"][AVERAGE] == pytest.approx(0.3)


def test_kept_columns_of_one_encoder_are_not_mixed_with_those_of_another(at, made_up):
    item = replace(made_up[0], encoder=None)
    tick(item, replace(at, encoder="first"), Path("work"), asked=True)
    with pytest.raises(UserError, match="made with encoder first, not second"):
        tick(item, replace(at, encoder="second"), Path("work"), asked=True)
    assert tick(item, at, Path("work"), asked=False).encoder == "first"


def test_questions_and_judgements_are_counted_where_they_are(at):
    folder = at.data / "mrtydi" / "sw"
    folder.mkdir(parents=True)
    (folder / "topic.test.tsv").write_text("1\tmto gani?\n2\tmlima gani?\n")
    (folder / "qrels.test.txt").write_text("1 Q0 5#0 1\n1 Q0 5#1 1\n2 Q0 7#3 1\n")
    result = tick(CHECKLIST["mrtydi-data"], at, Path("work"), asked=False)
    assert result.measured == {"test questions": {"sw": 2}, "test judgements": {"sw": 3}}
    assert result.verdict("test questions", "sw") == "off"  # 670
    assert len(result.reasons) == 10  # the other languages, each for its own two files


@pytest.mark.real
def test_mrtydi_has_the_papers_number_of_questions_in_every_language(at, real_data):
    result = tick(CHECKLIST["mrtydi-data"], replace(at, data=real_data), Path("work"), asked=False)
    assert result.summary == "11 match, 11 no number"


def test_scores_on_data_that_is_not_mrtydi_get_no_verdict(at, monkeypatch):
    passages = at.data / "mrtydi" / "sw" / "corpus.jsonl.gz"
    passages.parent.mkdir(parents=True)
    passages.touch()
    found = type("Report", (), {"differences": ("sw has 5 passages",), "measured": {}})()
    monkeypatch.setattr(mrtydi, "run", lambda config: found)
    result = tick(CHECKLIST["mrtydi-bm25"], at, Path("work"), asked=True)
    assert result.summary == "not run"
    assert result.reasons["it failed here"] == ["sw"]
    assert not list(Path("work").rglob("sw.json"))


def test_a_checkpoint_counts_as_the_papers_if_it_was_trained_with_the_papers_settings(at):
    def trained(name, config, **changes):
        made = measures.defaults(config) | changes
        path = Path("out") / name / "training" / "settings.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({k: plain(v) for k, v in made.items() if v is not MISSING}))

    trained("labse-nq", FinetuneConfig, train=["nq"])
    measures.check_trained(Path("out/labse-nq"))
    trained("labse-nq", FinetuneConfig, train=["nq"], batch_size=8)
    with pytest.raises(UserError, match="labse-nq: made with batch-size 8, not 48"):
        measures.check_trained(Path("out/labse-nq"))
    trained("labse-nq", FinetuneConfig, train=["nq", "mrtydi-ja"])
    with pytest.raises(UserError, match="not fine-tuned on nq alone"):
        measures.check_trained(Path("out/labse-nq"))
    trained("ccp-nq", FinetuneConfig, train=["nq"])
    trained("ccp", PretrainConfig)  # our defaults: the mean where the paper has the sum
    with pytest.raises(UserError, match="out/ccp: made with pooling as the checkpoint, not cls"):
        measures.check_trained(Path("out/ccp-nq"))
    trained("ccp", PretrainConfig, pooling="cls", reduction="sum")
    measures.check_trained(Path("out/ccp-nq"))


def test_finished_ablations_stand_beside_the_claims_with_their_spread(at):
    at.ablations.mkdir()
    made = {"pooling": "cls", "max_steps": 9, "accumulated_batch_size": 4, "layers": 2}
    accuracy = {"base.0": 0.27, "base.1": 0.29, "no-l2.0": 0.1}
    for name, share in accuracy.items():
        result = {"losses": {}, "health": {}, "accuracy": {"cls raw": {"fra": share}}, "seconds": 1}
        content = json.dumps({"settings": made, "result": result})
        (at.ablations / f"{name}.json").write_text(content)
    result = tick(CHECKLIST["ablations"], at, Path("work"), asked=False)
    assert result.value("base", "value") == "28.0 ±1.4"  # 27 and 29: the root of 2
    assert result.value("no-l2", "value") == "10.0, one seed"
    assert result.value("trained", "value") == "9 updates of 4 windows, 2 layers, cls pooling"
    assert result.verdict("base", "value") == "stand-in"
    assert result.verdict("bn-plain", "value") == "not run"


# -- the file --


def test_the_file_has_every_item_with_its_command_and_no_path_of_the_machine(at, tmp_path):
    config = ReproduceConfig(data_dir=at.data, ablations=at.ablations, quiet=True)
    config = replace(config, output=Path("out") / "RESULTS.md")
    shown = reproduce.run(config)
    text = config.output.read_text()
    for item in CHECKLIST.values():
        assert item.name in shown
        assert f"## {item.name}\n" in text
        assert item.command in text
    assert str(tmp_path) not in text
    assert "| settings-finetune | section 4.3: settings of fine-tuning |" in text
    assert "Not run: lacks out/ccp-nq and the passages." in text
    assert reproduce.run(config) == shown
    assert config.output.read_text() == text


def test_items_are_asked_for_by_name_and_listed(at):
    config = parse(ReproduceConfig, ["--list"], "benchmarks.reproduce")
    assert "mrtydi-bm25" in reproduce.run(config)
    assert not Path("benchmarks").exists()
    with pytest.raises(UserError, match="unknown item 'mrtydi-bm52'; did you mean 'mrtydi-bm25'"):
        reproduce.run(ReproduceConfig(run=("mrtydi-bm52",), output=Path("r.md"), quiet=True))


@pytest.mark.slow
def test_stand_ins_run_on_the_data_at_hand_with_the_encoder_given(at, tiny_checkpoint):
    folder = at.data / "xquad" / "en"
    (folder / "collection").mkdir(parents=True)
    texts = ["The Nile flows north", "a b c d e f g", "Helsinki on kaupunki"]
    lines = [json.dumps({"id": f"{n}", "contents": f"t\n\n{x}"}) for n, x in enumerate(texts)]
    (folder / "collection" / "docs.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "topic.test.tsv").write_text("q\tThe Nile flows north\n")
    (folder / "qrels.test.txt").write_text("q Q0 0 1\n")
    (at.data / "tatoeba").mkdir()
    for side in ("fin", "eng"):  # the same text on both sides: every sentence finds itself
        (at.data / "tatoeba" / f"fin-eng.{side}").write_text("\n".join(texts) + "\n")
    given = replace(at, encoder=str(tiny_checkpoint))
    xquad = tick(CHECKLIST["xquad"], given, Path("work"), asked=True)
    assert xquad.measured["Recall@100"] == {"en": 1.0, AVERAGE: None}  # 3 passages, 100 hits
    assert xquad.verdict("Recall@100", "en") == "stand-in"
    assert xquad.encoder == tiny_checkpoint.name
    pairs = tick(CHECKLIST["tatoeba-small"], given, Path("work"), asked=True)
    assert pairs.measured["accuracy"]["fi"] == 1.0
