r"""Builds parallel text for pairs of languages, such as those without English (section 4.2).

    python -m benchmarks.parallel_builder --sentences sentences.csv --links links.csv \
        --pairs fra-deu jpn-kor --with-english --output data/pairs
    python -m benchmarks.parallel_builder --data data/tatoeba --pairs jpn-deu --output data/pairs
    python -m benchmarks.parallel_builder --data data/ntrex --pairs sw-th --output data/pairs

From a dump of Tatoeba (``id<TAB>language<TAB>text`` and ``id<TAB>id`` a line, as the site exports
them): a seeded draw of up to 1,000 links a pair, as many as the paper has of each. A sentence is in
at most one pair, by id and by text. Links are taken as they stand, in either direction, and not
followed from one to the next. Files are streamed, twice the sentences and once the links; what is
held is a byte for each id and the links of the pairs asked for.

From a folder of parallel text: the pair as it is there, or any two languages of aligned files, or
joined where both have the same English sentence, letter by letter. The English sides of Tatoeba's
test set differ from language to language, so that little is left; how much is reported.

What is written is Tatoeba's layout, which ``python -m benchmarks.tatoeba --data`` reads, and
``built.json``, which says from what, with which seed, and how many.
"""

import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zlib import crc32

from benchmarks.bitext_texts import FEW, PIVOT, pairs_of
from benchmarks.table import grid
from ccpretrieve.commandline import command
from ccpretrieve.config import Config, Many, Switch, at_least
from ccpretrieve.data.languages import find, language
from ccpretrieve.data.lines import MalformedError, parsed
from ccpretrieve.data.parallel import ParallelText, read_pairs
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, hash_files, make_directory, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger("ccpretrieve.benchmarks.parallel_builder")

MOST = 1000  # pairs of sentences from a dump
SPARE = 3  # times as many are read as are wanted, as some texts come twice
MOST_ID = 1_000_000_000
FILE = "built.json"


@dataclass(frozen=True, kw_only=True)
class BuilderConfig(Config):
    """Build parallel text for pairs of languages.

    Attributes:
        pairs: Such as fra-deu; the first language is the first side.
        output: Folder for the text, in Tatoeba's layout.
        data: Folder of parallel text to take or join the pairs from.
        sentences: Instead of --data, a dump's sentences.csv; may be gzipped.
        links: The same dump's links.csv.
        most: Pairs of sentences drawn for each pair of languages. Default: 1000 of a dump, all of a
            folder.
        seed: Of the draw; it does not depend on which other pairs are asked for.
        with_english: Also each language with English, for the loss when English leaves the pair.
    """

    pairs: Annotated[tuple[str, ...], Many]
    output: Path
    data: Path | None = None
    sentences: Path | None = None
    links: Path | None = None
    most: int | None = None
    seed: int = 0
    with_english: Annotated[bool, Switch] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.sentences is None) != (self.links is None):
            raise UserError("--sentences and --links go together: they are two files of one dump")
        if (self.data is None) == (self.sentences is None):
            raise UserError("give --data, or --sentences with --links, and not both")
        at_least("--most", self.most, 1)
        at_least("--seed", self.seed, 0)
        if not pairs_of(self.pairs):
            raise UserError("--pairs needs one pair or more, such as fra-deu")

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """Codes of the pairs, with English last if it is asked for."""
        pairs = pairs_of(self.pairs)
        if self.with_english:
            pairs += [(code, PIVOT) for pair in pairs for code in pair if code != PIVOT]
        return list(dict.fromkeys(pairs))


@dataclass(frozen=True)
class Built:
    """What became of one pair of languages.

    Attributes:
        name: Such as ``fra-deu``.
        origin: ``given``, ``joined at English`` or ``drawn``.
        found: Pairs of sentences that there were to choose from.
        pairs: That were written; of none, no file is.
    """

    name: str
    origin: str
    found: int
    pairs: int


@dataclass(frozen=True)
class Report:
    """What was built; as a string, a table.

    Attributes:
        output: Where.
        built: A line a pair.
    """

    output: Path
    built: Sequence[Built]

    def __str__(self) -> str:
        rows = [["", "", "found", "written"]]
        rows += [
            [b.name, b.origin, str(b.found), str(b.pairs) if b.pairs else "-"] for b in self.built
        ]
        few = [each.name for each in self.built if each.pairs < FEW]
        note = [f"fewer than {FEW}, which is little for a test: {', '.join(few)}"] if few else []
        return "\n".join([grid(rows), *note])


def run(config: BuilderConfig) -> Report:
    """Build the pairs.

    Raises:
        UserError: If a file or pair is not there, or no pair has a sentence.
    """
    check_output(config)
    if config.data is not None:
        texts = from_folder(config.data, config.wanted, config.most, config.seed)
        source: dict[str, Any] = {"data": str(config.data)}
    else:
        assert config.sentences is not None
        assert config.links is not None
        texts = from_dump(
            config.sentences, config.links, config.wanted, config.most or MOST, config.seed
        )
        dump = {"sentences": config.sentences, "links": config.links}
        source = {name: str(path) for name, path in dump.items()} | {"sha256": hash_files(dump)}
    make_directory(config.output)
    built = []
    for text, each in texts:
        built.append(each)
        if each.pairs:
            write(config.output, text)
    if not any(each.pairs for each in built):
        raise UserError(f"{', '.join(each.name for each in built)}: no pair of sentences was found")
    counts = [asdict(each) for each in built]
    write_json(config.output / FILE, {**source, "seed": config.seed, "pairs": counts})
    return Report(config.output, built)


def check_output(config: BuilderConfig) -> None:
    """Fail if what is built would be written among the text it is built from, or anything else.

    Raises:
        UserError: If the folder is that of the data, or holds files that were not built.
    """
    output = config.output
    if config.data is not None and output.resolve() == config.data.resolve():
        raise UserError(f"--output {output}: is the folder of --data; choose another")
    if output.is_dir() and any(output.iterdir()) and not (output / FILE).is_file():
        raise UserError(f"--output {output}: holds files and no {FILE}; choose an empty folder")


def write(folder: Path, text: ParallelText) -> None:
    """Write both sides of a text in Tatoeba's layout."""
    for code, side in zip(text.languages, text.sides, strict=True):
        with atomic(folder / f"{text.name}.{language(code).iso3}") as stream:
            stream.write("".join(f"{sentence}\n" for sentence in side).encode())


# -- from a folder --


def from_folder(
    folder: Path, pairs: Sequence[tuple[str, str]], most: int | None, seed: int
) -> Iterator[tuple[ParallelText, Built]]:
    """The texts of pairs, given or joined, each cut to a draw if it has more than ``most``."""
    for text in read_pairs(folder, pairs):
        found = len(text)
        if most is not None and found > most:
            rows = sorted(_generator(seed, text.name).permutation(found)[:most].tolist())
            left, right = ([side[row] for row in rows] for side in text.sides)
            text = ParallelText(text.name, text.languages, (left, right), joined=text.joined)
        origin = "joined at English" if text.joined else "given"
        yield text, Built(text.name, origin, found, len(text))


def _generator(seed: int, name: str) -> "np.random.Generator":
    """Draws of one pair, whatever the others are."""
    import numpy as np

    return np.random.default_rng([seed, crc32(name.encode())])


# -- from a dump --


def from_dump(
    sentences: Path, links: Path, pairs: Sequence[tuple[str, str]], most: int, seed: int
) -> Iterator[tuple[ParallelText, Built]]:
    """A draw of up to ``most`` links of each pair of languages.

    Raises:
        UserError: Naming file and line, if a line is no sentence or link.
    """
    numbers = {code: number for number, code in enumerate(dict.fromkeys(sum(pairs, ())), 1)}
    if len(numbers) > 255:
        raise UserError(f"--pairs: {len(numbers)} languages at once; 255 at most")
    owners = _owners(sentences, numbers)
    linked = _linked(links, owners, [(numbers[a], numbers[b]) for a, b in pairs])
    drawn = {}
    for pair, rows in zip(pairs, linked, strict=True):
        name = _name(pair)
        drawn[pair] = _each_once(rows, _generator(seed, name), SPARE * most)
        logger.info("%s: %d links", name, len(rows))
    texts = _texts(sentences, {id_ for rows in drawn.values() for row in rows for id_ in row})
    for pair, rows in zip(pairs, linked, strict=True):
        left, right = _distinct(drawn[pair], texts, most)
        text = ParallelText(_name(pair), pair, (left, right))
        yield text, Built(text.name, "drawn", len(rows), len(text))


def _name(pair: tuple[str, str]) -> str:
    return "-".join(language(code).iso3 for code in pair)


def _owners(path: Path, numbers: Mapping[str, int]) -> bytearray:
    """Sentence id -> number of its language, 0 for languages not asked for."""
    owners = bytearray()
    spelled: dict[str, int] = {}
    for _, (id_, name, _) in parsed(path, _sentence, "id<TAB>language<TAB>text"):
        number = spelled.get(name)
        if number is None:
            row = find(name)
            number = spelled[name] = numbers.get(row.code, 0) if row else 0
        if number:
            if id_ >= len(owners):
                owners.extend(bytes(id_ + 1 - len(owners) + len(owners) // 4))
            owners[id_] = number
    return owners


def _sentence(line: str) -> tuple[int, str, str]:
    """Id, language and text of a line; what stands behind a further tab is left out."""
    id_, _, rest = line.partition("\t")
    name, tab, text = rest.partition("\t")
    if not id_.isdecimal() or not tab:
        raise MalformedError("expected id<TAB>language<TAB>text, as Tatoeba exports sentences")
    return _id(id_), name, text.partition("\t")[0]


def _link(line: str) -> tuple[int, int]:
    first, _, second = line.partition("\t")
    if not first.isdecimal() or not second.isdecimal():
        raise MalformedError("expected id<TAB>id, as Tatoeba exports links")
    return _id(first), _id(second)


def _id(digits: str) -> int:
    number = int(digits)
    if number > MOST_ID:
        raise MalformedError(
            f"id {digits} is more than {MOST_ID}; it cannot be a sentence's number"
        )
    return number


def _linked(
    path: Path, owners: bytearray, pairs: Sequence[tuple[int, int]]
) -> "list[NDArray[np.int64]]":
    """Of each pair of languages the linked ids, each link once, in the order of ids; ``(N, 2)``."""
    import numpy as np

    found = {pair: array("q") for pair in pairs}
    end = len(owners)
    for _, (first, second) in parsed(path, _link, "id<TAB>id"):
        if first >= end or second >= end:
            continue
        one, two = owners[first], owners[second]
        if (ids := found.get((one, two))) is not None:
            ids.extend((first, second))
        if (ids := found.get((two, one))) is not None:
            ids.extend((second, first))
    return [
        np.unique(np.array(found[pair], dtype=np.int64).reshape(-1, 2), axis=0) for pair in pairs
    ]


def _each_once(
    rows: "NDArray[np.int64]", generator: "np.random.Generator", most: int
) -> list[tuple[int, int]]:
    """Links in a drawn order, those left out of which an id has been before; at most ``most``."""
    seen: tuple[set[int], set[int]] = (set(), set())
    kept: list[tuple[int, int]] = []
    for place in generator.permutation(len(rows)):
        first, second = rows[place].tolist()
        if first not in seen[0] and second not in seen[1]:
            kept.append((first, second))
            seen[0].add(first)
            seen[1].add(second)
            if len(kept) == most:
                break
    return kept


def _texts(path: Path, wanted: set[int]) -> dict[int, str]:
    """Id -> text, of the ids wanted; white space at the ends is left out."""
    sentences = parsed(path, _sentence, "id<TAB>language<TAB>text")
    return {id_: text.strip() for _, (id_, _, text) in sentences if id_ in wanted}


def _distinct(
    drawn: Iterable[tuple[int, int]], texts: Mapping[int, str], most: int
) -> tuple[list[str], list[str]]:
    """The texts of links, those left out of which a text is blank or has been before."""
    seen: tuple[set[str], set[str]] = ({""}, {""})
    sides: tuple[list[str], list[str]] = ([], [])
    for ids in drawn:
        pair = [texts[id_] for id_ in ids]
        if len(sides[0]) < most and pair[0] not in seen[0] and pair[1] not in seen[1]:
            for side, known, text in zip(sides, seen, pair, strict=True):
                side.append(text)
                known.add(text)
    return sides


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`BuilderConfig`."""
    command(run, BuilderConfig, "benchmarks.parallel_builder", argv)


if __name__ == "__main__":
    main()
