"""Search an index: ``python -m ccpretrieve.search --corpus mrtydi-ja --split test``.

    topics --Encoder--> vectors --Index--> hits --> runs/<topics>.<tag>.trec

A question on the line is answered on the spot, with the passages' text. Without either, questions
are read from a prompt or from standard input.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve.commandline import command
from ccpretrieve.config import SearchConfig
from ccpretrieve.data.languages import language
from ccpretrieve.data.records import Topic
from ccpretrieve.errors import UserError
from ccpretrieve.files import slug
from ccpretrieve.retrieval import names

if TYPE_CHECKING:
    from ccpretrieve.retrieval.faiss_index import Hit, Index

SPLIT = "test"  # where nobody names one
HITS_OF_A_RUN, HITS_OF_A_QUESTION = 100, 5
WIDTH = 300  # characters of a passage shown


def run(config: SearchConfig) -> "Path | str | Iterator[str]":
    """Search topics into a run, or answer questions.

    Returns:
        The run file; or for a typed question its passages as text; or for questions on standard
        input an iterator over such texts.

    Raises:
        UserError: If there is no such index, or it was made with another encoder or settings.
    """
    spoken = language(config.lang).code if config.lang else ""
    config = dataclasses.replace(config, lang=spoken or None)
    folder = find_index(config)
    topics = _topics(config)
    if topics is None and config.question is None:
        if sys.stdin is None:
            raise UserError("standard input is closed; type a question, or give --topics")
        return _answers(config, _open(config, folder))
    index = _open(config, folder)
    if config.question is not None:
        return show(_answer(config, index, config.question))
    assert topics is not None
    return search_topics(config, index, *topics)


def find_index(config: SearchConfig) -> Path:
    """The index folder that a search means.

    Raises:
        UserError: If there is none, with the command that makes it; or several, with their names.
    """
    if config.index is not None:
        return config.index
    corpus = _corpus_name(config) if config.corpus else None
    found = names.indexes(corpus)
    if config.tag or config.encoder:
        tag = config.tag or names.tag_of(config.encoder or "")
        tagged = [path for path in found if path.name.endswith(f".{tag}")]
        if config.tag and found and not tagged:
            listed = ", ".join(map(str, found))
            raise UserError(f"no index is tagged {tag!r}; there are {listed}")
        found = tagged or found
    if not found:
        what = config.corpus or "sample-en"
        raise UserError(
            f"no index{f' of {config.corpus}' if config.corpus else ''} in {names.INDEXES}/; "
            f"make one: python -m ccpretrieve.encode --corpus {what}"
        )
    if corpus is not None and len(found) > 1:  # of one set of embeddings the exact index
        found = [path for path in found if names.kind_of(path) == "Flat"] or found
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise UserError(f"several indexes: {listed}; choose one with --index")
    return found[0]


def _corpus_name(config: SearchConfig) -> str:
    from ccpretrieve.data.registry import open_corpus

    assert config.corpus is not None
    return open_corpus(config.corpus, config.data_dir).name


def _open(config: SearchConfig, folder: Path) -> "Index":
    from ccpretrieve.retrieval.dense import open_index

    return open_index(
        folder,
        config.encoder,
        calibration=config.calibration,
        device=config.device,
        dtype=config.dtype,
        batch_tokens=config.batch_tokens,
    )


def _topics(config: SearchConfig) -> tuple[str, list[Topic], str] | None:
    """Name, questions and language of the topics asked for; None for a typed question."""
    from ccpretrieve.data.readers import read_topics
    from ccpretrieve.data.registry import open_corpus

    if config.question is not None:
        return None
    if config.topics is not None and Path(config.topics).is_file():
        path = Path(config.topics)
        if config.split is not None:
            raise UserError(
                f"--split {config.split}: {path} is a file of topics; leave --split out"
            )
        return names.topics_name(path), read_topics(path), config.lang or ""
    source = config.topics or config.corpus
    if source is None:
        return None
    corpus, split = open_corpus(source, config.data_dir), config.split or SPLIT
    topics = corpus.topics(split)
    return f"{corpus.name}.{split}", topics, config.lang or corpus.topic_language


def search_topics(
    config: SearchConfig, index: "Index", name: str, topics: Sequence[Topic], language: str
) -> Path:
    """Search every topic and write the run with its sidecar.

    Args:
        config: Where from and where to.
        index: The open index.
        name: Of the topics, for the file name.
        topics: The questions.
        language: Of the questions that do not state their own, for a calibration.

    Returns:
        The run file.
    """
    from ccpretrieve.retrieval.dense import Dense
    from ccpretrieve.retrieval.runfile import write_run

    tag = names.check_tag(config.tag or _tag(index))
    path = config.output or names.run_file(name, tag)
    _spare_input(config, index, path)
    hits = config.hits or HITS_OF_A_RUN
    dense = Dense(index, language)
    ranking = dense.search(topics, hits)
    write_run(path, ranking, tag, _made_by(config, index, tag, hits, dense.truncated))
    return path


def _spare_input(config: SearchConfig, index: "Index", output: Path) -> None:
    """Fail if the run would be written over the topics or into the index."""
    topics = Path(config.topics) if config.topics else None
    if output.is_dir():
        raise UserError(f"--output {output}: a folder; name a file")
    inside = output.resolve().is_relative_to(index.path.resolve())
    if inside or (topics is not None and output.resolve() == topics.resolve()):
        raise UserError(f"--output {output}: is what is searched; choose another file")


def _tag(index: "Index") -> str:
    """Last part of the index' name: ``mrtydi-ja.ccp`` was made with ``ccp``."""
    corpus = index.meta["corpus"]["name"] if index.meta else ""
    return slug(index.path.resolve().name.removeprefix(f"{corpus}."))


def _made_by(
    config: SearchConfig, index: "Index", tag: str, hits: int, truncated: int
) -> dict[str, Any]:
    return {
        "topics": config.topics or config.corpus,
        "split": None if Path(config.topics or "").is_file() else config.split or SPLIT,
        "corpus": index.meta["corpus"] if index.meta else None,
        "index": str(index.path),
        "kind": index.meta["index"]["kind"] if index.meta else None,
        "encoder": index.meta["encoder"] if index.meta else index.encoder.name,
        "tag": tag,
        "hits": hits,
        "truncated_questions": truncated,
    }


def _answer(config: SearchConfig, index: "Index", question: str) -> "list[Hit]":
    hits = config.hits or HITS_OF_A_QUESTION
    return index.search([question], hits, language=config.lang or "")[0]


def _answers(config: SearchConfig, index: "Index") -> Iterator[str]:
    """Answer questions from a prompt, or from standard input, until it ends."""
    for question in _questions():
        yield show(_answer(config, index, question))


def _questions() -> Iterator[str]:
    """Questions typed at a prompt, or the lines of standard input, blank ones left out.

    Raises:
        UserError: Naming the line, if it is not text in the encoding of standard input.
    """
    prompt = sys.stdin.isatty()
    raw = getattr(sys.stdin, "buffer", None)  # bytes, so that a wrong one has its line
    for number in itertools.count(1):
        if prompt:
            sys.stderr.write("question> ")
            sys.stderr.flush()
        line: str | bytes = sys.stdin.readline() if raw is None else raw.readline()
        if not line:
            return
        if isinstance(line, bytes):
            try:
                line = line.decode(sys.stdin.encoding).removeprefix("\ufeff")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"standard input:{number}: byte {error.start + 1} is not {sys.stdin.encoding}; "
                    "convert it"
                ) from error
        if line.strip():
            yield line.strip()


def show(hits: "Sequence[Hit]") -> str:
    """Hits as text: rank, score, id, title, and the beginning of the passage."""
    lines = []
    for rank, hit in enumerate(hits, start=1):
        title = f"  {hit.passage.title}" if hit.passage and hit.passage.title else ""
        lines.append(f"{rank:>2}. {hit.score:.4f}  {hit.docid}{title}")
        if hit.passage:
            text = " ".join(hit.passage.text.split())
            lines.append(f"    {text[:WIDTH]}{'...' if len(text) > WIDTH else ''}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`SearchConfig`."""
    command(run, SearchConfig, "search", argv)


if __name__ == "__main__":
    main()
