"""The owner of a trial in flight: a process on a machine, and whether it still runs.

A trial that a worker of a service has in hand differs: the process that stored it is the service, and only the worker
can report what became of it, wherever the service runs by then.
"""

import ctypes
import enum
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

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
    if sys.platform == "win32":
        return _start_on_windows(process_id)
    if Path("/proc/self/stat").exists():
        return _start_from_proc(process_id)
    return _start_from_ps(process_id)


def _start_from_proc(process_id: int) -> str | None:
    try:
        # The name of the program, in parentheses, may contain any character.
        fields = Path(f"/proc/{process_id}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return _CANNOT_TELL if _exists(process_id) else None
    except OSError:
        return _CANNOT_TELL
    if fields[0] in "ZX":  # ended, and not yet reaped by its parent
        return None
    return f"{_boot()} {fields[19]}"


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_from_ps(process_id: int) -> str | None:
    if not _exists(process_id):
        return None
    command = ["ps", "-o", "lstart=", "-p", str(process_id)]  # as on macOS
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return _CANNOT_TELL


def _exists(process_id: int) -> bool:
    """Return whether a process exists. For POSIX systems only: on Windows the same call ends the process."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:  # exists, and belongs to another user
        return True
    return True


def _start_on_windows(process_id: int) -> str | None:
    kernel: Any = vars(ctypes)["windll"].kernel32
    query_limited_information, still_active = 0x1000, 259
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(kernel.OpenProcess(query_limited_information, False, process_id))
    if handle.value is None:
        access_denied = 5
        return _CANNOT_TELL if kernel.GetLastError() == access_denied else None
    times = [ctypes.c_ulonglong() for _ in range(4)]
    code = ctypes.c_ulong()
    try:
        kernel.GetExitCodeProcess(handle, ctypes.byref(code))
        is_told = kernel.GetProcessTimes(handle, *(ctypes.byref(time) for time in times))
    finally:
        kernel.CloseHandle(handle)
    if code.value != still_active:
        return None
    return str(times[0].value) if is_told else _CANNOT_TELL
