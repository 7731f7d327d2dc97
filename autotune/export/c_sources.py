"""Many kernel sources as C data: each distinct line and each distinct run of lines is stored once.

Compilers need not accept a string of more than 4095 characters, and variants of a kernel have most of their lines in
common. So a source is a list of runs, and a run is a list of lines. The checksum of a line decides whether a run ends
after it, so that runs end at the same lines in all sources.
"""

import re
import zlib
from collections.abc import Iterable
from functools import cache

from autotune.errors import TableError

_MOST_IN_LINE = 4000
_RUN = 12
"""Average number of lines in a run."""


class SourcePool:
    """Numbers texts; equal texts share a number."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._runs: dict[tuple[int, ...], int] = {}
        self._sources: dict[tuple[int, ...], int] = {}
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, text: str) -> int:
        """Return the number of a text. Raises TableError for a line that C compilers need not accept."""
        if text not in self._known:
            source = tuple(self._run(lines) for lines in _runs(text.splitlines(keepends=True)))
            self._known[text] = self._sources.setdefault(source, len(self._sources))
        return self._known[text]

    def _run(self, lines: list[str]) -> int:
        numbers = tuple(self._lines.setdefault(_quoted(line), len(self._lines)) for line in lines)
        return self._runs.setdefault(numbers, len(self._runs))

    def to_c(self) -> str:
        """Return C definitions of `autotune_lines`, and of runs and sources as concatenated lists."""
        lines = ",\n".join(f"    {line}" for line in self._lines)
        return "\n".join(
            [
                f"static const char *const autotune_lines[] = {{\n{lines}\n}};",
                *_lists("chunk", "lines", self._runs, len(self._lines)),
                *_lists("source", "chunks", self._sources, len(self._runs)),
            ]
        )


def numbers(values: Iterable[int]) -> str:
    """Return C initializers, 24 to a line."""
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


@cache  # each line occurs some hundred times in a package
def _quoted(line: str) -> str:
    if len(line) > _MOST_IN_LINE or not line.isascii():
        raise TableError(f"a line of a kernel cannot be written in C: {line[:60]!r}")
    return f'"{quoted(line)}"'


def quoted(text: str) -> str:
    """Escape a text for use between quotation marks in C."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?").replace("\n", "\\n").replace("\t", "\\t")
    return re.sub(r"[^ -~]", "_", plain)
