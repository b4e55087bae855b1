"""How well translations find each other, as training goes on: Tatoeba's task (section 4.2).

Sentences are embedded as the loss embeds them: last layer, its pooling, cosine. No parallel text
is learned from; it decides which state of the run is kept.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ccpretrieve.data.parallel import ParallelText, document_range, read_parallel
from ccpretrieve.errors import UserError
from ccpretrieve.model.encoder import batches
from ccpretrieve.retrieval.bitext import accuracy
from ccpretrieve.training.ccp import CcpModule

AVERAGE = "parallel_accuracy"
BATCH_TOKENS = 2048


class ParallelEvaluation:
    """Scores an encoder on parallel text.

    Args:
        texts: Pairs of sentences.
        tokenizer: Of the encoder.
        prefix: Put before every sentence.
        length: Tokens kept of a sentence.
        device: Where the encoder is.
    """

    def __init__(
        self,
        texts: Sequence[ParallelText],
        tokenizer: Any,
        *,
        prefix: str,
        length: int,
        device: torch.device,
    ) -> None:
        self.texts = texts
        self.tokenizer = tokenizer
        self.prefix = prefix
        self.length = length
        self.device = device

    def __call__(self, module: CcpModule) -> dict[str, float]:
        """Mean accuracy of both directions over the languages, then that of each."""
        sides = {id(side): side for text in self.texts for side in text.sides}
        vectors = {key: self._embed(module, side) for key, side in sides.items()}
        scores = {
            text.name: accuracy(*(vectors[id(side)] for side in text.sides)).mean
            for text in self.texts
        }
        return {AVERAGE: float(np.mean(list(scores.values())))} | {
            f"parallel/{name}": score for name, score in scores.items()
        }

    @torch.no_grad()
    def _embed(self, module: CcpModule, sentences: Iterable[str]) -> NDArray[np.float32]:
        """Shape ``(N, D)``."""
        texts = [self.prefix + sentence for sentence in sentences]
        ids = self.tokenizer(texts, truncation=True, max_length=self.length)["input_ids"]
        parts: list[Any] = [None] * len(ids)
        for rows in batches([len(each) for each in ids], BATCH_TOKENS):
            padded = self.tokenizer.pad(
                {"input_ids": [ids[row] for row in rows]}, return_tensors="pt"
            ).to(self.device)
            lengths = [len(ids[row]) for row in rows]
            h = module.embed(padded["input_ids"], padded["attention_mask"], lengths)
            for row, vector in zip(rows, h.float().cpu().numpy(), strict=True):
                parts[row] = vector
        return np.stack(parts)


def read_texts(folder: Path, languages: Sequence[str], documents: str | None) -> list[ParallelText]:
    """Open a folder of parallel text; nothing of the encoder is needed yet.

    Args:
        folder: See :func:`read_parallel`.
        languages: Those with English that are scored; all if empty.
        documents: Documents of each, such as 81-123, counted from 1; None for all.

    Raises:
        UserError: If there is no such text.
    """
    texts = read_parallel(folder, languages)
    try:
        numbers = document_range(documents)
        return texts if numbers is None else [text.part(numbers) for text in texts]
    except UserError as error:
        raise UserError(f"--eval-documents {documents}: {error}") from error
