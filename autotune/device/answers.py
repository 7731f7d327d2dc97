"""What drivers answer, read so that none can do harm: a driver may refuse any query, or answer what makes no sense."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

CPUINFO = Path("/proc/cpuinfo")

_LONGEST_TEXT = 1000


def ask(query: Callable[[], _T], otherwise: _T) -> _T:
    """The answer to a query, or `otherwise` where it raises anything, as pyopencl does for text that is not UTF-8."""
    try:
        return query()
    except Exception:  # noqa: BLE001
        return otherwise


def text(source: Any, attribute: str) -> str:
    """A string on one line, printable and bounded, without the spaces and NULs that drivers add; empty if refused."""
    answer = ask(lambda: getattr(source, attribute), None)
    answer = "" if answer is None else str(answer)[:_LONGEST_TEXT]
    return "".join(c if c.isprintable() else " " for c in answer).strip()


def number(source: Any, attribute: str, otherwise: int = 0) -> int:
    return ask(lambda: int(getattr(source, attribute)), otherwise)


def positive(source: Any, attribute: str, otherwise: int) -> int:
    """A number that cannot be zero: a driver that says so does not know it."""
    told = number(source, attribute, 0)
    return told if told > 0 else otherwise


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def cpuinfo() -> str:
    """What Linux tells of the processors; empty on other systems."""
    try:
        return CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
