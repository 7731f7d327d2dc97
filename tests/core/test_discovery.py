"""Discovery over fake drivers that refuse, lie and break, and over the real PoCL device."""

import builtins
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyopencl
import pytest

from autotune.codec import write
from autotune.device import description, discovery, processors, quirks
from autotune.device.description import Survey
from autotune.device.discovery import discover, discover_here, select
from autotune.device.families import FAMILIES
from autotune.device.processors import usable_cores
from autotune.device.profile import find_profile
from autotune.device.quirks import POCL, set_threads
from autotune.errors import DeviceSelectionError
from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY as GEMM
from autotune.kernels.gemm import GemmProblem
from autotune.measure.worker import Worker
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import Job, TrialState
from autotune.search.task import Task
from factories import device
from waiting import HANG_S

REAL_GET_DEVICE_INFO = description._get_device_info

ADRENO = {
    "name": "QUALCOMM Adreno(TM) 740",
    "vendor": "QUALCOMM",
    "vendor_id": 0x5143,
    "version": "OpenCL 3.0 Adreno(TM) 740",
    "opencl_c_version": "OpenCL C 3.0 Adreno(TM) 740",
    "driver_version": "OpenCL 3.0 QUALCOMM build: 0842.27.1 Compiler E031.50.19.18",
    "type": 4,
    "max_compute_units": 6,
    "max_work_group_size": 1024,
    "max_work_item_sizes": [1024, 1024, 1024],
    "local_mem_size": 32768,
    "local_mem_type": 1,
    "global_mem_size": 6 << 30,
    "max_mem_alloc_size": 1 << 30,
    "image_support": 1,
    "image2d_max_width": 16384,
    "image2d_max_height": 16384,
    "host_unified_memory": 1,
    "double_fp_config": 0,
    "extensions": "cl_khr_fp16  cl_khr_subgroups cl_khr_fp16 ",
    "int_ptr": 0xAD,
}
CPU = {
    "name": "pthread-AMD EPYC",
    "vendor": "AuthenticAMD",
    "version": "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic",
    "type": 2,
    "extensions": "cl_khr_fp64",
    "int_ptr": 0xC0,
}
H200 = {
    "name": "NVIDIA H200",
    "vendor": "NVIDIA Corporation",
    "vendor_id": 0x10DE,
    "version": "OpenCL 3.0 CUDA",
    "type": 4,
    "max_num_sub_groups": 0,
    "extensions": "cl_khr_fp64 cl_nv_device_attribute_query",
    "int_ptr": 0x40,
}


class FakeDevice:
    """A device that answers only what it was given; an exception given is raised."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        answer = self._answers.get(name, RuntimeError(f"clGetDeviceInfo failed: INVALID_VALUE {name}"))
        if isinstance(answer, BaseException):
            raise answer
        return answer


class FakePlatform:
    def __init__(self, name: str, devices: Sequence[Mapping[str, Any]] | Exception) -> None:
        self.name = name
        self._devices = devices

    def get_devices(self) -> list[FakeDevice]:
        if isinstance(self._devices, Exception):
            raise self._devices
        return [FakeDevice(answers) for answers in self._devices]


@pytest.fixture(autouse=True)
def raw_answers(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], list[int]]:
    """Answers of clGetDeviceInfo by device pointer and code: the real one would follow a fake's pointer."""
    answers: dict[tuple[int, int], list[int]] = {}

    def get_device_info(pointer: Any, code: int, room: Any, into: Any, size: Any) -> int:
        values = answers.get((pointer.value, code))
        if values is None:
            return -30
        size_bytes = {0x1063: 8, 0x4108: 8, 0x1066: 68}.get(code, 4)
        told = b"".join(value.to_bytes(size_bytes, "little") for value in values)
        assert len(told) <= room.value
        into[: len(told)] = told
        size._obj.value = len(told)
        return 0

    monkeypatch.setattr(description, "_get_device_info", lambda: get_device_info)
    monkeypatch.setattr(processors, "CPUINFO", Path("/no/such/file"))
    return answers


@pytest.fixture
def real_loader(monkeypatch: pytest.MonkeyPatch, raw_answers: object) -> None:
    monkeypatch.setattr(description, "_get_device_info", REAL_GET_DEVICE_INFO)
    monkeypatch.setattr(processors, "CPUINFO", Path("/proc/cpuinfo"))


def devices_of(*answers: Mapping[str, Any], platform: str = "Some platform") -> list[Device]:
    return discover_here([FakePlatform(platform, answers)])


def test_a_device_is_described_from_its_answers(raw_answers: dict[tuple[int, int], list[int]]) -> None:
    raw_answers[0xAD, 0x104A] = [64]
    (found,) = devices_of(ADRENO, platform="QUALCOMM Snapdragon(TM)")
    assert (found.slug, found.vendor, found.model, found.family) == ("adreno-740", "Qualcomm", "Adreno 740", "adreno")
    assert (found.selector, found.platform) == ("0:0", "QUALCOMM Snapdragon(TM)")
    assert (found.name, found.driver) == (ADRENO["name"], ADRENO["driver_version"])
    assert (found.version, found.opencl_c_version) == (ADRENO["version"], ADRENO["opencl_c_version"])
    assert found.limits == DeviceLimits(
        compute_units=6,
        max_work_group_size=1024,
        max_work_item_sizes=(1024, 1024, 1024),
        local_memory_bytes=32768,
        local_memory_is_dedicated=True,
        global_memory_bytes=6 << 30,
        max_allocation_bytes=1 << 30,
        has_images=True,
        max_image_width=16384,
        max_image_height=16384,
        image_pitch_alignment=64,
        sub_group_sizes=(),
        has_sub_groups=True,
        has_float16=True,
        has_float64=False,
        is_cpu=False,
        shares_host_memory=True,
        extensions=("cl_khr_fp16", "cl_khr_subgroups"),
    )


def test_a_driver_that_refuses_every_query_but_its_type_still_counts() -> None:
    (found,) = devices_of({"type": 4})
    assert (found.slug, found.family, found.name) == ("gpu-unknown", "gpu", "")
    assert found.limits.local_memory_bytes == 0
    assert found.limits.max_work_group_size == 256
    assert len(found.limits.max_work_item_sizes) == 3
    assert not found.limits.has_images
    assert found.limits.constraint_values()["max_work_group_1"] == 256


def test_nonsense_answers_do_no_harm() -> None:
    (found,) = devices_of(
        {
            "type": 4,
            "name": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            "vendor": None,
            "version": "OpenCL\n3.0\0\0",
            "driver_version": "x" * 10_000_000,
            "max_compute_units": "many",
            "max_work_item_sizes": [64],
            "max_work_group_size": 64,
            "image_support": 0,
            "image2d_max_width": 16384,
            "extensions": 7,
        }
    )
    assert found.version == "OpenCL 3.0"
    assert len(found.driver) == 1000
    assert found.limits.compute_units == 1
    assert found.limits.max_work_item_sizes == (64, 64, 64)
    assert found.limits.max_image_width == 0
    json.dumps(write(found))


@pytest.mark.parametrize(
    ("limit", "extension", "code", "answer", "sizes"),
    [
        ("sub_group_sizes", "cl_nv_device_attribute_query", 0x4003, [32], (32,)),
        ("sub_group_sizes", "cl_amd_device_attribute_query", 0x4043, [64], (64,)),
        ("sub_group_sizes", "cl_intel_required_subgroup_size", 0x4108, [32, 8, 16], (8, 16, 32)),
        ("sub_group_sizes", "cl_nv_device_attribute_query", 0x4003, [0], ()),
        ("sub_group_sizes", "cl_nv_device_attribute_query", 0x4043, [64], ()),
        ("sub_group_sizes", "cl_khr_fp16", 0x4003, [32], ()),
        ("register_allocations", "cl_arm_scheduling_controls", 0x41EB, [64, 32], (32, 64)),
        ("register_allocations", "cl_khr_fp16", 0x41EB, [64, 32], ()),
    ],
)
def test_sizes_are_asked_as_each_vendor_answers(
    raw_answers: dict[tuple[int, int], list[int]],
    limit: str,
    extension: str,
    code: int,
    answer: list[int],
    sizes: tuple[int, ...],
) -> None:
    raw_answers[0x40, code] = answer
    (found,) = devices_of({**H200, "extensions": extension})
    assert getattr(found.limits, limit) == sizes


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"version": "OpenCL 3.0 x", "max_num_sub_groups": 32}, True),
        ({"version": "OpenCL 2.1 x", "max_num_sub_groups": 32}, True),
        ({"version": "OpenCL 3.0 x", "max_num_sub_groups": 0}, False),
        ({"version": "OpenCL 3.0 x"}, False),
        ({"version": "OpenCL 2.0 x", "max_num_sub_groups": 32}, False),
        ({"version": "OpenCL 1.2 x", "extensions": "cl_intel_subgroups"}, True),
        ({"version": "OpenCL 2.0 x", "extensions": "cl_khr_subgroups"}, True),
        ({"version": "OpenCL 2.0 x", "extensions": "cl_khr_subgroups_of_nobody"}, False),
        ({"version": "nonsense", "max_num_sub_groups": 32}, False),
    ],
)
def test_sub_groups_are_there_by_extension_or_by_version(answers: dict[str, Any], expected: bool) -> None:
    (found,) = devices_of({"type": 4, **answers})
    assert found.limits.has_sub_groups is expected


def test_a_broken_platform_or_device_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    platforms = [
        FakePlatform("Broken", RuntimeError("DEVICE_NOT_FOUND\nsecond line")),
        FakePlatform("Half", [{"name": "lost"}, H200]),
        FakePlatform("Empty", []),
        FakePlatform("Good", [CPU]),
    ]
    with caplog.at_level(logging.WARNING):
        found = discover_here(platforms)
    assert [(d.selector, d.slug) for d in found] == [("1:1", "nvidia-h200"), ("3:0", "pocl-amd-epyc")]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "platform 0 (Broken): DEVICE_NOT_FOUND" in messages[0]
    assert "second line" not in messages[0]
    assert "device 1:0" in messages[1]


def test_nothing_found_says_why_and_what_to_do() -> None:
    with pytest.raises(DeviceSelectionError) as caught:
        discover_here([FakePlatform("Broken", RuntimeError("DEVICE_NOT_FOUND"))])
    assert "Broken" in caught.value.message
    assert "DEVICE_NOT_FOUND" in caught.value.message
    assert ".[pocl]" in caught.value.hint
    with pytest.raises(DeviceSelectionError, match="no OpenCL device"):
        discover_here([])


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        ("pyopencl", ImportError("libOpenCL.so.1: cannot open shared object file"), r"libOpenCL\.so\.1: cannot open"),
        ("", pyopencl.LogicError("clGetPlatformIDs", -1001), "no OpenCL platform"),
    ],
    ids=["no loader", "no platform"],
)
def test_where_opencl_cannot_be_used_at_all_the_error_is_clear(
    monkeypatch: pytest.MonkeyPatch, module: str, error: Exception, message: str
) -> None:
    real_import = builtins.__import__

    def refuse(name: str = "", *arguments: Any, **more: Any) -> Any:
        if name == module:
            raise error
        return real_import(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(pyopencl, "get_platforms", refuse)
    with pytest.raises(DeviceSelectionError, match=message) as caught:
        discover_here()
    for word in (".icd files", ".[pocl]", "LD_LIBRARY_PATH"):
        assert word in caught.value.hint


def test_icd_files_that_cannot_work_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "libgood.so"
    there.touch()
    (tmp_path / "good.icd").write_text(f"{there}\n")
    (tmp_path / "bad.icd").write_text("/gone/libgone.so\n")
    (tmp_path / "empty.icd").touch()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    with pytest.raises(DeviceSelectionError) as caught:
        discover_here([])
    bad = "bad.icd (its library /gone/libgone.so is missing)"
    assert f"(now {bad}, empty.icd (empty or unreadable), good.icd)" in caught.value.hint


@pytest.fixture
def several() -> list[Device]:
    return discover_here(
        [
            FakePlatform("QUALCOMM Snapdragon(TM)", [ADRENO]),
            FakePlatform("OpenCLOn12", [ADRENO]),
            FakePlatform("NVIDIA CUDA", [H200, {**H200, "name": "NVIDIA H200 NVL"}]),
            FakePlatform("Portable Computing Language", [CPU]),
        ]
    )


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("adreno-740", "0:0"),
        ("ADRENO-740 ", "0:0"),
        ("adreno", "0:0"),
        ("adreno-740-on12", "1:0"),
        ("openclon12", "1:0"),
        ("nvidia-h200", "2:0"),
        ("NVIDIA H200", "2:0"),
        ("h200 nvl", "2:1"),
        ("h200-nvl", "2:1"),
        ("2:1", "2:1"),
        ("cpu", "3:0"),
        ("epyc", "3:0"),
        ("PoCL", "3:0"),
        ("E031.50", "one of two"),
        ("gpu", "one of four"),
        ("nvidia", "one of two"),
        ("h200", "one of two"),
    ],
)
def test_selecting(several: list[Device], selector: str, expected: str) -> None:
    if ":" in expected:
        assert select(selector, several).selector == expected
        return
    count = {"one of two": 2, "one of four": 4}[expected]
    with pytest.raises(DeviceSelectionError, match=f"^{count} devices fit") as caught:
        select(selector, several)
    assert len([line for line in caught.value.message.splitlines() if " on " in line]) == count
    assert caught.value.exit_status == 2


def test_one_device_seen_through_two_platforms_is_told_apart_by_its_numbers() -> None:
    twice = discover_here([FakePlatform("NVIDIA CUDA", [H200]), FakePlatform("Another maker's", [H200])])
    assert twice[0].slug == twice[1].slug
    with pytest.raises(DeviceSelectionError) as caught:
        select("nvidia-h200", twice)
    assert "0:0  nvidia-h200  NVIDIA H200 on NVIDIA CUDA" in caught.value.message
    assert "1:0  nvidia-h200  NVIDIA H200 on Another maker's" in caught.value.message
    assert [select(number, twice).selector for number in ("0:0", "1:0")] == ["0:0", "1:0"]


def runtime(slug: str, driver: str, selector: str) -> Device:
    return Device(slug=slug, vendor="AMD", model="EPYC", family="cpu", driver=driver, selector=selector)


def test_the_name_of_a_vendor_selects_its_runtime() -> None:
    here = [
        replace(runtime("pocl-intel-xeon", "7.0", "0:0"), vendor="Intel"),
        replace(runtime("intel-cpu-intel-xeon", "2026.2", "1:0"), vendor="Intel"),
    ]
    for devices in (here, here[::-1]):
        assert select("intel", devices).selector == "1:0"
        assert select("pocl", devices).selector == select("cpu", devices).selector == "0:0"
        assert select("xeon", devices).selector == "0:0", "of both, PoCL"


def test_of_several_runtimes_of_one_processor_the_newest_pocl_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    here = [
        runtime("llvmpipe-amd-epyc-avx2", "26.2.6", "0:0"),
        runtime("intel-cpu-amd-epyc-avx512", "2026.2", "1:0"),
        runtime("pocl-amd-epyc-avx2", "3.0-rc2", "2:0"),
        runtime("pocl-amd-epyc-avx2", "3.1+debian", "3:0"),
        runtime("oclgrind-amd-epyc", "Oclgrind 21.10", "4:0"),
    ]
    with caplog.at_level(logging.WARNING):
        assert select("cpu", here).selector == "3:0"
    assert "pocl-amd-epyc-avx2@3.1+debian (3:0) is used for the processor" in caplog.text
    assert "pocl-amd-epyc-avx2@3.0-rc2 (2:0)" in caplog.text
    assert select("cpu", here[::-1]).selector == "3:0", "whatever the order"
    assert select("pocl-amd-epyc-avx2", here).selector == "3:0"
    assert select("cpu", here[:2]).selector == "1:0", "an imitated GPU comes last"
    assert select("pocl-amd-epyc-avx2@3.0", here).selector == "2:0"
    assert select("cpu@2026", here).selector == select("intel", here).selector == "1:0"
    assert select("2:0", here).selector == "2:0"
    with pytest.raises(DeviceSelectionError, match="no device fits 'pocl-amd-epyc-avx2@9'"):
        select("pocl-amd-epyc-avx2@9", here)
    other = runtime("pocl-amd-ryzen-7-7840u-avx512", "3.1", "5:0")
    with pytest.raises(DeviceSelectionError, match="6 devices fit 'cpu'"):
        select("cpu", [*here, other])


# Drivers that answer badly, hang or crash


def test_what_cannot_be_zero_is_not_known() -> None:
    (found,) = devices_of(
        {
            **ADRENO,
            "max_compute_units": 0,
            "global_mem_size": 0,
            "max_mem_alloc_size": 0,
            "max_work_group_size": 0,
            "max_work_item_sizes": [0, 0, 0],
        }
    )
    least = DeviceLimits()
    assert found.limits.compute_units == 1
    assert found.limits.global_memory_bytes == least.global_memory_bytes
    assert found.limits.max_allocation_bytes == least.max_allocation_bytes
    assert found.limits.max_work_group_size == least.max_work_group_size
    assert found.limits.max_work_item_sizes == (least.max_work_group_size,) * 3
    GemmProblem(m=512, n=512, k=512).check_device(found.limits)
    problem = GemmProblem(m=512, n=512, k=512)
    default = GEMM.default(problem, found.limits, find_profile(found).starting("gemm"))
    assert GEMM.violations(problem, default, found.limits) == []
    (found,) = devices_of({**ADRENO, "max_mem_alloc_size": 0})
    assert found.limits.max_allocation_bytes == 6 << 28, "OpenCL promises a quarter of the memory"


BAD_DRIVER = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void load(void) { %s; }
"""


@pytest.mark.long
@pytest.mark.usefixtures("pocl")
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("gcc"), reason="needs Linux and gcc")
@pytest.mark.parametrize(
    ("deed", "told"), [("for (;;) pause()", "took more than 1 s"), ("abort()", "killed by SIGABRT")]
)
def test_a_driver_that_hangs_or_crashes_when_loaded_hides_no_other(
    pocl: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    deed: str,
    told: str,
) -> None:
    for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES"):
        monkeypatch.setenv(name, "")  # so that what discovery sets is taken back
        monkeypatch.delenv(name)
    (tmp_path / "bad.c").write_text(BAD_DRIVER % deed)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "bad.so", "bad.c"], cwd=tmp_path, check=True)
    (tmp_path / "bad.icd").write_text(f"{tmp_path / 'bad.so'}\n")
    (tmp_path / "absent.icd").write_text("libNoSuchDriver.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    ask = discovery._ask_child

    def hurried(environment: Mapping[str, str], limit_s: float) -> Any:
        """Wait for what hangs no longer than it takes, and for all else as long as it takes."""
        files = Path(environment["OCL_ICD_VENDORS"]).glob("*.icd")
        hangs = told.startswith("took") and any("bad.so" in file.read_text() for file in files)
        return ask(environment, 1.0 if hangs else HANG_S)

    monkeypatch.setattr(discovery, "_ask_child", hurried)
    with caplog.at_level(logging.WARNING):
        found = discover()
    assert [device.platform for device in found] == ["Portable Computing Language"]
    warning = caplog.records[-1].getMessage()
    assert f"{tmp_path / 'bad.icd'} names: asking the drivers" in warning
    assert told in warning
    assert "absent.icd" not in caplog.text
    with Worker() as worker:  # children go on without the driver as well
        job = Job(selector=found[0].selector, problem=GemmProblem(m=8, n=8, k=8), configuration=GEMM.baseline)
        assert worker.run(job).state is TrialState.COMPLETE


def test_driver_that_fails_alone_is_left_out_with_a_warning(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("bad", "good"):
        (tmp_path / f"{name}.icd").write_text(f"lib{name}.so\n")

    def ask(environment: Mapping[str, str], _: float) -> Any:
        files = Path(environment["OCL_ICD_VENDORS"]).glob("*.icd")
        return "aborted" if any("bad" in file.read_text() for file in files) else Survey(devices=(pocl,), troubles=())

    monkeypatch.setattr(discovery, "_ask_child", ask)
    assert discover() == [pocl]
    assert caplog.messages[-1].startswith(f"left out the driver that {tmp_path / 'bad.icd'} names: aborted")


def test_an_incomplete_installation_is_not_blamed_on_a_driver(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('no numpy here')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", "from autotune.device.discovery import discover; discover()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert "OpenCL cannot be used: loading Python's libraries" in last
    assert "no numpy here" in last
    assert "PoCL" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_discovery_that_is_killed_from_outside_is_not_called_a_damaged_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = (
        "import os, signal\n"
        "from autotune import child\n"
        "def answer(message, entering):\n"
        f"    entering({discovery._LOADING!r})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "child.serve(answer)\n"
    )
    monkeypatch.setattr(discovery, "DISCOVERER", (sys.executable, "-c", script))
    with pytest.raises(DeviceSelectionError, match="killed by SIGKILL") as caught:
        discover()
    assert "memory runs out" in caught.value.hint


@pytest.mark.parametrize(
    "selector", ["", "  ", "9:9", "0:", "radeon", "x" * 1_000_000, "adreno-73", "adreno\n740", "%s{0}"]
)
def test_what_fits_nothing_lists_what_there_is(several: list[Device], selector: str) -> None:
    with pytest.raises(DeviceSelectionError) as caught:
        select(selector, several)
    lines = caught.value.message.splitlines()
    assert lines[0].startswith("no device fits ")
    assert len(lines[0]) < 150
    for found in several:
        assert any(line.startswith(f"  {found.selector}  {found.slug} ") for line in lines)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("selector", "named"),
    [
        ("adreno", ["/vendor/lib64/libOpenCL.so", "/system/vendor/lib64/libOpenCL.so", "LD_LIBRARY_PATH", "Termux"]),
        ("adreno-730", ["/vendor/lib64/libOpenCL.so", "OCL_ICD_VENDORS"]),
        ("mali", ["libmali.so", "/etc/OpenCL/vendors", "OCL_ICD_VENDORS"]),
        ("cpu", ['pip install ".[pocl]"']),
        ("pocl-amd-epyc", ['pip install ".[pocl]"']),
        ("intel-cpu-core-i7-8700", ['pip install ".[pocl]"']),
        ("nvidia", ["nvidia.icd"]),
        ("amd", ["amdocl64.icd"]),
        ("intel", ["intel.icd"]),
        ("gpu", [".icd files"]),
        ("something", ["autotune devices"]),
    ],
)
def test_the_mend_fits_what_was_wanted(monkeypatch: pytest.MonkeyPatch, selector: str, named: list[str]) -> None:
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    monkeypatch.delenv("OPENCL_VENDOR_PATH", raising=False)
    with pytest.raises(DeviceSelectionError) as caught:
        select(selector, [])
    assert "OpenCL shows no device" in caught.value.message
    assert [text for text in named if text not in caught.value.hint] == []
    assert "\n" not in caught.value.hint


def test_the_mend_tells_which_driver_files_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vendor.icd").write_text("libfoo.so")
    library = tmp_path / "libOpenCL.so"
    files = (str(library), str(tmp_path / "absent.so"))
    monkeypatch.setitem(FAMILIES, "adreno", replace(FAMILIES["adreno"], driver_files=files))
    library.touch()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    with pytest.raises(DeviceSelectionError) as caught:
        select("adreno", [])
    assert f"{library} (there)" in caught.value.hint
    assert "absent.so (not there)" in caught.value.hint
    assert f"{tmp_path} (now vendor.icd)" in caught.value.hint


@pytest.mark.parametrize("is_writable", [True, False])
def test_pocl_without_a_device_tells_of_a_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_writable: bool
) -> None:
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not is_writable:
        (tmp_path / "cache").write_text("a file, no folder")
    with pytest.raises(DeviceSelectionError) as caught:
        discover_here([FakePlatform(POCL, []), FakePlatform("Other", []), FakePlatform(POCL, [])])
    told = f": PoCL, which has no device where it cannot write to {tmp_path / 'cache'}: set POCL_CACHE_DIR"
    assert caught.value.message.count(told) == (0 if is_writable else 1)
    with caplog.at_level(logging.WARNING):
        assert discover_here([FakePlatform(POCL, []), FakePlatform("Good", [H200])])
    assert ("set POCL_CACHE_DIR" in caplog.text) is not is_writable


def test_plain_data_survives_json(several: list[Device]) -> None:
    for found in several:
        plain = write(found)
        assert json.loads(json.dumps(plain)) == plain
        assert DeviceLimits.from_dict(plain["limits"]) == found.limits
        assert plain["slug"] == found.slug


@pytest.mark.usefixtures("real_loader")
def test_the_real_processor_device() -> None:
    found = select("cpu", discover())
    platform_number, device_number = map(int, found.selector.split(":"))
    raw = pyopencl.get_platforms()[platform_number].get_devices()[device_number]
    assert found.name == raw.name
    assert found.slug.startswith("pocl-")
    assert (found.family, found.limits.is_cpu) == ("cpu", True)
    assert found.limits.shares_host_memory
    assert found.limits.compute_units == raw.max_compute_units
    assert found.limits.max_work_item_sizes == tuple(raw.max_work_item_sizes)
    assert found.limits.local_memory_bytes == raw.local_mem_size > 0


NO_THREADS = {"POCL_MAX_PTHREAD_COUNT": None, "POCL_CPU_MAX_CU_COUNT": None, "POCL_AFFINITY": None}


@pytest.mark.parametrize(
    ("allowed", "quota", "said", "expected"),
    [
        ((0, 1), "max", {}, {"POCL_AFFINITY": "1"}),
        ((0, 1), "max", {"POCL_AFFINITY": "0"}, {"POCL_AFFINITY": "0"}),
        ((1,), "max", {}, {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_CPU_MAX_CU_COUNT": "1"}),
        ((0, 1), "50000", {}, {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_CPU_MAX_CU_COUNT": "1"}),
        ((0, 1), "max", {"POCL_MAX_PTHREAD_COUNT": "4"}, {"POCL_MAX_PTHREAD_COUNT": "4"}),
    ],
    ids=["all cores", "not wanted", "some cores", "quota", "chosen"],
)
def test_pocl_has_a_thread_for_each_core_that_is_ours(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    allowed: tuple[int, ...],
    quota: str,
    said: dict[str, str],
    expected: dict[str, str],
) -> None:
    """Threads are not tied to cores where the environment chose their number: PoCL aborts where there are more."""
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    cores = usable_cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(quirks, "usable_cores", lambda: cores(tmp_path))
    for name in NO_THREADS:
        monkeypatch.setenv(name, said.get(name, ""))  # so that what is set is taken back
        if name not in said:
            monkeypatch.delenv(name)
    set_threads()
    assert {name: os.environ.get(name) for name in NO_THREADS} == {**NO_THREADS, **expected}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "5000 100000"}, 1),
        ({"cpu.max": "junk"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ],
)
def test_a_quota_of_processor_time_bounds_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores(tmp_path) == expected


def test_a_machine_is_busy_by_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(processors, "usable_cores", lambda: usable_cores(tmp_path))
    for waiting, is_busy in ((3.9, False), (4.1, True)):
        monkeypatch.setattr(processors, "load", lambda waiting=waiting: waiting)
        assert processors.is_busy() is is_busy


@pytest.mark.usefixtures("real_loader")
def test_the_loader_is_asked_directly_for_what_pyopencl_does_not_know() -> None:
    raw = next(device for platform in pyopencl.get_platforms() for device in platform.get_devices())
    assert description._query_numbers(raw, description.HERE, 0x1002, "uint") == (raw.max_compute_units,)
    assert description._query_numbers(raw, description.HERE, 0x1005, "size_t") == tuple(raw.max_work_item_sizes)
    assert description._query_numbers(raw, description.HERE, 0x7FFFFFFF, "uint") == ()
    assert description._query_numbers(SimpleNamespace(), description.HERE, 0x1002, "uint") == ()


@pytest.mark.parametrize(
    ("version", "capabilities", "standard"),
    [
        ("OpenCL 1.2 ", None, 0),
        ("OpenCL 2.0 Adreno(TM) 640", None, 200),
        ("OpenCL 3.0 ", None, 0),
        ("OpenCL 3.0 ", 0b0010001, 0),  # relaxed, within a work-group: the least there may be
        ("OpenCL 3.0 ", 0b0010011, 0),
        ("OpenCL 3.0 ", 0b0110001, 0),
        ("OpenCL 3.0 ", 0b0110011, 300),  # acquire and release, for the device
        ("OpenCL 1.2 ", 0b0110011, 0),
        ("nonsense", 0b0110011, 0),
    ],
)
def test_atomics_order_work_groups_where_the_driver_promises_it(
    raw_answers: dict[tuple[int, int], list[int]], version: str, capabilities: int | None, standard: int
) -> None:
    if capabilities is not None:
        raw_answers[0x40, 0x1063] = [capabilities]
    (found,) = devices_of({"type": 4, "version": version, "int_ptr": 0x40})
    assert found.limits.ordering_standard == standard


@pytest.mark.parametrize(
    ("version", "told", "standards"),
    [
        ("OpenCL 1.2 ", [], ()),
        ("OpenCL 2.0 Adreno(TM) 640", [], (200,)),
        ("OpenCL 3.0 Adreno(TM) 740", None, ()),  # it does not answer
        ("OpenCL 3.0 Adreno(TM) 740", [(1, 0), (1, 1), (1, 2), (3, 0)], (300,)),
        ("OpenCL 3.0 Adreno(TM) 740", [(3, 0), (2, 0), (1, 2)], (200, 300)),
        ("OpenCL 3.1 ", [(1, 2)], ()),
    ],
)
def test_versions_of_opencl_c_are_asked_for(
    raw_answers: dict[tuple[int, int], list[int]], version: str, told: list[tuple[int, int]] | None, standards: object
) -> None:
    if told is not None:
        raw_answers[0x40, 0x1066] = [major << 22 | minor << 12 for major, minor in told]
    (found,) = devices_of({"type": 4, "version": version, "int_ptr": 0x40})
    assert found.limits.opencl_c_standards == standards


@pytest.mark.parametrize("standards", [(), (200,), (300,), (200, 300)])
def test_a_start_with_sub_groups_is_the_default_whatever_opencl_c_there_is(standards: tuple[int, ...]) -> None:
    limits = DeviceLimits(
        has_sub_groups=True, compute_units=4, local_memory_bytes=2**15, opencl_c_standards=standards,
        extensions=("cl_khr_integer_dot_product",),
    )  # fmt: skip
    problem = find_family("reduce").problem_type.parse("512,4096")
    chosen = Task(device("mali-g610-mc4", limits=limits), problem).default
    assert chosen.algorithm == "sub_group"
    assert dict(chosen.values)["standard"] == ("CL3.0" if standards == (300,) else "CL2.0")
    assert limits.constraint_values()["has_khr_integer_dot"] == (standards != (200,))


@pytest.mark.parametrize(
    ("capability", "kibibytes"), [((7, 5), 0), ((8, 0), 144), ((8, 9), 96), ((9, 0), 144), ((12, 0), 96)]
)
def test_how_much_local_memory_a_kernel_may_declare_follows_from_the_compute_capability(
    raw_answers: dict[tuple[int, int], list[int]], capability: tuple[int, int], kibibytes: int
) -> None:
    for code, digit in zip((0x4000, 0x4001), capability, strict=True):
        raw_answers[0x40, code] = [digit]
    (found,) = devices_of(H200)
    assert found.limits.declared_local_memory_bytes == 1024 * kibibytes
