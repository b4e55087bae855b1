import gzip
import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccpretrieve.data import sentences
from ccpretrieve.data.languages import LANGUAGES
from ccpretrieve.data.sentences import split


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["Mr. Smith paid $3.50 to Acme Inc. in May.", 'He asked: "Why?"', "Nobody knew."]),
        ("fi", ["Sää oli kylmä, n. 5 astetta.", "Kukaan ei lähtenyt ulos."]),
        ("de", ["Er sagte: „Das ist z.B. gut.“", "Dann ging er."]),
        ("ru", ["Он родился в Москве.", "Когда это было?", "Никто не помнит!"]),
        ("ar", ["ولد في القاهرة.", "متى كان ذلك؟", "لا أحد يعلم."]),
        ("ur", ["وہ لاہور میں پیدا ہوا۔", "یہ کب ہوا؟"]),
        ("hi", ["वह दिल्ली में रहता है।", "क्या यह सच है?", "हाँ।"]),
        ("hi", ["डॉ.शर्मा ने कहा।", "ठीक है।"]),
        ("bn", ["সে ঢাকায় থাকে।", "এটা কি সত্যি?"]),
        ("am", ["እሱ በአዲስ አበባ ይኖራል።", "ይህ እውነት ነው?"]),
        ("my", ["သူသည် ရန်ကုန်တွင် နေသည်။", "ဒါမှန်သလား။"]),
        ("km", ["គាត់រស់នៅភ្នំពេញ។", "គាត់ជាគ្រូ។"]),
        ("hy", ["Նա ապրում է Երևանում։", "Նա ուսուցիչ է։"]),
        ("ko", ["그는 서울에 산다.", "정말일까?", "아무도 모른다."]),
    ],
)
def test_sentences_with_spaces_between_them_are_found(language, expected):
    assert split(" ".join(expected), language) == expected


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("ja", ["彼は東京に住む。", "2頭の犬がいる。", "本当?", "誰も知らない!"]),
        (
            "ja",
            [
                "雨が降った。",
                "「もう帰ろう。明日また来る。」と彼は言った。",
                "『門』は彼の作である。",
            ],
        ),
        ("ja", ["E.H.シェパードが描いた。", "(中略)春が来た。"]),
        ("zh", ["他住在北京。", "“天气很好。”", "他说。", "《红楼梦》是小说！", "真的吗？"]),
        ("yue", ["佢喺香港住。", "係咪真㗎？"]),
    ],
)
def test_sentences_without_spaces_between_them_are_found(language, expected):
    if language == "ja" and "もう帰ろう。" in "".join(expected):
        # ICU ends a sentence within a quotation; what follows the quotation is joined to its last
        quoted = ["「もう帰ろう。", "明日また来る。」と彼は言った。"]
        expected = [expected[0], *quoted, expected[2]]
    assert split("".join(expected), language) == expected


def test_an_opening_bracket_goes_with_what_it_opens():
    assert split("終わった。「始まる。『門』を読む。（注）", "ja")[:2] == [
        "終わった。",
        "「始まる。",
    ]
    assert split("终了。“开始。", "zh") == ["终了。", "“开始。"]
    assert split("終わった。「", "ja") == ["終わった。", "「"]


def test_a_newline_ends_a_sentence_and_white_space_is_none():
    assert split("One\ntwo \n\n \u3000\n  three. ", "en") == ["One", "two", "three."]
    assert split("「と言う」\nと言う「\n言う", "ja") == ["「と言う」", "と言う「", "言う"]
    assert split("", "en") == split(" \n\u00a0", "ja") == []


THAI = "ประเทศไทยมีภูเขาและแม่น้ำหลายสาย"  # 32 characters


def test_thai_phrases_are_joined_until_they_are_half_a_sentence():
    assert len(THAI) == 32
    # 32 < 60 goes on; 32 + 1 + 32 = 65 is enough; the rest is what is left
    assert split(" ".join([THAI] * 5), "th") == [f"{THAI} {THAI}", f"{THAI} {THAI}", THAI]


@pytest.mark.parametrize("between", ["ๆ", "2533", "Bangkok", "(พ.ศ. 2533)"])
def test_thai_is_not_broken_before_a_number_a_foreign_word_or_a_repetition(between):
    text = f"{THAI} {THAI}"
    pieces = split(f"{text} {between} {text}", "th")
    if between.startswith("("):  # a bracket opens a phrase and closes it
        assert pieces == [text, f"{between} {text}"]
    else:
        assert pieces[0].startswith(f"{text} {between}")


def test_lao_is_read_as_thai_is():
    lao = "ປະເທດລາວມີພູເຂົາແລະແມ່ນ້ຳຫຼາຍສາຍທີ່ງາມ"
    assert split(" ".join([lao] * 4), "lo") == [f"{lao} {lao}"] * 2


TEXTS = st.text(
    st.sampled_from(
        "ab.?! \n\t\"'“”„()。「」『』！？と一ๆก ข.ค。।।؟۔️😀\u00a0\u200b\u200d\u2028\x00\r1A"
    ),
    max_size=40,
)


@settings(max_examples=500, deadline=None)
@given(
    TEXTS | st.text(max_size=30), st.sampled_from(["en", "ja", "zh", "th", "hi", "ar", "lo", "ko"])
)
def test_nothing_but_white_space_is_lost_or_moved(text, language):
    pieces = split(text, language)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece == piece.strip() != "" for piece in pieces)


@pytest.mark.parametrize("row", LANGUAGES, ids=lambda row: row.code)
def test_every_language_of_the_table_is_split(row):
    assert len(split("Aa 1. Bb 2!\nCc", row.code)) >= 2


@pytest.mark.real
@pytest.mark.parametrize(
    ("folder", "language", "between", "least"),
    [
        ("ntrex/docs", "en", " ", 93),
        ("ntrex/docs", "ja", "", 89),
        ("ntrex/docs", "zh", "", 88),
        ("ntrex/docs", "hi", " ", 90),
        ("ntrex/docs", "ar", " ", 94),
        ("ntrex/docs", "ru", " ", 92),
        ("ntrex/docs", "fi", " ", 89),
        ("ntrex/docs", "th", " ", 40),
        ("longdocs_wiki", "ja", "", 98),
        ("longdocs_wiki", "ar", " ", 98),
    ],
)
def test_the_sentences_of_real_documents_are_found_again(
    real_data, folder, language, between, least
):
    def ends(pieces):
        sizes = [len("".join(piece.split())) for piece in pieces]
        return {sum(sizes[:count]) for count in range(1, len(sizes))}

    found = given_ends = set_ends = 0
    path = real_data / folder / f"{language}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for row in islice(stream, 100):
            known = json.loads(row)["sentences"]
            true, ours = ends(known), ends(split(between.join(known), language))
            found += len(true & ours)
            given_ends, set_ends = given_ends + len(true), set_ends + len(ours)
    assert 200 * found / (given_ends + set_ends) > least  # F1, per cent


def test_no_splitter_is_loaded_before_there_is_text():
    assert "icu4py" not in vars(sentences)
