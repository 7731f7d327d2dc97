"""The processor name that PoCL compiles for: the choice by features, and its replacement in the device structure."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.device import processors
from autotune.device.processors import vector_class
from autotune.device.quirks import compiler_target, library_and_name, repair_processor_name
from autotune.model.device import Device
from waiting import HANG_S

SSSE3 = "fpu sse2 pni ssse3 cx16"
SSE4 = f"{SSSE3} sse4_1 sse4_2 popcnt"
AVX2 = f"{SSE4} movbe avx f16c fma bmi1 bmi2 avx2 lahf_lm abm"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
LIBC = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value or 0


def cpuinfo(flags: str) -> str:
    return f"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n"


@pytest.mark.parametrize(
    ("flags", "library", "name", "vectors"),
    [
        pytest.param("fpu sse2 pni cx16", "sse2", "x86-64", "sse", id="kvm64, qemu64"),
        pytest.param("fpu sse2 pni cx16 popcnt lahf_lm abm", "sse2", "x86-64", "sse", id="Opteron G3"),
        pytest.param("fpu sse2 pni ssse3 lahf_lm", "sse2", "x86-64", "sse", id="Conroe without cx16"),
        pytest.param(SSSE3, "ssse3", "core2", "sse", id="Conroe"),
        pytest.param(f"{SSSE3} sse4_1 lahf_lm", "sse41", "penryn", "sse", id="Penryn"),
        pytest.param(SSE4, "sse41", "penryn", "sse", id="Nehalem, Westmere, Proxmox's x86-64-v2"),
        pytest.param(f"{SSE4} movbe lahf_lm", "sse41", "penryn", "sse", id="Denverton, Snowridge"),
        pytest.param(f"{SSE4} movbe bmi1 bmi2 lahf_lm abm", "sse41", "penryn", "sse", id="Haswell without AVX"),
        pytest.param(f"{SSE4} movbe lahf_lm abm", "sse41", "penryn", "sse", id="Pentium of Skylake's time"),
        pytest.param(f"{SSE4} avx lahf_lm", "avx", "sandybridge", "avx", id="Sandy Bridge, old Zhaoxin"),
        pytest.param(f"{SSE4} avx f16c lahf_lm", "avx_f16c", "ivybridge", "avx", id="Ivy Bridge"),
        pytest.param(f"{SSE4} movbe avx f16c lahf_lm abm", "avx_f16c", "ivybridge", "avx", id="Skylake without AVX2"),
        pytest.param(f"{SSE4} avx f16c bmi1 bmi2 abm", "avx_f16c", "ivybridge", "avx", id="Zen 2 without AVX2"),
        pytest.param(f"{SSE4} avx xop fma4 lahf_lm abm", "avx_fma4", "bdver1", "avx", id="Bulldozer"),
        pytest.param(f"{SSE4} avx xop fma4 f16c fma bmi1 abm", "avx_fma4", "bdver1", "avx", id="Piledriver"),
        pytest.param(f"{AVX2} xop fma4", "avx2", "haswell", "avx2", id="Excavator"),
        pytest.param(AVX2, "avx2", "haswell", "avx2", id="Raptor Lake, x86-64-v3, masked AVX-512, Zen 1 to 3"),
        pytest.param(AVX2.replace(" abm", ""), "avx_f16c", "ivybridge", "avx", id="AVX2 without lzcnt"),
        pytest.param(AVX512, "avx512", "skylake-avx512", "avx512", id="Skylake-SP, Ice Lake, Zen 4, Zen 5"),
        pytest.param(f"{AVX2} avx512f avx512pf avx512er avx512cd", "avx512", "knl", "avx512", id="Knights Landing"),
    ],
)
def test_the_name_belongs_to_the_library_that_pocl_takes(flags: str, library: str, name: str, vectors: str) -> None:
    assert library_and_name(cpuinfo(flags)) == (library, name)
    assert vector_class("", name) == vectors, "of code for the name"


@pytest.mark.parametrize("text", ["", "processor : 0\n", "Features\t: fp asimd evtstrm\n", "flags\t\t:\n"])
def test_where_linux_tells_no_flags_of_x86_there_is_no_choice(text: str) -> None:
    chosen = library_and_name(text)
    assert chosen is None or text.startswith("Features")


class Structure:
    """A device of PoCL, whose structure begins with the table of functions and points to the name somewhere."""

    def __init__(self, name: str, *, driver: str = "3.0-rc2", owner: int = 0, points_to: str | None = None) -> None:
        self.version = f"OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-{name}"
        self.driver_version = driver
        self.text = ctypes.create_string_buffer((name if points_to is None else points_to).encode())
        self.words = (ctypes.c_uint64 * 600)(*range(600))
        self.words[0] = owner or _function_of_the_wheel()
        self.words[80] = ctypes.addressof(self.text)
        self.int_ptr = ctypes.addressof(self.words)

    @property
    def name(self) -> str:
        return ctypes.string_at(self.words[80]).decode()


def _function_of_the_wheel() -> int:
    import pyopencl

    function = ctypes.CDLL(pyopencl._cl.__file__).clGetDeviceInfo
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@pytest.fixture
def on_haswell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processors, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(cpuinfo(AVX2))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.usefixtures("on_haswell")
@pytest.mark.parametrize("told", ["generic", "goldmont", "k8", "skylake-avx512", "znver3"])
def test_the_pointer_is_replaced_and_the_text_left(told: str) -> None:
    device = Structure(told)
    before = list(device.words)
    assert repair_processor_name(device)  # type: ignore[arg-type]
    assert device.name == "haswell" == compiler_target(device)  # type: ignore[arg-type]
    assert device.text.value.decode() == told
    assert [i for i, word in enumerate(device.words) if word != before[i]] == [80]
    assert not repair_processor_name(device), "twice"  # type: ignore[arg-type]
    assert device.name == "haswell"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.usefixtures("on_haswell")
@pytest.mark.parametrize(
    "device",
    [
        pytest.param(Structure("goldmont", driver="5.0"), id="PoCL 5.0 takes the library's name itself"),
        pytest.param(Structure("goldmont", driver="7.1+debian"), id="newer"),
        pytest.param(Structure("goldmont", driver=""), id="the driver does not tell its version"),
        pytest.param(Structure("goldmont", driver="3.1+debian", owner=LIBC), id="another build"),
        pytest.param(Structure("goldmont", points_to="goldmont-plus"), id="the name is not found"),
        pytest.param(Structure("haswell"), id="it is right already"),
    ],
)
def test_nothing_is_changed_without_need_or_certainty(device: Structure) -> None:
    before = list(device.words)
    assert not repair_processor_name(device)  # type: ignore[arg-type]
    assert list(device.words) == before
    assert compiler_target(device) == ""  # type: ignore[arg-type]


def test_other_drivers_and_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Structure("goldmont")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not repair_processor_name(device)  # type: ignore[arg-type]
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    device.version = "OpenCL 3.0 CUDA"
    device.int_ptr = 0xBAD
    assert not repair_processor_name(device)  # type: ignore[arg-type]


KERNELS = """
import sys, numpy as np, pyopencl as cl
from pathlib import Path
from autotune.device import processors
processors.CPUINFO = Path(sys.argv[1])
from autotune.device.opencl import Session
session = Session(sys.argv[2])
queue, context = session.queue, session.queue.context
source = '''
__kernel void wide(__global float16 *a) { int i = get_global_id(0); a[i] = mad(a[i], a[i], a[i]); }
__kernel void half8(__global half *a) { int i = get_global_id(0); vstore_half8(fmax(vload_half8(i, a), 2.0f), i, a); }
'''
program = session.build(source, [])
a = np.linspace(0.5, 2, 1024, dtype=np.float32)
b = np.linspace(1, 3, 512, dtype=np.float16)
for name, values, expected in (("wide", a, a * a + a), ("half8", b, np.maximum(b, 2))):
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=values)
    getattr(program, name)(queue, (64,), (16,), memory)
    got = np.empty_like(values)
    cl.enqueue_copy(queue, got, memory)
    assert np.allclose(got, expected, rtol=1e-3), name
print("all right")
"""
EMULATED = {
    "Icelake-Server": AVX2,  # LLVM 14 calls it tremont, whose vectors are narrower than those of the library for AVX2
    "Skylake-Client,-avx,-avx2,-fma,-f16c,-bmi1,-bmi2": f"{SSE4} movbe abm",  # as skylake it gets instructions it lacks
}


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("qemu-x86_64-static"), reason="needs qemu-user-static")
@pytest.mark.parametrize("model", EMULATED)
def test_kernels_run_right_on_emulated_processors_that_pocl_mistakes(pocl: Device, tmp_path: Path, model: str) -> None:
    if not pocl.driver.startswith("3.0"):
        pytest.skip("needs the PoCL of PyPI's wheel")
    (tmp_path / "cpuinfo").write_text(cpuinfo(EMULATED[model]))
    command = ("qemu-x86_64-static", "-cpu", model, sys.executable, "-c", KERNELS, tmp_path / "cpuinfo", pocl.selector)
    environment = {**os.environ, "POCL_CACHE_DIR": str(tmp_path), "PYOPENCL_NO_CACHE": "1"}
    environment.pop("OPENBLAS_CORETYPE", None)  # it may name this machine's processor, not the emulated one
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout.endswith("all right\n"), done.stderr[-2000:]
