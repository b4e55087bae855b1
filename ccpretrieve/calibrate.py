"""Fit a calibration: ``python -m ccpretrieve.calibrate --encoder E --texts DIR --output F``.

    texts of each language --Encoder--> vectors as pooled --fit--> one file of statistics
    folders of `encode --no-normalize` --------^

Then ``encode --calibration F --lang ja`` and ``search --lang fi`` apply it (section 3.2).
"""

import hashlib
import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccpretrieve.calibration_config import QUERY, ROTATE, CalibrateConfig
from ccpretrieve.commandline import command
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import make_directory

if TYPE_CHECKING:
    from ccpretrieve.data.documents import DocumentSource
    from ccpretrieve.model.calibration_file import Embeddings
    from ccpretrieve.model.encoder import Encoder
    from ccpretrieve.model.fitting import Fitted
    from ccpretrieve.retrieval.store import Store

logger = logging.getLogger("ccpretrieve.calibrate")
BLOCK = 2048  # texts that are embedded together


@dataclass
class Text:
    """What one language's statistics come from; filled while it is read.

    Attributes:
        blocks: Its vectors as pooled, shape ``(N, D)`` each.
        source: Where its text is.
        digest: SHA-256 over the texts, a line each.
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

    if config.output.is_dir():
        raise UserError(f"--output {config.output}: a folder; name a file")
    texts, encoder = _of_embeddings(config) if config.embeddings else _of_texts(config)
    plan = Plan(
        config.chosen,
        config.pivot,
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
        "pivot": config.pivot if ROTATE in config.chosen else None,
        "languages": {code: _note(texts[code], each) for code, each in fitted.items()},
    }
    make_directory(config.output.parent)
    Calibration({code: each.spread for code, each in fitted.items()}, notes).save(config.output)
    return _report(config, fitted)


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
        pooling=config.pooling,
        layer=config.layer,
        max_length=config.max_length,
        query_prefix=config.query_prefix,
        passage_prefix=config.passage_prefix,
    )
    encoder.calibration = None
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


def _of_embeddings(config: CalibrateConfig) -> tuple[dict[str, Text], dict[str, Any]]:
    """Vectors that `encode` left, language by language."""
    from ccpretrieve.retrieval import meta
    from ccpretrieve.retrieval.store import Store

    stores: dict[str, list[Store]] = {}
    encoders: list[dict[str, Any]] = []
    for folder in config.embeddings:
        store = Store.open(meta.shards(folder))
        store.check_complete()
        code = _language(folder, store.recipe)
        encoders.append(_encoder(folder, store.recipe))
        if encoders[0] != encoders[-1]:
            raise UserError(f"{folder}: was made otherwise than {config.embeddings[0]}")
        if not config.languages or code in config.languages:
            stores.setdefault(code, []).append(store)
    for asked in config.languages:
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
            vectors = store.vectors(shard)[:left]
            left -= len(vectors)
            text.digest.update(shard.passages.encode())
            if len(vectors):
                yield vectors


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
            said.append(each.rotation.reason or f"rotated ({each.rotation.start})")
        lines.append(f"{code}: {', '.join(said)}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`CalibrateConfig`."""
    command(run, CalibrateConfig, "calibrate", argv)


if __name__ == "__main__":
    main()
