"""Fine-tuning by DPR's objective, from its settings to its checkpoint (section 4.3)."""

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

import torch

from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.model import trainable
from ccpretrieve.model.checkpoint import PASSAGE, QUERY, default_encoder, locate, tower
from ccpretrieve.model.passes import pass_tokens
from ccpretrieve.model.settings import EncoderSettings, read_settings
from ccpretrieve.retrieval.store import differences
from ccpretrieve.training import dpr_preparation as preparation
from ccpretrieve.training.dpr import DPR, DprModule, DprObjective
from ccpretrieve.training.export import Part, export
from ccpretrieve.training.process import Processes
from ccpretrieve.training.session import Work
from ccpretrieve.training.trainer import Progress, accumulation

logger = logging.getLogger(__name__)


class Finetuning(Work[FinetuneConfig]):
    """Questions and passages, one tower or two."""

    name = DPR

    def find(self, processes: Processes) -> None:
        """See :meth:`Work.find`."""
        config = self.config
        self._sources = preparation.open_sources(config)
        self._path = locate(config.encoder or default_encoder())
        self.settings = _settings(config, self._path)
        settings = self.settings
        for role, prefix, length in (
            (QUERY, settings.query_prefix, settings.query_length),
            (PASSAGE, settings.passage_prefix, settings.passage_length),
        ):
            trainable.check(
                tower(self._path, role),
                masked=False,
                layers=config.layers,
                prefix=prefix,
                length=length,
                whole_words=False,
                flag=f"--{role}-length",
            )

    def prepare(self, folder: Path, processes: Processes) -> DprObjective:
        """See :meth:`Work.prepare`."""
        config = self.config
        torch.manual_seed(config.seed)
        self._towers = preparation.load_towers(config, self._path)
        query, passage = self._towers
        inputs = preparation.tokenizing(self.settings, query.tokenizer)
        evaluation = preparation.make_evaluation(  # first: what is wrong there shows sooner
            config, self._sources.dev, inputs, folder, processes
        )
        self.batcher = preparation.make_batcher(
            config, self._sources.train, inputs, folder, processes
        )
        module = DprModule(
            query,
            passage,
            self.settings.pooling,
            config.pass_tokens or pass_tokens(processes.device, 4096),
            config.chunk_size,
        )
        if config.compile:
            module.compile_towers()
        torch.manual_seed(config.seed + 1 + processes.rank)  # dropout differs between processes
        self._updates = updates(config, self.batcher.steps_per_epoch, processes.count)
        logger.info(
            "%d examples, %d updates in at most %g epochs",
            *(len(self.batcher.store), self._updates, config.epochs),
        )
        if config.warmup_steps >= self._updates:
            logger.warning(
                "--warmup-steps %d: the rate never rises to --learning-rate in %d updates; warm up "
                "for fewer, or train for longer",
                *(config.warmup_steps, self._updates),
            )
        return DprObjective(config, module, self.batcher, processes, evaluation)

    def steps(self) -> int:
        """See :meth:`Work.steps`."""
        return self._updates

    def export(self) -> None:
        """See :meth:`Work.export`."""
        query, passage = self._towers
        parts = [Part("", query.whole, query.tokenizer)]
        if passage is not None:
            parts = [
                Part(QUERY, query.whole, query.tokenizer),
                Part(PASSAGE, passage.whole, passage.tokenizer),
            ]
        export(parts, self.settings, self.config.output)

    def report(self, progress: Progress) -> dict[str, Any]:
        """See :meth:`Work.report`."""
        counts = self.batcher.counts
        for what in ("questions", "passages"):
            if cut := counts[f"truncated_{what}"]:
                logger.info("%d of %d %s were cut", cut, counts[what], what)
        return {"epoch": self.batcher.epoch, "examples": len(self.batcher.store), "seen": counts}


def _settings(config: FinetuneConfig, path: Path) -> EncoderSettings:
    """Those of the checkpoint that comes of it, and of the text it is trained on."""
    own, _ = read_settings(path, config.encoder or str(path))
    settings = own.override(
        pooling=config.pooling,
        query_length=config.query_length,
        passage_length=config.passage_length,
        query_prefix=config.query_prefix,
        passage_prefix=config.passage_prefix,
        title=config.title,
    )
    settings = dataclasses.replace(
        settings,
        layer=-1,
        similarity=config.similarity,
        normalize=config.similarity == "cosine",
        strip_question_mark=config.strip_question_mark,
        calibration=None,
    )
    if changed := differences(vars(own), vars(settings)):
        logger.info("settings of the start that change: %s", "; ".join(changed))
    return settings


def updates(config: FinetuneConfig, batches: int, processes: int) -> int:
    """Updates that --epochs and --max-steps leave.

    Args:
        config: Of the run.
        batches: Of one process in an epoch.
        processes: How many there are.
    """
    passes = accumulation(config, processes)
    return max(1, math.ceil(min(config.epochs * batches / passes, config.max_steps)))
