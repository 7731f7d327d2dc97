"""Without being traced for coverage, which more than doubles the time of what is written in Python."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CHILDREN = "COVERAGE_PROCESS_CONFIG"
"""What coverage tells the processes that are started to be traced as well."""


@contextmanager
def untraced() -> Iterator[None]:
    """For what runs long and is covered by shorter tests."""
    trace, trace_of_threads, config = sys.gettrace(), threading.gettrace(), os.environ.pop(CHILDREN, None)
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        threading.settrace(trace_of_threads)
        if config is not None:
            os.environ[CHILDREN] = config
