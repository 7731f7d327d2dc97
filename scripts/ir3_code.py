"""Code that Mesa's Adreno compiler prints (IR3_SHADER_DEBUG=cs): its loops, and how to catch what it prints."""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Issue slots of one pass of a loop."""

    multiply_adds: int
    half_multiply_adds: int
    """Those of them in half precision, which Adreno does at up to twice the rate."""
    slots: int


def widest_loop(shader: str) -> Loop | None:
    """The loop with most multiply-adds of one printed shader; None where no loop has any."""
    labels: dict[str, int] = {}
    code: list[str] = []
    found = []
    for line in (re.sub(r"^MESA: info: ?", "", line).strip() for line in shader.splitlines()[1:]):
        if line.startswith("; CL prog"):
            break
        if label := re.match(r"(l\d+):", line):
            labels[label[1]] = len(code)
        elif line and not line.startswith((";", "@")):
            code.append(line)
            jump = re.search(r"#(l\d+)", line)
            if jump and jump[1] in labels:
                found.append(_loop(code[labels[jump[1]] :]))
    widest = max(found, key=lambda loop: loop.multiply_adds, default=None)
    return widest if widest and widest.multiply_adds else None


def _loop(code: list[str]) -> Loop:
    counts = [(1 + _number(line, "rpt"), _number(line, "nop"), line) for line in code]
    return Loop(
        multiply_adds=sum(times for times, _, line in counts if re.search(r"\bmad\.f", line)),
        half_multiply_adds=sum(times for times, _, line in counts if re.search(r"\bmad\.f16", line)),
        slots=sum(times + waits for times, waits, _ in counts),
    )


def _number(line: str, name: str) -> int:
    match = re.search(rf"\({name}(\d+)\)", line)
    return int(match[1]) if match else 0


def with_standard_error(work: Callable[[], _T]) -> tuple[_T, str]:
    """The result, and what libraries wrote to standard error meanwhile."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            result = work()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        return result, file.read().decode("utf-8", "replace")
