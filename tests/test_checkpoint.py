import shutil

import pytest

from ccpretrieve.errors import UserError
from ccpretrieve.model import checkpoint


def test_the_fingerprint_follows_the_content_not_the_place(tiny_checkpoint, tmp_path):
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "elsewhere")
    before = checkpoint.fingerprint(tiny_checkpoint)
    assert checkpoint.fingerprint(copy) == before
    (copy / "README.md").write_text("about")
    (copy / "ccpretrieve.json").write_text("{}")
    assert checkpoint.fingerprint(copy) == before
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert checkpoint.fingerprint(copy) != before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_the_fingerprint_covers_sizes_and_tokenizer(tiny_checkpoint, tmp_path, name):
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    text = (copy / name).read_text()
    (copy / name).write_text(text + " ")
    assert checkpoint.fingerprint(copy) != checkpoint.fingerprint(tiny_checkpoint)


def test_untied_towers_are_two_directories(tiny_checkpoint, tmp_path):
    for role in (checkpoint.QUERY, checkpoint.PASSAGE):
        shutil.copytree(tiny_checkpoint, tmp_path / role)
    assert checkpoint.locate(str(tmp_path)) == tmp_path
    assert checkpoint.tower(tmp_path, "query") == tmp_path / "query"
    assert checkpoint.tower(tiny_checkpoint, "query") == tiny_checkpoint


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path):
    with pytest.raises(UserError, match="there is no such directory"):
        checkpoint.locate(str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"has no config\.json"):
        checkpoint.locate(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no weights"):
        checkpoint.locate(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError, match="no tokenizer"):
        checkpoint.locate(str(tmp_path))
    with pytest.raises(UserError, match="a file, where a checkpoint directory belongs"):
        checkpoint.locate(str(tmp_path / "config.json"))


def test_a_hub_name_without_a_hub_is_one_line(monkeypatch):
    import huggingface_hub

    def offline(*args, **kwargs):
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(UserError, match="the hub has no answer") as failure:
        checkpoint.locate("someone/something")
    assert "\n" not in str(failure.value)


def test_the_default_encoder_is_the_users_own_and_never_random(monkeypatch):
    monkeypatch.setenv("CCPRETRIEVE_ENCODER", "out/mine")
    assert checkpoint.default_encoder() == "out/mine"
    monkeypatch.delenv("CCPRETRIEVE_ENCODER")
    with pytest.raises(UserError, match="give --encoder .* or set CCPRETRIEVE_ENCODER"):
        checkpoint.default_encoder()
