"""Batches of questions and passages as DPR composes them (section 4.3; Karpukhin et al. 2020, 3.2).

N questions; the passages of all of them in one row, each question's block its positive and then
its hard negatives, as many as it has up to H::

    questions  q1              q2          q3
    passages   p1  n1,1 n1,2   p2          p3  n3,1 n3,2       P = 7 of at most N (1 + H) = 9
    targets    0               3           4

Every question learns its target out of all P passages, and of those of other processes. A passage
that answers it too, or is a copy of its target, is no negative: the hashes in ``keys`` and
``known`` tell. The paper and DPR leave such passages in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.example_order import ExampleOrder
from ccpretrieve.data.example_store import ExampleStore, passage_key
from ccpretrieve.data.examples import Example
from ccpretrieve.data.inputs import Inputs
from ccpretrieve.data.mixture import State
from ccpretrieve.data.records import Passage
from ccpretrieve.data.tokens import Tokens
from ccpretrieve.errors import UserError

Ids = NDArray[np.int64]

_CHOICE = 0xC401  # keeps the draws apart
_SHOWN = 40  # letters of a question that has no other name


@dataclass(frozen=True)
class QuestionBatch:
    """N questions and P passages.

    Attributes:
        questions: N of them.
        passages: P of them.
        targets: Row of the passage that answers each question, shape ``(N,)``.
        keys: A hash of each passage, shape ``(P,)``; see
            :func:`ccpretrieve.data.example_store.passage_key`.
        known: Hashes of all known positives of each question, its target's among them.
        language: Of all questions; ``""`` if they are of several.
        names: Of the examples, for messages.
    """

    questions: list[Tokens]
    passages: list[Tokens]
    targets: Ids
    keys: Ids
    known: list[Ids]
    language: str
    names: list[str]

    @property
    def tokens(self) -> int:
        """Of questions and passages, without padding."""
        return sum(len(each.ids) for each in (*self.questions, *self.passages))


@dataclass(frozen=True)
class Choice:
    """Which passages of an example enter a batch.

    Attributes:
        hard_negatives: H, the most a question brings.
        positive: ``first``, or ``random`` for another one each time.
        negative: ``first``, or ``random``.
    """

    hard_negatives: int = 1
    positive: str = "first"
    negative: str = "first"

    def __call__(
        self, example: Example, generator: np.random.Generator | None = None
    ) -> list[Passage]:
        """The positive, then the negatives.

        Args:
            example: With a positive.
            generator: Draws; without one the first of both kinds are taken.
        """
        positive, negatives = 0, list(range(min(self.hard_negatives, len(example.negatives))))
        if generator is not None and self.positive == "random":
            positive = int(generator.integers(len(example.positives)))
        if generator is not None and self.negative == "random":
            drawn = generator.permutation(len(example.negatives))
            negatives = drawn[: self.hard_negatives].tolist()
        return [example.positives[positive], *(example.negatives[place] for place in negatives)]


def compose(
    examples: Sequence[Example], blocks: Sequence[list[Passage]], inputs: Inputs
) -> QuestionBatch:
    """Make a batch.

    Args:
        examples: N of them, at least one.
        blocks: The passages that each brings, its target first.
        inputs: Tokenises.
    """
    passages = [passage for block in blocks for passage in block]
    sizes = [len(block) for block in blocks]
    languages = {example.language for example in examples}
    return QuestionBatch(
        inputs.questions([example.question for example in examples]),
        inputs.passages(passages),
        np.cumsum([0, *sizes[:-1]], dtype=np.int64),
        _keys(passages),
        [_keys(example.positives) for example in examples],
        languages.pop() if len(languages) == 1 else "",
        [example.id or example.question[:_SHOWN] for example in examples],
    )


def _keys(passages: Sequence[Passage]) -> Ids:
    return np.array([passage_key(passage) for passage in passages], dtype=np.int64)


class QuestionBatcher:
    """Draws batches without end; those of all processes together are one order of the examples.

    Args:
        store: The examples.
        inputs: Tokenises.
        batch_size: N, questions of a batch of one process.
        choice: Which passages they bring.
        language_exponent: p_l ~ n_l^a; 1 takes the languages as they come, 0 all alike.
        one_language: Whether a batch, that of all processes, is of one language.
        seed: Of all draws.
        rank: Number of this process.
        processes: How many there are.

    Attributes:
        counts: What this process has seen: ``questions``; ``truncated_questions`` and ``passages``,
            ``truncated_passages``; ``fewer_negatives``, questions that brought fewer than H.

    Raises:
        UserError: If there are fewer examples than in a batch of all processes.
    """

    def __init__(
        self,
        store: ExampleStore,
        inputs: Inputs,
        *,
        batch_size: int,
        choice: Choice,
        language_exponent: float = 1.0,
        one_language: bool = False,
        seed: int = 0,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.store = store
        self.inputs = inputs
        self.batch_size = batch_size
        self.choice = choice
        self.seed = seed
        self.rank = rank
        self.order = ExampleOrder(
            store.of_language,
            together=batch_size * processes,
            exponent=language_exponent,
            one_language=one_language,
            seed=seed,
        )
        self.counts = dict.fromkeys(_COUNTED, 0)
        self._batches = 0

    def next(self) -> QuestionBatch:
        """The next batch of this process."""
        together = self.order.take()
        first = self.rank * self.batch_size
        examples = [self.store[n] for n in together[first : first + self.batch_size]]
        position = self._batches * len(together) + first
        blocks = [
            self.choice(example, np.random.default_rng([self.seed, _CHOICE, position + row]))
            for row, example in enumerate(examples)
        ]
        self._batches += 1
        batch = compose(examples, blocks, self.inputs)
        self._count(batch, blocks)
        return batch

    def _count(self, batch: QuestionBatch, blocks: Sequence[list[Passage]]) -> None:
        counts = self.counts
        counts["questions"] += len(batch.questions)
        counts["passages"] += len(batch.passages)
        counts["truncated_questions"] += sum(each.truncated for each in batch.questions)
        counts["truncated_passages"] += sum(each.truncated for each in batch.passages)
        wanted = 1 + self.choice.hard_negatives
        counts["fewer_negatives"] += sum(len(block) < wanted for block in blocks)

    @property
    def epoch(self) -> float:
        """How many epochs have been drawn by all processes, in part or whole."""
        return self.order.epochs

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one process in which all processes draw as many examples as there are."""
        return -(-self.order.count // self.order.together)

    def state_dict(self) -> State:
        """All that decides what comes next, as JSON."""
        return {
            "order": self.order.state_dict(),
            "batches": self._batches,
            "counts": dict(self.counts),
            "together": self.order.together,
            "content": self.store.content,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from where :meth:`state_dict` was taken.

        Raises:
            UserError: If the examples or the size of a batch are not what they were.
        """
        if state["content"] != self.store.content:
            raise UserError(
                f"{self.store.path}: not the examples that this run began with; put back what "
                "--train named, or start anew in another --output"
            )
        if state["together"] != self.order.together:
            raise UserError(
                f"a batch over all processes was {state['together']} questions and is now "
                f"{self.order.together}; go on with as many, or start anew in another --output"
            )
        self.order.load_state_dict(state["order"])
        self._batches = state["batches"]
        self.counts = dict(state["counts"])


_COUNTED = (
    "questions",
    "passages",
    "truncated_questions",
    "truncated_passages",
    "fewer_negatives",
)
