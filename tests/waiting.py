"""Waiting for what other threads and processes do.

No test may fail because a machine is slow: limits only end a hang, so there is one, far above what anything takes.
"""

import linecache
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from autotune.errors import ServiceError

HANG_S = 600.0
"""How long anything may take before it counts as hanging, however busy the machine is."""


def wait_for(condition: Callable[[], Any], *, seen: Callable[[], object] | None = None) -> Any:
    """Return the first true value of the condition, which is asked again and again.

    A service that does not answer yet counts as false. `seen` is called when the condition hangs: it returns the state
    to report in its place, for a condition whose own value says little.
    """
    end = time.monotonic() + HANG_S
    last: object = None
    while time.monotonic() < end:
        try:
            last = value = condition()
        except ServiceError as error:
            last = error
        else:
            if value:
                return value
        time.sleep(0.01)
    caller = sys._getframe(1)
    line = linecache.getline(caller.f_code.co_filename, caller.f_lineno).strip()
    raise AssertionError(f"waited {HANG_S:g} s at `{line}`; the last state was {seen() if seen else last!r}")


def join(thread: threading.Thread) -> None:
    """Wait until the thread has ended."""
    thread.join(HANG_S)
    assert not thread.is_alive(), f"{thread} still runs after {HANG_S:g} s"


def in_threads(*works: Callable[[], object]) -> None:
    """Do all of it at once, each in a thread of its own, and wait until it is done."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
