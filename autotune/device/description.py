"""Query what each OpenCL device of this machine can do, in this process.

Each query is made separately, so that a broken platform or device does not hide the others. But a driver may hang or
abort as soon as it is loaded: `discovery.discover` therefore calls this module in a child process.
"""

import ctypes
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from autotune.device.identity import DeviceType, Strings, identify
from autotune.device.processors import cpuinfo, instruction_set
from autotune.device.quirks import (
    ask,
    compiler_target,
    enter_driver,
    first_line,
    hidden_by,
    number,
    positive,
    repair_processor_name,
    set_threads,
    text,
)
from autotune.errors import DeviceSelectionError
from autotune.model.checkup import WIDE_LOCAL_BYTES, WIDEST_LOCAL_BYTES
from autotune.model.device import Device, DeviceLimits

_TYPE_CPU, _TYPE_GPU = 1 << 1, 1 << 2
_LOCAL_MEMORY_OF_ITS_OWN = 1
_IMAGE_PITCH_ALIGNMENT = 0x104A
_IMAGE_MAX_BUFFER_SIZE = 0x1040
_ATOMIC_MEMORY_CAPABILITIES = 0x1063
_OPENCL_C_ALL_VERSIONS, _VERSION_BYTES = 0x1066, 68
_ORDER_ACQUIRE_RELEASE, _SCOPE_DEVICE = 1 << 1, 1 << 5
_Number = Literal["uint", "size_t"]
_Query = tuple[str, int, _Number]
_REGISTER_ALLOCATIONS: tuple[_Query, ...] = (("cl_arm_scheduling_controls", 0x41EB, "uint"),)
_SUB_GROUP_SIZES: tuple[_Query, ...] = (
    ("cl_intel_required_subgroup_size", 0x4108, "size_t"),
    ("cl_nv_device_attribute_query", 0x4003, "uint"),
    ("cl_amd_device_attribute_query", 0x4043, "uint"),
)
"""Extension, code and type of the queries by which each vendor reports such sizes."""
_COMPUTE_CAPABILITY = (0x4000, 0x4001)
_HALF_ARITHMETIC_SINCE, _INTEGER_DOT_SINCE, _MATRIX_UNITS_SINCE = 53, 61, 80
"""The compute capability, times ten, from which on NVIDIA's GPUs can do it; their compiler accepts half arithmetic
without announcing it. Probes say whether it works."""
_WIDE_LOCAL_SINCE = 80
"""The same for kernels that declare `WIDE_LOCAL_BYTES` of local memory, though the driver reports 48 KiB."""
_WIDEST_LOCAL = (80, 87, 90, 100, 101, 103)
"""The compute capabilities, times ten, of units with room for `WIDEST_LOCAL_BYTES`: not those of desktop cards."""
FURTHER_QUERIES = (
    _IMAGE_PITCH_ALIGNMENT,
    _IMAGE_MAX_BUFFER_SIZE,
    _ATOMIC_MEMORY_CAPABILITIES,
    _OPENCL_C_ALL_VERSIONS,
    *_COMPUTE_CAPABILITY,
    *(code for _, code, _ in (*_REGISTER_ALLOCATIONS, *_SUB_GROUP_SIZES)),
)
"""Codes that are asked by `Machine.query`."""


class Machine(Protocol):
    """A machine whose devices are described: this one, or an agent's."""

    @property
    def size_t_bytes(self) -> int: ...

    def cpuinfo(self) -> str:
        """Return the text of its /proc/cpuinfo; empty on other systems than Linux."""
        ...

    def query(self, raw: Any, code: int) -> bytes:
        """Return what clGetDeviceInfo answers, for queries that pyopencl does not know. May raise any exception."""
        ...


class _ThisMachine:
    size_t_bytes = ctypes.sizeof(ctypes.c_size_t)

    def cpuinfo(self) -> str:
        return cpuinfo()

    def query(self, raw: Any, code: int) -> bytes:
        """None of these codes is known to every build of pyopencl: its loader is called directly."""
        answer, size = ctypes.create_string_buffer(16 * _VERSION_BYTES), ctypes.c_size_t(0)
        status = _get_device_info()(
            ctypes.c_void_p(raw.int_ptr), code, ctypes.c_size_t(len(answer)), answer, ctypes.byref(size)
        )
        return answer.raw[: size.value] if status == 0 else b""


HERE: Machine = _ThisMachine()


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The devices that answer, in the order of platforms and devices, and why others do not."""

    devices: tuple[Device, ...] = ()
    troubles: tuple[str, ...] = ()


def survey(platforms: Iterable[Any] | None = None, machine: Machine = HERE, link: str = "") -> Survey:
    """Describe every device of `platforms`, all of this machine's by default. Never raises.

    They are pyopencl's, or have their attributes; `link` is the name of the link to another machine.
    """
    found: list[Device] = []
    troubles: list[str] = []
    try:
        asked = list(platforms_here() if platforms is None else platforms)
    except DeviceSelectionError as error:
        return Survey(troubles=(error.message,))
    for platform_number, platform in enumerate(asked):
        try:
            members = list(platform.get_devices())
        except Exception as error:  # noqa: BLE001 - drivers raise any exception; the others still count
            troubles.append(f"platform {platform_number} ({text(platform, 'name')}): {first_line(error)}")
            continue
        if not members and machine is HERE and (why := hidden_by(platform)) and why not in troubles:
            troubles.append(why)
        for device_number, raw in enumerate(members):
            selector = f"{link}#{platform_number}:{device_number}" if link else f"{platform_number}:{device_number}"
            try:
                found.append(description(raw, platform, selector, machine))
            except Exception as error:  # noqa: BLE001 - as above
                troubles.append(f"device {selector}: {first_line(error)}")
    return Survey(devices=tuple(found), troubles=tuple(troubles))


def describe(raw: Any) -> Device:
    """Describe one pyopencl device, as `survey` does. Raises DeviceSelectionError when it does not answer."""
    none: list[Any] = []
    selector = ""
    for index, platform in enumerate(platforms_here()):
        members = ask(platform.get_devices, none)
        if raw in members:
            selector = f"{index}:{members.index(raw)}"
    try:
        return description(raw, raw.platform, selector, HERE)
    except Exception as error:  # drivers raise any exception
        raise DeviceSelectionError(f"the device does not answer: {first_line(error)}") from error


def platforms_here() -> list[Any]:
    """Return pyopencl's platforms. Raises DeviceSelectionError without OpenCL or a platform, and after a fork."""
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceSelectionError(f"OpenCL cannot be loaded: {first_line(error)}") from error
    enter_driver()
    set_threads()
    try:
        return list(pyopencl.get_platforms())
    except pyopencl.Error as error:  # how the loader reports that there is no platform
        raise DeviceSelectionError(f"there is no OpenCL platform: {first_line(error)}") from error


def toolchain(raw: Any, platform: Any, machine: Machine) -> tuple[str, ...]:
    """Return `Port.toolchain` of a device."""
    strings = [text(platform, "name"), text(platform, "version")]
    strings += [text(raw, attribute) for attribute in ("vendor", "name", "version", "driver_version")]
    features = instruction_set(machine.cpuinfo()) if number(raw, "type") & _TYPE_CPU else ""
    return (*strings, _compiler_target(raw, machine), features)


def _compiler_target(raw: Any, machine: Machine) -> str:
    return compiler_target(raw) if machine is HERE else ""


def description(raw: Any, platform: Any, selector: str, machine: Machine) -> Device:
    """Describe one device of a machine. Raises any exception when it does not even report its type."""
    kind = int(raw.type)
    if machine is HERE:
        repair_processor_name(raw)
    strings = Strings(
        name=text(raw, "name"),
        vendor=text(raw, "vendor"),
        vendor_id=number(raw, "vendor_id"),
        version=text(raw, "version"),
        opencl_c_version=text(raw, "opencl_c_version"),
        driver=text(raw, "driver_version"),
        platform=text(platform, "name"),
        device_type=DeviceType.GPU if kind & _TYPE_GPU else DeviceType.CPU if kind & _TYPE_CPU else DeviceType.OTHER,
        compute_units=number(raw, "max_compute_units"),
        compiler_target=_compiler_target(raw, machine),
        cpuinfo=machine.cpuinfo(),
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
        limits=_limits(raw, machine, is_cpu=identity.family == "cpu"),
    )


def _limits(raw: Any, machine: Machine, *, is_cpu: bool) -> DeviceLimits:
    least = DeviceLimits()
    extensions = tuple(sorted(set(ask(lambda: str(raw.extensions), "").split())))
    has_images = bool(number(raw, "image_support"))
    group = positive(raw, "max_work_group_size", least.max_work_group_size)
    memory = positive(raw, "global_mem_size", least.global_memory_bytes)
    capability = _compute_capability(raw, machine, extensions)
    return DeviceLimits(
        compute_units=positive(raw, "max_compute_units", least.compute_units),
        max_work_group_size=group,
        max_work_item_sizes=_item_sizes(raw, group),
        local_memory_bytes=number(raw, "local_mem_size"),
        declared_local_memory_bytes=_declared_local_bytes(capability),
        local_memory_is_dedicated=number(raw, "local_mem_type") == _LOCAL_MEMORY_OF_ITS_OWN,
        global_memory_bytes=memory,
        max_allocation_bytes=positive(raw, "max_mem_alloc_size", max(least.max_allocation_bytes, memory // 4)),
        has_images=has_images,
        max_image_width=number(raw, "image2d_max_width") if has_images else 0,
        max_image_height=number(raw, "image2d_max_height") if has_images else 0,
        image_pitch_alignment=_first(_query_numbers(raw, machine, _IMAGE_PITCH_ALIGNMENT, "uint")) if has_images else 0,
        max_image_line=_first(_query_numbers(raw, machine, _IMAGE_MAX_BUFFER_SIZE, "size_t")) if has_images else 0,
        register_allocations=_sizes(raw, machine, extensions, _REGISTER_ALLOCATIONS),
        sub_group_sizes=_sizes(raw, machine, extensions, _SUB_GROUP_SIZES),
        has_sub_groups=_has_sub_groups(raw, extensions),
        has_float16="cl_khr_fp16" in extensions or capability >= _HALF_ARITHMETIC_SINCE,
        has_float64="cl_khr_fp64" in extensions or number(raw, "double_fp_config") != 0,
        has_ptx_integer_dot=capability >= _INTEGER_DOT_SINCE,
        has_matrix_units=capability >= _MATRIX_UNITS_SINCE,
        opencl_c_standards=_opencl_c_standards(raw, machine),
        ordering_standard=_ordering_standard(raw, machine),
        is_cpu=is_cpu,
        native_vector_float32=number(raw, "native_vector_width_float", 0),
        shares_host_memory=bool(number(raw, "host_unified_memory")),
        extensions=extensions,
    )


def _declared_local_bytes(capability: int) -> int:
    """Return how much local memory a kernel may declare where the driver does not report it, or 0."""
    if capability in _WIDEST_LOCAL:
        return WIDEST_LOCAL_BYTES
    return WIDE_LOCAL_BYTES if capability >= _WIDE_LOCAL_SINCE else 0


def _compute_capability(raw: Any, machine: Machine, extensions: Sequence[str]) -> int:
    """Return ten times NVIDIA's major number plus the minor; 0 for other devices."""
    if "cl_nv_device_attribute_query" not in extensions:
        return 0
    major, minor = (_first(_query_numbers(raw, machine, code, "uint")) for code in _COMPUTE_CAPABILITY)
    return 10 * major + minor


def _item_sizes(raw: Any, group: int) -> tuple[int, ...]:
    none: tuple[int, ...] = ()
    sizes = ask(lambda: tuple(int(size) or group for size in raw.max_work_item_sizes), none)
    return sizes if len(sizes) >= 3 else (*sizes, group, group, 1)[:3]


def _has_sub_groups(raw: Any, extensions: Sequence[str]) -> bool:
    """Whether the device has sub-groups: by extension, or from OpenCL 2.1 on if a work-group can have at least one."""
    if "cl_khr_subgroups" in extensions or "cl_intel_subgroups" in extensions:
        return True
    return _version(raw) >= (2, 1) and number(raw, "max_num_sub_groups") > 0


def _version(raw: Any) -> tuple[int, int]:
    """Return the device's OpenCL version, major and minor; zeros if the driver does not report it."""
    found = re.match(r"OpenCL (\d+)\.(\d+)", text(raw, "version"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _opencl_c_standards(raw: Any, machine: Machine) -> tuple[int, ...]:
    """See `DeviceLimits`. A driver of OpenCL 3 lists its versions of OpenCL C, and may lack 2.0."""
    major, _ = _version(raw)
    if major < 3:
        return (200,) if major == 2 else ()
    encoded = ask(lambda: machine.query(raw, _OPENCL_C_ALL_VERSIONS), b"")[: 16 * _VERSION_BYTES]
    starts = range(0, len(encoded) - _VERSION_BYTES + 1, _VERSION_BYTES)
    majors = {int.from_bytes(encoded[at : at + 4], "little") >> 22 for at in starts}
    return tuple(sorted(100 * found for found in majors & {2, 3}))


def _ordering_standard(raw: Any, machine: Machine) -> int:
    """See `DeviceLimits`. OpenCL 2 requires such atomics; in OpenCL 3 they are optional and can be queried."""
    major, _ = _version(raw)
    if major < 3:
        return 200 if major == 2 else 0
    wanted = _ORDER_ACQUIRE_RELEASE | _SCOPE_DEVICE
    supported = _first(_query_numbers(raw, machine, _ATOMIC_MEMORY_CAPABILITIES, "uint"))  # the low half of 64 bits
    return 300 if supported & wanted == wanted else 0


def _sizes(raw: Any, machine: Machine, extensions: Sequence[str], queries: Sequence[_Query]) -> tuple[int, ...]:
    """Return what the first query says whose extension the device has, ascending; empty if it has none of them."""
    for extension, code, kind in queries:
        if extension in extensions:
            return tuple(sorted(_query_numbers(raw, machine, code, kind)))
    return ()


def _first(numbers: Sequence[int]) -> int:
    return numbers[0] if numbers else 0


def _query_numbers(raw: Any, machine: Machine, code: int, kind: _Number) -> tuple[int, ...]:
    """Return the positive numbers of one clGetDeviceInfo query; empty if the driver does not answer it."""
    size = machine.size_t_bytes if kind == "size_t" else 4
    encoded = ask(lambda: machine.query(raw, code), b"")[: 16 * size]
    numbers = [int.from_bytes(encoded[at : at + size], "little") for at in range(0, len(encoded) - size + 1, size)]
    return tuple(number for number in numbers if number > 0)


def _get_device_info() -> Any:
    """Return clGetDeviceInfo of the same loader that pyopencl uses."""
    if sys.platform == "win32":
        return ctypes.WinDLL("OpenCL").clGetDeviceInfo
    import pyopencl

    return ctypes.CDLL(pyopencl._cl.__file__).clGetDeviceInfo
