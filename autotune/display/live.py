"""A live progress bar on a terminal, with a line below it, redrawn four times a second."""

from collections.abc import Callable, Iterable
from typing import IO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from autotune.display.console import Picture


class LiveBar(Progress):
    """A progress bar that calls `picture` whenever it is drawn, so that clocks advance between events."""

    def __init__(self, stream: IO[str], picture: Callable[[], Picture], console: Console | None = None) -> None:
        self._picture = picture
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[left]}"))
        super().__init__(
            *columns,
            console=console or _Console(file=stream, markup=False, highlight=False, emoji=False),
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            expand=True,
        )
        self._bar = self.add_task("", total=None, left="")

    def get_renderables(self) -> Iterable[RenderableType]:
        if not self.task_ids:  # called by the base class before the task is added
            return
        picture = self._picture()
        task = self._tasks[self._bar]
        task.description, task.total, task.completed = picture.title, picture.total, picture.done
        task.fields["left"] = picture.left
        yield self.make_tasks_table([task])
        yield Text(picture.line, no_wrap=True, overflow="ellipsis")

    def say(self, line: str) -> None:
        """Print a permanent line above the bar."""
        self.console.print(line)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command handle a broken pipe; rich would exit the process."""
        raise BrokenPipeError
