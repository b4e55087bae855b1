"""What a user can put right, and how it is said."""

import difflib
from collections.abc import Collection


class UserError(ValueError):
    """A name, a path, a line of a file: something the caller can put right.

    A command shows it as one line on stderr and exits with status 1; anything else is a bug and
    keeps its traceback.
    """


def unknown(kind: str, name: object, known: Collection[str], listing: str = "") -> UserError:
    """Describe a name nobody registered: what was asked, what is near it, where the list is.

    Args:
        kind: What the name should have named, such as ``corpus``.
        name: What was asked for.
        known: The names there are.
        listing: Words that say where all names are; the names themselves when empty.

    >>> print(unknown("pooling", "men", ["cls", "mean"]))
    unknown pooling 'men'; did you mean 'mean'? allowed: cls, mean
    """
    spelled = {each.lower(): each for each in known}
    found = difflib.get_close_matches(str(name).lower(), spelled, n=3)
    near = [spelled[each] for each in found]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
    return UserError(f"unknown {kind} {name!r}{hint} {listing or 'allowed: ' + ', '.join(known)}")
