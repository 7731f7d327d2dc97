"""Where the time goes: named spans of work, nested, in this process and in its children.

Recording is always on in a child and costs a microsecond a span; a child's answer carries its spans along. A parent
keeps them, and its own, only while somebody collects them. Times are those of `time.perf_counter`, whose clock all
processes of a Linux machine share.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

MOST_SPANS = 10_000
"""Of a child that nobody asks for an answer; older ones are dropped."""


class Span(NamedTuple):
    """One piece of work, seconds."""

    name: str
    start: float
    end: float
    place: int
    """The process and thread whose work it was, as a number that nothing else has."""


class _Recorder:
    """The spans of this process."""

    def __init__(self) -> None:
        self.is_on = False
        self.spans: deque[Span] = deque(maxlen=MOST_SPANS)


_recorder = _Recorder()


@contextmanager
def span(name: str) -> Iterator[None]:
    """What is done within is recorded under this name, if somebody wants to know."""
    if not _recorder.is_on:
        yield
        return
    start = perf_counter()
    try:
        yield
    finally:
        _recorder.spans.append(Span(name, start, perf_counter(), _place()))


def collect(most: int | None = None) -> None:
    """From now on, spans are kept until they are taken; the last `most` of them."""
    _recorder.is_on = True
    _recorder.spans = deque(_recorder.spans, maxlen=most)


def take() -> list[Span]:
    """The spans kept since the last time, in the order in which they ended."""
    taken = []
    while _recorder.spans:
        taken.append(_recorder.spans.popleft())
    return taken


def add(spans: list[Span]) -> None:
    """Keep the spans of a child as well, if somebody wants to know."""
    if _recorder.is_on:
        _recorder.spans.extend(spans)


def _place() -> int:
    return os.getpid() << 32 | threading.get_native_id()
