"""What drivers do otherwise than they should, and the way around it.

- Any query may be refused, or answered with nonsense: `ask`, `text`, `number` and `positive` cannot fail.
- Some keep built programs, build again at a launch, or report wrong limits: `Quirks`.
- None survives a fork: `enter_driver`.
- PoCL starts too many threads, and lets them wander: `set_threads`.
- PoCL 3.0 compiles for a processor that its built-in library does not fit: `repair_processor_name`.
- PoCL shows no device where it cannot write to its cache: `hidden_by`.
- Event times of some are wrong: clocks.py measures it. What else may not work is probed (probes.py).

The PoCL of PyPI's wheel (3.0, LLVM 14) makes two choices that can disagree. It links kernels with the built-in library
chosen by the processor's *features*, but generates code for the *name* that LLVM gives the processor. If LLVM does not
know the processor, or a virtual machine masks some of its features, name and library differ in the width of their
vectors: the compiler then aborts, loops forever, emits instructions that the processor lacks, or produces kernels with
wrong results. LLVM's "generic" is always rejected (PoCL issue 1049). PoCL 5.0 takes the name from the library;
`repair_processor_name` does the same for the PoCL of the wheel.
"""

import ctypes
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.device.processors import cpu_flags, cpuinfo, usable_cores
from autotune.errors import DeviceSelectionError

if TYPE_CHECKING:
    import pyopencl as cl

_T = TypeVar("_T")

_LONGEST_TEXT = 1000

_MAPS = Path("/proc/self/maps")

_REPAIRED_BEFORE = 5
_WHEELS = ("pyopencl", "pocl_binary_distribution")
_STRUCTURE_BYTES = 4096
"""More than the size of PoCL's device structure."""

_AVX = ("avx", "cx16", "popcnt")
_LIBRARIES = (
    ("ssse3", "core2", ("ssse3", "cx16")),
    ("sse41", "penryn", ("sse4_1", "cx16")),
    ("avx", "sandybridge", _AVX),
    ("avx_f16c", "ivybridge", (*_AVX, "f16c")),
    ("avx_fma4", "bdver1", (*_AVX, "xop", "fma4")),
    ("avx2", "haswell", (*_AVX, "avx2", "abm", "f16c", "fma", "bmi1", "bmi2")),
    ("avx512", "skylake-avx512", ("avx512f",)),
)
"""PoCL's built-in libraries in its own order, of which it takes the last that fits (getX86KernelLibName); the LLVM
name for which PoCL 5.0 compiles each; and the features that each requires, as /proc/cpuinfo spells them."""
_SKYLAKE_SERVER = ("avx512bw", "avx512cd", "avx512dq", "avx512vl")

_THREADS = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")
"""Environment variables for the number of threads: of PoCL before 4.0, and since."""

POCL = "Portable Computing Language"
"""Name of PoCL's platform."""

_kept: dict[int, ctypes.Array[ctypes.c_char]] = {}
"""Names that repaired device structures point to, by the device's address; PoCL reads them as long as it is loaded."""


def ask(query: Callable[[], _T], otherwise: _T) -> _T:
    """Return a query's result, or `otherwise` if it raises anything, as pyopencl does for text that is not UTF-8."""
    try:
        return query()
    except Exception:  # noqa: BLE001
        return otherwise


def text(source: Any, attribute: str) -> str:
    """Return a string attribute on one line, printable and of bounded length; empty if the driver refuses the query.

    The spaces and NULs that drivers add at the ends are removed.
    """
    answer = ask(lambda: getattr(source, attribute), None)
    answer = "" if answer is None else str(answer)[:_LONGEST_TEXT]
    return "".join(c if c.isprintable() else " " for c in answer).strip()


def number(source: Any, attribute: str, otherwise: int = 0) -> int:
    return ask(lambda: int(getattr(source, attribute)), otherwise)


def positive(source: Any, attribute: str, otherwise: int) -> int:
    """Return a number that cannot be zero: a driver that reports zero does not know it, so `otherwise` is returned."""
    reported = number(source, attribute, 0)
    return reported if reported > 0 else otherwise


def hidden_by(platform: Any) -> str:
    """Return why a platform of this machine shows no device, as far as that is known; else empty."""
    set_here = filter(None, map(os.environ.get, ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME")))
    folder = Path(next(set_here, "")).absolute()
    nearest = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder)  # noqa: PTH110 - never raises
    if text(platform, "name") != POCL or (nearest.is_dir() and os.access(nearest, os.W_OK)):
        return ""
    return f"PoCL, which has no device where it cannot write to {folder}: set POCL_CACHE_DIR to another folder"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def shortened(message: str, limit: int = 1500) -> str:
    """Return the beginning of a driver's message."""
    return message if len(message) <= limit else message[:limit] + " ..."


def without_noise(message: str) -> str:
    """Return what pyopencl says of a failed build without its repetitions, and without addresses and folders."""
    message = re.sub(r"\A(\w+ failed: \w+)(?: - \1)+", r"\1", message)
    message = re.sub(r"\s*\bBuild on <pyopencl\.Device [^>\n]*>:\s*", ": ", message)
    return re.sub(r"\s*\(options: *\)", "", re.sub(r" ?-I \S*/pyopencl/cl\b", "", message))


@dataclass(frozen=True, kw_only=True)
class Quirks:
    """What measuring has to know of a driver."""

    keeps_programs: bool = False
    """It caches builds across processes, while loading a binary costs it another build.

    PoCL needs a tenth to a third of a second for a binary, but 40 ms for a program in its cache. NVIDIA's binaries
    are PTX, assembled at each start unless found in a cache on disk, which works for sources as well.
    """
    builds_by_work_group_size: bool = False
    """It builds a kernel again for each new work-group size, as PoCL does at a launch."""
    understates_work_group_limit: bool = False
    """NVIDIA reports a limit of 256 for every kernel that requires its work-group size, but runs 1024."""


def quirks_of(version: str, vendor: str) -> Quirks:
    """Return the quirks of a driver by the version and vendor that its device reports."""
    is_pocl, is_nvidia = is_pocl_version(version), "NVIDIA" in vendor
    return Quirks(
        keeps_programs=is_pocl or is_nvidia,
        builds_by_work_group_size=is_pocl,
        understates_work_group_limit=is_nvidia,
    )


def is_pocl_version(version: str) -> bool:
    """Whether a device's version string is PoCL's."""
    return "pocl" in version.lower()


def set_threads() -> None:
    """Make PoCL start one thread per core that this process may use, pinned to it. Call this before PoCL is loaded.

    PoCL starts as many threads as the machine has cores, even in a process that may use only some of them or has a
    quota: the threads then wait for one another. Pinning matters because threads that Linux places often share a core
    for some milliseconds after a pause, so that a kernel takes twice as long; it is done only if the process may use
    all cores, since PoCL counts from the first. Nothing changes if the environment sets the number of threads.
    """
    if not hasattr(os, "sched_getaffinity") or any(name in os.environ for name in _THREADS):
        return
    cores = usable_cores()
    if cores < (os.cpu_count() or 1):
        os.environ.update(dict.fromkeys(_THREADS, str(cores)))
    elif os.sched_getaffinity(0) == set(range(cores)):
        os.environ.setdefault("POCL_AFFINITY", "1")


def library_and_name(of: str) -> tuple[str, str] | None:
    """Return the built-in library that PoCL 3.0 takes on an x86-64 processor, and the LLVM name to compile for.

    `of` is the text of /proc/cpuinfo; its flags are those that a virtual machine exposes. None if it lists no flags.
    """
    flags = cpu_flags(of)
    if not flags:
        return None
    library, name = "sse2", "x86-64"
    for candidate, its_name, features in _LIBRARIES:
        if flags.issuperset(features):
            library, name = candidate, its_name
    if library == "avx512" and not flags.issuperset(_SKYLAKE_SERVER):
        name = "knl"
    return library, name


def repair_processor_name(device: "cl.Device") -> bool:
    """Make the PoCL of PyPI's wheel compile for a name that fits its built-in library; return whether a name changed.

    The name is replaced even if LLVM's own would work, such as znver3 on Zen 3: only the library's name is known not to
    imply a feature that a virtual machine masks, and names of one vector width differ in little but scheduling. The
    pointers in the device structure are replaced, not the text, so that a name may have any length. If the structure
    has no pointer to the name that the device reports, nothing changes.
    """
    version = text(device, "version")
    major = re.match(r"\d+", text(device, "driver_version"))
    if not is_pocl_version(version) or not major or int(major[0]) >= _REPAIRED_BEFORE:
        return False
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    found = re.search(r"linux-gnu-([\w.-]+)$", version)
    chosen = library_and_name(cpuinfo())
    if not found or not chosen or found[1] == chosen[1]:
        return False
    spans = [_Span(line) for line in _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()]
    structure = device.int_ptr
    if not _is_of_a_wheel(structure, spans):
        return False
    name = ctypes.create_string_buffer(chosen[1].encode("ascii"))
    slots = _pointers_to(found[1].encode("ascii") + b"\0", structure, [s for s in spans if s.is_writable])
    for slot in slots:
        slot.value = ctypes.addressof(name)
    if slots:
        _kept[structure] = name
    return bool(slots)


class _Span:
    """A line of /proc/self/maps."""

    def __init__(self, line: str) -> None:
        span, permissions, _, _, _, *path = line.split(maxsplit=5)
        self.start, self.end = (int(part, 16) for part in span.split("-"))
        self.is_writable = permissions.startswith("rw")
        self.path = Path(path[0]) if path else Path()

    def holds(self, address: int, size: int) -> bool:
        return self.start <= address and address + size <= self.end


def compiler_target(device: "cl.Device") -> str:
    """Return the name that the device compiles for instead of the one in its version; empty if it is that one."""
    name = _kept.get(ask(lambda: int(device.int_ptr), 0))
    return name.value.decode("ascii") if name else ""


def _is_of_a_wheel(structure: int, spans: list[_Span]) -> bool:
    """Whether the device's driver is a wheel's: every OpenCL object begins with a pointer into the driver's library."""
    if not any(span.holds(structure, ctypes.sizeof(ctypes.c_uint64)) for span in spans):
        return False
    table = ctypes.c_uint64.from_address(structure).value
    owner = next((span.path for span in spans if span.holds(table, 1)), Path())
    return any(part.startswith(_WHEELS) for part in owner.parts)


def _pointers_to(text: bytes, structure: int, spans: list[_Span]) -> list[ctypes.c_uint64]:
    """Return the words of a device structure that point to the text."""
    found = []
    for address in range(structure, structure + _STRUCTURE_BYTES, ctypes.sizeof(ctypes.c_uint64)):
        if not any(span.holds(address, ctypes.sizeof(ctypes.c_uint64)) for span in spans):
            break
        slot = ctypes.c_uint64.from_address(address)
        is_readable = any(span.holds(slot.value, len(text)) for span in spans)
        if is_readable and ctypes.string_at(slot.value, len(text)) == text:
            found.append(slot)
    return found


class _Driver:
    """Whether this process uses a driver, and whether it was forked from one that did."""

    is_used = False
    was_forked = False

    def note_fork(self) -> None:
        self.was_forked = self.is_used


_driver = _Driver()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_driver.note_fork)


def after_fork() -> DeviceSelectionError:
    """Return the error for a process that was forked from one that uses OpenCL."""
    return DeviceSelectionError(
        "this process was forked from one that uses OpenCL, which no driver survives",
        hint="start it with multiprocessing's method spawn or forkserver, or fork before the first use of a device",
    )


def enter_driver() -> None:
    """Note that this process uses a driver from now on. Raises DeviceSelectionError after a fork from one that did."""
    if _driver.was_forked:
        raise after_fork()
    _driver.is_used = True
