"""How good a ranking is: MRR, Recall, nDCG and hits, equal to trec_eval's, by ranx.

With r_1, r_2, ... the grades of the hits of a topic in trec_eval's order, a hit relevant if its
grade is 1 or more, and R relevant passages judged:

    mrr@K     1 / rank of the first relevant hit among the first K, else 0    recip_rank (cut)
    recall@K  relevant hits among the first K / R                             recall_K
    ndcg@K    sum_{i<=K} r_i / log2(i + 1), over that of the ideal ranking    ndcg_cut_K
    hits@K    1 if any of the first K is relevant, else 0                     success_K

Without ``@K`` the whole run counts. Means are those of ``trec_eval -c``: every judged topic counts,
with 0 if the run has no hit for it, and with 0 if none of its judgements is relevant; only a topic
without any judgement is left out. All of these are reported.

ranx counts; what it is given leaves it nothing to guess (each of these was seen to go wrong):
topics are paired by position here, hits are ordered here, and passages are numbers instead of
strings: ranx compiles anew for every length of the longest id, and orders ties arbitrarily.

XOR-Retrieve has answers in place of judgements, and R@kt is what its official script computes:

    text    the first k tokens (nltk's word_tokenize, passage by passage) of the ranked passages,
            without titles, joined with spaces; the last passage is cut
    hit     any answer but "yes" and "no" is a substring of text, case and all
    R@kt    hits / questions that have such an answer, a language; the mean is over languages

That is ranx' hit rate of the same passages, cut at the same token and relevant if they hold an
answer, but for one thing: an answer that begins in one passage and ends in a later one is a hit,
and makes neither relevant. Both are reported.
"""

import logging
import re
import types
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Qrels, Question
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.retrieval.runfile import Run, ordered
from ccpretrieve.retrieval.submission import Prediction
from ccpretrieve.retrieval.words import spaced

logger = logging.getLogger(__name__)

MEASURES = {"mrr": "MRR", "recall": "Recall", "ndcg": "nDCG", "hits": "Hits"}
RANX_NAMES = {"mrr": "reciprocal_rank", "recall": "recall", "ndcg": "ndcg", "hits": "hit_rate"}
TOPICS_AT_ONCE = 512  # bounds the memory of the padded arrays
NOT_RELEVANT, NO_JUDGEMENT = -1.0, -2.0  # numbers of passages that can match nothing
#: What becomes of a question without a prediction: a miss, or left out as the official script does.
MISSING = ("miss", "official")
NOT_IN_TEXTS = ("yes", "no")  # answers that no passage is searched for


class Metric(NamedTuple):
    """A measure and the rank it is cut at.

    Attributes:
        measure: A key of ``MEASURES``.
        cutoff: Hits that count; None for all.
    """

    measure: str
    cutoff: int | None

    @classmethod
    def parse(cls, name: str) -> "Metric":
        """Read ``mrr@100`` or ``mrr``.

        Raises:
            UserError: If there is no such measure, or the cut-off is not a whole number from 1.
        """
        measure, at, cutoff = name.lower().partition("@")
        if measure not in MEASURES:
            known = [f"{each}{at}{cutoff}" for each in MEASURES]
            forms = ", ".join(f"{each}@K" for each in MEASURES)
            raise unknown("metric", name, known, f"allowed: {forms}, such as mrr@100")
        if at and not re.fullmatch("[1-9][0-9]{0,8}", cutoff):
            raise UserError(f"metric {name!r}: after @ comes a whole number from 1, as in mrr@100")
        return cls(measure, int(cutoff) if at else None)

    @property
    def name(self) -> str:
        """``mrr@100``."""
        return self.measure if self.cutoff is None else f"{self.measure}@{self.cutoff}"

    @property
    def label(self) -> str:
        """``MRR@100``, as tables spell it."""
        return self.name.replace(self.measure, MEASURES[self.measure])


def parse_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Read metric names, each once.

    Raises:
        UserError: If there is none, or one is wrong.
    """
    if not names:
        raise UserError("no metric given; name some of " + ", ".join(f"{m}@K" for m in MEASURES))
    return tuple(dict.fromkeys(map(Metric.parse, names)))


@dataclass(frozen=True)
class Scores:
    """How good a run is.

    Attributes:
        per_topic: Topic -> metric name -> score; every judged topic, in the judgements' order.
        mean: Metric name -> mean over ``per_topic``.
        unanswered: Judged topics without a hit; each counts 0.
        without_relevant: Judged topics none of whose judgements is relevant; each counts 0.
        left_out: Topics that the judgements name but say nothing about; they do not count.
        unjudged: Topics of the run that have no judgement; they do not count.
    """

    per_topic: dict[str, dict[str, float]]
    mean: dict[str, float]
    unanswered: tuple[str, ...]
    without_relevant: tuple[str, ...]
    left_out: tuple[str, ...]
    unjudged: tuple[str, ...]


def score(qrels: Qrels, run: Run, metrics: Sequence[str]) -> Scores:
    """Score a run against judgements.

    Raises:
        UserError: If no topic has a judgement, a metric is unknown, or a score is not finite.
    """
    parsed = parse_metrics(metrics)
    topics = [topic for topic, grades in qrels.items() if grades]
    if not topics:
        raise UserError("the judgements hold no judged topic; nothing can be scored")
    chunks = [topics[i : i + TOPICS_AT_ONCE] for i in range(0, len(topics), TOPICS_AT_ONCE)]
    values = np.concatenate([_values(qrels, run, chunk, parsed) for chunk in chunks], axis=1)
    names = [metric.name for metric in parsed]
    return Scores(
        per_topic={
            topic: dict(zip(names, column, strict=True))
            for topic, column in zip(topics, values.T.tolist(), strict=True)
        },
        mean=dict(zip(names, values.mean(axis=1).tolist(), strict=True)),
        unanswered=tuple(topic for topic in topics if not run.get(topic)),
        without_relevant=tuple(topic for topic in topics if max(qrels[topic].values()) < 1),
        left_out=tuple(topic for topic, grades in qrels.items() if not grades),
        unjudged=tuple(topic for topic in run if not qrels.get(topic)),
    )


def _values(
    qrels: Qrels, run: Run, topics: Sequence[str], metrics: Sequence[Metric]
) -> NDArray[np.float64]:
    """Scores of some topics: (metrics, topics)."""
    functions = load_ranx().metrics
    cutoffs = [metric.cutoff for metric in metrics]
    depth = None if None in cutoffs else max(cutoff for cutoff in cutoffs if cutoff)
    judged, ranked = _numbered(qrels, run, topics, depth)
    return np.stack(
        [
            getattr(functions, RANX_NAMES[metric.measure])(judged, ranked, metric.cutoff or 0)
            for metric in metrics
        ]
    )


def _numbered(
    qrels: Qrels, run: Run, topics: Sequence[str], depth: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Judgements and hits as ranx counts them, padded with passages that match nothing.

    The relevant passages of a topic are numbered from 0, best grade first; all others are alike.

    Returns:
        (topics, most relevant, 2): number and grade, grades falling as ranx' ideal ranking needs;
        (topics, most hits, 2): number and a score that falls strictly, so that nothing ties.
    """
    relevant = [
        sorted(((d, g) for d, g in qrels[topic].items() if g >= 1), key=lambda pair: -pair[1])
        for topic in topics
    ]
    hits = [ordered(run.get(topic, {}))[:depth] for topic in topics]
    judged = np.full((len(topics), max(1, *map(len, relevant), 1), 2), [NO_JUDGEMENT, 0.0])
    ranked = np.full((len(topics), max(1, *map(len, hits), 1), 2), [NOT_RELEVANT, 0.0])
    ranked[:, :, 1] = -np.arange(ranked.shape[1])
    for row, (pairs, found) in enumerate(zip(relevant, hits, strict=True)):
        number = {docid: float(n) for n, (docid, _) in enumerate(pairs)}
        judged[row, : len(pairs), 0] = np.arange(len(pairs))
        judged[row, : len(pairs), 1] = [grade for _, grade in pairs]
        ranked[row, : len(found), 0] = [number.get(docid, NOT_RELEVANT) for docid, _ in found]
    return judged, ranked


def load_ranx() -> types.ModuleType:
    """Import ranx; its own source has escape sequences that Python warns about on compiling it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="invalid escape sequence")
        import ranx
        import ranx.metrics
        import ranx.statistical_tests
    return ranx  # type: ignore[no-any-return]


# -- answers in the first tokens --

Key = tuple[str, str]  # language and id of a question: ids need to be unique in a language only


@dataclass(frozen=True)
class AnswerRecall:
    """R@kt of predictions for one budget.

    Attributes:
        tokens: The budget, k.
        hits: Language -> question -> whether it has a hit; every question that counts.
        within: The same by ranx: whether one passage holds an answer.
        missing: Questions with such an answer and no prediction.
        short: Questions that count whose passages do not fill the budget.
        empty: Of these, those without any passage.
        unsearched: Questions with no answer but "yes" and "no"; they do not count.
        unknown: Predictions for no question; they do not count.
    """

    tokens: int
    hits: dict[str, dict[str, bool]] = field(default_factory=dict)
    within: dict[str, dict[str, bool]] = field(default_factory=dict)
    missing: list[Key] = field(default_factory=list)
    short: list[Key] = field(default_factory=list)
    empty: list[Key] = field(default_factory=list)
    unsearched: list[Key] = field(default_factory=list)
    unknown: list[Key] = field(default_factory=list)

    @property
    def per_language(self) -> dict[str, float]:
        """R@kt of each language, from 0 to 1."""
        return {language: fmean(hits.values()) for language, hits in self.hits.items()}

    @property
    def within_per_language(self) -> dict[str, float]:
        """The share of questions for which one passage holds an answer."""
        return {language: fmean(hits.values()) for language, hits in self.within.items()}

    @property
    def mean(self) -> float:
        """R@kt: the plain mean over languages."""
        return fmean(self.per_language.values())


def answer_recall(
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
    tokens: int,
    *,
    missing: str = "miss",
) -> AnswerRecall:
    """Score predictions as XOR-Retrieve's official script does, apart from what is missing.

    Args:
        questions: With their answers and languages.
        predictions: Passages for them; of the languages spelled as the questions spell them.
        tokens: The budget, k.
        missing: ``miss``, or ``official`` to leave questions without a prediction out.

    Raises:
        UserError: If a question stands twice on either side, is predicted in the language of
            another, or none counts.
    """
    if missing not in MISSING:
        raise unknown("treatment of missing predictions", missing, MISSING)
    asked = {_key(question): question.answers for question in questions}
    given = {(each.language, each.id): each.passages for each in predictions}
    _check_answered(questions, predictions, asked, given)
    recall = AnswerRecall(tokens, unknown=[key for key in given if key not in asked])
    judged: dict[str, dict[str, dict[str, int]]] = {}
    for key, answers in asked.items():
        spans = [answer for answer in answers if answer not in NOT_IN_TEXTS]
        if not spans:
            recall.unsearched.append(key)
            continue
        texts: list[str] = []
        if key in given:
            texts = _cut(given[key], key, recall)
        else:
            recall.missing.append(key)
            if missing == "official":
                continue
        language, topic = key
        hit = key in given and _holds(" ".join(texts), spans)
        recall.hits.setdefault(language, {})[topic] = hit
        grades = {str(rank): int(_holds(text, spans)) for rank, text in enumerate(texts, start=1)}
        judged.setdefault(language, {})[topic] = grades
    if not recall.hits:
        raise UserError("no question counts: none has a prediction and an answer but yes and no")
    recall.within.update({language: _by_ranx(qrels) for language, qrels in judged.items()})
    return recall


def first_tokens(passages: Sequence[str], tokens: int) -> tuple[list[str], bool]:
    """What of ranked passages fits into a budget of tokens.

    Returns:
        The passages, spaces between their tokens, without those that have none, the last one cut;
        and whether they fill the budget.
    """
    kept: list[str] = []
    for passage in passages:
        if tokens <= 0:
            break
        if text := spaced(passage):
            words = text.split(" ", tokens)[:tokens]
            kept.append(" ".join(words))
            tokens -= len(words)
    return kept, tokens <= 0


def _cut(passages: Sequence[str], key: Key, recall: AnswerRecall) -> list[str]:
    """What fits into the budget; a question with too few passages is noted."""
    texts, full = first_tokens(passages, recall.tokens)
    if not full:
        recall.short.append(key)
    if not passages:
        recall.empty.append(key)
    return texts


def _key(question: Question) -> Key:
    return question.topic.language, question.topic.id


def _holds(text: str, answers: Sequence[str]) -> bool:
    return any(answer in text for answer in answers)


def _by_ranx(judged: dict[str, dict[str, int]]) -> dict[str, bool]:
    """Topic -> whether one of its passages, named by their ranks, is relevant."""
    qrels = {topic: grades or {"none": 0} for topic, grades in judged.items()}
    run = {topic: {rank: -float(rank) for rank in grades} for topic, grades in judged.items()}
    scores = score(qrels, run, ["hits"])
    return {topic: found["hits"] > 0 for topic, found in scores.per_topic.items()}


def _check_answered(
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
    asked: Collection[Key],
    given: Collection[Key],
) -> None:
    """Fail on what stands twice or in another language; warn of answers that any text holds."""
    if len(asked) != len(questions) or len(given) != len(predictions):
        raise UserError("a question or its prediction stands twice; keep one of the two")
    spoken = {topic: language for language, topic in asked}
    languages = set(spoken.values())
    for language, topic in given:
        if language in languages and (language, topic) not in asked and topic in spoken:
            raise UserError(
                f"question {topic!r} is predicted in language {language!r} and asked in "
                f"{spoken[topic]!r}; give the prediction the language of the question"
            )
    if not set(asked) & set(given):
        raise UserError(
            f"no prediction is for a question: predicted is {next(iter(given), 'nothing')}, asked "
            f"{next(iter(asked), 'nothing')}; give the questions that were searched"
        )
    empty = [_key(question) for question in questions if "" in question.answers]
    if empty:
        logger.warning("%d questions have an empty answer, which any text holds", len(empty))
