"""Our scores on XQuAD against a second computation that shares no code with them.

    python -m benchmarks.check --data DIR --encoder DIR --languages en ar ru th zh
    python -m benchmarks.check --data DIR --encoder DIR --languages en ar ru th zh --pooled

Ours is the main job: encode, search, evaluate, by the functions of those commands. The other is
:mod:`benchmarks.independent`: transformers, numpy and pytrec_eval. Both encode as multilingual-e5
does: mean pooling, unit length, ``query: `` and ``passage: ``, title, space, text, cut at 256
tokens. With ``--pyserini`` the same index is also searched by Pyserini's ``FaissSearcher``.

Pooled, all languages' passages are one collection, ids prefixed by language, and the questions
of each language are asked of all of it; relevant is the passage in the question's own language.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.table import grid
from ccpretrieve import encode, search
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, EncodeConfig, Many
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.data.records import Qrels
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, make_directory
from ccpretrieve.retrieval.metrics import score
from ccpretrieve.retrieval.runfile import Run, read_run
from ccpretrieve.search_config import SearchConfig

METRICS = ("mrr@100", "recall@100", "ndcg@10")
HITS = 100
SAME = 1e-3  # scores further apart than this are not equal
E5: dict[str, Any] = {
    "pooling": "mean",
    "similarity": "cosine",
    "query_prefix": "query: ",
    "passage_prefix": "passage: ",
    "title": "join",
    "max_length": 256,
}


@dataclass(frozen=True, kw_only=True)
class CheckConfig(Config):
    """Compare our scores on XQuAD with an independent computation.

    Attributes:
        data: Folder with a folder in Mr.TyDi's layout for each language.
        encoder: A checkpoint directory of the multilingual-e5 kind.
        languages: Folders of --data.
        work: Where corpora, indexes and vectors are kept between calls.
        pooled: One collection of all languages' passages.
        pyserini: Search with Pyserini's FaissSearcher too.
    """

    data: Path
    encoder: Path
    languages: Annotated[tuple[str, ...], Many]
    work: Path = Path("runs/check")
    pooled: bool = False
    pyserini: bool = False


@dataclass(frozen=True)
class Comparison:
    """Scores by row and metric, from each way of computing them.

    Attributes:
        ways: Way -> row, such as a language -> metric -> score; the first is ours.
    """

    ways: Mapping[str, Mapping[str, Mapping[str, float]]]

    @property
    def furthest(self) -> float:
        """The largest difference between ours and another way."""
        ours, *others = self.ways.values()
        return max(
            abs(other[row][metric] - ours[row][metric])
            for other in others
            for row in ours
            for metric in METRICS
        )

    def __str__(self) -> str:
        head = ["", *(f"{metric} {way}" for metric in METRICS for way in self.ways)]
        rows = next(iter(self.ways.values()))
        body = [
            [row, *(f"{way[row][metric]:.4f}" for metric in METRICS for way in self.ways.values())]
            for row in rows
        ]
        verdict = "equal" if self.furthest <= SAME else "NOT EQUAL"
        return f"{grid([head, *body])}\nfurthest apart: {self.furthest:.1e}: {verdict} to {SAME}"


def run(config: CheckConfig) -> Comparison:
    """Compute the scores in each way.

    Raises:
        UserError: If the data or the encoder cannot be read.
    """
    from benchmarks import independent

    make_directory(config.work)
    corpora = {code: FolderCorpus(config.data / code) for code in config.languages}
    runs, through = _searched(config, corpora)
    qrels = {code: _relevant(corpora[code], code, config) for code in corpora}
    theirs = independent.scores(
        config.data,
        config.encoder,
        list(config.languages),
        pooled=config.pooled,
        cache=config.work / "vectors",
    )
    ways: dict[str, Mapping[str, Mapping[str, float]]] = {
        "ours": _scores(runs, qrels),
        "independent": {c: theirs[_row(config, c)] for c in runs},
    }
    if config.pyserini:
        ways["Pyserini"] = _scores(through, qrels)
    return Comparison(ways)


def _row(config: CheckConfig, code: str) -> str:
    return f"{code} same" if config.pooled else code


def _scores(runs: Mapping[str, Run], qrels: Mapping[str, Qrels]) -> dict[str, Mapping[str, float]]:
    return {code: score(qrels[code], run, METRICS).mean for code, run in runs.items()}


def _relevant(corpus: FolderCorpus, code: str, config: CheckConfig) -> Qrels:
    prefix = f"{code}:" if config.pooled else ""
    return {
        topic: {prefix + docid: grade for docid, grade in judged.items()}
        for topic, judged in corpus.qrels("test").items()
    }


def _searched(
    config: CheckConfig, corpora: Mapping[str, FolderCorpus]
) -> tuple[dict[str, Run], dict[str, Run]]:
    """Runs of each language by our search and, where asked for, by Pyserini's."""
    ours: dict[str, Run] = {}
    theirs: dict[str, Run] = {}
    pool = _pool(config, corpora) if config.pooled else None
    for code, corpus in corpora.items():
        index = _encoded(config, pool or config.data / code)
        made = search.run(
            SearchConfig(
                index=index,
                topics=str(config.data / code),
                output=config.work / f"{index.name}.{code}.trec",
                hits=HITS,
                quiet=True,
            )
        )
        assert isinstance(made, Path)
        ours[code] = read_run(made)
        if config.pyserini:
            theirs[code] = _by_pyserini(index, corpus)
    return ours, theirs


def _encoded(config: CheckConfig, corpus: Path) -> Path:
    name = f"{corpus.stem}.{len(config.languages)}" if config.pooled else corpus.name
    index = encode.run(
        EncodeConfig(
            corpus=str(corpus),
            encoder=str(config.encoder),
            output=config.work / f"{name}.index",
            quiet=True,
            **E5,
        )
    )
    assert isinstance(index, Path)
    return index


def _pool(config: CheckConfig, corpora: Mapping[str, FolderCorpus]) -> Path:
    """One file of all languages' passages, each id prefixed by its language."""
    path = config.work / "pooled.jsonl"
    with atomic(path) as stream:
        for code, corpus in corpora.items():
            for passage, _, _ in corpus.records():
                record = {"docid": f"{code}:{passage.id}", "title": passage.title}
                line = json.dumps({**record, "text": passage.text}, ensure_ascii=False)
                stream.write(f"{line}\n".encode())
    return path


def _by_pyserini(index: Path, corpus: FolderCorpus) -> Run:
    from ccpretrieve.retrieval.meta import open_encoder
    from ccpretrieve.retrieval.pyserini_plugin import QueryEncoder, encoder_classes

    encoder_classes()  # starts the Java that importing Pyserini needs
    from pyserini.search.faiss import FaissSearcher

    searcher = FaissSearcher(str(index), QueryEncoder(open_encoder(index, None)))
    topics = corpus.topics("test")
    hits = searcher.batch_search([t.text for t in topics], [t.id for t in topics], k=HITS)
    return {topic: {hit.docid: float(hit.score) for hit in found} for topic, found in hits.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`CheckConfig`."""
    command(_checked, CheckConfig, "benchmarks.check", argv)


def _checked(config: CheckConfig) -> Comparison:
    """As :func:`run`, but scores that differ are an error, so that a script notices."""
    comparison = run(config)
    if comparison.furthest > SAME:
        raise UserError(f"the scores differ:\n{comparison}")
    return comparison


if __name__ == "__main__":
    main()
