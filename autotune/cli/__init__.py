"""The command `autotune`: arguments in, calls of the modules above, tables or JSON out. No logic of its own.

Results go to standard output, everything else to standard error. Heavy libraries are imported inside the
commands, so that help and wrong usage answer at once.
"""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence

from autotune.cli.arguments import make_parser
from autotune.cli.output import STOPPED, tell
from autotune.errors import AutotuneError
from autotune.paths import install_hint

BROKEN_PIPE = 141
"""Exit status when nobody reads the output any more, as a shell gives it."""

EXTRAS = {
    **dict.fromkeys(("alembic", "optuna", "rich", "sqlalchemy"), "tune"),
    **dict.fromkeys(("fastapi", "httptools", "markdown_it", "pydantic", "starlette", "uvicorn"), "service"),
}
"""Packages that only some commands need, and the extra of pyproject.toml that installs each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. Errors end as one line on standard error, never as a traceback."""
    _accept_every_character()
    # Before NumPy is loaded: the model's matrices are small, and threads that wait for them keep builders from work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        status = _dispatch(sys.argv[1:] if arguments is None else list(arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
    except AutotuneError as error:
        _complain(str(error))
        return error.exit_status
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - nobody is helped by a traceback they did not ask for
        message = _message_of(error)
        _forget_output()
        _complain(message)
        return 1
    return status


def _message_of(error: Exception) -> str:
    """One line about an error that no command expected."""
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        return f"{error.name} is not installed ({install_hint(extra)})"
    if isinstance(error, OSError) and (error.filename is not None or _output_fails()):
        return f"{error.filename or 'standard output'}: {error.strerror or error}"
    cause = " ".join(str(error).split())[:500]
    wanted = "set AUTOTUNE_TRACEBACK=1 to see where"
    return f"unexpected {type(error).__name__}{': ' if cause else ''}{cause} ({wanted})"


def _output_fails() -> bool:
    """Whether standard output is what cannot be written: what it could not take is still in its buffer."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _dispatch(arguments: list[str]) -> int:
    # A space before it keeps argparse from taking a negative size for an option.
    guarded = [f" {word}" if re.match(r"-[0-9]", word) else word for word in arguments]
    options = make_parser().parse_args(guarded)
    options.arguments = arguments
    status = options.command(options)
    assert isinstance(status, int)
    return status


def _complain(message: str) -> None:
    if os.environ.get("AUTOTUNE_TRACEBACK"):
        traceback.print_exc()
    tell(f"autotune: error: {message}")


def _accept_every_character() -> None:
    """A label or device name that the terminal's encoding lacks is shown escaped."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Nobody reads standard output any more: keep the interpreter from failing once more at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
