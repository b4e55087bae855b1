"""Fairseq's word pieces to a tokenizer: SentencePiece cuts, ``dict.txt`` numbers.

    row(piece) = line in dict.txt + 3, else that of <unk>;     text -> rows of its pieces, </s>

The two files need not agree. A row whose piece SentencePiece never cuts keeps its place; a piece
without a row gets one at the end, with the weights of ``<unk>``, since here a piece has one row.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ccpretrieve.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's rows 0 to 3
_UNKNOWN = SPECIAL.index("<unk>")
_UNIGRAM, _NORMAL, _USER_DEFINED, _BYTE = 1, 1, 4, 6  # of SentencePiece's format


@dataclass(frozen=True)
class Pieces:
    """Fairseq's rows, and SentencePiece's way to cut a text into them.

    Attributes:
        rows: Piece -> row, without the special ones.
        size: Rows, the special ones included.
        scores: Piece -> log probability, of all that SentencePiece may cut.
        charsmap: SentencePiece's normalisation, compiled.
    """

    rows: Mapping[str, int]
    size: int
    scores: Mapping[str, float]
    charsmap: bytes

    @classmethod
    def read(cls, dictionary: Path, model: Path) -> Self:
        """Read both files.

        Raises:
            UserError: If one is missing or broken, or cuts text in a way that is not implemented.
        """
        rows, size = read_dictionary(dictionary)
        scores, charsmap = read_sentencepiece(model)
        return cls(rows, size, scores, charsmap)

    @property
    def unknown(self) -> Sequence[str]:
        """Pieces that have no row."""
        return [piece for piece in self.scores if piece not in self.rows]

    def table(self, table: "Tensor", file: Path) -> "Tensor":
        """The rows of an embedding table that a text can have, then ``<unk>`` for each unknown.

        Raises:
            UserError: If it has fewer rows than ``dict.txt``.
        """
        import torch

        if len(table) < self.size:
            raise UserError(
                f"{file}: has {len(table)} word pieces, dict.txt and the special ones "
                f"make {self.size}; the two do not belong together"
            )
        return torch.cat([table[: self.size], table[_UNKNOWN].expand(len(self.unknown), -1)])

    def save_tokenizer(self, folder: Path, places: int) -> None:
        """Write ``tokenizer.json`` and what goes with it."""
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        end = SPECIAL[2]
        tokenizer = Tokenizer(models.Unigram(self._vocabulary(), unk_id=_UNKNOWN))
        if self.charsmap:
            tokenizer.normalizer = normalizers.Precompiled(self.charsmap)
        words = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, SPECIAL.index(end))]
        )
        tokenizer.add_special_tokens(list(SPECIAL))
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            model_max_length=places,
            model_input_names=["input_ids", "attention_mask"],
            bos_token=SPECIAL[0],
            pad_token=SPECIAL[1],
            eos_token=end,
            unk_token=SPECIAL[3],
        ).save_pretrained(folder)

    def _vocabulary(self) -> list[tuple[str, float]]:
        """All rows in order; one that no text can have has a name with a space, for that reason."""
        least = min(self.scores.values())
        named = {row: piece for piece, row in self.rows.items() if piece in self.scores}
        named |= dict(enumerate(SPECIAL)) | dict(enumerate(self.unknown, self.size))
        total = self.size + len(self.unknown)
        pieces = (named.get(row, f"<unused {row}>") for row in range(total))
        return [(piece, self.scores.get(piece, least)) for piece in pieces]


def read_dictionary(file: Path) -> tuple[dict[str, int], int]:
    """Rows of fairseq's ``dict.txt``, a piece and its count a line, and how many there are.

    Raises:
        UserError: If it is missing, or a line is something else.
    """
    rows: dict[str, int] = {}
    row = len(SPECIAL)
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                entry = line.rstrip("\n").removesuffix(" #fairseq:overwrite")
                piece, _, count = entry.rpartition(" ")
                if not piece or not count.isdecimal():
                    raise UserError(f"{file}:{number}: expected a word piece and its count")
                rows[piece] = row
                row += 1
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text at byte {error.start}") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error
    return rows, row


def read_sentencepiece(file: Path) -> tuple[dict[str, float], bytes]:
    """Log probabilities of the pieces of a SentencePiece model, and its compiled normalisation.

    Raises:
        UserError: If it is broken, or anything but a Unigram model that cuts words at spaces.
    """
    protobuf: Any = importlib.import_module("google.protobuf.message")
    layout: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = layout.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except protobuf.DecodeError as error:
        raise UserError(f"{file}: not a SentencePiece model") from error
    spaces = model.normalizer_spec
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}
    if (
        not scores
        or model.trainer_spec.model_type != _UNIGRAM
        or any(piece.type in (_USER_DEFINED, _BYTE) for piece in model.pieces)
        or not (spaces.add_dummy_prefix and spaces.remove_extra_whitespaces)
        or not spaces.escape_whitespaces
    ):
        raise UserError(f"{file}: not a SentencePiece model of mBART's kind (Unigram, no bytes)")
    return scores, spaces.precompiled_charsmap
