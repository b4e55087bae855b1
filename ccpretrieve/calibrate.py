"""Fit a calibration: ``python -m ccpretrieve.calibrate --encoder E --texts DIR --output F``.

    texts of each language --Encoder--> vectors as pooled --fit--> one file of statistics
    folders of `encode --no-normalize` --------^

Then ``encode --calibration F --lang ja`` and ``search --lang fi`` apply it (section 3.2).
"""

import hashlib
import itertools
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve.calibration_config import QUERY, ROTATE, CalibrateConfig
from ccpretrieve.commandline import command
from ccpretrieve.data.languages import language
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import make_directory, writing_failed

if TYPE_CHECKING:
    from ccpretrieve.data.documents import DocumentSource
    from ccpretrieve.model.calibration_file import Embeddings
    from ccpretrieve.model.encoder import Encoder
    from ccpretrieve.model.fitting import Fitted
    from ccpretrieve.retrieval.store import Shard, Store

logger = logging.getLogger("ccpretrieve.calibrate")
LEAST = 2  # texts that have a mean and a spread
BLOCK = 2048  # texts that are embedded together


@dataclass
class Text:
    """What one language's statistics come from; filled while it is read.

    Attributes:
        blocks: Its vectors as pooled, shape ``(N, D)`` each.
        source: Where its text is.
        digest: SHA-256 over the texts, a line each; of stored vectors, over what their shards say
            of their passages.
    """

    blocks: "Iterator[Embeddings]"
    source: str
    digest: Any = field(default_factory=hashlib.sha256)


def run(config: CalibrateConfig) -> str:
    """Fit and write the calibration.

    Returns:
        What was learned of each language, as text.

    Raises:
        UserError: If there is no such text or encoder, or too little text.
    """
    from ccpretrieve.model.calibration_file import Calibration
    from ccpretrieve.model.fitting import Plan, fit

    pivot = language(config.pivot).code
    _check_output(config.output)
    texts, encoder = _of_embeddings(config) if config.embeddings else _of_texts(config)
    plan = Plan(
        config.chosen,
        pivot,
        config.statistic,
        config.share,
        config.rotation_rows,
        config.seed,
    )
    fitted = fit({code: text.blocks for code, text in texts.items()}, plan)
    notes = {
        "encoder": encoder,
        "steps": list(config.chosen),
        "statistic": config.statistic,
        "shrinkage": config.shrinkage,
        "pivot": pivot if ROTATE in config.chosen else None,
        "languages": {code: _note(texts[code], each) for code, each in fitted.items()},
    }
    make_directory(config.output.parent)
    Calibration({code: each.spread for code, each in fitted.items()}, notes).save(config.output)
    return _report(config, fitted)


def _check_output(output: Path) -> None:
    """Fail if the file cannot be written, or would take the place of something else.

    Raises:
        UserError: If it is a folder, or a file that is no calibration.
    """
    from ccpretrieve.model.calibration_file import Calibration

    if output.is_dir():
        raise UserError(f"--output {output}: a folder; name a file")
    if output.exists():
        try:
            Calibration.load(output)
        except UserError as error:
            raise UserError(
                f"--output {output}: is there and is no calibration; name another file"
            ) from error
    above = next(folder for folder in output.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise writing_failed(output, error) from error


def _of_texts(config: CalibrateConfig) -> tuple[dict[str, Text], dict[str, Any]]:
    """Documents of each language, embedded sentence by sentence."""
    from ccpretrieve.data.documents import open_documents
    from ccpretrieve.model.encoder import Encoder

    assert config.texts is not None
    sources = open_documents(config.texts, config.languages)
    encoder = Encoder.load(
        config.encoder,
        device=config.device,
        dtype=config.dtype,
        batch_tokens=config.batch_tokens,
        normalize=False,
        calibrated=False,
        pooling=config.pooling,
        layer=config.layer,
        max_length=config.max_length,
        query_prefix=config.query_prefix,
        passage_prefix=config.passage_prefix,
    )
    _check_enough(config, sources, encoder.dim)
    texts = {}
    for code, source in sources.items():
        text = texts[code] = Text(iter(()), config.texts)
        text.blocks = _embedded(config, encoder, source, text)
    settings = encoder.settings
    return texts, {
        "name": encoder.name,
        "fingerprint": encoder.fingerprint,
        "pooling": settings.pooling,
        "layer": settings.layer,
        "role": config.role,
        "prefix": settings.query_prefix if config.role == QUERY else settings.passage_prefix,
    }


def _embedded(
    config: CalibrateConfig, encoder: "Encoder", source: "DocumentSource", text: Text
) -> "Iterator[Embeddings]":
    from tqdm import tqdm

    from ccpretrieve.data.sentences import distinct

    sentences = itertools.islice(distinct(source), config.most)
    embed = encoder.encode_queries if config.role == QUERY else encoder.encode_passages
    quiet = config.quiet or not sys.stderr.isatty()
    with tqdm(desc=source.language, unit=" texts", disable=quiet, leave=False) as bar:
        while block := list(itertools.islice(sentences, BLOCK)):
            for sentence in block:
                text.digest.update(sentence.encode("utf-8", "surrogatepass") + b"\n")
            yield embed(block)
            bar.update(len(block))


def _check_enough(
    config: CalibrateConfig, sources: "Mapping[str, DocumentSource]", dim: int
) -> None:
    """Fail before anything is embedded if a language has too little text.

    Raises:
        UserError: Saying how much there is, and how much is needed.
    """
    from ccpretrieve.data.sentences import distinct
    from ccpretrieve.model.matching import rows_needed

    rotated = ROTATE in config.chosen
    least = rows_needed(dim) if rotated else LEAST
    for flag, most in (("--most", config.most), ("--rotation-rows", config.rotation_rows)):
        if rotated and most < least:
            raise UserError(f"{flag} {most}: a rotation of {dim} dimensions needs {least} texts")
    for code, source in sources.items():
        count = sum(1 for _ in itertools.islice(distinct(source), least))
        if count < least:
            what = f"a rotation of {dim} dimensions" if rotated else "a mean and a spread"
            way = "leave rotate out of --steps" if rotated else "leave it out of --languages"
            raise UserError(
                f"{code}: {count} texts; {what} needs {least} or more; {way}, or give more text"
            )


def _of_embeddings(config: CalibrateConfig) -> tuple[dict[str, Text], dict[str, Any]]:
    """Vectors that `encode` left, language by language."""
    from ccpretrieve.retrieval import meta
    from ccpretrieve.retrieval.store import Store

    stores: dict[str, list[Store]] = {}
    encoders: list[dict[str, Any]] = []
    seen: set[Path] = set()
    wanted = [language(name).code for name in config.languages]
    for folder in config.embeddings:
        store = Store.open(meta.shards(folder))
        if store.path.resolve() in seen:
            raise UserError(f"--embeddings {folder}: its vectors are named twice")
        seen.add(store.path.resolve())
        store.check_complete()
        code = _language(folder, store.recipe)
        encoders.append(_encoder(folder, store.recipe))
        if encoders[0] != encoders[-1]:
            raise UserError(f"{folder}: was made otherwise than {config.embeddings[0]}")
        if not wanted or code in wanted:
            stores.setdefault(code, []).append(store)
    for asked in wanted:
        if asked not in stores:
            raise UserError(f"--embeddings: {unknown('language', asked, tuple(stores))}")
    texts = {}
    for code, of_one in stores.items():
        text = texts[code] = Text(
            iter(()), ", ".join(store.recipe["corpus"]["name"] for store in of_one)
        )
        text.blocks = _stored(config, of_one, text)
    return texts, encoders[0]


def _language(folder: Path, recipe: Mapping[str, Any]) -> str:
    code: str = recipe["corpus"]["language"]
    if not code:
        raise UserError(f"{folder}: says no language; encode it again with --lang")
    return code


def _encoder(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """How the vectors of a folder were made."""
    made, settings = recipe["encoder"], recipe["encoder"]["settings"]
    if settings["normalize"] or made["calibration"]:
        how = "of unit length" if settings["normalize"] else "calibrated already"
        raise UserError(
            f"{folder}: its vectors are {how}; statistics are of vectors as pooled: encode under "
            "another --tag with --no-normalize and without calibration"
        )
    return {
        "name": made["name"],
        "fingerprint": made["fingerprint"],
        "pooling": settings["pooling"],
        "layer": settings["layer"],
        "role": "passage",
        "prefix": settings["passage_prefix"],
    }


def _stored(
    config: CalibrateConfig, stores: "Sequence[Store]", text: Text
) -> "Iterator[Embeddings]":
    left = config.most
    for store in stores:
        for shard in store.shards.values():
            rows = _rows_of_one_language(store, shard)[:left]
            left -= len(rows)
            text.digest.update(shard.passages.encode())
            if rows:
                yield store.vectors(shard)[rows]


def _rows_of_one_language(store: "Store", shard: "Shard") -> list[int]:
    """Rows of the passages that hold text.

    Raises:
        UserError: If a passage is tagged with another language than its corpus.
    """
    from ccpretrieve.data.tags import code_of

    code = store.recipe["corpus"]["language"]
    rows = []
    for row, passage in enumerate(store.passages(shard)):
        if passage.language and code_of(passage.language) != code:
            raise UserError(
                f"{store.path.parent}: is said to be in {code}, and passage {passage.id} is in "
                f"{passage.language}; encode each language by itself, or give the text as --texts"
            )
        if not passage.is_empty:
            rows.append(row)
    return rows


def _note(text: Text, fitted: "Fitted") -> dict[str, Any]:
    """What the file says of one language."""
    outcome = fitted.rotation
    return {
        "texts": fitted.count,
        "source": text.source,
        "sha256": text.digest.hexdigest(),
        "shift_shrunk": fitted.shift_shrunk,
        "scale_shrunk": fitted.scale_shrunk,
        "rotation": outcome
        and {
            "start": outcome.start,
            "criterion": outcome.criterion,
            "threshold": outcome.threshold,
            "failed": outcome.failed,
            "reason": outcome.reason,
        },
    }


def _report(config: CalibrateConfig, fitted: "Mapping[str, Fitted]") -> str:
    """A line a language."""
    lines = [f"{config.output}: {', '.join(config.chosen)} of {len(fitted)} languages"]
    for code, each in fitted.items():
        said = [f"{each.count} texts"]
        for what, share in (("mean", each.shift_shrunk), ("spread", each.scale_shrunk)):
            if share is not None and share >= 0.005:
                said.append(f"{what} {share:.0%} from the others")
        if each.rotation is not None:
            said.append(each.rotation.reason)
        lines.append(f"{code}: {', '.join(said)}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`CalibrateConfig`."""
    command(run, CalibrateConfig, "calibrate", argv)


if __name__ == "__main__":
    main()
