"""From words on a line to a config and back to words: the only place that prints or exits.

Flags, their help and near names for a mistyped one come from cyclopts, which reads the dataclass;
this module decides what every command has in common.
"""

import contextlib
import inspect
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from ccpretrieve.errors import UserError

if TYPE_CHECKING:
    from ccpretrieve.config import Config

C = TypeVar("C", bound="Config")


def parse(config: type[C], argv: Sequence[str], verb: str) -> C | str:
    """Build ``config`` from flags and an optional YAML file; flags win.

    Returns:
        The config, or the text to print instead (help, or the YAML of ``--print-config``).

    Raises:
        UserError: If a value cannot work.
        cyclopts.CycloptsError: If the flags themselves are wrong.
    """
    import cyclopts
    from cyclopts import App, Parameter

    from ccpretrieve.values import from_words, read_yaml, to_yaml

    _join_lines_of_help(config)
    app = App(
        name=f"python -m {verb if '.' in verb else f'ccpretrieve.{verb}'}",
        help=(config.__doc__ or "").split("\n\n")[0],
        help_format="plaintext",
        version_flags=[],
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        default_parameter=Parameter(converter=from_words),
    )
    app.meta.group_parameters = cyclopts.Group("Every command", sort_key=1)
    app.meta.suppress_keyboard_interrupt = False  # or it would exit without a word
    asked = config

    app.default(config)

    @app.meta.default
    def common(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Path | None = None,
        print_config: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    ) -> C | str:
        """Read a YAML file first, or print one.

        Args:
            tokens: The command's own flags.
            config: YAML file of settings; flags on the line win over it.
            print_config: Print the settings as YAML, for --config, and stop.
        """
        sources: dict[str, dict[str, Any]] = {}
        if config is not None:
            sources[str(config)] = read_yaml(config, asked)
        if (preset := _preset(tokens, [*sources.values()], asked)) is not None:
            sources["--preset"] = preset
        app.config = tuple(cyclopts.config.Dict(s, source=name) for name, s in sources.items())
        built = app(tokens, exit_on_error=False, print_error=False)
        return to_yaml(built) if print_config and built is not None else built

    return app.meta(argv, exit_on_error=False, print_error=False)  # type: ignore[no-any-return]


def _preset(
    tokens: Sequence[str], files: Sequence[Mapping[str, Any]], config: type["Config"]
) -> dict[str, Any] | None:
    """Settings of the preset that is named on the line, else in a file; None without one.

    A name that there is none of is left to the config to refuse.
    """
    from ccpretrieve.config import flag_of

    named = [settings["preset"] for settings in files if "preset" in settings]
    for place, token in enumerate(tokens):
        flag, _, value = token.partition("=")
        if flag == "--preset":
            named.insert(0, value or next(iter(tokens[place + 1 :]), ""))
    chosen = config.PRESETS.get(named[0]) if named else None
    return None if chosen is None else {flag_of(k): v for k, v in chosen.items()}


def _join_lines_of_help(config: type) -> None:
    """Put each setting's description on one line: the help breaks it where the source does."""
    for base in config.__mro__[:-1]:
        base.__doc__ = re.sub(r"\n {8,}", " ", inspect.cleandoc(base.__doc__ or ""))


def command(
    run: Callable[[C], object],
    config: type[C],
    verb: str,
    argv: Sequence[str] | None = None,
    *,
    kept: str = "nothing was left half-written",
) -> None:
    """Parse, run, print the result, exit.

    Args:
        run: The command.
        config: Its settings.
        verb: Its name.
        argv: Words of the line; None for those of the process.
        kept: What is left of it when it is interrupted, for the message.

    Status 0; 1 for what the user can put right (one line on stderr); 2 for wrong flags; 130 after
    Ctrl-C and 143 after SIGTERM, both with one line. A bug keeps its traceback.
    """
    _occupy_closed_streams()
    try:
        with _interrupts():
            _parse_and_run(run, config, verb, sys.argv[1:] if argv is None else list(argv))
    except UserError as error:
        _stop(str(error), status=1)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _stop(f"{where}{error.strerror or error}", status=1)
    except KeyboardInterrupt:
        _stop(f"interrupted; {kept}", status=130)
    except Terminated:
        _stop(f"terminated; {kept}", status=143)


def _parse_and_run(
    run: Callable[[C], object], config: type[C], verb: str, argv: Sequence[str]
) -> None:
    import cyclopts

    try:
        parsed = parse(config, argv, verb)
    except cyclopts.CycloptsError as error:
        _stop(f"{' '.join(str(error).split())} (--help lists the flags)", status=2)
    if parsed is None:  # --help has been printed
        return
    if isinstance(parsed, str):
        _show(parsed)
        return
    with _report_to_stderr(quiet=parsed.quiet):
        _show(run(parsed))


def _show(result: object) -> None:
    """Print what a command returned: nothing, one thing, or one after another as they come."""
    try:
        if isinstance(result, Iterator):
            for item in result:
                print(item, flush=True)
        elif result is not None:
            print(result)
    except UnicodeEncodeError as error:
        raise UserError(
            f"standard output is {error.encoding} here and cannot hold "
            f"{error.object[error.start : error.end]!r}; set PYTHONIOENCODING=utf-8"
        ) from error


def _occupy_closed_streams() -> None:
    """Let no file of ours take the place of a standard stream that the caller has closed.

    ``sys.stdin`` stays None, so that whoever wants to read can say that it is closed.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            if name != "stdin":
                setattr(sys, name, os.fdopen(descriptor, "w"))


# -- signals --


class Terminated(BaseException):
    """SIGTERM arrived; unwinds like Ctrl-C, so that locks and partial files are cleaned up."""


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM unwind the block, also where Python would swallow the exception.

    A signal that arrives while a callback or a destructor runs (importing a library runs many) is
    reported as ignored; here it is raised again a moment later. A library that takes it for a fault
    of its own, such as a module that is not there, raises another exception in its place.
    """
    arrived: list[type[BaseException]] = []

    def arrive(signum: int, frame: object) -> None:
        arrived.append(KeyboardInterrupt if signum == signal.SIGINT else Terminated)
        raise arrived[-1]

    signal.signal(signal.SIGTERM, arrive)
    if signal.getsignal(signal.SIGINT) in (_not_begun, signal.default_int_handler):
        signal.signal(signal.SIGINT, arrive)
    before = sys.unraisablehook

    def again(swallowed: "sys.UnraisableHookArgs") -> None:
        if not issubclass(swallowed.exc_type, KeyboardInterrupt | Terminated):
            before(swallowed)
            return
        kind = swallowed.exc_type

        def late(signum: int, frame: object) -> None:
            raise kind

        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    sys.unraisablehook = again
    try:
        yield
    except Exception as error:
        if arrived:
            raise arrived[0] from error
        raise
    finally:
        sys.unraisablehook = before
        if signal.getsignal(signal.SIGINT) is arrive:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def await_libraries() -> None:
    """Until :func:`command` runs, let Ctrl-C end the process with one line.

    For a process that is a command of ours and imports what it needs: nothing is begun, nothing has
    to be cleaned up.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _not_begun)


def _not_begun(signum: int, frame: object) -> None:
    os.write(2, b"error: interrupted; nothing was begun\n")
    os._exit(130)


def _stop(message: str, status: int) -> NoReturn:
    print(f"error: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(status)


@contextlib.contextmanager
def _report_to_stderr(*, quiet: bool) -> Iterator[None]:
    """Show the package's log on stderr for the block, one plain line a message."""
    logger = logging.getLogger("ccpretrieve")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before, logger.propagate = (logger.level, logger.propagate), False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        level, logger.propagate = before
        logger.setLevel(level)


_spec = getattr(sys.modules["__main__"], "__spec__", None)
if _spec is not None and _spec.name.startswith("ccpretrieve."):  # python -m ccpretrieve.VERB
    await_libraries()
