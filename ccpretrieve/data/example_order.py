"""The order in which examples are learned from: every one once an epoch, languages in proportion.

A language of n_l examples has the share p_l ~ n_l^a of an epoch of n (a = 1: its examples, each
once). Its examples come in one permutation after another, the languages in a shuffled plan of the
epoch; together, for a = 1, that is a permutation of all examples. In batches of one language the
plan deals out whole batches, and what is less than one waits for the next epoch. All follows from
the seed, the same in every process, and a position is two numbers.

No batch holds an example twice, also where two epochs meet, unless its language has fewer examples
than a batch: a permutation keeps the last examples of the one before from coming again too soon.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ccpretrieve.data.mixture import State, smoothed
from ccpretrieve.errors import UserError

Ids = NDArray[np.int64]

_PLAN, _SHUFFLE = 0x91A2, 0x5F0E  # keep the draws apart


class _Shuffled:
    """Numbers in one permutation after another, without end.

    Args:
        numbers: n of them.
        seed: Of the permutations.
        apart: Places from a number to its next one, at least; of n there are no more than n.
    """

    def __init__(self, numbers: Ids, seed: list[int], apart: int) -> None:
        self.numbers = numbers
        self.seed = seed
        self.apart = min(apart, len(numbers))
        self._begin()

    def _begin(self) -> None:
        self._pass = 0
        self._permutation = np.random.default_rng([*self.seed, 0]).permutation(self.numbers)

    def __getitem__(self, place: int) -> int:
        """What comes at a place of the endless row."""
        number, within = divmod(place, len(self.numbers))
        if number < self._pass:
            self._begin()
        while self._pass < number:
            self._pass += 1
            generator = np.random.default_rng([*self.seed, self._pass])
            self._permutation = _reshuffled(self._permutation, self.apart, generator)
        return int(self._permutation[within])


def _reshuffled(before: Ids, apart: int, generator: np.random.Generator) -> Ids:
    """Another permutation of n numbers, none of which comes again less than ``apart`` places on.

    Place i is drawn from what stood in the first n - apart + 1 + i places and is left.
    """
    free = before[: len(before) - apart].tolist()
    first = []
    for late in before[len(before) - apart :].tolist():
        free.append(late)
        drawn = int(generator.integers(len(free)))
        free[drawn], free[-1] = free[-1], free[drawn]
        first.append(free.pop())
    return np.array([*first, *generator.permutation(free)], dtype=np.int64)


class ExampleOrder:
    """Draws the examples of one batch after another.

    Args:
        of_language: Code -> numbers of its examples.
        together: Examples of a batch, those of all processes.
        exponent: a; 1 takes the languages as they come, 0 all alike.
        one_language: Whether a batch is of one language.
        seed: Of the order.

    Attributes:
        epoch: Begun before this one.

    Raises:
        UserError: If there are fewer examples than in a batch, which would hold one twice.
    """

    def __init__(
        self,
        of_language: Mapping[str, Ids],
        *,
        together: int,
        exponent: float = 1.0,
        one_language: bool = False,
        seed: int = 0,
    ) -> None:
        self.languages = sorted(of_language)
        self.together = together
        sizes = {code: len(of_language[code]) for code in self.languages}
        _check(sizes, together, one_language=one_language)
        self.count = sum(sizes.values())
        shares = smoothed(sizes, exponent)
        self._unit = together if one_language else 1
        #: Examples of each language an epoch.
        self.each = [max(1, round(self.count * shares[code])) for code in self.languages]
        self._rows = [
            _Shuffled(of_language[code], [seed, _SHUFFLE, *code.encode()], together)
            for code in self.languages
        ]
        self._seed = seed
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        """Lay out an epoch; languages that a plan has no whole batch of come in another."""
        self.epoch = epoch
        self._place = 0
        self._taken = [epoch * each // self._unit for each in self.each]  # before this epoch
        ends = [(epoch + 1) * each // self._unit for each in self.each]
        counts = [end - begin for end, begin in zip(ends, self._taken, strict=True)]
        plan = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
        self._plan = np.random.default_rng([self._seed, _PLAN, epoch]).permutation(plan)

    def take(self) -> list[int]:
        """Numbers of the examples of the next batch, those of all processes."""
        numbers: list[int] = []
        while len(numbers) < self.together:
            while self._place == len(self._plan):
                self._begin(self.epoch + 1)
            language = int(self._plan[self._place])
            first = self._taken[language] * self._unit
            row = self._rows[language]
            numbers += [row[place] for place in range(first, first + self._unit)]
            self._taken[language] += 1
            self._place += 1
        return numbers

    @property
    def epochs(self) -> float:
        """How many epochs have been taken, in part or whole."""
        return self.epoch + self._place / max(1, len(self._plan))

    def state_dict(self) -> State:
        """Where the order stands, as JSON."""
        return {"epoch": self.epoch, "place": self._place}

    def load_state_dict(self, state: State) -> None:
        """Go on from where :meth:`state_dict` was taken."""
        self._begin(state["epoch"])
        self._place = state["place"]
        past = np.bincount(self._plan[: self._place], minlength=len(self.each))
        self._taken = [
            before + more for before, more in zip(self._taken, past.tolist(), strict=True)
        ]


def _check(sizes: Mapping[str, int], together: int, *, one_language: bool) -> None:
    """Fail if a batch would hold an example twice for want of others."""
    if one_language:
        code, size = min(sizes.items(), key=lambda item: item[1])
        if size < together:
            raise UserError(
                f"{size} examples of language {code or 'unknown'!r} are fewer than a batch of one "
                f"language, {together} over all processes; lower --batch-size, mix the languages "
                "of a batch, or leave that language out"
            )
    elif sum(sizes.values()) < together:
        raise UserError(
            f"{sum(sizes.values())} examples are fewer than a batch, {together} over all "
            "processes; lower --batch-size"
        )
