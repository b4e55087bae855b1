"""Data flows one way: a layer imports only layers to its left."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ccpretrieve"
LAYERS = [
    {"errors"},
    {"files", "config"},
    {"training_config", "calibration_config", "mine_config", "search_config", "values"},
    {"finetune_config"},
    {"commandline"},
    {"data"},
    {"model"},
    {"retrieval"},
    {"training"},
    {
        *("pretrain", "finetune", "mine", "corpora", "pyserini", "calibrate"),
        *("encode", "index", "search", "evaluate"),
    },
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path):
    """Names directly under ``ccpretrieve`` that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import hides the layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "ccpretrieve" and len(parts) > 1 and parts[1] in LEVEL:
                yield parts[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_the_left(path):
    owner = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if owner == "__init__":
        return  # its lazy imports are the subject of test_importing_the_package_imports_no_command
    assert owner in LEVEL, f"{owner} is in no layer; add it to LAYERS on purpose"
    in_package = len(path.relative_to(PACKAGE).parts) > 1
    for other in imported(path):
        assert (in_package and other == owner) or LEVEL[other] < LEVEL[owner], (
            f"{owner} must not import {other}"
        )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_outgrows_four_hundred_lines(path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no header"


def test_nothing_in_the_package_imports_the_benchmarks():
    for path in MODULES:
        assert "import benchmarks" not in path.read_text()
        assert "from benchmarks" not in path.read_text()
