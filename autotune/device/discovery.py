"""Which OpenCL devices there are, what each can do, and which one a person means.

A driver may refuse any query, so each is asked on its own, and one broken platform or device hides no other.
"""

import ctypes
import dataclasses
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import DeviceSelectionError, NoSuchDeviceError
from autotune.identity import FAMILIES, DeviceType, Strings, identify
from autotune.problem import Device, DeviceLimits

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

_LONGEST_TEXT = 1000

_TYPE_CPU, _TYPE_GPU = 1 << 1, 1 << 2
_LOCAL_MEMORY_OF_ITS_OWN = 1
_IMAGE_PITCH_ALIGNMENT = 0x104A
_ATOMIC_MEMORY_CAPABILITIES = 0x1063
_ORDER_ACQUIRE_RELEASE, _SCOPE_DEVICE = 1 << 1, 1 << 5
_REGISTER_ALLOCATIONS_ARM = 0x41EB
_SUB_GROUP_SIZES_INTEL = 0x4108
_WARP_SIZE_NV = 0x4003
_WAVEFRONT_WIDTH_AMD = 0x4043


def discover(platforms: Iterable[Any] | None = None) -> list[Device]:
    """Every OpenCL device that answers, in the order of platforms and devices.

    `platforms` are pyopencl's, all by default. Raises DeviceSelectionError when OpenCL cannot be loaded or
    shows no device at all.
    """
    found: list[Device] = []
    troubles: list[str] = []
    for platform_number, platform in enumerate(_all_platforms() if platforms is None else platforms):
        try:
            members = list(platform.get_devices())
        except Exception as error:  # noqa: BLE001 - drivers raise what they like; the others still count
            troubles.append(f"platform {platform_number} ({_text(platform, 'name')}): {_line(error)}")
            continue
        for device_number, raw in enumerate(members):
            selector = f"{platform_number}:{device_number}"
            try:
                found.append(_describe(raw, platform, selector))
            except Exception as error:  # noqa: BLE001 - as above
                troubles.append(f"device {selector}: {_line(error)}")
    if not found:
        reasons = f": {'; '.join(troubles)}" if troubles else ""
        raise DeviceSelectionError(f"there is no OpenCL device{reasons}", hint=_nothing_mend())
    for trouble in troubles:
        _LOG.warning("left out %s", trouble)
    return found


def select(selector: str, devices: Sequence[Device]) -> Device:
    """The one device that a person means.

    In this order, the first that fits any decides: `platform:device` numbers, a slug, a family (`gpu`: all but
    processors), a whole name, a part of a slug or of a raw string; case does not matter.
    Raises NoSuchDeviceError when none fits, DeviceSelectionError when several do.
    """
    wanted = selector.strip().lower()
    matches = _matches(wanted, devices) if wanted else []
    if len(matches) == 1:
        return matches[0]
    shown = repr(_shortened(selector))
    if matches:
        raise DeviceSelectionError(
            f"{len(matches)} devices fit {shown}:{_listing(matches)}\n  one must be named", hint=_CHOOSE
        )
    there_is = f"OpenCL shows:{_listing(devices)}\n  none of them fits" if devices else "OpenCL shows no device"
    raise NoSuchDeviceError(f"no device fits {shown}; {there_is}", hint=_mend(wanted))


def describe(raw: Any) -> Device:
    """One device of pyopencl's, as `discover` tells of it. Raises DeviceSelectionError when it does not answer."""
    selector = ""
    for number, platform in enumerate(_all_platforms()):
        members = _members(platform)
        if raw in members:
            selector = f"{number}:{members.index(raw)}"
    try:
        return _describe(raw, raw.platform, selector)
    except Exception as error:  # drivers raise what they like
        raise DeviceSelectionError(f"the device does not answer: {_line(error)}") from error


def to_plain(device: Device) -> dict[str, Any]:
    """A device as JSON holds it: texts, numbers, truths, lists and tables."""
    plain = dataclasses.asdict(device)
    plain["limits"] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in plain["limits"].items()
    }
    return plain


# Asking drivers


def _all_platforms() -> list[Any]:
    try:
        import pyopencl

        from autotune.device.pocl import keep_threads_apart
    except ImportError as error:
        raise DeviceSelectionError(f"OpenCL cannot be loaded: {_line(error)}", hint=_nothing_mend()) from error
    keep_threads_apart()
    try:
        return list(pyopencl.get_platforms())
    except pyopencl.Error as error:  # the loader's way to say that there is none
        raise DeviceSelectionError(f"there is no OpenCL platform: {_line(error)}", hint=_nothing_mend()) from error


def _members(platform: Any) -> list[Any]:
    none: list[Any] = []
    return _ask(lambda: list(platform.get_devices()), none)


def _ask(query: Callable[[], _T], otherwise: _T) -> _T:
    """What a driver answers, or `otherwise` where it refuses: it may raise anything, bad text included."""
    try:
        return query()
    except Exception:  # noqa: BLE001
        return otherwise


def _text(source: Any, attribute: str) -> str:
    """A raw string on one line, printable and bounded; trailing spaces and NULs of the driver are dropped."""
    text = str(_ask(lambda: getattr(source, attribute), ""))[:_LONGEST_TEXT]
    return "".join(c if c.isprintable() else " " for c in text).strip()


def _number(source: Any, attribute: str, otherwise: int) -> int:
    return _ask(lambda: int(getattr(source, attribute)), otherwise)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _describe(raw: Any, platform: Any, selector: str) -> Device:
    kind = int(raw.type)  # what does not even tell its type is broken
    strings = Strings(
        name=_text(raw, "name"),
        vendor=_text(raw, "vendor"),
        vendor_id=_number(raw, "vendor_id", 0),
        version=_text(raw, "version"),
        opencl_c_version=_text(raw, "opencl_c_version"),
        driver=_text(raw, "driver_version"),
        platform=_text(platform, "name"),
        device_type=_device_type(kind),
        compute_units=_number(raw, "max_compute_units", 0),
    )
    identity = identify(strings)
    return Device(
        slug=identity.slug,
        vendor=identity.vendor,
        model=identity.model,
        family=identity.family,
        selector=selector,
        platform=strings.platform,
        name=strings.name,
        version=strings.version,
        opencl_c_version=strings.opencl_c_version,
        driver=strings.driver,
        limits=_limits(raw, is_cpu=identity.family == "cpu"),
    )


def _device_type(kind: int) -> DeviceType:
    if kind & _TYPE_GPU:
        return DeviceType.GPU
    return DeviceType.CPU if kind & _TYPE_CPU else DeviceType.OTHER


def _limits(raw: Any, *, is_cpu: bool) -> DeviceLimits:
    least = DeviceLimits()
    extensions = tuple(sorted(set(_ask(lambda: str(raw.extensions), "").split())))
    has_images = bool(_number(raw, "image_support", 0))
    group = _number(raw, "max_work_group_size", least.max_work_group_size)
    return DeviceLimits(
        compute_units=_number(raw, "max_compute_units", least.compute_units),
        max_work_group_size=group,
        max_work_item_sizes=_item_sizes(raw, group),
        local_memory_bytes=_number(raw, "local_mem_size", 0),
        local_memory_is_dedicated=_number(raw, "local_mem_type", 0) == _LOCAL_MEMORY_OF_ITS_OWN,
        global_memory_bytes=_number(raw, "global_mem_size", least.global_memory_bytes),
        max_allocation_bytes=_number(raw, "max_mem_alloc_size", least.max_allocation_bytes),
        has_images=has_images,
        max_image_width=_number(raw, "image2d_max_width", 0) if has_images else 0,
        max_image_height=_number(raw, "image2d_max_height", 0) if has_images else 0,
        image_pitch_alignment=_first(_query_numbers(raw, _IMAGE_PITCH_ALIGNMENT, ctypes.c_uint)) if has_images else 0,
        register_allocations=_register_allocations(raw, extensions),
        sub_group_sizes=_sub_group_sizes(raw, extensions),
        has_sub_groups=_has_sub_groups(raw, extensions),
        has_float16="cl_khr_fp16" in extensions,
        has_float64="cl_khr_fp64" in extensions or _number(raw, "double_fp_config", 0) != 0,
        ordering_standard=_ordering_standard(raw),
        is_cpu=is_cpu,
        native_vector_float32=_number(raw, "native_vector_width_float", 0),
        shares_host_memory=bool(_number(raw, "host_unified_memory", 0)),
        extensions=extensions,
    )


def _item_sizes(raw: Any, group: int) -> tuple[int, ...]:
    none: tuple[int, ...] = ()
    sizes = _ask(lambda: tuple(int(size) for size in raw.max_work_item_sizes), none)
    return sizes if len(sizes) >= 3 else (*sizes, group, group, 1)[:3]


def _has_sub_groups(raw: Any, extensions: Sequence[str]) -> bool:
    """By extension, or as part of OpenCL: from 2.1 on, where a work-group may hold any."""
    if "cl_khr_subgroups" in extensions or "cl_intel_subgroups" in extensions:
        return True
    return _version(raw) >= (2, 1) and _number(raw, "max_num_sub_groups", 0) > 0


def _version(raw: Any) -> tuple[int, int]:
    """Of OpenCL; zeros where the driver does not tell."""
    found = re.match(r"OpenCL (\d+)\.(\d+)", _text(raw, "version"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _ordering_standard(raw: Any) -> int:
    """See `DeviceLimits`. OpenCL 2 has to offer what OpenCL 3 made a matter of choice, and tells of."""
    major, _ = _version(raw)
    if major < 3:
        return 200 if major == 2 else 0
    wanted = _ORDER_ACQUIRE_RELEASE | _SCOPE_DEVICE
    told = _first(_query_numbers(raw, _ATOMIC_MEMORY_CAPABILITIES, ctypes.c_size_t))
    return 300 if told & wanted == wanted else 0


def _register_allocations(raw: Any, extensions: Sequence[str]) -> tuple[int, ...]:
    if "cl_arm_scheduling_controls" not in extensions:
        return ()
    return tuple(sorted(_query_numbers(raw, _REGISTER_ALLOCATIONS_ARM, ctypes.c_uint)))


def _sub_group_sizes(raw: Any, extensions: Sequence[str]) -> tuple[int, ...]:
    """Sizes the driver tells, ascending; none where it has no query for them."""
    if "cl_intel_required_subgroup_size" in extensions:
        return tuple(sorted(_query_numbers(raw, _SUB_GROUP_SIZES_INTEL, ctypes.c_size_t)))
    if "cl_nv_device_attribute_query" in extensions:
        return _query_numbers(raw, _WARP_SIZE_NV, ctypes.c_uint)
    if "cl_amd_device_attribute_query" in extensions:
        return _query_numbers(raw, _WAVEFRONT_WIDTH_AMD, ctypes.c_uint)
    return ()


def _first(numbers: Sequence[int]) -> int:
    return numbers[0] if numbers else 0


def _query_numbers(raw: Any, code: int, kind: type[ctypes.c_uint] | type[ctypes.c_size_t]) -> tuple[int, ...]:
    """The positive numbers of one clGetDeviceInfo query; empty where the driver has no answer.

    pyopencl knows none of these codes in every build, so the loader it has loaded is asked directly.
    """

    def ask() -> tuple[int, ...]:
        numbers, size = (kind * 16)(), ctypes.c_size_t(0)
        status = _get_device_info()(
            ctypes.c_void_p(raw.int_ptr), code, ctypes.c_size_t(ctypes.sizeof(numbers)), numbers, ctypes.byref(size)
        )
        count = size.value // ctypes.sizeof(kind) if status == 0 else 0
        return tuple(number for number in numbers[:count] if number > 0)

    return _ask(ask, ())


def _get_device_info() -> Any:
    """clGetDeviceInfo of the very loader that pyopencl uses."""
    if sys.platform == "win32":
        return ctypes.WinDLL("OpenCL").clGetDeviceInfo
    import pyopencl

    return ctypes.CDLL(pyopencl._cl.__file__).clGetDeviceInfo


# Choosing


def _matches(wanted: str, devices: Sequence[Device]) -> list[Device]:
    if re.fullmatch(r"\d+:\d+", wanted):
        return [device for device in devices if device.selector == wanted]
    tests: tuple[Callable[[Device], bool], ...] = (
        lambda device: device.slug == wanted,
        lambda device: _in_family(wanted, device),
        lambda device: device.name.lower() == wanted,
        lambda device: any(wanted in text.lower() for text in _texts(device)),
    )
    for test in tests:
        fitting = [device for device in devices if test(device)]
        if fitting:
            return fitting
    return []


def _in_family(wanted: str, device: Device) -> bool:
    return device.family != "cpu" if wanted == "gpu" else wanted in FAMILIES and device.family == wanted


def _texts(device: Device) -> tuple[str, ...]:
    return (
        device.slug, device.vendor, device.model, device.name,
        device.platform, device.version, device.opencl_c_version, device.driver,
    )  # fmt: skip


def _listing(devices: Sequence[Device]) -> str:
    width = max((len(device.slug) for device in devices), default=0)
    return "".join(
        f"\n  {device.selector}  {device.slug:{width}}  {_shortened(device.name)} on {_shortened(device.platform)}"
        for device in devices
    )


_CHOOSE = "choose by slug, family, platform:device numbers or part of a name, as `autotune devices` lists them"

_DRIVER_FILES = {
    "adreno": ("/vendor/lib64/libOpenCL.so", "/system/vendor/lib64/libOpenCL.so"),
    "mali": (
        "/vendor/lib64/libOpenCL.so",
        "/vendor/lib64/egl/libGLES_mali.so",
        "/usr/lib/aarch64-linux-gnu/libmali.so",
    ),
}
_POCL = 'pip install "autotune[pocl]" brings an OpenCL device that runs on the processor'
_INSTALL = {
    "cpu": _POCL,
    "pocl": _POCL,
    "adreno": "in Termux set LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib and build pyopencl against the system's "
    "loader; on Windows use a native ARM64 Python",
    "mali": "in Termux set LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib; on boards install the vendor's package with "
    "libmali.so and name that library in an .icd file",
    "nvidia": "install NVIDIA's driver with its OpenCL library (nvidia.icd); a container needs "
    "NVIDIA_DRIVER_CAPABILITIES=compute",
    "amd": "install AMD's OpenCL runtime (amdocl64.icd, part of ROCm) or Mesa's with RUSTICL_ENABLE=radeonsi",
    "intel": "install Intel's compute runtime (intel.icd, package intel-opencl-icd)",
    "gpu": "install the OpenCL driver of the GPU's maker",
}


def _mend(wanted: str) -> str:
    """What to do when the wanted device is not there: where its driver is looked for, else how to choose."""
    family = next((name for name in _INSTALL if name in wanted), "")
    if not family:
        return _CHOOSE
    if _INSTALL[family] == _POCL:
        return _POCL
    places = [f"{path} ({'there' if Path(path).exists() else 'not there'})" for path in _DRIVER_FILES.get(family, ())]
    return f"its driver is looked for in {', '.join([*places, _icd_folder()])}; {_INSTALL[family]}"


def _nothing_mend() -> str:
    return (
        f"drivers are looked for in {_icd_folder()}; {_POCL}{_cache_mend()}; "
        "on Android set LD_LIBRARY_PATH=/vendor/lib64:$PREFIX/lib in Termux"
    )


def _cache_mend() -> str:
    """What else to do where PoCL cannot write what it compiles, for then it shows no device."""
    set_here = filter(None, map(os.environ.get, ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME")))
    folder = Path(next(set_here, "")).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    is_writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    return "" if is_writable else f", where it can write to {folder}: set POCL_CACHE_DIR to another folder"


def _icd_folder() -> str:
    """Where the loader reads which drivers there are, and what it finds there."""
    named = next((name for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH") if os.environ.get(name)), "")
    path = Path(os.environ[named] if named else "/etc/OpenCL/vendors")
    files = sorted(entry.name for entry in path.glob("*.icd")) if path.is_dir() else []
    source = f"which {named} names" if named else "or the folder that OCL_ICD_VENDORS names"
    return f"the .icd files of {path} (now {', '.join(files) or 'none'}), {source}"
