"""An item of the checklist: what was published, and how it is measured here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Value = float | int | str | None  # a float is a score; an int or words are right or wrong
Column = Mapping[str, Value]  # quantity -> value
Values = Mapping[str, Mapping[str, Value]]  # quantity -> column -> value

ONLY = "value"  # the column of an item that has one
PRETRAINED = "a checkpoint as the paper pretrained it"


@dataclass(frozen=True)
class AtHand:
    """What items are measured with.

    Attributes:
        data: Folder of all corpora.
        encoder: That stand-ins use; None for none.
        ablations: Folder of the finished cells of :mod:`benchmarks.ablations`.
        quiet: Whether to say nothing.
    """

    data: Path
    encoder: str | None
    ablations: Path
    quiet: bool = False


@dataclass(frozen=True)
class Item:
    """One table, row or claim.

    Attributes:
        name: As given to ``--run``.
        place: Where it stands in the paper, or what it is.
        command: What a reader types, line by line.
        needs: Data, hours, disk, GPU of a full run.
        expected: What was published; None where that is in no text we have.
        source: By whom.
        stand_in: What is measured instead; empty where it is the very thing.
        measure: Gives one column; None where only the command can.
        lacks: What is not there to measure a column; empty if nothing.
        encoder: Whose vectors are measured; None for that of ``--encoder``, empty for none.
        kept: Whether measuring takes so long that it is done when asked for, and kept.
        digits: Decimal places of scores.
    """

    name: str
    place: str
    command: str
    needs: str
    expected: Values = field(default_factory=dict)
    source: str = ""
    stand_in: str = ""
    measure: Callable[[AtHand, str], Column] | None = None
    lacks: Callable[[AtHand, str], str] = lambda at, column: PRETRAINED
    encoder: str | None = ""
    kept: bool = False
    digits: int = 3

    @property
    def columns(self) -> list[str]:
        """All columns, in order."""
        return list(dict.fromkeys(name for row in self.expected.values() for name in row))
