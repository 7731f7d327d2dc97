"""The commands `devices`, `doctor` and `limits`: what devices there are, what works on them, and how fast they are."""

import argparse
import contextlib
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import autotune
from autotune.cli.arguments import ANY_DEVICE, DATABASE, DEVICE, JSON, command, flag
from autotune.cli.output import print_json, print_note
from autotune.codec import write
from autotune.errors import AutotuneError, DeviceSelectionError
from autotune.model.checkup import EMPTY_KERNEL, Checkup, Health, consequence, summary
from autotune.model.device import Device

if TYPE_CHECKING:
    from autotune.measure.worker import Worker
    from autotune.search.driver_faults import KnownFault
    from autotune.store import Store

UNUSABLE = 1
"""Exit status when a search cannot work on at least one of the devices."""
_TEXTS = {
    "buffer": "{:.4g} GB/s read from buffers",
    "image": "{:.4g} GB/s read from images",
    "constant": "{:.4g} GB/s read from constant memory",
    "local": "{:.4g} GB/s read from local memory",
    "float32": "{:.4g} GFLOP/s in float32",
    "float16": "{:.4g} GFLOP/s in float16",
    "int8": "{:.4g} Gop/s in dot products of int8",
    "launch_ns": "{:.4g} ns for each of many launches",
    "registers": "{} floats in a work-item before it slows down",
    "lanes": "{} work-items in step",
}
"""What the fields of Rates mean, in the order in which they are printed."""


@command(
    flag("--no-clocks", "ask the drivers only, run nothing on the devices"),
    JSON,
    examples=("devices", "devices --no-clocks --json"),
)
def devices_command(options: argparse.Namespace) -> int:
    """List every OpenCL device, also those of phones on a cable; of those here, how far their clocks can be trusted."""
    from autotune.device.clocks import try_calibration
    from autotune.device.discovery import discover
    from autotune.device.profile import find_profile
    from autotune.display.results import print_devices

    behind, lines = _phones()
    try:
        devices = discover()
    except DeviceSelectionError:
        if not lines:
            raise
        devices = []
    profiles = {device.slug: find_profile(device) for device in [*devices, *behind]}
    clocks = {} if options.no_clocks else {device.selector: try_calibration(device.selector) for device in devices}
    if not options.json:
        print_devices(devices, {slug: profile.traps for slug, profile in profiles.items()}, sys.stdout, clocks)
        for line in lines:
            print(line)
        return 0
    rows = []
    for device in [*devices, *behind]:
        profile, clock = profiles[device.slug], clocks.get(device.selector)
        shown = {"trouble": clock} if isinstance(clock, str) else clock  # why they could not be calibrated
        more = {"selector": device.selector, "profile": profile.name, "traps": profile.traps, "clocks": shown}
        rows.append({**write(device), **write(more)})
    print_json(rows)
    return 0


def _phones() -> tuple[list[Device], list[str]]:
    """Return the devices of the phones that adb shows, and a line about each phone; nothing without adb."""
    from autotune.device.discovery import discover_behind
    from autotune.device.link import reachable_machines

    found: list[Device] = []
    lines: list[str] = []
    with contextlib.suppress(DeviceSelectionError):
        for phone in reachable_machines():
            try:
                if phone.trouble:
                    raise phone.trouble
                there = discover_behind(phone.link)
            except DeviceSelectionError as error:
                lines.append(f"{phone.link}  {phone.model}: not ready: {error}")
            else:
                found += there
                named = ", ".join(f"{device.slug} ({device.selector})" for device in there)
                lines.append(f"{phone.link}  {phone.model}: ready: {named}")
    return found, lines


@command(ANY_DEVICE, DATABASE, JSON, examples=("doctor", "doctor --device cpu --json"))
def doctor_command(options: argparse.Namespace) -> int:
    """Check which features of a device work, each in a child process; searches avoid those that do not."""
    from autotune.device.discovery import find_devices
    from autotune.measure.doctor import examine
    from autotune.search.driver_faults import known_faults
    from autotune.store import Store

    devices = find_devices([options.device] if options.device else [])
    found: list[tuple[Device, Checkup, list[KnownFault]]] = []
    with Store.open(options.db) as store:
        for device in devices:
            print_note(f"checking {device.slug} ...")
            checkup = examine(device)
            if not checkup.is_open:
                store.keep_checkup(device, checkup)
            found.append((device, checkup, known_faults(device, store)))
    if options.json:
        print_json({**_versions(), "devices": [_plain(*one) for one in found]})
    else:
        print(", ".join(f"{name} {text}" for name, text in _versions().items()))
        for device, checkup, faults in found:
            _print_device(device, checkup, faults)
    return 0 if all(checkup.can_search for _, checkup, _ in found) else UNUSABLE


def examined(device: Device, store: "Store", worker: "Worker") -> Device:
    """Return the device without what its checkup and its trials found broken.

    The checkup is the stored one, or else a short one that the worker makes now. Raises AutotuneError when nothing can
    be built and run.
    """
    from autotune.measure.doctor import examine
    from autotune.search.driver_faults import with_faults

    checkup = store.checkup(device)
    if checkup is None:
        checkup = examine(device, is_full=False, worker=worker)
        # A total failure may go away without a new driver, a fault in autotune with its next version.
        if checkup.can_search and not checkup.is_open and not any(finding.is_ours for finding in checkup.broken):
            store.keep_checkup(device, checkup)
    return with_faults(_applied(checkup, device), store)


def checked(device: Device) -> Device:
    """Return the device without what a short check made now finds broken. Raises AutotuneError as `examined` does."""
    from autotune.measure.doctor import examine

    return _applied(examine(device, is_full=False), device)


def _applied(checkup: Checkup, device: Device) -> Device:
    if not checkup.can_search:
        raise AutotuneError(f"{device.slug} cannot be tuned: {_reason(checkup)}", hint=_remedy(device, checkup))
    if checkup.broken:
        print_note(f"{device.slug}: broken and left out: {summary(checkup.broken)}; `autotune doctor` shows more")
    return checkup.applied_to(device)


def _reason(checkup: Checkup) -> str:
    """Return why no search can work: the compiler's or driver's message about an empty kernel, if that fails."""
    from autotune.search.compilation import first_complaint

    empty = checkup.findings[0]
    if empty.probe == EMPTY_KERNEL and empty.health is Health.BROKEN:
        failed = "autotune itself fails at" if empty.is_ours else "it does not run"
        return f"{failed} an empty kernel ({first_complaint(empty.message)})"
    return "no algorithm runs right"


_CANNOT_COMPILE = r"SIGILL|illegal instruction|unknown target CPU|not a recognized (processor|feature)"
"""What is said where a compiler does not know the processor, or generates code for another one."""
_CACHE = "let POCL_CACHE_DIR name a folder"
_REMEDIES = (
    (r"failed to map segment", f"no program may run from PoCL's cache: {_CACHE} that is not mounted noexec"),
    (r"File too large|SIGXFSZ", "files may not become large enough: raise the limit that `ulimit -f` shows"),
    (r"No space left|Disk quota", f"the disk is full: free some space, or {_CACHE} on another disk"),
    (r"Permission denied|Read-only file system", f"a file cannot be used or written: {_CACHE} that is yours"),
    (r"took more than|no response", "the machine may have been busy: try again when it is quieter"),
)
"""What to do where not even an empty kernel runs, by what the driver or the system says."""


def _remedy(device: Device, checkup: Checkup) -> str:
    from autotune.device.discovery import SHORT_OF_MEMORY

    first = checkup.findings[0]
    if first.is_ours:
        return "this is a fault in autotune, not in the driver: please report it"
    short_of_memory = (r"killed by SIGKILL|[Oo]ut of memory|Cannot allocate memory|bad_alloc", SHORT_OF_MEMORY)
    for pattern, remedy in (*_REMEDIES, short_of_memory):
        if re.search(pattern, first.message):
            return remedy
    if "PoCL" in device.version and re.search(_CANNOT_COMPILE, first.message, re.IGNORECASE):
        return (
            "this PoCL cannot compile for this processor: install Debian's pocl-opencl-icd, or on x86 PyPI's "
            "intel-opencl-rt, and choose that device"
        )
    return "install another OpenCL driver for it, or choose another device; `autotune doctor` shows more"


# Output


def _versions() -> dict[str, str]:
    try:
        pyopencl = version("pyopencl")
    except PackageNotFoundError:
        pyopencl = "not installed"
    return {
        "autotune": autotune.__version__,
        "Python": platform.python_version(),
        "pyopencl": pyopencl,
        "on": f"{platform.system()} {platform.machine()}",
    }


def _print_device(device: Device, checkup: Checkup, faults: "list[KnownFault]") -> None:
    print(f"\n{device.slug}: {device.name}, {device.platform}, {device.version}, driver {device.driver}")
    for health in (Health.WORKS, Health.MISSING):
        names = [finding.probe for finding in checkup.findings if finding.health is health]
        if names:
            print(f"  {health.value:8} {_listed(names)}")
    for finding in checkup.findings:
        if finding.message:
            is_broken = finding.health is Health.BROKEN
            print(f"  {'broken' if is_broken else 'partly':8} {finding.probe}: {finding.message}")
            if is_broken:
                print(f"           {consequence(finding)}")
    for known in faults:
        basis = f"{known.configurations} configurations tried" if known.configurations else "known from a tuning table"
        print(f"  {'broken':8} {known.fault}: {basis}, none right; not proposed by the search")
    print(f"verdict: {_verdict(checkup, len(faults))} ({checkup.seconds:.1f} s)")


def _listed(names: list[str]) -> str:
    """Join the names, grouping the widths of vectors of one type."""
    parts: dict[str, list[str]] = {}
    for name in names:
        head, _, width = name.partition(" vectors of ")
        parts.setdefault(f"{head} vectors of" if width else name, []).extend([width] if width else [])
    return ", ".join(f"{head} {'/'.join(widths)}" if widths else head for head, widths in parts.items())


def _verdict(checkup: Checkup, faults: int) -> str:
    if not checkup.can_search:
        return f"no search is possible here: {_reason(checkup)}"
    broken = len(checkup.broken) + faults
    if not broken:
        return "a search can work; nothing that the device offers is broken"
    return f"a search can work, without {summary(checkup.broken) or 'what trials found broken'}"


def _plain(device: Device, checkup: Checkup, faults: "list[KnownFault]") -> dict[str, Any]:
    strings = ("slug", "name", "platform", "version", "driver")
    return {
        **{name: getattr(device, name) for name in strings},
        "can_search": checkup.can_search,
        "verdict": _verdict(checkup, len(faults)),
        "seconds": checkup.seconds,
        "findings": [
            {**write(finding), "consequence": consequence(finding) if finding.health is Health.BROKEN else ""}
            for finding in checkup.findings
        ],
        "known_faults": [{**write(k.fault), "configurations": k.configurations} for k in faults],
    }


@command(DEVICE, DATABASE, JSON, examples=("limits --device cpu", "limits --device adreno --db phone.sqlite"))
def limits_command(options: argparse.Namespace) -> int:
    """Measure what a device can do at most: bandwidth, arithmetic, launches, registers. It takes up to two minutes.

    The rates are kept: autotune show says how near a winner is to them, autotune model --plan what is possible, and
    they replace public numbers where defaults are estimated.
    """
    from autotune.cli.device_lock import DeviceLock
    from autotune.device.discovery import find_device
    from autotune.measure.limits import measure_rates
    from autotune.store import Store

    device = find_device(options.device)
    with Store.open(options.db) as store, DeviceLock(device, lambda: False):
        rates = measure_rates(device, print_note)
        store.keep_rates(device, rates)
    if options.json:
        print_json({"device": device.slug, **write(rates)})
        return 0
    print(device.slug)
    for name, text in _TEXTS.items():
        if value := getattr(rates, name):
            print(f"  {text.format(value)}")
    return 0
