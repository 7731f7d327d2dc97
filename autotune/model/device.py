"""An OpenCL device: who it is, what it can do, and what its driver is known to get wrong."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from autotune.codec import LOCAL, SLUG
from autotune.model.configuration import Configuration, Value

ARM_REGISTER_ALLOCATIONS = (32, 64)
"""Those that any GPU of Arm's so far offers."""


ORDERINGS = ("ptx", "cl2", "cl3")
"""What orders memory for all work-groups of a device: NVIDIA's instruction, or OpenCL C of a later standard."""


_FACTS_BY_EXTENSION = {
    "has_image_from_buffer": "cl_khr_image2d_from_buffer",
    "has_khr_integer_dot": "cl_khr_integer_dot_product",
    "has_arm_integer_dot": "cl_arm_integer_dot_product_int8",
    "has_wave_sizes": "cl_qcom_reqd_sub_group_size",
    "has_register_cap": "cl_nv_compiler_options",
}
"""What constraints may ask for beside the limits, as 0 and 1."""


VECTOR_WIDTHS = (2, 4, 8, 16)
"""Those of OpenCL that kernels use."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a driver gets wrong: an algorithm, or a value of a parameter, of one algorithm or wherever it occurs."""

    is_sparse: ClassVar[bool] = True
    family: str
    algorithm: str = ""
    """Any where empty."""
    parameter: str = ""
    """All configurations of the algorithm where empty."""
    value: Value = ""
    is_imported: bool = field(default=False, compare=False)
    """Came with a table from another machine; it holds as long as nothing measured here contradicts it."""

    def matches(self, configuration: "Configuration") -> bool:
        """Whether a configuration of the fault's family falls under it."""
        if self.algorithm not in ("", configuration.algorithm):
            return False
        return not self.parameter or (self.parameter, self.value) in configuration.values

    def __str__(self) -> str:
        place = f"{self.family} {self.algorithm}".strip()
        return f"{place} with {self.parameter}={self.value}" if self.parameter else place

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what is at its default is left out."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """What a device can do, as its driver tells. Constraints see every field under its own name."""

    is_sparse: ClassVar[bool] = True
    compute_units: int = 1
    max_work_group_size: int = 256
    max_work_item_sizes: tuple[int, ...] = (256, 256, 64)
    local_memory_bytes: int = 16 * 1024
    local_memory_is_dedicated: bool = True
    global_memory_bytes: int = 512 * 1024 * 1024
    max_allocation_bytes: int = 128 * 1024 * 1024
    has_images: bool = False
    max_image_width: int = 0
    max_image_height: int = 0
    image_pitch_alignment: int = 0
    """In pixels; 0 where the driver does not tell."""
    register_allocations: tuple[int, ...] = ()
    """Registers of a work-item that the compiler can be told to use; empty where it cannot be told."""
    sub_group_sizes: tuple[int, ...] = ()
    has_sub_groups: bool = False
    has_float16: bool = False
    has_float64: bool = False
    ordering_standard: int = 0
    """The OpenCL C, 200 or 300, whose atomics order memory for all work-groups of the device; 0: none does."""
    is_cpu: bool = False
    native_vector_float32: int = 0
    """Elements of float32 in a vector register, as the driver tells; 0 where it does not. 1 on what has none."""
    shares_host_memory: bool = False
    extensions: tuple[str, ...] = ()
    max_vector_float32: int = 16
    """Widest vector that was not found broken, as for the other types; 16 where nothing is known against any."""
    max_vector_float16: int = 16
    """Loaded and stored as half precision; 0 where not even single elements work."""
    max_vector_int8: int = 16
    max_vector_int32: int = 16
    faults: tuple[Fault, ...] = ()
    """What the driver was found to get wrong."""

    def constraint_values(self) -> dict[str, int]:
        """The integer limits by name, truths as 0 and 1."""
        values = {name: int(value) for name, value in vars(self).items() if isinstance(value, int)}
        values["max_work_group_0"], values["max_work_group_1"] = self.max_work_item_sizes[:2]
        values["has_ptx"] = int("cl_nv_device_attribute_query" in self.extensions)
        for name, extension in _FACTS_BY_EXTENSION.items():
            values[name] = int(extension in self.extensions)
        values["has_qcom_compiler"] = int(any(name.startswith("cl_qcom_") for name in self.extensions))
        for registers in ARM_REGISTER_ALLOCATIONS:
            values[f"allocates_{registers}_registers"] = int(registers in self.register_allocations)
        for ordering in ORDERINGS:
            values[f"orders_by_{ordering}"] = int(ordering == self.ordering)
        return values

    @property
    def ordering(self) -> str:
        """By which of ORDERINGS a work-group may read what others of the same launch wrote; empty where by none.

        A fence of OpenCL C 1.2 holds within a work-group only, whatever it does on one device or another, and its
        atomics order nothing. Those of 2.0 take an order and a scope, which drivers of OpenCL 2 have to offer and
        those of OpenCL 3 may. NVIDIA's compiler takes PTX, whose fence for the whole device every GPU of theirs has,
        and which serves their drivers of OpenCL 1.2 and 3.0 alike.
        """
        if "cl_nv_device_attribute_query" in self.extensions:
            return "ptx"
        return {200: "cl2", 300: "cl3"}.get(self.ordering_standard, "")

    def narrowed(self, other: "DeviceLimits") -> Self:
        """These limits without what the same driver was found to get wrong, as `other` holds it."""
        widest = {name: min(getattr(self, name), getattr(other, name)) for name in _WIDEST}
        truths = ("has_images", "has_sub_groups", "has_float16")
        return dataclasses.replace(
            self,
            **widest,
            **{name: getattr(self, name) and getattr(other, name) for name in truths},
            local_memory_bytes=min(self.local_memory_bytes, other.local_memory_bytes),
            ordering_standard=min(self.ordering_standard, other.ordering_standard),
            extensions=tuple(name for name in self.extensions if name in other.extensions),
            faults=tuple(dict.fromkeys([*self.faults, *other.faults])),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "faults": [fault.to_dict() for fault in self.faults]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; fields this version does not know are left out."""
        known = {item.name for item in dataclasses.fields(cls)}
        kept: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data.items() if n in known}
        kept["faults"] = tuple(Fault(**plain) for plain in kept.get("faults", ()))
        return cls(**kept)


_WIDEST = tuple(item.name for item in dataclasses.fields(DeviceLimits) if item.name.startswith("max_vector_"))


@dataclass(frozen=True, kw_only=True)
class Device:
    """One OpenCL device: who it is, what it can do, and the raw strings it was told from."""

    slug: Annotated[str, SLUG]
    family: Annotated[str, SLUG]
    """The profile it falls under: adreno, mali, nvidia, amd, intel, apple, cpu, gpu."""
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


def mebibytes(size_bytes: int) -> str:
    """For people."""
    return f"{size_bytes / 2**20:.0f} MiB"
