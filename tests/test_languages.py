import collections
import itertools
import unicodedata

import pytest

from ccpretrieve.data.languages import ALSO, LANGUAGES, find, guess, language
from ccpretrieve.errors import UserError

#: First word of a letter's Unicode name, where it is not the script's own.
SCRIPT_OF_WORD = {"Cjk": "Han", "Katakana-Hiragana": "Katakana"}


@pytest.mark.parametrize(
    "spellings",
    [
        ("ja", "jpn", "japanese", "Japanese", "JA", " jpn "),
        ("zh", "cmn", "zho", "Chinese", "mandarin"),
        ("sw", "swh", "swa", "swahili"),
        ("fa", "pes", "fas", "persian", "Farsi"),
        ("arz", "Egyptian Arabic", "egyptian_arabic", "egyptian-arabic"),
        ("nb", "no", "nob", "nor", "norwegian"),
    ],
)
def test_every_spelling_of_a_language_finds_the_same_row(spellings):
    assert len({language(spelling) for spelling in spellings}) == 1


def test_the_code_is_of_two_letters_where_there_is_one():
    assert language("jpn").code == "ja"
    assert language("arz").code == "arz"


def test_no_spelling_means_two_languages():
    spellings = [*ALSO]
    for row in LANGUAGES:
        spellings += {row.iso3, row.name} | ({row.iso1} if row.iso1 else set())
    assert [s for s, count in collections.Counter(spellings).items() if count > 1] == []


def test_every_code_has_the_length_its_standard_says():
    assert {len(row.iso3) for row in LANGUAGES} == {3}
    assert {len(row.iso1) for row in LANGUAGES} == {0, 2}


def test_every_other_spelling_leads_to_a_row():
    for spelling, iso3 in ALSO.items():
        assert language(spelling).iso3 == iso3


def test_an_unknown_language_is_answered_with_near_ones():
    with pytest.raises(UserError, match=r"unknown language 'japanes'; did you mean .*'japanese'"):
        language("japanes")
    assert find("klingon") is None


@pytest.mark.parametrize(
    ("name", "code"),
    [("ja", "ja"), ("mrtydi-v1.1-japanese", "ja"), ("tatoeba-fra", "fr"), ("notes", ""), ("", "")],
)
def test_the_language_of_a_corpus_is_guessed_from_the_end_of_its_name(name, code):
    assert guess(name) == code


@pytest.mark.parametrize(
    ("place", "count"), [("tatoeba/*-eng.eng", 112), ("ntrex/??.txt", 41), ("xquad/??", 12)]
)
@pytest.mark.real
def test_the_languages_of_the_real_text_are_all_in_the_table(real_data, place, count):
    names = [path.name.split("-")[0].split(".")[0] for path in real_data.glob(place)]
    assert len(names) == count
    for name in names:
        row = language(name)
        assert name == (row.iso3 if place.startswith("tatoeba") else row.iso1)


@pytest.mark.real
def test_the_languages_of_the_long_documents_are_all_in_the_table(real_data):
    names = [path.name.removesuffix(".jsonl.gz") for path in real_data.glob("longdocs/*.gz")]
    assert len(names) == 23
    assert [name for name in names if language(name).iso1 != name] == []


@pytest.mark.real
def test_real_text_is_written_in_the_scripts_the_table_names(real_data):
    paths = [p for p in real_data.glob("tatoeba/*-eng.*") if p.suffix != ".eng"]
    assert paths
    for path in paths:
        row = language(path.suffix[1:])
        with path.open(encoding="utf-8") as stream:
            letters = [c for line in itertools.islice(stream, 300) for c in line if c.isalpha()]
        words = [unicodedata.name(letter).split()[0].title() for letter in letters]
        scripts = collections.Counter(SCRIPT_OF_WORD.get(word, word) for word in words)
        covered = sum(scripts[script] for script in row.scripts) / len(letters)
        assert covered > 0.9, f"{row}: {scripts.most_common(4)}"
        assert scripts.most_common(1)[0][0] in row.scripts
