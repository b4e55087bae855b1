"""What a tag says about the language: ``jpn_Jpan``, ``zh-Hans``, ``20231101.ja``, ``ja_news``.

Web corpora name their languages in many ways, and one language several times over: FineWeb-2 has
``hin_Deva`` beside ``hin_Latn``, mC4 ``ja`` beside ``ja-Latn``. A tag that names a script which
the language is not written in, by :mod:`ccpretrieve.data.languages`, is not that language here.
"""

import functools
import re

from ccpretrieve.data.languages import Language, find

#: ISO 15924 code -> Unicode's name, for the scripts of the table of languages.
SCRIPTS = {
    **{"arab": "Arabic", "armn": "Armenian", "beng": "Bengali", "cyrl": "Cyrillic"},
    **{"deva": "Devanagari", "ethi": "Ethiopic", "geor": "Georgian", "grek": "Greek"},
    **{"gujr": "Gujarati", "guru": "Gurmukhi", "hang": "Hangul", "hani": "Han", "hans": "Han"},
    **{"hant": "Han", "hebr": "Hebrew", "hira": "Hiragana", "jpan": "Hiragana"},
    **{"kana": "Katakana", "khmr": "Khmer", "knda": "Kannada", "kore": "Hangul", "laoo": "Lao"},
    **{"latn": "Latin", "mlym": "Malayalam", "mymr": "Myanmar", "orya": "Oriya"},
    **{"sinh": "Sinhala", "taml": "Tamil", "telu": "Telugu", "thai": "Thai"},
}
SEPARATOR = re.compile(r"[-_./: ]+")


@functools.lru_cache(maxsize=4096)
def language_of(tag: str) -> Language | None:
    """The language of a tag: all of it, else its first part, else its last; None if it is none.

    >>> [language_of(tag).code for tag in ("jpn_Jpan", "pt-BR", "20231101.ja", "Japanese")]
    ['ja', 'pt', 'ja', 'ja']
    >>> language_of("hin_Latn") is None
    True
    """
    parts = SEPARATOR.split(tag)
    row = find(tag) or find(parts[0]) or find(parts[-1])
    if row is None or any(script not in row.scripts for script in _scripts(parts)):
        return None
    return row


def code_of(tag: str) -> str:
    """The code of the language of a tag, ``""`` if it is none."""
    row = language_of(tag)
    return row.code if row else ""


def plainness(tag: str) -> tuple[int, int, str]:
    """Sorts the tags of one language: its first script before others, then the shorter tag."""
    row = language_of(tag)
    scripts = _scripts(SEPARATOR.split(tag))
    rank = row.scripts.index(scripts[0]) if row and scripts and scripts[0] in row.scripts else 0
    return rank, len(tag), tag


def _scripts(parts: list[str]) -> list[str]:
    """The scripts named after the first part of a tag."""
    return [SCRIPTS[part.lower()] for part in parts[1:] if part.lower() in SCRIPTS]
