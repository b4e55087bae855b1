"""What the registry knows: every corpus by name, its files, where they come from, their licence.

Data only. A file has one place under the data folder, where it is downloaded to, and further places
where somebody may have put it: the layout of the publisher's archive, or a checkout of his
repository. Sizes are those the source names, 0 where it names none. A checksum stands here only
where somebody who publishes one is named beside it; otherwise the hub states one with the file, or
the first download's is recorded (:mod:`ccpretrieve.data.download`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

GITHUB = "https://raw.githubusercontent.com"
HUB = "https://huggingface.co/datasets"
DPR = "https://dl.fbaipublicfiles.com/dpr/data/retriever"  # facebookresearch/DPR download_data.py
XOR = "https://nlp.cs.washington.edu/xorqa/XORQA_site/data"  # AkariAsai/XORQA, README.md

MRTYDI_CORPUS = f"{HUB}/castorini/mr-tydi-corpus/resolve/3a3aa212bbe94a8cc0dc858710a3dad49d532054"
ANSERINI_TOOLS = f"{GITHUB}/castorini/anserini-tools/5b819c1a45c8a0a3ec9426f476694f44a29dfaf3"
LASER = f"{GITHUB}/facebookresearch/LASER/74bc6ae7ffb7cba670fe0f428d0ede9f666fb821/data/tatoeba/v1"
XQUAD = f"{GITHUB}/google-deepmind/xquad/7d30520c717524000f0d9d2f9c10a069acd9d285"
JAQUAD = f"{GITHUB}/SkelterLabsInc/JaQuAD/23f5d72cc273c49b35e2d9efe0f51757aa1770bd/data"
NTREX = f"{GITHUB}/MicrosoftTranslator/NTREX/8561f6a622db9edad1217683e5c83daefd8bb2bf/NTREX-128"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True)
class File:
    """One file of a corpus.

    Attributes:
        path: Its place under the data folder.
        url: Its address; empty for a file made from others.
        size: Bytes to download, about; 0 where the source does not say.
        checksum: ``md5:...`` as somebody publishes it, else empty.
        also: Further places under the data folder where it may have been put by hand.
        archive: The publisher's archive that holds it, if put by hand under the data folder.
    """

    path: str
    url: str = ""
    size: int = 0
    checksum: str = ""
    also: tuple[str, ...] = ()
    archive: str = ""


@dataclass(frozen=True)
class Family:
    """What the corpora of one publication share.

    Attributes:
        name: First part of their names.
        content: One line: what it is and holds.
        licence: Of the text, as the publisher states it.
        homepage: Where the publisher describes it.
    """

    name: str
    content: str
    licence: str
    homepage: str


@dataclass(frozen=True)
class Entry:
    """One corpus.

    Attributes:
        name: As given to ``--corpus``.
        family: What it shares with others.
        language: Of its passages, two letters.
        topic_language: Of its questions; empty if they are in several.
        count: Passages, 0 where not stated.
        passages: File of passages, None where there are none.
        topics: Split -> file of questions.
        qrels: Split -> file of judgements.
        answers: Split -> file of questions with answers.
        training: Split -> file of questions with their passages, in DPR's JSON.
        squad: Files in SQuAD's JSON that the above are made from: (id prefix, split, file).
        underscored: Titles in those files have underscores for spaces.
        parallel: Lines of passages and topics are translations of one another.
    """

    name: str
    family: Family
    language: str
    topic_language: str = ""
    count: int = 0
    passages: File | None = None
    topics: dict[str, File] = field(default_factory=dict)
    qrels: dict[str, File] = field(default_factory=dict)
    answers: dict[str, File] = field(default_factory=dict)
    training: dict[str, File] = field(default_factory=dict)
    squad: tuple[tuple[str, str, File], ...] = ()
    underscored: bool = False
    parallel: bool = False

    def files(self) -> Iterator[tuple[str, str, File]]:
        """Every file once, as (part, split, file)."""
        if self.passages:
            yield "passages", "", self.passages
        for part in ("topics", "qrels", "answers", "training"):
            for split, file in getattr(self, part).items():
                if part != "answers" or file not in self.topics.values():
                    yield part, split, file


MRTYDI = Family(
    "mrtydi",
    "Mr. TyDi v1.1: questions and Wikipedia passages of one language; train, dev, test",
    "Apache-2.0 (Mr. TyDi, TyDi QA); passages CC BY-SA 3.0 (Wikipedia)",
    "https://github.com/castorini/mr.tydi",
)
#: Name in file names; passages (Pyserini's prebuilt_index_info.py); MB of corpus.jsonl.gz on the
#: hub, as its file listing shows them. English is 5.1 GB.
MRTYDI_LANGUAGES = {
    "ar": ("arabic", 2_106_586, 328),
    "bn": ("bengali", 304_059, 61),
    "en": ("english", 32_907_100, 5068),
    "fi": ("finnish", 1_908_757, 274),
    "id": ("indonesian", 1_469_399, 173),
    "ja": ("japanese", 7_000_027, 1078),
    "ko": ("korean", 1_496_126, 228),
    "ru": ("russian", 9_597_504, 1588),
    "sw": ("swahili", 136_689, 11),
    "te": ("telugu", 548_224, 75),
    "th": ("thai", 568_855, 115),
}


def mrtydi(code: str) -> Entry:
    """Passages from the hub; topics and qrels from anserini-tools, as Pyserini uses them.

    The archives at git.uwaterloo.ca, named in Mr. TyDi's README, are read if put by hand. v1.0,
    which ir_datasets serves as ``irds:mr-tydi/ja``, is another edition and never stands in.
    """
    word, count, megabytes = MRTYDI_LANGUAGES[code]
    folder = f"mrtydi-v1.1-{word}"
    archive = f"mrtydi/{folder}.tar.gz"

    def places(*names: str) -> tuple[str, ...]:
        roots = (f"mrtydi/{code}", f"mrtydi/{folder}", folder)
        return tuple(f"{root}/{name}" for root in roots for name in names)

    def small(kind: str, split: str, ending: str, theirs: str) -> File:
        name = f"{kind}.mrtydi-v1.1-{code}.{split}.{ending}"
        return File(
            f"mrtydi/{code}/{name}",
            f"{ANSERINI_TOOLS}/{kind}/{name}",
            also=(
                *places(theirs, f"ir-format-data/{kind}.{split}.txt"),
                *(f"{root}/{name}" for root in ("mrtydi_topics_qrels", "mrtydi", kind)),
            ),
            archive=archive,
        )

    splits = ("train", "dev", "test")
    topics = {s: small("topics", s, "txt.gz", f"topic.{s}.tsv") for s in splits}
    qrels = {s: small("qrels", s, "txt", f"qrels.{s}.txt") for s in splits}
    passages = File(
        f"mrtydi/{code}/corpus.jsonl.gz",
        f"{MRTYDI_CORPUS}/{folder}/corpus.jsonl.gz",
        megabytes * 1_000_000,
        also=places("collection/docs.jsonl.gz", "collection/docs.jsonl", "corpus.jsonl.gz"),
        archive=archive,
    )
    return Entry(f"mrtydi-{code}", MRTYDI, code, code, count, passages, topics, qrels)


XOR_RETRIEVE = Family(
    "xor-retrieve",
    "XOR-TyDi QA, XOR-Retrieve: questions in ar bn fi ja ko ru te, English passages of 100 words; "
    "train, dev, test (test without answers); scored by answers, no qrels",
    "MIT (questions); passages CC BY-SA 3.0 (Wikipedia)",
    "https://github.com/AkariAsai/XORQA",
)


def xor_retrieve() -> Entry:
    """Dev and test are v1.1, the corrected edition; train has only one."""

    def questions(name: str) -> File:
        return File(f"xor-retrieve/{name}", f"{XOR}/{name}", also=(name, f"xor_retrieve/{name}"))

    files = {
        "train": questions("xor_train_retrieve_eng_span.jsonl"),
        "dev": questions("xor_dev_retrieve_eng_span_v1_1.jsonl"),
        "test": questions("xor_test_retrieve_eng_span_q_only_v1_1.jsonl"),
    }
    name = "enwiki_20190201_w100.tsv"
    passages = File(
        f"xor-retrieve/{name}",
        f"{XOR}/models/{name}",  # AkariAsai/XORQA, baselines/DPR/README.md, issue 7
        13_000_000_000,  # "13G": MiuLab/UMR, README.md
        also=(name, f"xor_retrieve/{name}", f"xor-retrieve/{name}.gz"),
    )
    answers = {split: files[split] for split in ("train", "dev")}
    return Entry("xor-retrieve", XOR_RETRIEVE, "en", "", 0, passages, files, answers=answers)


NQ = Family(
    "nq",
    "Natural Questions as DPR uses them: English questions with answers (train, dev, test), and "
    "training JSON with positive and hard negative passages (train, dev)",
    "CC BY-SA 3.0",
    "https://github.com/facebookresearch/DPR",
)


def nq() -> Entry:
    """Addresses from DPR's download table; md5 and bytes as ir_datasets publishes them.

    (ir_datasets/etc/downloads.json, ``dpr-w100``: the same addresses.)
    """

    def questions(split: str, *also: str) -> File:
        return File(f"nq/nq-{split}.qa.csv", f"{DPR}/nq-{split}.qa.csv", also=also)

    train = File(
        "nq/biencoder-nq-train.json.gz",
        f"{DPR}/biencoder-nq-train.json.gz",
        2_314_892_908,
        "md5:a1c927b5adae71388eb064329387709f",
        also=("nq/biencoder-nq-train.json",),
    )
    dev = File(
        "nq/biencoder-nq-dev.json.gz",
        f"{DPR}/biencoder-nq-dev.json.gz",
        256_239_282,
        "md5:2640483dbe0df7ae29c6da419c551a80",
        also=("nq/biencoder-nq-dev.json",),
    )
    files = {
        "train": questions("train"),
        "dev": questions("dev", "nq_topics/topics.dpr.nq.dev.txt"),
        "test": questions("test", "nq_topics/topics.dpr.nq.test.txt"),
    }
    training = {"train": train, "dev": dev}
    return Entry("nq", NQ, "en", "en", topics=files, answers=files, training=training)


TATOEBA = Family(
    "tatoeba",
    "Tatoeba as LASER selected it: sentences of a language and English, up to 1,000 pairs",
    "CC BY 2.0 FR",
    "https://github.com/facebookresearch/LASER/tree/main/data/tatoeba/v1",
)
TATOEBA_LANGUAGES = _words(
    "afr amh ang ara arq arz ast awa aze bel ben ber bos bre bul cat cbk ceb ces cha cmn cor csb "
    "cym dan deu dsb dtp ell epo est eus fao fin fra fry gla gle glg gsw heb hin hrv hsb hun hye "
    "ido ile ina ind isl ita jav jpn kab kat kaz khm kor kur kzj lat lfn lit lvs mal mar max mhr "
    "mkd mon nds nld nno nob nov oci orv pam pes pms pol por ron rus slk slv spa sqi srp swe swg "
    "swh tam tat tel tgl tha tuk tur tzl uig ukr urd uzb vie war wuu xho yid yue zsm"
)


def tatoeba(code: str) -> Entry:
    """Passages are the English side, topics the other; line i of one translates line i."""

    def side(language: str) -> File:
        name = f"{code}-eng.{language}"
        return File(
            f"tatoeba/{name}",
            f"{LASER}/tatoeba.{name}",
            30_000,  # the mean of the 224 files
            also=(f"tatoeba/tatoeba.{name}", f"tatoeba/v1/tatoeba.{name}"),
        )

    topics = {"test": side(code)}
    name = f"tatoeba-{code}"
    return Entry(name, TATOEBA, "en", code, 0, side("eng"), topics, parallel=True)


XQUAD_FAMILY = Family(
    "xquad",
    "XQuAD: 240 paragraphs and 1,190 questions, parallel in all languages; test",
    "CC BY-SA 4.0",
    "https://github.com/google-deepmind/xquad",
)
XQUAD_LANGUAGES = _words("ar de el en es hi ro ru th tr vi zh")


def xquad(code: str) -> Entry:
    """Published in SQuAD's JSON, converted to Mr. TyDi's layout."""
    name = f"xquad.{code}.json"
    source = File(f"xquad/{code}/{name}", f"{XQUAD}/{name}", also=(f"xquad/{name}", name))
    return _squad(f"xquad-{code}", XQUAD_FAMILY, f"xquad/{code}", code, 240, [("", "test", source)])


JAQUAD_FAMILY = Family(
    "jaquad",
    "JaQuAD: Japanese Wikipedia paragraphs and questions; train, test (the published dev set)",
    "CC BY-SA 3.0",
    "https://github.com/SkelterLabsInc/JaQuAD",
)


def jaquad() -> Entry:
    """Train and dev paragraphs together; the dev questions are our test, as there is no other."""
    parts = [
        (prefix, ours, File(f"jaquad/ja/{path}", f"{JAQUAD}/{path}", also=(f"jaquad/data/{path}",)))
        for prefix, ours, theirs, number in (("tr", "train", "train", 30), ("dv", "test", "dev", 4))
        for path in (f"{theirs}/jaquad_{theirs}_{i:04}.json" for i in range(number))
    ]
    return _squad("jaquad", JAQUAD_FAMILY, "jaquad/ja", "ja", 11_144, parts)


def _squad(
    name: str,
    family: Family,
    folder: str,
    language: str,
    count: int,
    parts: list[tuple[str, str, File]],
) -> Entry:
    """A corpus that is made in ``folder`` from files in SQuAD's JSON."""
    splits = dict.fromkeys(split for _, split, _ in parts)
    collection = f"{folder}/collection/docs.jsonl"
    return Entry(
        name,
        family,
        language,
        language,
        count,
        File(f"{collection}.gz", also=(collection,)),
        {split: File(f"{folder}/topic.{split}.tsv") for split in splits},
        {split: File(f"{folder}/qrels.{split}.txt") for split in splits},
        {split: File(f"{folder}/{answers_name(split)}") for split in splits},
        squad=tuple(parts),
        underscored=family is XQUAD_FAMILY,
    )


def answers_name(split: str) -> str:
    """``answers.jsonl`` for test, ``answers.<split>.jsonl`` for others."""
    return "answers.jsonl" if split == "test" else f"answers.{split}.jsonl"


NTREX_FAMILY = Family(
    "ntrex",
    "NTREX-128: 1,997 English news sentences, professionally translated; all languages parallel",
    "CC BY-SA 4.0",
    "https://github.com/MicrosoftTranslator/NTREX",
)
#: The 41 of the 128 languages that have a two-letter code in use here -> file at the source.
NTREX_LANGUAGES = dict(
    pair.split(":")
    for pair in _words(
        "am:amh ar:arb bg:bul bn:ben cs:ces de:deu el:ell en:eng es:spa fa:fas fi:fin fr:fra "
        "ha:hau he:heb hi:hin hu:hun id:ind ig:ibo it:ita ja:jpn ka:kat km:khm ko:kor mr:mar "
        "nl:nld pl:pol pt:por ro:ron ru:rus sv:swe sw:swa ta:tam te:tel th:tha tr:tur uk:ukr "
        "ur:urd vi:vie yo:yor zh:zho-CN zu:zul"
    )
)


def ntrex(code: str) -> Entry:
    """Passages are the English lines, topics the other language's."""

    def side(language: str) -> File:
        theirs = NTREX_LANGUAGES[language]
        name = f"newstest2019-{'src' if language == 'en' else 'ref'}.{theirs}.txt"
        return File(
            f"ntrex/{language}.txt",
            f"{NTREX}/{name}",
            400_000,  # the mean of the 41 files
            also=(f"ntrex/{name}", f"NTREX-128/{name}", f"ntrex/NTREX-128/{name}"),
        )

    topics = {"test": side(code)}
    name = f"ntrex-{code}"
    return Entry(name, NTREX_FAMILY, "en", code, 1997, side("en"), topics, parallel=True)


FAMILIES = (MRTYDI, XOR_RETRIEVE, NQ, TATOEBA, XQUAD_FAMILY, JAQUAD_FAMILY, NTREX_FAMILY)


def entries() -> list[Entry]:
    """Every corpus that is downloaded, family by family."""
    return [
        *map(mrtydi, MRTYDI_LANGUAGES),
        xor_retrieve(),
        nq(),
        *map(tatoeba, TATOEBA_LANGUAGES),
        *map(xquad, XQUAD_LANGUAGES),
        jaquad(),
        *map(ntrex, NTREX_LANGUAGES),
    ]
