import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ccpretrieve import __main__ as console
from ccpretrieve.commandline import command, parse, to_yaml
from ccpretrieve.config import (
    CorporaConfig,
    EncodeConfig,
    EvaluateConfig,
    IndexConfig,
    SearchConfig,
)
from ccpretrieve.errors import UserError

VERBS = [verb for verb in console.VERBS if verb != "pyserini"]
CONFIGS = [CorporaConfig, EncodeConfig, EvaluateConfig, IndexConfig, SearchConfig]


def test_a_flag_and_a_field_are_the_same_thing():
    argv = ["--corpus", "x", "--batch-tokens", "64", "--no-normalize", "--layer", "-1"]
    parsed = parse(EncodeConfig, argv, "encode")
    assert parsed == EncodeConfig(corpus="x", batch_tokens=64, normalize=False, layer=-1)


def test_a_question_is_a_word_of_the_line():
    parsed = parse(SearchConfig, ["who was it?", "--index", "i"], "search")
    assert parsed == SearchConfig("who was it?", index=Path("i"))


def test_a_repeatable_flag_takes_several_at_once_or_one_by_one():
    both = EvaluateConfig(run=(Path("a"), Path("b")))
    assert parse(EvaluateConfig, ["--run", "a", "--run", "b"], "evaluate") == both
    assert parse(EvaluateConfig, ["--run", "a", "b"], "evaluate") == both


def test_what_print_config_prints_is_what_config_reads(tmp_path):
    argv = ["--corpus", "x", "--query-prefix", "q: ", "--no-normalize", "--data-dir", "d"]
    text = parse(EncodeConfig, [*argv, "--print-config"], "encode")
    (tmp_path / "c.yaml").write_text(text)
    read = parse(EncodeConfig, ["--config", str(tmp_path / "c.yaml")], "encode")
    assert read == parse(EncodeConfig, argv, "encode")
    assert to_yaml(read) == text


def test_flags_on_the_line_win_over_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("corpus: x\nbatch-tokens: 7\n")
    argv = ["--config", str(tmp_path / "c.yaml"), "--batch-tokens", "9"]
    assert parse(EncodeConfig, argv, "encode") == EncodeConfig(corpus="x", batch_tokens=9)


@pytest.mark.parametrize(
    ("content", "message"),
    [("a: [", r"c\.yaml:1: not YAML"), ("- a\n", "expected `setting: value` lines")],
)
def test_a_file_that_is_no_settings_file_is_named(tmp_path, content, message):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        parse(EncodeConfig, ["--config", str(tmp_path / "c.yaml")], "encode")


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["--corpus", "x", "--pooling", "men"], 1, "unknown pooling 'men'; did you mean 'mean'?"),
        (["--corpus", "x", "--batch-tokens", "0"], 1, "--batch-tokens must be at least 1, got 0"),
        (["--corpus", "x", "--shard-id", "2"], 1, "--shard-id must be from 0 to 0"),
        (
            ["--corpus", "x", "--similarity", "cosine", "--no-normalize"],
            1,
            "--similarity cosine needs unit vectors",
        ),
        (["--corpsu", "x"], 2, "--corpus"),
        (["--corpus", "x", "--batch-tokens", "many"], 2, '"many"'),
        (["--config", "absent.yaml"], 1, "absent.yaml: cannot be read"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(argv, status, message, capsys):
    with pytest.raises(SystemExit) as stop:
        command(lambda config: "ran", EncodeConfig, "encode", argv)
    out, err = capsys.readouterr()
    assert stop.value.code == status
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_bug_keeps_its_traceback():
    def bug(config):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command(bug, EncodeConfig, "encode", ["--corpus", "x"])


def test_the_result_is_printed_and_nothing_else(capsys):
    command(lambda config: Path("there"), EncodeConfig, "encode", ["--corpus", "x"])
    assert capsys.readouterr() == ("there\n", "")


@pytest.mark.parametrize("verb", VERBS)
def test_help_lists_the_common_flags_and_warns_of_nothing(verb):
    module = f"ccpretrieve.{verb}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.stderr == ""
    for flag in ("--config", "--print-config", "--quiet"):
        assert flag in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_imports_no_heavy_library_before_it_has_work(verb):
    heavy = {"torch", "transformers", "datasets", "ir_datasets", "ranx", "pyserini", "faiss"}
    code = f"import sys, ccpretrieve.{verb}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_one_line(number, status):
    code = (
        "import time; from ccpretrieve.commandline import command; "
        "from ccpretrieve.config import EncodeConfig; "
        "command(lambda c: (print('on', flush=True), time.sleep(60)), EncodeConfig, 'encode',"
        " ['--corpus', 'x'], kept='all of it is kept')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "on\n"
    time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert err.count("\n") == 1
    assert "all of it is kept" in err


def test_the_console_script_lists_the_verbs_and_knows_near_ones(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ccpretrieve"])
    console.main()
    listed = capsys.readouterr().out
    assert all(verb in listed for verb in console.VERBS)
    monkeypatch.setattr(sys, "argv", ["ccpretrieve", "encdoe"])
    with pytest.raises(SystemExit, match="did you mean 'encode'"):
        console.main()
