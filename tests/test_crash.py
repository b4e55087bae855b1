"""`kill -9` at random moments: what is resumed ends with the bytes of what was never killed."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

KILLS = 20
DOCS = 400
IMPORTED = [
    *("faiss", "torch", "tqdm", "ccpretrieve.encode", "ccpretrieve.model.encoder"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    "transformers.models.xlm_roberta.modeling_xlm_roberta",
]


def _encode(folder, corpus, checkpoint):
    """Runs in a child that has its own session of everything."""
    os.chdir(folder)
    from ccpretrieve import encode
    from ccpretrieve.config import EncodeConfig

    encode.run(EncodeConfig(corpus=str(corpus), encoder=str(checkpoint), shard_size=16, quiet=True))


def _content(folder):
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_the_index_is_the_same(tmp_path, tiny_checkpoint):
    corpus = tmp_path / "wiki.jsonl"
    docs = ({"id": f"d{i}", "contents": f"T\n\n{'a b ' * (i % 9)}{i}"} for i in range(DOCS))
    corpus.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    # Children are forked from one that has imported everything and computed nothing, so that a
    # kill falls into the work and not into the imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)

    def run(folder, *, kill_after=None):
        folder.mkdir(exist_ok=True)
        process = context.Process(target=_encode, args=(folder, corpus, tiny_checkpoint))
        begun = time.monotonic()
        process.start()
        process.join(kill_after)
        killed = process.is_alive()
        if killed:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert killed or process.exitcode == 0
        return killed, time.monotonic() - begun

    run(tmp_path / "warm")
    _, seconds = run(tmp_path / "whole")
    expected = _content(tmp_path / "whole" / "indexes")
    generator, killed_in_the_work = random.Random(0), 0
    for kill in range(KILLS):
        folder = tmp_path / f"killed{kill}"
        run(folder, kill_after=generator.uniform(0.1, 1.0) * seconds)
        killed_in_the_work += Path(folder / "indexes" / "wiki.tiny-xlmr.partial").exists()
        run(folder)
        assert _content(folder / "indexes") == expected
    assert killed_in_the_work >= KILLS // 4
