"""Prints results: to a terminal of some width, or to a pipe, with lines of any length; and what a live bar shows.

Uses only the standard library, so that an installation without rich prints the same results.
"""

import os
import shutil
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

_RIGHT_ALIGNED = {
    "space", "configurations", "sources", "built", "spilling", "limited", "calls", "shapes", "GFLOP", "time",
    "before", "now", "trials", "samples", "verifications", "rate", "tuned", "possible", "arithmetic", "bytes",
}  # fmt: skip
_LEAST_COLUMNS = 2
"""Columns that a table keeps however narrow the terminal is."""


class Page:
    """Prints lines and tables to a stream. On a terminal, lines wrap between words and tables drop excess columns."""

    def __init__(self, stream: IO[str], *, is_wide: bool = False, is_markdown: bool = False) -> None:
        """With `is_wide`, tables keep all their columns even on a terminal; so they do in Markdown."""
        self._stream = stream
        self._is_wide = is_wide
        self._is_markdown = is_markdown
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._width = shutil.get_terminal_size().columns if self.is_terminal else 0
        encoding = (getattr(stream, "encoding", None) or "").lower()
        self._rule = "─" if self.is_terminal and encoding.startswith("utf") else "-"

    def line(self, text: str = "", *, indent: str = "") -> None:
        """Print a line; on a terminal it is wrapped, and wrapped lines after the first begin with `indent`."""
        lines = [_printable(text)]
        if self._width:
            lines = textwrap.wrap(
                lines[0],
                max(self._width - 1, 20),
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
                drop_whitespace=True,
            )
        for line in lines or [""]:
            print(line.rstrip(), file=self._stream)

    def title(self, text: str) -> None:
        is_bold = self.is_terminal and os.name == "posix" and "NO_COLOR" not in os.environ
        text = _printable(text)
        print(f"\x1b[1m{text}\x1b[0m" if is_bold else text, file=self._stream)

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.line(f"  {name:{width}}  {value}", indent=" " * (width + 4))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, ends_in_prose: bool = False) -> None:
        """Print a table, its columns ordered by importance.

        Empty columns are omitted, and on a terminal also the last columns that do not fit. With `ends_in_prose`, the
        last column is wrapped between words instead.
        """
        cells = [list(columns), *([_printable(cell) for cell in row] for row in rows)]
        if self._is_markdown:
            cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
            cells.insert(1, ["--:" if column in _RIGHT_ALIGNED else "---" for column in columns])
            print("\n".join(f"| {' | '.join(row)} |" for row in cells), end="\n\n", file=self._stream)
            return
        if ends_in_prose and self._width:
            taken = sum(max(_width(cell) for cell in column) + 2 for column in list(zip(*cells, strict=True))[:-1])
            cells = [line for row in cells for line in _broken(row, max(self._width - taken, 20))]
        kept = [index for index in range(len(columns)) if any(row[index] for row in cells[1:])]
        widths = {index: max(_width(row[index]) for row in cells) for index in kept}
        gap, cross = ("  ", self._rule * 2) if self.is_terminal else (" | ", "-+-")
        while self._width and not self._is_wide and len(kept) > _LEAST_COLUMNS:
            if sum(widths[index] + len(gap) for index in kept) - len(gap) <= self._width:
                break
            kept.pop()
        lines = [gap.join(_aligned(row[i], widths[i], columns[i]) for i in kept) for row in cells]
        lines.insert(1, cross.join(self._rule * widths[index] for index in kept))
        for line in lines:
            print(line.rstrip(), file=self._stream)


def _printable(text: str) -> str:
    """Replace non-printable characters, which could control a terminal: labels and device names are untrusted."""
    return "".join(character if character.isprintable() else " " for character in text)


def _aligned(cell: str, width: int, column: str) -> str:
    space = " " * (width - _width(cell))
    return space + cell if column in _RIGHT_ALIGNED else cell + space


def _broken(row: list[str], width: int) -> list[list[str]]:
    """Split a row into as many rows as its wrapped last cell needs."""
    parts = textwrap.wrap(row[-1], width) or [""]
    blank = [""] * (len(row) - 1)
    return [[*(row[:-1] if number == 0 else blank), part] for number, part in enumerate(parts)]


def _width(text: str) -> int:
    """Return the number of terminal cells that a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Content of a progress bar at one moment."""

    title: str = ""
    done: float = 0.0
    total: float | None = None
    """None if unknown: the bar then only pulses."""
    left: str = ""
    """Remaining time, as text."""
    line: str = ""
    """Line below the bar."""
