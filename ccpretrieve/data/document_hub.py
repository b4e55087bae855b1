"""Documents of data sets on the Hugging Face hub, streamed: CC-100, mC4, CulturaX, FineWeb-2 ...

Such a data set has one configuration a language, whose name says which (``ja``, ``jpn_Jpan``,
``20231101.ja``); of several for one language the plainest is read. One without is read by the
``"lang"`` of its rows, for the languages asked for. Its rows are documents as lines of JSON are; a
local folder that the ``datasets`` library can read will do as well.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ccpretrieve.data.documents import (
    HUB,
    JSON,
    Document,
    DocumentSource,
    check_shard,
    refuse_unless,
    to_document,
)
from ccpretrieve.data.hub import fetching
from ccpretrieve.data.languages import guess
from ccpretrieve.data.lines import MalformedError
from ccpretrieve.data.tags import code_of, plainness
from ccpretrieve.errors import UserError

logger = logging.getLogger(__name__)

SPLIT = "train"  # read where a data set has several splits
SHOWN = 20  # names in a message


class HubDocuments(DocumentSource):
    """The documents of one language in a data set.

    Args:
        language: Code of the language.
        dataset: Name on the hub, or a local folder.
        config: Which configuration; None for the only one.
        by_row: How the ``"lang"`` of a row counts: ``ignored``, ``used`` where there is one, or
            ``needed``.
    """

    def __init__(
        self, language: str, dataset: str, config: str | None = None, by_row: str = "ignored"
    ) -> None:
        self.language = language
        self.dataset = dataset
        self.config = config
        self.by_row = by_row
        self.weight = 0
        self.source = f"{HUB}{dataset}:{config}" if config else f"{HUB}{dataset}"

    def documents(
        self, state: JSON | None = None, *, shard: int = 0, shards: int = 1
    ) -> Iterator[tuple[Document, JSON]]:
        """A part as ``datasets`` divides it; see :meth:`DocumentSource.documents`.

        The parts are whole files if they can be dealt out evenly, else every ``shards``-th row.
        """
        import datasets
        from datasets.distributed import split_dataset_by_node

        check_shard(shard, shards)
        same = {"dataset": self.source, "shard": shard, "shards": shards}
        source = f"{self.source} (part {shard} of {shards})" if shards > 1 else self.source
        row = 0
        with fetching(self.source, datasets.exceptions.DatasetsError):
            stream = self._stream()  # anew for each pass: a stream keeps the place of its reader
            if shards > 1:
                stream = split_dataset_by_node(stream, rank=shard, world_size=shards)
            if state is not None:
                refuse_unless(state, same, self.source)
                row = state["row"]
                stream.load_state_dict(state["stream"])
            for fields in stream:
                row += 1
                document = self._document(fields, source, row)
                if document is not None:
                    yield document, {**same, "row": row, "stream": stream.state_dict()}

    def _stream(self) -> Any:
        """The rows; from the split that pretraining uses."""
        import datasets

        splits = datasets.load_dataset(self.dataset, self.config, streaming=True)
        names = list(splits)
        if len(names) > 1 and SPLIT not in names:
            raise UserError(
                f"{self.source}: none of the splits {', '.join(names)} is called {SPLIT}; save the"
                " documents as JSON lines and name the file"
            )
        return splits[SPLIT if SPLIT in names else names[0]]

    def _document(self, fields: Mapping[str, Any], source: str, row: int) -> Document | None:
        """A row as a document; None if it is in another language."""
        try:
            if self.by_row != "ignored" and not self._is_mine(fields.get("lang")):
                return None
            return to_document(fields, self.language, source, row)
        except MalformedError as error:
            raise UserError(f"{source}:{row}: {error}") from error

    def _is_mine(self, tag: object) -> bool:
        """Whether a row with this ``"lang"`` is in this language."""
        if tag is None and self.by_row == "needed":
            raise MalformedError('no "lang", and several languages may be here; ask for one only')
        if not isinstance(tag, str | None):
            raise MalformedError(f'"lang" {tag!r} is not a string; a code such as "ja" is needed')
        return tag is None or code_of(tag) == self.language


def find_configs(spec: str, wanted: Sequence[str]) -> dict[str, HubDocuments]:
    """Find the configuration of every language.

    Args:
        spec: ``hf:<dataset>[:<config>]``.
        wanted: Codes of the languages that will be read; all if empty.

    Raises:
        UserError: If there is no such data set, or nothing says a language.
    """
    dataset, _, config = spec.removeprefix(HUB).partition(":")
    if not dataset:
        raise UserError("hf: names no data set; write hf:<dataset> or hf:<dataset>:<config>")
    configs = [config] if config else _configs(dataset)
    chosen = _by_language(configs)
    if chosen:
        return {code: HubDocuments(code, dataset, name) for code, name in chosen.items()}
    if len(configs) > 1:
        shown = ", ".join(configs[:SHOWN])
        raise UserError(f"{spec}: none of {shown} names a language; write {spec}:<one of them>")
    name = config or None
    code = "" if config else guess(dataset)
    if code and tuple(wanted) in ((), (code,)):
        return {code: HubDocuments(code, dataset, name)}
    if not wanted:
        raise UserError(f"{spec}: nothing says its language; give --languages")
    by_row = "used" if len(wanted) == 1 and not code else "needed"
    return {code: HubDocuments(code, dataset, name, by_row) for code in wanted}


def _configs(dataset: str) -> list[str]:
    """The names of the configurations of a data set."""
    import datasets

    with fetching(f"{HUB}{dataset}", datasets.exceptions.DatasetsError):
        return list(datasets.get_dataset_config_names(dataset))


def _by_language(configs: Sequence[str]) -> dict[str, str]:
    """Code of a language -> the plainest configuration that is named after it."""
    chosen: dict[str, str] = {}
    for name in sorted(configs, key=plainness):
        code = code_of(name)
        if code and chosen.setdefault(code, name) != name:
            logger.debug("%s is read from %s, not from %s", code, chosen[code], name)
    return chosen
