"""Reading the trials of one problem from a database: what each valid configuration took, and for what part.

Nothing is written, and a table that is no database has none.
"""

import sqlite3
import statistics
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.family import Configuration, Problem
from autotune.lookup.sqlite_table import connect, plain

_TRIALS = """
    SELECT trials.configuration, trials.time_ns, trials.prepare_ns
    FROM trials JOIN problems ON problems.id = trials.problem_id JOIN devices ON devices.id = trials.device_id
    WHERE devices.slug = ? AND problems.family = ? AND problems.spec = ? AND trials.state = 'complete'
      AND trials.time_ns > 0
"""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A configuration's median time of one call, and the part of it spent bringing operands into another layout."""

    configuration: Configuration
    time_ns: float
    prepare_ns: float


def read_trials(source: str | Path, device: str, problem: Problem) -> list[Timed]:
    """Complete trials by configuration, of a device by its slug; empty where `source` is no database of ours."""
    path = Path(source)
    try:
        with path.open("rb") as file:
            if not file.read(16).startswith(b"SQLite format 3\0"):
                return []
        with closing(connect(path)) as connection:
            rows = connection.execute(_TRIALS, (device, problem.family, problem.key)).fetchall()
    except (OSError, AutotuneError, sqlite3.Error):
        return []
    times: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        times.setdefault(row["configuration"], []).append((row["time_ns"], row["prepare_ns"] or 0.0))
    return [
        Timed(
            configuration=Configuration.from_dict(plain(text)),
            time_ns=statistics.median(t for t, _ in found),
            prepare_ns=statistics.median(p for _, p in found),
        )
        for text, found in times.items()
    ]
