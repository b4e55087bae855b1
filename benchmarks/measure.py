"""CPU seconds by stage, peak memory, and child processes that measure themselves.

CPU seconds are user and system seconds of one process, all its threads. Peak memory is the most
that was resident at once in the whole process, libraries included.
"""

import contextlib
import functools
import inspect
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from unittest import mock

from ccpretrieve.errors import UserError
from ccpretrieve.files import read_json, write_json

ROOT = Path(__file__).parents[1]
REST = "rest"
#: What libraries read to size their thread pools.
THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "RAYON_NUM_THREADS",
)


class Clocks:
    """Seconds by stage; those of a stage within another count for the inner one alone.

    Args:
        clock: Gives seconds; by default the CPU seconds of this process.

    Attributes:
        seconds: Stage -> seconds; what belongs to none is under ``rest``.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._clock = clock
        self._stages = [REST]
        self._since = clock()
        self._wrapped = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._since = self._clock()
        return self

    def __exit__(self, *error: object) -> None:
        self._charge()
        self._wrapped.close()

    def _charge(self) -> None:
        now = self._clock()
        self.seconds[self._stages[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block as one stage."""
        self._charge()
        self._stages.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stages.pop()

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Count calls of a function, method or generator as a stage, until the clocks stop."""
        original = getattr(owner, attribute)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return original(*args, **kwargs)

        @functools.wraps(original)
        def steps(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = original(*args, **kwargs)
            while True:
                with self.stage(name):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

        timed = steps if inspect.isgeneratorfunction(original) else call
        self._wrapped.enter_context(mock.patch.object(owner, attribute, timed))


def peak_memory() -> int:
    """Most bytes of this process that were resident at once since it began to run this program.

    From Linux' ``VmHWM`` where there is one: ``ru_maxrss`` of a child is never less than what its
    parent held when it was forked.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def pinned(threads: int) -> dict[str, str]:
    """Environment in which every library has so many threads."""
    parallel = "false" if threads == 1 else "true"
    sized = dict.fromkeys(THREADS, str(threads))
    return {**os.environ, **sized, "TOKENIZERS_PARALLELISM": parallel}


def in_child(task: str, settings: Mapping[str, Any], folder: Path, *, threads: int) -> Any:
    """Run a task of :mod:`benchmarks.candidates` in a process of its own.

    Args:
        task: Its name there.
        settings: Plain values for it; paths absolute, as strings.
        folder: Where settings, result and what the process says are put.
        threads: For every library in it.

    Returns:
        What the task returned.

    Raises:
        UserError: If the task met something the user can put right.
        RuntimeError: If it failed otherwise; with the end of what it said.
    """
    asked, answer, said = folder / "task.json", folder / "result.json", folder / "said.txt"
    answer.unlink(missing_ok=True)
    write_json(asked, {"task": task, "settings": {**settings, "threads": threads}})
    command = [sys.executable, "-m", "benchmarks.candidates", str(asked), str(answer)]
    with said.open("wb") as stream:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=pinned(threads),
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        end = said.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{task} ended with status {done.returncode}: {end}")
    result = read_json(answer)
    if "error" in result:
        raise UserError(result["error"])
    return result["result"]
