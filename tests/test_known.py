import pytest

from ccpretrieve.errors import UserError
from ccpretrieve.model import checkpoint, known
from ccpretrieve.model.settings import EncoderSettings, read_settings

SHORT = [
    # short name, hub name, pooling, layer
    ("m-bert", "google-bert/bert-base-multilingual-cased", "mean", 8),
    ("xlm-r", "FacebookAI/xlm-roberta-base", "mean", 8),
    ("xlm-r-large", "FacebookAI/xlm-roberta-large", "mean", 14),
    ("infoxlm", "microsoft/infoxlm-base", "mean", 8),
    ("infoxlm-large", "microsoft/infoxlm-large", "mean", 14),
    ("labse", "sentence-transformers/LaBSE", "pooler", -1),
]


@pytest.mark.parametrize(("short", "hub", "pooling", "layer"), SHORT)
@pytest.mark.parametrize("spelled", ["{short}", "{hub}", "/models/{short}/", "~/models/{hub}"])
def test_a_short_name_its_hub_name_and_a_directory_called_so_are_set_alike(
    tmp_path, short, hub, pooling, layer, spelled
):
    settings, source = read_settings(tmp_path, spelled.format(short=short, hub=hub))
    assert settings == EncoderSettings(
        pooling=pooling, layer=layer, normalize=True, similarity="cosine", title="join"
    )
    assert "the table of known models" in source


@pytest.mark.parametrize("name", ["unicoder", "criss", "laser"])
def test_what_no_hub_has_is_set_by_the_name_of_its_directory(name):
    stated = known.lookup(f"/models/{name}")
    assert EncoderSettings(**stated).similarity == "cosine"
    assert stated["title"] == "join"


def test_every_short_name_leads_into_the_table():
    assert all(known.lookup(name) for name in (*known.HUB_NAMES, *known.ELSEWHERE, known.LASER))
    assert all(known.lookup(hub) is known.lookup(short) for short, hub in known.HUB_NAMES.items())


def test_a_copy_in_the_hubs_own_cache_keeps_its_settings():
    cached = "/c/hub/models--FacebookAI--xlm-roberta-large/snapshots/0123abc"
    assert known.lookup(cached) is known.KNOWN["xlm-roberta-large"]
    assert known.lookup("/c/hub/models--someone--model/snapshots/0123abc") is None


def test_a_directory_with_lasers_weights_is_laser_whatever_it_is_called(tmp_path):
    assert known.lookup(str(tmp_path)) is None
    (tmp_path / "laser2.pt").touch()
    assert known.lookup(str(tmp_path)) is known.KNOWN["laser"]


@pytest.fixture
def offline(monkeypatch):
    """A hub that does not answer; the names it was asked for."""
    import huggingface_hub

    asked = []

    def no_answer(name, **_):
        asked.append(name)
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_answer)
    return asked


@pytest.mark.parametrize(("short", "hub"), [row[:2] for row in SHORT])
def test_a_short_name_that_is_not_to_be_had_says_what_it_looked_for(offline, short, hub):
    with pytest.raises(UserError) as failure:
        checkpoint.locate(short)
    assert offline == [hub]
    assert str(failure.value) == (
        f"encoder {short!r}: no such directory here, and the hub has no answer for {hub} "
        "(ConnectionError); give the path of a checkpoint directory called "
        + hub.rsplit("/", 1)[-1]
    )


def test_a_name_near_a_short_one_is_answered_with_it(offline):
    with pytest.raises(UserError, match=r"checkpoint directory; did you mean 'm-bert'\?$"):
        checkpoint.locate("mbert")
    assert offline == ["mbert"]
    with pytest.raises(UserError, match="checkpoint directory$"):
        checkpoint.locate("someone/quite-different")


@pytest.mark.parametrize(
    ("name", "what_to_do"),
    [
        ("unicoder", r"github\.com/microsoft/Unicoder .* give its directory, called unicoder$"),
        ("CRISS", r"python -m benchmarks\.convert_criss --input .* give that directory$"),
    ],
)
def test_what_no_hub_has_is_not_looked_for_there(offline, name, what_to_do):
    with pytest.raises(UserError, match=what_to_do) as failure:
        checkpoint.locate(name)
    assert not offline
    assert "\n" not in str(failure.value)


def test_a_short_name_is_downloaded_under_its_hub_name(monkeypatch, tiny_checkpoint):
    import huggingface_hub

    asked = []

    def answer(name, **_):
        asked.append(name)
        return str(tiny_checkpoint)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    assert checkpoint.locate("XLM-R-large") == tiny_checkpoint
    assert asked == ["FacebookAI/xlm-roberta-large"]


def test_a_directory_here_comes_before_a_short_name(monkeypatch, tmp_path, tiny_checkpoint):
    (tmp_path / "criss").symlink_to(tiny_checkpoint)
    monkeypatch.chdir(tmp_path)
    assert str(checkpoint.locate("criss")) == "criss"
