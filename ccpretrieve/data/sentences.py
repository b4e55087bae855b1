"""Document -> sentences ``s_1 .. s_l`` (section 3.1), in any language of the table.

ICU's rules do it (Unicode Standard Annex 29 with CLDR's abbreviations), the best of those measured
by ``python -m benchmarks.splitters`` over all languages, and quick. Where they fall short:

- Of letters without case ICU cannot tell that those after a full stop go on, as in Hindi's U.S.;
  where no space follows a full stop nothing ends.
- Chinese and Japanese have no spaces, so an opening bracket after a full stop would stay behind
  with the sentence that ends; it goes with what it opens.
- In Japanese, what a closing bracket and ``to`` continue is the sentence that quotes it.
- Thai and Lao have no sentence mark: phrases, which spaces separate, are joined until they have
  :data:`PHRASE` characters, half a sentence. A space beside a number or a foreign word is none
  between phrases.
"""

import functools
import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ccpretrieve.data.languages import find

if TYPE_CHECKING:
    from ccpretrieve.data.documents import DocumentSource

OPENING = re.compile(r"[「『（(【〔〈《“‘]+\Z")
CONTINUED = re.compile(r"[」』）)]\Z")
CONTINUATION = "と"
UNMARKED = ("Thai", "Lao")
#: Letters and signs of these scripts, but for what repeats the word before it (ๆ, ໆ).
LETTERS = "\u0e01-\u0e45\u0e47-\u0e4e\u0e81-\u0ec4\u0ec8-\u0ecd"
PHRASE_END = re.compile(rf"(?<=[{LETTERS})”\"'.])\s+(?=[{LETTERS}(“\"'])")
PHRASE = 60


def split(text: str, language: str) -> list[str]:
    """Split a text into sentences; white space at their ends is left out.

    Args:
        text: Any text; a newline ends a sentence.
        language: Code of its language.

    Returns:
        The sentences in order, none of them empty. All of the text is in them but white space
        between them.
    """
    scripts = _scripts(language)
    pieces: Iterator[str]
    if scripts and scripts[0] in UNMARKED:
        pieces = (phrase for line in text.split("\n") for phrase in _phrases(line))
    else:
        pieces = _abbreviations(_marked(text, language))
    if "Han" in scripts and "Hangul" not in scripts:
        pieces = _brackets(pieces)
    if scripts[:1] == ("Hiragana",):
        pieces = _quotations(pieces)
    return [sentence for piece in pieces if (sentence := piece.strip())]


def distinct(source: "DocumentSource") -> Iterator[str]:
    """The sentences of one language's documents in order, each once, blank ones left out."""
    seen: set[bytes] = set()
    for document, _ in source.documents():
        for sentence in document.sentences or split(document.text, source.language):
            key = hashlib.blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            if sentence.strip() and key not in seen:
                seen.add(key)
                yield sentence


@functools.cache
def _scripts(language: str) -> tuple[str, ...]:
    row = find(language)
    return row.scripts if row else ()


def _marked(text: str, language: str) -> Iterator[str]:
    """The pieces that ICU makes of a text."""
    from icu4py.breakers import SentenceBreaker

    return iter(SentenceBreaker(text, f"{language}-u-ss-standard"))


def _abbreviations(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces joined where one ends in a full stop and the next follows without a space."""
    before = ""
    for piece in pieces:
        if before.endswith("."):
            before += piece
        else:
            yield before
            before = piece
    yield before


def _brackets(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces with the brackets at their ends that open the next one moved there."""
    opened = ""
    for piece in pieces:
        piece = opened + piece
        match = OPENING.search(piece)
        opened = match[0] if match else ""
        yield piece.removesuffix(opened)
    yield opened


def _quotations(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces with what continues a quotation joined to it."""
    before = ""
    for piece in pieces:
        if piece.startswith(CONTINUATION) and CONTINUED.search(before):
            before += piece
        else:
            yield before
            before = piece
    yield before


def _phrases(piece: str) -> Iterator[str]:
    """A text without sentence marks in pieces of whole phrases."""
    start = 0
    for space in PHRASE_END.finditer(piece):
        if space.start() - start >= PHRASE:
            yield piece[start : space.start()]
            start = space.end()
    yield piece[start:]
