"""XOR-Retrieve (section 4.3): questions in many languages, English passages of 100 words, R@kt.

    python -m benchmarks.xor_retrieve --encoder intfloat/multilingual-e5-small
    python -m benchmarks.xor_retrieve --encoder E --data data/xquad_xor --passages data/xquad/en
    python -m benchmarks.xor_retrieve --predictions runs/xor-retrieve.dev.ccp.json

Encodes the passages once, searches the questions of all languages, writes the leaderboard's file
``runs/xor-retrieve.<split>.<tag>.json`` and prints R@2kt and R@5kt. Each row has a second one, of
questions for which one passage holds an answer. What is encoded and searched is not done again.
``--predictions`` scores any such file. Texts are looked up for the passages that were retrieved;
the others are never held.
"""

import dataclasses
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.table import Published, beside, read_published
from ccpretrieve import encode, search
from ccpretrieve.commandline import command
from ccpretrieve.config import (
    FORMATS,
    DataConfig,
    EncodeConfig,
    EncoderConfig,
    Many,
    flag_of,
    one_of,
)
from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.languages import language
from ccpretrieve.data.readers import read_answers, read_topics
from ccpretrieve.data.records import Question
from ccpretrieve.data.registry import open_corpus
from ccpretrieve.errors import UserError, unknown
from ccpretrieve.files import atomic, make_directory, slug
from ccpretrieve.retrieval import meta, names
from ccpretrieve.retrieval.metrics import MISSING, AnswerRecall, Key, answer_recall
from ccpretrieve.retrieval.runfile import digest, is_made_by, ordered, read_run
from ccpretrieve.retrieval.scoretable import ScoreTable
from ccpretrieve.retrieval.submission import Prediction, read_submission, write_submission
from ccpretrieve.search_config import SearchConfig

logger = logging.getLogger("ccpretrieve.benchmarks.xor_retrieve")

NAME = "xor-retrieve"
BUDGETS = {2000: "R@2kt", 5000: "R@5kt"}  # tokens -> label
DEPTH = 100  # passages a question: 100 words each, twice what the larger budget takes
PUBLISHED_SPLIT = "dev"
#: Who published scores -> the end of their files' names.
ORIGINS = {"paper": "paper", "its model card": "drdecr"}
SHOWN = 3  # questions named in a note


@dataclass(frozen=True, kw_only=True)
class XorRetrieveConfig(EncoderConfig):
    """Encode English passages, search them with questions in many languages, score the answers.

    Attributes:
        data: File of questions with answers, or folder of files xor_<split>_*.jsonl. Default: those
            of xor-retrieve, as `python -m ccpretrieve.corpora xor-retrieve` lists them.
        passages: Corpus searched, or the one --predictions are of: a name, a folder or a file.
        languages: Codes or names of languages of questions, which then are part of file names.
            Default: all there are.
        encoder: Checkpoint directories or hub names, a row each. Default: CCPRETRIEVE_ENCODER.
        predictions: Score this submission file and search nothing.
        missing: A question without a prediction is a miss, or left out (official).
        split: train, dev or test; published scores are of dev, and test has no public answers.
        tag: Name of the row and last part of file names. Default: made from the encoder's name.
        calibration: Per-language shift, scale and rotation to apply.
        format: text, json, markdown, latex or html.
    """

    data: Path | None = None
    passages: str = NAME
    languages: Annotated[tuple[str, ...], Many] = ()
    encoder: Annotated[tuple[str, ...], Many] = ()
    predictions: Path | None = None
    missing: str = "miss"
    split: str = PUBLISHED_SPLIT
    tag: str | None = None
    calibration: Path | None = None
    format: str = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("format", self.format, FORMATS)
        one_of("missing", self.missing, MISSING)
        if self.tag is not None and len(self.encoder) > 1:
            raise UserError("--tag names one row; give one --encoder with it")
        if self.predictions is not None:
            self._refuse_idle()

    def _refuse_idle(self) -> None:
        """Fail on settings of encoding and searching where a file is scored."""
        common = {each.name for each in dataclasses.fields(DataConfig)}
        idle = {each.name for each in dataclasses.fields(EncoderConfig)} - common
        for setting in dataclasses.fields(self):
            given = getattr(self, setting.name) != setting.default
            if given and setting.name in {*idle, "encoder", "calibration"}:
                flag = flag_of(setting.name)
                raise UserError(f"--{flag}: not with --predictions, which are scored as they are")

    @property
    def name(self) -> str:
        """Of the questions, in file names; those of a choice of languages name them."""
        stem = NAME if self.data is None else self.data.resolve().name.removesuffix(".jsonl")
        return slug("-".join([stem, *sorted({language(each).code for each in self.languages})]))


@dataclass(frozen=True)
class Report:
    """Scores of all rows; as a string, the tables.

    Attributes:
        measured: Row -> budget -> what was reached; no budgets if no question has an answer.
        files: Row -> its submission file.
        differences: Why published scores cannot be compared; empty if they can.
        form: text, json, markdown, latex or html.
        missing: miss or official.
    """

    measured: Mapping[str, Mapping[int, AnswerRecall]]
    files: Mapping[str, Path]
    differences: str = ""
    form: str = "text"
    missing: str = "miss"

    def scores(self, tokens: int) -> dict[str, dict[str, float]]:
        """Row -> language -> score, two rows for each that was measured."""
        rows = {}
        for name, reached in self.measured.items():
            rows[name] = reached[tokens].per_language
            rows[f"{name}, within one passage"] = reached[tokens].within_per_language
        return rows

    def tables(self) -> list[ScoreTable]:
        """One for each budget, the notes below the last."""
        tables = []
        for tokens, label in BUDGETS.items():
            rows = self.scores(tokens)
            languages = sorted({code for scores in rows.values() for code in scores})
            published: dict[str, Published] = {}
            if not self.differences:
                stem = f"{NAME}-{label.lower().replace('@', '')}"
                published = {who: read_published(f"{stem}-{end}") for who, end in ORIGINS.items()}
            tables.append(beside(published, rows, languages, label))
        last = tables[-1]
        tables[-1] = dataclasses.replace(last, notes=[*last.notes, *self.notes()])
        return tables

    def __str__(self) -> str:
        if not any(self.measured.values()):
            return "\n".join(self.notes())
        if self.form == "json":
            scores = {table.corner: json.loads(table.render("json")) for table in self.tables()}
            return json.dumps(scores | {"notes": self.notes()}, indent=1, ensure_ascii=False)
        return "\n\n".join(table.render(self.form) for table in self.tables())

    def notes(self) -> list[str]:
        """What a reader of the tables must know, one sentence each."""
        notes = [f"{row}: {path}" for row, path in self.files.items()]
        for row, reached in self.measured.items():
            for tokens, recall in reached.items():
                notes += [f"{row}, {note}" for note in _notes(recall, tokens, self.missing)]
        if not any(self.measured.values()):
            notes.append("not scored: no question has an answer here; the leaderboard has them")
        elif self.differences:
            notes.append(f"Published scores on XOR-Retrieve are left out: {self.differences}")
        return notes


def _notes(recall: AnswerRecall, tokens: int, missing: str) -> list[str]:
    """What became of questions that are no plain hit or miss; what all budgets share, once."""
    notes = []
    if recall.short:
        notes.append(
            f"{BUDGETS[tokens]}: too few passages to fill {tokens} tokens for {_some(recall.short)}"
        )
    if tokens != min(BUDGETS):
        return notes
    fate = "counted as misses" if missing == "miss" else "left out, as officially"
    said = {
        f"without a prediction, {fate}": recall.missing,
        "with an empty list of passages, counted as misses": recall.empty,
        'left out, having no answer but "yes" and "no"': recall.unsearched,
        "predicted but not asked, left out": recall.unknown,
    }
    return [*notes, *(f"{what}: {_some(keys)}" for what, keys in said.items() if keys)]


def _some(keys: Sequence[Key]) -> str:
    """How many, and the first few."""
    first = ", ".join(f"{topic} ({spoken})" for spoken, topic in keys[:SHOWN])
    more = ", ..." if len(keys) > SHOWN else ""
    return f"{len(keys)} question{'s' * (len(keys) != 1)}: {first}{more}"


def run(config: XorRetrieveConfig) -> Report:
    """Run the benchmark, or score a file.

    Raises:
        UserError: If the questions, a language, the encoder or the predictions cannot be used.
    """
    from ccpretrieve.model.checkpoint import default_encoder

    questions = read_questions(config)
    rows: dict[str, list[Prediction]] = {}
    files: dict[str, Path] = {}
    if config.predictions is not None:
        row = config.tag or config.predictions.stem
        spoken = {question.topic.language for question in questions}
        every = read_submission(config.predictions)
        rows[row] = [each for each in every if not config.languages or each.language in spoken]
        files[row] = config.predictions
    else:
        for encoder in config.encoder or (default_encoder(),):
            row = names.check_tag(config.tag or names.tag_of(encoder))
            rows[row] = predict(config, encoder, row, questions)
            files[row] = names.RUNS / f"{config.name}.{config.split}.{row}.json"
            write_submission(files[row], rows[row])
    measured = {
        row: {
            tokens: answer_recall(questions, predictions, tokens, missing=config.missing)
            for tokens in BUDGETS
            if any(question.answers for question in questions)
        }
        for row, predictions in rows.items()
    }
    return Report(measured, files, _differences(config), config.format, config.missing)


def _differences(config: XorRetrieveConfig) -> str:
    """Why published scores are of something else; empty if they are of this."""
    if config.data is not None:
        return f"they are not of {config.data}"
    if config.passages != NAME:
        return f"they are not of the passages {config.passages}"
    if config.split != PUBLISHED_SPLIT:
        return f"they are of split {PUBLISHED_SPLIT}, this is {config.split}"
    return ""


# -- questions --


def read_questions(config: XorRetrieveConfig) -> list[Question]:
    """The questions of the languages asked for, each with its language.

    Raises:
        UserError: If there is no such file, split or language; if a question has no language, no
            answers, or stands twice in one language.
    """
    questions: dict[Key, Question] = {}
    for source, question in _sources(config):
        spoken, topic = question.topic.language, question.topic.id
        if not spoken:
            raise UserError(f'{source}: question {topic!r} has no "lang", such as "ja"; add it')
        if (spoken, topic) in questions:
            raise UserError(f"{source}: question {topic!r} ({spoken}) stands twice; keep one file")
        questions[spoken, topic] = question
    there = {spoken: language(spoken).code for spoken, _ in questions}
    wanted = [language(name).code for name in config.languages] or there.values()
    for code in wanted:
        if code not in there.values():
            raise unknown("language of the questions", code, sorted(there.values()))
    return [question for (spoken, _), question in questions.items() if there[spoken] in wanted]


def _sources(config: XorRetrieveConfig) -> Iterable[tuple[str, Question]]:
    """Every question, and the file or corpus it is from."""
    if config.data is None:
        corpus = open_corpus(NAME, config.data_dir)
        if config.split == "test":
            return [(NAME, Question(topic, ())) for topic in corpus.topics("test")]
        return [(NAME, question) for question in corpus.answers(config.split)]
    files = [config.data]
    if config.data.is_dir():
        pattern = f"xor_{config.split}_*.jsonl"
        files = sorted(config.data.glob(pattern))
        if not files:
            raise UserError(f"--data {config.data}: no file {pattern} in it; name a file")
    return [(str(path), question) for path in files for question in read_answers(path)]


# -- predictions --


def predict(
    config: XorRetrieveConfig, encoder: str, tag: str, questions: Sequence[Question]
) -> list[Prediction]:
    """Encode and search, as far as that is not done, and look up what was found."""
    shared = config.shared()
    index = encode.run(
        EncodeConfig(
            corpus=config.passages,
            encoder=encoder,
            tag=tag,
            calibration=config.calibration,
            **shared,
        )
    )
    of_search = ("batch_tokens", "device", "dtype", "data_dir", "quiet")
    topics = f"{config.name}.{config.split}"
    wanted = SearchConfig(
        topics=str(names.RUNS / f"{topics}.{tag}.topics.jsonl"),
        index=Path(index),
        encoder=encoder,
        hits=DEPTH,
        output=names.run_file(topics, tag),
        tag=tag,
        **{name: shared[name] for name in of_search},
    )
    path = searched(wanted, [_topic(question) for question in questions])
    ranking = {
        topic: [docid for docid, _ in ordered(found)] for topic, found in read_run(path).items()
    }
    retrieved = {docid for found in ranking.values() for docid in found}
    texts = look_up(open_corpus(config.passages, config.data_dir), retrieved)
    predictions = []
    for question in questions:
        found = ranking.get(_topic(question)["id"], [])
        passages = tuple(texts[docid] for docid in found)
        predictions.append(Prediction(question.topic.id, question.topic.language, passages))
    return predictions


def _topic(question: Question) -> dict[str, str]:
    """A question as it is searched; its language makes its id unique among all languages."""
    spoken, text = question.topic.language, question.topic.text
    return {"id": f"{spoken}:{question.topic.id}", "lang": spoken, "question": text}


def searched(wanted: SearchConfig, topics: Sequence[Mapping[str, str]]) -> Path:
    """The run of some topics, searched unless it is there and what a search would write."""
    assert wanted.topics is not None
    assert wanted.output is not None
    file = Path(wanted.topics)
    content = "".join(json.dumps(topic, ensure_ascii=False) + "\n" for topic in topics).encode()
    if not file.is_file() or file.read_bytes() != content:
        make_directory(file.parent)
        with atomic(file) as stream:
            stream.write(content)
    assert wanted.index is not None
    made = meta.read(wanted.index)
    assert made is not None, "encode writes it"
    expected = {
        "topics": wanted.topics,
        "questions": digest(read_topics(file)),
        "corpus": made["corpus"],
        "encoder": made["encoder"],
        "kind": made["index"]["kind"],
        "hits": wanted.hits,
    }
    if is_made_by(wanted.output, expected):
        logger.info("%s: is there already", wanted.output)
    else:
        search.run(wanted)
    return wanted.output


def look_up(corpus: Corpus, wanted: Collection[str]) -> dict[str, str]:
    """The texts of some passages, without titles: passage id -> text; reads the corpus once.

    Raises:
        UserError: If the corpus lacks one of them.
    """
    texts: dict[str, str] = {}
    for record in corpus.records():
        if record.passage.id in wanted:
            texts[record.passage.id] = record.passage.text
            if len(texts) == len(wanted):
                return texts
    lacking = next((docid for docid in wanted if docid not in texts), None)
    if lacking is not None:
        raise UserError(f"{corpus.name}: has no passage {lacking!r} any more; encode it again")
    return texts


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; every flag is a field of :class:`XorRetrieveConfig`."""
    command(run, XorRetrieveConfig, "benchmarks.xor_retrieve", argv)


if __name__ == "__main__":
    main()
