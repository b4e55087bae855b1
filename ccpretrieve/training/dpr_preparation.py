"""What fine-tuning needs before its first step: examples, towers, what is scored (section 4.3).

examples     of all of --train, checked and trimmed, in training/examples.jsonl
towers       one Transformer, or two that start alike
evaluation   questions of --dev with their passages; a corpus to search
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.example_store import ExampleStore, passage_key, prepare
from ccpretrieve.data.examples import ExampleSource, open_examples
from ccpretrieve.data.inputs import Inputs
from ccpretrieve.data.question_batches import Choice, QuestionBatcher
from ccpretrieve.data.records import Passage
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.data.tokens import Tokens
from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory, write_json
from ccpretrieve.finetune_config import FIRST, FinetuneConfig
from ccpretrieve.model import trainable
from ccpretrieve.model.checkpoint import PASSAGE, QUERY, tower
from ccpretrieve.model.settings import EncoderSettings
from ccpretrieve.model.trainable import Trainable
from ccpretrieve.training.process import Processes
from ccpretrieve.training.ranking import DevSet, RankingEvaluation, Searched
from ccpretrieve.training.states import DEV, EXAMPLES

logger = logging.getLogger(__name__)

#: Most passages of a corpus that is searched while training.
SEARCHED = 200_000


@dataclass(frozen=True)
class Sources:
    """What is learned from and what is scored, opened and not read yet.

    Attributes:
        train: Of --train.
        dev: Of --dev.
    """

    train: Sequence[ExampleSource]
    dev: Sequence[ExampleSource]


def open_sources(config: FinetuneConfig) -> Sources:
    """Find what --train and --dev name.

    Raises:
        UserError: If something is not there.
    """
    return Sources(
        [open_examples(name, "train", config.data_dir) for name in config.train],
        [open_examples(name, "dev", config.data_dir) for name in config.dev],
    )


def stored(
    sources: Sequence[ExampleSource],
    path: Path,
    processes: Processes,
    *,
    negatives: int,
    all_needed: bool,
) -> ExampleStore:
    """Examples on disk; the first process writes them unless they are there.

    Args:
        sources: What they are made of.
        path: Where they are.
        processes: Those that train.
        negatives: Most hard negatives of one that are kept.
        all_needed: Whether a batch wants so many of each.

    Raises:
        UserError: If they cannot be read, or none is left.
    """

    def write() -> None:
        if path.is_file():
            return
        make_directory(path.parent)
        prepared = prepare(sources, path, negatives=negatives)
        write_json(path.with_suffix(".json"), prepared.to_json())
        names = ", ".join(source.name for source in sources)
        logger.info("%s: %d examples%s", names, prepared.count, _left_out(prepared.dropped))
        if prepared.fewer_negatives:
            logger.log(
                logging.WARNING if all_needed else logging.INFO,
                "%s: %d examples have fewer than %d hard negatives; theirs are not filled up",
                *(names, prepared.fewer_negatives, negatives),
            )

    processes.lead(write)
    return ExampleStore.open(path)


def _left_out(dropped: dict[str, int]) -> str:
    return (
        f" ({'; '.join(f'{n} left out: {why}' for why, n in dropped.items())})" if dropped else ""
    )


def load_towers(config: FinetuneConfig, path: Path) -> tuple[Trainable, Trainable | None]:
    """Open the towers for training; the second is None where one does for both.

    Raises:
        UserError: If they cannot be loaded, are two where one is asked for, or have different
            vocabularies.
    """
    places = [tower(path, QUERY), tower(path, PASSAGE)]
    if config.tied and places[0] != places[1]:
        raise UserError(f"{path}: has two towers; leave --tied out, or start from one of them")
    query = _load(config, places[0])
    if config.tied:
        return query, None
    passage = _load(config, places[1])
    if query.tokenizer.get_vocab() != passage.tokenizer.get_vocab():
        raise UserError(
            f"{path}: its towers have different vocabularies; start from two that share one"
        )
    return query, passage


def _load(config: FinetuneConfig, path: Path) -> Trainable:
    start = trainable.load(path, masked=False, layers=config.layers, dropout=config.dropout)
    if config.freeze_embeddings:
        start.encoder.get_input_embeddings().requires_grad_(False)
    if config.gradient_checkpointing:
        trainable.recompute_activations(start.whole)
    return start


def tokenizing(settings: EncoderSettings, tokenizer: Any) -> Inputs:
    """Tokenises as `encode` and `search` will."""
    return Inputs(
        tokenizer,
        query_length=settings.query_length,
        passage_length=settings.passage_length,
        query_prefix=settings.query_prefix,
        passage_prefix=settings.passage_prefix,
        title=settings.title,
        strip_question_mark=settings.strip_question_mark,
    )


def make_batcher(
    config: FinetuneConfig,
    sources: Sequence[ExampleSource],
    inputs: Inputs,
    folder: Path,
    processes: Processes,
) -> QuestionBatcher:
    """The data of this process.

    Raises:
        UserError: If the examples cannot be read, are fewer than a batch, or leave a question
            without a passage beside its own.
    """
    most = config.hard_negatives if config.negative == FIRST else config.negative_pool
    store = stored(
        sources, folder / EXAMPLES, processes, negatives=most, all_needed=config.negative == FIRST
    )
    alone = config.batch_size * processes.count == 1
    if alone and all(not store[number].negatives for number in range(len(store))):
        raise UserError(
            "--batch-size 1 and no example has a hard negative: a question has nothing to be told "
            "from; raise --batch-size, or mine negatives"
        )
    return QuestionBatcher(
        store,
        inputs,
        batch_size=config.batch_size,
        choice=Choice(config.hard_negatives, config.positive, config.negative),
        language_exponent=config.language_exponent,
        one_language=config.one_language_batches,
        seed=config.seed,
        rank=processes.rank,
        processes=processes.count,
    )


# -- evaluation --


def make_evaluation(
    config: FinetuneConfig,
    sources: Sequence[ExampleSource],
    inputs: Inputs,
    folder: Path,
    processes: Processes,
) -> RankingEvaluation | None:
    """What scores the towers while they are trained; None if nothing is asked for.

    Raises:
        UserError: If the examples or the corpus cannot be read.
    """
    dev = None
    if sources:
        store = stored(
            *(sources, folder / DEV, processes),
            negatives=config.dev_negatives,
            all_needed=False,
        )
        dev = _dev_set(config, store, inputs)
    searched = None
    if config.dev_corpus is not None:
        searched = _searched(config, config.dev_corpus, inputs)
    if dev is None and searched is None:
        return None
    return RankingEvaluation(
        dev,
        searched,
        best_by=config.best_by,
        batch_size=config.batch_size,
        similarity=config.similarity,
        temperature=config.temperature,
        mask_positives=config.mask_positives,
    )


class _Pool:
    """Passages, each once, by the order in which they come."""

    def __init__(self) -> None:
        self.passages: list[Passage] = []
        self._rows: dict[int, int] = {}

    def rows(self, passages: Sequence[Passage]) -> NDArray[np.int64]:
        """Where they are; those that are new are taken in."""
        found = []
        for passage in passages:
            key = passage_key(passage)
            if key not in self._rows:
                self._rows[key] = len(self.passages)
                self.passages.append(passage)
            found.append(self._rows[key])
        return np.array(found, dtype=np.int64)

    def known(self, passages: Sequence[Passage]) -> NDArray[np.int64]:
        """Where those are that are in."""
        keys = [key for passage in passages if (key := passage_key(passage)) in self._rows]
        return np.array([self._rows[key] for key in keys], dtype=np.int64)


def _dev_set(config: FinetuneConfig, store: ExampleStore, inputs: Inputs) -> DevSet:
    """Questions, each with its first positive, as DPR has it, and its hard negatives."""
    pool, questions = _Pool(), []
    targets, batched = [], []
    for number in range(len(store)):
        example = store[number]
        questions.append(example.question)
        rows = pool.rows([example.positives[0], *example.negatives])
        targets.append(rows[0])
        batched.append(rows[: 1 + config.hard_negatives])
    return DevSet(
        inputs.questions(questions),
        inputs.passages(pool.passages),
        np.array(targets, dtype=np.int64),
        batched,
        [pool.known(store[number].positives) for number in range(len(store))],
    )


def _searched(config: FinetuneConfig, name: str, inputs: Inputs) -> Searched:
    corpus = open_corpus(name, config.data_dir)
    topics, qrels = corpus.topics(config.dev_split), corpus.qrels(config.dev_split)
    judged = [topic for topic in topics if topic.id in qrels]
    if not judged:
        raise UserError(
            f"--dev-corpus {name}: no topic of split {config.dev_split} has a judgement; name "
            "another --dev-split"
        )
    passages = list(_few(name, corpus.records()))
    there = {passage.id for passage in passages}
    if not any(there & qrels[topic.id].keys() for topic in judged):
        raise UserError(
            f"--dev-corpus {name}: none of the passages judged in split {config.dev_split} is in "
            "it; are passages and judgements of one edition?"
        )
    questions = inputs.questions([topic.text for topic in judged])
    texts = inputs.passages(passages)
    return Searched(
        dict(zip((topic.id for topic in judged), questions, strict=True)),
        _by_id(passages, texts),
        {topic.id: qrels[topic.id] for topic in judged},
    )


def _by_id(passages: Sequence[Passage], texts: Sequence[Tokens]) -> dict[str, Tokens]:
    return dict(zip((passage.id for passage in passages), texts, strict=True))


def _few(name: str, records: Any) -> Iterator[Passage]:
    for number, record in enumerate(records):
        if number == SEARCHED:
            raise UserError(
                f"--dev-corpus {name}: more than {SEARCHED:,} passages, too many to be encoded at "
                "every evaluation; name a smaller corpus"
            )
        yield record.passage
