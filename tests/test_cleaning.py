import json
import random
from collections import Counter

import pytest

from ccpretrieve.data import cleaning
from ccpretrieve.data.cleaning import (
    REASONS,
    Census,
    Cleaner,
    CleaningRules,
    fold,
    key,
    take_census,
)
from ccpretrieve.data.documents import Document, DocumentSource, open_documents
from ccpretrieve.errors import UserError


class Listed(DocumentSource):
    """Documents in memory, that counts how many were read."""

    weight = 0

    def __init__(self, documents, language="en"):
        self.language = language
        self.given = [Document(str(i), language, "", tuple(d)) for i, d in enumerate(documents)]
        self.read = 0

    def documents(self, state=None, *, shard=0, shards=1):
        for document in self.given:
            self.read += 1
            yield document, {}


def cleaned(language, *sentences, **rules):
    cleaner = Cleaner(language, CleaningRules(**rules))
    return cleaner.clean(Document("d", language, "", sentences)), dict(cleaner.dropped)


def reason(language, sentence, **rules):
    kept, dropped = cleaned(language, sentence, **rules)
    assert len(kept) + sum(dropped.values()) == 1
    return next(iter(dropped), "")


# -- one sentence --


@pytest.mark.parametrize(
    ("language", "character", "shortest"),
    [
        ("en", "a", 15),
        ("th", "ก", 15),
        ("ko", "가", 9),
        ("ja", "あ", 8),
        ("zh", "一", 6),
        ("am", "ሀ", 11),
    ],
)
def test_the_shortest_sentence_has_fewer_characters_where_they_say_more(
    language, character, shortest
):
    assert reason(language, character * shortest) == ""
    assert reason(language, character * (shortest - 1)) == "too short"
    half = CleaningRules(min_characters=30)  # the same ratio: twice as many
    assert Cleaner(language, half).clean(Document("d", language, "", (character * 2 * shortest,)))


def test_the_longest_sentence_has_fewer_characters_where_they_say_more():
    assert reason("en", "a" * 1000) == ""
    assert reason("en", "a" * 1001) == "too long"
    assert reason("zh", "一" * 400) == ""
    assert reason("zh", "一" * 401) == "too long"


@pytest.mark.parametrize(
    ("language", "sentence", "expected"),
    [
        ("en", "abcde 12345 abcde 12345", ""),  # 10 letters of 20 characters
        ("en", "abcde 12345 abcd 123456", "few letters"),  # 9 of 20
        ("en", "= = = = = = = = = = = = =", "few letters"),
        ("hi", "यह दिल्ली की सबसे बड़ी नदी है", ""),  # signs of vowels are letters
        ("ja", "2012年の人口は869,000人である。", ""),  # 9 letters count as 18 of 31
        ("ja", "=LOG(10;3)は、2.0959を返す。", "few letters"),  # L O G, 4 * 2, against 15 others
    ],
)
def test_tables_and_formulas_have_few_letters(language, sentence, expected):
    assert reason(language, sentence) == expected


@pytest.mark.parametrize(
    ("language", "sentence", "expected"),
    [
        ("ru", "abcdeabcde абвгдабвгд", ""),  # 10 of 20 are Cyrillic
        ("ru", "abcdeabcdef абвгдабвгд", "wrong script"),  # 10 of 21
        ("en", "Это предложение на русском языке.", "wrong script"),
        ("th", "This sentence is in English.", "wrong script"),
        ("ar", "هذه جملة باللغة العربية.", ""),
        ("ar", "هَذِهِ جُمْلَةٌ عَرَبِيَّةٌ", ""),  # vowel marks are in no one script
        ("ja", "コンピューターサーバー", ""),  # the mark of a long vowel is in no one script
        ("ja", "这是一个中文句子。", ""),  # Han is a script of Japanese too
        ("zh", "これはにほんごのぶんです。", "wrong script"),
        ("zh", "一二三四 abcdeabcde", ""),  # 4 * 2.5 = 10 of 20
        ("zh", "一二三四 abcdeabcdef", "wrong script"),  # 10 of 21
        ("sr", "Ово је реченица на српском.", ""),
        ("sr", "Ovo je rečenica na srpskom.", ""),
    ],
)
def test_half_of_the_letters_must_be_in_a_script_of_the_language(language, sentence, expected):
    assert reason(language, sentence) == expected


def test_every_rule_is_a_setting():
    assert reason("en", "abcd", min_characters=4) == ""
    assert reason("en", "a" * 1001, max_characters=1001) == ""
    assert reason("en", "1234567890123456 ab", letter_share=0.1) == ""
    assert reason("ru", "abcdeabcdeabcde а", script_share=0.05) == ""


@pytest.mark.parametrize(
    "rules",
    [
        {"min_characters": 0},
        {"min_characters": 1001},
        {"boilerplate_documents": 1},
        {"boilerplate_documents": -1},
    ],
)
def test_rules_that_cannot_work_are_refused(rules):
    with pytest.raises(UserError, match=next(iter(rules)).replace("_", "-")):
        CleaningRules(**rules)


# -- one document --


def test_case_numbers_and_white_space_make_no_other_sentence():
    assert fold(" Page\u00a012  OF ٣٤٥,\n") == "page 0 of 0,"
    assert key("Page 1 of 2 in All") == key("page 10\tof 999 in all") != key("page of in all")
    assert -(1 << 63) <= key("x") < 1 << 63


def test_the_key_of_a_sentence_is_the_same_in_every_process():
    # printf one | b2sum -l 64; the first byte is the lowest
    assert key("One") == int.from_bytes(bytes.fromhex("34f2ddaa8b7615c9"), "little", signed=True)


def test_sentences_of_a_document_are_kept_once_in_order_with_single_spaces():
    kept, dropped = cleaned(
        "en",
        "The  first sentence\u00a0is this.",
        "THE first sentence is this.",
        "Here are 12 pages of text.",
        "",
        "Another one stands between.",
        "Here are 345 pages of text.",
    )
    assert kept == [
        "The first sentence is this.",
        "Here are 12 pages of text.",
        "Another one stands between.",
    ]
    assert dropped == {"duplicate": 2, "too short": 1}


def test_the_next_document_may_say_it_again():
    cleaner = Cleaner("en", CleaningRules())
    document = Document("d", "en", "", ("The same sentence in both.",))
    assert cleaner.clean(document) == cleaner.clean(document) == ["The same sentence in both."]
    assert not cleaner.dropped


def test_a_text_is_split_first():
    text = "The first sentence is this. The second one is that.\nShort.\nA third one ends it."
    cleaner = Cleaner("en", CleaningRules())
    assert cleaner.clean(Document("d", "en", text)) == [
        "The first sentence is this.",
        "The second one is that.",
        "A third one ends it.",
    ]
    assert cleaner.dropped == {"too short": 1}


def test_documents_of_one_sentence_or_none_are_no_error():
    assert cleaned("en") == ([], {})
    assert Cleaner("en", CleaningRules()).clean(Document("d", "en", " \n ")) == []
    assert cleaned("en", "One sentence is all it has.")[0] == ["One sentence is all it has."]


# -- the census --

NOTICE = "All rights are reserved since 2019."


def documents_with(notices, others):
    with_notice = [[f"Document {'abcdefgh'[i]} says something.", NOTICE] for i in range(notices)]
    return with_notice + [[f"Another {'abcdefgh'[i]} says more."] for i in range(others)]


def test_boilerplate_is_what_stands_in_so_many_documents():
    rules = CleaningRules(boilerplate_documents=3)
    assert take_census(Listed(documents_with(2, 3)), rules).boilerplate == frozenset()
    census = take_census(Listed(documents_with(3, 3)), rules)
    assert census.boilerplate == {key("ALL rights are reserved since 1999.")}
    # 3 first sentences of 26 characters and 3 others of 20 are kept
    assert (census.documents, census.sentences, census.characters) == (6, 6, 3 * 26 + 3 * 20)
    assert census.dropped == {**dict.fromkeys(REASONS, 0), "boilerplate": 3}
    off = take_census(Listed(documents_with(8, 0)), CleaningRules(boilerplate_documents=0))
    assert (off.boilerplate, off.sentences) == (frozenset(), 16)


def test_a_sentence_twice_in_a_document_counts_once_for_boilerplate():
    census = take_census(Listed([[NOTICE, NOTICE, NOTICE]]), CleaningRules(boilerplate_documents=2))
    assert census.boilerplate == frozenset()
    assert (census.sentences, census.dropped["duplicate"]) == (1, 2)


def random_documents(count, seed=0):
    generator = random.Random(seed)
    words = [*"abcdefghij", "1", "22", "да", "longer words here"]
    return [
        [" ".join(generator.choices(words, k=generator.randrange(1, 7))) for _ in range(8)]
        for _ in range(count)
    ]


def test_a_cleaner_with_the_boilerplate_found_does_what_the_census_says():
    rules = CleaningRules(min_characters=3, max_characters=60, boilerplate_documents=4)
    source = Listed(random_documents(200))
    census = take_census(source, rules)
    cleaner = Cleaner("en", rules, census.boilerplate)
    kept = [sentence for document in source.given for sentence in cleaner.clean(document)]
    assert (len(kept), sum(map(len, kept))) == (census.sentences, census.characters)
    assert {reason: cleaner.dropped[reason] for reason in REASONS} == census.dropped
    assert all(census.dropped.values())  # each of them was met
    counts = Counter()  # boilerplate by a plain count
    plain = Cleaner("en", rules)
    for document in source.given:
        counts.update({fold(sentence) for sentence in plain.clean(document)})
    assert census.boilerplate == {key(text) for text, count in counts.items() if count >= 4}


def test_a_census_reads_no_more_than_it_is_told():
    for most, complete, read in ((3, False, 4), (5, True, 5), (9, True, 5)):
        source = Listed(documents_with(2, 3))
        census = take_census(source, CleaningRules(), most)
        assert (census.documents, census.complete) == (min(most, 5), complete)
        assert source.read == read  # one more, to know whether there are more
    assert take_census(Listed([]), CleaningRules()).sentences == 0


def test_a_census_written_as_json_is_read_back(tmp_path):
    census = take_census(Listed(documents_with(3, 1)), CleaningRules(boilerplate_documents=3))
    assert census.boilerplate
    assert Census.from_json(json.loads(json.dumps(census.to_json()))) == census


def test_what_is_counted_stays_within_bounds_and_boilerplate_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(cleaning, "COUNTED", 64)
    repeated = cleaning._Repeated(3)
    for round_ in range(4):
        repeated.add(-1, 10)  # the fourth time after it has been found
        for other in range(200):
            repeated.add(1000 * round_ + other, 5)
            if other % 40 == 0:
                repeated.add(-1, 0)  # often enough not to be forgotten
            assert len(repeated.counts) <= 65
    assert repeated.found() == {-1: (24, 40)}


def test_more_boilerplate_than_the_bound_is_kept(monkeypatch):
    monkeypatch.setattr(cleaning, "COUNTED", 4)
    repeated = cleaning._Repeated(2)
    for identity in range(8):
        repeated.add(identity, 1)
        repeated.add(identity, 1)
    # 4 is the one too many when it is first met; it is forgotten, and is met once more only
    assert repeated.found() == dict.fromkeys([0, 1, 2, 3, 5, 6, 7], (2, 2))


@pytest.mark.real
def test_little_is_dropped_of_documents_that_are_clean_already(real_data):
    for folder in ("ntrex/docs", "longdocs_wiki"):
        for code, source in open_documents(str(real_data / folder)).items():
            census = take_census(source, CleaningRules())
            dropped = sum(census.dropped.values())
            assert census.complete
            assert dropped < 0.04 * (dropped + census.sentences), f"{code}: {census.dropped}"
