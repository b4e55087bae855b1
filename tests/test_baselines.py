"""The baselines of the paper on random weights; each beside its own definition."""

import argparse
import importlib.machinery
import json
import logging
import math
import shutil
import sys
import types

import numpy as np
import pytest
import sentencepiece
import torch

from benchmarks import convert_criss
from ccpretrieve.errors import UserError
from ccpretrieve.model import criss, criss_pieces, random_checkpoint
from ccpretrieve.model.encoder import Encoder
from ccpretrieve.model.settings import EncoderSettings

TEXTS = [
    "The Nile flows north.",
    "富士山は日本で一番高い山です。",
    "Helsinki on Suomen pääkaupunki.",
    "النيل أطول نهر",
    "a",
]


def transformers_alone(path, texts):
    """All hidden states and the pooler's output, a text at a time, without anything of ours."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    for text in texts:
        with torch.no_grad():
            yield model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)


def unit(vectors):
    vectors = np.stack([np.asarray(vector) for vector in vectors])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def save_bert(path, layers):
    """A random BERT with its pooler, as M-BERT and LaBSE are."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path.mkdir()
    characters = sorted({c for text in TEXTS for c in text if not c.isspace()})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    (path / "vocab.txt").write_text("\n".join([*words, *(f"##{c}" for c in characters)]))
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=2 * len(words), num_hidden_layers=layers, **sizes)
    BertModel(config).save_pretrained(path)
    BertTokenizerFast(str(path / "vocab.txt"), do_lower_case=False).save_pretrained(path)
    return path


def save_xlmr(path, layers):
    """A random XLM-R that states nothing, as those on the hub do."""
    random_checkpoint.build(path, TEXTS * 20, vocabulary=300, width=16, layers=layers)
    for name in ("ccpretrieve.json", "modules.json"):
        (path / name).unlink()
    return path


@pytest.mark.parametrize(
    ("name", "save", "layers", "pooled"),
    [
        ("bert-base-multilingual-cased", save_bert, 12, 8),
        ("xlm-roberta-base", save_xlmr, 12, 8),
        ("xlm-roberta-large", save_xlmr, 24, 14),
        ("infoxlm-base", save_xlmr, 12, 8),
        ("unicoder", save_xlmr, 12, 8),
    ],
)
def test_a_language_model_is_the_mean_of_its_middle_layer(tmp_path, name, save, layers, pooled):
    path = save(tmp_path / name, layers)
    expected = unit(
        output.hidden_states[pooled][0].mean(0) for output in transformers_alone(path, TEXTS)
    )
    ours = Encoder.load(path)
    np.testing.assert_allclose(ours.encode_queries(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(ours.encode_passages(TEXTS), expected, atol=1e-6)


def test_labse_is_its_own_tanh_layer_over_the_first_token(tmp_path):
    path = save_bert(tmp_path / "LaBSE", 3)
    expected = unit(output.pooler_output[0] for output in transformers_alone(path, TEXTS))
    np.testing.assert_allclose(Encoder.load(path).encode_queries(TEXTS), expected, atol=1e-6)


def test_labse_as_sentence_transformers_packs_it_is_the_same(tmp_path):
    from safetensors.torch import save_file
    from transformers import BertModel

    plain = save_bert(tmp_path / "LaBSE", 3)
    packed = shutil.copytree(plain, tmp_path / "packed" / "LaBSE")
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_N"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in kinds.items()
    ]
    (packed / "modules.json").write_text(json.dumps(modules))
    for folder, config in (
        ("1_Pooling", {"pooling_mode_cls_token": True, "word_embedding_dimension": 16}),
        ("2_Dense", {"in_features": 16, "out_features": 16, "bias": True} | TANH),
    ):
        (packed / folder).mkdir()
        (packed / folder / "config.json").write_text(json.dumps(config))
    tanh = BertModel.from_pretrained(plain).pooler.dense
    state = {"linear.weight": tanh.weight.detach(), "linear.bias": tanh.bias.detach()}
    save_file(state, packed / "2_Dense" / "model.safetensors")
    ours, theirs = Encoder.load(packed), Encoder.load(plain)
    assert (ours.settings.pooling, theirs.settings.pooling) == ("cls", "pooler")
    np.testing.assert_allclose(ours.encode_queries(TEXTS), theirs.encode_queries(TEXTS), atol=1e-6)


TANH = {"activation_function": "torch.nn.modules.activation.Tanh"}


def test_a_layer_that_is_not_there_is_refused(tmp_path):
    path = save_xlmr(tmp_path / "xlm-roberta-base", 2)
    with pytest.raises(UserError, match="has layers 0 to 2 .* not 8"):
        Encoder.load(path).encode_queries(["a"])


# -- CRISS --

LANGUAGES = ["[en_XX]", "[ja_XX]"]
SIZES = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 4,
    "activation_fn": "gelu",
}
PLACES = 40
ARGUMENTS = SIZES | {"no_scale_embedding": False, "data": "/somewhere", "langs": None}


def linear(generator, name, inputs, outputs):
    weight = torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)
    bias = torch.randn(outputs, generator=generator) / 4
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def norm(generator, name, width):
    scale = 1 + torch.randn(width, generator=generator) / 4
    return {f"{name}.weight": scale, f"{name}.bias": torch.randn(width, generator=generator) / 4}


def fairseq_weights(rows):
    """Random weights under the names that fairseq gives them, a piece of the decoder's too."""
    g = torch.Generator().manual_seed(0)
    d, inner = SIZES["encoder_embed_dim"], SIZES["encoder_ffn_embed_dim"]
    model = {
        "encoder.version": torch.tensor([3.0]),
        "encoder.embed_tokens.weight": torch.randn(rows, d, generator=g) / 4,
        "encoder.embed_positions.weight": torch.randn(PLACES + 2, d, generator=g) / 4,
        "decoder.embed_tokens.weight": torch.randn(rows, d, generator=g),
    }
    model |= norm(g, "encoder.layernorm_embedding", d) | norm(g, "encoder.layer_norm", d)
    for layer in range(SIZES["encoder_layers"]):
        name = f"encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            model |= linear(g, f"{name}.self_attn.{part}", d, d)
        model |= linear(g, f"{name}.fc1", d, inner) | linear(g, f"{name}.fc2", inner, d)
        model |= norm(g, f"{name}.self_attn_layer_norm", d)
        model |= norm(g, f"{name}.final_layer_norm", d)
    return model


def forward(model, ids, *, scaled=True, activation=torch.nn.functional.gelu):
    """MBart's encoder in plain operations: rows of one text to their last states, (T, D)."""

    def apply(name, x):
        return x @ model[f"encoder.{name}.weight"].T + model[f"encoder.{name}.bias"]

    def normed(name, x):
        deviation = x - x.mean(-1, keepdim=True)
        x = deviation / torch.sqrt((deviation**2).mean(-1, keepdim=True) + 1e-5)
        return x * model[f"encoder.{name}.weight"] + model[f"encoder.{name}.bias"]

    d, heads = SIZES["encoder_embed_dim"], SIZES["encoder_attention_heads"]
    x = model["encoder.embed_tokens.weight"][ids] * (math.sqrt(d) if scaled else 1)
    x = x + model["encoder.embed_positions.weight"][2 : 2 + len(ids)]
    x = normed("layernorm_embedding", x)
    for layer in range(SIZES["encoder_layers"]):
        name = f"layers.{layer}"
        y = normed(f"{name}.self_attn_layer_norm", x)
        q, k, v = (
            apply(f"{name}.self_attn.{part}", y).reshape(len(ids), heads, d // heads)
            for part in ("q_proj", "k_proj", "v_proj")
        )
        mixed = []
        for head in range(heads):
            scores = q[:, head] @ k[:, head].T / math.sqrt(d // heads)  # (T, T)
            mixed.append(scores.softmax(-1) @ v[:, head])
        x = x + apply(f"{name}.self_attn.out_proj", torch.cat(mixed, -1))
        y = normed(f"{name}.final_layer_norm", x)
        x = x + apply(f"{name}.fc2", activation(apply(f"{name}.fc1", y)))
    return normed("layer_norm", x)


@pytest.fixture(scope="module")
def spm_file(tmp_path_factory):
    """A SentencePiece model of mBART's kind: Unigram, its usual normalisation."""
    file = tmp_path_factory.mktemp("spm") / "sentence.bpe.model"
    with file.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*TEXTS, "north of the Nile", "flow flows flowing"] * 20),
            model_writer=stream,
            model_type="unigram",
            vocab_size=90,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    return file


class Fairseq:
    """A folder as CRISS' archive unpacks to, and fairseq's own way from text to rows."""

    def __init__(self, folder, spm_file, *, arguments=None, dtype=torch.float32, **changed):
        folder.mkdir()
        self.spm = sentencepiece.SentencePieceProcessor(model_file=str(spm_file))
        pieces = [self.spm.id_to_piece(i) for i in range(3, self.spm.get_piece_size())]
        # Its order is not SentencePiece's, one piece of that is missing, one is only here.
        pieces = [*pieces[:4:-1], "▁zzz", *pieces[1:5]]
        self.rows = {piece: 4 + row for row, piece in enumerate(pieces)}
        lines = [f"{piece} {1000 - row}\n" for row, piece in enumerate(pieces)]
        (folder / "dict.txt").write_text("".join(lines), encoding="utf-8")
        (folder / "sentence.bpe.model").write_bytes(spm_file.read_bytes())
        self.weights = fairseq_weights(4 + len(pieces) + len(LANGUAGES) + 1)  # and <mask>
        stated = argparse.Namespace(**(ARGUMENTS if arguments is None else arguments))
        stored = {name: tensor.to(dtype) for name, tensor in self.weights.items()}
        content = {"model": stored, "args": stated, "extra_state": {"epoch": 3}} | changed
        torch.save(content, folder / "criss.3rd.pt")
        self.folder = folder

    def ids(self, text):
        """Pieces, each looked up in the dictionary, and </s>: no language code anywhere."""
        pieces = self.spm.encode_as_pieces(text)
        return [*(self.rows.get(piece, 3) for piece in pieces), 2]


@pytest.fixture
def fairseq(tmp_path, spm_file):
    return Fairseq(tmp_path / "fairseq", spm_file)


AWKWARD = [
    "",
    "zzz",  # a piece of dict.txt alone, which SentencePiece never cuts
    "  two   spaces ",
    "ｆｕｌｌ width①",
    "never seen: ЖЖЖ Q",
    "flows\tnorth▁of",
    "\u2028a",
]


def test_a_converted_criss_gives_the_vectors_of_mbarts_encoder_computed_by_hand(fairseq, tmp_path):
    criss.convert(fairseq.folder, tmp_path / "criss")
    texts = [*TEXTS, *AWKWARD]
    expected = [forward(fairseq.weights, fairseq.ids(text)).mean(0) for text in texts]
    encoder = Encoder.load(tmp_path / "criss")
    np.testing.assert_allclose(encoder.encode_queries(texts), unit(expected), atol=1e-5)
    raw = Encoder.load(tmp_path / "criss", normalize=False, batch_tokens=64)
    np.testing.assert_allclose(raw.encode_passages(texts), np.stack(expected), atol=1e-5)


def test_the_hand_computation_depends_on_each_part_it_is_to_check(fairseq):
    ids = fairseq.ids(TEXTS[0])
    whole = forward(fairseq.weights, ids)
    for name in fairseq.weights:
        if name.startswith("encoder.") and name != "encoder.version":
            changed = fairseq.weights | {name: fairseq.weights[name] * 1.5}
            if "k_proj.bias" in name:  # adds the same to all scores of a row: softmax drops it
                assert torch.allclose(forward(changed, ids), whole, atol=1e-5)
            else:
                assert not torch.allclose(forward(changed, ids), whole, atol=1e-3), name


def test_the_tokenizer_cuts_as_sentencepiece_and_fairseqs_dictionary_do(fairseq, tmp_path):
    from transformers import AutoTokenizer

    made = criss.convert(fairseq.folder, tmp_path / "criss")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "criss")
    for text in [*TEXTS, *AWKWARD]:
        ids = tokenizer(text)["input_ids"]
        assert [3 if row >= made.pieces else row for row in ids] == fairseq.ids(text), text
    assert made.unknown == 1
    lost = fairseq.spm.id_to_piece(3)  # the one that is not in dict.txt
    assert lost not in fairseq.rows
    assert any(lost in fairseq.spm.encode_as_pieces(text) for text in TEXTS)


def test_what_the_encoder_never_sees_is_left_out(fairseq, tmp_path):
    from safetensors.torch import load_file

    made = criss.convert(fairseq.folder, tmp_path / "criss")
    assert made.left_out == len(LANGUAGES) + 1
    weights = load_file(tmp_path / "criss" / "model.safetensors")
    assert not any("decoder" in name or "version" in name for name in weights)
    assert len(weights["shared.weight"]) == 4 + len(fairseq.rows) + made.unknown


def test_a_converted_criss_says_how_it_is_pooled(fairseq, tmp_path):
    criss.convert(fairseq.folder, tmp_path / "any-name")
    encoder = Encoder.load(tmp_path / "any-name")
    assert encoder.source == "ccpretrieve.json"
    assert encoder.settings == EncoderSettings(
        pooling="mean",
        normalize=True,
        similarity="cosine",
        title="join",
        query_length=PLACES,
        passage_length=PLACES,
    )
    assert encoder.embed_queries(["a " * 100]).truncated == 1
    # sentence-transformers would run the decoder: nothing invites it
    assert not (tmp_path / "any-name" / "modules.json").exists()


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_any_layer_of_a_converted_criss_can_be_pooled(fairseq, tmp_path, layer):
    from transformers import AutoModel

    criss.convert(fairseq.folder, tmp_path / "criss")
    model = AutoModel.from_pretrained(tmp_path / "criss").get_encoder().eval()
    ids = torch.tensor([fairseq.ids("a")])
    with torch.no_grad():
        states = model(input_ids=ids, output_hidden_states=True).hidden_states[layer]
    ours = Encoder.load(tmp_path / "criss", layer=layer, normalize=False).encode_queries(["a"])
    np.testing.assert_allclose(ours, states.mean(1), atol=1e-6)


def test_half_precision_relu_and_an_unscaled_embedding_are_taken_as_stated(tmp_path, spm_file):
    stated = ARGUMENTS | {"no_scale_embedding": True, "activation_fn": "relu"}
    fairseq = Fairseq(tmp_path / "fairseq", spm_file, arguments=stated, dtype=torch.float16)
    criss.convert(fairseq.folder, tmp_path / "criss")
    weights = {name: tensor.half().float() for name, tensor in fairseq.weights.items()}
    states = forward(weights, fairseq.ids("a"), scaled=False, activation=torch.relu)
    ours = Encoder.load(tmp_path / "criss", normalize=False).encode_queries(["a"])[0]
    np.testing.assert_allclose(ours, states.mean(0), atol=1e-5)


@pytest.mark.parametrize("kind", [dict, lambda **values: argparse.Namespace(**values)])
def test_the_settings_may_lie_where_later_versions_of_fairseq_put_them(tmp_path, spm_file, kind):
    changed = {"args": None, "cfg": {"model": kind(**ARGUMENTS), "task": None}}
    later = Fairseq(tmp_path / "later", spm_file, **changed)
    assert criss.convert(later.folder, tmp_path / "criss").layers == 2


def test_the_command_converts_a_file_and_says_what_it_did(fairseq, tmp_path, capsys):
    source, output = fairseq.folder / "criss.3rd.pt", tmp_path / "made" / "criss"
    convert_criss.main(["--input", str(source), "--output", str(output)])
    said = capsys.readouterr().out
    assert "encoder of criss.3rd.pt, 2 layers of 16" in said
    assert f"{4 + len(fairseq.rows)} word pieces (1 more are <unk>); 3 rows of language" in said
    assert Encoder.load(output).dim == 16
    with pytest.raises(UserError, match="is there already"):
        criss.convert(source, output)


class Touch:
    """A pickle of it makes a file when it is read without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_nothing_in_the_pickle_is_run(tmp_path, spm_file):
    extra = {"extra_state": Touch(tmp_path / "ran")}
    bad = Fairseq(tmp_path / "fairseq", spm_file, **extra)
    with pytest.raises(UserError, match=r"criss\.3rd\.pt: holds a \S*open, .* can run anything"):
        criss.convert(bad.folder, tmp_path / "criss")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "criss").exists()
    # outside of the conversion nothing is let in
    with pytest.raises(Exception, match="Namespace"):
        torch.load(Fairseq(tmp_path / "good", spm_file).folder / "criss.3rd.pt", weights_only=True)


def without(name):
    return {key: value for key, value in ARGUMENTS.items() if key != name}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (without("encoder_attention_heads"), "do not say encoder_attention_heads"),
        (ARGUMENTS | {"activation_fn": "swish"}, "activation_fn 'swish' is not implemented"),
        (ARGUMENTS | {"encoder_layers": 1}, r"encoder\.layers\.1\.\S+ is \(16, 16\), .*there is n"),
        (ARGUMENTS | {"encoder_layers": 3}, r"encoder\.layers\.2\.\S+ is missing"),
        (ARGUMENTS | {"encoder_ffn_embed_dim": 25}, r"fc1\.weight is \(24, 16\).*\(25, 16\)"),
        ({}, "neither 'args' nor 'cfg'"),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused(tmp_path, spm_file, arguments, message):
    bad = Fairseq(tmp_path / "fairseq", spm_file, arguments=arguments)
    with pytest.raises(UserError, match=message) as failure:
        criss.convert(bad.folder, tmp_path / "criss")
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "criss").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("encoder.layernorm_embedding.bias", "layernorm_embedding.bias is missing"),
        ("encoder.layer_norm.weight", "layer_norm.weight is missing"),  # post-norm: not mBART
        ("encoder.embed_positions.weight", "no encoder.embed_positions.weight"),
        ("encoder.embed_tokens.weight", "no encoder.embed_tokens.weight"),
    ],
)
def test_weights_of_another_shape_are_refused(fairseq, tmp_path, name, message):
    weights = {key: value for key, value in fairseq.weights.items() if key != name}
    file = fairseq.folder / "criss.3rd.pt"
    torch.save({"model": weights, "args": argparse.Namespace(**ARGUMENTS)}, file)
    with pytest.raises(UserError, match=message):
        criss.convert(fairseq.folder, tmp_path / "criss")


def test_a_dictionary_of_another_model_is_refused(fairseq, tmp_path):
    with (fairseq.folder / "dict.txt").open("a", encoding="utf-8") as stream:
        stream.write("".join(f"more{i} 1\n" for i in range(9)))
    with pytest.raises(UserError, match="the two do not belong together"):
        criss.convert(fairseq.folder, tmp_path / "criss")


def test_a_dictionary_is_read_as_fairseq_reads_it(tmp_path):
    file = tmp_path / "dict.txt"
    # U+2028 parts lines for Python's splitlines alone; the second "a" takes the place of the first
    file.write_text("a 7\n\u2028 5\n▁b 3\na 1 #fairseq:overwrite\n", encoding="utf-8")
    assert criss_pieces.read_dictionary(file) == ({"a": 7, "\u2028": 5, "▁b": 6}, 8)
    file.write_text("a 7\nb\n")
    with pytest.raises(UserError, match=r"dict\.txt:2: expected a word piece and its count"):
        criss_pieces.read_dictionary(file)
    with pytest.raises(UserError, match="cannot be read"):
        criss_pieces.read_dictionary(tmp_path / "none.txt")


def test_several_checkpoints_in_a_folder_are_a_question(fairseq, tmp_path):
    (fairseq.folder / "criss.1st.pt").touch()
    with pytest.raises(UserError, match=r"which \*\.pt of criss\.1st\.pt, criss\.3rd\.pt\?"):
        criss.convert(fairseq.folder, tmp_path / "criss")
    (fairseq.folder / "sentence.bpe.model").unlink()
    with pytest.raises(UserError, match=r"no \*\.model here"):
        criss.convert(fairseq.folder / "criss.3rd.pt", tmp_path / "criss")


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"PK\x03\x04 not a zip"])
def test_a_file_that_is_no_checkpoint_is_one_line(fairseq, tmp_path, content):
    (fairseq.folder / "criss.3rd.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"criss\.3rd\.pt: ") as failure:
        criss.convert(fairseq.folder, tmp_path / "criss")
    assert "\n" not in str(failure.value)


def test_a_sentencepiece_model_of_another_kind_is_refused(tmp_path):
    file = tmp_path / "bpe.model"
    with file.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 20),
            model_writer=stream,
            model_type="bpe",
            vocab_size=90,
            minloglevel=2,
        )
    with pytest.raises(UserError, match="not a SentencePiece model of mBART's kind"):
        criss_pieces.read_sentencepiece(file)
    file.write_bytes(b"\xff\xff nonsense")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        criss_pieces.read_sentencepiece(file)


def test_a_whole_mbart_is_run_by_its_encoder_alone(tmp_path):
    from transformers import MBartConfig, MBartForConditionalGeneration

    path = save_xlmr(tmp_path / "mbart", 1)  # for its tokenizer
    sizes = {f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in HF_SIZES.items()}
    torch.manual_seed(0)
    config = MBartConfig(vocab_size=400, d_model=16, max_position_embeddings=300, **sizes)
    model = MBartForConditionalGeneration(config).eval()
    model.save_pretrained(path)
    encoder = Encoder.load(path, pooling="mean", normalize=False)
    ids = torch.tensor([encoder_ids(encoder, "a b")])
    with torch.no_grad():
        expected = model.get_encoder()(input_ids=ids).last_hidden_state.mean(1)
    np.testing.assert_allclose(encoder.encode_queries(["a b"]), expected, atol=1e-6)


HF_SIZES = {"layers": 2, "ffn_dim": 24, "attention_heads": 2}


def encoder_ids(encoder, text):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(encoder.path)(text)["input_ids"]


def test_an_encoder_that_lacks_a_weight_is_refused_though_it_has_a_decoder(fairseq, tmp_path):
    from safetensors.torch import load_file, save_file

    criss.convert(fairseq.folder, tmp_path / "criss")
    file = tmp_path / "criss" / "model.safetensors"
    weights = load_file(file)
    del weights["encoder.layers.1.fc2.bias"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 of the model's weights, layers\.1\.fc2\.bias"):
        Encoder.load(tmp_path / "criss").encode_queries(["a"])


# -- LASER --


class FakeLaser:
    """What the adapter uses of ``laser_encoders``: a tokenizer, an encoder, a log on stdout."""

    def __init__(self, laser, model_dir):
        logging.basicConfig(stream=sys.stdout, level=logging.INFO)
        logging.getLogger("preprocess").info("already downloaded")
        self.asked = (laser, model_dir)
        self.tokenizer = self
        self.encoder = self
        self.use_cuda = False
        self.max_sentences = 1
        self.passes = []

    def tokenize(self, text):
        return " ".join(f"▁{word}" for word in text.lower().split())

    def encode_sentences(self, sentences):
        self.passes.append(self.max_sentences)
        return np.stack([self.embed(sentence.split()) for sentence in sentences])

    @staticmethod
    def embed(pieces):
        """The largest over all pieces and </s>, three dimensions."""
        states = [[len(p), p.count("a"), ord(p[-1]) / 100] for p in [*pieces, "</s>"]]
        return np.max(states, axis=0)


@pytest.fixture
def laser(tmp_path, monkeypatch):
    """LASER's directory, under a name of no meaning, with the package installed."""
    module = types.ModuleType("laser_encoders")
    module.__spec__ = importlib.machinery.ModuleSpec("laser_encoders", None)
    module.LaserEncoderPipeline = FakeLaser
    monkeypatch.setitem(sys.modules, "laser_encoders", module)
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("laser2.pt", "laser2.spm", "laser2.cvocab"):
        (folder / name).write_bytes(name.encode())
    return folder


def by_laser(text):
    return FakeLaser.embed(FakeLaser.tokenize(None, text).split())


def test_laser_gives_its_packages_vectors_at_unit_length(laser):
    texts = ["Banana split", "a", "", "the a and the b and the c"]
    encoder = Encoder.load(laser, batch_tokens=4)
    expected = unit(by_laser(text) for text in texts)
    np.testing.assert_allclose(encoder.encode_queries(texts), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_passages(texts), expected, atol=1e-6)
    assert encoder.dim == 3
    assert encoder.memory() > 0
    assert encoder.settings.pooling == "pooler"


def test_laser_is_given_whole_batches_and_its_own_directory(laser):
    encoder = Encoder.load(laser, batch_tokens=100)
    encoder.encode_queries(["a b"] * 7)
    pipeline = encoder._tower("query").pipeline
    assert pipeline.asked == ("laser2", str(laser))
    assert pipeline.passes[-1] == 7


def test_what_is_cut_for_laser_is_counted_with_the_end_mark(laser):
    encoder = Encoder.load(laser, max_length=4, normalize=False)
    encoded = encoder.embed_queries(["a bb ccc", "a bb ccc dddd"])
    assert (encoded.tokens, encoded.truncated) == (8, 1)
    np.testing.assert_allclose(encoded.vectors, [by_laser("a bb ccc")] * 2, atol=1e-6)


def test_laser_keeps_its_log_out_of_the_results(laser, capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    Encoder.load(laser).encode_queries(["a"])
    assert capsys.readouterr().out == ""
    assert logging.getLogger().handlers == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"pooling": "mean"}, "leave --pooling and --layer out"),
        ({"layer": 3}, "leave --pooling and --layer out"),
        ({"title": "pair"}, "use --title join"),
    ],
)
def test_what_laser_cannot_do_is_refused(laser, asked, message):
    with pytest.raises(UserError, match=message):
        Encoder.load(laser, **asked).encode_queries(["a"])


def test_lasers_device_is_the_packages_and_another_is_refused(laser, monkeypatch):
    monkeypatch.setattr(FakeLaser, "use_cuda", True, raising=False)
    real = FakeLaser.__init__

    def on_gpu(self, **given):
        real(self, **given)
        self.use_cuda = True

    monkeypatch.setattr(FakeLaser, "__init__", on_gpu)
    with pytest.raises(UserError, match="--device cpu: laser_encoders computes on cuda here"):
        Encoder.load(laser, device="cpu").encode_queries(["a"])


def test_the_fingerprint_of_laser_follows_its_files(laser):
    before = Encoder.load(laser).fingerprint
    (laser / "laser2.spm").write_bytes(b"another")
    assert Encoder.load(laser).fingerprint != before


def test_by_its_short_name_laser_is_where_its_package_downloads_it_to(laser, monkeypatch):
    from ccpretrieve.model import laser as module

    monkeypatch.setattr(module, "DOWNLOADS", laser)
    assert Encoder.load("laser").encode_queries(["a"]).shape == (1, 3)
    (laser / "laser2.cvocab").unlink()
    with pytest.raises(UserError, match=r"found no laser2\.cvocab; python -m laser_encoders\.dow"):
        Encoder.load("laser")


def test_without_its_package_laser_is_one_line(laser, monkeypatch):
    monkeypatch.delitem(sys.modules, "laser_encoders")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs the package laser_encoders: pip install") as failure:
        Encoder.load(laser)
    assert "\n" not in str(failure.value)


def test_a_package_that_cannot_be_loaded_is_one_line(laser, monkeypatch):
    def broken(**given):
        raise ValueError("mutable default\nfor field common")

    monkeypatch.setattr(sys.modules["laser_encoders"], "LaserEncoderPipeline", broken)
    with pytest.raises(UserError, match="cannot load it: ValueError: mutable default for field"):
        Encoder.load(laser).encode_queries(["a"])
