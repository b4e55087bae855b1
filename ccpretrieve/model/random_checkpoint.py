"""A tiny XLM-R with random weights and a real tokenizer: plumbing without a download.

Its vectors mean nothing beyond shared word pieces. Tests and the demo ask for it by name; no
command falls back on it.
"""

from collections.abc import Iterable
from pathlib import Path

from ccpretrieve.model.settings import EncoderSettings, write_settings

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


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
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaModel

    from ccpretrieve.model.tower import quiet_transformers

    path.mkdir(parents=True, exist_ok=True)
    size = _save_tokenizer(path, texts, vocabulary, positions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = XLMRobertaModel(
            XLMRobertaConfig(
                vocab_size=size,
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=4,
                intermediate_size=2 * width,
                max_position_embeddings=positions + 2,  # rows before the first position: pad + 1
                pad_token_id=1,
                bos_token_id=0,
                eos_token_id=2,
            ),
            add_pooling_layer=False,
        )
    with quiet_transformers():
        model.save_pretrained(path)
    write_settings(path, settings or EncoderSettings())
    return path


def _save_tokenizer(path: Path, texts: Iterable[str], vocabulary: int, positions: int) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=positions,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )
    wrapped.save_pretrained(path)
    return int(tokenizer.get_vocab_size())
