"""Many kernel sources as C data: each line once, each run of lines once.

Compilers need not take a string of more than 4095 characters, and variants of a kernel have most of their lines in
common. So a source is a list of runs, a run a list of lines. Runs end where a line's checksum says so, which is at the
same lines in all sources.
"""

import re
import zlib
from collections.abc import Iterable
from functools import cache

from autotune.errors import TableError

_MOST_IN_LINE = 4000
_RUN = 12
"""Lines in a run, about."""


class SourcePool:
    """Texts by number; equal ones have one."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._runs: dict[tuple[int, ...], int] = {}
        self._sources: dict[tuple[int, ...], int] = {}
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, text: str) -> int:
        """The number of a text. Raises TableError for what no C compiler need take."""
        if text not in self._known:
            source = tuple(self._run(lines) for lines in _runs(text.splitlines(keepends=True)))
            self._known[text] = self._sources.setdefault(source, len(self._sources))
        return self._known[text]

    def _run(self, lines: list[str]) -> int:
        numbers = tuple(self._lines.setdefault(_quoted(line), len(self._lines)) for line in lines)
        return self._runs.setdefault(numbers, len(self._runs))

    def to_c(self) -> str:
        """Definitions of `autotune_lines`, and of runs and sources as lists that follow each other."""
        lines = ",\n".join(f"    {line}" for line in self._lines)
        return "\n".join(
            [
                f"static const char *const autotune_lines[] = {{\n{lines}\n}};",
                *_lists("chunk", "lines", self._runs, len(self._lines)),
                *_lists("source", "chunks", self._sources, len(self._runs)),
            ]
        )


def numbers(values: Iterable[int]) -> str:
    """Initializers, so many a line."""
    texts = [str(value) for value in values]
    return ",\n".join("    " + ",".join(texts[at : at + 24]) for at in range(0, len(texts), 24))


def _runs(lines: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in lines:
        found[-1].append(line)
        if zlib.crc32(line.encode()) % _RUN == 0:
            found.append([])
    return [run for run in found if run]


def _lists(name: str, items: str, lists: Iterable[tuple[int, ...]], most: int) -> list[str]:
    starts = [0]
    joined: list[int] = []
    for numbers_of_one in lists:
        joined += numbers_of_one
        starts.append(len(joined))
    kind = "unsigned short" if most <= 65535 else "unsigned int"
    return [
        f"static const {kind} autotune_{name}_{items}[] = {{\n{numbers(joined)}\n}};",
        f"static const unsigned int autotune_{name}_starts[] = {{\n{numbers(starts)}\n}};",
    ]


@cache  # a package has each line some hundred times
def _quoted(line: str) -> str:
    if len(line) > _MOST_IN_LINE or not line.isascii():
        raise TableError(f"a line of a kernel cannot be written in C: {line[:60]!r}")
    return f'"{quoted(line)}"'


def quoted(text: str) -> str:
    """What may stand between quotation marks in C."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?").replace("\n", "\\n").replace("\t", "\\t")
    return re.sub(r"[^ -~]", "_", plain)
