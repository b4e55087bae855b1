import errno
import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpretrieve.data import census as module
from ccpretrieve.data.census import kept, take_census
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.data.records import Passage, Record
from ccpretrieve.errors import UserError


class Listed(Corpus):
    """A corpus of passages in memory, that counts how often it is read."""

    name = "listed"
    language = ""

    def __init__(self, passages):
        self.passages = [p if isinstance(p, Passage) else Passage(p, f"text {p}") for p in passages]
        self.readings = 0

    def records(self):
        self.readings += 1
        for line, passage in enumerate(self.passages, 1):
            yield Record(passage, "memory", line)

    def topics(self, split):
        raise NotImplementedError

    def qrels(self, split):
        raise NotImplementedError


def later_duplicates(passages):
    """Ordinals of passages whose id stood before, found the plain way."""
    ids = [passage.id for passage in passages]
    return [ordinal for ordinal, name in enumerate(ids) if name in ids[:ordinal]]


def test_passages_characters_and_empty_ones_are_counted():
    corpus = Listed(
        [
            Passage("a", "four", "two"),  # 4 + 3
            Passage("b", "", ""),  # empty
            Passage("c", " \n\u3000", "\u00a0"),  # 3 + 1, white space only: empty
            Passage("d", "", "title"),  # 5
        ]
    )
    census = take_census(corpus)
    assert (census.passages, census.characters, census.empty) == (4, 16, 2)
    assert (census.duplicates, census.skip.tolist()) == (0, [])


def test_a_corpus_without_duplicates_is_read_once():
    corpus = Listed("abc")
    take_census(corpus)
    assert corpus.readings == 1


def test_a_duplicate_id_is_an_error_that_names_both_lines_and_the_way_out(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": "x"}) + "\n" for i in "abcbb"))
    with pytest.raises(UserError) as caught:
        take_census(FolderCorpus(path))
    assert str(caught.value) == (
        f"{path}:4: duplicate id 'b', first at {path}:2; correct one, or keep the first of each id"
        " with --on-duplicate first"
    )


def test_the_same_line_of_two_files_is_told_apart(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"id": "x", "text": "x"}\n')
    with pytest.raises(UserError, match=r"b\.jsonl:1: duplicate id 'x', first at .*a\.jsonl:1"):
        take_census(FolderCorpus(tmp_path))


def test_keeping_the_first_leaves_later_duplicates_out_of_every_number():
    corpus = Listed(
        [Passage("a", "1"), Passage("b", "22"), Passage("a", "333"), Passage("b", ""), "c"]
    )
    census = take_census(corpus, on_duplicate="first")
    assert census.skip.tolist() == [2, 3]
    assert (census.passages, census.duplicates) == (3, 2)
    assert census.characters == 1 + 2 + len("text c")
    assert census.empty == 0
    assert [passage.text for passage in kept(corpus, census)] == ["1", "22", "text c"]
    assert census.sample == tuple(kept(corpus, census))


@pytest.mark.parametrize("bits", [0, 2, 64])
@settings(deadline=None, max_examples=40)
@given(st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=12))
def test_duplicates_are_those_a_plain_search_finds_whatever_collides(bits, names):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "key", lambda name: hash(name) % (1 << bits) - (1 << bits) // 2)
        patch.setattr(module, "BUFFERED", 4)  # so that a list this short is spilled many times
        corpus = Listed(names)
        census = take_census(corpus, on_duplicate="first")
        assert census.skip.tolist() == later_duplicates(corpus.passages)
        assert census.skip.dtype == np.int64
        assert [p.id for p in kept(corpus, census)] == list(dict.fromkeys(names))
        if not len(census.skip):
            assert take_census(corpus).passages == len(names)
        else:
            with pytest.raises(UserError, match="duplicate id"):
                take_census(corpus)


def test_colliding_hashes_are_no_duplicates(monkeypatch):
    monkeypatch.setattr(module, "key", lambda name: -7)
    corpus = Listed("abcdef")
    assert take_census(corpus).passages == 6
    assert corpus.readings == 2


def test_a_corpus_given_twice_over_needs_few_suspects_to_be_refused(monkeypatch):
    monkeypatch.setattr(module, "SUSPECTS", 3)
    names = [str(number) for number in range(500)]
    suspects = []
    looked_into = module._duplicates
    monkeypatch.setattr(
        module, "_duplicates", lambda c, keys: suspects.append(keys) or looked_into(c, keys)
    )
    with pytest.raises(UserError, match="duplicate id"):
        take_census(Listed(names + names))
    assert len(suspects[0]) == 3


def test_the_fingerprint_depends_on_every_field_their_borders_and_the_order():
    variants = [
        [Passage("a", "bc", "d"), Passage("e", "f")],
        [Passage("e", "f"), Passage("a", "bc", "d")],
        [Passage("a", "bc", "d")],
        [Passage("ab", "c", "d"), Passage("e", "f")],
        [Passage("a", "b", "cd"), Passage("e", "f")],
        [Passage("a", "bcd", ""), Passage("e", "f")],
        [Passage("a", "bc", "de"), Passage("f", "")],
        [Passage("a", "bc", "d"), Passage("e", "f"), Passage("g", "")],
        [Passage("a", "é", "d"), Passage("e", "f")],
        [Passage("a", "e\u0301", "d"), Passage("e", "f")],
    ]
    prints = [take_census(Listed(variant)).fingerprint for variant in variants]
    assert len(set(prints)) == len(variants)
    assert prints == [take_census(Listed(variant)).fingerprint for variant in variants]
    # printf '1 1 2 adbc1 0 1 ef' | sha256sum: three lengths in bytes, then id, title, text
    assert prints[0] == "7468c6cbda7fe1079d521f5f8fcc5b65d782bdd552388c64a454596c47e24028"


def test_a_small_corpus_is_its_own_sample():
    corpus = Listed("dacb")
    assert take_census(corpus, sample=4).sample == tuple(corpus.passages)
    assert take_census(corpus, sample=0).sample == ()


def test_the_sample_is_in_order_without_repetition_and_the_same_each_time():
    corpus = Listed(map(str, range(1000)))
    sample = take_census(corpus, sample=50).sample
    numbers = [int(passage.id) for passage in sample]
    assert len(numbers) == 50
    assert numbers == sorted(set(numbers))
    assert take_census(corpus, sample=50).sample == sample
    assert take_census(corpus, sample=50, seed=1).sample != sample


def test_every_passage_is_sampled_equally_often():
    # 3 of 12 in 4,000 draws: each passage is drawn 1,000 times in the mean, with a standard
    # deviation of sqrt(4000 * 1/4 * 3/4) = 27; 150 is more than five of them.
    counts = Counter()
    for seed in range(4000):
        draw = module._Draw(3, random.Random(seed))
        for ordinal in range(12):
            if ordinal == draw.due:
                draw.take(Passage(str(ordinal), ""))
        counts.update(draw.drawn.keys())
        assert len(draw.drawn) == 3
    assert set(counts) == set(range(12))
    assert max(abs(count - 1000) for count in counts.values()) < 150


def test_an_empty_corpus_and_half_a_character_are_errors():
    with pytest.raises(UserError, match="listed has no passages"):
        take_census(Listed([]))
    with pytest.raises(UserError, match=r"memory:2: surrogates not allowed"):
        take_census(Listed(["a", Passage("b", "\ud800")]))


def test_an_unknown_way_with_duplicates_is_an_error():
    with pytest.raises(UserError, match="unknown on-duplicate 'last'"):
        take_census(Listed("a"), on_duplicate="last")


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError):
        take_census(Listed("aa"))
    take_census(Listed("ab"))
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_that_cannot_be_made_is_the_users_to_put_right(monkeypatch, tmp_path):
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="set TMPDIR"):
        take_census(Listed("ab"))


def test_a_full_disk_is_the_users_to_put_right(monkeypatch):
    def full(self, *args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.Path, "open", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        take_census(Listed("ab"))


@pytest.mark.real
def test_the_census_of_real_text_has_the_counts_published(real_data):
    census = take_census(FolderCorpus(real_data / "jaquad" / "ja"))
    assert (census.passages, census.duplicates, census.empty) == (11_144, 0, 0)
    assert len(census.sample) == 1000
