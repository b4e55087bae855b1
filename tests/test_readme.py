"""What the README shows is run as it stands, with the tiny checkpoint in the model's place."""

import re
from pathlib import Path

from ccpretrieve import __main__ as console
from ccpretrieve import encode
from ccpretrieve.config import EncodeConfig

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
MODEL = "intfloat/multilingual-e5-small"


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys, tiny_checkpoint):
    monkeypatch.chdir(tmp_path)
    tag = MODEL.split("/")[1]
    encode.run(EncodeConfig(corpus="sample-en", encoder=str(tiny_checkpoint), tag=tag, quiet=True))
    block = re.search(r"## From Python\s+.*?```python\n(.*?)```", README, re.DOTALL).group(1)
    assert MODEL in block
    exec(block.replace(MODEL, str(tiny_checkpoint)), {})
    assert capsys.readouterr().out.count("#0") == 3
    assert (tmp_path / "runs" / f"sample-en.test.{tag}.trec").is_file()


def test_every_command_of_the_readme_is_a_verb_and_every_verb_is_in_it():
    named = set(re.findall(r"python -m ccpretrieve\.(\w+)", README))
    assert named <= set(console.VERBS)
    assert all(f"| `{verb}` |" in README for verb in console.VERBS)


def test_every_module_of_the_package_is_in_the_tree():
    package = Path(__file__).parents[1] / "ccpretrieve"
    tree = README[README.index("## The tree") : README.index("## Where we differ")]
    for path in package.rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert path.stem in tree, path


def test_our_plugin_comes_before_pyserini_which_would_start_whatever_java_there_is():
    block = re.search(r"## Inside Pyserini\s+.*?```python\n(.*?)```", README, re.DOTALL).group(1)
    assert block.index("import QueryEncoder") < block.index("import FaissSearcher")
