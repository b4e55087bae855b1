"""Corpora of other catalogues: ``irds:`` (ir_datasets) and ``hf:`` (datasets on the hub)."""

import contextlib
import logging
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.languages import guess
from ccpretrieve.data.lines import MalformedError
from ccpretrieve.data.readers import to_id, to_passage
from ccpretrieve.data.records import Qrels, Record, Topic
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import slug

logger = logging.getLogger(__name__)

#: Catalogues of ir_datasets whose text is Mr.TyDi's "contents": title, blank line, text.
CONTENTS = ("mr-tydi/",)
#: Splits that hold passages, where a hub data set has several.
PASSAGE_SPLITS = ("corpus", "train")


class IrdsCorpus(Corpus):
    """A corpus of ir_datasets.

    Its Mr.TyDi is v1.0, where our ``mrtydi-ja`` and Pyserini's are v1.1; the name keeps them apart.

    Args:
        dataset: Its name there, such as ``mr-tydi/ja``.

    Raises:
        UserError: If there is none of that name.
    """

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.source = f"irds:{dataset}"
        self.name = slug(f"irds-{dataset}")
        self.loaded = _load_irds(dataset)
        self.language = (self.loaded.docs_lang() if self.loaded.has_docs() else None) or ""
        self.topic_language = self.language

    def records(self) -> Iterator[Record]:
        """Stream the passages; see :meth:`Corpus.records`."""
        if not self.loaded.has_docs():
            raise UserError(f"{self.source} has no passages; name the data set they belong to")
        in_contents = self.dataset.startswith(CONTENTS)
        with fetching(self.source):
            for line, document in enumerate(self.loaded.docs_iter(), 1):
                fields = _irds_fields(document, in_contents=in_contents)
                yield _record(self.source, line, fields)

    def topics(self, split: str) -> list[Topic]:
        """The questions of ``<dataset>/<split>``; see :meth:`Corpus.topics`."""
        dataset = self._split(split, "queries")
        with fetching(self.source):
            return [Topic(to_id(q.query_id), q.default_text()) for q in dataset.queries_iter()]

    def qrels(self, split: str) -> Qrels:
        """The judgements of ``<dataset>/<split>``; see :meth:`Corpus.qrels`."""
        dataset = self._split(split, "qrels")
        qrels: dict[str, dict[str, int]] = {}
        with fetching(self.source):
            for judgement in dataset.qrels_iter():
                qrels.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.relevance
        return qrels

    def _split(self, split: str, kind: str) -> Any:
        """The data set of a split: below this one; or this one, if there is none below."""
        import ir_datasets

        below = {
            name.removeprefix(f"{self.dataset}/"): name
            for name in ir_datasets.registry
            if name.startswith(f"{self.dataset}/") and ir_datasets.load(name).has(kind)
        }
        if split in below:
            return ir_datasets.load(below[split])
        if self.loaded.has(kind) and (not below or self.dataset.endswith(f"/{split}")):
            return self.loaded
        if not below:
            raise UserError(f"{self.source} has no {kind}; give a file of them instead of a split")
        raise unknown(f"split of {self.source}'s {kind}", split, sorted(below))


class HubCorpus(Corpus):
    """Passages of a data set on the Hugging Face hub, streamed; it has no topics or judgements.

    Rows are read as :func:`ccpretrieve.data.readers.to_passage` reads JSON lines.

    Args:
        dataset: Its name there, such as ``castorini/mr-tydi-corpus``; or a local folder of files.
        config: Which of its configurations, such as ``japanese``.
    """

    def __init__(self, dataset: str, config: str | None = None) -> None:
        if not dataset:
            raise UserError("hf: names no data set; write hf:<dataset> or hf:<dataset>:<config>")
        self.dataset = dataset
        self.config = config
        self.source = f"hf:{dataset}:{config}" if config else f"hf:{dataset}"
        self.name = slug(self.source)
        self.language = guess(config or dataset)
        self.topic_language = self.language

    def records(self) -> Iterator[Record]:
        """Stream the passages; see :meth:`Corpus.records`."""
        import datasets

        with fetching(self.source, datasets.exceptions.DatasetsError):
            splits = datasets.load_dataset(self.dataset, self.config, streaming=True)
            for line, row in enumerate(splits[self._passage_split(list(splits))], 1):
                yield _record(self.source, line, row)

    def _passage_split(self, splits: list[str]) -> str:
        """The split to read."""
        if len(splits) == 1:
            return splits[0]
        chosen = next((name for name in PASSAGE_SPLITS if name in splits), None)
        if chosen is None:
            raise UserError(
                f"{self.source}: none of the splits {', '.join(splits)} is called"
                f" {' or '.join(PASSAGE_SPLITS)}; save the passages as JSON lines and name the file"
            )
        logger.info("%s: reading split %s of %s", self.source, chosen, ", ".join(splits))
        return chosen

    def topics(self, split: str) -> list[Topic]:
        """None; see :meth:`Corpus.topics`."""
        raise UserError(f"{self.source} has passages only; give a file of topics with --topics")

    def qrels(self, split: str) -> Qrels:
        """None; see :meth:`Corpus.qrels`."""
        raise UserError(f"{self.source} has passages only; give a file of judgements with --qrels")


def _load_irds(dataset: str) -> Any:
    """The data set of a name; nothing is fetched yet."""
    import ir_datasets

    try:
        return ir_datasets.load(dataset)
    except KeyError:
        listing = "https://ir-datasets.com lists all"
        raise unknown("ir_datasets name", dataset, list(ir_datasets.registry), listing) from None


def _irds_fields(document: Any, *, in_contents: bool) -> dict[str, Any]:
    """The fields of a document of any of ir_datasets' classes, as ``to_passage`` takes them."""
    text = getattr(document, "text", getattr(document, "body", None))
    if in_contents:
        return {"id": document.doc_id, "contents": text}
    if text is None:
        return {"id": document.doc_id, "text": document.default_text()}
    return {"id": document.doc_id, "text": text, "title": getattr(document, "title", None)}


def _record(source: str, line: int, fields: Mapping[str, Any]) -> Record:
    """A record of a row, counted from 1."""
    try:
        return Record(to_passage(fields), source, line)
    except MalformedError as error:
        raise UserError(f"{source}:{line}: {error}") from error


@contextlib.contextmanager
def fetching(source: str, *failures: type[Exception]) -> Iterator[None]:
    """Say in one line what a library met while it fetched or read a data set."""
    kinds: tuple[type[Exception], ...] = (
        *(OSError, EOFError, RuntimeError, ValueError, LookupError),
        *failures,
    )
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries, line by line
    quiet = _Only(logging.ERROR)
    logging.getLogger("ir_datasets").addFilter(quiet)  # it sets its level when it first speaks
    try:
        yield
    except UserError:
        raise
    except MalformedError as error:
        raise UserError(f"{source}: {error}") from error
    except kinds as error:
        raise UserError(
            f"{source}: cannot be read: {type(error).__name__}: {_reason(error)}; check the name "
            "and the network, or fetch the files by hand and name their folder"
        ) from error
    finally:
        logging.getLogger("ir_datasets").removeFilter(quiet)


class _Only(logging.Filter):
    """Lets messages pass from a level on."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message passes."""
        return record.levelno >= self.level


def _reason(error: Exception) -> str:
    """What a library says, its first line, without the exceptions inside the exception."""
    first = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    line = (first.splitlines() or [""])[0].partition(" (Caused by")[0]
    return textwrap.shorten(line, 200, placeholder=" ...")
