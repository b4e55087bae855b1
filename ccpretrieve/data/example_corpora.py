"""Examples of other sources: a corpus' topics, judgements and passages; data sets on the hub."""

import logging
from collections.abc import Iterator, Mapping

from ccpretrieve.data.corpus import Corpus
from ccpretrieve.data.examples import HUB, Example, ExampleSource, named, to_example
from ccpretrieve.data.hub import fetching
from ccpretrieve.data.languages import guess
from ccpretrieve.data.lines import MalformedError
from ccpretrieve.data.records import Passage
from ccpretrieve.data.tags import code_of
from ccpretrieve.errors import UserError, unknown

logger = logging.getLogger(__name__)


class CorpusExamples(ExampleSource):
    """Topics with what is judged of a corpus; held in memory are the judged passages only.

    Positives are the passages of a grade above 0, the highest first; negatives those judged not to
    answer, which most corpora do not list.

    Args:
        corpus: With topics, judgements and passages.
        split: Of topics and judgements.
    """

    def __init__(self, corpus: Corpus, split: str = "train") -> None:
        self.corpus = corpus
        self.split = split
        self.name = corpus.name

    def examples(self) -> Iterator[tuple[Example, str]]:
        """Stream the examples in the order of the topics; see :meth:`ExampleSource.examples`."""
        topics, qrels = self.corpus.topics(self.split), self.corpus.qrels(self.split)
        wanted = {passage for topic in topics for passage in qrels.get(topic.id, ())}
        if not wanted:
            raise UserError(
                f"{self.name}: no topic of split {self.split} has a judgement; topics and qrels "
                "of one split are needed"
            )
        passages = self._judged(wanted)
        spoken = self.corpus.topic_language
        for topic in topics:
            judged = sorted(qrels.get(topic.id, {}).items(), key=lambda item: -item[1])
            there = [(passages[name], grade) for name, grade in judged if name in passages]
            yield (
                Example(
                    topic.text,
                    tuple(passage for passage, grade in there if grade > 0),
                    tuple(passage for passage, grade in there if grade <= 0),
                    topic.id,
                    (code_of(topic.language) or topic.language) or spoken,
                ),
                f"{self.name}, topic {topic.id}",
            )

    def _judged(self, wanted: set[str]) -> Mapping[str, Passage]:
        """The passages of some ids, by id; one pass over the corpus."""
        passages: dict[str, Passage] = {}
        for record in self.corpus.records():
            if record.passage.id in wanted:
                passages.setdefault(record.passage.id, record.passage)
                if len(passages) == len(wanted):
                    break
        if missing := sorted(wanted - set(passages)):
            logger.warning(
                "%s: %d of %d judged passages are not in the corpus, %s the first; are passages "
                "and judgements of one edition?",
                *(self.name, len(missing), len(wanted), missing[0]),
            )
        return passages


class HubExamples(ExampleSource):
    """Rows of a data set on the Hugging Face hub, streamed, in Tevatron's or DPR's columns.

    Args:
        name: ``hf:<dataset>[:<config>]``; the data set may be a local folder of files.
        split: Which to read.
    """

    def __init__(self, name: str, split: str = "train") -> None:
        dataset, _, config = name.removeprefix(HUB).partition(":")
        if not dataset:
            raise UserError("hf: names no data set; write hf:<dataset> or hf:<dataset>:<config>")
        self.name = name
        self.dataset, self.config, self.split = dataset, config or None, split
        self.language = guess(config or dataset)

    def examples(self) -> Iterator[tuple[Example, str]]:
        """Stream the examples; see :meth:`ExampleSource.examples`."""
        import datasets

        row = 0
        with fetching(self.name, datasets.exceptions.DatasetsError):
            splits = datasets.load_dataset(self.dataset, self.config, streaming=True)
            if self.split not in splits:
                raise unknown(f"split of {self.name}", self.split, list(splits))
            for row, fields in enumerate(splits[self.split], 1):
                where = f"{self.name}:{row}"
                try:
                    example = to_example(fields, self.language)
                except MalformedError as error:
                    raise UserError(f"{where}: {error}") from error
                yield named(example, where), where
        if not row:
            raise UserError(f"{self.name}: no rows; it should hold questions with passages")
