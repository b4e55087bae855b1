"""Settings from words and from YAML, each taken as it is written: 2.9 is no whole number.

A word of the line and a value in a YAML file become the type of their field or are refused; nothing
is rounded, and YAML's unquoted ``no`` (which it reads as false) is no text.
"""

import contextlib
import dataclasses
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ccpretrieve.config import Config, flag_of
from ccpretrieve.errors import UserError, unknown

if typing.TYPE_CHECKING:
    import yaml

WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
#: What a type is called in messages.
KINDS: dict[Any, str] = {
    **{bool: "true or false", int: "a whole number", float: "a number"},
    **{str: "text", Path: "a path"},
}


def from_words(hint: Any, tokens: Sequence[Any]) -> Any:
    """The value of a flag or setting of a type, from its words; called by cyclopts.

    Raises:
        ValueError: If a word is no value of that type; cyclopts names the flag.
    """
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    words = [token.value for token in tokens]
    if typing.get_origin(hint) is tuple:
        return tuple(_single(typing.get_args(hint)[0], word) for word in words)
    return _single(hint, words[-1])


def _single(kind: Any, word: str) -> Any:
    """One word as a bool, a number, a path or text."""
    if kind is bool and word.lower() in WORDS:
        return WORDS[word.lower()]
    if kind is int and WHOLE.fullmatch(word):
        return int(word)
    if kind is float and NUMBER.fullmatch(word):
        return float(word)
    if kind is Path and word:
        return Path(word)
    if kind is str:
        return word
    raise ValueError(f'{KINDS.get(kind, kind)} is needed, not "{word}"')


def read_yaml(path: Path, config: type[Config]) -> dict[str, Any]:
    """Read settings of ``config`` from a YAML file.

    Returns:
        Flag without its hyphens -> value of the type of its field; null is left out.

    Raises:
        UserError: Naming file and line, if it is no such file, or a setting is unknown, given twice
            or not of its type.
    """
    import yaml

    try:
        content = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not isinstance(content, yaml.MappingNode):
        raise UserError(f"{path}: expected `setting: value` lines; --print-config shows them")
    hints = typing.get_type_hints(config)
    types = {flag_of(each.name): hints[each.name] for each in dataclasses.fields(config)}
    settings: dict[str, Any] = {}
    for key, value in content.value:
        where = f"{path}:{key.start_mark.line + 1}"
        name = str(key.value).replace("_", "-") if isinstance(key, yaml.ScalarNode) else "..."
        if name not in types:
            raise UserError(f"{where}: {unknown('setting', name, sorted(types))}")
        if name in settings:
            raise UserError(f"{where}: {name} is set on a line before too; keep one of them")
        try:
            settings[name] = _setting(types[name], value)
        except ValueError as error:
            raise UserError(f"{where}: {name}: {error}") from error
    return {name: value for name, value in settings.items() if value is not None}


def _setting(hint: Any, node: "yaml.Node") -> Any:
    """The value of a YAML node as a type, or one of several, asks for it.

    Raises:
        ValueError: If it is none of them.
    """
    import yaml

    kinds = typing.get_args(hint) if typing.get_origin(hint) not in (None, tuple) else (hint,)
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            items = node.value if isinstance(node, yaml.SequenceNode) else [node]
            return tuple(_setting(typing.get_args(kind)[0], item) for item in items)
    tag = node.tag.rpartition(":")[2]
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"{_named(kinds)} is needed, not several values")
    if tag == "null" and type(None) in kinds:
        return None
    written = {bool: "bool", int: "int", float: "float", str: "str", Path: "str"}
    for kind in kinds:
        number = kind is float and (tag == "int" or not node.style)  # YAML has 1e-5 for text
        if kind in written and (tag == written[kind] or number):
            with contextlib.suppress(ValueError):
                return _single(kind, node.value)
    quotes = "; put it in quotes" if str in kinds and tag != "null" else ""
    shown = repr(node.value) if node.style else node.value or "nothing"
    raise ValueError(f"{_named(kinds)} is needed, not {shown}{quotes}")


def _named(kinds: Sequence[Any]) -> str:
    return " or ".join(KINDS[kind] for kind in kinds if kind in KINDS)


def plain(value: Any) -> Any:
    """The value of a setting as YAML and JSON have it: lists for tuples, text for paths."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def to_yaml(config: Config) -> str:
    """The settings of ``config`` as YAML that ``--config`` reads back; unset ones are left out."""
    import yaml

    settings = {
        flag_of(field.name): plain(value)
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) is not None
        and not (value == field.default == ())  # an empty list is said where it is not the default
    }
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).rstrip("\n")
