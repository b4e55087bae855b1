"""Pretrain an encoder: ``python -m ccpretrieve.pretrain --corpus DIR --encoder E --output DIR``.

    documents --census, cleaning--> windows --CCP and masked modelling--> checkpoint

Algorithm 1 of the paper (section 3.1) with the settings of section 4. The projection head is
thrown away at the end; what is left is a checkpoint that ``python -m ccpretrieve.encode`` takes.
"""

from collections.abc import Sequence
from pathlib import Path

from ccpretrieve.commandline import command
from ccpretrieve.training_config import KEPT, PretrainConfig


def run(config: PretrainConfig) -> Path | None:
    """Pretrain.

    Returns:
        The checkpoint; None in all processes but the first.

    Raises:
        UserError: If there is nothing to learn from or to start from, the run cannot be begun or
            resumed, or it went wrong; the last good state is kept.
    """
    from ccpretrieve.training.pretraining import Pretraining
    from ccpretrieve.training.session import carry_out

    return carry_out(Pretraining(config))


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`PretrainConfig`."""
    command(run, PretrainConfig, "pretrain", argv, kept=KEPT)


if __name__ == "__main__":
    main()
