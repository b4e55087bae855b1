import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ccpretrieve
from ccpretrieve import __main__ as console
from ccpretrieve.commandline import command, parse
from ccpretrieve.config import CorporaConfig, EncodeConfig, EvaluateConfig, IndexConfig
from ccpretrieve.errors import UserError
from ccpretrieve.mine_config import MineConfig
from ccpretrieve.search_config import SearchConfig
from ccpretrieve.training_config import PretrainConfig
from ccpretrieve.values import to_yaml

VERBS = [verb for verb in console.VERBS if verb != "pyserini"]
CONFIGS = [
    *(CorporaConfig, EncodeConfig, EvaluateConfig, IndexConfig, MineConfig, PretrainConfig),
    SearchConfig,
]


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


def test_values_of_a_file_are_those_that_are_written(tmp_path):
    content = "run: [a.trec, 'no']\nalpha: 1e-2\nper_topic: yes\nqrels: '2024'\nsplit: null\n"
    (tmp_path / "c.yaml").write_text(content)
    read = parse(EvaluateConfig, ["--config", str(tmp_path / "c.yaml")], "evaluate")
    runs = (Path("a.trec"), Path("no"))
    assert read == EvaluateConfig(run=runs, alpha=0.01, per_topic=True, qrels="2024")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("layer: 2.9", "1: layer: a whole number is needed, not 2.9"),
        ("layer: '2'", "1: layer: a whole number is needed, not '2'"),
        ("layer: 1_0", "1: layer: a whole number is needed, not 1_0"),
        ("layer: 1:30", "1: layer: a whole number is needed, not 1:30"),
        ("layer: true", "1: layer: a whole number is needed, not true"),
        ("layer: [1]", "1: layer: a whole number is needed, not several values"),
        ("tag: no", "1: tag: text is needed, not no; put it in quotes"),
        ("tag: 2024-01-01", "1: tag: text is needed, not 2024-01-01; put it in quotes"),
        ("corpus: {a: b}", "1: corpus: text is needed, not several values"),
        ("shard-size:", "1: shard-size: a whole number is needed, not nothing"),
        ("output: ''", "1: output: a path is needed, not ''"),
        ("normalize: 'no'", "1: normalize: true or false is needed, not 'no'"),
        ("corpus: a\ncorpus: b", "2: corpus is set on a line before too"),
        ("batch-tokens: 1\nbatch_tokens: 2", "2: batch-tokens is set on a line before too"),
        ("corpus: a\n1: b", "2: unknown setting '1'"),
        ("? [a]\n: b", "1: unknown setting"),
        ("<<: {corpus: a}", "1: unknown setting '<<'"),
        ("corpsu: a", "1: unknown setting 'corpsu'; did you mean 'corpus'?"),
        ("config: other.yaml", "1: unknown setting 'config'"),
        ("corpus: !!python/name:os.system a", "1: corpus: text is needed"),
    ],
)
def test_a_value_that_is_not_of_its_settings_type_is_refused_by_line(
    tmp_path, capsys, content, message
):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(SystemExit) as stop:
        command(
            lambda config: "ran", EncodeConfig, "encode", ["--config", str(tmp_path / "c.yaml")]
        )
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"error: {tmp_path}/c.yaml:{message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", r"c\.yaml:1: not YAML"),
        ("- a\n", "expected `setting: value` lines"),
        ("", "expected `setting: value` lines"),
        ("corpus: a\n---\ncorpus: b\n", r"c\.yaml:2: not YAML"),
    ],
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
        (["--corpus", "x", "--layer", "2.9"], 2, '--layer: a whole number is needed, not "2.9"'),
        (["--corpus", "x", "--layer", "1_0"], 2, '--layer: a whole number is needed, not "1_0"'),
        (["--corpus", "x", "--layer", "0x1"], 2, '--layer: a whole number is needed, not "0x1"'),
        (["--corpus", "x", "--layer", "none"], 2, '--layer: a whole number is needed, not "none"'),
        (["--corpus", "x", "--output", ""], 2, '--output: a path is needed, not ""'),
        (["--corpus", "x", "--tag", ""], 1, "--tag is empty; give it a value, or leave it out"),
        (["--corpus", "x", "--encoder="], 1, "--encoder is empty"),
        (["--corpus", ""], 1, "--corpus is empty"),
        (["--corpus", "x", "--device", "meta:0"], 1, "--device meta:0 holds shapes and no numbers"),
        (["--corpus", "x", "--query-prefix", "\udcff"], 1, r"--query-prefix '\udcff': not UTF-8"),
        (["--config", "absent.yaml"], 1, "error: absent.yaml: cannot be read: No such file or dir"),
        (["--config", "."], 1, "error: .: cannot be read: Is a directory"),
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


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        (EvaluateConfig, ["--run", ""]),
        (EvaluateConfig, ["--run", "a", "--qrels", ""]),
        (EvaluateConfig, ["--run", "a", "--metrics", "mrr", ""]),
        (SearchConfig, ["--index", ""]),
        (SearchConfig, ["--topics", ""]),
        (SearchConfig, ["x", "--lang", ""]),
        (IndexConfig, ["--embeddings", ""]),
        (CorporaConfig, ["sample-en", ""]),
    ],
)
def test_nothing_is_no_name(config, argv, capsys):
    with pytest.raises(SystemExit):
        command(lambda config: "ran", config, "verb", argv)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "is empty" in err or 'not ""' in err


def test_an_empty_prefix_is_an_answer():
    parsed = parse(EncodeConfig, ["--corpus", "x", "--query-prefix", ""], "encode")
    assert parsed.query_prefix == ""


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


@pytest.mark.parametrize("config", CONFIGS)
def test_a_description_is_broken_by_the_width_of_the_screen_alone(config, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    command(lambda config: None, config, "verb", ["--help"])
    rows = [line.strip("│ ") for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert all(row.startswith(("-", "*")) or row.split()[0].isupper() for row in rows)


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


@pytest.mark.parametrize("words", [["ccpretrieve.encode"], ["ccpretrieve", "encode"]])
def test_ctrl_c_while_a_library_is_imported_is_one_line(tmp_path, words):
    slow = "import time; print('on', flush=True); time.sleep(60)"
    (tmp_path / "cyclopts.py").write_text(slow)
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "error: interrupted; nothing was begun\n")


def test_importing_a_command_leaves_ctrl_c_as_it_is():
    code = (
        "import signal, ccpretrieve.encode; "
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_a_destructor_swallows_ends_a_command_all_the_same(number, status):
    code = f"""if True:
        import os, time
        from ccpretrieve.commandline import command
        from ccpretrieve.config import EncodeConfig
        class Swallowing:
            def __del__(self):
                os.kill(os.getpid(), {int(number)})
                time.sleep(0.01)  # where Python looks for signals
        def run(config):
            Swallowing()
            time.sleep(60)
        command(run, EncodeConfig, 'encode', ['--corpus', 'x'])
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == status
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_a_library_takes_for_its_own_fault_ends_a_command_all_the_same(
    number, status
):
    code = f"""if True:
        import os, time
        from ccpretrieve.commandline import command
        from ccpretrieve.config import EncodeConfig
        def run(config):
            try:
                os.kill(os.getpid(), {int(number)})
                time.sleep(60)
            except BaseException:
                raise ModuleNotFoundError('a part that may be missing')
        command(run, EncodeConfig, 'encode', ['--corpus', 'x'])
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == status
    assert done.stderr.count("\n") == 1


def test_what_standard_output_cannot_hold_is_said():
    code = (
        "from ccpretrieve.commandline import command; from ccpretrieve.config import EncodeConfig; "
        "command(lambda c: 'h\\u00e9', EncodeConfig, 'encode', ['--corpus', 'x'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: standard output is ascii here and cannot hold '\\xe9'; set PYTHONIOENCODING=utf-8\n"
    )


def test_a_command_works_where_the_standard_streams_are_closed(tmp_path):
    code = (
        "import os, pathlib; from ccpretrieve.commandline import command; "
        "from ccpretrieve.config import EncodeConfig; "
        "command(lambda c: pathlib.Path(c.corpus).write_text(str(os.open('.', 0))), "
        f"EncodeConfig, 'encode', ['--corpus', {str(tmp_path / 'x')!r}])"
    )
    subprocess.run(f'exec {sys.executable} -c "{code}" <&- >&- 2>&-', shell=True, check=True)
    assert int((tmp_path / "x").read_text()) > 2  # no file of ours stands for a stream


def test_the_console_script_tells_its_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ccpretrieve", "--version"])
    console.main()
    assert capsys.readouterr().out == f"ccpretrieve {ccpretrieve.__version__}\n"


def test_the_console_script_lists_the_verbs_and_knows_near_ones(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ccpretrieve"])
    console.main()
    listed = capsys.readouterr().out
    assert all(verb in listed for verb in console.VERBS)
    monkeypatch.setattr(sys, "argv", ["ccpretrieve", "encdoe"])
    with pytest.raises(SystemExit, match="did you mean 'encode'"):
        console.main()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (48, 20.0)),
        (["--preset", "dpr"], (128, 40.0)),
        (["--preset=dpr", "--epochs", "3"], (128, 3.0)),  # a flag wins
        (["--config", "FILE"], (64, 40.0)),  # so does a file, which names the preset
        (["--config", "FILE", "--preset", "ccp"], (64, 20.0)),
    ],
)
def test_a_preset_stands_under_flags_and_files(tmp_path, words, expected):
    from ccpretrieve.finetune_config import FinetuneConfig

    file = tmp_path / "settings.yaml"
    file.write_text("preset: dpr\nbatch-size: 64\n")
    words = [str(file) if word == "FILE" else word for word in words]
    made = parse(FinetuneConfig, ["--train", "nq", "--output", "x", *words], "finetune")
    assert (made.batch_size, made.epochs) == expected
