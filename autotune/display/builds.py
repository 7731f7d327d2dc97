"""Progress of builds: a live bar on a terminal, otherwise plain lines."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from autotune.display.console import Picture
from autotune.display.progress import PLAIN_LINE_EVERY_S, bar, is_live
from autotune.display.words import duration_text

if TYPE_CHECKING:
    from autotune.search.compilation import Progress


@contextmanager
def building(stream: IO[str], *, is_quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """Provide a listener for builds: a bar on a terminal, otherwise a line every ten seconds."""
    if is_quiet:
        yield lambda _: None
    elif not is_live(stream):
        yield PlainBuilding(stream)
    else:
        with bar(stream, LiveBuilding()) as listener:
            yield listener


class LiveBuilding:
    """Shows a bar for the builds of the current algorithm."""

    def __init__(self) -> None:
        self.say: Callable[[str], None] = print
        self._progress: Progress | None = None
        self._begun: dict[str, tuple[float, int]] = {}
        """When each algorithm was first reported, and how many of its configurations had been seen by then."""

    def __call__(self, progress: "Progress") -> None:
        self._begun.setdefault(progress.algorithm, (time.monotonic(), progress.seen))
        self._progress = progress

    def picture(self) -> Picture:
        progress = self._progress
        if progress is None:
            return Picture(line="starting")
        began, said = self._begun[progress.algorithm]
        pace = (time.monotonic() - began) / max(progress.seen - said, 1)
        left_s = pace * (progress.configurations - progress.seen)
        return Picture(
            title=progress.algorithm,
            done=progress.seen,
            total=max(progress.configurations, 1),
            left=f"about {duration_text(left_s)} to go" if progress.seen > said else "",
            line=building_line(progress),
        )


class PlainBuilding:
    """Prints lines for a pipe or a log: the first of an algorithm, and one every ten seconds."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._said = clock()
        self._line = ""

    def __call__(self, progress: "Progress") -> None:
        line = building_line(progress)
        if line != self._line and (not progress.seen or self._clock() - self._said >= PLAIN_LINE_EVERY_S):
            self._said, self._line = self._clock(), line
            print(line, file=self._stream, flush=True)


def building_line(progress: "Progress") -> str:
    """Describe builds: ``512x512x512 microtile: 40 of 1000 configurations, 12 sources built, 1 failed, 2 spill``."""
    subject, count = f"{progress.problem.label} {progress.algorithm}", progress.configurations
    if not count:
        return f"{subject}: no configuration is valid"
    if not progress.seen:
        return f"{subject}: {count} configuration{'' if count == 1 else 's'}"
    parts = [
        f"{progress.seen} of {count} configurations",
        f"{progress.built_sources} sources built",
        f"{progress.known_sources} known before" if progress.known_sources else "",
        f"{progress.failed_sources} failed" if progress.failed_sources else "",
        f"{progress.spilling_sources} spill" if progress.spilling_sources else "",
    ]
    return f"{subject}: {', '.join(part for part in parts if part)}"
