"""What is asked for, on which device, and what is chosen for it: `Problem`, `Device`, `Configuration`.

Nothing here needs more than the standard library, and little of that, since the runtime lookup loads it.
"""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from autotune.errors import ConfigurationError, ProblemError

Value = int | str

DTYPE_BYTES = {"float32": 4, "float16": 2, "int8": 1, "int32": 4}


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

    slug: str
    vendor: str
    model: str
    family: str
    """The profile it falls under: adreno, mali, nvidia, amd, intel, apple, cpu, gpu."""
    selector: str = ""
    """`platform:device` numbers on the machine that found it."""
    platform: str = ""
    name: str = ""
    version: str = ""
    opencl_c_version: str = ""
    driver: str = ""
    limits: DeviceLimits = field(default_factory=DeviceLimits)


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """Sizes and types asked for. Each family has a subclass whose fields are integers and strings.

    A string that is empty by default is an addition: where it is empty, keys and plain data leave it out, so that
    problems stored before there was the field keep their keys.
    """

    family: ClassVar[str]
    size_axes: ClassVar[tuple[str, ...]]
    """Names of the sizes in the size vector. Parameters named after one, such as ``micro_tile_m``, divide it."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short text for people, such as ``512x512x512``."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Arithmetic operations of one call."""

    @property
    @abstractmethod
    def bytes_moved(self) -> int:
        """Fewest bytes through memory: each input read once, each output written once."""

    @property
    @abstractmethod
    def size_vector(self) -> tuple[int, ...]:
        """The sizes in which nearness of two problems is measured, all at least 1."""

    @abstractmethod
    def resized(self, sizes: Sequence[int]) -> Self:
        """The same kind of problem with other sizes, in the order of the size vector, stored without gaps."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read what a person types after --shape. Raises ProblemError."""

    @abstractmethod
    def check_device(self, limits: DeviceLimits) -> None:
        """Raise ProblemError when the device lacks the memory or the types."""

    def to_dict(self) -> dict[str, Value]:
        # Asked at every lookup of a new size: far quicker than asdict. vars() would be quicker still, and would make
        # every later access to a field, and so every hash, twice as slow.
        names, read, _ = _fields_of(type(self))
        values = dict(zip(names, read(self), strict=True))
        values.update(self._additions)
        return values

    @property
    def plain(self) -> Self:
        """The same problem without additions; itself where it has none. Exported C knows these only."""
        return dataclasses.replace(self, **{name: "" for name, _ in self._additions}) if self._additions else self

    @property
    def _additions(self) -> list[tuple[str, str]]:
        """Those that are not empty."""
        return [(name, value) for name in _fields_of(type(self)).additions if (value := getattr(self, name))]

    def is_constant(self, operand: str) -> bool:  # noqa: ARG002 - families without constant operands
        """Whether an operand keeps its values from call to call, so that the time of a call leaves out preparing it."""
        return False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. Raises ProblemError on unknown names and wrong types."""
        fields = {item.name: item for item in dataclasses.fields(cls)}
        for name, value in data.items():
            if name not in fields:
                raise ProblemError(f"{cls.family} has no size named {name[:80]!r}")
            wanted = fields[name].type
            if type(value) is not wanted:
                raise ProblemError(f"{cls.family} size {name} must be {getattr(wanted, '__name__', wanted)}")
        missing = [n for n, f in fields.items() if n not in data and f.default is dataclasses.MISSING]
        if missing:
            raise ProblemError(f"{cls.family} needs {', '.join(missing)}")
        return cls(**data)

    @property
    def key(self) -> str:
        """Canonical JSON of `to_dict`: equal problems have equal keys."""
        if self._additions:
            return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        template, _, places, read = _key_template(type(self))
        values = list(read(self))
        for place in places:
            values[place] = encode_basestring_ascii(values[place])
        return template % tuple(values)

    def constraint_values(self) -> dict[str, Value]:
        """What constraints may name."""
        return self.to_dict()

    def is_comparable(self, other: "Problem") -> bool:
        """Whether a configuration for `other` could serve this problem: all but the sizes agree."""
        return self.family == other.family and self._kind() == other._kind()

    @property
    def kind(self) -> tuple[tuple[str, str], ...]:
        """What comparable problems have in common; equal for them alone, within a family."""
        return self._kind()

    def _kind(self) -> tuple[tuple[str, str], ...]:
        return tuple([(name, getattr(self, name)) for name in _key_template(type(self)).texts] + self._additions)


class _Fields(NamedTuple):
    """The fields of a problem type."""

    names: tuple[str, ...]
    """Of those that every problem has."""
    read: Callable[[Problem], tuple[Any, ...]]
    """Returns their values."""
    additions: tuple[str, ...]
    """Names of the others; see `Problem`."""


def mebibytes(size_bytes: int) -> str:
    """For people."""
    return f"{size_bytes / 2**20:.0f} MiB"


@cache
def _fields_of(problem_type: type[Problem]) -> _Fields:
    fields = dataclasses.fields(problem_type)
    names = tuple(field.name for field in fields if field.default != "")
    return _Fields(names, attrgetter(*names), tuple(field.name for field in fields if field.default == ""))


class _KeyTemplate(NamedTuple):
    """Keys are made at every lookup, and a template is several times quicker than a JSON encoder."""

    text: str
    """Canonical JSON with a place for each value."""
    texts: tuple[str, ...]
    """Fields that are texts, in the order of the fields."""
    places: tuple[int, ...]
    """Theirs among the values."""
    read: Callable[[Problem], tuple[Any, ...]]
    """All values in the order of the template."""


@cache
def _key_template(problem_type: type[Problem]) -> _KeyTemplate:
    fields = [field for field in dataclasses.fields(problem_type) if field.default != ""]
    names = sorted(field.name for field in fields)
    texts = tuple(field.name for field in fields if field.type is str)
    return _KeyTemplate(
        text=f"{{{','.join(f'{chr(34)}{name}{chr(34)}:%s' for name in names)}}}",
        texts=texts,
        places=tuple(names.index(name) for name in texts),
        read=attrgetter(*names),
    )


@dataclass(frozen=True, kw_only=True, order=True)
class Configuration:
    """One value for every parameter of one algorithm. Hashable; `values` is sorted by name."""

    algorithm: str
    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, algorithm: str, **values: Value) -> Self:
        return cls(algorithm=algorithm, values=tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        """The value of a parameter, or under ``algorithm`` the algorithm, as in `to_dict`."""
        return self.algorithm if name == "algorithm" else self._mapping[name]

    def __getstate__(self) -> dict[str, object]:
        """Without what is computed from the values."""
        return {"algorithm": self.algorithm, "values": self.values}

    def number(self, name: str) -> int:
        """The value of an integer parameter. Raises ConfigurationError when it is none."""
        value = self._mapping.get(name)
        if not isinstance(value, int):
            raise ConfigurationError(f"{self.algorithm} has no integer parameter {name!r}")
        return value

    @cached_property
    def _mapping(self) -> dict[str, Value]:
        return dict(self.values)

    def to_dict(self) -> dict[str, Value]:
        """Plain data: the parameters and, under ``algorithm``, the algorithm."""
        return {"algorithm": self.algorithm, **self._mapping}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. Raises ConfigurationError on anything but integers and strings."""
        values = dict(data)
        algorithm = values.pop("algorithm", None)
        if not isinstance(algorithm, str):
            raise ConfigurationError("a configuration needs an algorithm name")
        for name, value in values.items():
            if type(value) not in (int, str) or not isinstance(name, str):
                raise ConfigurationError(f"parameter {str(name)[:80]!r} must be an integer or a string")
        return cls.of(algorithm, **values)

    @property
    def key(self) -> str:
        """Canonical JSON: equal configurations have equal keys."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        return f"{self.algorithm}({', '.join(f'{name}={value}' for name, value in self.values)})"
