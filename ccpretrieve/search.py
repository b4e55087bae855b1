"""Search an index: ``python -m ccpretrieve.search --corpus mrtydi-ja --split test``.

    topics --Encoder--> vectors --Index--> hits --> runs/<topics>.<tag>.trec
    topics --BM25-------------------------> hits --> runs/<topics>.bm25.trec
    with --hybrid bm25: both, fused              --> runs/<topics>.<tag>-bm25.trec

A question on the line is answered on the spot, with the passages' text where an embedding index has
it. Without either, questions are read from a prompt or from standard input.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ccpretrieve.commandline import command
from ccpretrieve.config import flag_of
from ccpretrieve.data.languages import language
from ccpretrieve.data.records import Qrels, Topic
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval import bm25, names
from ccpretrieve.search_config import RRF, SearchConfig

if TYPE_CHECKING:
    from ccpretrieve.retrieval.bm25 import Bm25
    from ccpretrieve.retrieval.faiss_index import Hit, Index
    from ccpretrieve.retrieval.hybrid import Hybrid

    Opened = Index | Bm25 | Hybrid

SPLIT = "test"  # where nobody names one
HITS_OF_A_RUN, HITS_OF_A_QUESTION = 100, 5
WIDTH = 300  # characters of a passage shown


def run(config: SearchConfig) -> "Path | str | Iterator[str]":
    """Search topics into a run, or answer questions.

    Returns:
        The run file; or for a typed question its passages as text; or for questions on standard
        input an iterator over such texts.

    Raises:
        UserError: If there is no such index, it was made with another encoder or settings, or two
            that are to be fused are of different passages.
    """
    spoken = language(config.lang).code if config.lang else ""
    config = dataclasses.replace(config, lang=spoken or None)
    folder = find_index(config)
    if config.question is not None:
        return show(_answer(config, _open(config, folder), config.question))
    topics = _topics(config)
    if topics is None:
        if sys.stdin is None:
            raise UserError("standard input is closed; type a question, or give --topics")
        return _answers(config, _open(config, folder))
    judged = _judged(config, topics[1], config.tune_split) if config.tune_split else None
    index = _open(config, folder)
    if judged is not None:
        _tune(index, *judged, hits=config.hits or HITS_OF_A_RUN)
    return search_topics(config, index, *topics)


def find_index(config: SearchConfig) -> Path:
    """The index folder that a search means.

    Raises:
        UserError: If there is none, with the command that makes it; or several, with their names.
    """
    if config.index is not None:
        return config.index
    corpus = _corpus_name(config) if config.corpus else None
    lexical = config.tag == bm25.TAG and config.hybrid is None
    found = names.lexical_indexes(corpus) if lexical else names.indexes(corpus)
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
            f"make one: python -m ccpretrieve.{'index --lexical' if lexical else 'encode'} "
            f"--corpus {what}"
        )
    if corpus is not None and not lexical:  # of one set of embeddings the exact index
        found = [path for path in found if names.kind_of(path) == "Flat"] or found
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise UserError(f"several indexes: {listed}; choose one with --index")
    return found[0]


def _corpus_name(config: SearchConfig) -> str:
    from ccpretrieve.data.registry import open_corpus

    assert config.corpus is not None
    return open_corpus(config.corpus, config.data_dir).name


def _open(config: SearchConfig, folder: Path) -> "Opened":
    """Open the index at ``folder``, and with ``--hybrid`` the one that it is fused with."""
    lexical = bm25.is_index(folder)
    _refuse_idle(config, lexical)
    if lexical:
        return bm25.Bm25.open(folder, config.k1, config.b)
    if config.hybrid is not None:
        return _open_hybrid(config, folder, config.hybrid)
    return _open_dense(config, folder)


def _refuse_idle(config: SearchConfig, lexical: bool) -> None:
    """Fail on settings of the kind of index that is not searched."""
    idle: tuple[str, ...] = () if config.hybrid else ("k1", "b")
    if lexical:
        idle = ("encoder", "calibration", "batch_tokens", "device", "dtype", "hybrid")
    for name in idle:
        if (value := getattr(config, name)) is not None:
            kind = "an embedding" if lexical else "a BM25"
            raise UserError(f"--{flag_of(name)} {value}: goes with {kind} index only")


def _open_dense(config: SearchConfig, folder: Path) -> "Index":
    from ccpretrieve.retrieval.dense import open_index

    return open_index(
        folder,
        config.encoder,
        calibration=config.calibration,
        device=config.device,
        dtype=config.dtype,
        batch_tokens=config.batch_tokens,
    )


def _open_hybrid(config: SearchConfig, folder: Path, name: str) -> "Hybrid":
    """Open both indexes; what is wrong with BM25's is said before an encoder is loaded."""
    from ccpretrieve.retrieval import hybrid, meta
    from ccpretrieve.retrieval.dense import Dense

    of_dense = meta.read(folder)
    corpus = of_dense["corpus"] if of_dense else {}
    named = corpus.get("name") or (_corpus_name(config) if config.corpus else "")
    place = hybrid.find_lexical(name, named, config.corpus or named)
    if place is None:
        spoken = corpus.get("language") or config.lang
        if not spoken:
            raise UserError(f"--hybrid {name}: say the language of its passages by --lang")
        lexical = bm25.Bm25.prebuilt(name, spoken, config.k1, config.b)
    else:
        of_lexical = bm25.read(place)
        if of_dense is not None:
            hybrid.refuse_another_corpus(folder, of_dense, place, of_lexical)
        lexical = bm25.Bm25.open(place, config.k1, config.b)
    dense = Dense(_open_dense(config, folder))
    return hybrid.Hybrid(dense, lexical, config.fusion or RRF, config.weight)


def _judged(
    config: SearchConfig, searched: Sequence[Topic], split: str
) -> tuple[list[Topic], Qrels, dict[str, str]]:
    """Topics and judgements that a weight is tuned on, and what they are called.

    Args:
        config: What was asked for.
        searched: The questions to be searched, which are not to be tuned on.
        split: Of the corpus of these topics, or of that to be searched.
    """
    from ccpretrieve.data.registry import open_corpus
    from ccpretrieve.retrieval.hybrid import judged

    named = [name for name in (config.topics, config.corpus) if name and not Path(name).is_file()]
    if not named:
        raise UserError(f"--tune-split {split}: of which corpus? name it by --corpus")
    corpus = open_corpus(named[0], config.data_dir)
    qrels = corpus.qrels(split)
    known = judged(corpus.topics(split), qrels, searched, f"--tune-split {split}")
    topics = _spoken(known, config.lang or corpus.topic_language)
    return topics, qrels, {"corpus": corpus.name, "split": split}


def _tune(
    index: "Opened", topics: Sequence[Topic], qrels: Qrels, where: dict[str, str], *, hits: int
) -> None:
    from ccpretrieve.retrieval.hybrid import Hybrid

    assert isinstance(index, Hybrid), "--tune-split goes with --hybrid"
    index.tune(topics, qrels, where, hits)


def _spoken(topics: Sequence[Topic], language: str) -> list[Topic]:
    """Topics, each with its language."""
    return [dataclasses.replace(each, language=each.language or language) for each in topics]


def _topics(config: SearchConfig) -> tuple[str, list[Topic], str] | None:
    """Name, questions and language of the topics asked for; None if none are."""
    from ccpretrieve.data.readers import read_topics
    from ccpretrieve.data.registry import open_corpus

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
    config: SearchConfig, index: "Opened", name: str, topics: Sequence[Topic], language: str
) -> Path:
    """Search every topic and write the run with its sidecar.

    Args:
        config: Where from and where to.
        index: The open index, or two of them.
        name: Of the topics, for the file name.
        topics: The questions.
        language: Of the questions that do not state their own, for a calibration.

    Returns:
        The run file.
    """
    from ccpretrieve.retrieval.dense import Dense
    from ccpretrieve.retrieval.faiss_index import Index
    from ccpretrieve.retrieval.hybrid import describe, folders, tag_of
    from ccpretrieve.retrieval.runfile import digest, write_run

    searcher = Dense(index) if isinstance(index, Index) else index
    tag = tag_of(searcher, config.tag)
    path = config.output or names.run_file(name, tag)
    _spare_input(config, folders(searcher), path)
    hits = config.hits or HITS_OF_A_RUN
    ranking = searcher.search(_spoken(topics, language), hits)
    made_by = {
        "topics": config.topics or config.corpus,
        "split": None if Path(config.topics or "").is_file() else config.split or SPLIT,
        "questions": digest(topics),
        "tag": tag,
        "hits": hits,
        **describe(searcher, hits),
    }
    write_run(path, ranking, tag, made_by)
    return path


def _spare_input(config: SearchConfig, indexes: Sequence[Path], output: Path) -> None:
    """Fail if the run would be written over the topics or into an index."""
    topics = Path(config.topics) if config.topics else None
    if output.is_dir():
        raise UserError(f"--output {output}: a folder; name a file")
    inside = any(output.resolve().is_relative_to(index.resolve()) for index in indexes)
    if inside or (topics is not None and output.resolve() == topics.resolve()):
        raise UserError(f"--output {output}: is what is searched; choose another file")


def _answer(config: SearchConfig, index: "Opened", question: str) -> "Sequence[Hit]":
    from ccpretrieve.retrieval.faiss_index import Hit, Index
    from ccpretrieve.retrieval.hybrid import Hybrid

    hits, spoken = config.hits or HITS_OF_A_QUESTION, config.lang or ""
    if isinstance(index, Index):
        return index.search([question], hits, language=spoken)[0]
    if isinstance(index, Hybrid):
        return index.answer(question, hits, spoken)
    found = index.search([Topic("typed", question, spoken)], hits)["typed"]
    return [Hit(docid, score, -1, None) for docid, score in found.items()]


def _answers(config: SearchConfig, index: "Opened") -> Iterator[str]:
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
