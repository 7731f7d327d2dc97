"""A processor's name, its vendor, the widest vectors that a compiler uses on it, and how many cores are usable.

Names and vectors come from drivers' strings, the text of /proc/cpuinfo, and LLVM's processor names.
"""

import contextlib
import math
import os
import platform
import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

VECTOR_CLASSES = ("sse", "avx", "avx2", "avx512", "neon", "sve")

_X86_NAMES = {
    "avx512": "skx skylake-avx512 cascadelake cooperlake cannonlake icelake tigerlake rocketlake sapphirerapids "
    "emeraldrapids graniterapids diamondrapids knl knm znver4 znver5 znver6 x86-64-v4",
    "avx2": "haswell broadwell skylake core-avx2 alderlake raptorlake meteorlake arrowlake lunarlake pantherlake "
    "gracemont sierraforest grandridge clearwaterforest bdver4 znver1 znver2 znver3 x86-64-v3",
    "avx": "sandybridge ivybridge corei7-avx core-avx-i bdver1 bdver2 bdver3 btver2",
    "sse": "x86-64 x86-64-v2 core2 penryn nehalem westmere corei7 nocona prescott bonnell atom silvermont slm goldmont "
    "tremont k8 opteron athlon amdfam10 barcelona btver1",
}
"""LLVM's processor names by the widest vectors it uses; a name may continue after a hyphen, as icelake-server does."""

_FLAGS = (("avx512", "avx512f"), ("avx2", "avx2"), ("avx", "avx"), ("sse", "sse2"), ("sve", "sve"))
_SVE_NAMES = r"neoverse-(v\d|n[23])|a64fx|cortex-(a5[12]0|a7[12]\d|x[2-4]|x925)|grace"

_ARM_PARTS = {
    0x41: {
        0xD03: "cortex-a53", 0xD04: "cortex-a35", 0xD05: "cortex-a55", 0xD07: "cortex-a57", 0xD08: "cortex-a72",
        0xD09: "cortex-a73", 0xD0A: "cortex-a75", 0xD0B: "cortex-a76", 0xD0C: "neoverse-n1", 0xD0D: "cortex-a77",
        0xD40: "neoverse-v1", 0xD41: "cortex-a78", 0xD42: "cortex-a78ae", 0xD44: "cortex-x1", 0xD46: "cortex-a510",
        0xD47: "cortex-a710", 0xD48: "cortex-x2", 0xD49: "neoverse-n2", 0xD4A: "neoverse-e1", 0xD4B: "cortex-a78c",
        0xD4C: "cortex-x1c", 0xD4D: "cortex-a715", 0xD4E: "cortex-x3", 0xD4F: "neoverse-v2", 0xD80: "cortex-a520",
        0xD81: "cortex-a720", 0xD82: "cortex-x4", 0xD84: "neoverse-v3", 0xD85: "cortex-x925", 0xD87: "cortex-a725",
        0xD8E: "neoverse-n3",
    },
    0x46: {0x001: "a64fx"},
    0x48: {0xD01: "tsv110"},
    0x51: {0x001: "oryon", 0x800: "kryo-2xx-gold", 0x801: "kryo-2xx-silver", 0x802: "kryo-3xx-gold",
           0x803: "kryo-3xx-silver", 0x804: "kryo-4xx-gold", 0x805: "kryo-4xx-silver"},
    0xC0: {0xAC3: "ampere1", 0xAC4: "ampere1a"},
}  # fmt: skip
_ARM_VENDORS = {0x41: "Arm", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x51: "Qualcomm", 0x61: "Apple", 0xC0: "Ampere"}


def vector_class(cpuinfo: str, target: str = "") -> str:
    """Return the widest vectors of code for the processor, one of VECTOR_CLASSES; empty if unknown.

    `target` is the LLVM name for which a compiler generates code; without it, the compiler is assumed to use all
    features of the processor.
    """
    words = target.split("-")
    beginnings = ["-".join(words[:length]) for length in range(len(words), 0, -1)]
    for beginning in beginnings:
        for name, targets in _X86_NAMES.items():
            if beginning in targets.split():
                return name
    flags = cpu_flags(cpuinfo)
    if "asimd" in flags or "neon" in flags:
        uses_sve = "sve" in flags and re.match(_SVE_NAMES, target)
        return "sve" if uses_sve else "neon"
    return next((name for name, flag in _FLAGS if flag in flags), "")


def class_of_bits(cpuinfo: str, bits: int) -> str:
    """Return the same for a compiler of which only the vector length, `bits`, is known."""
    widest = vector_class(cpuinfo)
    if bits == 128 and widest not in ("", "neon"):
        return "sse"
    if bits == 256 and widest == "avx512":
        return "avx2"
    return widest


def cpuinfo() -> str:
    """Return the text of Linux's /proc/cpuinfo; empty on other systems."""
    try:
        return CPUINFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def instruction_set(cpuinfo: str) -> str:
    """Return the processor's features, else its name.

    Names are not exact enough: a home folder may be shared by machines of different age.
    """
    return " ".join(sorted(cpu_flags(cpuinfo))) or platform.processor() or platform.machine()


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Return the features of the first processor that /proc/cpuinfo lists."""
    line = next((line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].split())


def processor_name(cpuinfo: str) -> tuple[str, str]:
    """Return the processor's vendor and name; with several kinds of cores, as in a phone, the names of all."""
    parts = dict.fromkeys(zip(_numbers(cpuinfo, "CPU implementer"), _numbers(cpuinfo, "CPU part"), strict=False))
    if parts:
        names = [_ARM_PARTS.get(maker, {}).get(part, f"{maker:#x}-{part:#x}") for maker, part in parts]
        return _ARM_VENDORS.get(next(iter(parts))[0], "unknown"), " ".join(names)
    found = re.search(r"^(?:model name|uarch)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return "", found[1].strip().replace(",", " ") if found else ""


def _numbers(cpuinfo: str, key: str) -> list[int]:
    return [int(text, 16) for text in re.findall(rf"^{key}\s*:\s*(?:0x)?([0-9a-fA-F]+)\s*$", cpuinfo, re.MULTILINE)]


def short_name(name: str) -> str:
    """Return the name without clock, core count and filler words."""
    name = re.sub(r"(?i)@.*$|\b(with|w/)\s.*$|\([^()]*\)", " ", name)
    name = re.sub(r"(?i)\b(\w+-core|processor|cpu|\d+(st|nd|rd|th) gen)\b", " ", name)
    return " ".join(name.split())


def vendor_of(processor: str, vendor: str) -> str:
    """Return the vendor according to the processor's name, else according to the driver's vendor string."""
    text = f"{processor} {vendor}"
    known = (
        (r"(?i)\bamd\b|AuthenticAMD", "AMD"),
        (r"(?i)\bintel\b|GenuineIntel", "Intel"),
        (r"(?i)\bapple\b", "Apple"),
        (r"(?i)\bqualcomm\b|\bsnapdragon\b", "Qualcomm"),
        (r"(?i)\bampere\b", "Ampere"),
        (r"(?i)\barm\b|\bcortex|\bneoverse", "Arm"),
    )
    found = (name for source in (processor, text) for pattern, name in known if re.search(pattern, source))
    return next(found, vendor[:64] or "unknown")


def usable_cores(control_groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use at once: those of its affinity, fewer if a container has a quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota(control_groups))))


def _quota(control_groups: Path) -> float:
    """Return the number of cores that Linux's control group may use; infinite without a limit.

    Version 2 of control groups has one file for the limit, version 1 has two.
    """
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (control_groups / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((control_groups / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def load() -> float:
    """Return how many processes have wanted to run at once in the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


def is_busy() -> bool:
    """Return whether so many processes want to run that each waits for more than half of the time."""
    return load() > 2 * usable_cores()
