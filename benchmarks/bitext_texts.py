"""Which parallel texts are scored: presets of languages, pairs without English, texts with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ccpretrieve.data.languages import language
from ccpretrieve.data.parallel import (
    ParallelText,
    document_range,
    held_pairs,
    read_pairs,
    read_parallel,
)
from ccpretrieve.errors import UserError

ALL = "all"
PIVOT = "en"
FEW = 100  # pairs, below which accuracy says little
#: Names for several languages. The paper's main table has 14 and its list is in no text we have:
#: XTREME's (Hu et al. 2020) and XNLI's (Conneau et al. 2018, English left out) stand in for it.
PRESETS = {
    "xtreme": (
        *("afr", "ara", "ben", "bul", "cmn", "deu", "ell", "est", "eus", "fin", "fra", "heb"),
        *("hin", "hun", "ind", "ita", "jav", "jpn", "kat", "kaz", "kor", "mal", "mar", "nld"),
        *("pes", "por", "rus", "spa", "swh", "tam", "tel", "tgl", "tha", "tur", "urd", "vie"),
    ),
    "xnli": (
        *("ara", "bul", "cmn", "deu", "ell", "fra", "hin", "rus", "spa", "swh", "tha", "tur"),
        *("urd", "vie"),
    ),
}


@dataclass(frozen=True)
class Trial:
    """A text to be scored, and what its languages are scored on with English.

    Attributes:
        text: N pairs.
        english: For a pair without English, each of its languages with English; may be empty.
        same: Whether these are the sentences of ``text``.
    """

    text: ParallelText
    english: tuple[ParallelText, ...] = ()
    same: bool = False

    def part(self, documents: range) -> "Trial":
        """The lines of some documents.

        Raises:
            UserError: If nothing says of which document a line is, or none is of these.
        """
        english = tuple(each.part(documents) for each in self.english)
        return replace(self, text=self.text.part(documents), english=english)


def pairs_of(asked: Sequence[str]) -> list[tuple[str, str]]:
    """Codes of pairs of languages, such as ``fra-deu``, each once.

    Raises:
        UserError: If one is no pair of two languages.
    """
    pairs = []
    for words in asked:
        first, _, second = words.partition("-")
        if not first or not second:
            raise UserError(f"--pairs {words!r}: give two languages, such as fra-deu; or all alone")
        codes = language(first).code, language(second).code
        if codes[0] == codes[1]:
            raise UserError(f"--pairs {words}: one language twice")
        pairs.append(codes)
    return list(dict.fromkeys(pairs))


def find_trials(
    folder: Path, languages: Sequence[str], pairs: Sequence[str], documents: str | None
) -> list[Trial]:
    """The texts to be scored: languages with English, then pairs without it.

    Args:
        folder: In a layout of :mod:`ccpretrieve.data.parallel`.
        languages: In any spelling, or names of ``PRESETS``; empty for all, or for none with pairs.
        pairs: Such as ``fra-deu``; ``all`` alone for every one the folder has.
        documents: See :func:`document_range`.

    Raises:
        UserError: If a language or pair is not there, or a text is too short to be a test.
    """
    chosen = [code for name in languages for code in PRESETS.get(name, (name,))]
    texts = [] if pairs and not chosen else read_parallel(folder, chosen)
    trials = {text.name: Trial(text) for text in texts}
    asked = _held(folder, chosen) if tuple(pairs) == (ALL,) else pairs_of(pairs)
    for trial in _without_english(folder, asked) if asked else []:
        trials[trial.text.name] = trial
    numbers = document_range(documents)
    if numbers is not None:
        trials = {name: trial.part(numbers) for name, trial in trials.items()}
    for trial in trials.values():
        for each in (trial.text, *trial.english):
            check_size(each)
    return list(trials.values())


def _held(folder: Path, chosen: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs without English that a folder has, of these languages if any are given."""
    wanted = {language(name).code for name in chosen}
    pairs = [
        pair
        for pair in held_pairs(folder)
        if PIVOT not in pair and (not wanted or set(pair) <= wanted)
    ]
    if not pairs:
        raise UserError(
            f"{folder}: holds no pair without English; name pairs, such as --pairs fra-deu, to have"
            " them joined at equal English sentences"
        )
    return pairs


def _without_english(folder: Path, asked: Sequence[tuple[str, str]]) -> list[Trial]:
    """The pairs asked for, each with what its languages are compared with."""
    held = {frozenset(pair) for pair in held_pairs(folder)}
    beside = dict.fromkeys((code, PIVOT) for pair in asked for code in pair if code != PIVOT)
    there = [pair for pair in beside if frozenset(pair) in held]
    with_english = dict(zip(there, read_pairs(folder, there), strict=True))
    trials = []
    for text in read_pairs(folder, asked):
        wanted = [(code, PIVOT) for code in text.languages]
        if PIVOT in text.languages:
            trials.append(Trial(text))
        elif text.pivot is not None:
            trials.append(Trial(text, _beside_pivot(text, text.pivot), same=True))
        elif all(pair in with_english for pair in wanted):
            trials.append(Trial(text, tuple(with_english[pair] for pair in wanted)))
        else:
            trials.append(Trial(text))
    return trials


def _beside_pivot(text: ParallelText, pivot: list[str]) -> tuple[ParallelText, ...]:
    """Both sides of a pair, each with the same sentences in English."""
    english = language(PIVOT).iso3
    return tuple(
        ParallelText(f"{language(code).iso3}-{english}", (code, PIVOT), (side, pivot), numbers)
        for code, side, numbers in zip(
            text.languages, text.sides, (text.documents,) * 2, strict=True
        )
    )


def check_size(text: ParallelText) -> None:
    """Fail if a text is too short to be a test.

    Raises:
        UserError: Saying how many pairs it has.
    """
    if len(text) < 2:
        how = " with the same English sentence" if text.joined else ""
        count = "one pair" if len(text) else "no pair"
        raise UserError(
            f"{text.name}: {count}{how}; two or more make a test, and some hundred one that says "
            "much"
        )
