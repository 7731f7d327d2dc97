"""What PoCL needs that other drivers do not: threads kept apart, and a mend where its LLVM is older than the processor.

Where PoCL's LLVM does not know the processor it names it "generic", a name its own compiler then refuses
(pocl issue 1049: "unknown target CPU 'generic'"), so that no kernel builds. That is so for PoCL 3.0, the
one on PyPI, on AMD processors from Zen 5 on. The name is a heap string that the device structure points to;
before the first build it is overwritten with a name that LLVM knows and that fits the built-in library PoCL
chose by the processor's features.
"""

import ctypes
import os
import platform
from pathlib import Path

import pyopencl as cl

_UNKNOWN = b"generic\0"
_STRUCTURE_BYTES = 4096
"""More than PoCL's device structure holds."""


def is_pocl(device: cl.Device) -> bool:
    return "PoCL" in device.version


def keep_threads_apart() -> None:
    """Have PoCL tie each of its threads to a core of its own; to be called before it is loaded.

    Left to Linux, threads that wake after a pause often share a core for some milliseconds, so that a kernel takes
    twice its time. Not where the environment says otherwise, nor where this process is kept to some of the cores, since
    PoCL counts from the first.
    """
    if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) == set(range(os.cpu_count() or 1)):
        os.environ.setdefault("POCL_AFFINITY", "1")


def mend_unknown_processor(device: cl.Device) -> bool:
    """Let PoCL compile on a processor its LLVM does not know. True when something had to be done."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    if not is_pocl(device) or not device.version.rstrip().endswith("-generic"):
        return False
    readable = _writable_ranges()
    name = _known_name(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"))
    mended = False
    for offset in range(0, _STRUCTURE_BYTES, ctypes.sizeof(ctypes.c_void_p)):
        if not _within(readable, device.int_ptr + offset):
            break
        target = ctypes.c_uint64.from_address(device.int_ptr + offset).value
        if _within(readable, target) and ctypes.string_at(target, len(_UNKNOWN)) == _UNKNOWN:
            ctypes.memmove(target, name, len(name))
            mended = True
    return mended


def _known_name(cpuinfo: str) -> bytes:
    """An LLVM 14 processor no longer than "generic" with the features of PoCL's library for this one."""
    flags = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    if "avx512f" in flags and "avx512vl" in flags:
        return b"skx\0"
    return b"haswell\0" if "avx2" in flags and "fma" in flags else b"x86-64\0"


def _writable_ranges() -> list[tuple[int, int]]:
    ranges = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        span, permissions = line.split()[:2]
        if permissions.startswith("rw"):
            start, end = (int(part, 16) for part in span.split("-"))
            ranges.append((start, end))
    return ranges


def _within(ranges: list[tuple[int, int]], address: int) -> bool:
    return any(start <= address and address + len(_UNKNOWN) <= end for start, end in ranges)
