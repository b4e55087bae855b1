"""What :mod:`benchmarks.tatoeba` reports, as text, Markdown, LaTeX or JSON."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.bitext_scores import Encoded, Scored, mean_accuracy
from benchmarks.bitext_table import (
    FITTED_LABELS,
    Table,
    accuracies,
    averaged,
    by_english,
    by_step,
    curve,
    shapes,
)
from ccpretrieve.retrieval.bitext import STEPS, Accuracy
from ccpretrieve.retrieval.scoretable import ScoreTable

HEADING = (
    "Per cent of sentences whose nearest neighbour by cosine is their translation: from the first"
    " language to\nthe second (->), back (<-), mean of both. Shift, +scale and +rotate: each on top"
    " of those before it."
)


@dataclass(frozen=True)
class Report:
    """Scores of all encoders; as a string, the tables.

    Attributes:
        data: Where the text is.
        encoders: Tag -> what it reached; one for each layer where all are measured.
        form: text, markdown, latex, html or json.
        curves: Tag -> what each of its layers reached, from the embeddings on; empty unless all
            are measured.
    """

    data: str
    encoders: Mapping[str, Encoded]
    form: str = "text"
    curves: Mapping[str, Sequence[Encoded]] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.form == "json":
            return json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        begin = "% " if self.form == "latex" else ""
        heading = "\n".join(f"{begin}{line}" for line in HEADING.splitlines())
        return "\n\n".join([heading, *(table.render(self.form) for table in self.tables())])

    def tables(self) -> Iterator[Table | ScoreTable]:
        """All tables, in the order in which they are read."""
        if self.curves:
            yield from (curve(tag, layers) for tag, layers in self.curves.items())
            return
        for tag, encoded in self.encoders.items():
            if encoded.calibration:
                yield accuracies(tag, encoded, fitted=True)
            yield accuracies(tag, encoded, fitted=False)
        if any(text.shape for each in self.encoders.values() for text in each.scored):
            yield shapes(self.encoders)
        yield by_step(self.encoders)
        if any(text.english for each in self.encoders.values() for text in each.scored):
            yield by_english(self.encoders)

    def to_json(self) -> dict[str, Any]:
        """All scores, as shares, with the settings that made them."""
        return {
            "data": self.data,
            "calibration": "statistics of the test text itself, each side's own",
            "encoders": {tag: _encoder_json(each) for tag, each in self.encoders.items()},
        }


def _encoder_json(encoded: Encoded) -> dict[str, Any]:
    content = {
        "settings": asdict(encoded.settings),
        "pairs": {text.name: _text_json(text) for text in encoded.scored},
    }
    for label, texts in averaged(encoded, fitted=bool(encoded.calibration)):
        means: dict[str, Any] = {step: _plain(mean_accuracy(texts, step)) for step in STEPS}
        if encoded.calibration:
            means["fitted"] = {
                step: _plain(mean_accuracy(texts, step, fitted=True)) for step in FITTED_LABELS
            }
        content[label] = means
    return content | ({"calibration": encoded.calibration} if encoded.calibration else {})


def _text_json(text: Scored) -> dict[str, Any]:
    content: dict[str, Any] = {"pairs": text.pairs, "truncated": text.truncated}
    content |= {step: _plain(reached) for step, reached in text.steps.items()}
    if text.fitted:
        content["fitted"] = {step: _plain(reached) for step, reached in text.fitted.items()}
    if text.joined:
        content["joined"] = True
    if text.english:
        content["same_sentences"] = text.same
        content["with_english"] = {each.name: _text_json(each) for each in text.english}
        content["loss"] = {step: text.loss(step) for step in text.steps}
        if text.fitted:
            content["loss"]["fitted"] = {s: text.loss(s, fitted=True) for s in text.fitted}
    if text.shape:
        shape = text.shape.items()
        content["isomorphism"] = {k: None if math.isnan(v) else v for k, v in shape}
    return content


def _plain(reached: Accuracy | None) -> dict[str, float] | None:
    return None if reached is None else reached._asdict() | {"mean": reached.mean}
