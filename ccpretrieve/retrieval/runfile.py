"""TREC run files: ``topic Q0 passage rank score tag``, one hit a line, and what made them.

trec_eval ignores the rank column: it keeps each score as a 32-bit float and sorts by score, equal
scores by passage id, both descending. A run is written in just that order, so that it reads as it
is scored, and each score with the nine digits that give the same 32-bit float back.

Beside ``x.trec`` lies ``x.trec.json``: what made the run, how many topics were searched and
which of them have no hit (a run file cannot say that), and the hash of the run.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ccpretrieve.data.lines import MalformedError, parsed
from ccpretrieve.data.records import Topic
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, make_directory, read_json, write_json

logger = logging.getLogger(__name__)

Run = dict[str, dict[str, float]]  # topic id -> passage id -> score
COLUMNS = "topic Q0 passage rank score tag"
COLUMN = re.compile(r"[^ \t\r\n\v\f]+")  # C's white space, not Unicode's, ends a column
OVERFLOW = 2.0**128 - 2.0**103  # from here on a score rounds to an infinite 32-bit float


def ordered(scores: Mapping[str, float]) -> list[tuple[str, float]]:
    """Rank the hits of one topic as trec_eval does.

    Args:
        scores: Passage id -> score.

    Returns:
        (passage id, score rounded to a 32-bit float), best first.

    Raises:
        UserError: If a score is not a number or infinite; the passage is named.
    """
    for docid, score in scores.items():
        if not abs(score) < OVERFLOW:
            raise UserError(f"passage {docid!r} has the score {score}, which cannot be ranked")
    rounded = np.array(list(scores.values()), dtype=np.float32).tolist()
    # str compares code points, which is the order of UTF-8 bytes and so of strcmp
    return sorted(zip(scores, rounded, strict=True), key=lambda hit: (hit[1], hit[0]), reverse=True)


def sidecar_path(run: Path) -> Path:
    """Where what made a run is kept: ``x.trec.json`` for ``x.trec``."""
    return run.parent / f"{run.name}.json"


def write_run(path: Path, run: Run, tag: str, made_by: Mapping[str, Any]) -> None:
    """Write a run and its sidecar, each whole or not at all, the sidecar first.

    Args:
        path: The run file; its folder is created.
        run: Hits of every topic that was searched; a topic without hits has an empty dict.
        tag: Last column.
        made_by: What made the run; ``topic_count``, ``unanswered`` and ``sha256`` are added.

    Raises:
        UserError: If an id or the tag is not one word, a score is not finite, no topic has a hit,
            or the file cannot be written. No run is left behind, and an older one is kept.
    """
    _check_word(path, "tag", tag)
    if path.is_dir():
        raise UserError(f"{path}: not written: a folder; name a file")
    if not any(run.values()):
        raise UserError(f"{path}: not written: none of {len(run)} topics has a hit")
    make_directory(path.parent)
    digest = hashlib.sha256()
    with atomic(path) as stream:
        for topic, scores in run.items():
            block = "".join(_lines(path, topic, scores, tag)).encode()
            digest.update(block)
            stream.write(block)
        counts = {
            "topic_count": len(run),
            "unanswered": [topic for topic, scores in run.items() if not scores],
            "sha256": digest.hexdigest(),
        }
        write_json(sidecar_path(path), {**made_by, **counts})


def _lines(path: Path, topic: str, scores: Mapping[str, float], tag: str) -> Iterator[str]:
    """The lines of one topic."""
    _check_word(path, "topic id", topic)
    try:
        hits = ordered(scores)
    except UserError as error:
        raise UserError(f"{path}: not written: topic {topic!r}: {error}") from error
    for rank, (docid, score) in enumerate(hits, start=1):
        _check_word(path, "passage id", docid)
        yield f"{topic} Q0 {docid} {rank} {score:.9g} {tag}\n"


def _check_word(path: Path, kind: str, word: str) -> None:
    """Fail if ``word`` cannot stand in a column."""
    if word.split() != [word]:
        raise UserError(
            f"{path}: not written: the {kind} {word!r} is not one word; "
            "white space separates the columns of a run"
        )
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{path}: not written: the {kind} {word!r} is not valid Unicode") from error


def read_sidecar(run: Path) -> dict[str, Any] | None:
    """What made a run, or None where nothing beside it says so.

    A run that is not the file its sidecar was written for is warned about in the log.

    Raises:
        UserError: If the sidecar cannot be read or is not a JSON object.
    """
    path = sidecar_path(run)
    if not path.exists():
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: not what made a run: expected a JSON object; remove it")
    if "sha256" in content and run.is_file():
        with run.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != content["sha256"]:
                logger.warning("%s: changed since %s was written beside it", run, path.name)
    return content


def is_made_by(run: Path, expected: Mapping[str, Any]) -> bool:
    """Whether a run is there, is what was written, and its sidecar says what is expected of it.

    Args:
        run: The file.
        expected: Some of what :func:`write_run` was given as ``made_by``.

    Raises:
        UserError: If the sidecar cannot be read.
    """
    made = read_sidecar(run) if run.is_file() else None
    if made is None or any(made.get(name) != value for name, value in expected.items()):
        return False
    with run.open("rb") as stream:
        return bool(made.get("sha256") == hashlib.file_digest(stream, "sha256").hexdigest())


def digest(topics: Iterable[Topic]) -> str:
    """A hash of questions, their ids and stated languages, in order, to know them again."""
    lines = (json.dumps([each.id, each.text, each.language]) + "\n" for each in topics)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_run(path: Path) -> Run:
    """Read a run, gzipped or not; the rank column is ignored, as trec_eval ignores it.

    A byte-order mark, CRLF and blank lines are read as if absent.

    Raises:
        UserError: Naming file and line, for a wrong number of columns, a score that is not a finite
            number, a passage listed twice for a topic (both lines are named) or text that is not
            UTF-8; naming the file, if it holds no hit or cannot be read.
    """
    run: Run = {}
    for number, (topic, docid, score) in _hits(path):
        scores = run.setdefault(topic, {})
        if docid in scores:
            first = next(n for n, hit in _hits(path) if hit[:2] == (topic, docid))
            raise UserError(
                f"{path}:{number}: passage {docid!r} of topic {topic!r} stands on line {first} "
                "already; keep one of the two"
            )
        scores[docid] = score
    return run


def _hits(path: Path) -> Iterator[tuple[int, tuple[str, str, float]]]:
    """Line number, from 1, and topic, passage and score."""
    return parsed(path, _hit, f"hits ({COLUMNS})")


def _hit(line: str) -> tuple[str, str, float]:
    """Topic, passage and score of one line."""
    columns = COLUMN.findall(line)
    if len(columns) != 6:
        raise MalformedError(f"{len(columns)} columns; a hit has six: {COLUMNS}")
    topic, _, docid, _, score, _ = columns
    try:
        value = float(score.replace("_", "?"))  # Python alone takes 1_000 for a number
    except ValueError as error:
        raise MalformedError(f"the score {score!r} is not a number") from error
    if not abs(value) < OVERFLOW:
        raise MalformedError(f"the score {score!r} cannot be ranked; it must be finite")
    return topic, docid, value
