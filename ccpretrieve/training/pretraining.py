"""Pretraining by contrastive context prediction, from its settings to its checkpoint (3.1, 4)."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch

from ccpretrieve.data.documents import open_documents
from ccpretrieve.data.parallel import ParallelText
from ccpretrieve.errors import UserError
from ccpretrieve.model import trainable
from ccpretrieve.model.checkpoint import default_encoder, locate
from ccpretrieve.model.settings import EncoderSettings, read_settings
from ccpretrieve.training import preparation
from ccpretrieve.training.alignment import ParallelEvaluation, read_texts
from ccpretrieve.training.ccp import CcpObjective, memory_bank
from ccpretrieve.training.export import Part, export
from ccpretrieve.training.health import Health
from ccpretrieve.training.process import Processes
from ccpretrieve.training.session import REPORT, Work
from ccpretrieve.training.states import FOLDER
from ccpretrieve.training.trainer import Progress
from ccpretrieve.training_config import SCRATCH_LAYERS, PretrainConfig

logger = logging.getLogger(__name__)


class Pretraining(Work[PretrainConfig]):
    """Documents of one language or several, one Transformer."""

    name = "ccp"
    some_unused = True  # a batch is CCP or MLM

    def find(self, processes: Processes) -> None:
        """See :meth:`Work.find`."""
        config = self.config
        _check_output(config)
        self._evaluated = _evaluated(config)
        width = _check_start(config)
        self._sources = open_documents(config.corpus, config.languages)
        _check_memory(config, width, len(self._sources), processes)

    def prepare(self, folder: Path, processes: Processes) -> CcpObjective:
        """See :meth:`Work.prepare`."""
        config, sources = self.config, self._sources
        censuses = preparation.take_censuses(config, sources, folder, processes)
        path = preparation.start_checkpoint(config, sources, censuses, folder, processes)
        torch.manual_seed(config.seed)
        layers = None if config.trim_vocabulary or config.from_scratch else config.layers
        start = trainable.load(path, masked=config.mlm_share > 0, layers=layers)
        if config.freeze_embeddings:
            start.encoder.get_input_embeddings().requires_grad_(False)
        if config.gradient_checkpointing:
            trainable.recompute_activations(start.whole)
        self.settings = _settings(config, path)
        prefix = self.settings.query_prefix
        trainable.check_prefix(start.tokenizer, prefix, config.max_length)  # it may be a new one
        batcher = preparation.make_batcher(
            config, sources, censuses, start.tokenizer, prefix, processes
        )
        self.objective = CcpObjective(
            config,
            start,
            self.settings.pooling,
            batcher,
            processes,
            Health(),
            _evaluation(config, self._evaluated, start.tokenizer, prefix, processes),
        )
        if config.compile:
            self.objective.module.hidden = torch.compile(self.objective.module.hidden, dynamic=True)
        torch.manual_seed(config.seed + 1 + processes.rank)  # dropout differs between processes
        return self.objective

    def export(self) -> None:
        """See :meth:`Work.export`."""
        objective = self.objective
        part = Part("", objective.module.whole.base_model, objective.batcher.tokenizer)
        export([part], self.settings, self.config.output)

    def report(self, progress: Progress) -> dict[str, Any]:
        """See :meth:`Work.report`."""
        batcher, health = self.objective.batcher, self.objective.watch.health
        for warning in health.verdict():
            logger.warning("%s", warning)
        if not health.verdict():
            logger.info(
                "%s; %s says more", health.assurance(), self.config.output / FOLDER / REPORT
            )
        _say_truncated(self.config, self.objective, progress)
        return {
            "truncated_sentences": batcher.truncated,
            "passes": {name: s.passes for name, s in batcher.streams.items()},
            "dropped": {n: dict(s.cleaner.dropped) for n, s in batcher.streams.items()},
            "health": health.summary(),
        }


def _check_output(config: PretrainConfig) -> None:
    corpus = Path(config.corpus).expanduser()
    if corpus.is_dir() and config.output.resolve().is_relative_to(corpus.resolve()):
        raise UserError(
            f"--output {config.output}: lies in the folder of --corpus, where all files are read "
            "as documents; choose another folder"
        )


def _check_start(config: PretrainConfig) -> int:
    """Fail if what is known without the corpus cannot work.

    Returns:
        D, the width of the encoder.
    """
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


def _check_memory(config: PretrainConfig, width: int, languages: int, processes: Processes) -> None:
    """Fail if the head, the encoder made or the banks cannot fit; say how large the banks grow."""
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


def _settings(config: PretrainConfig, path: Path) -> EncoderSettings:
    """Those of the checkpoint that comes of it, and of the sentences it is trained on."""
    settings, _ = read_settings(path, config.encoder or str(path))
    settings = settings.override(
        pooling=config.pooling, query_prefix=config.prefix, passage_prefix=config.prefix
    )
    similarity = "cosine" if config.l2 else "dot"  # what the loss compared by
    return dataclasses.replace(
        settings, layer=-1, similarity=similarity, normalize=config.l2, calibration=None
    )


def _evaluated(config: PretrainConfig) -> list[ParallelText]:
    """The translations that are scored while training; none unless asked for."""
    if config.eval_parallel is None:
        return []
    return read_texts(config.eval_parallel, config.eval_languages, config.eval_documents)


def _evaluation(
    config: PretrainConfig,
    texts: list[ParallelText],
    tokenizer: Any,
    prefix: str,
    processes: Processes,
) -> ParallelEvaluation | None:
    """What scores them; None where there are none."""
    if not texts:
        return None
    return ParallelEvaluation(
        texts, tokenizer, prefix=prefix, length=config.max_length, device=processes.device
    )


def _say_truncated(config: PretrainConfig, objective: CcpObjective, progress: Progress) -> None:
    """Say how many sentences lost their end, of those of this process."""
    windows = progress.step * config.accumulated_batch_size // objective.processes.count
    sentences, cut = windows * (1 + config.contexts), objective.batcher.truncated
    if cut:
        logger.info(
            "%d of about %d sentences were cut to --max-length %d tokens, the prefix among them",
            *(cut, sentences, config.max_length),
        )
