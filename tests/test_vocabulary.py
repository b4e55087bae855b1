import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from ccpretrieve.errors import UserError
from ccpretrieve.model import part, scratch
from ccpretrieve.model.calibration_file import Calibration, Spread
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.model.pieces import Pieces
from ccpretrieve.model.settings import EncoderSettings, read_settings, write_settings
from ccpretrieve.model.vocabulary import from_scratch, trim

TEXTS = [
    "The Nile flows north through Egypt to the Mediterranean Sea.",
    "富士山は日本で一番高い山です。",
    "Helsinki on Suomen pääkaupunki ja suurin kaupunki.",
    "النيل هو أطول نهر في أفريقيا",
    "Москва является столицей России.",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9",
]
USED, OTHER = TEXTS[:3], TEXTS[3:]
QUERY, PASSAGE = "query: ", "passage: "
SETTINGS = EncoderSettings(
    pooling="mean",
    query_length=48,
    passage_length=48,
    query_prefix=QUERY,
    passage_prefix=PASSAGE,
    title="join",
)
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}


def save(path, model, tokenizer, **words):
    """A checkpoint with settings of its own, as someone else might have made it."""
    torch.manual_seed(1)
    for weight in model.parameters():  # biases and norms start as zeros and ones: no test of them
        weight.data.normal_(std=0.3)
    model.tie_weights()
    model.save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(words))
    write_settings(path, SETTINGS)
    return path


def unigram(path):
    """XLM-R's layout by its own class, but with a padding id of 4 rather than 1."""
    words = sorted({word for text in (*TEXTS, QUERY, PASSAGE) for word in text.split()})
    characters = sorted(set("".join(words)))
    pieces = [("<s>", 0.0), ("x1", -20.0), ("</s>", 0.0), ("<unk>", 0.0), ("<pad>", 0.0)]
    pieces += [("▁" + word[:4], -5.0 - i / 100) for i, word in enumerate(words)]
    pieces += [(word[4:7], -6.0 - i / 100) for i, word in enumerate(words) if len(word) > 5]
    pieces += [(c, -9.0 - i / 100) for i, c in enumerate(characters) if c != "山"] + [("▁", -8.0)]
    pieces = [*dict(pieces).items(), ("zz", -30.0), ("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>", "<pad>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    config = XLMRobertaConfig(
        vocab_size=len(pieces) + 3,  # rows that no piece has, as some checkpoints have
        max_position_embeddings=64,
        intermediate_size=24,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=4,
        **SIZES,
    )
    special = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    special |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    model = XLMRobertaForMaskedLM(config)
    return save(path, model, tokenizer, tokenizer_class="PreTrainedTokenizerFast", **special)


def wordpiece(path):
    """BERT's layout: special pieces behind unused ones, so that their ids move."""
    words = sorted({w for text in TEXTS for w in text.lower().replace(".", " ").split()})
    inside = sorted({"##" + word[3:] for word in words if len(word) > 3})
    letters = sorted(set("".join(words)))
    names = [f"[unused{i}]" for i in range(9)] + ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names += [word[:3] for word in words] + inside + letters + ["##" + c for c in letters]
    names += [".", "。", "que", "##ry", ":", "passage"]
    ids = {name: row for row, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.enable_padding(pad_id=ids["[PAD]"], pad_token="[PAD]")
    config = BertConfig(
        vocab_size=len(ids),
        max_position_embeddings=64,
        intermediate_size=24,
        pad_token_id=ids["[PAD]"],
        bos_token_id=ids["[CLS]"],
        eos_token_id=[ids["[SEP]"], ids["[PAD]"]],
        **SIZES,
    )
    added = {
        str(row): {"content": name, "special": True, "normalized": False}
        for name, row in ids.items()
        if name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    }
    return save(
        path,
        BertForMaskedLM(config),
        tokenizer,
        tokenizer_class="BertTokenizer",
        do_lower_case=True,
        strip_accents=False,
        added_tokens_decoder=added,
    )


def bpe(path):
    """Byte-level pieces, learned from the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(scratch.SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([QUERY + text for text in TEXTS] * 9 + [PASSAGE] * 9, trainer)
    path.mkdir()
    scratch.save_tokenizer(path, tokenizer, 48)
    scratch.save_random_xlmr(
        path,
        pieces=tokenizer.get_vocab_size(),
        width=16,
        inner=24,
        layers=3,
        heads=2,
        positions=62,
        seed=1,
        lm_head=True,
    )
    write_settings(path, SETTINGS)
    return path


KINDS = {"unigram": unigram, "wordpiece": wordpiece, "bpe": bpe}


@pytest.fixture(scope="module", params=KINDS)
def source(request, tmp_path_factory):
    return KINDS[request.param](tmp_path_factory.mktemp("source") / request.param)


@pytest.fixture(scope="module")
def trimmed(source):
    """The output, and the report."""
    output = source.with_name("trimmed")
    return output, trim(source, output, iter(USED))


def tokens(path, texts):
    tokenizer = AutoTokenizer.from_pretrained(path)
    return [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in texts]


def vectors(path, texts, **how):
    encoder = Encoder.load(path, device="cpu", **how)
    return np.concatenate([encoder.encode_passages(texts), encoder.encode_queries(texts)])


def test_the_texts_keep_their_tokens_and_their_vectors(source, trimmed):
    output, report = trimmed
    assert report.tokens_kept < report.tokens_before
    joined = [prefix + text for prefix in ("", QUERY, PASSAGE) for text in USED]
    assert tokens(output, joined) == tokens(source, joined)
    np.testing.assert_allclose(vectors(output, USED), vectors(source, USED), atol=1e-6)
    cls = {"pooling": "cls"}
    np.testing.assert_allclose(
        vectors(output, USED, **cls), vectors(source, USED, **cls), atol=1e-6
    )


def test_pairs_keep_their_vectors(source, trimmed):
    pairs = [(USED[0], USED[1]), (USED[2], USED[0])]
    for path in (source, trimmed[0]):
        assert AutoTokenizer.from_pretrained(path)(*pairs[0])["input_ids"]
    how = {"title": "pair"}
    before, after = (
        Encoder.load(path, device="cpu", **how).encode_passages(pairs)
        for path in (source, trimmed[0])
    )
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_every_other_weight_is_the_same_to_the_bit(source, trimmed):
    before = load_file(source / "model.safetensors")
    after = load_file(trimmed[0] / "model.safetensors")
    assert set(after) == set(before)
    rows = {weight.shape[0] for name, weight in after.items() if "word_embeddings" in name}
    assert rows == {trimmed[1].tokens_kept}
    same = [name for name in before if before[name].shape == after[name].shape]
    cut = set(before) - set(same)
    assert {name.rsplit(".", 2)[-2] for name in cut} >= {"word_embeddings"}
    assert len(cut) >= 2  # the bias of the head, under one name or more
    assert all(torch.equal(before[name], after[name]) for name in same)
    assert {name for name in same if "position_embeddings" in name or "LayerNorm" in name}


def test_the_head_predicts_the_kept_pieces_as_before(source, trimmed):
    logits, names = {}, {}
    for path in (source, trimmed[0]):
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForMaskedLM.from_pretrained(path).eval()
        inputs = tokenizer(USED[:1], return_tensors="pt")
        inputs["input_ids"][0, 3] = tokenizer.mask_token_id
        with torch.no_grad():
            logits[path] = model(**inputs).logits[0]
        names[path] = tokenizer.get_vocab()
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    old, new = (
        [rows[name] for name in sorted(names[trimmed[0]])]
        for rows in (names[source], names[trimmed[0]])
    )
    torch.testing.assert_close(
        logits[trimmed[0]][:, new], logits[source][:, old], atol=1e-5, rtol=0
    )


def test_every_id_in_every_file_names_the_same_piece_as_before(source, trimmed):
    output = trimmed[0]
    before, after = (AutoTokenizer.from_pretrained(path) for path in (source, output))
    assert after.special_tokens_map == before.special_tokens_map
    configs = [json.loads((path / "config.json").read_text()) for path in (source, output)]
    for name, value in configs[0].items():
        if name.endswith("_token_id") and value is not None:
            old, new = value, configs[1][name]
            assert before.convert_ids_to_tokens(old) == after.convert_ids_to_tokens(new), name
    assert configs[1]["vocab_size"] == len(after) == trimmed[1].tokens_kept
    files = [json.loads((path / "tokenizer_config.json").read_text()) for path in (source, output)]
    old, new = ({t["content"] for t in f.get("added_tokens_decoder", {}).values()} for f in files)
    assert old == new
    for row, token in files[1].get("added_tokens_decoder", {}).items():
        assert after.convert_ids_to_tokens(int(row)) == token["content"]
    spec = json.loads((output / "tokenizer.json").read_text())
    for token in spec["added_tokens"]:
        assert after.convert_ids_to_tokens(token["id"]) == token["content"]
    if spec["padding"]:
        assert spec["padding"]["pad_id"] == after.pad_token_id


def test_pieces_keep_their_order(source, trimmed):
    old, new = (AutoTokenizer.from_pretrained(path).get_vocab() for path in (source, trimmed[0]))
    kept = sorted(new, key=new.__getitem__)
    assert kept == sorted(kept, key=old.__getitem__)
    assert [new[name] for name in kept] == list(range(len(kept)))


def test_the_padding_id_from_which_positions_count_does_not_move(tmp_path):
    source = unigram(tmp_path / "source")
    trim(source, tmp_path / "out", USED)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["pad_token_id"] == 4
    vocabulary = AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab()
    assert vocabulary["x1"] == 1  # used by no text, but before the padding
    assert "zz" in vocabulary  # nor this, whose score is the lowest


def test_other_text_falls_into_the_characters_that_the_texts_have(tmp_path):
    source = unigram(tmp_path / "source")
    trim(source, tmp_path / "out", ["Helsinki on"])
    # "Helsinki" is ▁Hels + ink + i here, so of "▁lihe", no piece any more, the letters are left
    assert tokens(tmp_path / "out", ["line nil"]) == [
        ["<s>", "▁", "l", "i", "n", "e", "▁", "n", "i", "l", "</s>"]
    ]
    assert "<unk>" in tokens(tmp_path / "out", ["Москва"])[0]
    assert "<unk>" not in tokens(source, ["Москва"])[0]


def test_the_price_of_an_unknown_character_stays():
    # An unknown character costs 10 more than the lowest score. With all pieces that is -110:
    #   xyz = xy + z         -25 - 25 = -50      or  unknown x + yz   -110 - 1
    # Without the unused q it would be -35 (below xy's -25), and unknown x + yz = -36 would win.
    scores = {"<unk>": 0.0, "xy": -25.0, "z": -25.0, "yz": -1.0, "q": -100.0}
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=0))
    pieces = Pieces(tokenizer)
    smaller = cut(pieces, ["xyz", "yz"])
    assert smaller.encode("xyz").tokens == ["xy", "z"]
    assert smaller.encode("yz").tokens == ["yz"]


@pytest.mark.parametrize(
    ("names", "texts", "expected"),
    [
        # ABX: longest match first takes AB, and no ##X follows: unknown. Without AB, which no known
        # word uses, it would be A + ##BX.
        ("A AB ##BX C ##C", ["ABX", "A", "CBX"], ["[UNK]", "A", "C ##BX"]),
        # CDEX: C + ##DE, and no ##X follows. Without ##DE it would be C + ##D + ##EX.
        ("C ##D ##DE ##EX", ["CDEX", "CD", "CEX"], ["[UNK]", "C ##D", "C ##EX"]),
    ],
)
def test_an_unknown_word_stays_unknown(names, texts, expected):
    ids = {name: row for row, name in enumerate(["[UNK]", *names.split()])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    smaller = cut(Pieces(tokenizer), texts)
    for each in (tokenizer, smaller):
        assert [" ".join(each.encode(text).tokens) for text in texts] == expected


def test_of_equal_merges_the_first_in_the_word_is_followed():
    # aaab: a a a b -> aa a b (the left pair first) -> aa ab -> aaab. From the right it would be
    # a aa b, where nothing merges, and ab would not be known to be needed.
    names = ["a", "b", "aa", "ab", "aaab", "bb"]
    ids = {name: row for row, name in enumerate(names)}
    merges = [("a", "a"), ("a", "b"), ("aa", "ab"), ("b", "b")]
    smaller = cut(Pieces(Tokenizer(models.BPE(ids, merges))), ["aaab"])
    assert smaller.encode("aaab").tokens == ["aaab"]
    assert set(smaller.get_vocab()) == set(names) - {"bb"}


TEMPLATE = {"single": "[C] $A [S]", "pair": "[C] $A [S] $B:1 [S]:1"}
PROCESSORS = {
    "template": lambda c, s: processors.TemplateProcessing(
        **TEMPLATE, special_tokens=[("[C]", c), ("[S]", s)]
    ),
    "bert": lambda c, s: processors.BertProcessing(("[S]", s), ("[C]", c)),
    "roberta": lambda c, s: processors.RobertaProcessing(("[S]", s), ("[C]", c)),
    "sequence": lambda c, s: processors.Sequence(
        [processors.ByteLevel(), processors.BertProcessing(("[S]", s), ("[C]", c))]
    ),
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_what_is_put_around_a_text_moves_with_its_ids(kind):
    ids = {name: row for row, name in enumerate(["[U]", "x", "y", "z", "[C]", "[S]"])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[U]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = PROCESSORS[kind](4, 5)
    tokenizer.add_special_tokens(["[C]", "[S]"])
    smaller = cut(Pieces(tokenizer), ["x", "z"])
    assert smaller.get_vocab() == {"[U]": 0, "x": 1, "z": 2, "[C]": 3, "[S]": 4}
    assert smaller.encode("x z").ids == [3, 1, 2, 4]
    assert smaller.encode("x", "z").tokens == tokenizer.encode("x", "z").tokens
    assert smaller.encode("x", "z").type_ids == tokenizer.encode("x", "z").type_ids


def cut(pieces, texts, most=None):
    kept = pieces.choose(pieces.count(texts), set(), most)
    return Tokenizer.from_str(json.dumps(pieces.part(kept)))


def learned(model, trainer):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = ["abab", "aba", "bab", "abba", "baab", "cab", "bac", "abcab", "cc", "acb", "bb", "aac"]
    tokenizer.train_from_iterator([" ".join(words)] * 3, trainer)
    return tokenizer


def merged(**how):
    trainer = trainers.BpeTrainer(vocab_size=40, special_tokens=["?"], show_progress=False, **how)
    return learned(models.BPE(unk_token="?", **how), trainer)


def by_bytes():
    """Merges as in SentencePiece's BPE: every way to make a piece, and bytes for the rest."""
    names = ["?", *(f"<0x{byte:02X}>" for byte in range(256)), *"abc", "ab", "ba", "aba", "bab"]
    ids = {name: row for row, name in enumerate([*names, "abab", "cab"])}
    pairs = [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "ba"), ("b", "ab"), ("ba", "b")]
    pairs += [("ab", "ab"), ("aba", "b"), ("a", "bab"), ("c", "ab")]
    tokenizer = Tokenizer(models.BPE(ids, pairs, unk_token="?", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


MAKERS = {
    "unigram": lambda: learned(
        models.Unigram(),
        trainers.UnigramTrainer(
            vocab_size=24, unk_token="?", special_tokens=["?"], show_progress=False
        ),
    ),
    "wordpiece": lambda: learned(
        models.WordPiece(unk_token="?"),
        trainers.WordPieceTrainer(vocab_size=30, special_tokens=["?"], show_progress=False),
    ),
    "bpe": merged,
    "bpe with a prefix": lambda: merged(continuing_subword_prefix="##"),
    "bpe with a suffix": lambda: merged(end_of_word_suffix="</w>"),
    "bpe with bytes": by_bytes,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_any_texts_are_cut_as_before_by_what_they_use(kind):
    tokenizer = MAKERS[kind]()
    pieces = Pieces(tokenizer)
    smaller_ones = []

    @given(st.lists(st.text("abcd ", min_size=1, max_size=12), min_size=1, max_size=4))
    @settings(max_examples=150, deadline=None, derandomize=True)
    def check(texts):
        smaller = cut(pieces, texts)
        smaller_ones.append(smaller.get_vocab_size() < tokenizer.get_vocab_size())
        for text in texts:
            assert smaller.encode(text).tokens == tokenizer.encode(text).tokens

    check()
    assert any(smaller_ones)


def test_words_known_whole_without_a_merge_stay_whole():
    ids = {name: row for row, name in enumerate(["a", "b", "c", "ab", "abc", "bc"])}
    tokenizer = Tokenizer(models.BPE(ids, [("a", "b")], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = ["abc ab", "abca"]  # abc has no merge: whole as a word, in pieces inside another
    assert tokenizer.encode(texts[1]).tokens == ["ab", "c", "a"]
    smaller = cut(Pieces(tokenizer), texts)
    assert "bc" not in smaller.get_vocab()
    assert [smaller.encode(text).tokens for text in texts] == [["abc", "ab"], ["ab", "c", "a"]]


def test_held_out_texts_tell_how_other_text_fares(tmp_path):
    source = wordpiece(tmp_path / "source")
    # The twentieth text is held out: the / sea / mos + ##kva. The others know the and a dot only
    # (and their letters t h e), so 1 of 4 tokens is kept; sea and moskva become unknown words.
    vocabulary = AutoTokenizer.from_pretrained(source).tokenize("The sea МОСКВА")
    assert vocabulary == ["the", "sea", "мос", "##ква"]
    report = trim(source, tmp_path / "out", ["The."] * 19 + ["The sea МОСКВА"])
    assert report.coverage == 1 / 4
    assert report.unknown_before == 0
    assert report.unknown_after == 2 / 3  # the, [UNK], [UNK]
    kept = AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("The sea МОСКВА")
    assert kept == vocabulary  # the checkpoint has the pieces of all texts


def test_a_prefix_counts_with_texts_that_no_sample_holds(tmp_path):
    source = bpe(tmp_path / "source")
    texts = ["0 1 2"] * 210 + [USED[0]]  # neither one of the first 200 nor a twentieth
    trim(source, tmp_path / "out", texts)
    joined = [QUERY + USED[0], PASSAGE + USED[0], USED[0]]
    first = tokens(source, joined)[2][1]
    assert first not in tokens(source, joined)[0]  # there the sentence begins with a space
    assert tokens(tmp_path / "out", joined) == tokens(source, joined)


def test_without_twenty_texts_nothing_is_said_about_others(trimmed):
    report = trimmed[1]
    assert (report.coverage, report.unknown_before, report.unknown_after) == (None, None, None)


def test_the_most_frequent_pieces_stay_where_not_all_may(source, tmp_path):
    texts = [USED[0]] * 3 + USED
    whole = trim(source, tmp_path / "whole", texts)
    fewer = trim(source, tmp_path / "fewer", texts, keep=whole.tokens_kept - 5)
    assert fewer.tokens_kept <= whole.tokens_kept - 5
    if source.name != "bpe":  # there a piece comes with all that it is merged from, or not at all
        assert fewer.tokens_kept == whole.tokens_kept - 5
    old, new = (
        set(AutoTokenizer.from_pretrained(tmp_path / name).get_vocab())
        for name in ("whole", "fewer")
    )
    assert new < old
    assert tokens(tmp_path / "fewer", USED[:1]) == tokens(source, USED[:1])
    for before, after in zip(tokens(source, USED), tokens(tmp_path / "fewer", USED), strict=True):
        unknown = AutoTokenizer.from_pretrained(source).unk_token
        assert after.count(unknown) <= before.count(unknown)
    with pytest.raises(UserError, match="fewer than the .* keep at least") as failure:
        trim(source, tmp_path / "none", texts, keep=3)
    assert str(source) in str(failure.value)
    assert not (tmp_path / "none").exists()


def test_the_first_layers_give_the_states_that_they_gave_before(source, tmp_path):
    trim(source, tmp_path / "out", USED, layers=2)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    names = load_file(tmp_path / "out" / "model.safetensors")
    assert not any("layer.2." in name for name in names)
    np.testing.assert_allclose(
        vectors(tmp_path / "out", USED), vectors(source, USED, layer=2), atol=1e-6
    )


def test_a_class_that_builds_its_tokenizer_itself_is_served_too(tmp_path):
    source = unigram(tmp_path / "source")
    words = json.loads((source / "tokenizer_config.json").read_text())
    words["tokenizer_class"] = "XLMRobertaTokenizer"
    (source / "tokenizer_config.json").write_text(json.dumps(words))
    trim(source, tmp_path / "out", USED)
    assert tokens(tmp_path / "out", USED) == tokens(source, USED)
    np.testing.assert_allclose(vectors(tmp_path / "out", USED), vectors(source, USED), atol=1e-6)


@pytest.mark.parametrize("layers", [0, -1, 4])
def test_layers_that_are_not_there_cannot_be_kept(source, tmp_path, layers):
    with pytest.raises(UserError, match="has 3 layers"):
        trim(source, tmp_path / "out", USED, layers=layers)


def test_settings_and_modules_go_with_the_checkpoint(source, trimmed):
    assert read_settings(trimmed[0], "x")[0] == SETTINGS
    for name in ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        assert (trimmed[0] / name).read_bytes() == (source / name).read_bytes()


def test_a_calibration_goes_along_unless_layers_are_cut(tmp_path, caplog):
    source = bpe(tmp_path / "source")
    write_settings(source, EncoderSettings(pooling="mean", layer=3, calibration="c.safetensors"))
    rows = np.random.default_rng(0).normal(size=(9, 16)).astype(np.float32)
    Calibration({"en": Spread.fit(rows)}).save(source / "c.safetensors")
    trim(source, tmp_path / "whole", USED, layers=3)  # it has no more
    assert read_settings(tmp_path / "whole", "x")[0].calibration == "c.safetensors"
    assert Calibration.load(tmp_path / "whole" / "c.safetensors").languages
    trim(source, tmp_path / "cut", USED, layers=2)
    stated = read_settings(tmp_path / "cut", "x")[0]
    assert (stated.calibration, stated.layer) == (None, -1)
    assert "pools layer 3" in caplog.text
    assert "fitted on all layers" in caplog.text


def test_settings_known_by_name_are_not_lost_with_the_name(tmp_path):
    source = bpe(tmp_path / "multilingual-e5-small")
    for name in ("ccpretrieve.json", "modules.json"):
        (source / name).unlink()
    trim(source, tmp_path / "out", USED)
    assert read_settings(tmp_path / "out", "out")[0] == read_settings(source, str(source))[0]
    assert read_settings(tmp_path / "out", "out")[0].query_prefix == "query: "


@pytest.mark.parametrize("form", ["shards", "pickle", "pickled shards"])
def test_weights_may_lie_in_several_files_or_an_older_form(trimmed, source, tmp_path, form):
    other = shutil.copytree(source, tmp_path / "other")
    weights = load_file(source / "model.safetensors")
    (other / "model.safetensors").unlink()
    if form == "pickle":
        torch.save(weights, other / "pytorch_model.bin")
    else:
        name, write = {
            "shards": ("model.safetensors", save_file),
            "pickled shards": ("pytorch_model.bin", torch.save),
        }[form]
        parts = {
            f"{i}.{name.rsplit('.', 1)[-1]}": dict(list(weights.items())[i::2]) for i in (0, 1)
        }
        for file, held in parts.items():
            write(held, other / file)
        index = {"weight_map": {key: file for file, held in parts.items() for key in held}}
        (other / f"{name}.index.json").write_text(json.dumps(index))
    trim(other, tmp_path / "out", USED)
    one, two = (load_file(path / "model.safetensors") for path in (trimmed[0], tmp_path / "out"))
    assert set(one) == set(two)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_untied_head_keeps_its_own_rows(tmp_path):
    source = bpe(tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    embeddings = weights["roberta.embeddings.word_embeddings.weight"]
    weights["lm_head.decoder.weight"] = torch.randn_like(embeddings)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    trim(source, tmp_path / "out", USED)
    old, new = (
        AutoTokenizer.from_pretrained(path).get_vocab() for path in (source, tmp_path / "out")
    )
    rows = [old[name] for name in sorted(new, key=new.__getitem__)]
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(after["lm_head.decoder.weight"], weights["lm_head.decoder.weight"][rows])


def test_texts_are_read_once_and_not_held(tmp_path):
    alive = most = 0

    class Text(str):
        def __new__(cls, value):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            return super().__new__(cls, value)

        def __del__(self):
            nonlocal alive
            alive -= 1

    source = wordpiece(tmp_path / "source")
    texts = (Text(f"the sea {i}") for i in range(12_000))
    trim(source, tmp_path / "out", texts)
    # a thousand tokenised together, as many read meanwhile, 600 held out, the first 200
    assert most <= 2 * 1000 + 600 + 200 + 2


def test_what_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    source = wordpiece(tmp_path / "source")

    def broken():
        yield USED[0]
        raise UserError("ja.txt:2: not UTF-8")

    with pytest.raises(UserError, match=r"^ja\.txt:2: not UTF-8$"):
        trim(source, tmp_path / "out", broken())
    monkeypatch.setattr(part, "write_tokenizer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trim(source, tmp_path / "out", USED)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_a_killed_process_left_is_cleared(tmp_path):
    source = wordpiece(tmp_path / "source")
    (tmp_path / "out.partial" / "old").mkdir(parents=True)
    (tmp_path / "out.partial" / "pytorch_model.bin").touch()
    trim(source, tmp_path / "out", USED)
    assert not (tmp_path / "out" / "old").exists()
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()
    assert not (tmp_path / "out.partial").exists()


def test_nothing_is_written_over(tmp_path):
    source = wordpiece(tmp_path / "source")
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="is there already; choose another place"):
        trim(source, tmp_path / "out", USED)


@pytest.mark.parametrize("texts", [[], [""], ["", " "]])
def test_without_text_there_is_nothing_to_trim_to(tmp_path, texts):
    source = wordpiece(tmp_path / "source")
    with pytest.raises(UserError, match="there is no text to trim its vocabulary to"):
        trim(source, tmp_path / "out", texts)
    assert not (tmp_path / "out").exists()


def refused(source, tmp_path):
    with pytest.raises(UserError) as failure:
        trim(source, tmp_path / "out", USED)
    assert "\n" not in str(failure.value)
    assert str(source) in str(failure.value)
    return str(failure.value)


def test_what_cannot_be_trimmed_is_refused_in_one_line(tmp_path):
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "config.json").write_text('{"model_type": "canine"}')
    (slow / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    assert "is a slow one; trimming needs a tokenizer.json" in refused(slow, tmp_path)
    source = wordpiece(tmp_path / "source")
    dpr = shutil.copytree(source, tmp_path / "dpr")
    (dpr / "config.json").write_text('{"model_type": "dpr"}')
    assert "a DPR checkpoint cannot be trimmed" in refused(dpr, tmp_path)
    towers = tmp_path / "towers"
    for name in ("query", "passage"):
        shutil.copytree(source, towers / name)
    assert "holds two towers" in refused(towers, tmp_path)
    words = shutil.copytree(source, tmp_path / "words")
    config = json.loads((words / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (words / "tokenizer_config.json").write_text(json.dumps(config))
    spec = json.loads((words / "tokenizer.json").read_text())
    spec["model"] = {"type": "WordLevel", "vocab": spec["model"]["vocab"], "unk_token": "[UNK]"}
    (words / "tokenizer.json").write_text(json.dumps(spec))
    assert "WordLevel tokenizer cannot be trimmed; Unigram, WordPiece" in refused(words, tmp_path)
    few = shutil.copytree(source, tmp_path / "few")
    config = json.loads((few / "config.json").read_text())
    weights = load_file(few / "model.safetensors")
    weights = {
        name: weight[:20] if len(weight) == config["vocab_size"] else weight
        for name, weight in weights.items()
    }
    save_file(weights, few / "model.safetensors", metadata={"format": "pt"})
    assert "has 20 rows, too few for piece" in refused(few, tmp_path)
    none = shutil.copytree(source, tmp_path / "none")
    (none / "model.safetensors").unlink()
    assert "no weights (model.safetensors)" in refused(none, tmp_path)
    assert "cannot be loaded as a checkpoint" in refused(tmp_path / "absent", tmp_path)


@pytest.mark.real
@pytest.mark.slow
def test_a_real_encoder_gives_the_texts_the_vectors_that_it_gave(real_encoder, tmp_path):
    report = trim(real_encoder, tmp_path / "out", TEXTS * 4)
    assert report.tokens_before > 250_000
    assert report.tokens_kept < 400
    assert report.coverage == 1
    np.testing.assert_allclose(
        vectors(tmp_path / "out", TEXTS), vectors(real_encoder, TEXTS), atol=1e-6
    )


# From scratch


SMALL = {"width": 16, "layers": 1, "heads": 2, "positions": 40}
CORPUS = list(itertools.islice(itertools.cycle(TEXTS), 60))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("scratch") / "made"
    return from_scratch(path, iter(CORPUS), vocabulary=380, seed=1, **SMALL)


def test_equal_texts_and_seed_make_an_equal_checkpoint(made, tmp_path):
    again = from_scratch(tmp_path / "again", CORPUS, vocabulary=380, seed=1, **SMALL)
    other = from_scratch(tmp_path / "other", CORPUS, vocabulary=380, seed=2, **SMALL)
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert all((made / name).read_bytes() == (again / name).read_bytes() for name in files)
    different = [
        name for name in files if (made / name).read_bytes() != (other / name).read_bytes()
    ]
    assert [str(name) for name in different] == ["model.safetensors"]


def test_a_vocabulary_is_laid_out_as_xlm_rs(made):
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert tokenizer.convert_ids_to_tokens(range(4)) == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    assert len(tokenizer) <= 380
    assert tokenizer.model_max_length == 40
    one = tokenizer("Helsinki on")["input_ids"]
    pair = tokenizer("Helsinki on", "Helsinki on")["input_ids"]
    assert pair == [*one, 2, *one[1:]]
    assert tokenizer.tokenize("Ｈｅｌ\u00a0\tｓ") == tokenizer.tokenize("Hel s")  # NFKC, spaces


def test_weights_are_whole_with_the_head(made):
    model, report = AutoModelForMaskedLM.from_pretrained(made, output_loading_info=True)
    assert not any(report.values())
    assert model.config.num_hidden_layers == 1
    assert model.config.intermediate_size == 64
    assert Encoder.load(made, device="cpu").encode_queries(["x" * 99]).shape == (1, 16)


@given(st.text())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_text_is_unknown(made_pieces, text):
    assume(not any(name in text for name in scratch.SPECIAL))
    tokenizer, plain = made_pieces
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert 3 not in encoding.ids
    words = plain.normalize_str(text).replace("▁", " ").split()
    assert tokenizer.decode(encoding.ids).replace("▁", " ").split() == words


@pytest.fixture(scope="module")
def made_pieces(made):
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    return tokenizer, tokenizer.normalizer


def test_text_that_looks_like_a_byte_or_a_special_piece_is_learned_from(tmp_path):
    texts = ["<pad> and <0x41> and <mask> are words here <pad> <0x41>"] * 30
    path = from_scratch(tmp_path / "out", texts, vocabulary=320, seed=0, **SMALL)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert "<0x41>" not in tokenizer.tokenize("and <0x41>")
    assert tokenizer.decode(tokenizer("and <0x41>")["input_ids"], skip_special_tokens=True) == (
        "and <0x41>"
    )


def test_characters_take_half_of_the_vocabulary_at_most(tmp_path):
    rare = "".join(chr(0x4E00 + i) for i in range(300))  # 300 kinds of character, each once
    texts = ["日本 日本語 日本人 日本国"] * 50 + [rare]
    path = from_scratch(tmp_path / "out", texts, vocabulary=300, seed=0, **SMALL)
    pieces = AutoTokenizer.from_pretrained(path).get_vocab()
    single = [name for name in pieces if len(name) == 1]
    assert {"日", "本"} <= set(single)
    # (300 - 263) // 2 = 18 characters, and the mark of a space
    assert len(single) <= 18 + 1


def test_of_too_much_text_a_sample_is_learned_from(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "_MOST_CHARACTERS", 2000)
    seen = []

    def learn(texts, vocabulary):
        seen.extend(texts)
        return [("▁", -1.0)]

    monkeypatch.setattr(scratch, "_learn", learn)
    texts = [f"{i:04} 567890" for i in range(1000)]  # 11 characters each
    from_scratch(tmp_path / "out", iter(texts), vocabulary=300, seed=0, **SMALL)
    assert len(seen) == 2000 // 11
    # An even sample of 0..999 has mean 499.5; the mean of 181 strays by 288.7 / sqrt(181) = 21.5.
    assert abs(np.mean([int(text[:4]) for text in seen]) - 499.5) < 4 * 21.5


def test_sizes_that_do_not_fit_are_said(tmp_path):
    sizes = {**SMALL, "seed": 0}
    with pytest.raises(UserError, match="vocabulary of 200 is too small"):
        from_scratch(tmp_path / "out", CORPUS, vocabulary=200, **sizes)
    with pytest.raises(UserError, match="width of 16 is not a multiple of 3 heads"):
        from_scratch(tmp_path / "out", CORPUS, vocabulary=400, **{**sizes, "heads": 3})
    for texts in ([], ["", " \n"]):
        with pytest.raises(UserError, match="there is no text to learn a vocabulary from"):
            from_scratch(tmp_path / "out", texts, vocabulary=400, **sizes)
    assert list(tmp_path.iterdir()) == []


def test_a_made_checkpoint_can_be_trimmed(made, tmp_path):
    report = trim(made, tmp_path / "out", USED)
    assert report.tokens_kept < report.tokens_before
    assert tokens(tmp_path / "out", [*USED, "龘"]) == tokens(made, [*USED, "龘"])
    np.testing.assert_allclose(vectors(tmp_path / "out", USED), vectors(made, USED), atol=1e-6)
