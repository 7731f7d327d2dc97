"""An OpenCL device: its identity, its limits, and the known faults of its driver."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from autotune.codec import LOCAL, MAX_ITEMS, MAX_NUMBER, SLUG, Bounds, Items
from autotune.model.configuration import Configuration, Value

ARM_REGISTER_ALLOCATIONS = (32, 64)
"""Register counts per work-item that Arm GPUs have offered so far."""

ORDERINGS = ("ptx", "cl2", "cl3")
"""Ways to order memory among all work-groups of a device: NVIDIA's PTX fence, or atomics of OpenCL C 2.0 or 3.0."""

_FACTS_BY_EXTENSION = {
    "has_half_functions": "cl_khr_fp16",
    "has_image_from_buffer": "cl_khr_image2d_from_buffer",
    "has_khr_integer_dot": "cl_khr_integer_dot_product",
    "has_arm_integer_dot": "cl_arm_integer_dot_product_int8",
    "has_wave_sizes": "cl_qcom_reqd_sub_group_size",
    "has_register_cap": "cl_nv_compiler_options",
    "has_sub_group_shuffle": "cl_khr_subgroup_shuffle",
}
"""Names that constraints may use besides the limits: 1 if the device has the extension, else 0."""

VECTOR_WIDTHS = (2, 4, 8, 16)
"""OpenCL vector widths that kernels use."""

_DIVISOR = Bounds(1, MAX_NUMBER)
"""Of numbers by which formulas divide."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something a driver gets wrong: an algorithm, or a parameter value in one algorithm or in all of a family."""

    omits_defaults: ClassVar[bool] = True
    family: str
    algorithm: str = ""
    """Empty: any algorithm of the family."""
    parameter: str = ""
    """Empty: all configurations of the algorithm."""
    value: Value = ""
    is_imported: bool = field(default=False, compare=False)
    """Whether the fault came with a table from another machine; it holds until a measurement here contradicts it."""

    def matches(self, configuration: "Configuration") -> bool:
        """Return whether the fault applies to a configuration of its family."""
        if self.algorithm not in ("", configuration.algorithm):
            return False
        return not self.parameter or (self.parameter, self.value) in configuration.values

    def __str__(self) -> str:
        place = f"{self.family} {self.algorithm}".strip()
        return f"{place} with {self.parameter}={self.value}" if self.parameter else place


@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """What a device can do, as its driver reports it. Constraints see the fields by name; see `constraint_values`."""

    is_sparse: ClassVar[bool] = True
    compute_units: Annotated[int, _DIVISOR] = 1
    max_work_group_size: int = 256
    max_work_item_sizes: Annotated[tuple[int, ...], Items(MAX_ITEMS, least=2)] = (256, 256, 64)
    local_memory_bytes: int = 16 * 1024
    declared_local_memory_bytes: int = 0
    """Bytes that a kernel may declare of it although the driver reports fewer; 0 where it reports them all."""
    local_memory_is_dedicated: bool = True
    global_memory_bytes: int = 512 * 1024 * 1024
    max_allocation_bytes: int = 128 * 1024 * 1024
    has_images: bool = False
    max_image_width: int = 0
    max_image_height: int = 0
    image_pitch_alignment: int = 0
    """In pixels; 0 if the driver does not report it."""
    max_image_line: int = 0
    """Pixels of the longest image over a buffer (``image1d_buffer_t``); 0 if the driver does not report it."""
    register_allocations: tuple[int, ...] = ()
    """Register counts per work-item that the compiler can be asked to use; empty if it offers no choice."""
    sub_group_sizes: tuple[Annotated[int, _DIVISOR], ...] = ()
    has_sub_groups: bool = False
    has_float16: bool = False
    has_float64: bool = False
    has_ptx_integer_dot: bool = False
    """Whether NVIDIA's PTX has an instruction for the dot product of four pairs of int8."""
    has_matrix_units: bool = False
    """Whether a sub-group multiplies small matrices of float16 and of int8 by instructions of NVIDIA's PTX."""
    opencl_c_standards: tuple[int, ...] = ()
    """The OpenCL C versions from 2.0 on that its compiler takes, as 200 and 300; empty if unknown."""
    ordering_standard: int = 0
    """The OpenCL C version, 200 or 300, whose atomics order memory for all work-groups of the device; 0 if none."""
    is_cpu: bool = False
    native_vector_float32: int = 0
    """float32 elements in a vector register, as the driver reports; 0 if it does not, 1 without vector registers."""
    shares_host_memory: bool = False
    extensions: tuple[str, ...] = ()
    max_vector_float32: int = 16
    """Widest vector not found broken, as for the other types; 16 if none is known to be broken."""
    max_vector_float16: int = 16
    """Widest vector loaded and stored as half precision; 0 if not even single elements work."""
    max_vector_int8: int = 16
    max_vector_int32: int = 16
    faults: tuple[Fault, ...] = ()
    """Known faults of the driver."""

    def constraint_values(self) -> dict[str, int]:
        """Return the integer limits and derived facts by name, booleans as 0 and 1."""
        values = {name: int(value) for name, value in vars(self).items() if isinstance(value, int)}
        values["max_work_group_0"], values["max_work_group_1"] = self.max_work_item_sizes[:2]
        values["sub_group_size"] = max(self.sub_group_sizes, default=1)
        values["least_sub_group_size"] = min(self.sub_group_sizes, default=1)
        values["has_ptx"] = int("cl_nv_device_attribute_query" in self.extensions)
        for name, extension in _FACTS_BY_EXTENSION.items():
            values[name] = int(extension in self.extensions)
        values["has_qcom_compiler"] = int(any(name.startswith("cl_qcom_") for name in self.extensions))
        for registers in ARM_REGISTER_ALLOCATIONS:
            values[f"allocates_{registers}_registers"] = int(registers in self.register_allocations)
        for standard in (200, 300):
            known = self.opencl_c_standards
            values[f"takes_cl{standard // 100}"] = int(not known or standard in known)
        values["least_sub_group"] = min(self.sub_group_sizes, default=64)
        values["has_khr_integer_dot"] &= values["takes_cl3"]
        for ordering in ORDERINGS:
            values[f"orders_by_{ordering}"] = int(ordering == self.ordering)
        return values

    @property
    def ordering(self) -> str:
        """The member of ORDERINGS that lets a work-group read what others of the same launch wrote; empty if none.

        OpenCL C 1.2 guarantees a fence only within a work-group, even if some devices do more, and its atomics do not
        order memory. Atomics of 2.0 take a memory order and a scope; OpenCL 2 drivers must offer them, OpenCL 3
        drivers may. NVIDIA's compiler accepts inline PTX, whose device-wide fence exists on every NVIDIA GPU and works
        with both their OpenCL 1.2 and 3.0 drivers.
        """
        if "cl_nv_device_attribute_query" in self.extensions:
            return "ptx"
        return {200: "cl2", 300: "cl3"}.get(self.ordering_standard, "")

    def narrowed(self, other: "DeviceLimits") -> Self:
        """Return these limits reduced by what `other`, limits of the same driver, records as broken."""
        widest = {name: min(getattr(self, name), getattr(other, name)) for name in _WIDEST}
        truths = ("has_images", "has_sub_groups", "has_float16", "has_ptx_integer_dot", "has_matrix_units")
        return dataclasses.replace(
            self,
            **widest,
            **{name: getattr(self, name) and getattr(other, name) for name in truths},
            local_memory_bytes=min(self.local_memory_bytes, other.local_memory_bytes),
            declared_local_memory_bytes=min(self.declared_local_memory_bytes, other.declared_local_memory_bytes),
            ordering_standard=min(self.ordering_standard, other.ordering_standard),
            max_image_line=min(self.max_image_line, other.max_image_line),
            extensions=tuple(name for name in self.extensions if name in other.extensions),
            faults=tuple(dict.fromkeys([*self.faults, *other.faults])),
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `codec.write` that ignores unknown fields: another version of this tool may have stored them."""
        known = {item.name for item in dataclasses.fields(cls)}
        kept: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data.items() if n in known}
        kept["faults"] = tuple(Fault(**plain) for plain in kept.get("faults", ()))
        return cls(**kept)


_WIDEST = tuple(item.name for item in dataclasses.fields(DeviceLimits) if item.name.startswith("max_vector_"))


@dataclass(frozen=True, kw_only=True)
class Device:
    """One OpenCL device: its identity, its limits, and the raw strings it was identified by."""

    slug: Annotated[str, SLUG]
    family: Annotated[str, SLUG]
    """Name of its device profile, such as adreno or cpu; `device/families.py` lists all."""
    vendor: str
    model: str
    selector: str = field(default="", metadata=LOCAL)
    """`platform:device` numbers on the machine that found it."""
    platform: str = ""
    name: str = ""
    version: str = ""
    opencl_c_version: str = ""
    driver: str = ""
    limits: DeviceLimits = field(default_factory=DeviceLimits)
    presumed_from: str = field(default="", metadata=LOCAL)
    """The model, generation or family whose public limits stand for the driver's; empty if the driver reported them."""


def mebibytes(size_bytes: int) -> str:
    """Format a size for display, such as ``512 MiB``."""
    return f"{size_bytes / 2**20:.0f} MiB"
