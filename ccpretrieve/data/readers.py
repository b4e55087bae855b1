"""Readers of what corpora are made of: passages, topics, judgements, answers.

Each reader streams a file line by line and says ``file:line: what is wrong; what is needed``. Text
is passed on as it is, odd spaces and unnormalised letters included; only CRLF becomes LF.
"""

import ast
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ccpretrieve.data.lines import MalformedError, parsed
from ccpretrieve.data.records import Passage, Question, Record, Topic
from ccpretrieve.errors import UserError

JSON_SUFFIXES = (".jsonl", ".json")
TSV_SUFFIXES = (".tsv",)
ID_NAMES = ("id", "docid", "_id")
QUESTION_NAMES = ("question", "query", "text")
ANSWER_NAMES = ("answers", "answer")
#: What the columns of a TSV are called in a header line, beside the names above.
ALSO_IDS = (
    "doc_id",
    "did",
    "pid",
    "passage_id",
    "qid",
    "query_id",
    "query-id",
    "topic",
    "topic_id",
)
ALSO_TEXT = ("contents", "passage", "body")

GRADE = re.compile(r"[+-]?[0-9]{1,9}")
#: ``json.loads`` without its search for white space, which takes half of a short line's time.
PARSE = json.JSONDecoder().raw_decode
#: A field in csv's double quotes, or any other; possessive, so that stray quotes cost no time.
FIELD = re.compile(r'"((?:[^"]++|"")*+)"(?=\t|$)|([^\t]*+)(?=\t|$)')


def suffix(path: Path) -> str:
    """The suffix that tells a file's format, ``.gz`` aside: ``.jsonl`` of ``docs.jsonl.gz``."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


# -- passages --


def read_passages(path: Path) -> Iterator[Record]:
    """Stream the passages of one file.

    Args:
        path: JSON lines (``.jsonl``, ``.json``) as :func:`to_passage` takes them, or ``.tsv`` lines
            ``id<TAB>text[<TAB>title]``, with or without a header that names the columns; ``.gz`` of
            either.

    Raises:
        UserError: Naming file and line, if it cannot be read or a passage is malformed.
    """
    parse: Callable[[str], Passage | None]
    if suffix(path) in JSON_SUFFIXES:
        parse = _passage_of_json
    elif suffix(path) in TSV_SUFFIXES:
        parse = _Tsv()
    else:
        raise UserError(f"{path}: unknown format; name it .jsonl, .json or .tsv (.gz of either)")
    source = str(path)
    for number, passage in parsed(path, parse, "passages"):
        yield Record(passage, source, number)


def to_passage(record: Mapping[str, Any]) -> Passage:
    """Make a passage of a record in either schema.

    Args:
        record: ``{"id", "contents"}``, where contents is the title, a blank line and the text (all
            of it is the text if there is no blank line), or ``{"docid", "text"[, "title"]}``; the
            id may be called id, docid or _id. A ``lang`` may tag either.

    Raises:
        MalformedError: If a field is missing or is not what it should be.
    """
    identifier = to_id(_first(record, ID_NAMES))
    text, title, tag = record.get("text"), record.get("title"), _tag(record)
    if text is None:
        contents = _string("contents", record.get("contents"))
        title, blank_line, text = contents.partition("\n\n")
        if not blank_line:
            title, text = "", contents
        return Passage(identifier, text, title, tag)
    title = _string("title", "" if title is None else title)
    return Passage(identifier, _string("text", text), title, tag)


def _tag(record: Mapping[str, Any]) -> str:
    """The language that a record states, ``""`` if none."""
    tag = record.get("lang") or ""
    if not isinstance(tag, str):
        raise MalformedError(f'"lang" {tag!r} is not a string; a code such as "ja" is needed')
    return tag


def to_id(value: object) -> str:
    """Check that a value can be an id; whole numbers become strings.

    Raises:
        MalformedError: If it is missing, empty, no string, or holds white space.
    """
    if value is None:
        raise MalformedError('no id; an "id" (or "docid") is needed')
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise MalformedError(f"id {value!r} is not a string; write it in quotes")
    if value.split() != [value]:
        if not value:
            raise MalformedError("the id is empty; give every one its own")
        raise MalformedError(
            f"id {value!r} holds white space, which a TREC run cannot carry; replace it, by _ say"
        )
    if any(unicodedata.category(character) == "Cc" for character in value):
        raise MalformedError(f"id {value!r} holds a control character; leave it out")
    return value


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first of several fields that is there."""
    for name in names:
        if (value := record.get(name)) is not None:
            return value
    return None


def _string(name: str, value: object) -> str:
    """A field that must be a string, CRLF read as LF."""
    if value is None:
        raise MalformedError('no text; "contents", or "text" and "title", are needed')
    if not isinstance(value, str):
        raise MalformedError(f'"{name}" is of type {type(value).__name__}; a string is needed')
    return value.replace("\r\n", "\n") if "\r" in value else value


def parse_object(line: str) -> dict[str, Any]:
    """One line of JSON."""
    line = line.strip()
    try:
        value, end = PARSE(line)
        if end != len(line):
            raise json.JSONDecodeError("more after the end", line, end)
        if "\\ud" in line or "\\uD" in line:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise MalformedError(
            f"not JSON at column {error.colno} ({error.msg}); each line must be one whole object"
        ) from error
    except UnicodeEncodeError as error:
        raise MalformedError(
            "a \\ud... escape is half a character; write the other half too"
        ) from error
    except (RecursionError, ValueError) as error:
        raise MalformedError(f"JSON that cannot be read ({error}); simplify the line") from error
    if not isinstance(value, dict):
        raise MalformedError(
            f"JSON of type {type(value).__name__}, not an object; each line must be one {{...}}"
        )
    return value


def _passage_of_json(line: str) -> Passage:
    return to_passage(parse_object(line))


class _Tsv:
    """Parses the lines of one TSV file of passages.

    Fields may be quoted as csv does it; a quote that is not closed in its line is taken as text.
    """

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()  # names, once the first line is seen
        self.open_quote = False  # on the line before

    def __call__(self, line: str) -> Passage | None:
        fields = split_tsv(line)
        if not self.columns:
            self.columns = ("id", "text", "title")
            names = tuple(_column(field) for field in fields)
            if {"id", "text"} <= set(names) <= set(self.columns) and len(set(names)) == len(names):
                self.columns = names
                return None
        continued, self.open_quote = self.open_quote, _opens_a_quote(fields[-1])
        try:
            if continued and fields[0].endswith('"'):
                raise MalformedError("not a passage")
            if not 2 <= len(fields) <= len(self.columns):
                needed = "<TAB>".join(self.columns)
                raise MalformedError(f"{len(fields)} tab-separated fields; {needed} is needed")
            return to_passage(dict(zip(self.columns, fields, strict=False)))
        except MalformedError as error:
            hint = "; the line before leaves a quote open: put each passage on one line"
            raise MalformedError(f"{error}{hint if continued else ''}") from None


def _column(field: str) -> str:
    """What a header calls a column, in our words."""
    name = field.strip().lower()
    if name in (*ID_NAMES, *ALSO_IDS):
        return "id"
    return "text" if name in ALSO_TEXT else name


def split_tsv(line: str) -> list[str]:
    r"""Split a line at tabs, undoing csv's double quotes around a field where they are whole.

    >>> split_tsv('7\t"a ""big"" one"\t"Who" asks')
    ['7', 'a "big" one', '"Who" asks']
    """
    if '"' not in line:
        return line.split("\t")
    fields, position = [], 0
    while position <= len(line):
        match = FIELD.match(line, position)
        assert match is not None  # the second branch takes anything
        quoted, plain = match.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        position = match.end() + 1
    return fields


def _opens_a_quote(field: str) -> bool:
    """Whether the last field of a line begins with a quote that is not closed."""
    return field.startswith('"') and field.count('"') % 2 == 1


# -- topics, judgements, answers --


def read_topics(path: Path) -> list[Topic]:
    """Read questions.

    Args:
        path: Lines ``id<TAB>question``, with or without such a header, or JSON lines ``{"id",
            "question"}`` if it is named ``.jsonl`` or ``.json``; ``.gz`` of either.

    Raises:
        UserError: Naming file and line, if it cannot be read, a topic is malformed, or an id
            occurs twice.
    """
    parse: Callable[[str], Topic | None]
    parse = _topic_of_json if suffix(path) in JSON_SUFFIXES else _TopicsTsv()
    seen = _Once(path)
    return [seen(number, topic) for number, topic in parsed(path, parse, "topics")]


class _Once:
    """Lets the topics of a file pass whose ids are new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, int] = {}

    def __call__(self, number: int, topic: Topic) -> Topic:
        first = self.lines.setdefault(topic.id, number)
        if first != number:
            wrong = f"topic {topic.id!r} is on line {first} too"
            raise UserError(f"{self.path}:{number}: {wrong}; give each its own id")
        return topic


class _TopicsTsv:
    """Parses the lines of one TSV file of topics; the question may hold tabs."""

    def __init__(self) -> None:
        self.begun = False

    def __call__(self, line: str) -> Topic | None:
        identifier, tab, question = line.partition("\t")
        first, self.begun = not self.begun, True
        if first and _column(identifier) == "id":
            names = [name.strip().lower() for name in question.split("\t")]
            if names[0] in QUESTION_NAMES:
                if len(names) > 1:
                    raise MalformedError(f"{len(names) + 1} columns; id<TAB>question is needed")
                return None
        if not tab:
            raise MalformedError("no tab; id<TAB>question is needed")
        return Topic(to_id(identifier), _question(question))


def _topic_of_json(line: str) -> Topic:
    return _topic(parse_object(line))


def _topic(record: Mapping[str, Any]) -> Topic:
    question = _question(_first(record, QUESTION_NAMES))
    return Topic(to_id(_first(record, ID_NAMES)), question, _tag(record))


def _question(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise MalformedError("no question, or an empty one; leave the line out or ask something")
    return text


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read judgements: four columns ``topic Q0 passage grade`` with tabs or spaces between.

    Returns:
        Topic id -> passage id -> grade, in the order of the file.

    Raises:
        UserError: Naming file and line, if it cannot be read, a line is malformed, or two lines
            judge the same passage differently.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, (topic, passage, grade) in parsed(path, _judgement, "judgements"):
        before = qrels.setdefault(topic, {}).setdefault(passage, grade)
        if before != grade:
            raise UserError(
                f"{path}:{number}: {passage} for topic {topic} has grade {grade}, but {before} on a"
                " line before; keep one"
            )
    return qrels


def _judgement(line: str) -> tuple[str, str, int]:
    columns = line.split()
    if len(columns) != 4:
        raise MalformedError(f"{len(columns)} columns; `topic Q0 passage grade` is needed")
    topic, _, passage, grade = columns
    if not GRADE.fullmatch(grade):
        raise MalformedError(f"grade {grade!r} is not a whole number; 1 is relevant, 0 is not")
    return topic, passage, int(grade)


def read_answers(path: Path) -> list[Question]:
    """Read questions with answers: JSON lines ``{"id", "question", "answers"[, "lang"]}``.

    Raises:
        UserError: Naming file and line, if it cannot be read, a question is malformed, or an id
            occurs twice.
    """
    seen = _Once(path)
    questions = []
    for number, question in parsed(path, _answered, "questions with answers"):
        seen(number, question.topic)
        questions.append(question)
    return questions


def _answered(line: str) -> Question:
    record = parse_object(line)
    return Question(_topic(record), tuple(_answers(_first(record, ANSWER_NAMES))))


def _answers(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(answer, str) for answer in value):
        raise MalformedError('"answers" is no list of strings; ["one", "another"] is needed')
    return value


def read_nq_topics(path: Path) -> list[tuple[Topic, list[str]]]:
    """Read Natural Questions' topics, which have no ids; they are numbered from 0.

    Args:
        path: Lines ``question<TAB>answers``, answers a Python list, as DPR and Pyserini spread
            them; or JSON lines ``{"question", "answer": [...]}``, as NQ-open does.

    Raises:
        UserError: Naming file and line, if it cannot be read or a line is malformed.
    """
    parse = _nq_of_json if suffix(path) in JSON_SUFFIXES else _nq_of_tsv
    questions = parsed(path, parse, "questions with answers")
    return [(Topic(str(i), text), answers) for i, (_, (text, answers)) in enumerate(questions)]


def _nq_of_tsv(line: str) -> tuple[str, list[str]]:
    fields = split_tsv(line)  # DPR's files quote the lists that hold double quotes
    if len(fields) != 2:
        raise MalformedError(f"{len(fields)} fields; question<TAB>['answer', ...] is needed")
    question, literal = fields
    try:
        answers = ast.literal_eval(literal.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise MalformedError(
            "the answers are no Python list; ['one', 'another'] is needed"
        ) from None
    return _question(question), _answers(answers)


def _nq_of_json(line: str) -> tuple[str, list[str]]:
    record = parse_object(line)
    return _question(_first(record, QUESTION_NAMES)), _answers(_first(record, ANSWER_NAMES))
