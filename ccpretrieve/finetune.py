"""Fine-tune an encoder: ``python -m ccpretrieve.finetune --train nq --encoder E --output DIR``.

    questions with passages --checked, trimmed--> batches --DPR's loss--> checkpoint

Section 4.3 of the paper: dense passage retrieval trained on Natural Questions, in English, and used
in all languages. What comes of it ``encode`` and ``search`` take like any checkpoint; two untied
towers are its folders ``query`` and ``passage``.
"""

from collections.abc import Sequence
from pathlib import Path

from ccpretrieve.commandline import command
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.training_config import KEPT


def run(config: FinetuneConfig) -> Path | None:
    """Fine-tune.

    Returns:
        The checkpoint; None in all processes but the first.

    Raises:
        UserError: If there is nothing to learn from or to start from, the run cannot be begun or
            resumed, or it went wrong; the last good state is kept.
    """
    from ccpretrieve.training.finetuning import Finetuning
    from ccpretrieve.training.session import carry_out

    return carry_out(Finetuning(config))


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`FinetuneConfig`."""
    command(run, FinetuneConfig, "finetune", argv, kept=KEPT)


if __name__ == "__main__":
    main()
