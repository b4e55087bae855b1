"""The paper's tables as a checklist: command, published number, measured number, verdict.

    python -m benchmarks.reproduce --data-dir data
    python -m benchmarks.reproduce --data-dir data --run xquad tatoeba-small --encoder E
    python -m benchmarks.reproduce --data-dir data --run mrtydi-bm25
    python -m benchmarks.reproduce --list

What is offline and quick (settings, counts, finished ablations) is checked every time; what takes
an encoder or an index is measured when ``--run`` names it and kept in ``--work``, column by column,
so that a killed run goes on. The rest is ``not run``, with what it needs. Everything is written to
``benchmarks/RESULTS.md``; the items themselves are in :mod:`benchmarks.checklist`.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.checklist import items
from benchmarks.checklist_item import AtHand, Column, Item, Value, Values
from benchmarks.parts import claim
from benchmarks.table import AVERAGE, average, grid
from ccpretrieve.commandline import command
from ccpretrieve.config import DataConfig, Many, Switch
from ccpretrieve.data.registry import data_root
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import atomic, make_directory, read_json, write_json
from ccpretrieve.retrieval.scoretable import DASH, MARKDOWN

logger = logging.getLogger("ccpretrieve.benchmarks.reproduce")

OFFLINE, ALL = "offline", "all"
#: A score is a match up to half of the last digit that the paper prints, and near within a point.
MATCH_WITHIN, NEAR_WITHIN = 0.0005, 0.01
MATCH, NEAR, OFF, NOT_RUN = "match", "near", "off", "not run"
#: What is measured and has no published number to be judged by.
UNSTATED, STAND_IN = "no number", "stand-in"
ENCODER = "encoder"  # beside the values of a kept column: its name
FAILED = "it failed here"
VERDICTS = (MATCH, NEAR, OFF, UNSTATED, STAND_IN, NOT_RUN)


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig(DataConfig):
    """Check what can be checked here of the paper's tables, and say what the rest needs.

    Attributes:
        run: Items that take an encoder or an index, by name; all for every one. What is offline and
            quick is always checked.
        list_: Print the items and stop.
        encoder: Checkpoint directory or hub name, for stand-ins.
        ablations: Folder of the finished cells of `python -m benchmarks.ablations`.
        output: Markdown file that is written.
        work: Where measured items are kept.
    """

    run: Annotated[tuple[str, ...], Many] = (OFFLINE,)
    list_: Annotated[bool, Switch] = False
    encoder: str | None = None
    ablations: Path = Path("runs/ablations")
    output: Path = Path("benchmarks/RESULTS.md")
    work: Path = Path("runs/reproduce")


@dataclass(frozen=True)
class Result:
    """What became of an item.

    Attributes:
        item: The item.
        measured: Quantity -> column -> value; averages too, where no column is missing.
        reasons: Why -> columns that were not measured for it.
        encoder: Name of the one that was measured; empty if there is none.
    """

    item: Item
    measured: Values
    reasons: Mapping[str, Sequence[str]]
    encoder: str = ""

    def value(self, quantity: str, column: str) -> Value:
        """What was measured; None if nothing was."""
        return self.measured.get(quantity, {}).get(column)

    def verdict(self, quantity: str, column: str) -> str:
        """Of one number."""
        expected = self.item.expected[quantity].get(column)
        return judge(expected, self.value(quantity, column), stand_in=bool(self.item.stand_in))

    @property
    def summary(self) -> str:
        """How many verdicts of each kind."""
        found = Counter(
            self.verdict(quantity, column)
            for quantity, row in self.item.expected.items()
            for column in row
        )
        if not found.keys() - {NOT_RUN}:
            return NOT_RUN
        return ", ".join(f"{found[each]} {each}" for each in VERDICTS if found[each])


def judge(expected: Value, measured: Value, *, stand_in: bool = False) -> str:
    """The verdict on a number.

    Args:
        expected: As published: a score if it is a float, else it is right or wrong.
        measured: Here; None if it was not.
        stand_in: Whether something else was measured than was published.
    """
    if measured is None:
        return NOT_RUN
    if stand_in:
        return STAND_IN
    if expected is None:
        return UNSTATED
    if isinstance(expected, float) and isinstance(measured, float):
        gap = round(abs(expected - measured), 9)
        return MATCH if gap <= MATCH_WITHIN else NEAR if gap <= NEAR_WITHIN else OFF
    return MATCH if expected == measured else OFF


def run(config: ReproduceConfig) -> str:
    """Tick off what can be ticked off, and write the file.

    Returns:
        The checklist as a table; with ``list_`` the items.

    Raises:
        UserError: If there is no such item, or kept parts are of another encoder.
    """
    checklist = items()
    if config.list_:
        return grid([["item", "what"], *([item.name, item.place] for item in checklist)])
    names = [item.name for item in checklist]
    for name in config.run:
        if name not in (OFFLINE, ALL, *names):
            raise unknown("item", name, (OFFLINE, ALL, *names))
    at = AtHand(data_root(config.data_dir), config.encoder, config.ablations, config.quiet)
    results = [
        tick(item, at, config.work, asked=ALL in config.run or item.name in config.run)
        for item in checklist
    ]
    make_directory(config.output.parent)
    with atomic(config.output) as stream:
        stream.write(markdown(results).encode())
    logger.info("%s: written", config.output)
    return grid([[line[0], *line[2:]] for line in overview(results)])


# -- measuring --


def tick(item: Item, at: AtHand, work: Path, *, asked: bool) -> Result:
    """Measure an item, or take what is kept of it.

    Args:
        item: The item.
        at: What it is measured with.
        work: Folder of kept items.
        asked: Whether ``--run`` names it; without, nothing that takes long is measured.
    """
    measured: dict[str, dict[str, Value]] = {quantity: {} for quantity in item.expected}
    reasons: dict[str, list[str]] = {}
    encoder = ""
    for column in [name for name in item.columns if name != AVERAGE]:
        found, reason = _column(item, at, column, work / item.name, asked=asked)
        if item.kept:
            encoder = encoder or str(found.get(ENCODER, ""))
        for quantity in item.expected.keys() & found.keys():
            measured[quantity][column] = found[quantity]
        if reason:
            reasons.setdefault(reason, []).append(column)
    if not item.columns:
        reasons[_lacks(item, at, "")] = []
    return Result(
        item, {name: averaged(row, item) for name, row in measured.items()}, reasons, encoder
    )


def _column(
    item: Item, at: AtHand, column: str, folder: Path, *, asked: bool
) -> tuple[Column, str]:
    """Values of one column, and why there are none if there are not."""
    reason = _lacks(item, at, column)
    if item.measure is None:
        return {}, reason
    if not item.kept:
        return ({}, reason) if reason else (item.measure(at, column), "")
    path = folder / f"{column}.json"
    if reason or not asked:
        kept = path.is_file()
        return (
            (read_json(path), "")
            if kept
            else ({}, reason or f"not asked for (`--run {item.name}`)")
        )
    encoder = str(at.encoder if item.encoder is None else item.encoder)
    claim(folder, _identity(encoder))
    if not path.is_file():
        logger.info("%s, %s", item.name, column)
        try:
            values = item.measure(at, column)
        except UserError as error:  # which does not end the rest
            logger.warning("%s, %s: not run: %s", item.name, column, error)
            return {}, FAILED
        write_json(path, {**values, ENCODER: Path(encoder).name})
    return read_json(path), ""


def _lacks(item: Item, at: AtHand, column: str) -> str:
    missing = item.lacks(at, column)
    return f"lacks {missing}" if missing else ""


def _identity(encoder: str) -> dict[str, str]:
    """What decides kept values: an encoder's name, and its weights where they lie here."""
    from ccpretrieve.model.checkpoint import fingerprint

    weights = fingerprint(Path(encoder)) if encoder and Path(encoder).is_dir() else ""
    return {ENCODER: Path(encoder).name, "weights": weights}


def averaged(row: Mapping[str, Value], item: Item) -> dict[str, Value]:
    """A row of scores with its average, where the item has one and no language is missing."""
    if AVERAGE not in item.columns:
        return dict(row)
    scores = {column: value for column, value in row.items() if isinstance(value, float)}
    columns = [name for name in item.columns if name != AVERAGE]
    return {**row, AVERAGE: average(scores, columns)}


# -- what is shown --


def overview(results: Sequence[Result]) -> list[list[str]]:
    """A line an item: name, place, published, measured, verdict."""
    head = ["item", "where", "published", "measured", "verdict"]
    return [
        head,
        *(
            [
                result.item.name,
                result.item.place,
                _headline(result.item.expected, result.item),
                _headline(result.measured, result.item),
                result.summary,
            ]
            for result in results
        ),
    ]


def _headline(values: Values, item: Item) -> str:
    """The average of the last quantity that has one, else how many values there are."""
    means = [(name, row[AVERAGE]) for name, row in values.items() if row.get(AVERAGE) is not None]
    if means:
        name, mean = means[-1]
        return f"{_shown(mean, item)} {name}"
    count = sum(value is not None for row in values.values() for value in row.values())
    return f"{count} value{'s' * (count > 1)}" if count else DASH


def _shown(value: Value, item: Item) -> str:
    if value is None:
        return DASH
    return f"{value:.{item.digits}f}" if isinstance(value, float) else str(value)


HEADER = f"""# What is reproduced

Written by `python -m benchmarks.reproduce` and not edited by hand; `--list` names the items.

- **{MATCH}**: equal; of a score, within {MATCH_WITHIN} of what was published.
  **{NEAR}**: within {NEAR_WITHIN}. **{OFF}**: neither.
  All three only where it was measured under the conditions of the published number.
- **{UNSTATED}**: measured, but no published number is at hand to judge it by.
- **{STAND_IN}**: something smaller of the same kind was measured, which is not the paper's number.
- **{NOT_RUN}**: not measured here; the reason stands at the item, and what a full run needs.
"""


def markdown(results: Sequence[Result]) -> str:
    """The whole file."""
    sections = [part for result in results for part in _section(result)]
    return "\n\n".join([HEADER.rstrip(), _table(overview(results)), *sections]) + "\n"


def _section(result: Result) -> Iterator[str]:
    """Heading, command, numbers and reasons of an item."""
    item = result.item
    yield f"## {item.name}"
    yield f"{item.place[0].upper()}{item.place[1:]}."
    yield f"```\n{item.command}\n```"
    facts = {"Needs": item.needs, "Published": item.source, "Stand-in": item.stand_in}
    facts["Encoder"] = result.encoder
    yield "\n".join(f"- {name}: {text}" for name, text in facts.items() if text)
    rows = _down(result) if len(item.columns) == 1 else _across(result)
    if len(rows) > 1:
        yield _table(rows)
    for reason, columns in result.reasons.items():
        some = f" ({', '.join(columns)})" if 0 < len(columns) < len(item.columns) - 1 else ""
        yield f"Not run{some}: {reason}."


def _down(result: Result) -> list[list[str]]:
    """A line a quantity, for items of one column."""
    item = result.item
    (column,) = item.columns
    rows = [["", "published", "measured", "verdict"]]
    for quantity, row in item.expected.items():
        cells = [_shown(v, item) for v in (row[column], result.value(quantity, column))]
        rows.append([quantity, *cells, result.verdict(quantity, column)])
    return rows


def _across(result: Result) -> list[list[str]]:
    """Three lines a quantity, one if nothing was measured."""
    item = result.item
    rows = [["", *item.columns]]
    for quantity, row in item.expected.items():
        published = [_shown(row.get(column), item) for column in item.columns]
        if not item.stand_in:
            rows.append([f"{quantity}, published", *published])
        here = [result.value(quantity, column) for column in item.columns]
        if any(value is not None for value in here):
            rows.append([f"{quantity}, measured", *(_shown(value, item) for value in here)])
            rows.append(["verdict", *(result.verdict(quantity, column) for column in item.columns)])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A pipe table."""
    head, *body = [[cell.translate(MARKDOWN) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`ReproduceConfig`."""
    command(run, ReproduceConfig, "benchmarks.reproduce", argv, kept="measured items are kept")


if __name__ == "__main__":
    main()
