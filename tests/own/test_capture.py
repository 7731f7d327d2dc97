"""Kernels captured from programs: what is recorded, the kernel files, and their replay and tuning on PoCL."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyopencl as cl
import pytest

import agents
from autotune.errors import AutotuneError, UsageError
from autotune.export.c_package import package_files
from autotune.export.contents import DeviceTable
from autotune.kernels import FILES, families_of_files, find_family
from autotune.measure.worker import Worker
from autotune.model.device import Device
from autotune.model.trial import TrialState
from autotune.own.capture import recording
from autotune.own.capture.conversion import Conversion
from autotune.own.capture.proposals import Proposal, guarded, propose, split_options, text_of
from autotune.own.capture.recording import build_library
from autotune.own.tuning import use_kernel_file
from autotune.space.search_space import SearchSpace
from factories import Run, quick_job, winner
from waiting import HANG_S

if TYPE_CHECKING:
    from autotune.own.kernel_file.family import FileFamily

DATA = Path(__file__).parents[1] / "data"
HEADERS = any((Path(folder) / "CL" / "cl.h").exists() for folder in ("/usr/include", "/usr/local/include"))
LOADERS = sorted((Path(cl.__file__).parent / ".libs").glob("libOpenCL*"))

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="not covered: programs are captured on Linux only"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
]
needs_headers = pytest.mark.skipif(not HEADERS or not LOADERS, reason="no headers of OpenCL, or no loader to link with")


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forgets the kernel files of a test, and keeps the library where tests keep theirs."""
    monkeypatch.setenv(FILES, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("CC", raising=False)
    yield
    monkeypatch.undo()
    families_of_files.cache_clear()
    find_family.cache_clear()


def compiled(folder: Path, sources: tuple[str, ...], program: str) -> str:
    """Compile and link with the loader that came with pyopencl; its driver is PoCL."""
    folder.mkdir(exist_ok=True)
    command = [
        "cc",
        "-O1",
        *sources,
        str(LOADERS[0]),
        f"-Wl,-rpath,{LOADERS[0].parent},--disable-new-dtags",
        "-lm",
        "-lpthread",
    ]
    done = subprocess.run([*command, "-o", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(folder / program)


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("launches")
    (folder / "include" / "deep").mkdir(parents=True)
    (folder / "include" / "shared.h").write_text('#include "deep/first.h"\n')
    (folder / "include" / "deep" / "first.h").write_text('#include "second.h"\n')
    (folder / "include" / "deep" / "second.h").write_text(
        "#pragma once\n#define SHARED 1\nint own(int x) { return x; }\n"
    )
    return compiled(folder, (str(DATA / "launches.c"),), "launches")


@pytest.fixture(scope="module")
def vendors() -> str:
    """Where programs find a driver that compiles for this processor, without what autotune repairs (quirks.py)."""
    script = "import pyopencl as cl; cl.Program(cl.create_some_context(False), 'kernel void f() {}').build()"
    for vendors in (os.environ.get("OCL_ICD_VENDORS", ""), "/etc/OpenCL/vendors/pocl.icd"):
        environment = {**os.environ, "OCL_ICD_VENDORS": vendors}
        if subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True).returncode == 0:
            return vendors
    pytest.skip("no driver here compiles for this processor: apt install pocl-opencl-icd")


@pytest.fixture
def captured(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendors: str) -> Any:
    """Runs a program below `autotune capture`, and returns what it tells by kernel."""

    def done(*program: str, top: int = 9) -> dict[str, dict[str, Any]]:
        monkeypatch.chdir(Path(program[0]).parent)
        with monkeypatch.context() as patch:
            patch.setenv("OCL_ICD_VENDORS", vendors)
            printed = run(["capture", "-o", str(tmp_path / "out"), "--json", "--top", str(top), "--", *program]).out
        assert not [*(tmp_path / "out").glob(".*")], "records stay only as kernel files"
        return {row["kernel"]: row for row in json.loads(printed[printed.index("[") :])}

    return done


def replay(row: dict[str, Any], pocl: Device) -> "FileFamily":
    """Check the default configuration against what the program computed."""
    os.environ[FILES] = ""
    family = use_kernel_file(Path(row["file"]))
    with Worker(selector=pocl.selector) as worker:
        trial = worker.run(quick_job(pocl, family.requests[0].problem, family.usual))
    assert trial.state is TrialState.COMPLETE, (row["kernel"], trial)
    return family


@pytest.mark.long
def test_kernels_of_a_python_program_are_replayed_and_tuned(
    captured: Any, pocl: Device, run: Run, db_file: Path
) -> None:
    rows = captured(sys.executable, str(DATA / "products.py"))
    assert [*rows] == sorted(rows, key=lambda name: -rows[name]["time_ns"])
    assert {name: row["runs"] for name, row in rows.items()} == {"matmul": 5, "scale": 5}
    assert rows["matmul"]["time_ns"] > 0 and sum(row["share"] for row in rows.values()) == pytest.approx(1)
    matmul, scale = replay(rows["matmul"], pocl), replay(rows["scale"], pocl)
    assert dict(matmul.usual.values) == {"TILE": 8}
    assert matmul.file.sizes == {"n": 64}
    assert (matmul.file.global_size, matmul.file.local_size) == ("n, n", "TILE, TILE")
    assert {name: entry.access for name, entry in matmul.file.arguments.items()} == {
        "n": "in", "a": "in", "b": "in", "c": "inout",
    }  # fmt: skip
    assert dict(scale.usual.values) == {"STEP": 2, "WORK_GROUP_X": 0}
    assert matmul.file.build_options == ("-DSTEP=2",) and scale.file.build_options == ()
    tuned = run(
        ["tune", rows["matmul"]["file"], "--device", pocl.selector, "--trials", "3", "--db", str(db_file), "--quiet"]
    )
    assert "matmul(TILE=" in tuned.out


@pytest.mark.long
def test_of_launches_one_is_taken_that_changed_something(captured: Any, tmp_path: Path, pocl: Device) -> None:
    """After one that changed nothing, no one can tell what it writes from what it reads."""
    script = tmp_path / "again.py"
    script.write_text("""
import numpy as np, pyopencl as cl
context = cl.create_some_context(False)
queue = cl.CommandQueue(context)
source = "kernel void summed(global float *x, global float *y, int times) { float sum = 0;"
source += "for (int i = 0; i < times; i++) sum += x[(get_global_id(0) + i) % 64]; y[get_global_id(0)] = sum > 0; }"
x, y = (cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=np.full(64, v, np.float32)) for v in (2, 0))
kernel = cl.Kernel(cl.Program(context, source).build(), "summed")
for times in (3, 300000):
    kernel(queue, (64,), None, x, y, np.int32(times)).wait()
""")
    row = captured(sys.executable, str(script))["summed"]
    assert row["sizes"] == 2 and replay(row, pocl).file.sizes == {"times": 3}


@pytest.mark.long
@needs_headers
def test_every_kind_of_argument_is_replayed(captured: Any, launches: str, pocl: Device) -> None:
    rows = captured(launches, "arguments")
    assert "global offset" in rows.pop("late")["obstacle"]
    families = {name: replay(row, pocl) for name, row in rows.items()}
    assert {*families} == {"adjust", "part", "sums", "pixels", "together"}
    of = {name: family.file.arguments for name, family in families.items()}
    assert [of["adjust"][name].buffer for name in ("x", "p", "w")] == ["float32", "uint8", "uint8"], "by value"
    assert of["adjust"]["p"].size == 8 and of["adjust"]["w"].size == 16
    assert of["part"]["in"].size == "work_items" and of["part"]["out"].size == 4096, "a part of a buffer"
    assert "SHARED" in families["part"].file.parameters, "what is included can vary, too"
    assert of["sums"]["scratch"].local == "4 * WORK_GROUP_X"
    assert (of["pixels"]["image"].image, of["pixels"]["image"].size) == ("float32", "128, 8")
    assert families["together"].file.launches[0].arguments == ("a", "a"), "one buffer twice"


@pytest.mark.long
@needs_headers
def test_a_kernel_of_an_exported_package_is_replayed(captured: Any, tmp_path: Path, pocl: Device) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    problem = find_family("gemm").problem_type.parse("48,32,64")
    space = SearchSpace(find_family("gemm"), problem, pocl.limits, algorithms=["local_tile"])
    drawn = (space[number] for number in range(0, len(space), 101))
    narrow = next(c for c in drawn if c["vector_width"] == 4)
    table = DeviceTable(device=pocl, winners=(winner(pocl, problem, narrow),))
    for name, text in package_files({"gemm": [table]}).items():
        (folder / name).write_text(text)
    example = compiled(folder, ("autotune.c", "main.c"), "example")
    rows = captured(example, "48", "32", "64", pocl.slug, top=1)
    (row,) = rows.values()
    family = replay(row, pocl)
    assert len(family.file.outputs) == 1 and family.file.parameters


@pytest.mark.long
@needs_headers
@pytest.mark.parametrize(("mode", "runs"), [("crash", 3), ("user-event", 2), ("threads", 400), ("binary", 3)])
def test_programs_are_recorded_however_they_end_and_whatever_they_wait_for(
    captured: Any, launches: str, mode: str, runs: int
) -> None:
    row = captured(launches, mode)["late"]
    assert row["runs"] == runs and row["time_ns"] > 0
    assert ("not built from source" in row["obstacle"]) == (mode == "binary")
    assert bool(row["file"]) == (mode != "binary")


WAITING = """\
import os, runpy, signal, time
if {stubborn}: signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"refused\\n"))
if {launches}: runpy.run_path({program!r})
print("waits", flush=True)
while True: time.sleep(0.01)
"""
"""A handler cannot print while the program itself does, and pausing would miss a signal that came just before."""


@pytest.mark.long
@pytest.mark.parametrize(("launches", "stubborn"), [(True, False), (True, True), (False, False)])
def test_who_ends_a_capture_ends_the_program_and_keeps_what_it_launched(
    launches: bool, stubborn: bool, tmp_path: Path, vendors: str
) -> None:
    text = WAITING.format(launches=launches, stubborn=stubborn, program=str(DATA / "products.py"))
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", "capture", "-o", "out", "--", sys.executable, "-c", text],
        cwd=tmp_path, env={**os.environ, "OCL_ICD_VENDORS": vendors}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as capture:  # fmt: skip
        assert capture.stdout and capture.stdout.readline() == "waits\n"
        capture.terminate()
        if stubborn:
            assert capture.stdout.readline() == "refused\n"
            capture.terminate()
        printed, told = capture.communicate(timeout=HANG_S)  # waits for the program, too, which writes to the same pipe
    if launches:
        assert f"ended by signal {9 if stubborn else 15}; what it launched before is recorded" in told
        assert "matmul/kernel.toml: TILE" in printed and capture.returncode == 0
        assert (tmp_path / "out" / "matmul" / "kernel.toml").exists()
    else:
        assert "called no OpenCL function" in told and "waits" not in printed, "it is not run again"
        assert capture.returncode == 1
    assert not [*(tmp_path / "out").glob(".*")]


@pytest.mark.long
def test_a_program_that_ends_in_order_when_it_is_asked_to_is_not_run_again(tmp_path: Path) -> None:
    text = (
        "import os, signal, sys\n"
        "if os.path.exists('runs'): sys.exit('it runs again')\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "open('runs', 'w').close()\n"
        "print('waits', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", "capture", "-o", "out", "--", sys.executable, "-c", text],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as capture:  # fmt: skip
        assert capture.stdout and capture.stdout.readline() == "waits\n"
        capture.terminate()
        _, told = capture.communicate(timeout=HANG_S)
    assert "ended with status 143, and called no OpenCL function" in told
    assert "it runs again" not in told


class Program:
    """What a program is sent, and what happens while it is."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.sent: list[int] = []
        self._meanwhile = iter([meanwhile])

    def send_signal(self, number: int) -> None:
        self.sent.append(number)
        for happens in self._meanwhile:
            happens()


@pytest.mark.parametrize("is_started", [True, False])
def test_second_signal_kills_the_program_however_soon_it_comes(is_started: bool) -> None:
    program: Any = Program(lambda: signal.raise_signal(signal.SIGHUP))
    with recording._passing_signals() as passing:
        if is_started:
            passing.to(program)
        signal.raise_signal(signal.SIGTERM)
        if not is_started:
            passing.to(program)
    assert program.sent == [signal.SIGTERM, signal.SIGKILL] and passing.asked == [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.long
@needs_headers
def test_without_layers_the_library_is_preloaded(
    launches: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendors: str
) -> None:
    monkeypatch.chdir(Path(launches).parent)
    monkeypatch.setenv("OCL_ICD_VENDORS", vendors)
    environment = {**os.environ, "LD_PRELOAD": str(build_library()), "AUTOTUNE_CAPTURE": str(tmp_path)}
    for program in ([launches], [sys.executable, str(DATA / "products.py")]):
        subprocess.run(program, check=True, env=environment, capture_output=True)
    found = [launch for folder in tmp_path.iterdir() for launch in recording._launches(folder)]
    assert {"adjust", "part", "sums", "pixels", "matmul", "scale"} <= {launch.kernel for launch in found}
    assert all(launch.arguments for launch in found)


@pytest.mark.long
@needs_headers
def test_the_library_waits_for_no_thread_that_opens_others(tmp_path: Path) -> None:
    """A thread of PoCL opens a library for each kernel; one of 66 programs without a layer waited for it for ever."""
    (tmp_path / "nothing.c").write_text("int nothing;\n")
    for words in (
        ["-shared", "-fPIC", "nothing.c", "-o", "nothing.so"],
        [str(DATA / "opener.c"), str(build_library()), "-ldl", "-lpthread", "-o", "opener"],
    ):
        subprocess.run(["cc", *words], cwd=tmp_path, check=True)
    command = [tmp_path / "opener", LOADERS[0], tmp_path / "nothing.so"]
    for _ in range(20):
        subprocess.run(command, check=True, timeout=HANG_S)


@pytest.mark.long
@needs_headers
def test_contents_make_room_for_those_of_launches_that_take_longer(
    launches: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendors: str
) -> None:
    monkeypatch.chdir(Path(launches).parent)
    monkeypatch.setenv("OCL_ICD_VENDORS", vendors)
    most_bytes = 100_000  # of 6 launches with 16 to 64 KiB each
    found, status = recording.record([launches, "arguments"], tmp_path, most_bytes)
    here = sum(path.stat().st_size for path in tmp_path.glob("*/*-*.bin"))
    assert status == 0 and 0 < here <= most_bytes
    assert {bool(launch.arguments) for launch in found} == {True, False}


@pytest.mark.long
def test_what_a_program_has_preloaded_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("LD_PRELOAD", str(build_library()))
    with pytest.raises(AutotuneError, match="called no OpenCL"):
        recording.record(["sh", "-c", f"echo $LD_PRELOAD > {tmp_path / 'told'}"], tmp_path / "empty", 1)
    assert (tmp_path / "told").read_text().split() == [f"{build_library()}:{build_library()}"]


@pytest.mark.long
def test_what_cannot_be_captured_is_refused_with_a_hint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "out")
    assert "called no OpenCL function" in run(["capture", "-o", folder, "--", "true"], 1).err
    assert "cannot be started" in run(["capture", "-o", folder, "--", str(tmp_path / "none")], 2).err
    assert "no program to run" in run(["capture", "-o", folder], 2).err
    (tmp_path / "out" / "mine").write_text("")
    assert "is not empty" in run(["capture", "-o", folder, "--", "true"], 2).err
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UsageError, match="no C compiler no-such-compiler") as raised:
        build_library()
    assert "apt install gcc" in raised.value.hint
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho wrong >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(UsageError, match="cannot build the recording library: wrong"):
        build_library()


def test_options_of_a_program_are_kept_as_they_are(tmp_path: Path) -> None:
    """Braces too, which in a kernel file enclose names."""
    (tmp_path / "f.cl").write_text("__kernel void f(__global int *a) { const int all[] = ALL; a[0] = all[0]; }\n")
    for name in ("before", "after"):
        (tmp_path / name).write_text(f"{name:>8}")
    changed = recording.Argument(
        name="a", type="int*", address=cl.kernel_arg_address_qualifier.GLOBAL, qualifier=0,
        access=cl.kernel_arg_access_qualifier.NONE, size=8, value=b"", memory=1, parent=1,
        bytes=8, object=cl.mem_object_type.BUFFER, before=tmp_path / "before", after=tmp_path / "after",
    )  # fmt: skip
    launch = recording.Launch(
        kernel="f", source=tmp_path / "f.cl", options="-DALL={1,2} -cl-mad-enable", device="", global_size=(1,),
        local_size=(1,), offset=(), obstacle="", runs=1, time_ns=1.0, folder=tmp_path, arguments=(changed,),
    )  # fmt: skip
    family = use_kernel_file(Conversion(launch, "f", "captured").write(tmp_path / "out"))
    options = family.further_options(family.usual, family.requests[0].problem.to_dict())
    assert options == ["-DALL={1,2}", "-cl-mad-enable"]


def proposed(source: str, items: tuple[int, ...], group: tuple[int, ...] = (), **sizes: int) -> Proposal:
    macros = dict(re.findall(r"#define (\w+) (\d+)", source))
    return propose("f", source, macros, {}, items, group, sizes)


def test_work_groups_are_proposed_only_where_the_kernel_does_not_use_them() -> None:
    plain = "__kernel void f(__global int *a) { a[get_global_id(0)] = 1; }"
    assert proposed(plain, (96,), (16,)).parameters == {"WORK_GROUP_X": [4, 8, 16, 32]}
    assert proposed(plain, (97,)).parameters == {"WORK_GROUP_X": [0, 1]}
    assert proposed(plain, (97,)).driver_chooses == "WORK_GROUP_X == 0"
    both = proposed(plain, (8, 8))
    assert both.local_size == "WORK_GROUP_X, WORK_GROUP_Y" and "whole_group" in both.constraints
    fixed = proposed(plain.replace("get_global_id", "get_local_id"), (96,), (16,))
    assert (fixed.parameters, fixed.local_size) == ({"WORK_GROUP_X": [16]}, "WORK_GROUP_X")


def test_numbers_that_the_launch_depends_on_are_tied_to_it() -> None:
    required = (
        "#define WIDE 16\n#define HIGH 16\n#define WORK 4\n"
        "__kernel __attribute__((reqd_work_group_size(WIDE, HIGH, 1))) void f() { g(WORK); }"
    )
    found = proposed(required, (64, 16), (16, 16), m=256)
    assert found.local_size == "WIDE, HIGH" and found.default == {"WIDE": 16, "HIGH": 16, "WORK": 4}
    assert found.parameters["HIGH"] == [4, 8, 16], "it divides the work-items"
    tiles = (
        "#define TILE 64\n#define WG 8\n"
        "__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void f() { t(TILE, get_local_id(0)); }"
    )
    assert proposed(tiles, (128, 1), (8, 1), m=1024).global_size == "ceil_div(m, TILE) * WG, 1"
    shared = proposed("#define EACH 4\n__kernel void f() { f(EACH, get_global_id(0)); }", (256,), (64,), m=1024)
    assert shared.global_size == "ceil_div(m, EACH)"
    assert shared.constraints == {"group_divides_x": "ceil_div(m, EACH) % max(WORK_GROUP_X, 1) == 0"}


def test_numbers_are_those_that_the_kernel_uses() -> None:
    source = (
        "#define USED 4\n#define OTHER 4\n#define DEEP 2\n#define SWITCH 1\n#define SIZE 4096\n#define PI 3\n"
        "#define PRECISION 32\n#define VALUE(x) (DEEP * (x))\n#if SWITCH\n#endif\n"
        "inline int helper(int x) { return VALUE(x) + SIZE + PI; }\n"
        "__kernel void g(__global int *a) { a[0] = OTHER; }\n"
        "__kernel void f(__global int *a) { for (int i = 0; i < USED; i++) { a[i] = helper(SWITCH) + PRECISION; } }\n"
    )
    assert "helper" in text_of("f", source) and "OTHER" not in text_of("f", source)
    found = proposed(source, (5,), (5,)).parameters
    assert found == {
        "USED": [1, 2, 4, 8, 16], "DEEP": [1, 2, 4, 8], "SWITCH": [0, 1],
    }  # fmt: skip
    assert guarded("#define A 1 // one\n#define B 2", ["A"]) == "#ifndef A\n#define A 1 // one\n#endif\n#define B 2"
    assert guarded("#define A 1 /* one\n or 2 */", ["A"]) == "#define A 1 /* one\n or 2 */", "no #endif in a comment"
    assert split_options("-D A=1 -I include -cl-mad-enable -DB='x y'") == [
        "-DA=1", "-Iinclude", "-cl-mad-enable", "-DB=x y",
    ]  # fmt: skip


@pytest.mark.long
def test_threads_may_use_the_library_at_the_same_time(tmp_path: Path) -> None:
    """Its table of functions is filled when they are called first."""
    (tmp_path / "program.c").write_text(
        "#include <pthread.h>\n"
        "int clFinish(void *);\n"
        "static void *finish(void *nothing) { clFinish(nothing); return nothing; }\n"
        "int main(void) {\n"
        "    pthread_t threads[4];\n"
        "    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, finish, 0);\n"
        "    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);\n"
        "    return 0;\n"
        "}\n"
    )
    sanitized = ["cc", "-O1", "-fsanitize=thread", "-D_GNU_SOURCE", "-lpthread", "-ldl"]
    library, driver = tmp_path / "liblayer.so", agents.fake_driver(tmp_path / "libfake.so")
    subprocess.run(
        [*sanitized, "-shared", "-fPIC", str(Path(recording.__file__).with_name("layer.c")), "-o", str(library)],
        check=True,
    )
    made = [str(tmp_path / "program.c"), str(library), str(driver), "-o", str(tmp_path / "program")]
    subprocess.run([*sanitized, *made, f"-Wl,-rpath,{tmp_path}"], check=True)
    done = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0 and "data race" not in done.stderr, done.stderr
