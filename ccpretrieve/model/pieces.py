"""The pieces of a fast tokenizer: which of them texts use, and a tokenizer with only a part.

A text is cut by the smaller tokenizer exactly as by the whole one, if the part holds

* the pieces that the text uses, and all special and added ones;
* Unigram: the piece of the lowest score. The best path goes over used pieces only, and a path that
  is taken away was never better; but the price of an unknown character is made from that score;
* WordPiece (longest match first): the pieces that a word passes before it turns out to be unknown,
  or a shorter match might lead it past that place;
* BPE: the pieces that a used one is merged from. A merge stays where its three pieces do, so every
  merge that was made can still be made, and it is still the first in rank of those possible.

Beside these, the single characters of used pieces are kept, and all bytes where the tokenizer has
them: other text then falls into smaller pieces rather than unknown ones.
"""

import copy
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.errors import UserError

JSON = dict[str, Any]

_KINDS = ("Unigram", "WordPiece", "BPE")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
#: Texts tokenised by one call.
_CHUNK = 1000


class Usage:
    """How often each piece was used.

    Attributes:
        counts: Shape ``(V,)``, int64.
        passed: Ids that an unknown word passed on its way (WordPiece only).
    """

    def __init__(self, size: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros(size, dtype=np.int64)
        self.passed: set[int] = set()

    def __iadd__(self, other: Self) -> Self:
        self.counts += other.counts
        self.passed |= other.passed
        return self

    def ids(self) -> set[int]:
        """Ids that were used."""
        return set(np.flatnonzero(self.counts).tolist())

    def share(self, ids: Sequence[int]) -> float | None:
        """Share of all uses that are of these pieces; None if there was no use."""
        total = int(self.counts.sum())
        return float(self.counts[list(ids)].sum() / total) if total else None


class Pieces:
    """The pieces of a fast tokenizer.

    Args:
        tokenizer: One of the tokenizers library; its truncation and padding are put off.

    Attributes:
        kind: Unigram, WordPiece or BPE.
        size: V, one more than the highest id.
        unknown: Id of the unknown piece; None if nothing is ever unknown.
        fixed: Ids that every part holds: special and added ones, bytes, Unigram's lowest score.

    Raises:
        UserError: If it is of none of the three kinds.
    """

    def __init__(self, tokenizer: Any) -> None:
        spec = json.loads(tokenizer.to_str())
        self._spec: JSON = spec
        self._model: JSON = spec["model"]
        self.kind = str(self._model.get("type"))
        if self.kind not in _KINDS:
            raise UserError(f"a {self.kind} tokenizer cannot be trimmed; {', '.join(_KINDS)} can")
        vocabulary = self._model["vocab"]
        self._ids: dict[str, int] = (
            {piece: row for row, (piece, _) in enumerate(vocabulary)}
            if self.kind == "Unigram"
            else dict(vocabulary)
        )
        added = {token["content"]: token["id"] for token in spec["added_tokens"]}
        self._names = {row: piece for piece, row in (self._ids | added).items()}
        self.size = max(self._names) + 1
        self.unknown = self._unknown()
        self.fixed = self._fixed() | set(added.values())
        self._prefix = self._model.get("continuing_subword_prefix") or ""
        self._ranks = _ranks(self._model)
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def _unknown(self) -> int | None:
        if self.kind == "Unigram":
            row: int | None = self._model["unk_id"]
            return row
        return self._ids.get(self._model.get("unk_token") or "")

    def _fixed(self) -> set[int]:
        rows = set(_ids_of(self._spec["post_processor"]))
        if self._spec["padding"]:
            rows.add(self._spec["padding"]["pad_id"])
        if self.unknown is not None:
            rows.add(self.unknown)
        if self.kind == "Unigram":
            scores = [score for _, score in self._model["vocab"]]
            rows.add(int(np.argmin(scores)))
        if self._model.get("byte_fallback"):
            rows |= {row for piece, row in self._ids.items() if _BYTE.fullmatch(piece)}
        if "ByteLevel" in json.dumps([self._spec["normalizer"], self._spec["pre_tokenizer"]]):
            from tokenizers.pre_tokenizers import ByteLevel

            rows |= {self._ids[byte] for byte in ByteLevel.alphabet() if byte in self._ids}
        return rows

    def count(self, texts: Sequence[str]) -> Usage:
        """Count the pieces that texts are cut into, without special ones around them."""
        usage = Usage(self.size)
        for start in range(0, len(texts), _CHUNK):
            chunk = list(texts[start : start + _CHUNK])
            rows = [item.ids for item in self._tokenizer.encode_batch(chunk, False, False)]
            flat = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64)
            usage.counts += np.bincount(flat, minlength=self.size)
            if self.kind == "WordPiece":
                for text, ids in zip(chunk, rows, strict=True):
                    if self.unknown in ids:
                        usage.passed |= self._passed(text)
        return usage

    def stands_apart(self, prefix: str, texts: Sequence[str]) -> bool:
        """Whether each text behind a prefix is cut into the prefix' pieces and its own."""
        alone = self._tokenizer.encode_batch(list(texts), False, False)
        behind = self._tokenizer.encode_batch([prefix + text for text in texts], False, False)
        own = self._tokenizer.encode(prefix, None, False, False).ids
        return all(own + one.ids == other.ids for one, other in zip(alone, behind, strict=True))

    def _passed(self, text: str) -> set[int]:
        """Ids of the pieces that the words of a text pass, and of their characters."""
        normalizer, words = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = normalizer.normalize_str(text) if normalizer else text
        rows: set[int] = set()
        for word, _ in words.pre_tokenize_str(text) if words else [(text, (0, 0))]:
            rows |= {self._ids[piece] for piece in self._matches(word)} | self._characters(word)
        return rows

    def _matches(self, word: str) -> Iterator[str]:
        """WordPiece: the longest match at each place, up to the first place without one."""
        start = 0
        while start < len(word) <= self._model["max_input_chars_per_word"]:
            lead = self._prefix if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if lead + word[start:end] in self._ids), None)
            if end is None:
                return
            yield lead + word[start:end]
            start = end

    def _characters(self, piece: str) -> set[int]:
        """Ids of the characters of a piece, at the start of a word and inside it."""
        if self.kind == "BPE":
            symbols = set(self._symbols(piece))
        else:
            plain = piece.removeprefix(self._prefix)
            symbols = {*plain, *(self._prefix + character for character in plain)}
        return {self._ids[symbol] for symbol in symbols if symbol in self._ids}

    def _symbols(self, piece: str) -> list[str]:
        """BPE: what a piece is merged from, each character with its prefix or suffix."""
        suffix = self._model.get("end_of_word_suffix") or ""
        inside = bool(self._prefix) and piece.startswith(self._prefix)
        ends = bool(suffix) and piece.endswith(suffix)
        plain = piece[len(self._prefix) * inside : len(piece) - len(suffix) * ends]
        symbols = [self._prefix * (inside or at > 0) + c for at, c in enumerate(plain)]
        if ends and symbols:
            symbols[-1] += suffix
        return symbols

    def _merged_from(self, piece: str) -> set[int]:
        """BPE: ids of all pieces on the way from the characters of a piece to itself."""
        symbols = self._symbols(piece)
        seen = set(symbols)
        while len(symbols) > 1:
            ranks = [self._ranks.get(pair, math.inf) for pair in itertools.pairwise(symbols)]
            rank = min(ranks)
            if rank == math.inf:
                break
            at = ranks.index(rank)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1][len(self._prefix) :]]
            seen.add(symbols[at])
        return {self._ids[symbol] for symbol in seen if symbol in self._ids}

    def choose(self, usage: Usage, also: set[int], most: int | None = None) -> list[int]:
        """The ids to keep, in rising order.

        Args:
            usage: What the texts use; all of it is kept if ``most`` is None.
            also: Ids kept in any case, beside ``fixed``.
            most: How many ids to keep at most: ``fixed``, ``also`` and all characters of the
                texts, then the most frequent pieces that still fit with what they are merged
                from.

        Raises:
            UserError: If ``most`` is fewer than what must be kept.
        """
        kept = self.fixed | also
        order = np.argsort(-usage.counts, kind="stable")
        used = [int(row) for row in order[: np.count_nonzero(usage.counts)]]
        used = [row for row in used if row not in self.fixed]
        for row in used:
            kept |= self._characters(self._names[row])
        if most is None:
            kept |= usage.passed
        elif len(kept) > most:
            raise UserError(
                f"{most} pieces are fewer than the {len(kept)} special ones and characters of the "
                f"texts; keep at least {len(kept)}"
            )
        for row in used:
            group = {row} | (self._merged_from(self._names[row]) if self.kind == "BPE" else set())
            if most is None or len(kept) + len(group - kept) <= most:
                kept |= group
        return sorted(kept)

    def part(self, kept: Sequence[int]) -> JSON:
        """The tokenizer that has only the pieces ``kept``, numbered from 0 in that order."""
        rows = {old: new for new, old in enumerate(kept)}
        names = {self._names[row] for row in kept if row in self._names}
        spec = copy.deepcopy({**self._spec, "model": None})
        model = {name: value for name, value in self._model.items() if name != "vocab"}
        if self.kind == "Unigram":
            whole = self._model["vocab"]
            model["vocab"] = [whole[row] for row in kept if row < len(whole)]
            model["unk_id"] = None if self.unknown is None else rows[self.unknown]
        else:
            model["vocab"] = {piece: rows[row] for piece, row in self._ids.items() if row in rows}
        if self.kind == "BPE":
            cut = len(self._prefix)
            model["merges"] = [
                pair
                for pair in (_pair(merge) for merge in self._model["merges"])
                if {*pair, pair[0] + pair[1][cut:]} <= names
            ]
        spec["model"] = model
        for token in spec["added_tokens"]:
            token["id"] = rows[token["id"]]
        _renumber(spec["post_processor"], rows.__getitem__)
        if spec["padding"]:
            spec["padding"]["pad_id"] = rows[spec["padding"]["pad_id"]]
        return spec


def _pair(merge: Any) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def _ranks(model: JSON) -> dict[tuple[str, ...], int]:
    return {tuple(_pair(merge)): rank for rank, merge in enumerate(model.get("merges", []))}


def _ids_of(processor: Any) -> list[int]:
    """All ids that a post-processor puts around a text."""
    found: list[int] = []

    def note(row: int) -> int:
        found.append(row)
        return row

    _renumber(copy.deepcopy(processor), note)
    return found


def _renumber(node: Any, change: Callable[[int], int]) -> None:
    """Change in place every id in a post-processor: those of templates, and BERT's own kind."""
    if isinstance(node, list):
        for item in node:
            _renumber(item, change)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key == "ids":
            node[key] = [change(row) for row in value]
        elif key in ("sep", "cls"):
            node[key] = [value[0], change(value[1])]
        else:
            _renumber(value, change)
