"""SQuAD's JSON (XQuAD, JaQuAD) turned into a folder in Mr. TyDi's layout.

A paragraph becomes a passage ``<prefix><article>#<paragraph>``, both counted from 0, articles over
all files of one prefix; its contents are title, blank line, text. The titles of SQuAD, and so of
XQuAD, have underscores for spaces, which are put back; JaQuAD's are left as they are. A leading
U+FEFF, which a few paragraphs of XQuAD carry, is dropped. Question ids are the published ones, so
XQuAD's are the same in every language; a question's paragraph is its one relevant passage.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccpretrieve.data.sources import answers_name
from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic, make_directory, only_writer, read_json


@dataclass(frozen=True)
class Paragraph:
    """A passage and the questions asked about it.

    Attributes:
        id: ``<prefix><article>#<paragraph>``.
        title: Of the article.
        text: Of the paragraph.
        questions: (id, question, answers) each.
    """

    id: str
    title: str
    text: str
    questions: tuple[tuple[str, str, tuple[str, ...]], ...]


def convert(
    parts: Sequence[tuple[str, str, Path]],
    folder: Path,
    language: str,
    *,
    underscored: bool = False,
) -> None:
    """Write passages, topics, judgements and answers of files in SQuAD's JSON.

    Args:
        parts: (prefix of passage ids, split, file); files of one prefix count their articles on.
        folder: Gets ``collection/docs.jsonl.gz`` and for each split ``topic.<split>.tsv``,
            ``qrels.<split>.txt`` and answers.
        language: Code put beside each answer.
        underscored: Titles have underscores for spaces.

    Raises:
        UserError: If a file is not SQuAD's JSON, or the folder cannot be written.
    """
    make_directory(folder / "collection")
    with only_writer(folder, "converting"):
        read = list(_paragraphs(parts, underscored=underscored))
        for split in dict.fromkeys(split for split, _ in read):
            _write_split(folder, split, [item for of, item in read if of == split], language)
        passages = ({"id": item.id, "contents": f"{item.title}\n\n{item.text}"} for _, item in read)
        with (
            atomic(folder / "collection" / "docs.jsonl.gz") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream,
        ):
            stream.writelines(map(_line, passages))


def _write_split(folder: Path, split: str, paragraphs: list[Paragraph], language: str) -> None:
    asked = [(item, *question) for item in paragraphs for question in item.questions]
    _write(folder / f"topic.{split}.tsv", (f"{id_}\t{text}\n" for _, id_, text, _ in asked))
    _write(folder / f"qrels.{split}.txt", (f"{id_} Q0 {item.id} 1\n" for item, id_, _, _ in asked))
    answers = (
        {"id": id_, "lang": language, "question": text, "answers": list(strings)}
        for _, id_, text, strings in asked
    )
    with atomic(folder / answers_name(split)) as stream:
        stream.writelines(map(_line, answers))


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic(path) as stream:
        stream.writelines(line.encode() for line in lines)


def _line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()


def _paragraphs(
    parts: Sequence[tuple[str, str, Path]], *, underscored: bool
) -> Iterator[tuple[str, Paragraph]]:
    """Every paragraph with its split, in the order of the files."""
    counts: dict[str, int] = {}
    for prefix, split, path in parts:
        content = read_json(path)
        first = counts.get(prefix, 0)
        try:
            for number, article in enumerate(content["data"], first):
                title = article["title"].replace("_", " " if underscored else "_")
                for item in _article(article, f"{prefix}{number}", _clean(title)):
                    yield split, item
            counts[prefix] = first + len(content["data"])
        except (KeyError, TypeError, AttributeError) as error:
            message = f"{path}: not SQuAD's JSON: {type(error).__name__} {error}"
            raise UserError(f"{message}; fetch the file again") from error


def _article(article: dict[str, Any], name: str, title: str) -> Iterator[Paragraph]:
    for number, paragraph in enumerate(article["paragraphs"]):
        questions = tuple(
            (
                str(question["id"]),
                re.sub(r"[\t\r\n]+", " ", _clean(question["question"])),
                tuple(dict.fromkeys(answer["text"].strip() for answer in question["answers"])),
            )
            for question in paragraph["qas"]
        )
        yield Paragraph(f"{name}#{number}", title, _clean(paragraph["context"]), questions)


def _clean(text: str) -> str:
    return text.removeprefix("\ufeff").strip()
