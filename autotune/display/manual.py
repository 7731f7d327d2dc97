"""Prints a page of the manual in a terminal."""

import os
import shutil
from importlib.util import find_spec
from typing import TextIO

from autotune.display.console import Page
from autotune.manual import Topic, for_terminal

_MAX_COLUMNS = 100
"""Longer lines are hard to read."""


def print_manual(topic: Topic, stream: TextIO) -> None:
    """Print a page: rendered and paged on a terminal if rich is installed, otherwise as Markdown."""
    if not Page(stream).is_terminal or find_spec("rich") is None:
        stream.write(topic.text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(file=stream, width=min(shutil.get_terminal_size().columns, _MAX_COLUMNS))
    # As git does: less shows colors, and exits at once if the text fits the screen.
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        console.print(Markdown(for_terminal(topic.text), hyperlinks=False))
