"""Hard negatives: which of the passages found for a question teach it something.

A passage that ranks high and is not judged relevant may still answer the question. It is left out
where it contains an answer, where it scores as high as a share of the question's positive (as in
Moreira et al. 2024, "NV-Retriever"), or where its text is that of a positive. What is left, in
order of rank, is the pool that negatives are chosen from.

Candidates are held as numbers: a few bytes each, and the id of every passage once. Their text is
looked at in one pass over the corpus and not kept.
"""

import hashlib
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Passage, Record
from ccpretrieve.mine_config import TOP
from ccpretrieve.retrieval.runfile import ordered

WORD = 4  # letters from which on an answer may be a part of a word

#: Reasons for which a candidate is no negative.
POSITIVE, SKIPPED, CLOSE, ANSWERS, COPY, EMPTY = (
    *("positive", "rank skipped", "scores like a positive", "contains an answer"),
    *("copy of another", "empty"),
)


@dataclass(frozen=True)
class Rules:
    """Which candidates become negatives.

    Attributes:
        negatives: Of each question, at most.
        skip_top: So many of the best hits are left out.
        ratio: Leave out what scores at least this share of the best positive; None for all.
        margin: Leave out what scores less than this below the best positive; None for all.
        choice: ``top`` of the pool, or ``random``.
        seed: Of the random choice.
    """

    negatives: int
    skip_top: int = 0
    ratio: float | None = None
    margin: float | None = None
    choice: str = TOP
    seed: int = 0

    def limit(self, positive: float | None) -> float:
        """The score from which on a passage may be another positive."""
        limits = [float("inf")]
        if positive is not None and self.ratio is not None:
            limits.append(self.ratio * positive)
        if positive is not None and self.margin is not None:
            limits.append(positive - self.margin)
        return min(limits)


@dataclass(frozen=True)
class Candidates:
    """What was found for one question.

    Attributes:
        topic: Id of the question.
        positives: Numbers of its relevant passages.
        passages: Numbers of its hits, the best first, shape ``(n,)``.
        scores: Theirs, shape ``(n,)``.
        limit: Score from which on a passage is left out.
    """

    topic: str
    positives: tuple[int, ...]
    passages: NDArray[np.int32]
    scores: NDArray[np.float32]
    limit: float


class Pool:
    """The candidates of all questions.

    Args:
        rules: What is left out, and how the rest is chosen.

    Attributes:
        questions: In the order they were added.
        ids: Passage ids by number.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.questions: list[Candidates] = []
        self.ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._keys = np.empty(0, np.uint64)
        self._found = np.empty(0, bool)
        self._empty = np.empty(0, bool)
        self._answering: frozenset[tuple[int, int]] = frozenset()

    def add(
        self,
        topic: str,
        positives: Sequence[str],
        hits: Mapping[str, float],
        best: float | None = None,
    ) -> None:
        """Note what was found for a question.

        Args:
            topic: Id of the question.
            positives: Ids of its relevant passages.
            hits: Passage id -> score.
            best: Score of the best positive; None if there is none to compare with.
        """
        ranking = ordered(hits)
        self.questions.append(
            Candidates(
                topic,
                tuple(self._number(passage) for passage in positives),
                np.array([self._number(passage) for passage, _ in ranking], np.int32),
                np.array([score for _, score in ranking], np.float32),
                self.rules.limit(best),
            )
        )

    def _number(self, passage: str) -> int:
        number = self._numbers.setdefault(passage, len(self.ids))
        if number == len(self.ids):
            self.ids.append(passage)
        return number

    def look(self, records: Iterable[Record], answers: Mapping[str, Sequence[str]]) -> None:
        """Read the text of the candidates, and mark copies, empty ones and those with an answer.

        Args:
            records: The corpus; the first passage of an id counts.
            answers: Topic id -> answers.
        """
        self._keys = np.zeros(len(self.ids), np.uint64)
        self._found = np.zeros(len(self.ids), bool)
        self._empty = np.zeros(len(self.ids), bool)
        sought = [[fold(each) for each in answers.get(q.topic, ())] for q in self.questions]
        askers, starts = self._askers()
        answering: set[tuple[int, int]] = set()
        for record in records:
            number = self._numbers.get(record.passage.id)
            if number is None or self._found[number]:
                continue
            self._found[number] = True
            self._empty[number] = record.passage.is_empty
            self._keys[number] = _key(record.passage)
            asking = [
                int(question)
                for question in askers[starts[number] : starts[number + 1]]
                if sought[question]
            ]
            if asking:
                text = fold(f"{record.passage.title}\n{record.passage.text}")
                answering.update((q, number) for q in asking if holds(text, sought[q]))
        self._answering = frozenset(answering)

    def _askers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The questions by the passage found for them, and where each passage's begin."""
        nothing = [np.empty(0, np.int32)]
        passages = np.concatenate([q.passages for q in self.questions] or nothing)
        askers = np.repeat(
            np.arange(len(self.questions)), [len(q.passages) for q in self.questions]
        )
        order = np.argsort(passages, kind="stable")
        starts = np.searchsorted(passages[order], np.arange(len(self.ids) + 1))
        return askers[order], starts

    def missing(self, numbers: Iterable[int]) -> list[str]:
        """Ids among these passages that the corpus does not have; after :meth:`look`."""
        return [self.ids[number] for number in numbers if not self._found[number]]

    def choose(self, question: int, reasons: Counter[str]) -> list[tuple[str, float]]:
        """The negatives of a question by its number, ids and scores in order of rank.

        Args:
            question: Its number, from 0.
            reasons: Counts the candidates that are left out, by reason.
        """
        asked = self.questions[question]
        seen = {int(self._keys[number]) for number in asked.positives if self._found[number]}
        pool = []
        for rank, (number, score) in enumerate(
            zip(asked.passages.tolist(), asked.scores.tolist(), strict=True)
        ):
            reason = self._reason(question, rank, number, score, seen)
            if reason is not None:
                reasons[reason] += 1
                continue
            seen.add(int(self._keys[number]))
            pool.append((self.ids[number], score))
        return self._pick(asked.topic, pool)

    def _reason(
        self, question: int, rank: int, number: int, score: float, seen: set[int]
    ) -> str | None:
        """Why a candidate is no negative; None if it is one."""
        asked = self.questions[question]
        if number in asked.positives:
            return POSITIVE
        if rank < self.rules.skip_top:
            return SKIPPED
        if score >= asked.limit:
            return CLOSE
        if (question, number) in self._answering:
            return ANSWERS
        if self._empty[number]:
            return EMPTY
        return COPY if int(self._keys[number]) in seen else None

    def _pick(self, topic: str, pool: list[tuple[str, float]]) -> list[tuple[str, float]]:
        count = min(self.rules.negatives, len(pool))
        if self.rules.choice == TOP:
            return pool[:count]
        generator = random.Random(f"{self.rules.seed} {topic}")  # of no other question's making
        return [pool[place] for place in sorted(generator.sample(range(len(pool)), count))]


def _key(passage: Passage) -> int:
    """64 bits of what a passage says."""
    said = f"{passage.title}\0{passage.text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")


def fold(text: str) -> str:
    """Text as answers are looked for: NFKC, without case, one space for any white space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def holds(text: str, answers: Iterable[str]) -> bool:
    """Whether a text contains an answer, both folded.

    An answer of fewer than four letters must stand alone: `us` is no part of `house`, nor `15` of
    `2015`. A longer one may be inflected. Scripts that do not part words end a word anywhere.
    """
    for answer in answers:
        if answer and answer in text and (len(answer) >= WORD or _stands_alone(answer, text)):
            return True
    return False


#: Within a word: between two digits, or two letters of scripts that part words (not Hangul, whose
#: particles follow at once).
_LETTER = r"[^\W\d_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_WITHIN = re.compile(rf"(?<=\d)(?=\d)|(?<={_LETTER})(?={_LETTER})")


def _stands_alone(answer: str, text: str) -> bool:
    at = text.find(answer)
    while at >= 0:
        if not (_WITHIN.match(text, at) or _WITHIN.match(text, at + len(answer))):
            return True
        at = text.find(answer, at + 1)
    return False
