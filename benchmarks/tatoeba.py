"""Tatoeba (section 4.2): is the nearest sentence of the other language the translation?

    python -m benchmarks.tatoeba --data data/tatoeba --encoder runs/ccp --pooling mean --layer 14
    python -m benchmarks.tatoeba --data data/ntrex --languages ja ko --encoder a b --output F.json
    python -m benchmarks.tatoeba --data data/tatoeba --languages xnli --calibration F.safetensors
    python -m benchmarks.tatoeba --data data/docs_aligned --pairs all --encoder E --isomorphism
    python -m benchmarks.tatoeba --data data/tatoeba --languages fra jpn --layer all --vectors V

Reads the layouts of :mod:`ccpretrieve.data.parallel`. For each pair of languages: accuracy in both
directions and their mean, raw and after each step of the calibration (3.2), fitted on the test text
itself, which is an upper bound, and with ``--calibration`` on other text. Both sides are encoded as
questions, since neither is a passage that answers the other; with untied towers that is the query
tower. The prefix is the checkpoint's own for questions (the e5 family asks for it on both sides
where texts are alike), none if it states none; --query-prefix overrules it. Vectors are compared by
cosine, and calibrated before they are brought to unit length.

Pairs without English (``--pairs``) are taken as the folder has them, else joined at the English
sentences that both languages have; ``python -m benchmarks.parallel_builder`` makes larger ones from
a dump of Tatoeba. What is lost when English leaves the pair is in a column of its own.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from benchmarks.bitext_report import Report
from benchmarks.bitext_scores import Encoded, Scored, Scorer
from benchmarks.bitext_texts import ALL, Trial, check_size, find_trials, pairs_of
from benchmarks.drawing import SUFFIXES, check_installed, save
from ccpretrieve.commandline import command
from ccpretrieve.config import DTYPES, FORMATS, POOLINGS, Config, Many, Switch, at_least, one_of
from ccpretrieve.data.parallel import ParallelText, document_range
from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory, read_json, write_json
from ccpretrieve.retrieval import names
from ccpretrieve.retrieval.bitext import STEPS
from ccpretrieve.values import from_words

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

logger = logging.getLogger("ccpretrieve.benchmarks.tatoeba")

LAYERS = Path("runs/tatoeba/layers.json")


def _layer(hint: Any, tokens: Sequence[Any]) -> int | str:
    """The value of ``--layer`` from its words."""
    if tokens[-1].value == ALL:
        return ALL
    number: int = from_words(int, tokens)
    return number


@dataclass(frozen=True, kw_only=True)
class TatoebaConfig(Config):
    """Score how well translations find each other, before and after calibration.

    Attributes:
        data: Folder of parallel text: fra-eng.fra with fra-eng.eng, or fr.txt with en.txt.
        encoder: Checkpoint directories or hub names, a table each. Default: CCPRETRIEVE_ENCODER.
        languages: Codes or names of languages beside English; also xtreme (36) and xnli (14).
            Default: all there are, or none with --pairs.
        pairs: Pairs without English, such as fra-deu: as the folder has them, else joined at equal
            English sentences; all for every one that it has, among --languages if these are given.
        documents: Only lines of these documents, counted from 1, such as 81-123. Default: all.
        pooling: cls or mean. Default: the checkpoint's.
        layer: Hidden states to pool: 0 the embeddings, -1 the last; all for a curve over layers.
            Default: the checkpoint's.
        max_length: Tokens kept of a sentence. Default: the checkpoint's.
        query_prefix: Put before every sentence. Default: the checkpoint's for questions.
        calibration: File that `python -m ccpretrieve.calibrate` wrote, one for each --encoder.
        isomorphism: Measure how alike in shape the languages' vectors are, too.
        vectors: Folder to keep vectors in, so that they are not made again.
        batch_tokens: Tokens of a forward pass, padding included.
        device: Any torch device.
        dtype: float32, bfloat16 or float16.
        format: text, json, markdown, latex or html.
        output: JSON file for all scores. With --layer all a picture lies beside it, in SVG and PNG;
            default then: runs/tatoeba/layers.json.
    """

    data: Path
    encoder: Annotated[tuple[str, ...], Many] = ()
    languages: Annotated[tuple[str, ...], Many] = ()
    pairs: Annotated[tuple[str, ...], Many] = ()
    documents: str | None = None
    pooling: str | None = None
    layer: Annotated[int | str | None, Parameter(converter=_layer)] = None
    max_length: int | None = None
    query_prefix: str | None = None
    calibration: Annotated[tuple[Path, ...], Many] = ()
    isomorphism: Annotated[bool, Switch] = False
    vectors: Path | None = None
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None
    format: str = "text"
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("pooling", self.pooling, POOLINGS)
        one_of("dtype", self.dtype, DTYPES)
        one_of("format", self.format, FORMATS)
        at_least("--batch-tokens", self.batch_tokens, 1)
        tags = [names.tag_of(name) for name in self.encoder]
        if len(set(tags)) < len(tags):
            raise UserError("two --encoder end in the same name; rename one of their folders")
        if isinstance(self.layer, str) and self.layer != ALL:
            raise UserError(f"--layer {self.layer!r}: give a number, or all")
        if self.layer == ALL and self.output is not None and self.output.suffix in SUFFIXES:
            raise UserError(f"--output {self.output}: the picture's own name; name a .json file")
        self._check_calibration()
        document_range(self.documents)
        if self.pairs != (ALL,):
            pairs_of(self.pairs)

    def _check_calibration(self) -> None:
        count = len(self.encoder) or 1
        if self.calibration and len(self.calibration) != count:
            raise UserError(
                f"--calibration: {len(self.calibration)} files for {count} encoders; a file is of "
                "one encoder: give one for each, in the same order"
            )
        if self.calibration and self.layer == ALL:
            raise UserError("--calibration is of one layer; it does not go with --layer all")


def run(config: TatoebaConfig) -> Report:
    """Run the benchmark.

    Raises:
        UserError: If the text, a language, the encoder or the settings cannot be used.
    """
    from ccpretrieve.model.checkpoint import default_encoder

    check_output(config)
    if config.layer == ALL:
        check_installed()
    trials = find_trials(config.data, config.languages, config.pairs, config.documents)
    encoders: dict[str, Encoded] = {}
    curves: dict[str, list[Encoded]] = {}
    for number, name in enumerate(config.encoder or (default_encoder(),)):
        file = config.calibration[number] if config.calibration else None
        encoder, scorer = load(name, config, file)
        check_calibrated(scorer, trials)
        scored = measure(encoder, trials, scorer, shape=config.isomorphism, vectors=config.vectors)
        tag = names.tag_of(name)
        if config.layer != ALL:
            (texts,) = scored.values()
            encoders[tag] = Encoded(encoder.settings, texts, file.name if file else "")
            continue
        settings = encoder.settings
        curves[tag] = [
            Encoded(replace(settings, layer=layer), texts) for layer, texts in scored.items()
        ]
        encoders |= {f"{tag} layer {each.settings.layer}": each for each in curves[tag]}
    report = Report(str(config.data), encoders, config.format, curves)
    write(report, config)
    return report


def place(config: TatoebaConfig) -> Path | None:
    """The file of the scores, if there is to be one."""
    return config.output or (LAYERS if config.layer == ALL else None)


def check_output(config: TatoebaConfig) -> None:
    """Fail if the scores would take the place of something else.

    Raises:
        UserError: If a folder, or a file that holds no scores, is there.
    """
    output = place(config)
    if output is None or not output.exists():
        return
    if output.is_dir():
        raise UserError(f"--output {output}: a folder; name a file")
    other = UserError(f"--output {output}: is there and holds no scores; name another file")
    try:
        content = read_json(output)
    except UserError as error:
        raise other from error
    if not isinstance(content, dict) or "encoders" not in content:
        raise other


def write(report: Report, config: TatoebaConfig) -> None:
    """Write the scores, and the picture of a curve, where they are asked for."""
    output = place(config)
    if output is None:
        return
    make_directory(output.parent)
    write_json(output, report.to_json())
    if report.curves:
        from benchmarks.bitext_plot import draw_layers

        paths = save(lambda: draw_layers(report.curves), output.with_suffix(""))
        logger.info("%s and %s: accuracy by layer", *paths)


# -- encoding and scoring --


def load(
    name: str, config: TatoebaConfig, calibration: Path | None = None
) -> "tuple[Encoder, Scorer]":
    """Open a checkpoint for pooled vectors as they are, and a calibration to be applied to them.

    A calibration that is the checkpoint's own is left out.

    Raises:
        UserError: If there is no such checkpoint or file, the calibration was fitted on other
            vectors, or the settings cannot work.
    """
    from benchmarks.layered import LayeredEncoder
    from ccpretrieve.model.encoder import Encoder

    asked = ("pooling", "max_length", "query_prefix", "batch_tokens", "device", "dtype")
    settings: dict[str, Any] = {setting: getattr(config, setting) for setting in asked}
    kind = LayeredEncoder if config.layer == ALL else Encoder
    layer = config.layer if isinstance(config.layer, int) else None
    settings |= {"layer": layer, "normalize": False}
    encoder = kind.load(name, calibration=calibration, calibrated=False, **settings)
    if encoder.settings.calibration is not None and calibration is None:
        logger.info("%s: its own calibration is left out; --calibration takes one", name)
    scorer = Scorer(encoder.calibration)
    encoder.calibration = None
    return encoder, scorer


def check_calibrated(scorer: Scorer, trials: Sequence[Trial]) -> None:
    """Fail if a calibration serves none of the texts.

    Raises:
        UserError: Naming the languages that it has.
    """
    if scorer.calibration is None:
        return
    there = set(scorer.calibration.languages)
    if not any(set(trial.text.languages) <= there for trial in trials):
        raise UserError(
            f"{scorer.calibration.path}: has statistics of {', '.join(sorted(there))}, of both "
            "languages of no text; fit one on them with python -m ccpretrieve.calibrate"
        )


def measure(
    encoder: "Encoder",
    trials: Sequence[Trial],
    scorer: Scorer | None = None,
    *,
    shape: bool = False,
    vectors: Path | None = None,
) -> dict[int, list[Scored]]:
    """Encode both sides of each text and score them.

    Args:
        encoder: Without calibration; not normalising. A ``LayeredEncoder`` gives all layers.
        trials: Each text of at least two pairs.
        scorer: With the calibration, if there is one.
        shape: Measure isomorphism too.
        vectors: Folder where vectors are kept.

    Returns:
        Layer -> what was reached, in the order of ``trials``.
    """
    from benchmarks.bitext_vectors import Sides, digest

    scorer = scorer or Scorer()

    def key(text: ParallelText, *, shape: bool) -> tuple[str, ...]:
        return (text.name, *(digest(side) for side in text.sides), str(shape))

    texts = {key(trial.text, shape=shape): trial.text for trial in trials}
    texts |= {key(text, shape=False): text for trial in trials for text in trial.english}
    sides = Sides(encoder, texts.values(), vectors)
    known: dict[tuple[str, ...], dict[int, Scored]] = {}

    def scored(text: ParallelText, *, shape: bool) -> dict[int, Scored]:
        check_size(text)
        this = key(text, shape=shape)
        if this not in known:
            x, y = (sides.encode(side) for side in text.sides)
            cut = x.truncated + y.truncated
            known[this] = {
                layer: scorer.score(text, x.layers[layer], y.layers[layer], cut, shape=shape)
                for layer in x.layers
            }
        return known[this]

    tag = names.tag_of(encoder.name)
    found: dict[int, list[Scored]] = {}
    for trial in trials:
        english = [scored(text, shape=False) for text in trial.english]
        for layer, reached in scored(trial.text, shape=shape).items():
            beside = tuple(each[layer] for each in english)
            reached = replace(reached, english=beside, same=trial.same)
            found.setdefault(layer, []).append(reached)
            shown = ", ".join(f"{step} {100 * reached.steps[step].mean:.1f}" for step in STEPS)
            logger.info("%s, layer %d, %s: %s", tag, layer, trial.text.name, shown)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    command(run, TatoebaConfig, "benchmarks.tatoeba", argv)


if __name__ == "__main__":
    main()
