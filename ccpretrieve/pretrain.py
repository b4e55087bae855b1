"""Pretrain an encoder: ``python -m ccpretrieve.pretrain --corpus DIR --encoder E --output DIR``.

    documents --census, cleaning--> windows --CCP and masked modelling--> checkpoint

Algorithm 1 of the paper (section 3.1) with the settings of section 4. The projection head is
thrown away at the end; what is left is a checkpoint that ``python -m ccpretrieve.encode`` takes.
"""

import contextlib
import dataclasses
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ccpretrieve.commandline import command
from ccpretrieve.errors import UserError
from ccpretrieve.files import (
    PARTIAL,
    make_directory,
    only_writer,
    sync_directory,
    sync_files,
    write_json,
    writing_failed,
)
from ccpretrieve.training_config import SCRATCH_LAYERS, PretrainConfig
from ccpretrieve.values import plain

if TYPE_CHECKING:
    from ccpretrieve.data.documents import DocumentSource
    from ccpretrieve.data.parallel import ParallelText
    from ccpretrieve.model.settings import EncoderSettings
    from ccpretrieve.training.alignment import ParallelEvaluation
    from ccpretrieve.training.ccp import CcpObjective
    from ccpretrieve.training.process import Processes
    from ccpretrieve.training.states import States
    from ccpretrieve.training.trainer import Progress

logger = logging.getLogger("ccpretrieve.pretrain")  # __name__ is __main__ under python -m

REPORT = "report.json"


def run(config: PretrainConfig) -> Path | None:
    """Pretrain.

    Returns:
        The checkpoint; None in all processes but the first.

    Raises:
        UserError: If there is nothing to learn from or to start from, the run cannot be begun or
            resumed, or it went wrong; the last good state is kept.
    """
    from ccpretrieve.training.process import Processes
    from ccpretrieve.training.states import FOLDER, States

    folder = config.output / FOLDER
    processes = Processes(config, folder)
    with _alone(config, processes):
        states = States(config.output, processes)
        _check_output(config, states)
        asked = {name: plain(value) for name, value in vars(config).items()}
        states.check(asked, resume=config.resume)
        found = inputs(config, processes)  # before anything is written or removed
        states.begin(asked, resume=config.resume)
        try:
            objective, settings = prepare(config, found, folder, processes)
        except UserError:
            if processes.first and not config.resume:
                states.clear()
            raise
        processes.track("ccp", asked)
        try:
            progress = _train(config, objective, processes, states)
            if processes.first:
                _finish(config, objective, settings, states, progress)
            processes.wait()
        finally:
            processes.end()
    return config.output if processes.first else None


@contextlib.contextmanager
def _alone(config: PretrainConfig, processes: "Processes") -> Iterator[None]:
    """Hold the lock of the output; the first process does for all."""
    with contextlib.ExitStack() as stack:
        if processes.first:
            make_directory(config.output)
            stack.enter_context(only_writer(config.output, "training"))
        yield


def _check_output(config: PretrainConfig, states: "States") -> None:
    if not config.resume and states.newest() is None and (config.output / "config.json").exists():
        raise UserError(f"--output {config.output}: holds a checkpoint; choose another folder")
    corpus = Path(config.corpus).expanduser()
    if corpus.is_dir() and config.output.resolve().is_relative_to(corpus.resolve()):
        raise UserError(
            f"--output {config.output}: lies in the folder of --corpus, where all files are read "
            "as documents; choose another folder"
        )


class Inputs(NamedTuple):
    """What is there to learn from and to score.

    Attributes:
        sources: Code of a language -> its documents.
        evaluated: Parallel text; empty for no evaluation.
    """

    sources: "dict[str, DocumentSource]"
    evaluated: "list[ParallelText]"


def inputs(config: PretrainConfig, processes: "Processes") -> Inputs:
    """Find what the run needs: what can be wrong is said before hours of work.

    Raises:
        UserError: If there is nothing to learn from, to start from, or to score, or not the memory.
    """
    from ccpretrieve.data.documents import open_documents

    evaluated = _evaluated(config)
    width = _check_start(config)
    sources = open_documents(config.corpus, config.languages)
    _check_memory(config, width, len(sources), processes)
    return Inputs(sources, evaluated)


def prepare(
    config: PretrainConfig, found: Inputs, folder: Path, processes: "Processes"
) -> "tuple[CcpObjective, EncoderSettings]":
    """Everything that is trained and learned from.

    Returns:
        The objective, and the settings of the checkpoint that comes of it.

    Raises:
        UserError: If there is nothing to learn from, or the encoder cannot be made or loaded.
    """
    import torch

    from ccpretrieve.model import trainable
    from ccpretrieve.training import preparation
    from ccpretrieve.training.ccp import CcpObjective
    from ccpretrieve.training.health import Health

    sources = found.sources
    censuses = preparation.take_censuses(config, sources, folder, processes)
    path = preparation.start_checkpoint(config, sources, censuses, folder, processes)
    torch.manual_seed(config.seed)
    layers = None if config.trim_vocabulary or config.from_scratch else config.layers
    start = trainable.load(path, masked=config.mlm_share > 0, layers=layers)
    if config.freeze_embeddings:
        start.encoder.get_input_embeddings().requires_grad_(False)
    if config.gradient_checkpointing:
        trainable.recompute_activations(start.whole)
    settings = _settings(config, path)
    prefix = settings.query_prefix
    trainable.check_prefix(start.tokenizer, prefix, config.max_length)  # it may be a new one
    batcher = preparation.make_batcher(
        config, sources, censuses, start.tokenizer, prefix, processes
    )
    objective = CcpObjective(
        config,
        start,
        settings.pooling,
        batcher,
        processes,
        Health(),
        _evaluation(config, found.evaluated, start.tokenizer, prefix, processes),
    )
    if config.compile:
        objective.module.hidden = torch.compile(objective.module.hidden, dynamic=True)
    torch.manual_seed(config.seed + 1 + processes.rank)  # dropout differs between processes
    return objective, settings


def _check_start(config: PretrainConfig) -> int:
    """Fail if what is known without the corpus cannot work.

    Returns:
        D, the width of the encoder.
    """
    from ccpretrieve.model import trainable
    from ccpretrieve.model.checkpoint import default_encoder, locate

    if config.from_scratch:
        return config.scratch_width
    path = locate(config.encoder or default_encoder())
    return trainable.check(
        path,
        masked=config.mlm_share > 0,
        layers=config.layers,
        prefix=_settings(config, path).query_prefix,
        length=config.max_length,
        whole_words=config.whole_words,
    )


def _check_memory(
    config: PretrainConfig, width: int, languages: int, processes: "Processes"
) -> None:
    """Fail if the head, the encoder made or the banks cannot fit; say how large the banks grow."""
    from ccpretrieve.model import trainable
    from ccpretrieve.training.ccp import memory_bank

    bytes_each, device = trainable.BYTES, processes.device
    hidden, output = config.head_hidden or width, config.head_output or width
    size = (width + output) * hidden * (2 if config.head == "two" else 1)
    what = f"a projection head of {width} x {hidden} x {output}"
    way = "lower --head-hidden or --head-output"
    trainable.check_memory(what, size * bytes_each, device, way)
    if config.from_scratch:
        layers = config.layers or SCRATCH_LAYERS
        size = (config.scratch_vocabulary + config.max_length + 12 * layers * width) * width
        what = f"an encoder of {layers} layers, --scratch-width {width}"
        way = "lower --scratch-width, --layers or --max-length"
        trainable.check_memory(what, size * bytes_each, device, way)
    bank = memory_bank(config, output, device)
    most = bank.most_bytes(languages)
    what = f"--bank-size {config.bank_size} x {languages} languages"
    way = "lower it, or use --bank-dtype bfloat16"
    trainable.check_memory(what, most, bank.device, way)
    if most:
        logger.info("memory bank: up to %.2g GB in %d languages", most / 1e9, languages)


def _settings(config: PretrainConfig, path: Path) -> "EncoderSettings":
    """Those of the checkpoint that comes of it, and of the sentences it is trained on."""
    from ccpretrieve.model.settings import read_settings

    settings, _ = read_settings(path, config.encoder or str(path))
    settings = settings.override(
        pooling=config.pooling, query_prefix=config.prefix, passage_prefix=config.prefix
    )
    similarity = "cosine" if config.l2 else "dot"  # what the loss compared by
    return dataclasses.replace(
        settings, layer=-1, similarity=similarity, normalize=config.l2, calibration=None
    )


def _evaluated(config: PretrainConfig) -> "list[ParallelText]":
    from ccpretrieve.training.alignment import read_texts

    if config.eval_parallel is None:
        return []
    return read_texts(config.eval_parallel, config.eval_languages, config.eval_documents)


def _evaluation(
    config: PretrainConfig,
    texts: "list[ParallelText]",
    tokenizer: Any,
    prefix: str,
    processes: "Processes",
) -> "ParallelEvaluation | None":
    from ccpretrieve.training.alignment import ParallelEvaluation

    if not texts:
        return None
    return ParallelEvaluation(
        texts, tokenizer, prefix=prefix, length=config.max_length, device=processes.device
    )


def _train(
    config: PretrainConfig, objective: "CcpObjective", processes: "Processes", states: "States"
) -> "Progress":
    from ccpretrieve.training.trainer import Trainer

    progress = Trainer(config, objective, processes, states).run()
    if progress.step < config.max_steps:
        logger.info(
            "stopped after %s minutes at step %d of %d; --resume goes on",
            *(config.max_minutes, progress.step, config.max_steps),
        )
    health = objective.watch.health
    for warning in health.verdict():
        logger.warning("%s", warning)
    if not health.verdict():
        logger.info("%s; %s says more", health.assurance(), states.folder / REPORT)
    return progress


def _finish(
    config: PretrainConfig,
    objective: "CcpObjective",
    settings: "EncoderSettings",
    states: "States",
    progress: "Progress",
) -> None:
    """Write the checkpoint, of the best state where states were scored, and the report."""
    step = progress.step
    if progress.best_step is not None and progress.best_step != step:
        step = progress.best_step
        objective.module.load_state_dict(states.load(step)[0]["module"])
        logger.info("the state of step %d scored best; it becomes the checkpoint", step)
    export(objective, settings, config.output)
    report = {
        "step": progress.step,
        "exported_step": step,
        "seconds": progress.seconds,
        "tokens": progress.tokens,
        "losses": progress.losses,
        "scores": progress.scores,
        "best": progress.best,
        "truncated_sentences": objective.batcher.truncated,
        "passes": {name: s.passes for name, s in objective.batcher.streams.items()},
        "dropped": {n: dict(s.cleaner.dropped) for n, s in objective.batcher.streams.items()},
        "health": objective.watch.health.summary(),
    }
    write_json(states.folder / REPORT, report)
    _say_truncated(config, objective, progress)


def _say_truncated(config: PretrainConfig, objective: "CcpObjective", progress: "Progress") -> None:
    """Say how many sentences lost their end, of those of this process."""
    windows = progress.step * config.accumulated_batch_size // objective.processes.count
    sentences, cut = windows * (1 + config.contexts), objective.batcher.truncated
    if cut:
        logger.info(
            "%d of about %d sentences were cut to --max-length %d tokens, the prefix among them",
            *(cut, sentences, config.max_length),
        )


def export(objective: "CcpObjective", settings: "EncoderSettings", output: Path) -> None:
    """Write encoder, tokenizer and settings as a checkpoint; each file whole, config.json last.

    Raises:
        UserError: If it cannot be written.
    """
    from ccpretrieve.model.part import os_error

    partial = output / f"export{PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(objective, settings, make_directory(partial))
        for file in sorted(partial.rglob("*"), key=lambda path: path.name == "config.json"):
            if file.is_file():
                target = output / file.relative_to(partial)
                make_directory(target.parent)
                file.replace(target)
        sync_directory(output)
    except Exception as error:
        if (reason := os_error(error)) is None:
            raise
        raise writing_failed(output, reason) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(objective: "CcpObjective", settings: "EncoderSettings", folder: Path) -> None:
    """All files of the checkpoint, durable."""
    from ccpretrieve.model.settings import write_settings
    from ccpretrieve.model.tower import quiet_transformers

    with quiet_transformers():
        objective.module.whole.base_model.save_pretrained(folder)
        objective.batcher.tokenizer.save_pretrained(folder)
    write_settings(folder, settings)
    sync_files(folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`PretrainConfig`."""
    command(
        run,
        PretrainConfig,
        "pretrain",
        argv,
        kept="--resume goes on from the last state, if one was written",
    )


if __name__ == "__main__":
    main()
