"""A slice of scripts/strangers: the main job in its smallest form, on drivers of the system and emulated processors."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyopencl
import pytest

from core.test_scripts import load
from waiting import HANG_S, wait_for

SCRIPT = load("strangers")
DRIVERS = sys.modules[SCRIPT.Place.__module__]
VENDORS = Path("/etc/OpenCL/vendors")


def without_pocl_of_pypi(folder: Path) -> str:
    """A view of the package pyopencl that brings no driver along, to be put first on Python's path."""
    package = Path(pyopencl.__file__).parent
    for path in package.rglob("*"):
        made = folder / "pyopencl" / path.relative_to(package)
        if path.is_dir():
            made.mkdir(parents=True, exist_ok=True)
        elif path.suffix != ".icd":
            made.parent.mkdir(parents=True, exist_ok=True)
            made.symlink_to(path)
    return str(folder)


def system_driver(folder: Path, *, vendor: str, package: str) -> Any:
    registered = VENDORS / f"{vendor}.icd"
    if not registered.exists():
        pytest.skip(f"{package} is not installed (Debian, Ubuntu: apt install {package})")
    vendors = folder / "vendors"
    vendors.mkdir()
    shutil.copy(registered, vendors)
    path = f"{without_pocl_of_pypi(folder / 'packages')}:{DRIVERS.REPOSITORY}"
    environment = {"OCL_ICD_VENDORS": str(vendors), "RUSTICL_ENABLE": "llvmpipe", "PYTHONPATH": path}
    return DRIVERS.Place(python=(sys.executable,), environment=environment)


def oclgrind(folder: Path) -> Any:
    program = shutil.which("oclgrind")
    if program is None:
        pytest.skip("oclgrind is not installed (Debian, Ubuntu: apt install oclgrind)")
    path = f"{without_pocl_of_pypi(folder / 'packages')}:{DRIVERS.REPOSITORY}"
    return DRIVERS.Place(python=(program, sys.executable), environment={"PYTHONPATH": path})


def emulated(folder: Path, *, cpu: str) -> Any:
    qemu = shutil.which("qemu-x86_64-static")
    if qemu is None:
        pytest.skip("QEMU is not installed (Debian, Ubuntu: apt install qemu-user-static)")
    (folder / "none").mkdir()
    python = DRIVERS.emulate(folder / "emulated", Path(qemu), cpu, Path(sys.executable))
    return DRIVERS.Place(python=(str(python),), environment={"OCL_ICD_VENDORS": str(folder / "none")})


PLACES: dict[str, Callable[[Path], Any]] = {
    "pocl-debian": partial(system_driver, vendor="pocl", package="pocl-opencl-icd"),
    "rusticl": partial(system_driver, vendor="rusticl", package="mesa-opencl-icd"),
    "oclgrind": oclgrind,
    "nehalem": partial(emulated, cpu="Nehalem"),
    "proxmox-v3": partial(emulated, cpu=DRIVERS.PROXMOX_V3),
}


def trip(place: Any, folder: Path, slowness: float = 1) -> Any:
    stranger = DRIVERS.Stranger(name="one", about="", place=lambda work: place, slowness=slowness)
    return SCRIPT.Trip(stranger=stranger, place=place, folder=folder, budget_s=10)


@pytest.mark.long
@pytest.mark.parametrize("name", PLACES)
def test_the_main_job(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_START_S", "_LINGER_S"):
        monkeypatch.setattr(SCRIPT, limit, HANG_S)
    home = tmp_path / "home"
    home.mkdir()
    there = trip(PLACES[name](tmp_path), home, slowness=4)
    database = SCRIPT.database(there)
    shape = ("--shape", "32,32,32", "--trials", "1", "--no-crossover", "--quiet")
    done = there.autotune("run", "--device", "0:0", *shape, "--db", database)
    assert (done.status, there.faults) == (0, []), done.errors
    assert SCRIPT.read_database(Path(database), SCRIPT.jobs(32)[0])["winner"]
    kinds = ("float32", "float16", "int8") if name not in {"nehalem", "proxmox-v3"} else ("float32",)
    done = there.run("gemm", "-c", SCRIPT.PRODUCTS, "0:0", database, *(f"32,32,32:{kind}" for kind in kinds))
    assert (done.status, there.faults) == (0, []), done.errors
    assert done.output.splitlines()[-1] == json.dumps({"of": len(kinds), "wrong": []})
    others = ("qgemm:17,1,64 q4_0", "rows:5,33,softmax", "qgemm:19,3,256 q4_k int8")[: len(kinds)]
    done = there.run("others", "-c", SCRIPT.OPERATIONS, "0:0", database, *others)
    assert (done.status, there.faults) == (0, []), done.errors
    assert done.output.splitlines()[-1] == json.dumps({"of": len(others), "wrong": [], "refused": []})


@pytest.mark.long
def test_an_emulated_processor_is_one_for_children_and_for_those_who_read_its_features(tmp_path: Path) -> None:
    place = emulated(tmp_path, cpu=DRIVERS.PROXMOX_V3)
    code = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {!r}], text=True))"
    there = trip(place, tmp_path)
    done = there.run("child", "-c", code.format("print(open('/proc/cpuinfo').read())"))
    assert done.status == 0, done.errors
    cpuinfo = {line.partition("\t")[0]: line.partition(": ")[2] for line in done.output.splitlines() if line}
    assert cpuinfo["vendor_id"] == "GenuineIntel" and (cpuinfo["cpu family"], cpuinfo["model"]) == ("15", "6")
    assert {"avx2", "fma", "abm", "bmi2"} <= set(cpuinfo["flags"].split())
    assert not {"avx512f", "sha_ni"} & set(cpuinfo["flags"].split())


HANGS = """
import signal, subprocess, sys
code = "import signal; print('runs', flush=True); signal.pause()"
left = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
left.stdout.readline()  # only what runs Python already surely shows its environment
print("begun", left.pid, flush=True)
{}
"""


@pytest.fixture
def here(tmp_path: Path) -> Any:
    return trip(DRIVERS.Place(python=(sys.executable,)), tmp_path)


def test_what_hangs_is_ended_with_all_that_it_started(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(subprocess.Popen[bytes]):
        """Its time is up when it has begun."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().wait()
            wait_for(lambda: "begun" in (here.folder / "hanging.out").read_text())
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", Hanging)
    done = here.run("hanging", "-c", HANGS.format("signal.pause()"))
    assert done.status is None and SCRIPT.outcome(done) == "hangs"
    assert here.faults == [f"hanging: still ran after {SCRIPT._START_S:.0f} s"]
    begun, left = done.output.split()
    assert begun == "begun"
    wait_for(lambda: has_ended(left))


def has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_leaves_processes_behind_is_told(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCRIPT, "_LINGER_S", 0.0)
    assert here.run("leaving", "-c", HANGS.format("")).status == 0
    assert here.faults == ["leaving: left 1 processes running"]


def test_what_ends_soon_after_its_parent_is_not_left_behind(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCRIPT, "_LINGER_S", HANG_S)
    monkeypatch.setattr(time, "sleep", lambda _: (here.folder / "go").touch())  # it was seen, and now ends
    ends = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {ends!r}])"
    assert (here.run("late", "-c", code).status, here.faults) == (0, [])
    assert (here.folder / "go").exists()


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise SystemExit('autotune: error: the device went away')", None),
        ("raise ValueError('oh')", "step: says 'Traceback (most recent call last)'"),
        ("import os; os.abort()", "step: SIGABRT: no message"),
        ("raise SystemExit('autotune: error: unexpected KeyError: 1')", "step: says 'unexpected'"),
        (
            "raise SystemExit('autotune: error: no configuration gave correct results for 8x8x8')",
            "step: exit status 1: ",
        ),
    ],
)
def test_only_a_plain_reason_excuses_a_failure(here: Any, code: str, fault: str | None) -> None:
    place = DRIVERS.Place(python=(sys.executable, "-c", code))
    there = trip(place, here.folder)
    assert there.autotune("run", step="step").status != 0
    if fault is None:
        assert there.faults == []
    else:
        assert any(told.startswith(fault) for told in there.faults), there.faults


def test_the_table_tells_each_stranger_in_a_line() -> None:
    job = {"winner": "panel", "trials": 9, "failed": 2, "default_over_tuned": 0.871, "over_baseline": 41.26}
    failed = {**job, "winner": None, "told": "SIGABRT: LLVM | says\nno"}
    rows = {
        "one": {"about": "One", "devices": "pocl-x", "doctor": "ok", "jobs": {"float32": job, "int8": failed},
                "lookup": "ok", "gemm": "12 of 12", "others": "7 of 7", "faults": ["bad"], "took_s": 130},
        "two": {"about": "Two", "unavailable": "apt install two"},
    }  # fmt: skip
    told = SCRIPT.table(rows).splitlines()
    assert told[2] == (
        "| One | pocl-x | ok | panel, 2/9 failed, 0.87, 41.3x | - | 2/9 failed, SIGABRT: LLVM says no "
        + "| - " * (len(SCRIPT.jobs(1)) - 3)
        + "| ok | 12 of 12 | 7 of 7 | 1 | 2 min |"
    )
    assert told[3].startswith("| Two | cannot be had: apt install two |")
    assert len({line.count("|") for line in told}) == 1
