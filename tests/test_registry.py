"""From names to corpora: what is known, where files are found, what is said when they are not."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from ccpretrieve.data import registry
from ccpretrieve.data.folder import FolderCorpus
from ccpretrieve.data.records import Passage, Topic
from ccpretrieve.data.registry import (
    data_root,
    find,
    lookup,
    obtain,
    open_corpus,
    parallel,
    pending,
    table,
    training_file,
)
from ccpretrieve.data.sources import XQUAD_LANGUAGES, Entry, File
from ccpretrieve.data.squad import convert
from ccpretrieve.errors import UserError


@pytest.fixture(autouse=True)
def no_download(monkeypatch):
    """No test of this file may reach a network: a download fails and says of what."""

    def refuse(url, target, checksum=""):
        raise AssertionError(f"downloads {url}")

    monkeypatch.setattr(registry, "download", refuse)


@pytest.fixture
def fetched(monkeypatch):
    """Downloads write the address into the file instead; they are listed in order."""
    urls = []

    def write(url, target, checksum=""):
        urls.append(url)
        return put(target.parent, target.name, f"1\t{url}\n")

    monkeypatch.setattr(registry, "download", write)
    return urls


def put(root, path, text):
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    place.write_bytes(gzip.compress(data) if path.endswith(".gz") else data)
    return place


# -- the table --


def test_the_table_names_every_corpus_of_the_issue():
    count = {}
    for entry in table().values():
        count[entry.family.name] = count.get(entry.family.name, 0) + 1
    samples = count.pop("sample")
    assert samples >= 1
    assert count == {
        "mrtydi": 11,
        "xor-retrieve": 1,
        "nq": 1,
        "tatoeba": 112,
        "xquad": 12,
        "jaquad": 1,
        "ntrex": 41,
    }
    assert list(count) == [family.name for family in registry.families()[1:]]


def test_every_downloaded_file_has_one_place_and_a_pinned_or_published_address():
    urls = {}
    for entry in table().values():
        files = [file for _, _, file in entry.files()] + [file for _, _, file in entry.squad]
        for file in files:
            if file.url:
                assert file.url.startswith("https://")
                assert not Path(file.path).is_absolute()
                assert urls.setdefault(file.path, file.url) == file.url
                assert "/main/" not in file.url
                assert "/master/" not in file.url
    assert len(set(urls.values())) == len(urls)
    # 11 x (passages + 3 topics + 3 qrels), xor 4, nq 5, tatoeba 112 x 2, xquad 12,
    # jaquad 30 + 4, ntrex 41: 77 + 4 + 5 + 224 + 12 + 34 + 41
    assert len(urls) == 397


def test_every_language_of_the_table_is_known():
    for name, entry in table().items():
        corpus = open_corpus(name)
        assert corpus.name == name
        assert corpus.language, name
        assert corpus.topic_language or entry.family.name == "xor-retrieve"


def test_no_checksum_of_mr_tydi_1_0_stands_for_1_1():
    for code in ("ja", "sw"):
        for _, _, file in lookup(f"mrtydi-{code}").files():
            assert file.checksum == ""
            assert "v1.1" in file.url


# -- names and places --


def test_an_unknown_name_offers_near_ones_and_the_list():
    with pytest.raises(UserError) as stop:
        open_corpus("mrtydi-jp")
    assert str(stop.value).startswith("unknown corpus 'mrtydi-jp'; did you mean 'mrtydi-ja'")
    assert f"`python -m ccpretrieve.corpora` lists all {len(table())}" in str(stop.value)


@pytest.mark.parametrize("name", ["./nowhere", "~nobody/x", "some/folder", "docs.jsonl.gz"])
def test_a_place_where_nothing_is(name):
    with pytest.raises(UserError, match="no such folder or file"):
        open_corpus(name)


def test_a_folder_and_a_file_are_opened_where_they_are(tmp_path):
    put(tmp_path, "docs.jsonl", '{"id": "1", "contents": "a"}\n')
    for place in (tmp_path, tmp_path / "docs.jsonl"):
        corpus = open_corpus(str(place))
        assert isinstance(corpus, FolderCorpus)
        assert [record.passage.id for record in corpus.records()] == ["1"]


def test_a_name_of_the_table_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    put(tmp_path, "nq/docs.jsonl", '{"id": "1", "contents": "a"}\n')
    monkeypatch.chdir(tmp_path)
    assert open_corpus("nq", tmp_path).language == "en"
    assert [record.passage.id for record in open_corpus("./nq").records()] == ["1"]


def test_other_sources_are_opened_by_their_prefix():
    assert open_corpus("irds:mr-tydi/ja").name == "irds-mr-tydi-ja"
    assert open_corpus("hf:castorini/mr-tydi-corpus:japanese").name.startswith("hf-castorini")


def test_the_data_folder_is_the_flag_else_the_variable_else_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CCPRETRIEVE_DATA", raising=False)
    assert data_root() == tmp_path / "home" / ".cache" / "ccpretrieve"
    monkeypatch.setenv("CCPRETRIEVE_DATA", str(tmp_path / "named"))
    assert data_root() == tmp_path / "named"
    assert data_root(tmp_path / "flag") == tmp_path / "flag"


def test_the_sample_ships_with_the_package(tmp_path):
    corpus = open_corpus("sample-en", tmp_path)
    passages = {record.passage.id for record in corpus.records()}
    topics = {topic.id for topic in corpus.topics("test")}
    qrels = corpus.qrels("test")
    assert len(passages) >= 60
    assert len(topics) >= 20
    assert set(qrels) == topics
    assert {docid for graded in qrels.values() for docid in graded} <= passages
    assert {question.topic.id for question in corpus.answers("test")} == topics
    assert list(tmp_path.iterdir()) == []


# -- files put there by hand --

MRTYDI_LAYOUTS = {
    "short names": ("mrtydi/ja/collection/docs.jsonl.gz", "mrtydi/ja/topic.test.tsv"),
    "the archive, unpacked in the folder": (
        "mrtydi-v1.1-japanese/collection/docs.jsonl.gz",
        "mrtydi-v1.1-japanese/topic.test.tsv",
    ),
    "the archive, unpacked in mrtydi": (
        "mrtydi/mrtydi-v1.1-japanese/collection/docs.jsonl.gz",
        "mrtydi/mrtydi-v1.1-japanese/topic.test.tsv",
    ),
    "the hub": (
        "mrtydi-v1.1-japanese/corpus.jsonl.gz",
        "mrtydi-v1.1-japanese/ir-format-data/topics.test.txt",
    ),
    "as downloaded": (
        "mrtydi/ja/corpus.jsonl.gz",
        "mrtydi/ja/topics.mrtydi-v1.1-ja.test.txt.gz",
    ),
}


@pytest.mark.parametrize("layout", MRTYDI_LAYOUTS.values(), ids=MRTYDI_LAYOUTS)
def test_mr_tydi_is_found_in_every_layout(tmp_path, layout):
    passages, topics = layout
    put(tmp_path, passages, '{"id": "5#0", "contents": "富士山\\n\\n日本一高い山"}\n')
    put(tmp_path, topics, "46\tゲームの長さは？\n")
    corpus = open_corpus("mrtydi-ja", tmp_path)
    [record] = corpus.records()
    assert record.passage == Passage("5#0", "日本一高い山", "富士山")
    assert corpus.topics("test") == [Topic("46", "ゲームの長さは？")]


def test_mr_tydis_archive_is_unpacked_where_it_was_put(tmp_path):
    with tarfile.open(tmp_path / "mrtydi-v1.1-thai.tar.gz", "w:gz") as tar:
        for name, content in {
            "collection/docs.jsonl.gz": gzip.compress(b'{"id": "1#0", "contents": "a\\n\\nb"}\n'),
            "qrels.test.txt": b"1\tQ0\t1#0\t1\n",
        }.items():
            info = tarfile.TarInfo(f"mrtydi-v1.1-thai/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    corpus = open_corpus("mrtydi-th", tmp_path)
    assert corpus.qrels("test") == {"1": {"1#0": 1}}
    assert [record.passage.title for record in corpus.records()] == ["a"]


def test_version_1_0_never_stands_in_for_1_1(tmp_path):
    put(tmp_path, "mrtydi-v1.0-japanese/topic.test.tsv", "1\tq\n")
    put(tmp_path, "mrtydi-v1.0-japanese/collection/docs.jsonl.gz", '{"id":"1","contents":"a"}\n')
    with pytest.raises(AssertionError, match=r"downloads .*v1\.1"):
        open_corpus("mrtydi-ja", tmp_path).topics("test")


def test_passages_that_are_not_there_name_the_file_the_command_and_the_licence(tmp_path):
    with pytest.raises(UserError) as stop:
        open_corpus("mrtydi-ja", tmp_path).records()
    message = str(stop.value)
    assert "\n" not in message
    assert str(tmp_path / "mrtydi" / "ja" / "corpus.jsonl.gz") in message
    assert "1.1 GB" in message
    assert "CC BY-SA 3.0" in message
    command = f"python -m ccpretrieve.corpora mrtydi-ja --fetch --yes --data-dir {tmp_path}"
    assert f"`{command}`" in message
    assert "--data-dir or CCPRETRIEVE_DATA" in message


def test_the_command_is_short_where_the_folder_is_the_usual_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CCPRETRIEVE_DATA", str(tmp_path))
    with pytest.raises(UserError, match="--fetch --yes`"):
        open_corpus("mrtydi-ja").records()


def test_each_file_comes_by_itself_and_once(tmp_path, fetched):
    corpus = open_corpus("mrtydi-ja", tmp_path)
    assert fetched == []
    [topic] = corpus.topics("dev")
    assert fetched == [topic.text]
    assert topic.text.endswith("/topics/topics.mrtydi-v1.1-ja.dev.txt.gz")
    corpus.topics("dev")
    assert len(fetched) == 1


def test_an_unknown_split_names_those_there_are(tmp_path):
    with pytest.raises(UserError, match=r"unknown split .*'tests'.*mean 'test'.*train, dev, test"):
        open_corpus("mrtydi-ja", tmp_path).topics("tests")
    with pytest.raises(UserError, match="mrtydi-ja has no answers"):
        open_corpus("mrtydi-ja", tmp_path).answers("test")


# -- XOR-Retrieve and Natural Questions --


def test_xor_retrieve_reads_its_own_files(tmp_path):
    put(
        tmp_path,
        "xor-retrieve/enwiki_20190201_w100.tsv",
        'id\ttext\ttitle\n1\t"He said ""no""."\tHe\n',
    )
    question = {"id": "7", "lang": "ja", "question": "誰？", "answers": ["He"], "split": "dev"}
    put(tmp_path, "xor-retrieve/xor_dev_retrieve_eng_span_v1_1.jsonl", json.dumps(question) + "\n")
    corpus = open_corpus("xor-retrieve", tmp_path)
    [record] = corpus.records()
    assert record.passage == Passage("1", 'He said "no".', "He")
    assert corpus.topics("dev") == [Topic("7", "誰？", "ja")]
    [answered] = corpus.answers("dev")
    assert (answered.answers, answered.topic.language) == (("He",), "ja")
    assert (corpus.language, corpus.topic_language) == ("en", "")
    with pytest.raises(UserError, match="no qrels; it is scored by its answers"):
        corpus.qrels("dev")


def test_natural_questions_have_no_passages_and_say_where_to_search(tmp_path):
    put(tmp_path, "nq/nq-dev.qa.csv", "who sings\t['Linda Davis', 'Reba']\n")
    corpus = open_corpus("nq", tmp_path)
    assert corpus.topics("dev") == [Topic("0", "who sings")]
    [answered] = corpus.answers("dev")
    assert (answered.answers, corpus.topic_language) == (("Linda Davis", "Reba"), "en")
    with pytest.raises(UserError, match="xor-retrieve"):
        corpus.records()


def test_training_data_is_a_file_that_is_never_fetched_by_the_way(tmp_path):
    with pytest.raises(UserError, match="corpora nq --fetch --yes"):
        training_file("nq", "train", tmp_path)
    path = put(tmp_path, "nq/biencoder-nq-train.json", "[]")
    assert training_file("nq", "train", tmp_path) == path
    with pytest.raises(UserError, match="mrtydi-ja has no training"):
        training_file("mrtydi-ja", "train", tmp_path)


# -- parallel text --


def test_a_line_of_parallel_text_is_a_passage_and_its_translation_the_question(tmp_path):
    put(tmp_path, "tatoeba/fra-eng.fra", "\ufeffUn\u2028deux\r\nTrois\r\n")  # U+2028 ends no line
    put(tmp_path, "tatoeba/fra-eng.eng", "One two\nThree\n")
    corpus = open_corpus("tatoeba-fra", tmp_path)
    passages = [record.passage for record in corpus.records()]
    assert passages == [Passage("1", "One two"), Passage("2", "Three")]
    assert corpus.topics("test") == [Topic("1", "Un\u2028deux"), Topic("2", "Trois")]
    assert corpus.qrels("test") == {"1": {"1": 1}, "2": {"2": 1}}
    assert (corpus.language, corpus.topic_language) == ("en", "fr")
    assert parallel("tatoeba-fra", tmp_path) == (["Un\u2028deux", "Trois"], ["One two", "Three"])


def test_sides_of_different_length_are_refused(tmp_path):
    put(tmp_path, "ntrex/newstest2019-ref.jpn.txt", "一\n二\n")
    put(tmp_path, "ntrex/en.txt", "one\n")
    with pytest.raises(UserError, match=r"jpn\.txt has 2 lines but .*en\.txt has 1"):
        parallel("ntrex-ja", tmp_path)


def test_a_blank_line_in_parallel_text_is_named(tmp_path):
    put(tmp_path, "ntrex/ja.txt", "一\n\n三\n")
    with pytest.raises(UserError, match=r"ja\.txt:2: blank line"):
        open_corpus("ntrex-ja", tmp_path).topics("test")


def test_only_parallel_corpora_have_two_sides(tmp_path):
    with pytest.raises(UserError, match="jaquad is not parallel text"):
        parallel("jaquad", tmp_path)


# -- SQuAD's JSON --


def squad_file(path, articles):
    """A file in SQuAD's JSON: (title, [(context, [(id, question, answer)])]) each."""
    data = [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": context,
                    "qas": [
                        {"id": i, "question": q, "answers": [{"text": a, "answer_start": 0}]}
                        for i, q, a in questions
                    ],
                }
                for context, questions in paragraphs
            ],
        }
        for title, paragraphs in articles
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return path


def test_squads_json_becomes_the_layout_of_mr_tydi(tmp_path):
    one = squad_file(
        tmp_path / "one.json",
        [
            ("Super_Bowl_50", [("\ufeffGewonnen hat Denver.", [("q1", "Wer\tgewann?", "Denver")])]),
            ("Warsaw", [("Stadt.\n\nHauptstadt.", []), ("Fluss.", [("q2", "Was?", "Fluss")])]),
        ],
    )
    two = squad_file(tmp_path / "two.json", [("Rhine", [("Strom.", [("q3", "Wie?", "Strom")])])])
    three = squad_file(tmp_path / "three.json", [("Oxygen", [("Gas.", [("q4", "?", "Gas")])])])
    parts = [("", "test", one), ("", "test", two), ("tr", "train", three)]
    convert(parts, tmp_path / "x", "de", underscored=True)
    with gzip.open(tmp_path / "x" / "collection" / "docs.jsonl.gz", "rt", encoding="utf-8") as f:
        assert f.read() == (
            '{"id": "0#0", "contents": "Super Bowl 50\\n\\nGewonnen hat Denver."}\n'
            '{"id": "1#0", "contents": "Warsaw\\n\\nStadt.\\n\\nHauptstadt."}\n'
            '{"id": "1#1", "contents": "Warsaw\\n\\nFluss."}\n'
            '{"id": "2#0", "contents": "Rhine\\n\\nStrom."}\n'
            '{"id": "tr0#0", "contents": "Oxygen\\n\\nGas."}\n'
        )
    folder = tmp_path / "x"
    assert (folder / "topic.test.tsv").read_text() == "q1\tWer gewann?\nq2\tWas?\nq3\tWie?\n"
    assert (folder / "topic.train.tsv").read_text() == "q4\t?\n"
    qrels = "q1 Q0 0#0 1\nq2 Q0 1#1 1\nq3 Q0 2#0 1\n"
    assert (folder / "qrels.test.txt").read_text() == qrels
    assert (folder / "answers.jsonl").read_text().splitlines()[0] == (
        '{"id": "q1", "lang": "de", "question": "Wer gewann?", "answers": ["Denver"]}'
    )
    assert (folder / "answers.train.jsonl").is_file()
    assert sorted(path.name for path in folder.iterdir()) == [
        "answers.jsonl",
        "answers.train.jsonl",
        "collection",
        "qrels.test.txt",
        "qrels.train.txt",
        "topic.test.tsv",
        "topic.train.tsv",
    ]


@pytest.mark.parametrize("content", ["{", '{"data": [{"title": "a"}]}', "[]", '{"data": [1]}'])
def test_what_is_not_squads_json_is_named_and_nothing_is_written(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=r"x\.json.*(not JSON|not SQuAD's JSON)"):
        convert([("", "test", tmp_path / "x.json")], tmp_path / "out", "de")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_xquad_is_converted_on_first_use(tmp_path):
    articles = [("Rhine", [("Strom.", [("q3", "Wie?", "Strom")])])]
    squad_file(tmp_path / "xquad" / "xquad.de.json", articles)
    corpus = open_corpus("xquad-de", tmp_path)
    assert corpus.topics("test") == [Topic("q3", "Wie?")]
    assert [record.passage.id for record in corpus.records()] == ["0#0"]
    assert corpus.qrels("test") == {"q3": {"0#0": 1}}
    assert [question.answers for question in corpus.answers("test")] == [("Strom",)]
    folder = FolderCorpus(tmp_path / "xquad" / "de")  # what was made is a folder like any other
    assert (folder.name, folder.language) == ("xquad-de", "de")
    assert folder.qrels("test") == corpus.qrels("test")


def test_what_is_pending_is_what_would_be_downloaded(tmp_path):
    assert [file.path for file in pending(lookup("xquad-de"), tmp_path)] == [
        "xquad/de/xquad.de.json"
    ]
    assert len(pending(lookup("jaquad"), tmp_path)) == 34
    put(tmp_path, "tatoeba/tatoeba.fra-eng.fra", "Un\n")  # by the name it has at its source
    assert [file.path for file in pending(lookup("tatoeba-fra"), tmp_path)] == [
        "tatoeba/fra-eng.eng"
    ]
    assert pending(lookup("sample-en"), tmp_path) == []


def test_a_large_file_is_fetched_when_asked_for(tmp_path, fetched):
    file = File("big/file", "https://example.org/file", 10**9)
    entry = Entry("big", registry.SAMPLE, "en", passages=file)
    with pytest.raises(UserError, match=r"1\.0 GB"):
        obtain(entry, file, tmp_path)
    assert obtain(entry, file, tmp_path, large=True) == tmp_path / "big" / "file"
    assert find(file, tmp_path) == tmp_path / "big" / "file"


# -- real text --


@pytest.mark.slow
@pytest.mark.real
def test_the_real_data_opens_by_name(real_data):
    for code in XQUAD_LANGUAGES:
        corpus = open_corpus(f"xquad-{code}", real_data)
        assert sum(1 for _ in corpus.records()) == 240
        assert len(corpus.topics("test")) == len(corpus.qrels("test")) == 1190
    jaquad = open_corpus("jaquad", real_data)
    assert sum(1 for _ in jaquad.records()) == 11_144
    assert [len(jaquad.topics(split)) for split in ("train", "test")] == [31_748, 3939]
    assert len(jaquad.answers("train")) == 31_748
    assert len(open_corpus("nq", real_data).answers("dev")) == 8757
    ours, english = parallel("ntrex-ja", real_data)
    assert len(ours) == len(english) == 1997


@pytest.mark.real
def test_the_real_tatoeba_has_88877_pairs(real_data):
    names = [name for name in table() if name.startswith("tatoeba-")]
    assert sum(len(parallel(name, real_data)[0]) for name in names) == 88_877


@pytest.mark.real
def test_the_real_mr_tydi_questions_are_there_without_passages(real_data):
    counts = {
        **{"ar": 1081, "bn": 111, "en": 744, "fi": 1254, "id": 829, "ja": 720},
        **{"ko": 421, "ru": 995, "sw": 670, "te": 646, "th": 1190},
    }
    for code, count in counts.items():
        corpus = open_corpus(f"mrtydi-{code}", real_data)
        topics, qrels = corpus.topics("test"), corpus.qrels("test")
        assert len(topics) == count
        assert {topic.id for topic in topics} == set(qrels)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["xquad/ar", "xquad/ro", "jaquad/ja"])
def test_converting_the_source_of_a_real_folder_gives_the_folder(real_data, tmp_path, name):
    """The folder is turned back into SQuAD's JSON, with the marks our reader takes away."""
    folder, made = real_data / name, tmp_path / "made"
    underscored = name.startswith("xquad")
    parts = [("", "test")] if underscored else [("tr", "train"), ("dv", "test")]
    with gzip.open(folder / "collection" / "docs.jsonl.gz", "rt", encoding="utf-8") as f:
        passages = [json.loads(text) for text in f]
    sources = []
    for prefix, split in parts:
        answers = folder / ("answers.jsonl" if split == "test" else f"answers.{split}.jsonl")
        asked = map(json.loads, answers.read_text(encoding="utf-8").splitlines())
        qrels = open_corpus(str(folder)).qrels(split)
        questions = {}
        for item in asked:
            [docid] = qrels[item["id"]]
            question = (item["id"], item["question"], item["answers"][0])
            questions.setdefault(docid, []).append(question)
        articles = {}
        for passage in passages:
            number = passage["id"].partition("#")[0]
            if number.rstrip("0123456789") == prefix:
                title, _, text = passage["contents"].partition("\n\n")
                paragraph = ("\ufeff" + text, questions.get(passage["id"], []))
                articles.setdefault((number, title.replace(" ", "_")), []).append(paragraph)
        whole = [(title, paragraphs) for (_, title), paragraphs in articles.items()]
        half = len(whole) // 2
        for file, some in ((f"{split}.0.json", whole[:half]), (f"{split}.1.json", whole[half:])):
            sources.append((prefix, split, squad_file(tmp_path / file, some)))
    convert(sources, made, name.partition("/")[2], underscored=underscored)
    for path in made.rglob("*"):
        if path.is_file():
            theirs = (folder / path.relative_to(made)).read_bytes()
            ours = path.read_bytes()
            if path.suffix == ".gz":
                theirs, ours = gzip.decompress(theirs), gzip.decompress(ours)
            assert ours == theirs, path.name
