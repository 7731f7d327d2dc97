"""Tracing: nested, named spans of work, in this process and in its children.

A child always records, at a microsecond per span, and sends its spans with each answer. A parent keeps them, and its
own, only after `collect` was called. Times come from `time.perf_counter`, whose clock all processes of a Linux machine
share.
"""

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

MOST_SPANS = 10_000
"""Spans that a child keeps between answers; older ones are dropped."""


class Span(NamedTuple):
    """One piece of work; `start` and `end` in seconds."""

    name: str
    start: float
    end: float
    place: int
    """Process and thread that did the work, as one unique number."""


class _Recorder:
    """The spans of this process."""

    def __init__(self) -> None:
        self.is_on = False
        self.spans: deque[Span] = deque(maxlen=MOST_SPANS)


_recorder = _Recorder()


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the time spent in the context under this name, if recording is on."""
    if not _recorder.is_on:
        yield
        return
    start = perf_counter()
    try:
        yield
    finally:
        _recorder.spans.append(Span(name, start, perf_counter(), _place()))


def collect(most: int | None = None) -> None:
    """Turn recording on: keep the last `most` spans (all if None) until they are taken."""
    _recorder.is_on = True
    _recorder.spans = deque(_recorder.spans, maxlen=most)


def take() -> list[Span]:
    """Return and forget the spans kept since the last call, in the order in which they ended."""
    taken = []
    while _recorder.spans:
        taken.append(_recorder.spans.popleft())
    return taken


def add(spans: list[Span]) -> None:
    """Keep the spans of a child as well, if recording is on."""
    if _recorder.is_on:
        _recorder.spans.extend(spans)


def _place() -> int:
    return os.getpid() << 32 | threading.get_native_id()
