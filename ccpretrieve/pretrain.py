"""Pretrain an encoder: ``python -m ccpretrieve.pretrain --corpus DIR --encoder E --output DIR``.

    documents --census, cleaning--> windows --CCP and masked modelling--> checkpoint

Algorithm 1 of the paper (section 3.1) with the settings of section 4. The projection head is
thrown away at the end; what is left is a checkpoint that ``python -m ccpretrieve.encode`` takes.
"""

import contextlib
import dataclasses
import errno
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from ccpretrieve.training_config import PretrainConfig
from ccpretrieve.values import plain

if TYPE_CHECKING:
    from ccpretrieve.data.parallel import ParallelText
    from ccpretrieve.model.settings import EncoderSettings
    from ccpretrieve.training.alignment import ParallelEvaluation
    from ccpretrieve.training.ccp import CcpObjective
    from ccpretrieve.training.process import Processes
    from ccpretrieve.training.states import States
    from ccpretrieve.training.trainer import Progress

logger = logging.getLogger(__name__)

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
        states.begin(asked, resume=config.resume)
        processes.track("ccp", asked)
        try:
            objective, settings = prepare(config, folder, processes)
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


def prepare(
    config: PretrainConfig, folder: Path, processes: "Processes"
) -> "tuple[CcpObjective, EncoderSettings]":
    """Everything that is trained and learned from.

    Returns:
        The objective, and the settings of the checkpoint that comes of it.

    Raises:
        UserError: If there is nothing to learn from, to start from, or to score.
    """
    import torch

    from ccpretrieve.data.documents import open_documents
    from ccpretrieve.model import trainable
    from ccpretrieve.model.checkpoint import default_encoder, locate
    from ccpretrieve.model.settings import read_settings
    from ccpretrieve.training import preparation
    from ccpretrieve.training.ccp import CcpObjective
    from ccpretrieve.training.health import Health

    evaluated = _evaluated(config)  # what can be wrong is found before hours of work
    if not config.from_scratch:
        locate(config.encoder or default_encoder())
    sources = open_documents(config.corpus, config.languages)
    censuses = preparation.take_censuses(config, sources, folder, processes)
    path = preparation.start_checkpoint(config, sources, censuses, folder, processes)
    torch.manual_seed(config.seed)
    layers = None if config.trim_vocabulary or config.from_scratch else config.layers
    start = trainable.load(path, masked=config.mlm_share > 0, layers=layers)
    trainable.check_length(path, start.encoder, config.max_length)
    if config.whole_words and not start.tokenizer.is_fast:
        raise UserError(f"{path}: --whole-words needs a fast tokenizer (tokenizer.json)")
    if config.freeze_embeddings:
        start.encoder.get_input_embeddings().requires_grad_(False)
    if config.gradient_checkpointing:
        trainable.recompute_activations(start.whole)
    settings, _ = read_settings(path, config.encoder or str(path))
    settings = settings.override(
        pooling=config.pooling, query_prefix=config.prefix, passage_prefix=config.prefix
    )
    similarity = "cosine" if config.l2 else "dot"  # what the loss compared by
    settings = dataclasses.replace(
        settings, layer=-1, similarity=similarity, normalize=config.l2, calibration=None
    )
    prefix = settings.query_prefix
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
        _evaluation(config, evaluated, start.tokenizer, prefix, processes),
    )
    if config.compile:
        objective.module.hidden = torch.compile(objective.module.hidden, dynamic=True)
    torch.manual_seed(config.seed + 1 + processes.rank)  # dropout differs between processes
    return objective, settings


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
    verdict = objective.watch.health.verdict()
    for warning in verdict:
        logger.warning("%s", warning)
    if not verdict:
        logger.info("healthy: no leak, no collapse; %s says more", states.folder / REPORT)
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


def export(objective: "CcpObjective", settings: "EncoderSettings", output: Path) -> None:
    """Write encoder, tokenizer and settings as a checkpoint; each file whole, config.json last.

    Raises:
        UserError: If it cannot be written.
    """
    from safetensors import SafetensorError

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
    except SafetensorError as error:
        reason = OSError(errno.EIO, " ".join(str(error).split())[:200])
        raise writing_failed(output, reason) from error
    except OSError as error:
        raise writing_failed(output, error) from error
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
