"""A checkpoint whose vocabulary is cut to the text at hand, for machines of any size.

Most weights of a multilingual encoder are its table of word pieces (192 of the 278 million of XLM-R
base), of which the text of a few languages uses a part. :mod:`ccpretrieve.model.pieces` says which
pieces are kept and why the texts are cut exactly as before; here their rows are taken out of the
embeddings and of a language-model head (:mod:`ccpretrieve.model.part`), and all else stays bit for
bit.
"""

import contextlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ccpretrieve.errors import UserError
from ccpretrieve.model import part
from ccpretrieve.model.pieces import Pieces, Usage
from ccpretrieve.model.scratch import from_scratch
from ccpretrieve.model.settings import read_settings

__all__ = ["Trimmed", "from_scratch", "trim"]

#: One text in so many is held out to measure coverage; at most so many, and none longer than this.
_ONE_IN, _MOST_HELD, _LONGEST_HELD = 20, 2000, 10_000
#: Texts tokenised together.
_CHUNK = 1000
_FIRST = 200  # texts at the start that are compared after the cut, beside those held out


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What a trim kept, and how other text of the same kind would fare.

    One text in twenty is held out for the three shares: they are shares of its tokens, under the
    vocabulary that the other texts alone would leave. (The checkpoint keeps the pieces of all.)
    Sentences of one document fall on both sides, so text of another kind fares worse.

    Attributes:
        tokens_before: Pieces of the vocabulary before.
        tokens_kept: Pieces after.
        coverage: Held-out tokens whose piece is kept; None without twenty texts.
        unknown_before: Held-out tokens that are unknown to the whole vocabulary.
        unknown_after: Held-out tokens that are unknown to the cut one.
    """

    tokens_before: int
    tokens_kept: int
    coverage: float | None
    unknown_before: float | None
    unknown_after: float | None


def trim(
    source: Path,
    output: Path,
    texts: Iterable[str],
    *,
    layers: int | None = None,
    keep: int | None = None,
) -> Trimmed:
    """Write ``source`` with only the pieces that ``texts`` use.

    The texts, alone or behind the checkpoint's prefixes, get the same tokens and so the same
    vectors as before; of other text only the pieces left out differ. Texts are read once and not
    held, but for a sample of bounded size.

    Args:
        source: Checkpoint directory with a fast Unigram, WordPiece or BPE tokenizer.
        output: Directory to create; whole or absent.
        texts: The text that is to be encoded or trained on.
        layers: Keep the first N layers; all if None. Kinds with one more norm behind the last layer
            (ModernBERT) have it behind the N-th then.
        keep: Keep at most so many pieces, the most frequent: rarer words of the texts then fall
            into smaller pieces. All that the texts use if None.

    Raises:
        UserError: If the checkpoint cannot be read, is DPR's or two untied towers, or has a slow
            tokenizer; if ``layers`` or ``keep`` cannot be; if there is no text; if ``output``
            exists or cannot be written.
    """
    part.check_free(output)
    config = part.read_config(source, layers)
    if layers == config.num_hidden_layers:
        layers = None
    tokenizer = _read_tokenizer(source)
    prefixes = _prefixes(source)
    with _about(source):
        pieces = Pieces(tokenizer.backend_tokenizer)
    sample = _Sample()
    rest = _count(pieces, texts, prefixes, sample)
    held = pieces.count(sample.held)
    met = pieces.count(sample.behind(prefixes))  # once more, for what a prefix may change
    met.counts = np.minimum(met.counts, 1)
    met += rest
    met += held
    if not (rest.counts.any() or held.counts.any()):
        raise UserError(f"{source}: there is no text to trim its vocabulary to")
    named = part.named_ids(config, pieces.size) | pieces.count(prefixes).ids()
    with _about(source):
        kept = pieces.choose(met, named, keep)
    with part.created(output, "trimming") as partial:
        part.write(source, partial, config, kept, layers)
        part.write_tokenizer(source, partial, pieces.part(kept), kept)
        if keep is None:
            _compare(tokenizer, partial, kept, sample.behind(prefixes))
    shares = _shares(pieces, held, sample.held, pieces.choose(rest, named, keep))
    return Trimmed(len(tokenizer), len(kept), *shares)


@contextlib.contextmanager
def _about(source: Path) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _read_tokenizer(source: Path) -> Any:
    from transformers import AutoTokenizer

    from ccpretrieve.model.tower import quiet_transformers

    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{source}: its tokenizer cannot be loaded: {reason}") from error
    if not tokenizer.is_fast:
        raise UserError(f"{source}: its tokenizer is a slow one; trimming needs a tokenizer.json")
    return tokenizer


def _prefixes(source: Path) -> list[str]:
    """What is put before texts: nothing, and the prefixes of queries and passages."""
    stated, _ = read_settings(source, str(source))
    return sorted({"", stated.query_prefix, stated.passage_prefix})


class _Sample:
    """Texts held out evenly over a stream of unknown length, and the first ones of it.

    Attributes:
        held: Texts not to be counted with the others.
        first: Texts that are.
    """

    def __init__(self) -> None:
        self.held: list[str] = []
        self.first: list[str] = []
        self._seen = self._offered = 0
        self._random = random.Random(0)

    def pass_on(self, text: str) -> str | None:
        """Hold the text, or give back one that is not held out (any more)."""
        self._seen += 1
        if self._seen % _ONE_IN or len(text) > _LONGEST_HELD:
            if len(self.first) < _FIRST:
                self.first.append(text[:_LONGEST_HELD])
            return text
        self._offered += 1
        if len(self.held) < _MOST_HELD:
            self.held.append(text)
            return None
        slot = self._random.randrange(self._offered)
        if slot >= _MOST_HELD:
            return text
        self.held[slot], text = text, self.held[slot]
        return text

    def behind(self, prefixes: Sequence[str]) -> list[str]:
        """All its texts, each behind every prefix."""
        return [prefix + text for prefix in prefixes for text in (*self.first, *self.held)]


def _count(pieces: Pieces, texts: Iterable[str], prefixes: Sequence[str], sample: _Sample) -> Usage:
    """Count the pieces of all texts that are not held out.

    A prefix is counted with every text unless it stands apart: then the tokens of a text behind it
    are its own and those of the text, which the first thousand texts tell.
    """
    passed = (sample.pass_on(text) for text in texts)
    counted = (text for text in passed if text is not None)
    usage, joined = Usage(pieces.size), [""]
    for number, chunk in enumerate(iter(lambda: list(islice(counted, _CHUNK)), [])):
        if number == 0:
            joined = [prefix for prefix in prefixes if not pieces.stands_apart(prefix, chunk)]
            joined = sorted({"", *joined})
        for prefix in joined:
            usage += pieces.count([prefix + text for text in chunk])
    return usage


def _shares(
    pieces: Pieces, held: Usage, texts: Sequence[str], kept: Sequence[int]
) -> tuple[float | None, float | None, float | None]:
    """Coverage of held-out texts, and how much of them is unknown before and after."""
    from tokenizers import Tokenizer

    smaller = Pieces(Tokenizer.from_str(json.dumps(pieces.part(kept))))
    after = smaller.count(texts)
    return (
        held.share(kept),
        held.share([pieces.unknown] if pieces.unknown is not None else []),
        after.share([smaller.unknown] if smaller.unknown is not None else []),
    )


def _compare(tokenizer: Any, output: Path, kept: Sequence[int], texts: Sequence[str]) -> None:
    """Fail unless the checkpoint written cuts the sample as its source does."""
    rows = {old: new for new, old in enumerate(kept)}
    smaller = _read_tokenizer(output)
    for start in range(0, len(texts), _CHUNK):
        chunk = list(texts[start : start + _CHUNK])
        before, after = (each(chunk, verbose=False)["input_ids"] for each in (tokenizer, smaller))
        for text, old, new in zip(chunk, before, after, strict=True):
            if [rows.get(row) for row in old] != new:
                raise UserError(
                    f"{tokenizer.name_or_path}: its tokenizer cannot be trimmed: the smaller one "
                    f"would cut {text[:60]!r} in another way"
                )
