"""XOR-Retrieve's R@kt read aloud: the oracle for the package's own answer recall.

Written only from "R@kt as the official script computes it" in our notes; it shares nothing with
the package.

    R@kt(language) = hits(language) / count(language)
    mean           = plain mean of R@kt(language) over the languages with count > 0

hit:    some answer is a substring, case and all, of the first `tokens` tokens of the passages,
        each passage tokenised on its own, in rank order, joined with single spaces.
count:  the predictions whose question has an answer other than "yes" and "no".

What the text leaves open, and what is done here:
- A prediction counts in the prediction's language, since the script walks the predictions. A
  question that no prediction names counts in its own language, the only one it has.
- Only the exact strings "yes" and "no" are dropped: "Yes" and "no " stay. An empty answer list
  leaves nothing, so it is not counted; an answer "" is a substring of anything, so it is a hit.
- A prediction given twice counts twice, each with its own passages and language; one whose
  question is in no list is passed over.
- A language where nothing is counted is absent, and with no language at all there is no mean: that
  is an error, not 0. So is a question listed twice, for which answers count is not said.
"""

from collections.abc import Callable


def recall_at_tokens(
    predictions: list[dict],
    questions: list[dict],
    tokens: int,
    tokenize: Callable[[str], list[str]],
    missing: str = "miss",
) -> tuple[dict[str, float], float]:
    """Language -> share of hits (0 to 1), and the plain mean over the languages present.

    Args:
        predictions: The submission, `[{"id", "lang", "ctxs": [text, ...]}]`, best passage first.
        questions: `[{"id", "lang", "answers": [...]}]`.
        tokens: The budget; the official script cuts at 2,000 and at 5,000.
        tokenize: Text to tokens; the official script uses nltk's `word_tokenize`.
        missing: What a question without a prediction is: "miss", or "official" (not counted).

    Raises:
        ValueError: `missing` is another word, a question is listed twice, or none is counted.
    """
    if missing not in ("miss", "official"):
        raise ValueError(f"missing is {missing!r}; it must be 'miss' or 'official'")

    answers = span_answers(questions)
    outcomes = []  # (language, hit) of everything that is counted
    for prediction in predictions:
        left = answers.get(prediction["id"], [])
        if left:
            text = first_tokens(prediction["ctxs"], tokens, tokenize)
            outcomes.append((prediction["lang"], any(answer in text for answer in left)))

    if missing == "miss":
        predicted = {prediction["id"] for prediction in predictions}
        for question in questions:
            if answers[question["id"]] and question["id"] not in predicted:
                outcomes.append((question["lang"], False))

    if not outcomes:
        raise ValueError("no question is counted, so there is no recall to report")

    recall = {}
    for language in sorted({language for language, _ in outcomes}):
        hits = [hit for where, hit in outcomes if where == language]
        recall[language] = sum(hits) / len(hits)
    return recall, sum(recall.values()) / len(recall)


def span_answers(questions: list[dict]) -> dict[str, list[str]]:
    """Question id -> its answers other than "yes" and "no"; may be empty."""
    answers = {}
    for question in questions:
        if question["id"] in answers:
            raise ValueError(f"question {question['id']!r} is listed twice")
        answers[question["id"]] = [a for a in question["answers"] if a not in ("yes", "no")]
    return answers


def first_tokens(passages: list[str], tokens: int, tokenize: Callable[[str], list[str]]) -> str:
    """The first `tokens` tokens of the passages (all, where there are fewer), joined with spaces.

    The cut may fall inside a passage; nothing marks where one passage ends and the next begins.
    """
    kept = []
    for passage in passages:
        for token in tokenize(passage):
            if len(kept) < tokens:
                kept.append(token)
    return " ".join(kept)
