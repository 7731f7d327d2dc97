"""Where people see what is printed: a terminal of some width, or a pipe."""

from collections.abc import Sequence
from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table

PIPE_COLUMNS = 1000
"""Width of tables that no terminal bounds."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave to the command what rich would answer with an exit of its own."""
        raise BrokenPipeError


def console_on(stream: IO[str]) -> Console:
    console = _Console(file=stream, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    return console


_NUMBERS = {
    "space",
    "configurations",
    "sources",
    "built",
    "spilling",
    "limited",
    "calls",
    "shapes",
    "GFLOP",
    "time",
    "before",
    "now",
    "samples",
    "checked",
    "rate",
}


def print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], *, hidden: set[str] | None = None
) -> None:
    table = Table(box=box.ASCII2 if not console.is_terminal else box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = [index for index, name in enumerate(columns) if name not in (hidden or set())]
    for index in shown:
        table.add_column(columns[index], justify="right" if columns[index] in _NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    console.print(table)


def print_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        console.print(f"  {name:{width}}  {value}", soft_wrap=True)
