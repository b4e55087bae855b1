"""Tests of ccpretrieve.retrieval.words against nltk's own word_tokenize, its data put on disk."""

from itertools import islice

import nltk
import pytest
from punkt.data import english

from ccpretrieve.data.registry import open_corpus
from ccpretrieve.retrieval.words import spaced, word_tokenize

TRICKY = [
    "",
    "   \n\n ",
    "No end",
    "He said “Hello there.” Bye. «Oui.» 'Tis so.",
    "It cost $5,000 (10% more) in the U.S. Mr. and Mrs. Jones' cats -- all 3.5 of them -- left...",
    "Title\n\nFirst line\nsecond line.Third one? Yes!No; a:b, 1:2 3,4",
    "can't won't I'd they'll gonna cannot o'clock rock 'n' roll the dogs'",
    "Ph.D. J. R. R. Tolkien no. 5 pp. 3-4 e.g. this etc. And that.",
    "富士山は日本で一番高い山です。次の文。 النيل هو أطول نهر؟ नदी है। ราชอาณาจักรไทย",
    "a\u00a0b\u2028c\u0085d\x1ce \ufeff f\u200bg ½ x² http://a.b/c?d=e#f a@b.cc #1 & * ~ ` |",
]


@pytest.fixture(scope="module")
def nltk_word_tokenize(tmp_path_factory):
    """nltk.word_tokenize as it is, reading its punkt_tab files as a download would place them."""
    root = tmp_path_factory.mktemp("nltk_data")
    folder = root / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    tables = {
        "abbrev_types.txt": english.ABBREV_TYPES,
        "sent_starters.txt": english.SENT_STARTERS,
        "collocations.tab": map("\t".join, english.COLLOCATIONS),
        "ortho_context.tab": (f"{word}\t{bits}" for word, bits in english.ORTHO_CONTEXT.items()),
    }
    for name, lines in tables.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    before = list(nltk.data.path)
    nltk.data.path[:] = [str(root)]
    nltk.tokenize._get_punkt_tokenizer.cache_clear()
    yield nltk.word_tokenize
    nltk.data.path[:] = before
    nltk.tokenize._get_punkt_tokenizer.cache_clear()


def test_the_example_of_nltks_documentation_gives_what_it_says():
    text = "Good muffins cost $3.88\nin New York.  Please buy me\ntwo of them.\n\nThanks."
    expected = "Good muffins cost $ 3.88 in New York . Please buy me two of them . Thanks ."
    assert word_tokenize(text) == expected.split()


def test_only_a_period_that_ends_a_sentence_is_a_token():
    # Dr. and p.m. are abbreviations that punkt knows; "He", a word that begins sentences, ends one.
    assert word_tokenize("Dr. Li left at 3 p.m. on foot. He ran.") == [
        *("Dr.", "Li", "left", "at", "3", "p.m.", "on", "foot", "."),
        *("He", "ran", "."),
    ]


def test_signs_of_money_shares_and_brackets_are_tokens_of_their_own():
    # Why "$5,000", "10%" and "(1990)" can never be found as answers.
    expected = ["$", "5,000", "and", "10", "%", "in", "(", "1990", ")"]
    assert word_tokenize("$5,000 and 10% in (1990)") == expected


def test_the_tables_are_those_of_nltks_english_model():
    # Known of punkt's English: abbreviations seen in the Wall Street Journal, none without its use.
    assert len(english.ABBREV_TYPES) == 156
    assert {"mr", "u.s", "inc", "sept"} <= english.ABBREV_TYPES
    assert "etc" not in english.ABBREV_TYPES


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_are_cut_as_nltk_cuts_them(text, nltk_word_tokenize):
    assert word_tokenize(text) == nltk_word_tokenize(text)


def test_the_sample_is_cut_as_nltk_cuts_it(nltk_word_tokenize):
    texts = [record.passage.text for record in open_corpus("sample-en").records()]
    assert len(texts) == 64
    assert [word_tokenize(text) for text in texts] == [nltk_word_tokenize(text) for text in texts]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("language", "count"), [("en", 240), ("ar", 40), ("zh", 40), ("ru", 40)])
def test_real_passages_are_cut_as_nltk_cuts_them(language, count, real_data, nltk_word_tokenize):
    records = open_corpus(str(real_data / "xquad" / language)).records()
    texts = [record.passage.text for record in islice(records, count)]
    assert len(texts) == count
    assert [word_tokenize(text) for text in texts] == [nltk_word_tokenize(text) for text in texts]


@pytest.mark.parametrize("text", TRICKY)
def test_spaced_tokens_can_be_taken_apart_again(text):
    assert spaced(text).split(" ") == (word_tokenize(text) or [""])
