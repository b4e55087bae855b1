import json

import pytest

from ccpretrieve.errors import UserError
from ccpretrieve.model import known
from ccpretrieve.model.settings import EncoderSettings, read_settings, write_settings


def put(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name + ".json").write_text(json.dumps(content))
    return folder


def modules(*kinds):
    folders = {"Transformer": "", "Pooling": "1_Pooling"}
    return [
        {"type": f"sentence_transformers.models.{kind}", "path": folders.get(kind, f"2_{kind}")}
        for kind in kinds
    ]


def test_without_any_statement_the_papers_retrieval_setting_holds(tmp_path):
    settings, source = read_settings(tmp_path, "out/mine")
    assert settings == EncoderSettings()
    assert (settings.pooling, settings.layer, settings.similarity) == ("cls", -1, "dot")
    assert (settings.title, settings.query_length, settings.passage_length) == ("pair", 256, 256)
    assert "the checkpoint states none" in source


def test_our_own_file_wins_over_everything(tmp_path):
    put(tmp_path, ccpretrieve={"pooling": "mean"}, modules=modules("Transformer", "Pooling"))
    settings, source = read_settings(tmp_path, "multilingual-e5-small")
    assert settings == EncoderSettings(pooling="mean")
    assert source == "ccpretrieve.json"


def test_sentence_transformers_files_are_honoured(tmp_path):
    put(
        tmp_path,
        modules=modules("Transformer", "Pooling", "Normalize"),
        **{
            "1_Pooling__config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
        },
        sentence_bert_config={"max_seq_length": 128},
        config_sentence_transformers={"prompts": {"query": "Q: ", "document": "D: "}},
    )
    settings, source = read_settings(tmp_path, "out/mine")
    assert settings == EncoderSettings(
        pooling="mean",
        normalize=True,
        similarity="cosine",
        query_length=128,
        passage_length=128,
        query_prefix="Q: ",
        passage_prefix="D: ",
        title="join",
    )
    assert source == "modules.json"


def test_the_table_fills_in_what_modules_json_does_not_say(tmp_path):
    put(
        tmp_path,
        modules=modules("Transformer", "Pooling", "Normalize"),
        **{"1_Pooling__config": {"pooling_mode_mean_tokens": True}},
    )
    settings, source = read_settings(tmp_path, "intfloat/multilingual-e5-small")
    assert (settings.query_prefix, settings.passage_prefix) == ("query: ", "passage: ")
    assert source.startswith("modules.json and the table")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FacebookAI/xlm-roberta-large", ("mean", 14, "cosine", "join")),
        ("microsoft/infoxlm-large", ("mean", 14, "cosine", "join")),
        ("google-bert/bert-base-multilingual-cased", ("mean", 8, "cosine", "join")),
        ("sentence-transformers/LaBSE", ("pooler", -1, "cosine", "join")),
        ("castorini/mdpr-passage-nq", ("cls", -1, "dot", "pair")),
        ("intfloat/multilingual-e5-large", ("mean", -1, "cosine", "join")),
    ],
)
def test_known_models_are_used_as_their_authors_use_them(tmp_path, name, expected):
    settings, _ = read_settings(tmp_path, name)
    found = (settings.pooling, settings.layer, settings.similarity, settings.title)
    assert found == expected


def test_every_entry_of_the_table_is_a_possible_setting():
    for name, stated in known.KNOWN.items():
        EncoderSettings(**stated)
        assert known.lookup(f"hub/{name.upper()}/") is stated


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"poling": "cls"}, r"ccpretrieve\.json: unknown setting 'poling'; did you mean 'pooling'"),
        ({"pooling": "men"}, r"ccpretrieve\.json: unknown pooling 'men'"),
        ({"layer": "14"}, r"ccpretrieve\.json: setting 'layer' cannot be '14'"),
        ({"layer": True}, r"ccpretrieve\.json: setting 'layer' cannot be True"),
        ({"similarity": "cosine"}, "similarity cosine needs unit vectors"),
        (["pooling"], "expected an object of settings"),
    ],
)
def test_a_wrong_statement_is_refused_by_name(tmp_path, content, message):
    put(tmp_path, ccpretrieve=content)
    with pytest.raises(UserError, match=message):
        read_settings(tmp_path, "x")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules": modules("Transformer", "LSTM")}, "module LSTM is not implemented"),
        (
            {
                "modules": modules("Transformer", "Pooling"),
                "1_Pooling__config": {"pooling_mode_max_tokens": True},
            },
            "pooling .*max_tokens.* is not implemented",
        ),
        (
            {
                "modules": modules("Transformer"),
                "config_sentence_transformers": {"similarity_fn_name": "euclidean"},
            },
            "similarity 'euclidean' is not implemented",
        ),
        ({"modules": [{"kind": "x"}]}, "expected modules with `type` and `path`"),
    ],
)
def test_what_sentence_transformers_does_and_we_do_not_is_refused(tmp_path, files, message):
    put(tmp_path, **files)
    with pytest.raises(UserError, match=message):
        read_settings(tmp_path, "x")


def test_what_was_asked_for_wins_and_none_is_no_wish():
    settings = EncoderSettings(pooling="mean", query_prefix="q: ")
    asked = settings.override(pooling=None, query_prefix="", max_length=32)
    assert asked.pooling == "mean"
    assert asked.query_prefix == ""
    assert (asked.query_length, asked.passage_length) == (32, 32)


def test_cosine_brings_unit_length_and_no_unit_length_brings_dot():
    assert EncoderSettings().override(similarity="cosine").normalize
    unit = EncoderSettings(similarity="cosine", normalize=True)
    assert unit.override(normalize=False).similarity == "dot"


def test_what_is_written_is_read_back(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    settings = EncoderSettings(pooling="mean", layer=3, calibration="c.safetensors", title="drop")
    write_settings(tmp_path, settings)
    assert read_settings(tmp_path, "x") == (settings, "ccpretrieve.json")
    assert not (tmp_path / "modules.json").exists()  # it cannot say layer 3
