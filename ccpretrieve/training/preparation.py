"""What pretraining needs before its first step: a census, a start, and the data (section 4).

census of each language    how much there is, what cleaning drops, boilerplate
start                      a checkpoint, its vocabulary cut or its layers too; or from scratch
batcher                    windows of all languages, one language a batch
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ccpretrieve.data.batches import Batcher, Masking
from ccpretrieve.data.cleaning import Census, Cleaner, CleaningRules, take_census
from ccpretrieve.data.documents import DocumentSource
from ccpretrieve.data.mixture import LanguageDraw, Sampling, WindowStream, smoothed
from ccpretrieve.errors import UserError
from ccpretrieve.files import read_json, write_json
from ccpretrieve.model import vocabulary
from ccpretrieve.model.checkpoint import default_encoder, locate
from ccpretrieve.training.process import Processes
from ccpretrieve.training.states import CENSUS, START
from ccpretrieve.training_config import SCRATCH_LAYERS, PretrainConfig

logger = logging.getLogger(__name__)

Sources = Mapping[str, DocumentSource]


def take_censuses(
    config: PretrainConfig, sources: Sources, folder: Path, processes: Processes
) -> dict[str, Census]:
    """Look at each language once; the first process does, the others read what it found.

    Raises:
        UserError: If a language has less than one batch, or a run that is resumed was begun with
            other languages.
    """
    path = folder / CENSUS

    def take() -> None:
        if path.is_file():
            return
        rules = CleaningRules(min_characters=config.min_characters)
        taken = {
            name: take_census(source, rules, config.census_documents)
            for name, source in sources.items()
        }
        for census in taken.values():
            _check(census, config, processes)
        write_json(path, {name: census.to_json() for name, census in taken.items()})

    processes.lead(take)
    censuses = _read(path)
    if set(censuses) != set(sources):
        raise UserError(
            f"--corpus {config.corpus}: the run was begun with documents in "
            f"{', '.join(sorted(censuses))}; there are {', '.join(sorted(sources))} now; put back "
            "what has changed, or start anew in another --output"
        )
    if processes.first:
        for census in censuses.values():
            logger.info("%s", describe(census))
    return censuses


def _read(path: Path) -> dict[str, Census]:
    """What was found before.

    Raises:
        UserError: If the file is damaged.
    """
    try:
        return {name: Census.from_json(value) for name, value in read_json(path).items()}
    except (UserError, AttributeError, TypeError, KeyError) as error:
        raise UserError(f"{path}: damaged; remove it and documents are counted anew") from error


def _check(census: Census, config: PretrainConfig, processes: Processes) -> None:
    """Fail if a language has too little; what a census has not seen to its end may have more."""
    if not census.complete:
        return
    language, dropped = census.language, f"dropped: {_dropped(census)}"
    if census.sentences < config.batch_size:
        raise UserError(
            f"{language}: {census.sentences} sentences are left after cleaning, fewer than "
            f"a batch of {config.batch_size}; leave it out with --languages, or lower --batch-size "
            f"({dropped})"
        )
    none = "no document has" if not census.usable else f"only {census.usable} documents have"
    each = f" for {processes.count} processes" if processes.count > 1 else ""
    if census.usable < processes.count:
        raise UserError(
            f"{language}: {none} two sentences left after cleaning{each}, so there is no pair to "
            f"learn from; look at its text, or leave it out of --languages ({dropped})"
        )
    if config.positive == "random" and census.usable < 2 * processes.count:
        raise UserError(
            f"{language}: {none} two sentences left after cleaning{each}, and --positive random "
            "takes sentences of another one; leave it out of --languages"
        )


def _dropped(census: Census) -> str:
    """How many sentences were dropped for what."""
    counts = [f"{count} {reason}" for reason, count in census.dropped.items() if count]
    return ", ".join(counts) or "none"


def describe(census: Census) -> str:
    """One line about a language."""
    seen = "" if census.complete else " (the first of more)"
    return (
        f"{census.language}: {census.documents} documents{seen}, {census.sentences} sentences, "
        f"dropped: {_dropped(census)}"
    )


def start_checkpoint(
    config: PretrainConfig,
    sources: Sources,
    censuses: Mapping[str, Census],
    folder: Path,
    processes: Processes,
) -> Path:
    """The checkpoint that training starts from; made if it has to be.

    Raises:
        UserError: If there is no encoder, or it cannot be trimmed.
    """
    if not (config.from_scratch or config.trim_vocabulary):
        return locate(config.encoder or default_encoder())
    made = folder / START

    def make() -> None:
        if not made.is_dir():
            _make_start(config, _as_encoded(config, sentences(config, sources, censuses)), made)

    processes.lead(make)
    return made


def _make_start(config: PretrainConfig, texts: Iterator[str], made: Path) -> None:
    """A new encoder for these texts, or one with their vocabulary only."""
    if not config.from_scratch:
        source = locate(config.encoder or default_encoder())
        _report(vocabulary.trim(source, made, texts, layers=config.layers))
        return
    vocabulary.from_scratch(
        made,
        texts,
        vocabulary=config.scratch_vocabulary,
        width=config.scratch_width,
        layers=config.layers or SCRATCH_LAYERS,
        heads=config.scratch_heads,
        positions=config.max_length,
        seed=config.seed,
    )


def _as_encoded(config: PretrainConfig, texts: Iterator[str]) -> Iterator[str]:
    """Sentences as they will be tokenised: behind the prefix that was asked for, if one was."""
    return (config.prefix + text for text in texts) if config.prefix else texts


def _report(trimmed: vocabulary.Trimmed) -> None:
    share = "" if trimmed.coverage is None else f"; {trimmed.coverage:.2%} of held-out tokens kept"
    logger.info(
        "vocabulary: %d of %d tokens kept%s", trimmed.tokens_kept, trimmed.tokens_before, share
    )


def sentences(
    config: PretrainConfig, sources: Sources, censuses: Mapping[str, Census]
) -> Iterator[str]:
    """Cleaned sentences of the documents that the census looked at."""
    for name, source in sources.items():
        cleaner = _cleaner(config, censuses[name])
        for number, (document, _) in enumerate(source.documents()):
            if number == config.census_documents:
                break
            yield from cleaner.clean(document)


def _cleaner(config: PretrainConfig, census: Census) -> Cleaner:
    rules = CleaningRules(min_characters=config.min_characters)
    return Cleaner(census.language, rules, census.boilerplate)


def make_batcher(
    config: PretrainConfig,
    sources: Sources,
    censuses: Mapping[str, Census],
    tokenizer: Any,
    prefix: str,
    processes: Processes,
) -> Batcher:
    """The data of this process; all processes draw the same language and task at each step."""
    sampling = Sampling(config.radius, config.contexts, config.shuffle_buffer, config.positive)
    streams = {
        name: WindowStream(
            source,
            _cleaner(config, censuses[name]),
            sampling,
            seed=config.seed,
            shard=processes.rank,
            shards=processes.count,
        )
        for name, source in sources.items()
    }
    return Batcher(
        streams,
        LanguageDraw(probabilities(config, sources, censuses), config.seed),
        tokenizer,
        windows=config.batch_size,
        length=config.max_length,
        prefix=prefix,
        masking=Masking(config.mlm_share, config.mlm_probability, config.whole_words),
        seed=config.seed,
        shard=processes.rank,
    )


def probabilities(
    config: PretrainConfig, sources: Sources, censuses: Mapping[str, Census]
) -> dict[str, float]:
    """p_l: by characters where every census is complete, else by the sources' own weight.

    Where a source does not say how much it has, all languages are drawn alike, and the log says so.
    """
    if all(census.complete for census in censuses.values()):
        sizes = {name: census.characters for name, census in censuses.items()}
        return smoothed(sizes, config.language_exponent)
    weights = {name: source.weight for name, source in sources.items()}
    if all(weights.values()):
        return smoothed(weights, config.language_exponent)
    logger.info("how much text each language has is not known; all are drawn alike")
    return smoothed(dict.fromkeys(weights, 1), 0.0)
