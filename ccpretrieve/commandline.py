"""From words on a line to a config and back to words: the only place that prints or exits.

Flags, their help, near names for a mistyped one, and YAML come from cyclopts, which reads the
dataclass; this module decides what every command has in common.
"""

import contextlib
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cyclopts
from cyclopts import App, Parameter

from ccpretrieve.config import Config
from ccpretrieve.errors import UserError

C = TypeVar("C", bound=Config)


def parse(config: type[C], argv: Sequence[str], verb: str) -> C | str:
    """Build ``config`` from flags and an optional YAML file; flags win.

    Returns:
        The config, or the text to print instead (help, or the YAML of ``--print-config``).

    Raises:
        UserError: If a value cannot work.
        cyclopts.CycloptsError: If the flags themselves are wrong.
    """
    app = App(
        name=f"python -m {verb if '.' in verb else f'ccpretrieve.{verb}'}",
        help=(config.__doc__ or "").split("\n\n")[0],
        help_format="plaintext",
        version_flags=[],
        result_action="return_value",
    )
    app.meta.group_parameters = cyclopts.Group("Every command", sort_key=1)

    app.default(config)

    @app.meta.default
    def common(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Path | None = None,
        print_config: Annotated[bool, Parameter(negative=())] = False,
    ) -> C | str:
        """Read a YAML file first, or print one.

        Args:
            tokens: The command's own flags.
            config: YAML file of settings; flags on the line win over it.
            print_config: Print the settings as YAML, for --config, and stop.
        """
        if config is not None:
            app.config = (_yaml(config),)
        built = app(tokens, exit_on_error=False, print_error=False)
        return to_yaml(built) if print_config and built is not None else built

    return app.meta(argv, exit_on_error=False, print_error=False)  # type: ignore[no-any-return]


def _yaml(path: Path) -> Any:
    """A cyclopts source for a YAML file, after a check that it is one."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected `setting: value` lines; --print-config shows them")
    return cyclopts.config.Yaml(path, must_exist=True, use_commands_as_keys=False)


def to_yaml(config: Config) -> str:
    """The settings of ``config`` as YAML that ``--config`` reads back; unset ones are left out."""
    import yaml

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    settings = {
        field.name.replace("_", "-"): plain(getattr(config, field.name))
        for field in dataclasses.fields(config)
    }
    settings = {name: value for name, value in settings.items() if value not in (None, [])}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).rstrip("\n")


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
    signal.signal(signal.SIGTERM, _terminated)
    try:
        parsed = parse(config, sys.argv[1:] if argv is None else list(argv), verb)
        if parsed is None:  # --help has been printed
            return
        if isinstance(parsed, str):
            print(parsed)
            return
        with _report_to_stderr(quiet=parsed.quiet):
            _show(run(parsed))
    except cyclopts.CycloptsError as error:
        _stop(f"{' '.join(str(error).split())} (--help lists the flags)", status=2)
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


def _show(result: object) -> None:
    """Print what a command returned: nothing, one thing, or one after another as they come."""
    if isinstance(result, Iterator):
        for item in result:
            print(item, flush=True)
    elif result is not None:
        print(result)


class Terminated(BaseException):
    """SIGTERM arrived; unwinds like Ctrl-C, so that locks and partial files are cleaned up."""


def _terminated(signum: int, frame: object) -> None:
    raise Terminated


def _stop(message: str, status: int) -> None:
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
