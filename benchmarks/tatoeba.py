"""Tatoeba (section 4.2): is the nearest sentence of the other language the translation?

    python -m benchmarks.tatoeba --data data/tatoeba --encoder runs/ccp --pooling mean --layer 14
    python -m benchmarks.tatoeba --data data/ntrex --languages ja ko --encoder a b --output F.json

Reads the layouts of :mod:`ccpretrieve.data.parallel`, one side English. For each pair of languages:
accuracy in both directions and their mean, raw, after the shift, and after shift and scale (3.2).
Both sides are encoded as questions, since neither is a passage that answers the other; with untied
towers that is the query tower. The prefix is the checkpoint's own for questions (the e5 family asks
for it on both sides where texts are alike), none if it states none; --query-prefix overrules it.
Vectors are compared by cosine, and calibrated before they are brought to unit length.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks.table import grid
from ccpretrieve.commandline import command
from ccpretrieve.config import DTYPES, POOLINGS, Config, Many, at_least, one_of
from ccpretrieve.data.parallel import ParallelText, document_range, read_parallel
from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory, write_json
from ccpretrieve.retrieval import names
from ccpretrieve.retrieval.bitext import STEPS, Accuracy, accuracy_by_step

if TYPE_CHECKING:
    from ccpretrieve.model.calibration import Embeddings
    from ccpretrieve.model.encoder import Encoder
    from ccpretrieve.model.settings import EncoderSettings

logger = logging.getLogger("ccpretrieve.benchmarks.tatoeba")

HEADING = (
    "Per cent of sentences whose nearest neighbour by cosine is their translation: to English (->),"
    " from\nEnglish (<-), mean. Shift and scale use the statistics of the test text itself, each"
    " side's own, unpaired."
)
LABELS = dict(zip(STEPS, ("raw", "shift", "+scale"), strict=True))
DIRECTIONS = ("->", "<-", "mean")
AVERAGE = "average"


@dataclass(frozen=True, kw_only=True)
class TatoebaConfig(Config):
    """Score how well translations find each other, before and after calibration.

    Attributes:
        data: Folder of parallel text: fra-eng.fra with fra-eng.eng, or fr.txt with en.txt.
        encoder: Checkpoint directories or hub names, a table each. Default: CCPRETRIEVE_ENCODER.
        languages: Codes or names of languages beside English. Default: all there are.
        documents: Only lines of these documents, counted from 1, such as 81-123. Default: all.
        pooling: cls or mean. Default: the checkpoint's.
        layer: Hidden states to pool: 0 the embeddings, -1 the last. Default: the checkpoint's.
        max_length: Tokens kept of a sentence. Default: the checkpoint's.
        query_prefix: Put before every sentence. Default: the checkpoint's for questions.
        batch_tokens: Tokens of a forward pass, padding included.
        device: Any torch device.
        dtype: float32, bfloat16 or float16.
        output: JSON file for all scores.
    """

    data: Path
    encoder: Annotated[tuple[str, ...], Many] = ()
    languages: Annotated[tuple[str, ...], Many] = ()
    documents: str | None = None
    pooling: str | None = None
    layer: int | None = None
    max_length: int | None = None
    query_prefix: str | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None
    output: Path | None = None

    def __post_init__(self) -> None:
        one_of("pooling", self.pooling, POOLINGS)
        one_of("dtype", self.dtype, DTYPES)
        at_least("--batch-tokens", self.batch_tokens, 1)
        tags = [names.tag_of(name) for name in self.encoder]
        if len(set(tags)) < len(tags):
            raise UserError("two --encoder end in the same name; rename one of their folders")
        document_range(self.documents)


@dataclass(frozen=True)
class Scored:
    """What one encoder reached on one parallel text.

    Attributes:
        name: The two languages, such as ``fra-eng``.
        pairs: Of sentences.
        truncated: Sentences that were longer than allowed and lost their end.
        steps: Step of ``STEPS`` -> accuracy.
    """

    name: str
    pairs: int
    truncated: int
    steps: Mapping[str, Accuracy]


@dataclass(frozen=True)
class Encoded:
    """One encoder: how it was used and what it reached.

    Attributes:
        settings: What decides its vectors.
        scored: By parallel text.
    """

    settings: "EncoderSettings"
    scored: Sequence[Scored]

    def average(self, step: str) -> Accuracy:
        """Mean over the texts, each counting once."""
        reached = [text.steps[step] for text in self.scored]
        return Accuracy(fmean(a.forward for a in reached), fmean(a.backward for a in reached))


@dataclass(frozen=True)
class Report:
    """Scores of all encoders; as a string, a table each.

    Attributes:
        data: Where the text is.
        encoders: Tag -> what it reached.
    """

    data: str
    encoders: Mapping[str, Encoded]

    def __str__(self) -> str:
        return "\n\n".join([HEADING, *(_table(tag, each) for tag, each in self.encoders.items())])

    def to_json(self) -> dict[str, Any]:
        """All scores, as shares, with the settings that made them."""
        return {
            "data": self.data,
            "calibration": "statistics of the test text itself, each side's own",
            "encoders": {
                tag: {
                    "settings": asdict(each.settings),
                    "pairs": {
                        text.name: {"pairs": text.pairs, "truncated": text.truncated}
                        | {step: _plain(reached) for step, reached in text.steps.items()}
                        for text in each.scored
                    },
                    AVERAGE: {step: _plain(each.average(step)) for step in STEPS},
                }
                for tag, each in self.encoders.items()
            },
        }


def _plain(reached: Accuracy) -> dict[str, float]:
    return reached._asdict() | {"mean": reached.mean}


def _table(tag: str, encoded: Encoded) -> str:
    """A line a text, three columns a step."""
    used = encoded.settings
    layer = "the last layer" if used.layer == -1 else f"layer {used.layer}"
    prefix = f"prefix {used.query_prefix!r}" if used.query_prefix else "no prefix"
    rows = [["", ""], ["", "pairs"]]
    for label in LABELS.values():
        rows[0] += [label, "", ""]
        rows[1] += DIRECTIONS
    lines = [(text.name, str(text.pairs), text.steps) for text in encoded.scored]
    lines.append((AVERAGE, "", {step: encoded.average(step) for step in STEPS}))
    for name, pairs, steps in lines:
        shares = [share for step in STEPS for share in (*steps[step], steps[step].mean)]
        rows.append([name, pairs, *(f"{100 * share:.1f}" for share in shares)])
    cut = sum(text.truncated for text in encoded.scored)
    notes = [f"{cut} sentences were cut at {used.query_length} tokens"] if cut else []
    return "\n".join([f"{tag}: {used.pooling} of {layer}, {prefix}", grid(rows), *notes])


def run(config: TatoebaConfig) -> Report:
    """Run the benchmark.

    Raises:
        UserError: If the text, a language, the encoder or the settings cannot be used.
    """
    from ccpretrieve.model.checkpoint import default_encoder

    texts = read_parallel(config.data, config.languages)
    if (documents := document_range(config.documents)) is not None:
        texts = [text.part(documents) for text in texts]
    encoders = {}
    for name in config.encoder or (default_encoder(),):
        encoder = load(name, config)
        encoders[names.tag_of(name)] = Encoded(encoder.settings, measure(encoder, texts))
    report = Report(str(config.data), encoders)
    if config.output is not None:
        make_directory(config.output.parent)
        write_json(config.output, report.to_json())
    return report


def load(name: str, config: TatoebaConfig) -> "Encoder":
    """Open a checkpoint for pooled vectors as they are, without its own calibration if it has one.

    Raises:
        UserError: If there is no such checkpoint, or the settings cannot work.
    """
    from ccpretrieve.model.encoder import Encoder

    asked = ("pooling", "layer", "max_length", "query_prefix", "batch_tokens", "device", "dtype")
    settings = {setting: getattr(config, setting) for setting in asked}
    encoder = Encoder.load(name, normalize=False, **settings)
    if encoder.calibration is not None:
        logger.info("%s: its own calibration is left out; this benchmark fits its own", name)
        encoder.calibration = None
    return encoder


def measure(encoder: "Encoder", texts: Sequence[ParallelText]) -> list[Scored]:
    """Encode both sides of each text and score them.

    Args:
        encoder: Without calibration; not normalising.
        texts: Each of at least two pairs.
    """
    sides = _Sides(encoder, texts)
    scored = []
    for text in texts:
        if len(text) < 2:
            raise UserError(f"{text.name}: one pair makes no test; two or more are needed")
        (x, cut_x), (y, cut_y) = (sides.encode(side) for side in text.sides)
        reached = Scored(text.name, len(text), cut_x + cut_y, accuracy_by_step(x, y))
        shown = ", ".join(f"{step} {100 * reached.steps[step].mean:.1f}" for step in STEPS)
        logger.info("%s, %s: %s", names.tag_of(encoder.name), text.name, shown)
        scored.append(reached)
    return scored


class _Sides:
    """Encodes sides of parallel texts; one that several texts share is encoded once."""

    def __init__(self, encoder: "Encoder", texts: Iterable[ParallelText]) -> None:
        self.encoder = encoder
        self.uses = Counter(tuple(side) for text in texts for side in text.sides)
        self.kept: dict[tuple[str, ...], tuple[Embeddings, int]] = {}

    def encode(self, side: Sequence[str]) -> tuple["Embeddings", int]:
        """Vectors, and how many sentences were cut."""
        key = tuple(side)
        if key in self.kept:
            return self.kept[key]
        encoded = self.encoder.embed_queries(side)
        result = encoded.vectors, encoded.truncated
        if self.uses[key] > 1:
            self.kept[key] = result
        return result


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    command(run, TatoebaConfig, "benchmarks.tatoeba", argv)


if __name__ == "__main__":
    main()
