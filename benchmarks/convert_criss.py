"""CRISS' fairseq checkpoint to one that every command here reads.

    python -m benchmarks.convert_criss --input criss_checkpoints/criss.3rd.pt --output criss
    python -m benchmarks.tatoeba --data data/tatoeba --encoder criss

``--input`` is what ``criss_checkpoints.tar.gz`` of fairseq's examples/criss unpacks to: the model,
``dict.txt`` and the SentencePiece model. Any fairseq checkpoint of mBART's shape will do. What is
kept of it, and how text is encoded, is told in :mod:`ccpretrieve.model.criss`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ccpretrieve.commandline import command
from ccpretrieve.config import Config


@dataclass(frozen=True, kw_only=True)
class ConvertCrissConfig(Config):
    """Convert a fairseq checkpoint of CRISS or another mBART.

    Attributes:
        input: The .pt file, or a folder with one; dict.txt and the SentencePiece model beside it.
        output: Directory to create.
    """

    input: Path
    output: Path


def run(config: ConvertCrissConfig) -> str:
    """Convert it; return what was made, in words.

    Raises:
        UserError: If a file is missing, broken, unsafe or of another shape, or the output exists.
    """
    from ccpretrieve.model.criss import convert

    made = convert(config.input, config.output)
    missing = f" ({made.unknown} more are <unk>)" if made.unknown else ""
    return (
        f"{config.output}: encoder of {made.source.name}, {made.layers} layers of {made.width}, "
        f"{made.pieces} word pieces{missing}; {made.left_out} rows of language codes and <mask> "
        "left out, and the decoder"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    command(run, ConvertCrissConfig, "benchmarks.convert_criss", argv)


if __name__ == "__main__":
    main()
