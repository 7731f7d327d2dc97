"""Two programs never measure on one device at once: the second one waits, and says for whom."""

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli import device_lock
from autotune.cli.device_lock import DeviceLock, physical_name
from autotune.errors import WorkerError
from autotune.model.device import Device
from autotune.service.cli.worker import LockedWorker
from waiting import HANG_S, join, wait_for

DEVICE = Device(slug="adreno-730", vendor="Qualcomm", model="Adreno 730", family="adreno", selector="9:0")
HOLDER = """
import sys
from pathlib import Path
from autotune.cli import device_lock
from autotune.model.device import Device
device_lock.SHARED_FOLDER = Path(sys.argv[1])
with device_lock.DeviceLock(Device(slug="adreno-730", vendor="", model="", family="adreno", selector="9:0")):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("AUTOTUNE_DEVICE_LOCK")
    monkeypatch.setattr(device_lock, "SHARED_FOLDER", tmp_path)
    monkeypatch.setattr(device_lock, "POLL_S", 0.01)
    return tmp_path


def hold(folder: Path) -> subprocess.Popen[str]:
    """Another process that has the lock until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_program_waits_and_says_for_whom(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with hold(folder) as other:

        def let_it_end() -> bool:
            """Asked where the program waits."""
            assert other.stdin is not None
            other.stdin.close()
            return False

        with DeviceLock(DEVICE, let_it_end):
            assert other.wait(timeout=HANG_S) == 0
        told = capfd.readouterr().err
        assert told == f"waiting: process {other.pid} is measuring on adreno-730 (Ctrl-C stops waiting)\n"


def test_a_holder_that_is_killed_leaves_no_lock(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with hold(folder) as other:
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=HANG_S)
        with DeviceLock(DEVICE):
            assert capfd.readouterr().err == ""


def test_waiting_ends_when_asked_to(folder: Path) -> None:
    with hold(folder) as other:
        with pytest.raises(WorkerError, match="stopped while waiting for adreno-730"):
            DeviceLock(DEVICE, lambda: True).__enter__()
        other.kill()


def test_other_devices_are_not_waited_for(folder: Path) -> None:
    another = Device(slug="adreno-730", vendor="", model="", family="adreno", selector="9:1")
    with hold(folder) as other, DeviceLock(another):
        other.kill()


def test_a_worker_holds_it_during_a_trial_only(folder: Path) -> None:
    is_waiting, is_running, may_end = threading.Event(), threading.Event(), threading.Event()

    def looks() -> bool:
        """Asked where the worker waits for the lock."""
        is_waiting.set()
        return False

    class SlowWorker:
        waited_s = 0.0

        def run(self, job: object) -> object:
            is_running.set()
            assert may_end.wait(HANG_S)
            return job

    worker = LockedWorker(SlowWorker(), DeviceLock(DEVICE, looks))  # type: ignore[arg-type]
    thread = threading.Thread(target=worker.run, args=("job",))
    with DeviceLock(DEVICE):
        thread.start()
        assert is_waiting.wait(HANG_S)
        wait_for(lambda: worker.waited_s > 0.01)
        assert not is_running.is_set()
    assert is_running.wait(HANG_S)
    assert worker.waited_s > 0.01
    with pytest.raises(WorkerError):
        DeviceLock(DEVICE, lambda: True).__enter__()
    may_end.set()
    join(thread)
    with DeviceLock(DEVICE, lambda: True):
        pass


def test_all_drivers_of_a_processor_share_one_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    pocl = Device(slug="pocl-amd-epyc", vendor="AMD", model="EPYC", family="cpu", selector="0:0")
    intel = Device(slug="intel-cpu-amd-epyc", vendor="AMD", model="EPYC", family="cpu", selector="1:0")
    assert physical_name(pocl) == physical_name(intel) == "cpu"
    for selector, is_here in (("exec:./agent#0:0", True), ("adb:X1#0:0", False), ("ssh:board#0:0", False)):
        assert (physical_name(replace(pocl, selector=selector)) == "cpu") == is_here
    assert physical_name(DEVICE) == "adreno-730-0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert physical_name(DEVICE) == "adreno-730-0-3", "number 0 is another device than without the variable"


def test_measuring_goes_on_where_no_file_can_be_locked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "autotune-adreno-730-0.lock").mkdir()
    with DeviceLock(DEVICE):
        assert "cannot lock a file" in capfd.readouterr().err
    monkeypatch.setenv("AUTOTUNE_DEVICE_LOCK", "0")
    with DeviceLock(DEVICE):
        assert capfd.readouterr().err == ""
