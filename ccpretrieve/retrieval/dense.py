"""Search an embedding index with topics, in the way BM25 is searched (:mod:`.bm25`).

topics --Encoder--> vectors --Index--> topic id -> passage id -> inner product
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.records import Topic
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.faiss_index import Index, reason
from ccpretrieve.retrieval.meta import open_encoder
from ccpretrieve.retrieval.runfile import Run

_BLOCK = 1 << 16  # ids that are looked through together


def open_index(
    folder: Path, encoder: str | None, *, calibration: Path | None = None, **options: Any
) -> Index:
    """Open an index with the encoder that made it.

    Args:
        folder: The index.
        encoder: Checkpoint, if it is not where the index says or the index says nothing.
        calibration: Calibration file, if it is not where the index says.
        **options: ``device``, ``dtype`` and ``batch_tokens`` of the encoder.

    Raises:
        UserError: If it is no index, or its encoder cannot be had or is another one.
    """
    index = Index.load(folder)  # before the weights: what is wrong with it is said at once
    index.encoder = open_encoder(folder, encoder, calibration=calibration, **options)
    return index


class Dense:
    """An index that is searched with topics.

    Args:
        index: The open index.
        language: Of the questions that do not state their own, for a calibration.

    Attributes:
        truncated: Questions so far that lost their end.
    """

    def __init__(self, index: Index, language: str = "") -> None:
        self.index = index
        self.language = language
        self.truncated = 0

    @property
    def meta(self) -> Mapping[str, Any] | None:
        """What the index says of itself; None if Pyserini wrote it."""
        meta: Mapping[str, Any] | None = self.index.meta
        return meta

    def search(self, topics: Sequence[Topic], hits: int) -> Run:
        """Find passages for questions: topic id -> passage id -> score, the best first.

        Args:
            topics: The questions, each id once.
            hits: Most passages a question.
        """
        found = self.index.rank(self._vectors(topics), hits)
        return {topic.id: scores for topic, scores in zip(topics, found, strict=True)}

    def scores(self, topics: Sequence[Topic], wanted: Mapping[str, Collection[str]]) -> Run:
        """The scores of given passages, wherever they rank, as the index holds them.

        Args:
            topics: The questions.
            wanted: Topic id -> passage ids.

        Returns:
            Topic id -> passage id -> score; none where there is no such passage.

        Raises:
            UserError: If the index cannot give its vectors back.
        """
        rows = self.rows({passage for topic in topics for passage in wanted[topic.id]})
        held = dict(zip(rows, self._held(list(rows.values())), strict=True))
        return {
            topic.id: {
                passage: float(vector @ held[passage])
                for passage in wanted[topic.id]
                if passage in held
            }
            for topic, vector in zip(topics, self._vectors(topics), strict=True)
        }

    def _vectors(self, topics: Sequence[Topic]) -> NDArray[np.float32]:
        spoken = [topic.language or self.language for topic in topics]
        questions = [topic.text for topic in topics]
        encoded = self.index.encoder.embed_queries(questions, language=spoken)
        self.truncated += encoded.truncated
        return encoded.vectors

    def rows(self, passages: Collection[str]) -> dict[str, int]:
        """Where passages are in the index; reads its ids once."""
        docids = self.index.docids
        return {
            docid: start + place
            for start in range(0, len(docids), _BLOCK)
            for place, docid in enumerate(docids[start : start + _BLOCK])
            if docid in passages
        }

    def _held(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """The vectors of rows, as good as this kind of index keeps them."""
        import faiss

        try:
            if (lists := faiss.try_extract_index_ivf(self.index.faiss)) is not None:
                lists.make_direct_map()
            vectors: NDArray[np.float32] = self.index.faiss.reconstruct_batch(
                np.asarray(rows, dtype=np.int64)
            )
        except RuntimeError as error:
            raise UserError(
                f"{self.index.path}: this kind of index keeps no vectors ({reason(error)}); "
                "mine from a flat one"
            ) from error
        return vectors
