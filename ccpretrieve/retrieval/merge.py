"""The shards of several machines, put together into the folder of one."""

from collections.abc import Sequence
from pathlib import Path

from ccpretrieve.errors import UserError
from ccpretrieve.files import atomic
from ccpretrieve.retrieval.store import Store, differences


def merge(parts: Sequence[Store], path: Path) -> Store:
    """Put verified shards into one folder, by hard link where possible.

    Args:
        parts: Stores of one recipe; a shard may be in several of them.
        path: Folder of the merged shards.

    Raises:
        UserError: If they were made by different recipes, a shard was damaged, or some are missing.
    """
    for part in parts:
        if changed := differences(parts[0].recipe, part.recipe):
            raise UserError(
                f"{part.path.parent}: differs from {parts[0].path.parent}: {changed[0]}; "
                "encode both in the same way"
            )
        for shard in part.shards.values():
            part.verify(shard)
    _check_parts(parts)
    merged = Store.begin(path, parts[0].recipe)
    for part in parts:
        for number, shard in part.shards.items():
            merged.shards[number] = shard
            for name in Store.names(number):
                _link(part.path / name, path / name)
    merged.shards = dict(sorted(merged.shards.items()))
    merged.check_complete()
    merged.write_manifest()
    return merged


def _check_parts(parts: Sequence[Store]) -> None:
    machines = max(part.part[1] for part in parts)
    given = {part.part[0] for part in parts if part.part[1] == machines}
    whole = any(part.part[1] == 1 for part in parts)
    same = all(part.part[1] in (1, machines) for part in parts)
    if same and not whole and (missing := sorted(set(range(machines)) - given)):
        folders = ", ".join(str(part.path.parent) for part in parts)
        raise UserError(
            f"{folders}: part {missing[0]} of {machines} is missing; encode it with --shard-id "
            f"{missing[0]} and give its folder too"
        )
    for part in parts:
        part.check_complete()


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # another disk
        with atomic(target) as stream, source.open("rb") as original:
            while block := original.read(1 << 24):
                stream.write(block)
