r"""Pyserini's own commands with our encoder: ``python -m ccpretrieve.pyserini encode ...``.

    python -m ccpretrieve.pyserini encode \
        input --corpus DIR --fields title text --delimiter "\n\n" \
        output --embeddings DIR --to-faiss encoder --encoder CHECKPOINT
    python -m ccpretrieve.pyserini search \
        --index DIR --encoder CHECKPOINT --topics FILE.tsv --output RUN.trec

The first word names one of Pyserini's modules (:data:`COMMANDS`); what follows is Pyserini's and is
handed on, with these differences where it names an ``--encoder``:

* our encoder opens it, whatever its path contains (Pyserini alone takes ``out/ccp-dpr`` for a DPR),
  unless ``--encoder-class`` names one of Pyserini's; ours is called ``ccp``;
* ``--device`` is cuda where there is one, else cpu, and a GPU that is asked for and missing is an
  error; ``--dimension`` is the encoder's; ``encoder --fields`` are those of ``input``;
* ``--lang`` gives the language of the text to a calibration;
* a flag that contradicts the checkpoint's settings, such as ``--pooling`` or ``--max-length``, is
  an error.

Pyserini reads a passage from the keys ``title`` and ``text``, or splits ``contents`` at every
delimiter; a text with blank lines in it must therefore come under keys of its own.
"""

import argparse
import contextlib
import logging
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ccpretrieve.commandline import command
from ccpretrieve.config import Config, Rest
from ccpretrieve.errors import UserError, unknown

if TYPE_CHECKING:
    from ccpretrieve.model.encoder import Encoder

#: What may be typed -> Pyserini's module; ``pyserini.`` before it is understood too.
COMMANDS = {
    "encode": "pyserini.encode",
    "search": "pyserini.search.faiss",
    "index": "pyserini.index.faiss",
    "search.faiss": "pyserini.search.faiss",
    "search.lucene": "pyserini.search.lucene",
    "search.hybrid": "pyserini.search.hybrid",
    "index.faiss": "pyserini.index.faiss",
    "index.lucene": "pyserini.index.lucene",
    "fusion": "pyserini.fusion",
}

#: Modules with a dense encoder -> the words that divide their arguments, that of the encoder first.
_SECTIONS = {
    "pyserini.encode": ("encoder", "input", "output"),
    "pyserini.search.faiss": ("",),
    "pyserini.search.hybrid": ("dense", "sparse", "fusion", "run"),
}

#: The class of Pyserini's that ours takes the place of while a command runs: its parsers know a
#: closed list of names.
_STAND_IN = "auto"

logger = logging.getLogger("ccpretrieve.pyserini")  # __name__ is __main__ under python -m


@dataclass(frozen=True, kw_only=True)
class PyseriniConfig(Config):
    """Run one of Pyserini's own commands with our encoder.

    Attributes:
        command: encode, search (or search.faiss), search.lucene, search.hybrid, index (or
            index.faiss), index.lucene or fusion.
        arguments: Pyserini's own; `COMMAND --help` lists them. --encoder takes any checkpoint of
            ours, --lang the language of the text if it is calibrated.
    """

    command: str = field(kw_only=False)
    arguments: Annotated[tuple[str, ...], Rest] = field(default=(), kw_only=False)

    def __post_init__(self) -> None:
        if self.command.removeprefix("pyserini.") not in COMMANDS:
            raise unknown("command", self.command, tuple(COMMANDS))


def run(config: PyseriniConfig) -> None:
    """Run a command of Pyserini in this process.

    Raises:
        UserError: If there is no Java for it, the encoder cannot be loaded, a flag contradicts its
            settings, or Pyserini gives up.
        SystemExit: If Pyserini ends with a status of its own.
    """
    module = COMMANDS[config.command.removeprefix("pyserini.")]
    arguments, encoder, language = list(config.arguments), None, ""
    _check_words(config.command, arguments, _SECTIONS.get(module, ("",)))
    if module in _SECTIONS:
        arguments, encoder, language = prepare(arguments, *_SECTIONS[module])
    from ccpretrieve.retrieval.lexical import start_java
    from ccpretrieve.retrieval.pyserini_plugin import in_place_of

    # Anserini's indexer collects up to 4 GB before it writes; everything else needs little.
    start_java(heap=None if module == "pyserini.index.lucene" else "1g")
    with contextlib.ExitStack() as stack:
        if encoder is not None:
            stack.enter_context(in_place_of(_STAND_IN, encoder, language=language))
        stack.enter_context(_complaints())
        stack.enter_context(_argv([module, *arguments]))
        sys.modules.pop(f"{module}.__main__", None)  # a hybrid search imports it; it must run anew
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _check_words(command: str, arguments: Sequence[str], parts: Sequence[str]) -> None:
    """Say at once what Pyserini would find missing half a minute later.

    Raises:
        UserError: If a part of the arguments, or the file of topics, is not there.
    """
    if {"-h", "--help"} & set(arguments):
        return
    missing = [f"`{part}`" for part in parts if part and part not in arguments]
    if missing:
        raise UserError(
            f"{command}: {', '.join(missing)} missing; it takes {', '.join(parts)}, each followed "
            f"by its arguments: `{command} {parts[0]} --help` lists them"
        )
    parser = _parser()
    parser.add_argument("--topics")
    topics = parser.parse_known_args(arguments)[0].topics
    if topics and re.search(r"/|\.(tsv|txt|jsonl?|gz)$", topics) and not Path(topics).is_file():
        raise UserError(f"--topics {topics}: no such file; check the name")


def prepare(
    arguments: Sequence[str], own: str, *others: str
) -> tuple[list[str], "Encoder | None", str]:
    """Open the encoder that a command names and put what follows from it into the arguments.

    Args:
        arguments: Pyserini's.
        own: The word before the encoder's part of them; empty if they have no parts.
        *others: The words before the other parts.

    Returns:
        The arguments to run, the encoder, and the language of the text. The arguments come back as
        they were, and None, if they name no encoder or a class of Pyserini's.

    Raises:
        UserError: If it cannot be loaded, or a flag contradicts its settings.
    """
    from ccpretrieve.model.encoder import Encoder
    from ccpretrieve.retrieval import meta
    from ccpretrieve.retrieval.pyserini_plugin import KEY

    parts = _split(arguments, (own, *others))
    ours, words = _ours().parse_known_args(parts.get(own, []))
    asked = _known().parse_known_args(words)[0]
    if asked.encoder is None or ours.encoder_class not in (None, KEY):
        return list(arguments), None, ""
    dtype = "float16" if asked.fp16 else None
    options = {"device": asked.device, "dtype": dtype}
    index = Path(asked.index) if asked.index else None
    if own != "encoder" and index is not None and (index / meta.FILE).is_file():
        encoder = meta.open_encoder(index, asked.encoder, **options)  # refuses another one
    else:
        encoder = Encoder.load(asked.encoder, **options)
    added = ["--encoder-class", _STAND_IN, "--device", str(encoder.device)]
    if own == "encoder":
        fields = _fields(asked, parts.get("input", []))
        added += ["--dimension", str(encoder.dim), "--fields", *fields]
    _check(asked, encoder, passages=own == "encoder")
    logger.info("%s: encodes with the settings of %s", encoder.name, encoder.source)
    parts[own] = added + words
    joined = [word for name, part in parts.items() for word in [name] * bool(name) + part]
    return joined, encoder, ours.lang or ""


def _split(arguments: Sequence[str], words: Sequence[str]) -> dict[str, list[str]]:
    """The parts of a command's arguments, by the word before each; ``""`` before the first."""
    parts: dict[str, list[str]] = {"": []}
    name = ""
    for argument in arguments:
        if argument and argument in words:
            name = argument
            parts[name] = []
        else:
            parts[name].append(argument)
    return parts


def _parser(*, allow_abbrev: bool = True) -> argparse.ArgumentParser:
    usage = "python -m ccpretrieve.pyserini COMMAND [ARGUMENTS]"
    return argparse.ArgumentParser(usage=usage, add_help=False, allow_abbrev=allow_abbrev)


def _ours() -> argparse.ArgumentParser:
    """The flags that Pyserini does not get to see as they were typed."""
    parser = _parser(allow_abbrev=False)
    parser.add_argument("--encoder-class")
    parser.add_argument("--lang")
    return parser


def _known() -> argparse.ArgumentParser:
    """The flags of Pyserini that say something about the encoder; None where they are not given."""
    parser = _parser()
    for flag in ("encoder", "device", "tokenizer", "pooling", "prefix", "query-prefix", "index"):
        parser.add_argument(f"--{flag}")
    for flag in ("max-length", "dimension"):
        parser.add_argument(f"--{flag}", type=int)
    for flag in ("fp16", "l2-norm", "add-sep", "multimodal"):
        parser.add_argument(f"--{flag}", action="store_true", default=None)
    parser.add_argument("--fields", nargs="+")
    return parser


def _fields(asked: argparse.Namespace, part: Sequence[str]) -> list[str]:
    """The fields to encode: those asked for, else those of the input that the encoder takes."""
    parser = _parser()
    parser.add_argument("--fields", nargs="+", default=["text"])
    read = parser.parse_known_args(part)[0].fields
    fields: list[str] = asked.fields or [name for name in read if name in ("title", "text")]
    if "text" not in fields or not {"title", "text"}.issuperset(fields):
        raise UserError(
            f"--fields {' '.join(asked.fields or read)}: the encoder takes `text` or `title text`"
        )
    return fields


def _check(asked: argparse.Namespace, encoder: "Encoder", *, passages: bool) -> None:
    """Refuse flags that contradict the encoder, which goes by its own settings alone."""
    settings = encoder.settings
    stated = {
        "pooling": settings.pooling,
        "l2_norm": settings.normalize,
        "prefix": settings.passage_prefix,
        "query_prefix": settings.query_prefix,
        "max_length": settings.passage_length if passages else settings.query_length,
        "add_sep": settings.title == "pair",
        "dimension": encoder.dim if passages else None,
        "multimodal": False,
        "tokenizer": None,
    }
    for name, ours in stated.items():
        value = getattr(asked, name)
        if value is not None and value != ours:
            flag = f"--{name.replace('_', '-')}" + (f" {value!r}" if value is not True else "")
            raise UserError(
                f"{flag} contradicts {encoder.name}, where it is {ours!r} (by {encoder.source}); "
                "leave the flag out"
            )


@contextlib.contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    """Let ``sys.argv`` be these for the block."""
    before = sys.argv
    sys.argv = words
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _complaints() -> Iterator[None]:
    """Turn what Pyserini says of a user's files into an error with the way out."""
    try:
        yield
    except SystemExit as error:
        if error.code is None:  # it printed why, and calls that success
            raise UserError("Pyserini gave up; it says above why") from error
        raise
    except ValueError as error:
        if topics := re.fullmatch("Topic (.+) Not Found", str(error)):
            raise UserError(
                f"--topics {topics[1]}: no such file, and Pyserini knows no topics of that name"
            ) from error
        found = re.match(r"(\d+) fields are found at Line#(\d+) in file (.+?)\.(\d+) ", str(error))
        if found is None:
            raise
        raise UserError(
            f"{found[3]}:{int(found[2]) + 1}: `contents` splits into {found[1]} fields where "
            f"--fields names {found[4]}; give each field a key of its own, or use "
            "`python -m ccpretrieve.encode`, which reads it as it is"
        ) from error


def main(argv: Sequence[str] | None = None) -> None:
    """Command line; what follows the command's name is Pyserini's."""
    words = list(sys.argv[1:] if argv is None else argv)
    first = next((i for i, word in enumerate(words) if not word.startswith("-")), None)
    if first is not None:
        words.insert(first + 1, "--")
    command(run, PyseriniConfig, "pyserini", words)


if __name__ == "__main__":
    main()
