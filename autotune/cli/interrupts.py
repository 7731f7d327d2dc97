"""Ctrl-C and --deadline: how a command is stopped, and what it then says."""

import argparse
import contextlib
import math
import os
import shlex
import signal
import time
from types import FrameType
from typing import Any, Self

from autotune.cli.output import print_note
from autotune.errors import UsageError

STOPPED = 130
"""Exit status after Ctrl-C, as a shell reports it."""
LATE = 124
"""Exit status when a deadline broke something off, as `timeout` reports it."""
GRACE_SHARE, LONGEST_GRACE_S = 0.1, 20.0
"""A deadline requests a stop two such parts of its time before it, at most twice the longest, and interrupts the work
one such part before it."""


class DeadlineInterrupt(KeyboardInterrupt):
    """The deadline is near, and something still runs."""


def print_stopped(options: argparse.Namespace, what: str) -> int:
    """Print what a stopped command keeps and how to continue. Return the exit status.

    `what` is the middle of the sentence "stopped; ..., run the same command again:".
    """
    print_note(f"stopped; {what}, run the same command again:")
    print_note(f"  {shlex.join(['autotune', *options.arguments])}")
    return STOPPED


class Interrupts:
    """While entered, the first Ctrl-C requests a stop, the second interrupts the work, a third ends the process.

    SIGTERM and the loss of the terminal (SIGHUP) count as Ctrl-C, and so does an alarm that rings three times, the last
    time at the deadline.
    """

    def __init__(self, unfinished: str, *, began: float = 0.0, deadline_s: float | None = None) -> None:
        """`unfinished` is what the stop waits for, such as ``the running trial``.

        A deadline is so many seconds after the command `began`, on the monotonic clock.

        Raises UsageError for a deadline on a system without alarms.
        """
        if deadline_s is not None and not hasattr(signal, "setitimer"):
            raise UsageError("--deadline needs the alarms of POSIX", hint="limit the search by --budget TIME")
        self._unfinished = unfinished
        self._deadline_s = deadline_s
        self._grace_s = min(LONGEST_GRACE_S, GRACE_SHARE * deadline_s) if deadline_s else 0.0
        self._stops = began + deadline_s - 2 * self._grace_s if deadline_s else math.inf
        self._count = 0
        self._former: dict[int, Any] = {}
        self.is_late = False
        """Whether the deadline requested the stop."""

    @property
    def are_requested(self) -> bool:
        return self._count > 0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline requests a stop; infinite without one."""
        return self._stops - time.monotonic()

    def __enter__(self) -> Self:
        names = ("SIGINT", "SIGTERM", "SIGHUP")  # SIGHUP exists on POSIX only
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup, or in a script's background
                self._former[number] = signal.signal(number, self._handle)
        if self._deadline_s is not None:
            self._former[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._handle)
            signal.setitimer(signal.ITIMER_REAL, max(self.left_s, 1e-3), self._grace_s)
        return self

    def __exit__(self, *_: object) -> None:
        if self._deadline_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # os.write bypasses Python's buffers, which may be in use when the signal arrives.
        self._count += 1
        is_alarm = self._deadline_s is not None and number == signal.SIGALRM
        if self._count == 1:
            self.is_late = is_alarm
            rest = "the deadline is near" if is_alarm else "interrupt again to stop at once"
            with contextlib.suppress(OSError):
                os.write(2, f"\nstopping after {self._unfinished}; {rest}\n".encode())
        elif self._count == 2:
            # As it propagates, the ledger notes that the running trial is not at fault.
            raise DeadlineInterrupt if is_alarm else KeyboardInterrupt
        else:
            show_cursor = b"\x1b[?25h\n" if os.isatty(2) else b""
            with contextlib.suppress(OSError):
                os.write(2, show_cursor)
            os._exit(LATE if is_alarm else STOPPED)
