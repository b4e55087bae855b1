"""Corpora in files: a folder in Mr.TyDi's layout, a Pyserini JSONL folder, or a single file.

Mr.TyDi's layout, of which only the passages must be there::

    collection/docs.jsonl.gz    passages, in one file or several
    topic.<split>.tsv           id<TAB>question
    qrels.<split>.txt           topic Q0 passage grade
    answers[.<split>].jsonl     {"id", "lang", "question", "answers"}
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.languages import find, guess
from ccpretrieve.data.lines import unreadable
from ccpretrieve.data.readers import (
    JSON_SUFFIXES,
    TSV_SUFFIXES,
    read_answers,
    read_passages,
    read_qrels,
    read_topics,
    suffix,
)
from ccpretrieve.data.records import Qrels, Question, Record, Topic
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import slug

T = TypeVar("T")

COLLECTION = "collection"
EXPECTED = (
    f"{COLLECTION}/docs.jsonl[.gz] (with topic.<split>.tsv and qrels.<split>.txt beside it), or"
    " passages in *.jsonl, *.json or in *.tsv, each also .gz"
)
#: Names that say nothing about which corpus it is.
GENERIC = {COLLECTION, "corpus", "docs", "passages", "data"}

TOPICS = re.compile(r"topics?\.(?P<split>[^.]+)\.(?:tsv|txt|jsonl)(?:\.gz)?")
QRELS = re.compile(r"qrels\.(?P<split>[^.]+)\.(?:txt|tsv)(?:\.gz)?")
ANSWERS = re.compile(r"answers(?:\.(?P<split>[^.]+))?\.jsonl(?:\.gz)?")
BESIDE = re.compile(r"(?:topics?|qrels|answers)\b.*|.*\.trec\.json")  # never taken for passages


class FileCorpus(Corpus):
    """A corpus whose files are known one by one.

    Args:
        name: Goes into file names.
        language: Code of its language, ``""`` if unknown or mixed.
        passages: Files of passages, in reading order.
        topics: Split -> file of topics.
        qrels: Split -> file of judgements.
        answers: Split -> file of questions with answers; ``""`` for a file that serves every split.
    """

    def __init__(
        self,
        name: str,
        *,
        language: str = "",
        passages: Sequence[Path] = (),
        topics: Mapping[str, Path] | None = None,
        qrels: Mapping[str, Path] | None = None,
        answers: Mapping[str, Path] | None = None,
    ) -> None:
        self.name = name
        self.language = language
        self.topic_language = self.language
        self.passage_files = tuple(passages)
        self.topic_files = dict(topics or {})
        self.qrels_files = dict(qrels or {})
        self.answer_files = dict(answers or {})

    def records(self) -> Iterator[Record]:
        """Stream the passages file by file; see :meth:`Corpus.records`."""
        if not self.passage_files:
            raise UserError(f"{self.name} has no passages, only topics or judgements")
        for path in self.passage_files:
            yield from read_passages(path)

    def topics(self, split: str) -> list[Topic]:
        """The questions of a split; see :meth:`Corpus.topics`."""
        return read_topics(self._file("topics", split, self.topic_files))

    def qrels(self, split: str) -> Qrels:
        """The judgements of a split; see :meth:`Corpus.qrels`."""
        return read_qrels(self._file("qrels", split, self.qrels_files))

    def answers(self, split: str) -> list[Question]:
        """The questions of a split with answers; from a file for every split, those asked in it.

        Raises:
            UserError: If there are none.
        """
        if split in self.answer_files or "" not in self.answer_files:
            return read_answers(self._file("answers", split, self.answer_files))
        asked = {topic.id for topic in self.topics(split)}
        path = self.answer_files[""]
        questions = [question for question in read_answers(path) if question.topic.id in asked]
        if not questions:
            raise UserError(f"{path}: none of its ids is a topic of {self.name}, split {split}")
        return questions

    def _file(self, kind: str, split: str, files: Mapping[str, Path]) -> Path:
        """The file of a split."""
        if not files:
            raise UserError(f"{self.name} has no {kind}; give a file of them instead of a split")
        if split not in files:
            raise unknown(f"split of {self.name}'s {kind}", split, sorted(files))
        return files[split]


class FolderCorpus(FileCorpus):
    """A corpus found by its place.

    Args:
        path: A folder in Mr.TyDi's layout, a folder of files of passages (read in the order of
            their names), or one such file.
        name: Default: from the path; ``xquad-ja`` for ``.../xquad/ja``.
        language: Default: the language the name ends in, if any.

    Raises:
        UserError: If nothing is there, or not what should be.
    """

    def __init__(self, path: Path, name: str | None = None, language: str | None = None) -> None:
        words = _words(path)
        code = language if language is not None else guess(words[-1])
        name = name or slug("-".join(words))
        if not path.is_dir():
            if not path.exists():
                raise UserError(f"{path}: no such folder or file; check the name")
            if not path.is_file():
                raise UserError(
                    f"{path}: a pipe or device, which cannot be read twice; write it to a file"
                )
            super().__init__(name, language=code, passages=[path])
            return
        files = _listing(path)
        topics, qrels = _by_split(files, TOPICS), _by_split(files, QRELS)
        super().__init__(
            name,
            language=code,
            passages=_passages(path, needed=not topics and not qrels),
            topics=topics,
            qrels=qrels,
            answers=_by_split(files, ANSWERS),
        )


def _listing(folder: Path) -> list[Path]:
    """The files of a folder in the order of their names, hidden ones left out."""
    try:
        return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error) from error


def _by_split(files: Sequence[Path], pattern: re.Pattern[str]) -> dict[str, Path]:
    """The files whose names fit, by split; ``""`` for a name without one."""
    found: dict[str, Path] = {}
    for path in files:
        if match := pattern.fullmatch(path.name):
            split = match["split"] or ""
            if split in found:
                raise UserError(f"{path}: {found[split].name} is there too; keep one of them")
            found[split] = path
    return found


def _passages(folder: Path, *, needed: bool) -> list[Path]:
    """The files of passages of a folder.

    Args:
        folder: With or without a folder ``collection`` in it.
        needed: Whether to fail if there are none.

    Raises:
        UserError: If there are none but should be, or of several kinds, or one twice.
    """
    inner = folder / COLLECTION
    place = inner if inner.is_dir() else folder
    files = [path for path in _listing(place) if not _is_beside(path)]
    json_files = [path for path in files if suffix(path) in JSON_SUFFIXES]
    tsv_files = [path for path in files if suffix(path) in TSV_SUFFIXES]
    if json_files and tsv_files:
        raise UserError(
            f"{place}: both {json_files[0].name} and {tsv_files[0].name} hold passages;"
            " keep one kind or name one file"
        )
    found = json_files or tsv_files
    if not found and (needed or place is inner):
        raise UserError(f"{place}: no passages; expected {EXPECTED}")
    unpacked: dict[str, Path] = {}
    for path in found:
        other = unpacked.setdefault(path.name.removesuffix(".gz"), path)
        if other is not path:
            raise UserError(f"{path}: {other.name} is there too; keep one of them")
    return found


def _is_beside(path: Path) -> bool:
    """Whether a file is something else than passages: topics, say, or what made a run."""
    described = path.name.removesuffix(".json")  # beside a run x lies x.json
    sidecar = described != path.name and path.with_name(described).is_file()
    return bool(sidecar or BESIDE.fullmatch(path.name))


def _words(path: Path) -> list[str]:
    """The last part of a path that says something; if that is only a language, its parent too."""
    parts = list(Path(os.path.abspath(path)).parts[1:])  # noqa: PTH100 - resolve() follows links
    if not path.is_dir() and parts:
        parts[-1] = Path(parts[-1].removesuffix(".gz")).stem
    while len(parts) > 1 and parts[-1].lower() in GENERIC:
        parts.pop()
    if len(parts) > 1 and find(parts[-1]):
        return parts[-2:]
    return parts[-1:] or ["corpus"]
