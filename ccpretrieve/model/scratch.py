"""An encoder from nothing: a tokenizer learned from the texts, and XLM-R with random weights.

The tokenizer is made as XLM-R's was: SentencePiece's Unigram, text normalised by NFKC without
control characters, words split at spaces, ``<s> text </s>``, special pieces first and ``<mask>``
last. One thing differs, because vocabularies here are small: XLM-R makes a character unknown that
is not among the 99.95 per cent most frequent; here such a character falls into its UTF-8 bytes,
256 pieces of their own, and nothing is ever unknown. Characters take half of the vocabulary at
most, so that in Chinese or Japanese there is room for words.

Equal texts, sizes and seed give an equal checkpoint: SentencePiece's own sampling and its number
of threads, which changes the last digit of a score, are kept out of it.
"""

import heapq
import io
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ccpretrieve.errors import UserError
from ccpretrieve.model.part import created
from ccpretrieve.model.settings import EncoderSettings, write_settings
from ccpretrieve.training_config import LEAST_VOCABULARY

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

#: Share of the characters of a text that have pieces of their own, as in XLM-R.
_COVERAGE = 0.9995
#: Characters of text that the tokenizer is learned from; a sample where there are more.
_MOST_CHARACTERS = 20_000_000
#: So low that a text that says "<0x41>" is cut into its characters rather than taken for the byte.
_BYTE_SCORE = -1000.0
_THREADS = 4  # whatever the machine: see above


def from_scratch(
    output: Path,
    texts: Iterable[str],
    *,
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    positions: int,
    seed: int,
) -> Path:
    """Learn a Unigram tokenizer from ``texts``; save it with a random XLM-R as a checkpoint.

    Args:
        output: Directory to create; whole or absent.
        texts: What the tokenizer learns its pieces from; read once, and of more than 20 million
            characters a random sample.
        vocabulary: Pieces, special ones and 256 bytes included; fewer where the texts have not as
            many.
        width: D; a multiple of ``heads``.
        layers: Transformer layers.
        heads: Attention heads of a layer.
        positions: Longest input in tokens.
        seed: Of the sample and the weights.

    Returns:
        ``output``: weights of the language-model head included, settings the defaults.

    Raises:
        UserError: If the sizes do not fit together, there is no text, or ``output`` exists or
            cannot be written.
    """
    if vocabulary < LEAST_VOCABULARY:
        raise UserError(
            f"a vocabulary of {vocabulary} is too small; 256 bytes, 5 special pieces and a letter "
            f"make {LEAST_VOCABULARY}"
        )
    if width % heads:
        raise UserError(f"a width of {width} is not a multiple of {heads} heads")
    with created(output, "making an encoder") as partial:
        size = _write_tokenizer(partial, _sample(texts, seed), vocabulary, positions)
        save_random_xlmr(
            partial,
            pieces=size,
            width=width,
            inner=4 * width,
            layers=layers,
            heads=heads,
            positions=positions,
            seed=seed,
            lm_head=True,
        )
        length = min(EncoderSettings.passage_length, positions)
        write_settings(partial, EncoderSettings(query_length=length, passage_length=length))
    return output


def _sample(texts: Iterable[str], seed: int) -> list[str]:
    """Texts of so many characters at most, each as likely as any other, in their order."""
    draw = random.Random(seed)
    heap: list[tuple[float, int, str]] = []  # the text that is next to go comes first
    size = 0
    for number, text in enumerate(texts):
        heapq.heappush(heap, (draw.random(), number, text))
        size += len(text)
        while size > _MOST_CHARACTERS and len(heap) > 1:
            size -= len(heapq.heappop(heap)[2])
    return [text for _, _, text in sorted(heap, key=lambda item: item[1])]


def _normalizer() -> Any:
    """Control characters out, every kind of space to a space, NFKC."""
    from tokenizers import normalizers

    return normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])


def _learn(texts: list[str], vocabulary: int) -> list[tuple[str, float]]:
    """Pieces with their log probabilities, the likeliest first, without special ones and bytes.

    No piece is called as one of those: SentencePiece never joins letters with signs or digits.

    Raises:
        UserError: If there is no text.
    """
    import sentencepiece

    normalize = _normalizer().normalize_str
    texts = [normalize(text.replace("\0", " ").replace("▁", " ")) for text in texts]
    counts = Counter(character for text in texts for character in text if not character.isspace())
    if not counts:
        raise UserError("there is no text to learn a vocabulary from")
    rare = dict.fromkeys(map(ord, _rare(counts, (vocabulary - LEAST_VOCABULARY) // 2)), " ")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(text.translate(rare).split()) for text in texts),
        model_writer=model,
        model_type="unigram",
        vocab_size=vocabulary - 258,  # it knows neither bytes nor <pad> nor <mask>
        hard_vocab_limit=False,
        character_coverage=1.0,  # rare ones are gone
        normalization_rule_name="identity",
        max_sentence_length=4 * _MOST_CHARACTERS,  # in bytes; a longer one is left out unsaid
        num_threads=_THREADS,
        minloglevel=2,
    )
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = range(3, learned.get_piece_size())  # behind <unk>, <s> and </s>
    return [(learned.id_to_piece(row), learned.get_score(row)) for row in rows]


def _rare(counts: Counter[str], most: int) -> list[str]:
    """Characters beyond the share that is covered, or beyond the ``most`` frequent."""
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    covered = np.cumsum([counts[character] for character in ranked]) / counts.total()
    enough = 1 + int(np.searchsorted(covered, _COVERAGE))
    return ranked[max(1, min(most, enough)) :]


def _write_tokenizer(path: Path, texts: list[str], vocabulary: int, positions: int) -> int:
    """Learn and write the tokenizer; return how many pieces it has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    own = [(f"<0x{byte:02X}>", _BYTE_SCORE) for byte in range(256)]
    special = [(name, 0.0) for name in SPECIAL]
    pieces = [*special[:4], *_learn(texts, vocabulary), *own, *special[4:]]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=True))
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]
    )
    save_tokenizer(path, tokenizer, positions)
    return len(pieces)


def save_tokenizer(path: Path, tokenizer: Any, positions: int) -> None:
    """Save a tokenizer that has the special pieces, as RoBERTa's kinds use them.

    Args:
        path: Folder of the checkpoint.
        tokenizer: One of the tokenizers library.
        positions: Longest input in tokens.
    """
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    start, pad, end, unknown, mask = SPECIAL
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {end} $B {end}",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (start, end)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        bos_token=start,
        cls_token=start,
        eos_token=end,
        sep_token=end,
        pad_token=pad,
        unk_token=unknown,
        mask_token=mask,
    ).save_pretrained(path)


def save_random_xlmr(
    path: Path,
    *,
    pieces: int,
    width: int,
    inner: int,
    layers: int,
    heads: int,
    positions: int,
    seed: int,
    lm_head: bool,
) -> None:
    """Save XLM-R with random weights.

    Args:
        path: Folder of the checkpoint.
        pieces: V, of its tokenizer.
        width: D.
        inner: Width of the feed-forward layers.
        layers: Transformer layers.
        heads: Attention heads of a layer.
        positions: Longest input in tokens.
        seed: Of the weights; torch's global generator stays as it was.
        lm_head: Whether the head of masked language modelling is part of it.
    """
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM, XLMRobertaModel

    from ccpretrieve.model.tower import quiet_transformers

    config = XLMRobertaConfig(
        vocab_size=pieces,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=positions + 2,  # rows before the first position: pad + 1
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bare = {} if lm_head else {"add_pooling_layer": False}
        model = (XLMRobertaForMaskedLM if lm_head else XLMRobertaModel)(config, **bare)
    with quiet_transformers():
        model.save_pretrained(path)
