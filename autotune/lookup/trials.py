"""Reads the trials of one problem from a database: the time of each configuration and how much of it is preparation.

Nothing is written. A table that is not a database has no trials.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.lookup.database import plain
from autotune.lookup.sqlite_table import File
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.problem import Problem

_TRIALS = """
    SELECT trials.configuration, trials.time_ns, trials.prepare_ns, trials.template_hash
    FROM trials JOIN problems ON problems.id = trials.problem_id JOIN devices ON devices.id = trials.device_id
    WHERE devices.slug = ? AND devices.driver = ? AND devices.version = ?
      AND problems.family = ? AND problems.spec = ? AND trials.state = 'complete' AND trials.time_ns > 0
    ORDER BY trials.id
"""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A configuration's median time of one call, and the part of it spent converting operands to another layout."""

    configuration: Configuration
    time_ns: float
    prepare_ns: float
    template_hash: str = ""
    """Hash of the measured templates; empty if unknown."""


def read_trials(place: str | Path, device: Device, problem: Problem) -> list[Timed]:
    """Return the complete trials on this device with this driver and version, combined by configuration.

    Only trials with the templates that a configuration was last measured with count. The list is empty if `place`
    (a path or URL) is not a database of this project.
    """
    try:
        source = _source(place)
        if source is None:
            return []
        with source.reading() as ask:
            rows = ask(_TRIALS, device.slug, device.driver, device.version, problem.family, problem.key)
    except (OSError, AutotuneError):
        return []
    latest = {configuration: template_hash for configuration, _, _, template_hash in rows}
    times: dict[str, list[tuple[float, float]]] = {}
    for configuration, time_ns, prepare_ns, template_hash in rows:
        if template_hash == latest[configuration]:
            times.setdefault(configuration, []).append((time_ns, prepare_ns or 0.0))
    return [
        Timed(
            configuration=Configuration.from_dict(plain(text)),
            time_ns=statistics.median(t for t, _ in found),
            prepare_ns=statistics.median(p for _, p in found),
            template_hash=str(latest[text]),
        )
        for text, found in times.items()
    ]


def _source(place: str | Path) -> File | None:
    with Path(place).open("rb") as file:
        return File(Path(place)) if file.read(16).startswith(b"SQLite format 3\0") else None
