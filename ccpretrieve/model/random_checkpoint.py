"""A tiny XLM-R with random weights and a real tokenizer: plumbing without a download.

Its vectors mean nothing beyond shared word pieces. Tests and the demo ask for it by name; no
command falls back on it.
"""

from collections.abc import Iterable
from pathlib import Path

from ccpretrieve.model.scratch import SPECIAL, save_random_xlmr, save_tokenizer
from ccpretrieve.model.settings import EncoderSettings, write_settings


def build(
    path: Path,
    texts: Iterable[str],
    *,
    settings: EncoderSettings | None = None,
    vocabulary: int = 2000,
    width: int = 32,
    layers: int = 2,
    positions: int = 512,
    seed: int = 0,
) -> Path:
    """Train a byte-level BPE tokenizer on ``texts``; save it with random weights as a checkpoint.

    Args:
        path: Directory to create.
        texts: What the tokenizer learns its pieces from.
        settings: Written beside the weights; the defaults of the class if None.
        vocabulary: Most pieces; never fewer than the 256 bytes and 5 special ones.
        width: D; a multiple of 4.
        layers: Transformer layers.
        positions: Longest input in tokens.
        seed: Of the weights.

    Returns:
        ``path``.
    """
    path.mkdir(parents=True, exist_ok=True)
    size = _save_tokenizer(path, texts, vocabulary, positions)
    save_random_xlmr(
        path,
        pieces=size,
        width=width,
        inner=2 * width,
        layers=layers,
        heads=4,
        positions=positions,
        seed=seed,
        lm_head=False,
    )
    write_settings(path, settings or EncoderSettings())
    return path


def _save_tokenizer(path: Path, texts: Iterable[str], vocabulary: int, positions: int) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    save_tokenizer(path, tokenizer, positions)
    return int(tokenizer.get_vocab_size())
