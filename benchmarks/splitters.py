"""Sentence splitters on documents whose sentences are known.

    python -m benchmarks.splitters --data DIR --languages en ja th hi ar ru fi zh

The sentences of a document are joined, by a space or by none where the script has none, and each
splitter looks for the borders again. A border is counted in characters that are not white space, so
that it does not matter on which side a splitter leaves the space. Precision, recall and F1 are in
per cent of all borders within documents; speed is in million characters a CPU second.

``--data`` takes one folder, or several, of ``{"lang", "sentences"}`` lines. Splitters that are not
installed are left out: ``pip install sentencex pysbd blingfire icu4py``.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Any

from benchmarks.table import grid
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, Many
from ccpretrieve.data import sentences
from ccpretrieve.data.documents import DocumentSource, open_documents
from ccpretrieve.errors import UserError

UNSPACED = {"ja", "zh"}
OURS = "ours"

Splitter = Callable[[str], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class SplittersConfig(Config):
    """Compare sentence splitters.

    Attributes:
        data: Folders of documents that are split into sentences.
        languages: Codes of languages; those a folder lacks are left out.
        documents: Documents read of each language at most.
    """

    data: Annotated[tuple[Path, ...], Many]
    languages: Annotated[tuple[str, ...], Many] = ("en", "ja", "th", "hi", "ar", "ru", "fi", "zh")
    documents: int = 100


@dataclass
class Score:
    """How a splitter did.

    Attributes:
        found: Borders it set where there is one.
        set: Borders it set.
        given: Borders there are.
        characters: In what it read.
        seconds: It took.
        changed: Documents whose characters were not all there afterwards.
    """

    found: int = 0
    set: int = 0
    given: int = 0
    characters: int = 0
    seconds: float = 0.0
    changed: int = 0

    @property
    def cells(self) -> list[str]:
        """Precision, recall, F1 and speed."""
        if not self.given:
            return ["-"] * 4
        precision, recall = self.found / max(self.set, 1), self.found / self.given
        f1 = 2 * self.found / (self.set + self.given)
        speed = self.characters / max(self.seconds, 1e-9) / 1e6
        return [*(f"{100 * x:.1f}" for x in (precision, recall, f1)), f"{speed:.2f}"]


def run(config: SplittersConfig) -> str:
    """Measure all that are installed.

    Raises:
        UserError: If a folder has no documents.
    """
    rows = [["data", "language", "splitter", "precision", "recall", "F1", "M characters/s"]]
    for folder in config.data:
        sources = open_documents(str(folder))
        for code in config.languages:
            if code in sources:
                documents = list(_read(sources[code], config.documents))
                for name, splitter in _splitters(code).items():
                    score = _measure(splitter, documents, "" if code in UNSPACED else " ")
                    note = f" ({score.changed} changed)" if score.changed else ""
                    rows.append([folder.name, code, name + note, *score.cells])
    return grid(rows)


def _read(source: DocumentSource, most: int) -> Iterator[tuple[str, ...]]:
    """The sentences of the first documents."""
    for document, _ in islice(source.documents(), most):
        if not document.sentences:
            raise UserError(f"{document.where}: no sentences; the borders must be known")
        yield document.sentences


def _borders(pieces: Sequence[str]) -> list[int]:
    """Characters other than white space up to the end of each piece."""
    return list(accumulate(len("".join(piece.split())) for piece in pieces))


def _measure(splitter: Splitter, documents: Sequence[tuple[str, ...]], between: str) -> Score:
    """Join and split all documents."""
    score = Score()
    splitter("Once. Before.")  # loads what it loads late
    for given in documents:
        text = between.join(given)
        start = time.process_time()
        pieces = splitter(text)
        score.seconds += time.process_time() - start
        score.characters += len(text)
        borders, true = _borders(pieces), _borders(given)
        score.changed += borders[-1:] != true[-1:]
        end = {0, true[-1]}
        score.found += len((set(borders) & set(true)) - end)
        score.set += len(set(borders) - end)
        score.given += len(set(true) - end)
    return score


def _splitters(code: str) -> dict[str, Splitter]:
    """All splitters that are installed, for one language."""
    makers = {"sentencex": _sentencex, "pysbd": _pysbd, "blingfire": _blingfire, "icu4py": _icu}
    there = [name for name in makers if importlib.util.find_spec(name)]
    return {**{name: makers[name](code) for name in there}, OURS: _ours(code)}


def _ours(code: str) -> Splitter:
    return lambda text: sentences.split(text, code)


def _sentencex(code: str) -> Splitter:
    module: Any = importlib.import_module("sentencex")
    return lambda text: list(module.segment(code, text))


def _pysbd(code: str) -> Splitter:
    """With English rules for languages it does not know."""
    languages: Any = importlib.import_module("pysbd.languages")
    known = code if code in languages.LANGUAGE_CODES else "en"
    module: Any = importlib.import_module("pysbd")
    segmenter = module.Segmenter(language=known, clean=False)
    return lambda text: list(segmenter.segment(text))


def _blingfire(code: str) -> Splitter:
    """The same rules for every language."""
    module: Any = importlib.import_module("blingfire")
    return lambda text: module.text_to_sentences(text).split("\n")


def _icu(code: str) -> Splitter:
    module: Any = importlib.import_module("icu4py.breakers")
    return lambda text: list(module.SentenceBreaker(text, code))


def main(argv: Sequence[str] | None = None) -> None:
    """Compare the splitters named on the line."""
    command(run, SplittersConfig, "benchmarks.splitters", argv)


if __name__ == "__main__":
    main()
