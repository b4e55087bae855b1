import json

import pytest

from benchmarks import parallel_builder
from benchmarks.parallel_builder import BuilderConfig, run
from benchmarks.tatoeba import find_trials
from ccpretrieve.data.parallel import read_parallel
from ccpretrieve.errors import UserError

# id, language, text: as the site exports them, ids not in order
SENTENCES = [
    (3, "fra", "Bonjour."),
    (1, "eng", "Hello."),
    (2, "deu", "Hallo."),
    (7, "fra", "Salut."),
    (12, "deu", "Guten Tag."),
    (30, "fra", "Merci\u2028beaucoup."),
    (31, "deu", "Danke."),
    (40, "jpn", "ありがとう。"),
    (41, "qqq", "?"),
    (50, "\\N", "no language"),
]
# 3-2 in both directions, 7-2 and 3-12 besides; 99 was removed
LINKS = [(3, 2), (2, 3), (2, 7), (3, 12), (31, 30), (1, 3), (1, 2), (40, 30), (3, 99), (3, 50)]


def write_dump(folder, sentences=SENTENCES, links=LINKS):
    lines = ["\t".join(map(str, row)) for row in sentences]
    (folder / "sentences.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = ["\t".join(map(str, row)) for row in links]
    (folder / "links.csv").write_text("\n".join(lines) + "\n")
    return {"sentences": folder / "sentences.csv", "links": folder / "links.csv"}


@pytest.fixture
def dump(tmp_path):
    return write_dump(tmp_path)


def pairs_in(folder, name="fra-deu"):
    (text,) = (text for text in read_parallel(folder, pivot="") if text.name == name)
    return set(zip(*text.sides, strict=True))


def large(count=400):
    """Sentence 2i of one language is linked with 2i + 1 of the other."""
    sentences = [(n, "deu" if n % 2 else "fra", f"{n} mots") for n in range(2, 2 * count + 2)]
    return sentences, [(n, n + 1) for n in range(2, 2 * count + 2, 2)]


def test_links_are_taken_in_either_direction_and_only_once(dump, tmp_path):
    report = run(BuilderConfig(pairs=("fra-deu",), output=tmp_path / "o", **dump))
    (built,) = report.built
    # distinct links of French with German: 3-2, 7-2, 3-12, 30-31
    assert (built.name, built.origin, built.found) == ("fra-deu", "drawn", 4)
    found = pairs_in(tmp_path / "o")
    assert ("Merci\u2028beaucoup.", "Danke.") in found
    assert built.pairs == len(found)
    linked = {("Bonjour.", "Hallo."), ("Salut.", "Hallo."), ("Bonjour.", "Guten Tag.")}
    assert found - {("Merci\u2028beaucoup.", "Danke.")} <= linked


@pytest.mark.parametrize("seed", range(6))
def test_no_sentence_is_in_two_pairs(dump, tmp_path, seed):
    run(BuilderConfig(pairs=("fra-deu",), output=tmp_path / "o", seed=seed, **dump))
    for side in zip(*pairs_in(tmp_path / "o"), strict=True):
        assert len(set(side)) == len(side)


def test_no_text_is_in_two_pairs_though_ids_differ(tmp_path):
    sentences, links = large(40)
    sentences = [(n, code, "encore" if n in (2, 20, 60) else text) for n, code, text in sentences]
    dump = write_dump(
        tmp_path, [*sentences, (900, "fra", " "), (901, "deu", "x")], [*links, (900, 901)]
    )
    report = run(BuilderConfig(pairs=("fra-deu",), output=tmp_path / "o", **dump))
    assert (report.built[0].found, report.built[0].pairs) == (41, 38)  # less two, less the blank


def test_a_draw_depends_on_the_seed_alone(tmp_path):
    sentences, links = large()
    dump = write_dump(tmp_path, sentences, links)

    def drawn(name, *pairs, seed=0, **paths):
        config = BuilderConfig(
            pairs=pairs, output=tmp_path / name, most=50, seed=seed, **(paths or dump)
        )
        run(config)
        return (tmp_path / name / "fra-deu.fra").read_text().splitlines()

    first = drawn("a", "fra-deu")
    assert len(first) == 50
    other = [*sentences, *((n, "jpn", f"{n}") for n in range(2000, 2100))]
    with_others = write_dump(
        tmp_path, other, [*links[::-1], *((n, n + 1998) for n in range(2, 60))]
    )
    assert drawn("b", "jpn-fra", "fra-deu", **with_others) == first
    assert drawn("c", "fra-deu", seed=1) != first
    assert {int(line.split()[0]) // 200 for line in first} >= {0, 1, 2, 3}  # from all over it


def test_english_can_come_along_and_is_what_the_loss_is_taken_from(dump, tmp_path):
    sentences = [*SENTENCES, (60, "eng", "Thanks."), (61, "eng", "Hi."), (62, "eng", "Bye.")]
    write_dump(tmp_path, sentences, [*LINKS, (60, 30), (61, 7), (60, 31), (62, 12)])
    config = BuilderConfig(pairs=("fra-deu",), output=tmp_path / "o", with_english=True, **dump)
    assert [built.name for built in run(config).built] == ["fra-deu", "fra-eng", "deu-eng"]
    (trial,) = find_trials(tmp_path / "o", (), ("fra-deu",), None)
    assert [text.name for text in trial.english] == ["fra-eng", "deu-eng"]
    assert not trial.same


def test_what_it_was_made_of_is_written_beside(dump, tmp_path):
    config = BuilderConfig(pairs=("fra-deu", "jpn-deu"), output=tmp_path / "o", seed=3, **dump)
    report = run(config)
    written = json.loads((tmp_path / "o" / "built.json").read_text())
    assert written["seed"] == 3
    assert len(written["sha256"]) == 64
    assert [each["name"] for each in written["pairs"]] == ["fra-deu", "jpn-deu"]
    # nothing links Japanese with German: no file, and a dash
    assert not list((tmp_path / "o").glob("jpn-deu*"))
    assert [line.split() for line in str(report).splitlines()][2] == ["jpn-deu", "drawn", "0", "-"]


def test_a_folder_gives_what_it_has_and_joins_what_it_lacks(tmp_path):
    data = tmp_path / "d"
    data.mkdir()
    for name, lines in {
        "fra-eng.fra": ["un", "deux", "trois"],
        "fra-eng.eng": ["one", "two", "three"],
        "deu-eng.deu": ["drei", "eins", "vier"],
        "deu-eng.eng": ["three", "one", "four"],
        "jpn-kor.jpn": ["一", "二"],
        "jpn-kor.kor": ["일", "이"],
    }.items():
        (data / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = BuilderConfig(pairs=("fra-deu", "ko-ja"), output=tmp_path / "o", data=data)
    joined, given = run(config).built
    assert (joined.origin, joined.pairs) == ("joined at English", 2)
    assert (given.origin, given.pairs) == ("given", 2)
    assert pairs_in(tmp_path / "o") == {("un", "eins"), ("trois", "drei")}
    config = BuilderConfig(pairs=("fra-deu",), output=tmp_path / "p", data=data, most=1)
    (cut,) = run(config).built
    assert (cut.found, cut.pairs) == (2, 1)
    assert len(pairs_in(tmp_path / "p")) == 1


@pytest.mark.parametrize(
    ("file", "line", "words"),
    [
        ("sentences", "12\tfra", r"sentences\.csv:11: expected id<TAB>language<TAB>text"),
        ("sentences", "x\tfra\ty", r"sentences\.csv:11: expected id<TAB>language<TAB>text"),
        ("sentences", "99999999999\tfra\ty", r"sentences\.csv:11: id 99999999999 is more than"),
        ("links", "1\t2 3", r"links\.csv:11: expected id<TAB>id"),
        ("links", "1", r"links\.csv:11: expected id<TAB>id"),
    ],
)
def test_a_broken_line_is_named(dump, tmp_path, file, line, words):
    with dump[file].open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(UserError, match=words):
        run(BuilderConfig(pairs=("fra-deu",), output=tmp_path / "o", **dump))


def test_settings_that_cannot_work_are_refused(dump, tmp_path):
    with pytest.raises(UserError, match="--sentences and --links go together"):
        BuilderConfig(pairs=("fra-deu",), output=tmp_path, sentences=dump["sentences"])
    with pytest.raises(UserError, match="give --data, or --sentences with --links, and not both"):
        BuilderConfig(pairs=("fra-deu",), output=tmp_path)
    with pytest.raises(UserError, match="give --data, or --sentences with --links, and not both"):
        BuilderConfig(pairs=("fra-deu",), output=tmp_path, data=tmp_path, **dump)
    with pytest.raises(UserError, match="--pairs needs one pair or more"):
        BuilderConfig(pairs=(), output=tmp_path, **dump)
    with pytest.raises(UserError, match="jpn-deu: no pair of sentences was found"):
        run(BuilderConfig(pairs=("jpn-deu",), output=tmp_path / "o", **dump))


def test_text_that_is_there_is_never_written_over(dump, tmp_path):
    data = tmp_path / "d"
    data.mkdir()
    (data / "fra-deu.fra").write_text("un\ndeux\n")
    (data / "fra-deu.deu").write_text("eins\nzwei\n")
    asked = {"pairs": ("fra-deu",), "most": 1}
    with pytest.raises(UserError, match="is the folder of --data"):
        run(BuilderConfig(data=data, output=tmp_path / "x" / ".." / "d", **asked))
    with pytest.raises(UserError, match=r"holds files and no built\.json"):
        run(BuilderConfig(output=data, **asked, **dump))
    assert (data / "fra-deu.fra").read_text() == "un\ndeux\n"
    for _ in range(2):  # what was built may be built again
        run(BuilderConfig(data=data, output=tmp_path / "o", **asked))


def test_texts_of_the_draw_alone_are_held(dump, tmp_path, monkeypatch):
    asked = []
    texts = parallel_builder._texts
    monkeypatch.setattr(
        parallel_builder, "_texts", lambda path, ids: asked.append(len(ids)) or texts(path, ids)
    )
    sentences, links = large()
    dump = write_dump(tmp_path, sentences, links)
    run(BuilderConfig(pairs=("fra-deu",), output=tmp_path / "o", most=10, **dump))
    assert asked == [2 * 10 * parallel_builder.SPARE]
