"""The owner of a trial in flight: a process on a machine, and whether it still runs.

A trial that a worker of a service has in hand differs: the process that stored it is the service, and only the worker
can report what became of it, wherever the service runs by then.
"""

import enum
import os
import platform
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import psutil

ELSEWHERE_LIMIT = timedelta(hours=1)
"""Age from which the owner of a trial on another machine counts as gone: whether its process runs cannot be checked
from here. A trial takes minutes at most; an hour leaves room for clocks that differ."""

_CANNOT_TELL = ""


class Fate(enum.Enum):
    """What became of an owner."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """On another machine, with a recent trial; or the trial is with a worker that has not reported yet."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a problem of a job. It is over once the problem has ended or was queued again."""

    problem: int
    """Id of the problem."""
    number: int
    """How often the problem had been taken by then."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The worker of a service that has a trial in hand."""

    worker: str
    """Name under which the worker is enrolled."""
    session: str
    """Digest of the worker's session: another process of the same worker no longer has the trial."""
    selector: str = ""
    """Selector of the device there: a worker may have several equal devices."""
    attempt: Attempt | None = None
    """What it measures for: once that is over, no more trials are begun."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """One search in one process. Process ids are reused, so the start time is part of the identity."""

    host: str
    process_id: int
    process_start: str
    """As the system reports it, with the boot it belongs to; empty if unknown."""
    run: str
    """Random, so that two searches of one process differ."""
    holder: Holder | None = None
    """The worker of a service that measures, if one does."""

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process created it."""
        return (self.host, self.process_id, self.process_start) == _this_process()

    def is_of_any(self, children: Collection[int]) -> bool:
        """Whether this process created it, or one of its children with these process ids, which run."""
        return self.is_of_this_process or (self.host == _host() and self.process_id in children)


def new_owner(holder: Holder | None = None) -> Owner:
    """Return an owner for one search in this process, or for one for which a worker of a service measures."""
    host, process_id, process_start = _this_process()
    return Owner(host=host, process_id=process_id, process_start=process_start, run=uuid.uuid4().hex, holder=holder)


def fate(owner: Owner, since: str) -> Fate:
    """Return whether the owner of a trial that began at `since` (UTC, ISO 8601) still runs."""
    if owner.holder is not None:
        return Fate.ALIVE if owner.is_of_this_process else Fate.UNKNOWN
    if owner.host != _host():
        age = datetime.now(UTC) - datetime.fromisoformat(since)
        return Fate.GONE if age > ELSEWHERE_LIMIT else Fate.UNKNOWN
    return Fate.GONE if is_gone(owner) else Fate.ALIVE


def is_gone(owner: Owner) -> bool:
    """Return whether the process has certainly ended; always False for a process on another machine."""
    if owner.host != _host():
        return False
    start = _process_start(owner.process_id)
    if start is None:
        return True
    return _CANNOT_TELL not in (start, owner.process_start) and start != owner.process_start


def _this_process() -> tuple[str, int, str]:
    return _host(), os.getpid(), _process_start(os.getpid()) or _CANNOT_TELL


@cache
def _host() -> str:
    """Return the machine's name, followed on Linux by the PID namespace: a container numbers its processes itself."""
    try:
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        namespace = ""
    return f"{platform.node()} {namespace}".strip()


def _process_start(process_id: int) -> str | None:
    """Return when a process started; empty if that is unknown, None if no process has that id."""
    try:
        process = psutil.Process(process_id)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):  # ended, and not yet reaped by its parent
            return None
        return _start(process)
    except psutil.ZombieProcess:
        return None
    except psutil.NoSuchProcess:
        return _CANNOT_TELL if _is_hidden(process_id) else None
    except psutil.Error:
        return _CANNOT_TELL


def _start(process: psutil.Process) -> str:
    """Return hundredths of a second: since the boot, which is named, on Linux, and since 1970 on other systems.

    On Linux the time since 1970 of a start changes whenever the clock is set; the time since the boot does not.
    """
    boot = _boot()
    start_s = process.create_time() - (psutil.boot_time() if boot else 0.0)
    return f"{boot} {round(100 * start_s)}".strip()


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _is_hidden(process_id: int) -> bool:
    """Return whether a process exists that belongs to another user, which Linux may be set up not to show."""
    if os.name != "posix":  # the same call ends a process on Windows
        return False
    try:
        os.kill(process_id, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
