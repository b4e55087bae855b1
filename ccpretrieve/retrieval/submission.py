"""XOR-Retrieve's submission file: ``[{"id", "lang", "ctxs": [text, ...]}]``, the best text first.

The leaderboard's script reads ``id``; where that is absent, ``q_id`` is read, as the released code
of CCP writes it. Texts are passages without their titles. Ids need to be unique in a language only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ccpretrieve.data.lines import MalformedError
from ccpretrieve.data.readers import to_id
from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory, read_json, write_json

FORM = '[{"id": ..., "lang": ..., "ctxs": ["text", ...]}, ...]'


class Prediction(NamedTuple):
    """What was retrieved for one question.

    Attributes:
        id: Of the question.
        language: Of the question, as its data set spells it.
        passages: Their texts, the best first; none if nothing was found.
    """

    id: str
    language: str
    passages: tuple[str, ...]


def write_submission(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write what the leaderboard takes, whole or not at all; the folder is created.

    Raises:
        UserError: If it cannot be written.
    """
    make_directory(path.parent)
    write_json(
        path,
        [{"id": p.id, "lang": p.language, "ctxs": list(p.passages)} for p in predictions],
    )


def read_submission(path: Path) -> list[Prediction]:
    """Read a submission file.

    Raises:
        UserError: If it cannot be read or is no such file; naming the entry, from 1, if one is
            malformed or its question has an entry already.
    """
    content = read_json(path)
    if not isinstance(content, list) or not content:
        raise UserError(f"{path}: not a list of predictions, or an empty one; expected {FORM}")
    entries: dict[tuple[str, str], int] = {}
    predictions = []
    for number, entry in enumerate(content, start=1):
        try:
            prediction = _prediction(entry)
        except MalformedError as error:
            raise UserError(f"{path}: entry {number}: {error}") from error
        first = entries.setdefault((prediction.language, prediction.id), number)
        if first != number:
            raise UserError(
                f"{path}: entry {number}: question {prediction.id!r} ({prediction.language}) has "
                f"entry {first} already; keep one of the two"
            )
        predictions.append(prediction)
    return predictions


def _prediction(entry: object) -> Prediction:
    """One entry of the file."""
    if not isinstance(entry, dict):
        raise MalformedError(f"is of type {type(entry).__name__}; expected {FORM}")
    identifier = to_id(entry.get("id", entry.get("q_id")))
    spoken, texts = entry.get("lang"), entry.get("ctxs")
    if not isinstance(spoken, str) or not spoken:
        raise MalformedError(f'question {identifier!r} has no "lang", such as "ja"; add it')
    if not isinstance(texts, list):
        raise MalformedError(f'question {identifier!r} has no list "ctxs"; texts are needed')
    for rank, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise MalformedError(
                f"question {identifier!r}: passage {rank} is of type {type(text).__name__}; its "
                "text alone is needed"
            )
    return Prediction(identifier, spoken, tuple(texts))
