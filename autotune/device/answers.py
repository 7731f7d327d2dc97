"""Queries to drivers that cannot fail: a driver may refuse any query, or return a value that makes no sense."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

CPUINFO = Path("/proc/cpuinfo")

_LONGEST_TEXT = 1000


def ask(query: Callable[[], _T], otherwise: _T) -> _T:
    """Return a query's result, or `otherwise` if it raises anything, as pyopencl does for text that is not UTF-8."""
    try:
        return query()
    except Exception:  # noqa: BLE001
        return otherwise


def text(source: Any, attribute: str) -> str:
    """Return a string attribute on one line, printable and of bounded length; empty if the driver refuses the query.

    The spaces and NULs that drivers add at the ends are removed.
    """
    answer = ask(lambda: getattr(source, attribute), None)
    answer = "" if answer is None else str(answer)[:_LONGEST_TEXT]
    return "".join(c if c.isprintable() else " " for c in answer).strip()


def number(source: Any, attribute: str, otherwise: int = 0) -> int:
    return ask(lambda: int(getattr(source, attribute)), otherwise)


def positive(source: Any, attribute: str, otherwise: int) -> int:
    """Return a number that cannot be zero: a driver that reports zero does not know it, so `otherwise` is returned."""
    told = number(source, attribute, 0)
    return told if told > 0 else otherwise


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def cpuinfo() -> str:
    """Return the text of Linux's /proc/cpuinfo; empty on other systems."""
    try:
        return CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
