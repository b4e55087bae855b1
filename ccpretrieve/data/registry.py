"""From a name to a corpus, and from a corpus to its files, downloaded when they are first needed.

``open_corpus`` takes a name of the table (:mod:`ccpretrieve.data.sources`), a sample that ships
with the package, ``irds:<id>`` (ir_datasets), ``hf:<dataset>[:config]`` (the hub), or a folder or
file. Files lie under one folder, ``--data-dir``; what somebody has put there is used as it is.
Each file comes by itself: questions and judgements need no passages. Large files are never fetched
on the way to something else, only by ``python -m ccpretrieve.corpora NAME --fetch``.
"""

import functools
import importlib.resources
import os
from collections.abc import Iterator
from pathlib import Path

from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.download import download, unpack
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.data.languages import language
from ccpretrieve.data.lines import lines
from ccpretrieve.data.readers import (
    read_answers,
    read_nq_topics,
    read_passages,
    read_qrels,
    read_topics,
)
from ccpretrieve.data.records import Passage, Qrels, Question, Record, Topic
from ccpretrieve.data.sources import FAMILIES, Entry, Family, File, answers_name, entries
from ccpretrieve.data.squad import convert
from ccpretrieve.errors import UserError, unknown

VARIABLE = "CCPRETRIEVE_DATA"
SUFFIXES = (".jsonl", ".json", ".tsv", ".gz", ".txt")  # what ends in these was meant as a file
LARGE = 100_000_000  # bytes; above, fetching needs a word of the user's

SAMPLE = Family(
    "sample",
    "Sample written for this project: 64 short passages and 24 questions, ids parallel; test",
    "Apache-2.0",
    "ships with the package",
)


def data_root(data_dir: Path | None = None) -> Path:
    """The folder of all corpora: ``data_dir``, else CCPRETRIEVE_DATA, else the cache at home."""
    if data_dir is not None:
        return data_dir.expanduser()
    named = os.environ.get(VARIABLE)
    return Path(named or "~/.cache/ccpretrieve").expanduser()


@functools.cache
def table() -> dict[str, Entry]:
    """Every corpus by name, the samples first."""
    return {entry.name: entry for entry in [*_samples(), *entries()]}


def families() -> list[Family]:
    """What the names belong to, in the order of the table."""
    return [SAMPLE, *FAMILIES]


def _samples() -> Iterator[Entry]:
    """The samples there are, by what is in the package."""
    place = importlib.resources.files("ccpretrieve.data") / "sample"
    for folder in sorted(Path(str(place)).glob("*/")):
        passages = folder / "collection" / "docs.jsonl"
        if passages.is_file():
            yield Entry(
                f"sample-{folder.name}",
                SAMPLE,
                folder.name,
                folder.name,
                0,
                File(str(passages)),  # joined to any folder, an absolute path stays itself
                {"test": File(str(folder / "topic.test.tsv"))},
                {"test": File(str(folder / "qrels.test.txt"))},
                {"test": File(str(folder / answers_name("test")))},
            )


def lookup(name: str) -> Entry:
    """The entry of a name.

    Raises:
        UserError: If there is none; near names are offered.
    """
    known = table()
    if name not in known:
        listing = f"`python -m ccpretrieve.corpora` lists all {len(known)}"
        raise unknown("corpus", name, known, listing)
    return known[name]


def open_corpus(name: str, data_dir: Path | None = None) -> Corpus:
    """Open a corpus by name or place; nothing is read or downloaded yet.

    Args:
        name: A name of the table, ``irds:...``, ``hf:dataset[:config]``, or a folder or file (write
            ``./nq`` for a folder that has the name of a corpus).
        data_dir: Folder of all corpora. Default: see :func:`data_root`.

    Raises:
        UserError: If there is no such corpus, folder or file.
    """
    scheme, _, rest = name.partition(":")
    if scheme in ("irds", "hf"):
        from ccpretrieve.data.hub import HubCorpus, IrdsCorpus

        if scheme == "irds":
            return IrdsCorpus(rest)
        dataset, _, config = rest.partition(":")
        return HubCorpus(dataset, config or None)
    if name in table():
        return RegisteredCorpus(table()[name], data_root(data_dir))
    path = Path(name).expanduser()
    if path.exists():
        return FolderCorpus(path)
    if name.startswith((".", "~")) or "/" in name or os.sep in name or path.suffix in SUFFIXES:
        raise UserError(f"{name}: no such folder or file; check the name")
    lookup(name)
    raise AssertionError("lookup finds what the table does not hold")


def parallel(name: str, data_dir: Path | None = None) -> tuple[list[str], list[str]]:
    """The two sides of a parallel corpus, line i of one the translation of line i of the other.

    Args:
        name: ``tatoeba-<iso3>`` or ``ntrex-<iso2>``.
        data_dir: Folder of all corpora.

    Returns:
        The lines of the named language, and those of English.

    Raises:
        UserError: If the corpus is not parallel, or the two sides are not equally long.
    """
    entry = lookup(name)
    if not entry.parallel or entry.passages is None:
        raise UserError(f"{name} is not parallel text; tatoeba-<iso3> and ntrex-<iso2> are")
    root = data_root(data_dir)
    paths = [obtain(entry, file, root) for file in (entry.topics["test"], entry.passages)]
    ours, english = (_aligned(path) for path in paths)
    if len(ours) != len(english):
        raise UserError(
            f"{paths[0]} has {len(ours)} lines but {paths[1]} has {len(english)}; "
            "line i must translate line i: fetch both again"
        )
    return ours, english


def _aligned(path: Path) -> list[str]:
    """The lines of a file in which none may be blank, as that would shift the others."""
    text: list[str] = []
    for number, line in lines(path):
        if number != len(text) + 1:
            raise UserError(f"{path}:{len(text) + 1}: blank line in parallel text; fetch it again")
        text.append(line)
    return text


def training_file(name: str, split: str, data_dir: Path | None = None) -> Path:
    """The file of questions with positive and negative passages, in DPR's JSON.

    Raises:
        UserError: If the corpus or split has none, or it is not there and too large to just fetch.
    """
    entry = lookup(name)
    return obtain(entry, _of_split(entry, "training", split), data_root(data_dir))


class RegisteredCorpus(Corpus):
    """A corpus of the table, its files fetched one by one when asked for.

    Attributes:
        topic_language: Code of its questions' language, ``""`` if they are in several.
    """

    def __init__(self, entry: Entry, root: Path) -> None:
        self.entry = entry
        self.root = root
        self.name = entry.name
        self.language = language(entry.language).code
        self.topic_language = language(entry.topic_language).code if entry.topic_language else ""

    def records(self) -> Iterator[Record]:
        """Stream the passages; see :meth:`Corpus.records`."""
        if self.entry.passages is None:
            raise UserError(
                f"{self.name} has questions, answers and training data, no passages of its own; "
                "search it in xor-retrieve (English Wikipedia, 100 words a passage) or in a folder"
            )
        path = obtain(self.entry, self.entry.passages, self.root)
        return self._lines(path) if self.entry.parallel else read_passages(path)

    def topics(self, split: str) -> list[Topic]:
        """The questions of a split; see :meth:`Corpus.topics`."""
        path = self._file("topics", split)
        if self.entry.parallel:
            return [Topic(str(i), text) for i, text in enumerate(_aligned(path), 1)]
        if self.entry.training:  # Natural Questions, whose questions have no ids
            return [topic for topic, _ in read_nq_topics(path)]
        return read_topics(path)

    def qrels(self, split: str) -> Qrels:
        """The judgements of a split; see :meth:`Corpus.qrels`."""
        if self.entry.parallel:
            return {topic.id: {topic.id: 1} for topic in self.topics(split)}
        return read_qrels(self._file("qrels", split))

    def answers(self, split: str) -> list[Question]:
        """The questions of a split with their answers; see :meth:`Corpus.answers`."""
        path = self._file("answers", split)
        if self.entry.training:
            return [Question(topic, tuple(found)) for topic, found in read_nq_topics(path)]
        return read_answers(path)

    def _lines(self, path: Path) -> Iterator[Record]:
        for number, text in enumerate(_aligned(path), 1):
            yield Record(Passage(str(number), text), str(path), number)

    def _file(self, part: str, split: str) -> Path:
        return obtain(self.entry, _of_split(self.entry, part, split), self.root)


def _of_split(entry: Entry, part: str, split: str) -> File:
    files: dict[str, File] = getattr(entry, part)
    if not files:
        reason = "; it is scored by its answers" if part == "qrels" and entry.answers else ""
        raise UserError(f"{entry.name} has no {part}{reason}")
    if split not in files:
        raise unknown(f"split of {entry.name}'s {part}", split, list(files))
    return files[split]


def find(file: File, root: Path) -> Path | None:
    """Where a file lies under the data folder, None if it does not."""
    for place in (file.path, *file.also):
        path = root / place
        if path.is_file():
            return path
    return None


def pending(entry: Entry, root: Path) -> list[File]:
    """What would be downloaded to have all of a corpus."""
    missing = [file for _, _, file in entry.files() if find(file, root) is None]
    if entry.squad and missing:
        return [file for _, _, file in entry.squad if find(file, root) is None]
    return [file for file in missing if file.url]


def obtain(entry: Entry, file: File, root: Path, *, large: bool = False) -> Path:
    """The place of a file of a corpus, fetched or made if it is not there.

    Args:
        entry: The corpus.
        file: One of its files.
        root: The data folder.
        large: Fetch it even if it is large.

    Raises:
        UserError: If it cannot be had; the message says what to put where or which command to run.
    """
    found = find(file, root) or _unpacked(file, root)
    if found is not None:
        return found
    if not file.url:
        if not entry.squad:
            raise UserError(f"{root / file.path}: missing; install the package again")
        assert entry.passages is not None
        sources = [(prefix, split, obtain(entry, of, root)) for prefix, split, of in entry.squad]
        folder = (root / entry.passages.path).parents[1]
        convert(sources, folder, entry.language, underscored=entry.underscored)
        return root / file.path
    if file.size > LARGE and not large:
        raise UserError(_how_to_have(entry, file, root))
    return download(file.url, root / file.path, file.checksum)


def _unpacked(file: File, root: Path) -> Path | None:
    """Where a file lies in its publisher's archive, if that was put here by hand."""
    for place in (file.archive, Path(file.archive).name) if file.archive else ():
        archive = root / place
        if archive.is_file():
            folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
            if not folder.exists():
                unpack(archive, folder)
            return find(file, root)
    return None


def _how_to_have(entry: Entry, file: File, root: Path) -> str:
    command = f"python -m ccpretrieve.corpora {entry.name} --fetch --yes"
    if root != data_root():
        command += f" --data-dir {root}"
    return (
        f"{entry.name}: {root / file.path} is not there ({human(file.size)}, "
        f"{entry.family.licence}); `{command}` downloads it, or put a copy of {file.url} there "
        f"(--data-dir or {VARIABLE} names the folder)"
    )


def human(size: int) -> str:
    """A number of bytes in words, by powers of 1,000.

    >>> human(1_078_000_000), human(30_000)
    ('1.1 GB', '30 kB')
    """
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            value = size / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{size} B"
