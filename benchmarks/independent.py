"""Retrieval scores on XQuAD, computed a second time and without this project's own code.

This file exists to check the numbers that `ccpretrieve` reports, so it imports nothing from it: it
reads the data folder with `json` and `gzip`, encodes with plain `transformers`, searches by one
matrix product, and scores with `pytrec_eval`.

    python -m benchmarks.independent --data DIR --encoder DIR --languages en ar ru th zh \
        [--pooled] [--vectors CACHE_DIR] --output scores.json

`DIR/<language>/` holds `collection/docs.jsonl.gz`, `topic.test.tsv` and `qrels.test.txt`. Without
`--pooled`, each language's questions search that language's passages. With it, they search one pool
of the passages of all the given languages, and every language is scored twice: `<language> same`
takes only the relevant passages in the question's own language for relevant, `<language> any` their
translations in every language of the pool as well.
"""

import argparse
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytrec_eval
import torch
from transformers import AutoModel, AutoTokenizer

Vectors = npt.NDArray[np.float32]
Qrels = dict[str, dict[str, int]]
Run = dict[str, dict[str, float]]

DEPTH = 100
MAX_TOKENS = 256
BATCH_SIZE = 16
MEASURES = {"mrr@100": "recip_rank", "recall@100": "recall_100", "ndcg@10": "ndcg_cut_10"}


def read_passages(folder: Path) -> dict[str, str]:
    """Read the passages of one language.

    Args:
        folder: The language's folder.

    Returns:
        The text that the encoder sees, by passage id.
    """
    passages = {}
    with gzip.open(folder / "collection" / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            title, text = record["contents"].split("\n\n", 1)
            passages[record["id"]] = f"passage: {title} {text}"
    return passages


def read_queries(folder: Path) -> dict[str, str]:
    """Read the questions of one language.

    Args:
        folder: The language's folder.

    Returns:
        The text that the encoder sees, by query id.
    """
    queries = {}
    with (folder / "topic.test.tsv").open(encoding="utf-8") as lines:
        for line in lines:
            query, question = line.rstrip("\n").split("\t", 1)
            queries[query] = f"query: {question}"
    return queries


def read_qrels(folder: Path) -> Qrels:
    """Read the judgements of one language.

    Args:
        folder: The language's folder.

    Returns:
        The grade, by query id and passage id.
    """
    qrels: Qrels = {}
    with (folder / "qrels.test.txt").open(encoding="utf-8") as lines:
        for line in lines:
            query, _, passage, grade = line.split()
            qrels.setdefault(query, {})[passage] = int(grade)
    return qrels


class Encoder:
    """A Hugging Face encoder that averages over the attention mask and keeps what it computed.

    Args:
        folder: The directory of the model and its tokenizer.
        cache: Where the vectors are kept, or None. A file's name tells the model's and the texts'
            digest, so that the vectors of another model or other texts are never taken for these.
    """

    def __init__(self, folder: Path, cache: Path | None) -> None:
        self.folder = folder
        self.cache = cache

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded when first needed."""
        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def model(self) -> Any:
        """The model, loaded when first needed."""
        return AutoModel.from_pretrained(self.folder, dtype=torch.float32).eval()

    @property
    def width(self) -> int:
        """The number of a vector's components."""
        return int(self.model.config.hidden_size)

    @cached_property
    def digest(self) -> str:
        """The digest of the model's files."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.iterdir()):
            if path.is_file():
                digest.update(path.name.encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def vectors(self, name: str, texts: Sequence[str]) -> Vectors:
        """Give the vectors of some texts, from the cache if they are there.

        Args:
            name: What the texts are, such as `en.queries`.
            texts: The texts.

        Returns:
            One row a text, in the order of the texts.
        """
        if self.cache is None:
            return self.encode(texts)
        key = hashlib.sha256(json.dumps([self.digest, *texts]).encode()).hexdigest()[:16]
        path = self.cache / f"{name}.{key}.npy"
        if path.exists():
            stored: Vectors = np.load(path)
            return stored
        vectors = self.encode(texts)
        self.cache.mkdir(parents=True, exist_ok=True)
        np.save(path, vectors)
        return vectors

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode some texts, the shortest first so that a batch has little padding.

        Args:
            texts: The texts.

        Returns:
            One row a text, in the order of the texts.
        """
        tokens = self.tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)["input_ids"]
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for rows in batches([len(ids) for ids in tokens]):
            padded = self.tokenizer.pad(
                {"input_ids": [tokens[row] for row in rows]}, return_tensors="pt"
            )
            vectors[rows] = self.pool(padded["input_ids"], padded["attention_mask"]).numpy()
        return vectors

    def pool(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Run the model on one batch.

        Args:
            ids: The token ids.
            mask: 1 where there is a token, 0 where there is padding.

        Returns:
            One vector of length 1 for each row.
        """
        hidden: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        unit: torch.Tensor = mean / mean.norm(dim=1, keepdim=True)
        return unit


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group rows of about the same length.

    Args:
        lengths: The length of each row.

    Yields:
        The numbers of the rows in each batch.
    """
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    for start in range(0, len(order), BATCH_SIZE):
        yield order[start : start + BATCH_SIZE]


def search(
    queries: Sequence[str], query_vectors: Vectors, passages: Sequence[str], vectors: Vectors
) -> Run:
    """Find the best passages of each query.

    Args:
        queries: The ids of the queries.
        query_vectors: Their vectors.
        passages: The ids of the passages.
        vectors: Their vectors.

    Returns:
        The scores, by query id and passage id; among equal scores the greater passage id wins.
    """
    descending = sorted(range(len(passages)), key=lambda row: passages[row], reverse=True)
    products = query_vectors @ vectors[descending].T
    best = np.argsort(-products, axis=1, kind="stable")[:, :DEPTH]
    return {
        query: {passages[descending[column]]: float(row[column]) for column in columns}
        for query, row, columns in zip(queries, products, best, strict=True)
    }


def means(qrels: Qrels, run: Run) -> dict[str, float]:
    """Score a run.

    Args:
        qrels: The judgements.
        run: The scores of the passages found.

    Returns:
        Each measure's mean over the topics of the judgements; a topic without an answer counts 0.
    """
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank", "recall.100", "ndcg_cut.10"})
    topics = evaluator.evaluate(run)
    return {
        name: sum(topic[measure] for topic in topics.values()) / len(qrels)
        for name, measure in MEASURES.items()
    }


def in_pool(qrels: Qrels, languages: Sequence[str]) -> Qrels:
    """Turn the judgements of one language into those of a pool.

    Args:
        qrels: The judgements.
        languages: The languages in which a relevant passage counts.

    Returns:
        The judgements with the passages named `<language>:<passage id>`.
    """
    return {
        query: {
            f"{language}:{passage}": grade
            for language in languages
            for passage, grade in judged.items()
        }
        for query, judged in qrels.items()
    }


def encode_texts(
    encoder: Encoder, name: str, texts: Mapping[str, str]
) -> tuple[list[str], Vectors]:
    """Encode named texts.

    Args:
        encoder: The encoder.
        name: What the texts are, such as `en.queries`.
        texts: The texts by id.

    Returns:
        The ids and, in their order, the vectors.
    """
    return list(texts), encoder.vectors(name, list(texts.values()))


def scores_by_language(
    data: Path, encoder: Encoder, languages: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Score each language's questions on its own passages.

    Args:
        data: The folder with one folder a language.
        encoder: The encoder.
        languages: The languages.

    Returns:
        The means of the measures by language.
    """
    table = {}
    for language in languages:
        folder = data / language
        passages = encode_texts(encoder, f"{language}.passages", read_passages(folder))
        queries = encode_texts(encoder, f"{language}.queries", read_queries(folder))
        table[language] = means(read_qrels(folder), search(*queries, *passages))
        print(language, table[language], flush=True)
    return table


def scores_in_pool(
    data: Path, encoder: Encoder, languages: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Score each language's questions on the passages of all the languages together.

    Args:
        data: The folder with one folder a language.
        encoder: The encoder.
        languages: The languages.

    Returns:
        The means of the measures by `<language> same` and `<language> any`.
    """
    names: list[str] = []
    parts = []
    for language in languages:
        texts = read_passages(data / language)
        ids, vectors = encode_texts(encoder, f"{language}.passages", texts)
        names += [f"{language}:{passage}" for passage in ids]
        parts.append(vectors)
    pool = np.concatenate(parts)
    table = {}
    for language in languages:
        folder = data / language
        queries = encode_texts(encoder, f"{language}.queries", read_queries(folder))
        run = search(*queries, names, pool)
        for relevant, counted in (("same", [language]), ("any", languages)):
            row = f"{language} {relevant}"
            table[row] = means(in_pool(read_qrels(folder), counted), run)
            print(row, table[row], flush=True)
    return table


def scores(
    data: Path,
    encoder: Path,
    languages: Sequence[str],
    *,
    pooled: bool = False,
    cache: Path | None = None,
) -> dict[str, dict[str, float]]:
    """Compute the retrieval scores.

    Args:
        data: The folder with one folder a language.
        encoder: The directory of the Hugging Face encoder.
        languages: The languages.
        pooled: Whether the passages of all the languages are searched together.
        cache: Where vectors are kept from one call to the next, or None.

    Returns:
        `mrr@100`, `recall@100` and `ndcg@10` by language, or, pooled, by `<language> same` and
        `<language> any`.
    """
    compute = scores_in_pool if pooled else scores_by_language
    return compute(data, Encoder(encoder, cache), languages)


def main() -> None:
    """Read the command line, compute the scores, and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.independent")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--languages", nargs="+", required=True)
    parser.add_argument("--pooled", action="store_true")
    parser.add_argument("--vectors", type=Path, help="where vectors are kept between calls")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = scores(
        options.data,
        options.encoder,
        options.languages,
        pooled=options.pooled,
        cache=options.vectors,
    )
    options.output.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
