"""List the corpora known by name, and fetch them.

python -m ccpretrieve.corpora                           all, family by family
python -m ccpretrieve.corpora mrtydi-ja                 its files, and what is there
python -m ccpretrieve.corpora mrtydi-sw xquad --fetch   download what is missing
"""

import json
import logging
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ccpretrieve.commandline import command
from ccpretrieve.config import CorporaConfig
from ccpretrieve.data.download import recorded
from ccpretrieve.data.languages import language
from ccpretrieve.data.registry import (
    LARGE,
    VARIABLE,
    data_root,
    families,
    find,
    human,
    obtain,
    pending,
    table,
)
from ccpretrieve.data.sources import HUB, Entry, Family, File
from ccpretrieve.errors import UserError, unknown

logger = logging.getLogger("ccpretrieve.corpora")

NEWLINE = "\n"
OTHERS = (
    "Also a corpus: irds:<id> of ir_datasets (irds:mr-tydi/ja is v1.0), hf:<dataset>[:config] of "
    "the hub, a folder in Mr. TyDi's layout, a Pyserini JSONL folder, or one file "
    "(docs.jsonl[.gz], .tsv)."
)


def run(config: CorporaConfig) -> str:
    """Fetch if asked to, and describe the corpora.

    Args:
        config: Names of corpora or of families of them; none for all.

    Returns:
        The listing, as text or JSON.

    Raises:
        UserError: If a name is unknown, a large download is not agreed to, or one fails.
    """
    root = data_root(config.data_dir)
    chosen = select(config.names)
    if config.fetch:
        fetch(chosen, root, yes=config.yes)
    if config.format == "json":
        return json.dumps([as_dict(entry, root) for entry in chosen], indent=1, ensure_ascii=False)
    if not config.names:
        return overview(chosen, root)
    named_one_by_one = set(config.names) & set(table())
    return "\n".join(
        details(entry, root) if entry.name in named_one_by_one else line(entry, root)
        for entry in chosen
    )


def select(names: Sequence[str]) -> list[Entry]:
    """The corpora of some names, each a corpus or a family of them; all for no names.

    Raises:
        UserError: If a name is neither; near names are offered.
    """
    known = table()
    chosen: dict[str, Entry] = {}
    for name in names:
        found = [e for e in known.values() if name in (e.name, e.family.name)]
        if not found:
            near = {*known, *(family.name for family in families())}
            listing = f"`python -m ccpretrieve.corpora` lists all {len(known)}"
            raise unknown("corpus", name, sorted(near), listing)
        chosen |= {entry.name: entry for entry in found}
    return list(chosen.values() if names else known.values())


def fetch(chosen: Sequence[Entry], root: Path, *, yes: bool) -> None:
    """Download what is missing of some corpora, after a question if that is large.

    Raises:
        UserError: If a large download is not agreed to, or a download fails.
    """
    missing = [(entry, file) for entry in chosen for file in pending(entry, root)]
    total = sum({file.path: file.size for _, file in missing}.values())
    if missing:
        logger.info("%s", _announcement(missing, total, root))
    if total > LARGE and not yes:
        _agree(total)
    for entry in chosen:
        for _, _, file in entry.files():
            obtain(entry, file, root, large=True)


def _announcement(missing: Sequence[tuple[Entry, File]], total: int, root: Path) -> str:
    """What is about to be downloaded, where to, and under which licences."""
    size = f"about {human(total)}" if total else "a few MB"
    licences = {entry.family.name: entry.family.licence for entry, _ in missing}
    return "\n".join(
        [
            f"to download: {len({file.path for _, file in missing})} files, {size}, to {root}",
            *(f"licence of {name}: {licence}" for name, licence in licences.items()),
        ]
    )


def _agree(total: int) -> None:
    """Ask on a terminal.

    Raises:
        UserError: If the answer is not yes, or there is nobody to ask.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError(f"about {human(total)} to download; pass --yes to agree")
    sys.stderr.write(f"download about {human(total)}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing downloaded; answer y, or pass --yes")


def overview(chosen: Sequence[Entry], root: Path) -> str:
    """Every family with its languages, licence, size and what is there."""
    blocks = [
        _family(family, [entry for entry in chosen if entry.family is family], root)
        for family in families()
    ]
    head = f"{len(chosen)} corpora; folder: {root} (--data-dir or {VARIABLE} names another)"
    foot = "`python -m ccpretrieve.corpora NAME` shows one or a family; --fetch downloads it."
    return "\n\n".join([head, *filter(None, blocks), f"{foot}\n{textwrap.fill(OTHERS, 100)}"])


def _family(family: Family, members: Sequence[Entry], root: Path) -> str:
    if not members:
        return ""
    codes = [entry.name.removeprefix(f"{family.name}-") for entry in members]
    several = len(members) > 1 or codes[0] != family.name
    files = {file.path: file for entry in members for _, _, file in entry.files()}
    there = sum(find(file, root) is not None for file in files.values())
    lines = [
        family.content,
        f"licence: {family.licence}",
        f"download: {_size(members)}; hash {'; '.join(_policies(members))}",
        f"present: {there} of {len(files)} files",
    ]
    if several:
        noun = "language" if len(members) == 1 else "languages"
        lines.insert(1, f"{len(members)} {noun}: {' '.join(codes)}")
    body = "\n".join(map(_indented, lines))
    return f"{family.name}{'-<lang>' if several else ''}\n{body}"


def _indented(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")


def _size(members: Iterable[Entry]) -> str:
    files = {file.path: file for entry in members for file in _downloads(entry)}
    if not files:
        return "none"
    total = sum(file.size for file in files.values())
    unstated = any(not file.size for file in files.values())
    if not total:
        return "size not stated, small"
    return f"about {human(total)}{' and small files' if unstated else ''}"


def _downloads(entry: Entry) -> list[File]:
    if entry.squad:
        return [file for _, _, file in entry.squad]
    return [file for _, _, file in entry.files() if file.url]


def _policies(members: Iterable[Entry]) -> list[str]:
    files = [file for entry in members for file in _downloads(entry)]
    return list(dict.fromkeys(map(policy, files))) or ["not needed"]


def policy(file: File) -> str:
    """What a download of a file is compared with."""
    if file.checksum:
        return f"{file.checksum.partition(':')[0]} published"
    if file.url.startswith(HUB):
        return "stated by the hub with the file"
    return "recorded on first download" if file.url else "not needed (not downloaded)"


def line(entry: Entry, root: Path) -> str:
    """One corpus in one line: name, languages, size, what is there."""
    files = [file for _, _, file in entry.files()]
    there = sum(find(file, root) is not None for file in files)
    return (
        f"{entry.name:<16} {_languages(entry):<32} {_size([entry]):<28} {there}/{len(files)} files"
    )


def _languages(entry: Entry) -> str:
    passages = language(entry.language).name
    if entry.topic_language == entry.language:
        return passages
    asked = language(entry.topic_language).name if entry.topic_language else "several"
    return f"{asked} -> {passages}"


def details(entry: Entry, root: Path) -> str:
    """One corpus file by file."""
    count = f", {entry.count:,} passages" if entry.count else ""
    rows = [
        ("licence", entry.family.licence),
        ("home", entry.family.homepage),
        *((f"{part} {split}", _state(file, root)) for part, split, file in entry.files()),
    ]
    missing = pending(entry, root)
    if entry.squad and missing:
        text = f"{len(missing)} files to download, the first\nfrom {missing[0].url}"
        rows.append(("made from", text))
    return "\n".join(
        [
            f"{entry.name}: {_languages(entry)}{count}",
            _indented(entry.family.content),
            *(f"    {head:<16}{text.replace(NEWLINE, NEWLINE + ' ' * 20)}" for head, text in rows),
        ]
    )


def _state(file: File, root: Path) -> str:
    """Whether a file is there, where, and what its download is or will be compared with."""
    found = find(file, root)
    if found:
        digest = recorded(found)
        return f"present {found}" + (f"\n{digest}" if digest else "")
    size = f" {human(file.size)}" if file.size else ""
    source = f"\nfrom {file.url}\nhash {policy(file)}" if file.url else ""
    return f"missing{size} {root / file.path}{source}"


def as_dict(entry: Entry, root: Path) -> dict[str, Any]:
    """Everything known of a corpus, for JSON."""
    files = [*entry.files(), *(("source", split, file) for _, split, file in entry.squad)]
    return {
        "name": entry.name,
        "family": entry.family.name,
        "content": entry.family.content,
        "language": language(entry.language).code,
        "topic_language": entry.topic_language and language(entry.topic_language).code,
        "passages": entry.count or None,
        "licence": entry.family.licence,
        "homepage": entry.family.homepage,
        "bytes": sum(file.size for file in _downloads(entry)) or None,
        "present": all(find(file, root) for _, _, file in entry.files()),
        "files": [
            {
                "part": part,
                "split": split or None,
                "path": str(find(file, root) or root / file.path),
                "present": find(file, root) is not None,
                "url": file.url or None,
                "bytes": file.size or None,
                "checksum": file.checksum or None,
                "hash": policy(file),
            }
            for part, split, file in files
        ],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """List or fetch corpora from the command line."""
    command(run, CorporaConfig, "corpora", argv)


if __name__ == "__main__":
    main()
