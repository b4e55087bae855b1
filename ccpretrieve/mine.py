"""Mine hard negatives: ``python -m ccpretrieve.mine --corpus nq --from bm25 --output F``.

    topics --BM25, or an index--> hits --less positives, answers, copies--> negatives --> DPR's JSON

Every question with a relevant passage becomes a line that ``finetune --train`` reads; beside the
file lies what made it and how many candidates were left out for which reason. The corpus is read
twice after the search, once to look at the candidates and once for the text of those chosen: only
that is held. BM25's index is made in ``indexes/<corpus>.bm25`` if it is not there.
"""

import hashlib
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve.commandline import command
from ccpretrieve.config import flag_of
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.languages import language
from ccpretrieve.data.readers import read_answers, read_qrels, read_topics
from ccpretrieve.data.records import Passage, Qrels, Topic
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, make_directory, write_json
from ccpretrieve.mine_config import BM25, MineConfig
from ccpretrieve.values import plain

if TYPE_CHECKING:
    from ccpretrieve.retrieval.bm25 import Bm25
    from ccpretrieve.retrieval.dense import Dense
    from ccpretrieve.retrieval.mining import Pool

logger = logging.getLogger("ccpretrieve.mine")

SPLIT = "train"  # where nobody names one
BLOCK = 1024  # questions that are searched together
#: What is counted.
QUESTIONS, NEGATIVES, FEWER, NO_HITS, WITHOUT, LOST = COUNTED = (
    *("questions", "negatives", "questions with fewer negatives than asked"),
    *("questions without hits", "questions left out, having no positive"),
    "positives that the corpus does not have",
)


@dataclass(frozen=True)
class Asked:
    """A question that has relevant passages.

    Attributes:
        topic: The question.
        positives: Ids of those passages, the highest grade first.
        language: Code of its language; empty if unknown.
        answers: Strings, any of which answers it; empty if unknown.
    """

    topic: Topic
    positives: tuple[str, ...]
    language: str
    answers: tuple[str, ...]


def run(config: MineConfig) -> Path:
    """Search the questions, choose negatives, write them.

    Returns:
        The file written.

    Raises:
        UserError: If corpus, questions, judgements or index are not to be had, no question has a
            relevant passage, or the index names passages that the corpus does not have.
    """
    from ccpretrieve.retrieval.mining import Pool, Rules

    _check_output(config)
    make_directory(config.output.parent)
    corpus = open_corpus(config.corpus, config.data_dir)
    asked, without = _asked(config, corpus)
    searcher = _searcher(config, corpus)
    rules = Rules(
        *(config.negatives, config.skip_top, config.ratio, config.margin),
        *(config.choice, config.seed),
    )
    pool = Pool(rules)
    for block, hits, best in _searched(config, searcher, asked):
        for each in block:
            pool.add(each.topic.id, each.positives, hits[each.topic.id], best.get(each.topic.id))
    pool.look(corpus.records(), {each.topic.id: each.answers for each in asked})
    _check_same_corpus(config, corpus, pool)
    reasons: Counter[str] = Counter()
    chosen = [pool.choose(number, reasons) for number in range(len(asked))]
    counts = Counter({WITHOUT: without, NO_HITS: sum(not len(q.passages) for q in pool.questions)})
    _write(config, corpus, list(zip(asked, chosen, strict=True)), counts, reasons, searcher.meta)
    return config.output


def _check_output(config: MineConfig) -> None:
    """Fail if the output cannot be a file, or would take the place of what is read."""
    output = config.output
    if output.is_dir():
        raise UserError(f"--output {output}: a folder; name a file")
    for read in (config.corpus, config.topics, config.qrels, config.answers):
        if read is not None and Path(read).resolve() == output.resolve():
            raise UserError(f"--output {output}: is what is read; choose another file")


# -- what is read --


def _asked(config: MineConfig, corpus: Corpus) -> tuple[list[Asked], int]:
    """The questions with relevant passages, and how many questions have none."""
    topics, spoken, source = _topics(config, corpus)
    qrels = _qrels(config, source)
    answers = _answers(config, topics)
    asked = []
    for topic in topics:
        graded = qrels.get(topic.id, {}).items()
        best_first = sorted((item for item in graded if item[1] > 0), key=lambda item: -item[1])
        if best_first:
            positives = tuple(passage for passage, _ in best_first)
            known = answers.get(topic.id, ())
            asked.append(Asked(topic, positives, topic.language or spoken, known))
    if not asked:
        raise UserError(
            f"none of {len(topics)} questions has a relevant passage; are --topics and --qrels of "
            "one split?"
        )
    return asked, len(topics) - len(asked)


def _is_file(name: str | None) -> bool:
    return name is not None and Path(name).is_file()


def _topics(config: MineConfig, corpus: Corpus) -> tuple[list[Topic], str, Corpus]:
    """The questions, their language, and the corpus that may hold their judgements."""
    told = language(config.lang).code if config.lang else ""
    if config.split is not None and _is_file(config.topics) and _is_file(config.qrels):
        raise UserError(f"--split {config.split}: --topics and --qrels are files; leave it out")
    if _is_file(config.topics):
        return read_topics(Path(config.topics or "")), told or corpus.topic_language, corpus
    source = open_corpus(config.topics, config.data_dir) if config.topics else corpus
    return source.topics(config.split or SPLIT), told or source.topic_language, source


def _qrels(config: MineConfig, source: Corpus) -> Qrels:
    if _is_file(config.qrels):
        return read_qrels(Path(config.qrels or ""))
    if config.qrels is not None:
        source = open_corpus(config.qrels, config.data_dir)
    return source.qrels(config.split or SPLIT)


def _answers(config: MineConfig, topics: Sequence[Topic]) -> dict[str, tuple[str, ...]]:
    if config.answers is None:
        return {}
    answers = {each.topic.id: each.answers for each in read_answers(config.answers)}
    if not any(topic.id in answers for topic in topics):
        raise UserError(f"--answers {config.answers}: none of its ids is a question's")
    return answers


# -- the search --


def _searcher(config: MineConfig, corpus: Corpus) -> "Bm25 | Dense":
    if config.from_ != BM25:
        from ccpretrieve.retrieval.dense import Dense, open_index

        index = open_index(
            Path(config.from_),
            config.encoder,
            calibration=config.calibration,
            device=config.device,
            dtype=config.dtype,
            batch_tokens=config.batch_tokens,
        )
        return Dense(index)
    from ccpretrieve.retrieval import bm25, names

    folder = names.index_folder(corpus.name, bm25.TAG)
    threads = os.cpu_count() or 1
    written = corpus.language or (language(config.lang).code if config.lang else "")
    return bm25.Bm25.open(bm25.build(corpus, folder, language=written, threads=threads))


def _searched(
    config: MineConfig, searcher: "Bm25 | Dense", asked: Sequence[Asked]
) -> Iterator[tuple[Sequence[Asked], Mapping[str, Mapping[str, float]], dict[str, float]]]:
    """Questions, their hits, and where a rule asks for it the score of their best positive."""
    from tqdm import tqdm

    quiet = config.quiet or not sys.stderr.isatty()
    with tqdm(total=len(asked), unit=" questions", disable=quiet, leave=False) as bar:
        for start in range(0, len(asked), BLOCK):
            block = asked[start : start + BLOCK]
            topics = [replace(each.topic, language=each.language) for each in block]
            hits = searcher.search(topics, config.depth)
            compared = config.ratio is not None or config.margin is not None
            yield block, hits, _best(searcher, topics, block, hits) if compared else {}
            bar.update(len(block))


def _best(
    searcher: "Bm25 | Dense",
    topics: Sequence[Topic],
    block: Sequence[Asked],
    hits: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
    """Score of the best positive of each question; those that were not found are scored now."""
    lost = {
        each.topic.id: [passage for passage in each.positives if passage not in hits[each.topic.id]]
        for each in block
    }
    scored = searcher.scores([topic for topic in topics if lost[topic.id]], lost)
    best = {}
    for each in block:
        known = {**hits[each.topic.id], **scored.get(each.topic.id, {})}
        scores = [known[passage] for passage in each.positives if passage in known]
        if scores:
            best[each.topic.id] = max(scores)
    return best


def _check_same_corpus(config: MineConfig, corpus: Corpus, pool: "Pool") -> None:
    found = {int(number) for asked in pool.questions for number in asked.passages}
    if missing := pool.missing(sorted(found)):
        raise UserError(
            f"--from {config.from_}: names {len(missing)} passages that {corpus.name} does not "
            f"have, such as {missing[0]}; it is of another corpus"
        )


# -- what is written --


def _write(
    config: MineConfig,
    corpus: Corpus,
    mined: Sequence[tuple[Asked, Sequence[tuple[str, float]]]],
    counts: Counter[str],
    reasons: Mapping[str, int],
    index: Mapping[str, Any] | None,
) -> None:
    """Fetch the text of what was chosen; write the file and what made it."""
    from ccpretrieve.retrieval.runfile import sidecar_path

    texts = _texts(corpus, mined)
    digest = hashlib.sha256()
    with atomic(config.output) as stream:
        for asked, negatives in mined:
            positives = [texts[passage] for passage in asked.positives if passage in texts]
            counts[LOST] += len(asked.positives) - len(positives)
            if not positives:
                counts[WITHOUT] += 1
                continue
            counts[QUESTIONS] += 1
            counts[NEGATIVES] += len(negatives)
            counts[FEWER] += len(negatives) < config.negatives
            line = _line(asked, positives, [(texts[docid], score) for docid, score in negatives])
            digest.update(line)
            stream.write(line)
        if not counts[QUESTIONS]:
            raise UserError(
                f"{corpus.name} has none of the relevant passages; is it the corpus judged?"
            )
        made = {
            **{flag_of(name): plain(value) for name, value in vars(config).items()},
            "index": index,
            "counts": {name: counts[name] for name in COUNTED},
            "left out": dict(sorted(reasons.items())),
            "sha256": digest.hexdigest(),
        }
        write_json(sidecar_path(config.output), made)
    logger.info("%s: %s", config.output, _listed({name: counts[name] for name in COUNTED}))
    logger.info("hits that are no negatives: %s", _listed(reasons) or "none")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _texts(
    corpus: Corpus, mined: Sequence[tuple[Asked, Sequence[tuple[str, float]]]]
) -> dict[str, Passage]:
    """The positives and negatives by id, in one pass; the first passage of an id counts."""
    wanted = {passage for asked, _ in mined for passage in asked.positives}
    wanted.update(passage for _, negatives in mined for passage, _ in negatives)
    texts: dict[str, Passage] = {}
    for record in corpus.records():
        if record.passage.id in wanted:
            texts.setdefault(record.passage.id, record.passage)
    return texts


def _line(
    asked: Asked, positives: Sequence[Passage], negatives: Sequence[tuple[Passage, float]]
) -> bytes:
    """A question as DPR writes it, with its id and language."""
    line = {
        "id": asked.topic.id,
        "lang": asked.language,
        "question": asked.topic.text,
        "answers": list(asked.answers),
        "positive_ctxs": [_context(passage) for passage in positives],
        "negative_ctxs": [],
        "hard_negative_ctxs": [
            {**_context(passage), "score": float(f"{score:.9g}")} for passage, score in negatives
        ],
    }
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()


def _context(passage: Passage) -> dict[str, str]:
    return {"title": passage.title, "text": passage.text, "passage_id": passage.id}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`MineConfig`."""
    command(run, MineConfig, "mine", argv)


if __name__ == "__main__":
    main()
