"""Fixtures: a random tiny checkpoint, and the real text and encoder where they are at hand."""

import os
from pathlib import Path

import pytest

from ccpretrieve.model import random_checkpoint
from ccpretrieve.model.settings import EncoderSettings

ROOT = Path(__file__).parents[1]
TEXTS = [
    "The Nile flows north through Egypt to the Mediterranean Sea.",
    "富士山は日本で一番高い山です。",
    "Helsinki on Suomen pääkaupunki ja suurin kaupunki.",
    "النيل هو أطول نهر في أفريقيا",
    "Москва является столицей России.",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9",
]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """A two-layer random XLM-R saved as a real checkpoint is. Downloads nothing."""
    settings = EncoderSettings(
        pooling="mean",
        normalize=True,
        similarity="cosine",
        query_length=64,
        passage_length=64,
        query_prefix="query: ",
        passage_prefix="passage: ",
        title="join",
    )
    path = tmp_path_factory.mktemp("checkpoints") / "tiny-xlmr"
    return random_checkpoint.build(path, TEXTS * 20, settings=settings, vocabulary=400)


@pytest.fixture(scope="session")
def real_data():
    """Folder of real multilingual text, or a skip that says how to have one."""
    path = Path(os.environ.get("CCPRETRIEVE_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (path / "xquad").is_dir():
        pytest.skip(f"no real text at {path}; set CCPRETRIEVE_TEST_DATA")
    return path


@pytest.fixture(scope="session")
def real_encoder():
    """Directory of a real multilingual encoder, or a skip that says how to have one."""
    path = os.environ.get("CCPRETRIEVE_TEST_ENCODER", "")
    if not (Path(path) / "config.json").is_file() or not path:
        pytest.skip("no real encoder; set CCPRETRIEVE_TEST_ENCODER to its directory")
    return Path(path)
