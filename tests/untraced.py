"""Without being traced for coverage, which more than doubles the time of what is written in Python."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CHILDREN = "COVERAGE_PROCESS_CONFIG"
"""What coverage tells the processes that are started to be traced as well."""


@contextmanager
def untraced() -> Iterator[None]:
    """For what runs long and is covered by shorter tests."""
    trace, config = sys.gettrace(), os.environ.pop(CHILDREN, None)
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        if config is not None:
            os.environ[CHILDREN] = config
