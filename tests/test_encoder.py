import json
import shutil

import numpy as np
import pytest
import torch

from ccpretrieve.data.records import Passage
from ccpretrieve.errors import UserError
from ccpretrieve.model import random_checkpoint
from ccpretrieve.model.calibration_file import Calibration, Spread
from ccpretrieve.model.encoder import Encoder, batches
from ccpretrieve.model.settings import EncoderSettings
from ccpretrieve.model.tower import Tower, max_positions

PASSAGES = [
    Passage("1", "a b c", "The Nile"),
    Passage("2", "", ""),
    Passage("3", "x y z " * 60, "Helsinki"),
    Passage("4", "no title here"),
]


def by_hand(checkpoint, texts, *, layer=-1, pooling="mean", length=64, unit=True):
    """One text at a time through transformers alone: no batch, no padding, nothing of ours."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint).eval()
    vectors = []
    for text in texts:
        first, second = (text, None) if isinstance(text, str) else text
        inputs = tokenizer(first, second, truncation=True, max_length=length, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states[layer][0]
        vector = (states.mean(0) if pooling == "mean" else states[0]).numpy()
        vectors.append(vector / np.linalg.norm(vector) if unit else vector)
    return np.stack(vectors)


def test_passages_equal_transformers_used_by_hand(tiny_checkpoint):
    texts = [f"passage: {p.title} {p.text}" if p.title else f"passage: {p.text}" for p in PASSAGES]
    ours = Encoder.load(tiny_checkpoint).encode_passages(PASSAGES)
    np.testing.assert_allclose(ours, by_hand(tiny_checkpoint, texts), atol=1e-6)


def test_queries_have_their_own_prefix(tiny_checkpoint):
    ours = Encoder.load(tiny_checkpoint).encode_queries(["a b c"])
    np.testing.assert_allclose(ours, by_hand(tiny_checkpoint, ["query: a b c"]), atol=1e-6)


def test_a_question_loses_its_last_mark_where_the_setting_says_so(tiny_checkpoint):
    plain = Encoder.load(tiny_checkpoint)
    stripping = Encoder.load(tiny_checkpoint, strip_question_mark=True)
    asked = ["a b? c?", "a b c", "a b c??", "a b c \uff1f"]
    bare = ["a b? c", "a b c", "a b c?", "a b c \uff1f"]  # one ASCII mark, at the end
    np.testing.assert_allclose(
        stripping.encode_queries(asked), plain.encode_queries(bare), atol=1e-6
    )
    assert np.abs(plain.encode_queries(asked) - plain.encode_queries(bare))[0].max() > 1e-3
    passages = [stripping.encode_passages(["a b c?"]), plain.encode_passages(["a b c?"])]
    np.testing.assert_array_equal(*passages)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("layer", [-1, 0, 1, 2])
def test_every_layer_and_pooling_equals_transformers(tiny_checkpoint, pooling, layer):
    encoder = Encoder.load(tiny_checkpoint, pooling=pooling, layer=layer, normalize=False)
    ours = encoder.encode_queries(["a b c", "d e"])
    texts = ["query: a b c", "query: d e"]
    theirs = by_hand(tiny_checkpoint, texts, layer=layer, pooling=pooling, unit=False)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_pair_is_two_segments_and_drop_leaves_the_title_out(tiny_checkpoint):
    pair = Encoder.load(tiny_checkpoint, title="pair").encode_passages(PASSAGES[:1])
    theirs = by_hand(tiny_checkpoint, [("passage: The Nile", "a b c")])
    np.testing.assert_allclose(pair, theirs, atol=1e-6)
    drop = Encoder.load(tiny_checkpoint, title="drop").encode_passages(PASSAGES[:1])
    np.testing.assert_allclose(drop, by_hand(tiny_checkpoint, ["passage: a b c"]), atol=1e-6)


def test_titled_and_untitled_passages_keep_their_places_when_titles_are_pairs(tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint, title="pair")
    together = encoder.encode_passages(PASSAGES)
    alone = [encoder.encode_passages([passage])[0] for passage in PASSAGES]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-6)


def test_segment_ids_reach_a_model_that_takes_them(tmp_path):
    checkpoint = bert(tmp_path / "bert")
    encoder = Encoder.load(checkpoint, title="pair", passage_length=32)
    ours = encoder.encode_passages([("a b", "c d"), "e"])
    theirs = by_hand(checkpoint, [("a b", "c d"), "e"], pooling="cls", length=32, unit=False)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def bert(path):
    """A random BERT, whose tokenizer gives segment ids and whose pooler is stored."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (path / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(words), intermediate_size=16, max_position_embeddings=40, **sizes
    )
    BertModel(config).save_pretrained(path)
    BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(path)
    settings = {"passage_length": 32, "query_length": 32}
    (path / "ccpretrieve.json").write_text(json.dumps(settings))
    return path


def test_the_models_own_pooler_is_used_where_the_setting_says_so(tmp_path):
    from transformers import AutoModel, AutoTokenizer

    checkpoint = bert(tmp_path / "bert")
    inputs = AutoTokenizer.from_pretrained(checkpoint)("a b c", return_tensors="pt")
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(checkpoint).eval()(**inputs).pooler_output.numpy()
    ours = Encoder.load(checkpoint, pooling="pooler").encode_queries(["a b c"])
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("title", ["join", "pair"])
def test_no_result_depends_on_the_batch(tiny_checkpoint, title):
    generator = np.random.default_rng(0)
    texts = ["a b c " * generator.integers(0, 30) for _ in range(40)]
    passages = [Passage(str(i), text, "t" * (i % 3)) for i, text in enumerate(texts)]
    vectors = [
        Encoder.load(tiny_checkpoint, title=title, batch_tokens=budget).encode_passages(passages)
        for budget in (1, 100, 10_000)
    ]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_fused_layers_are_the_layers_of_transformers(tiny_checkpoint, tmp_path, kind, dtype):
    from transformers import AutoModel

    path = bert(tmp_path / "bert") if kind == "bert" else tiny_checkpoint
    tower = Tower(path, Encoder.load(path, pooling="mean").settings, torch.device("cpu"), dtype)
    theirs = AutoModel.from_pretrained(path, dtype=dtype).eval()
    assert tower.fused is not None
    assert [layer.up.packed for layer in tower.fused.layers] == [dtype == torch.float32] * 2
    digits = 1e-6 if dtype == torch.float32 else 2e-2  # bfloat16 keeps 8 bits
    texts = ["a b c", "d", "e f g h a b c", "a b " * 40]
    for chosen in (texts, texts[:1] * 2):  # with padding, and without
        tokens = list(tower.tokenize(chosen, 20))
        inputs = tower.tokenizer.pad({"input_ids": [t.ids for t in tokens]}, return_tensors="pt")
        with torch.inference_mode():
            states = theirs(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"][:, :, None]
        expected = (states * mask).sum(1) / mask.sum(1)
        torch.testing.assert_close(tower.forward(tokens), expected, atol=digits, rtol=digits)


def test_batches_hold_every_text_once_within_the_budget():
    lengths = [3, 50, 7, 7, 1, 200, 12]
    made = list(batches(lengths, 60))
    assert sorted(row for rows in made for row in rows) == list(range(7))
    for rows in made:
        widest = max(lengths[row] for row in rows)
        assert widest * len(rows) <= 60 or len(rows) == 1
    assert list(batches([], 60)) == []


def test_what_was_cut_is_counted(tiny_checkpoint):
    encoded = Encoder.load(tiny_checkpoint).embed_passages(PASSAGES)
    assert encoded.truncated == 1
    pairs = Encoder.load(tiny_checkpoint, title="pair").embed_passages(PASSAGES)
    assert pairs.truncated == 1
    exact = Encoder.load(tiny_checkpoint, max_length=512).embed_passages(PASSAGES)
    assert exact.truncated == 0
    assert encoded.tokens < exact.tokens


def test_sentence_transformers_gives_the_same_vectors(tiny_checkpoint):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(tiny_checkpoint), device="cpu")
    ours = Encoder.load(tiny_checkpoint)
    texts = ["a b c", "Helsinki on Suomen", "x " * 300]
    np.testing.assert_allclose(
        ours.encode_passages(texts), theirs.encode(texts, prompt_name="document"), atol=1e-6
    )
    np.testing.assert_allclose(
        ours.encode_queries(texts), theirs.encode(texts, prompt_name="query"), atol=1e-6
    )


def test_a_dense_module_of_sentence_transformers_is_applied(tiny_checkpoint, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer

    torch.manual_seed(1)
    word = Transformer(str(tiny_checkpoint), max_seq_length=64)
    pooling = Pooling(32, pooling_mode="cls")
    theirs = SentenceTransformer(modules=[word, pooling, Dense(32, 6)], device="cpu")
    theirs.save(str(tmp_path / "st"))
    ours = Encoder.load(tmp_path / "st")
    assert ours.dim == 6
    assert ours.settings.query_length == 64
    texts = ["a b c", "a b c d " * 50]
    expected = theirs.encode(texts, normalize_embeddings=True)  # it compares by cosine
    np.testing.assert_allclose(ours.encode_queries(texts), expected, atol=1e-6)


def test_untied_towers_encode_their_own_side(tiny_checkpoint, tmp_path):
    other = random_checkpoint.build(
        tmp_path / "seed1", ["a b c d e f"] * 20, seed=1, vocabulary=300
    )
    untied = tmp_path / "untied"
    shutil.copytree(tiny_checkpoint, untied / "query")
    shutil.copytree(other, untied / "passage")
    (untied / "ccpretrieve.json").write_text('{"query_length": 64, "passage_length": 64}')
    encoder = Encoder.load(untied)
    same = {"pooling": "cls", "normalize": False, "query_prefix": "", "max_length": 64}
    queries = Encoder.load(tiny_checkpoint, **same).encode_queries(["a b"])
    np.testing.assert_allclose(encoder.encode_queries(["a b"]), queries, atol=1e-6)
    passages = Encoder.load(other, max_length=64).encode_passages(["a b"])
    np.testing.assert_allclose(encoder.encode_passages(["a b"]), passages, atol=1e-6)


def test_a_calibration_comes_before_unit_length(tiny_checkpoint, tmp_path):
    raw = Encoder.load(tiny_checkpoint, normalize=False)
    vectors = raw.encode_passages(["a b", "c d", "e f"])
    Calibration({"ja": Spread.fit(vectors)}).save(tmp_path / "c.safetensors")
    calibrated = Encoder.load(tiny_checkpoint, calibration=tmp_path / "c.safetensors")
    expected = (vectors - vectors.mean(0)) / vectors.std(0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    ours = calibrated.encode_passages(["a b", "c d", "e f"], language="ja")
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    with pytest.raises(UserError, match="give --lang"):
        calibrated.encode_passages(["a b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 14}, r"has layers 0 to 2 \(-1 the last\), not 14"),
        ({"max_length": 513}, "takes at most 512 tokens, asked for 513"),
        ({"pooling": "pooler"}, "lacks 2 of the model's weights, pooler"),
        ({"pooling": "men"}, "unknown pooling 'men'"),
        ({"device": "cuda:9"}, "device 'cuda:9' cannot be used on this machine"),
        ({"device": "gpu"}, "device 'gpu' cannot be used"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
    ],
)
def test_what_a_checkpoint_cannot_do_is_one_line(tiny_checkpoint, options, message):
    with pytest.raises(UserError, match=message) as failure:
        Encoder.load(tiny_checkpoint, **options).encode_passages(["a"])
    assert "\n" not in str(failure.value)


def test_missing_weights_are_never_drawn_at_random(tiny_checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    name = next(name for name in weights if "layer.1.attention.self.query.weight" in name)
    del weights[name]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks 1 of the model's weights, encoder.layer.1"):
        Encoder.load(copy).encode_queries(["a"])


def test_broken_weights_are_one_line(tiny_checkpoint, tmp_path):
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    (copy / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match="cannot be loaded as a checkpoint") as failure:
        Encoder.load(copy).encode_queries(["a"])
    assert "\n" not in str(failure.value)


def test_a_vector_that_is_not_finite_is_an_error(tiny_checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.LayerNorm.bias"][0] = torch.nan
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="1 of 1 vectors hold a NaN or infinity"):
        Encoder.load(copy).encode_queries(["a"])


def test_positions_of_robertas_kind_start_after_the_padding_id(tiny_checkpoint):
    from transformers import (
        AutoModel,
        BertConfig,
        BertModel,
        CamembertConfig,
        CamembertModel,
        MPNetConfig,
        MPNetModel,
        T5Config,
        T5EncoderModel,
    )

    sizes = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 66,
    }
    assert max_positions(AutoModel.from_pretrained(tiny_checkpoint)) == 512
    assert max_positions(BertModel(BertConfig(**sizes))) == 66
    assert max_positions(CamembertModel(CamembertConfig(pad_token_id=1, **sizes))) == 64
    assert max_positions(MPNetModel(MPNetConfig(pad_token_id=1, **sizes))) == 64
    t5 = T5Config(vocab_size=20, d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4)
    assert max_positions(T5EncoderModel(t5)) is None


@pytest.mark.parametrize("kind", ["DPRQuestionEncoder", "DPRContextEncoder"])
def test_dprs_own_classes_give_the_vectors_of_the_bert_inside(tmp_path, kind):
    import transformers

    plain = bert(tmp_path / "bert")
    inner = transformers.BertConfig.from_pretrained(plain).to_dict()
    inner.pop("model_type")
    wrapper = getattr(transformers, kind)(transformers.DPRConfig(**inner))
    part = wrapper.question_encoder if kind == "DPRQuestionEncoder" else wrapper.ctx_encoder
    weights = transformers.BertModel.from_pretrained(plain).state_dict()
    part.bert_model.load_state_dict(weights, strict=False)
    dpr = shutil.copytree(plain, tmp_path / "mdpr")
    wrapper.save_pretrained(dpr)
    ours = Encoder.load(dpr).encode_queries(["a b c"])
    np.testing.assert_allclose(ours, Encoder.load(plain).encode_queries(["a b c"]), atol=1e-6)


def test_code_that_comes_with_a_checkpoint_is_never_run(tiny_checkpoint, tmp_path):
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "c.C", "AutoModel": "c.M"}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "c.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="cannot be loaded as a checkpoint"):
        Encoder.load(copy).encode_queries(["a"])
    assert not (tmp_path / "ran").exists()


def test_a_text_of_just_the_longest_length_is_encoded(tiny_checkpoint):
    encoder = Encoder.load(tiny_checkpoint, max_length=512)
    encoded = encoder.embed_passages([Passage("1", "a " * 1000)])
    assert (encoded.tokens, encoded.truncated) == (512, 1)


def test_no_texts_give_no_vectors(tiny_checkpoint):
    assert Encoder.load(tiny_checkpoint).encode_queries([]).shape == (0, 32)


def test_the_random_checkpoint_is_the_same_for_the_same_seed(tmp_path):
    texts = ["a b c d e f"] * 20
    made = [
        random_checkpoint.build(tmp_path / str(i), texts, vocabulary=300, seed=seed)
        for i, seed in enumerate([0, 0, 1])
    ]
    prints = [Encoder.load(path).fingerprint for path in made]
    assert prints[0] == prints[1] != prints[2]
    assert Encoder.load(made[0]).settings == EncoderSettings()
