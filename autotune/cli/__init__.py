"""The command `autotune`: parse arguments, call the other packages, print tables or JSON; no logic of its own.

Results go to standard output, everything else to standard error. Commands import heavy libraries only when they run,
so that help and usage errors appear at once.
"""

import contextlib
import errno
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence

from autotune.cli.arguments import make_parser
from autotune.cli.interrupts import LATE, STOPPED, DeadlineInterrupt
from autotune.cli.output import print_note
from autotune.errors import AutotuneError
from autotune.paths import install_hint

BROKEN_PIPE = 141
"""Exit status when the reader of the output has closed the pipe, as a shell reports it."""

EXTRAS = {
    **dict.fromkeys(
        ("alembic", "optuna", "psutil", "rich", "shtab", "sqlalchemy", "tree_sitter", "tree_sitter_c"), "tune"
    ),
    **dict.fromkeys(("fastapi", "httptools", "markdown_it", "pydantic", "starlette", "uvicorn"), "service"),
}
"""Packages that only some commands need, and the extra of pyproject.toml that installs each."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. An error is printed as one line, without a traceback."""
    _open_closed_streams()
    _accept_every_character()
    # This comes before NumPy loads. The model's matrices are small, and BLAS threads that wait for work would take
    # processor time from the builds. The comparison with the host's BLAS needs the user's own number.
    os.environ.setdefault("AUTOTUNE_HOST_THREADS", os.environ.get("OPENBLAS_NUM_THREADS", ""))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        status = _dispatch(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except AutotuneError as error:
        _complain(str(error))
        return error.exit_status
    except DeadlineInterrupt:
        print_note("stopped: the deadline is reached; every stored trial is kept")
        return LATE
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - users see a traceback only on request
        message = _message_of(error)
        _forget_output()
        _complain(message)
        return 1
    return status


def _message_of(error: Exception) -> str:
    """Return one line about an error that no command expected."""
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        return f"{error.name} is not installed ({install_hint(extra)})"
    if isinstance(error, OSError) and (error.filename is not None or _output_fails()):
        return f"{error.filename or 'standard output'}: {error.strerror or error}"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"{error.strerror} (make room, or write elsewhere)"
    cause = " ".join(str(error).split())[:500]
    wanted = "set AUTOTUNE_TRACEBACK=1 to see where"
    return f"unexpected {type(error).__name__}{': ' if cause else ''}{cause} ({wanted})"


def _output_fails() -> bool:
    """Return whether standard output cannot be written: what it could not take is still in its buffer."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _dispatch(arguments: list[str]) -> int:
    began = time.monotonic()
    # A leading space keeps argparse from taking a negative size for an option.
    guarded = [f" {word}" if re.match(r"-[0-9]", word) else word for word in arguments]
    options = make_parser().parse_args(guarded)
    options.arguments, options.began = arguments, began
    status = options.command(options)
    assert isinstance(status, int)
    return status


def _complain(message: str) -> None:
    if os.environ.get("AUTOTUNE_TRACEBACK"):
        traceback.print_exc()
    print_note(f"autotune: error: {message}")


def _open_closed_streams() -> None:
    """Give standard streams that the caller has closed to the null device, before other files take their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _accept_every_character() -> None:
    """Escape characters of labels and device names that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Redirect standard output to the null device, so that the interpreter does not fail again when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
