"""The log of problems that were looked up but never measured; `autotune run --misses` tunes them.

It is a text file in the user's data folder with one line per problem and process, so the number of lines is the number
of processes that missed a problem:

    {"device": "adreno-730", "family": "gemm", "problem": {"m": 64, ...}}

Lines are appended a few at a time, and the file never grows beyond MAX_BYTES. Losing a line does no harm, so errors
while writing are ignored.
"""

import atexit
import contextlib
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar, NamedTuple

from autotune.errors import AutotuneError
from autotune.kernels import find_family, is_family
from autotune.model.problem import Problem
from autotune.paths import append_at_once, replace_file, user_data_folder

MAX_BYTES = 2**20
_MAX_LINE = 2000
_MOST_WAITING = 32
_MOST_SEEN = 10000
_WAIT_S = 5.0
SWITCH = "AUTOTUNE_MISSES"
"""Environment variable that turns the log off when its value is 0."""


class Miss(NamedTuple):
    """A problem without a measurement of its own."""

    device: str
    """Slug of the device."""
    problem: Problem


class MissLog:
    """Collects the misses of this process and appends them to the file, a few at a time and when the process exits."""

    _OF_THIS_PROCESS: ClassVar[dict[Path, "MissLog"]] = {}

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[Miss] = set()
        self._waiting: list[Miss] = []
        self._written_at = time.monotonic()
        atexit.register(self.write)

    @classmethod
    def default(cls) -> "MissLog | None":
        """Return the user's log, shared by all tables; None if it is turned off or there is no home folder."""
        if os.environ.get(SWITCH) == "0":
            return None
        try:
            path = default_file()
        except AutotuneError:
            return None
        return cls._OF_THIS_PROCESS.get(path) or cls._OF_THIS_PROCESS.setdefault(path, cls(path))

    def add(self, device: str, problem: Problem) -> None:
        """Log a problem if it is new to this process."""
        miss = Miss(device, problem)
        if miss in self._seen or len(self._seen) >= _MOST_SEEN:
            return
        self._seen.add(miss)
        self._waiting.append(miss)
        if len(self._waiting) >= _MOST_WAITING or time.monotonic() > self._written_at + _WAIT_S:
            self.write()

    def write(self) -> None:
        """Append the pending lines with a single write, so that the lines of several processes do not mix."""
        waiting, self._waiting = self._waiting, []
        self._written_at = time.monotonic()
        lines = "".join(_line(miss) for miss in waiting)
        if not lines:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_at_once(self._path, lines.encode("ascii"), MAX_BYTES)


def default_file() -> Path:
    """Return the path of the user's log, which need not exist. Raises AutotuneError without a home folder."""
    return user_data_folder() / "misses.jsonl"


def read_misses(path: Path) -> Counter[Miss]:
    """Return how often each problem was missed; lines that cannot be parsed are skipped."""
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_BYTES).splitlines()
    except OSError:
        return Counter()
    return Counter(miss for miss in map(_read_line, lines) if miss is not None)


def forget_misses(path: Path, done: set[Miss]) -> None:
    """Remove the problems that have been tuned (`done`) from the log. Raises OSError."""
    misses = read_misses(path)
    kept = "".join(_line(miss) * count for miss, count in misses.items() if miss not in done)
    replace_file(path, kept.encode("ascii"))


def _line(miss: Miss) -> str:
    data = {"device": miss.device, "family": miss.problem.family, "problem": miss.problem.to_dict()}
    return json.dumps(data) + "\n"


def _read_line(line: bytes) -> Miss | None:
    if len(line) > _MAX_LINE:
        return None
    try:
        data = json.loads(line)
        if not isinstance(data["device"], str) or not is_family(data["family"]):
            return None
        return Miss(data["device"], find_family(data["family"]).problem_type.from_dict(data["problem"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, AutotuneError):
        return None
