"""Figure 1: the clouds of two languages on the plane, before and after the calibration (3.2).

    python -m benchmarks.figure1 --data data/tatoeba --languages en ar --encoder xlmr runs/ccp
    python -m benchmarks.figure1 --data data/ntrex --languages ja th --encoder E --projection umap
    python -m benchmarks.figure1 --accuracies tatoeba.json

Parallel text (:mod:`ccpretrieve.data.parallel`) is parted in two. ``--points`` pairs are drawn, and
``--marked`` of them joined by lines and numbered. Shift and scale are each language's own and are
fitted on the other pairs, of other documents where the folder names them, or on the text of
``--fitted-on``; no sentence that is drawn is fitted on. Vectors are pooled, not brought to unit
length, and projected by PCA of both clouds together, each panel's own. Accuracy is by cosine in all
dimensions, among the pairs drawn.

In ``--output``: the picture as SVG and PNG, and a JSON file with its figures and sentences; for
``--accuracies`` a picture an encoder, of accuracy per language from raw to calibrated.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks.clouds import Column, Panel, Picture, draw_clouds
from benchmarks.drawing import Fonts, check_installed, save
from benchmarks.gains import draw_gains, read_gains
from benchmarks.projection import PROJECTIONS, Projection, calibrate, panel, projection
from benchmarks.sample import Sample, choose
from benchmarks.table import grid
from ccpretrieve.commandline import command
from ccpretrieve.config import DTYPES, POOLINGS, Config, Many, at_least, one_of
from ccpretrieve.data.languages import language
from ccpretrieve.errors import UserError
from ccpretrieve.files import make_directory, slug, write_json
from ccpretrieve.retrieval import names

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

logger = logging.getLogger("ccpretrieve.benchmarks.figure1")


@dataclass(frozen=True, kw_only=True)
class Figure1Config(Config):
    """Draw two languages before and after calibration, and gains per language.

    Attributes:
        data: Folder of parallel text: fra-eng.fra with fra-eng.eng, or fr.txt with en.txt.
        languages: Two codes or names.
        encoder: One or two checkpoint directories or hub names. Default: CCPRETRIEVE_ENCODER.
        names: What to call the encoders in the picture. Default: the end of their own names.
        fitted_on: Folder of parallel text the calibration is fitted on. Default: the pairs of
            --data that are not drawn.
        projection: pca; umap (needs umap-learn) or tsne (needs scikit-learn).
        pooling: cls or mean, for all encoders or one each. Default: the checkpoint's.
        layer: Hidden states to pool, 0 the embeddings, -1 the last; for all encoders or one each.
            Default: the checkpoint's.
        max_length: Tokens kept of a sentence. Default: the checkpoint's.
        query_prefix: Put before every sentence. Default: the checkpoint's for questions.
        points: Pairs of sentences drawn.
        marked: Of them, pairs that are joined and numbered, of the shorter half.
        seed: Of the choice of pairs, and of umap and tsne.
        font: Font files for scripts that no installed font has.
        batch_tokens: Tokens of a forward pass, padding included.
        device: Any torch device.
        dtype: float32, bfloat16 or float16.
        accuracies: JSON file of `python -m benchmarks.tatoeba --output`; draws its gains.
        output: Folder of the pictures.
    """

    data: Path | None = None
    languages: Annotated[tuple[str, ...], Many] = ()
    encoder: Annotated[tuple[str, ...], Many] = ()
    names: Annotated[tuple[str, ...], Many] = ()
    fitted_on: Path | None = None
    projection: str = "pca"
    pooling: Annotated[tuple[str, ...], Many] = ()
    layer: Annotated[tuple[int, ...], Many] = ()
    max_length: int | None = None
    query_prefix: str | None = None
    points: int = 400
    marked: int = 5
    seed: int = 0
    font: Annotated[tuple[Path, ...], Many] = ()
    batch_tokens: int | None = None
    device: str | None = None
    dtype: str | None = None
    accuracies: Path | None = None
    output: Path = Path("runs/figure1")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("projection", self.projection, PROJECTIONS)
        one_of("dtype", self.dtype, DTYPES)
        for pooling in self.pooling:
            one_of("pooling", pooling, POOLINGS)
        at_least("--points", self.points, 3)
        at_least("--marked", self.marked, 1)
        at_least("--seed", self.seed, 0)
        at_least("--batch-tokens", self.batch_tokens, 1)
        if self.marked > self.points:
            raise UserError(f"--marked {self.marked}: there are only {self.points} --points")
        self._check_what_is_drawn()
        for flag in ("names", "pooling", "layer"):
            self._check_count(flag)

    def _check_what_is_drawn(self) -> None:
        if self.data is None:
            if self.accuracies is None:
                raise UserError("give --data and --languages, or --accuracies, or all of them")
            for flag, value in (("encoder", self.encoder), ("languages", self.languages)):
                if value:
                    raise UserError(f"--{flag} {' '.join(value)}: goes with --data only")
            return
        codes = [language(name).code for name in self.languages]
        if len(codes) != 2 or codes[0] == codes[1]:
            raise UserError("--languages needs two different ones, such as en ar")
        if len(self.encoder) > 2:
            raise UserError(f"--encoder takes one or two, got {len(self.encoder)}")

    def _check_count(self, flag: str) -> None:
        count, encoders = len(getattr(self, flag)), max(1, len(self.encoder))
        if count not in (0, encoders) and not (count == 1 and flag != "names"):
            raise UserError(f"--{flag} has {count} values for {encoders} --encoder; give one each")

    def of(self, flag: str, number: int) -> Any:
        """The value of ``pooling``, ``layer`` or ``names`` for an encoder; None if left out."""
        values = getattr(self, flag)
        return values[number % len(values)] if values else None


@dataclass(frozen=True)
class Report:
    """What was drawn; as a string, its figures and the files.

    Attributes:
        picture: Of the clouds, if asked for.
        files: That were written.
    """

    picture: Picture | None
    files: Sequence[Path]

    def __str__(self) -> str:
        parts = [_table(self.picture)] if self.picture is not None else []
        return "\n\n".join([*parts, "\n".join(map(str, self.files))])


def run(config: Figure1Config) -> Report:
    """Draw.

    Raises:
        UserError: If the text, a language, an encoder, a font or the settings cannot be used.
    """
    check_installed()
    gains = read_gains(config.accuracies) if config.accuracies is not None else {}
    files: list[Path] = []
    picture = None
    if config.data is not None:
        picture, files = _clouds(config, config.data)
    make_directory(config.output)
    for tag, each in gains.items():
        title = f"{tag}: translation found as nearest neighbour"
        stem = config.output / f"accuracies.{slug(tag)}"
        files += save(lambda title=title, each=each: draw_gains(title, each), stem)  # type: ignore[misc]
    return Report(picture, files)


def _clouds(config: Figure1Config, data: Path) -> tuple[Picture, list[Path]]:
    """Make the picture of the clouds and write it."""
    project = projection(config.projection, config.seed)
    fonts = Fonts(config.font)
    sample = choose(
        data,
        config.languages,
        points=config.points,
        marked=config.marked,
        seed=config.seed,
        fitted_on=config.fitted_on,
    )
    from ccpretrieve.model.checkpoint import default_encoder

    encoders = config.encoder or (default_encoder(),)
    first, second = map(language, config.languages)
    picture = Picture(
        languages=(first.name.title(), second.name.title()),
        codes=(first.code, second.code),
        columns=[_column(config, i, each, sample, project) for i, each in enumerate(encoders)],
        marked=sample.marked,
        sentences=[(sample.drawn[0][row], sample.drawn[1][row]) for row in sample.marked],
        english=sample.english,
        note=sample.note,
    )
    make_directory(config.output)
    kind = "" if config.projection == "pca" else f".{config.projection}"
    stem = config.output / f"{'-'.join(picture.codes)}{kind}"
    files = save(lambda: draw_clouds(picture, fonts), stem)
    scores = stem.with_name(f"{stem.name}.json")
    write_json(scores, _to_json(config, picture, sample.lines))
    return picture, [*files, scores]


# -- vectors --


def _column(
    config: Figure1Config, number: int, name: str, sample: Sample, project: Projection
) -> Column:
    """Encode the sample and project it, before and after calibration."""
    encoder = _load(config, number, name)
    drawn, fitted, truncated = [], [], 0
    for shown, others in zip(sample.drawn, sample.fitted, strict=True):
        encoded = encoder.embed_queries([*shown, *others])
        drawn.append(encoded.vectors[: len(shown)])
        fitted.append(encoded.vectors[len(shown) :])
        truncated += encoded.truncated
    used = encoder.settings
    layer = "last layer" if used.layer == -1 else f"layer {used.layer}"
    logger.info("%s: encoded; %d sentences were cut", name, truncated)
    before = (drawn[0], drawn[1])
    return Column(
        title=config.of("names", number) or names.tag_of(name),
        settings=f"{used.pooling} pooling, {layer}",
        before=panel(before, project, name),
        after=panel(calibrate(before, (fitted[0], fitted[1])), project, name),
        truncated=truncated,
    )


def _load(config: Figure1Config, number: int, name: str) -> "Encoder":
    """An encoder for pooled vectors as they are, without a calibration of its own."""
    from ccpretrieve.model.encoder import Encoder

    encoder = Encoder.load(
        name,
        device=config.device,
        dtype=config.dtype,
        batch_tokens=config.batch_tokens,
        normalize=False,
        calibrated=False,
        pooling=config.of("pooling", number),
        layer=config.of("layer", number),
        max_length=config.max_length,
        query_prefix=config.query_prefix,
    )
    if encoder.settings.calibration is not None:
        logger.info("%s: its own calibration is left out; the picture fits its own", name)
    return encoder


# -- what is written beside the picture --


def _panels(picture: Picture) -> list[tuple[Column, str, Panel]]:
    return [
        (column, step, each)
        for column in picture.columns
        for step, each in (("before", column.before), ("after", column.after))
    ]


def _table(picture: Picture) -> str:
    """Accuracy and variance of each panel, and the marked sentences."""
    a, b = picture.languages
    rows = [["nearest neighbour, per cent", "", f"{a} ->", f"{b} ->", "mean", "shown variance"]]
    for column, step, each in _panels(picture):
        shares = [*each.accuracy, each.accuracy.mean, *([each.variance] if each.variance else [])]
        shown = [f"{100 * share:.1f}" for share in shares]
        title = f"{column.title}: {column.settings}"
        rows.append([title, step, *shown, *[""] * (4 - len(shown))])
    cut = [
        f"{column.title}: {column.truncated} sentences were cut"
        for column in picture.columns
        if column.truncated
    ]
    lines = [f"{i}  {x}\n   {y}" for i, (x, y) in enumerate(picture.sentences, 1)]
    return "\n".join([grid(rows), picture.note, *cut, "", *lines])


def _to_json(config: Figure1Config, picture: Picture, lines: Sequence[int]) -> dict[str, Any]:
    """The figures of the picture, as shares, and its marked sentences in full."""
    return {
        "languages": list(picture.codes),
        "text": picture.note,
        "projection": config.projection,
        "seed": config.seed,
        "panels": [
            {
                **{"encoder": column.title, "settings": column.settings, "calibration": step},
                **each.accuracy._asdict(),
                **{"mean": each.accuracy.mean, "variance": each.variance},
            }
            for column, step, each in _panels(picture)
        ],
        "marked": [
            {"number": number, "line": line, "sentences": list(sentences)}
            for number, (line, sentences) in enumerate(
                zip(lines, picture.sentences, strict=True), 1
            )
        ],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    command(run, Figure1Config, "benchmarks.figure1", argv)


if __name__ == "__main__":
    main()
