"""Which sentences of a document are worth learning from, and what was dropped and why.

Web text and manuals repeat menus, notices and headings; a model that learns to tell these apart
learns nothing of language, and a sentence that stands in a thousand documents has no context of
its own. The paper trained on CC-Net, which is cleaned already, and says no more about it.

Sentences are compared folded: without case, any number as ``0``, white space as single spaces.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from ccpretrieve.data.documents import Document, DocumentSource
from ccpretrieve.data.languages import find
from ccpretrieve.data.sentences import split
from ccpretrieve.errors import UserError

#: Why a sentence is dropped, in the order in which it is looked at.
REASONS = (
    *("too short", "too long", "few letters", "wrong script"),
    *("duplicate", "boilerplate"),
)
#: Characters that say what one says in English, by script: mean length of NTREX's sentences.
DENSITY = {"Han": 0.4, "Hiragana": 0.5, "Hangul": 0.55, "Ethiopic": 0.7}
NUMBER = re.compile(r"\d+")
COUNTED = 1 << 20  # different sentences that a census holds: about 150 MB
UNIT = 1 << 40  # see _Repeated


@dataclass(frozen=True)
class CleaningRules:
    """What is dropped.

    Attributes:
        min_characters: Shorter sentences are menus and headings more often than not. Of scripts
            that say more with a character, fewer: 6 of Chinese, 8 of Japanese, 9 of Korean.
        max_characters: Longer ones are lists or text without marks; an encoder would see their
            beginning only. Fewer for the same scripts.
        letter_share: Least share of letters in the characters that are no space; less is tables
            and formulas. A character of Chinese counts as 2.5 letters, of Japanese as 2.
        script_share: Least share of letters in a script of the language among all, counted so;
            less is another language, or code.
        boilerplate_documents: A sentence in so many documents of the census is dropped from all;
            0 to keep it.
    """

    min_characters: int = 15
    max_characters: int = 1000
    letter_share: float = 0.5
    script_share: float = 0.5
    boilerplate_documents: int = 6

    def __post_init__(self) -> None:
        if not 1 <= self.min_characters <= self.max_characters:
            bounds = f"1 to {self.max_characters}"
            raise UserError(f"min-characters must be from {bounds}, got {self.min_characters}")
        if self.boilerplate_documents < 0 or self.boilerplate_documents == 1:
            allowed = "2 or more, or 0 for none"
            raise UserError(
                f"boilerplate-documents must be {allowed}, got {self.boilerplate_documents}"
            )


def fold(sentence: str) -> str:
    """A sentence as it is compared.

    >>> fold("Page 12  of 345")
    'page 0 of 0'
    """
    return NUMBER.sub("0", " ".join(sentence.split()).casefold())


def key(sentence: str) -> int:
    """A hash of the folded sentence: 64 bits with sign, the same in every process."""
    digest = blake2b(fold(sentence).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


class Cleaner:
    """Cleans the documents of one language.

    Args:
        language: Its code.
        rules: What is dropped.
        boilerplate: Keys of sentences that stand in many documents, as a census found them.

    Attributes:
        dropped: Reason -> sentences dropped so far.
    """

    def __init__(
        self, language: str, rules: CleaningRules, boilerplate: frozenset[int] = frozenset()
    ) -> None:
        self.language = language
        self.rules = rules
        self.boilerplate = boilerplate
        self.dropped: Counter[str] = Counter()
        row = find(language)
        scripts = row.scripts if row else ()
        self._density = DENSITY.get(scripts[0], 1.0) if scripts else 1.0
        self._shortest = math.ceil(rules.min_characters * self._density)
        self._longest = math.ceil(rules.max_characters * self._density)
        self._letters, self._foreign = _letters(), _letters(scripts)

    def clean(self, document: Document) -> list[str]:
        """The sentences of a document that are kept, in order, white space as single spaces.

        Its text is split if its source has not done so.
        """
        return [sentence for sentence, _ in self.kept(document)]

    def kept(self, document: Document) -> Iterator[tuple[str, int]]:
        """The sentences of a document that are kept, each with its :func:`key`."""
        seen: set[int] = set()
        for raw in document.sentences or split(document.text, self.language):
            sentence = " ".join(raw.split())
            reason = self._judge(sentence)
            if not reason:
                identity = key(sentence)
                if identity in seen:
                    reason = "duplicate"
                elif identity in self.boilerplate:
                    reason = "boilerplate"
                seen.add(identity)
            if reason:
                self.dropped[reason] += 1
            else:
                yield sentence, identity

    def _judge(self, sentence: str) -> str:
        """Why a sentence is dropped for what it is by itself, ``""`` if it is not."""
        if len(sentence) < self._shortest:
            return "too short"
        if len(sentence) > self._longest:
            return "too long"
        letters = len(sentence) - len(self._letters.sub("", sentence))
        foreign = len(sentence) - len(self._foreign.sub("", sentence))
        own = (letters - foreign) / self._density
        rest = len(sentence) - sentence.count(" ") - letters
        if own + foreign < self.rules.letter_share * (own + foreign + rest):
            return "few letters"
        if own < self.rules.script_share * (own + foreign):
            return "wrong script"
        return ""


@functools.cache
def _letters(scripts: tuple[str, ...] = ()) -> Any:
    """A pattern of runs of letters with their marks; if scripts are named, of no such script.

    Letters that Unicode gives to no one script, such as the Japanese mark of a long vowel, are
    in all.
    """
    import regex  # type: ignore[import-untyped]

    shared = ("Common", "Inherited")
    own = "".join(rf"\p{{Script={name}}}" for name in (*scripts, *shared)) if scripts else ""
    return regex.compile(rf"(?V1)[[\p{{L}}\p{{M}}]--[{own}]]+" if own else r"[\p{L}\p{M}]+")


# -- the census --


@dataclass(frozen=True)
class Census:
    """What one reading of a language found.

    Attributes:
        language: Its code.
        documents: Read.
        usable: Of them, those with two sentences or more, boilerplate included.
        sentences: Kept of them.
        characters: In those.
        dropped: Reason -> sentences dropped.
        boilerplate: Keys of the sentences that stand in many documents.
        complete: Whether there were no more documents.
    """

    language: str
    documents: int
    usable: int
    sentences: int
    characters: int
    dropped: dict[str, int]
    boilerplate: frozenset[int]
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """As JSON; see :meth:`from_json`."""
        return {**asdict(self), "boilerplate": sorted(self.boilerplate)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Census":
        """The census that :meth:`to_json` wrote."""
        return cls(**{**value, "boilerplate": frozenset(value["boilerplate"])})


def take_census(source: DocumentSource, rules: CleaningRules, most: int = 20_000) -> Census:
    """Read the first documents of a language once, in memory that does not grow with them.

    A :class:`Cleaner` with the boilerplate found keeps and drops of these documents what the
    census says, unless there were more than :data:`COUNTED` different sentences: then some of what
    is rare is forgotten, and a repetition far apart may be missed.

    Args:
        source: Its documents.
        rules: What is dropped.
        most: Documents read at most.

    Raises:
        UserError: Naming file and line, if a document cannot be read.
    """
    cleaner = Cleaner(source.language, rules)
    repeated = _Repeated(rules.boilerplate_documents)
    documents = usable = sentences = characters = 0
    complete = True
    for document, _ in source.documents():
        if documents == most:
            complete = False
            break
        documents += 1
        before = sentences
        for sentence, identity in cleaner.kept(document):
            sentences += 1
            characters += len(sentence)
            repeated.add(identity, len(sentence))
        usable += sentences - before > 1
    found = repeated.found()
    dropped = {reason: cleaner.dropped[reason] for reason in REASONS}
    dropped["boilerplate"] = sum(count for count, _ in found.values())
    return Census(
        source.language,
        documents,
        usable,
        sentences - dropped["boilerplate"],
        characters - sum(size for _, size in found.values()),
        dropped,
        frozenset(found),
        complete,
    )


class _Repeated:
    """Counts in how many documents each sentence stands, within bounds.

    Both counts of a sentence are in one whole number, documents * UNIT + characters, for a million
    of them are held. When there are too many, the rarest are forgotten.

    Args:
        documents: In so many it is boilerplate; 0 to count nothing.
    """

    def __init__(self, documents: int) -> None:
        self.documents = documents
        self.counts: dict[int, int] = {}
        self.most = COUNTED

    def add(self, identity: int, characters: int) -> None:
        """Count a sentence of a document, once a document."""
        if self.documents:
            self.counts[identity] = self.counts.get(identity, 0) + UNIT + characters
            if len(self.counts) > self.most:
                self._forget()

    def _forget(self) -> None:
        """Forget the rarest until there is room for as many others, but no boilerplate."""
        for floor in range(2, self.documents + 1):
            self.counts = {k: c for k, c in self.counts.items() if c >= floor * UNIT}
            if len(self.counts) <= COUNTED // 2:
                break
        self.most = max(COUNTED, 2 * len(self.counts))

    def found(self) -> dict[int, tuple[int, int]]:
        """Key -> documents and characters of all that is boilerplate."""
        least = self.documents * UNIT
        return {k: divmod(c, UNIT) for k, c in self.counts.items() if least and c >= least}
