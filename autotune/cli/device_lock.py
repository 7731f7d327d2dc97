"""A file lock for each device, so that one program at a time measures on it.

The operating system releases the lock when its holder dies.
"""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from autotune.cli.output import print_note
from autotune.device.link import split
from autotune.errors import AutotuneError, WorkerError
from autotune.model.device import Device
from autotune.paths import user_cache_folder

if TYPE_CHECKING:
    from filelock import FileLock

POLL_S = 0.5

SHARED_FOLDER = Path("/tmp")  # noqa: S108 - the one folder in which all users may write
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Environment variables that renumber the devices of a driver."""


class DeviceLock:
    """Holds the lock of a device while entered. Reports once that it waits; Ctrl-C ends the wait.

    With AUTOTUNE_DEVICE_LOCK=0 in the environment there is no lock. If no file can be locked, measuring continues
    without one.
    """

    def __init__(self, device: Device, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._device = device
        self._name = ""
        self._should_stop = should_stop
        self._lock: FileLock | None = None

    def __enter__(self) -> Self:
        """Wait for the lock. Raises WorkerError when `should_stop` ends the wait."""
        if os.environ.get("AUTOTUNE_DEVICE_LOCK") == "0":
            return self
        self._name = self._name or physical_name(self._device)
        try:
            self._lock = _lock(self._name)
            self._acquire(self._lock)
        except TimeoutError:
            raise WorkerError(f"stopped while waiting for {self._device.slug}") from None
        except (OSError, AutotuneError) as error:
            print_note(f"cannot lock a file ({error}): another program may measure on the device at the same time")
        return self

    def _acquire(self, lock: "FileLock") -> None:
        try:
            lock.acquire(blocking=False)
        except TimeoutError:
            print_note(f"waiting: {_holder(lock)} is measuring on {self._device.slug} (Ctrl-C stops waiting)")
            lock.acquire(poll_interval=POLL_S, cancel_check=self._should_stop)
        _note_holder(lock)

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()


def physical_name(device: Device) -> str:
    """Return a name of the hardware that all programs agree on; all drivers of a CPU use the same cores and name."""
    behind = split(device.selector)
    if device.family == "cpu" and not (behind and behind[0].startswith(("adb", "ssh"))):
        return "cpu"
    number = "-".join(behind) if behind else device.selector.rpartition(":")[2]
    renumbered = ",".join(os.environ.get(name, "") for name in VISIBLE).strip(",")
    return "-".join(filter(None, (device.slug, number, renumbered)))


def _folder() -> Path:
    return SHARED_FOLDER if SHARED_FOLDER.is_dir() and os.access(SHARED_FOLDER, os.W_OK) else user_cache_folder()


def _lock(name: str) -> "FileLock":
    """Return the lock of a name, whose file all users may write, despite their umasks."""
    from filelock import FileLock

    path = _folder() / f"autotune-{re.sub(r'[^A-Za-z0-9.-]', '_', name)[:100]}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, mode=0o666, fallback_to_soft=False)


def _holder(lock: "FileLock") -> str:
    with contextlib.suppress(OSError), Path(lock.lock_file).open("rb") as file:
        if found := re.match(rb"(\d{1,10})\n", file.read(20)):
            return f"process {found[1].decode()}"
    return "another process"


def _note_holder(lock: "FileLock") -> None:
    # Linux refuses to create a file that exists and belongs to another user, as opening to write would.
    with contextlib.suppress(OSError), Path(lock.lock_file).open("r+b") as file:
        file.write(f"{os.getpid()}\n".encode())
