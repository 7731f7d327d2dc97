"""Ctrl-C: how a command is stopped, and what it then says."""

import argparse
import contextlib
import os
import shlex
import signal
from types import FrameType
from typing import Any, Self

from autotune.cli.output import tell

STOPPED = 130
"""Exit status after Ctrl-C, as a shell reports it."""


def tell_stopped(options: argparse.Namespace, what: str) -> int:
    """Print what a stopped command keeps and how to continue. Return the exit status.

    `what` is the middle of the sentence "stopped; ..., run the same command again:".
    """
    tell(f"stopped; {what}, run the same command again:")
    tell(f"  {shlex.join(['autotune', *options.arguments])}")
    return STOPPED


class Interrupts:
    """While entered, the first Ctrl-C requests a stop, the second interrupts the work, a third ends the process.

    SIGTERM and the loss of the terminal (SIGHUP) count as Ctrl-C.
    """

    def __init__(self, unfinished: str) -> None:
        """`unfinished` is what the stop waits for, such as ``the running trial``."""
        self._unfinished = unfinished
        self._count = 0
        self._former: dict[int, Any] = {}

    @property
    def are_requested(self) -> bool:
        return self._count > 0

    def __enter__(self) -> Self:
        names = ("SIGINT", "SIGTERM", "SIGHUP")  # SIGHUP exists on POSIX only
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup, or in a script's background
                self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        # os.write bypasses Python's buffers, which may be in use when the signal arrives.
        self._count += 1
        if self._count == 1:
            with contextlib.suppress(OSError):
                os.write(2, f"\nstopping after {self._unfinished}; interrupt again to stop at once\n".encode())
        elif self._count == 2:
            raise KeyboardInterrupt  # as it propagates, the ledger notes that the running trial is not at fault
        else:
            show_cursor = b"\x1b[?25h\n" if os.isatty(2) else b""
            with contextlib.suppress(OSError):
                os.write(2, show_cursor)
            os._exit(STOPPED)
