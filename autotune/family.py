"""The words of the project as types: what is asked for, what can be chosen, what is run.

A `KernelFamily` (one module in `kernels/`) declares its `Algorithm`s; each has `Parameter`s and
`Constraint`s. For a `Problem` on a device with given `DeviceLimits` they span a search space (space.py) of valid
`Configuration`s. A configuration is planned as `Buffer`s and `Launch`es. Nothing here needs more than the
standard library, so the runtime lookup can use it.
"""

import dataclasses
import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from autotune.errors import ConfigurationError, ProblemError
from autotune.expression import Expression

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    shares_host_memory: bool = False
    extensions: tuple[str, ...] = ()

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

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; fields this version does not know are left out."""
        known = {item.name for item in dataclasses.fields(cls)}
        kept: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data.items() if n in known}
        return cls(**kept)


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
    """Sizes and types asked for. Each family has a subclass whose fields are integers and strings."""

    family: ClassVar[str]

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
        names, read = _fields_of(type(self))
        return dict(zip(names, read(self), strict=True))

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
        """Canonical JSON of all fields: equal problems have equal keys."""
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
        return tuple([(name, getattr(self, name)) for name in _key_template(type(self)).texts])


@cache
def _fields_of(problem_type: type[Problem]) -> tuple[tuple[str, ...], Callable[[Problem], tuple[Any, ...]]]:
    """The names of all fields, and what reads their values."""
    names = tuple(field.name for field in dataclasses.fields(problem_type))
    return names, attrgetter(*names)


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
    fields = dataclasses.fields(problem_type)
    names = sorted(field.name for field in fields)
    texts = tuple(field.name for field in fields if field.type is str)
    return _KeyTemplate(
        text=f"{{{','.join(f'{chr(34)}{name}{chr(34)}:%s' for name in names)}}}",
        texts=texts,
        places=tuple(names.index(name) for name in texts),
        read=attrgetter(*names),
    )


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One thing that can be chosen. `values` lists every choice, in order of size where there is one."""

    name: str
    values: tuple[Value, ...]
    meaning: str
    neutral: Value | None = None
    """What configurations had that were made before there was this parameter; None where it may not be missing."""

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, int) for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A named condition on parameters, problem sizes and device limits; see `expression.py`."""

    name: str
    condition: Expression
    because: str


@dataclass(frozen=True, kw_only=True, order=True)
class Configuration:
    """One value for every parameter of one algorithm. Hashable; `values` is sorted by name."""

    algorithm: str
    values: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, algorithm: str, **values: Value) -> Self:
        return cls(algorithm=algorithm, values=tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        return self._mapping[name]

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


class Role(enum.Enum):
    """What a kernel does with a buffer."""

    INPUT = "input"
    OUTPUT = "output"
    """Read before it is written only where the problem says so (beta)."""
    SCRATCH = "scratch"
    VIEW = "view"
    """An image over the memory of another buffer, which it does not copy."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """Device memory of a plan. An image holds four elements of a row in each pixel (RGBA)."""

    name: str
    role: Role
    dtype: str
    elements: int
    """Elements a buffer holds; for an image, 4 * width * height."""
    image_width: int = 0
    """In pixels; 0 for a plain buffer."""
    image_height: int = 0
    view_of: str = ""
    """The buffer that an image with the role of a view shows; it stands earlier in the plan."""
    row_pitch: int = 0
    """Elements from row to row of the buffer shown."""
    is_zeroed: bool = False
    """Holds zeros before the first call; every call leaves zeros behind. After a call that failed it may not."""

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A number passed to a kernel. `name` is given where the caller supplies it (alpha, beta)."""

    dtype: str
    value: float = 0
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One enqueued kernel: `arguments` are names of buffers, or scalars.

    `global_size` is in work-items; `local_size` of None leaves the work-group to the driver.
    `prepares` names the operand that this launch only brings into another layout.
    """

    kernel: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    arguments: tuple[str | Scalar, ...]
    prepares: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything needed to run one configuration on one problem, in order."""

    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    build_options: tuple[str, ...] = ()
    template_values: tuple[tuple[str, Value], ...] = ()
    """What the template sees besides the parameters."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One template of a family with its parameters, constraints and work sizes."""

    name: str
    meaning: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()
    features: tuple[Expression, ...] = ()
    """Derived numbers that help a model of the run time, such as work-items in a group."""
    former: tuple[tuple[str, Value], ...] = ()
    """Parameters of before, each with the value at which a configuration is the same without it."""

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}


class KernelFamily(ABC):
    """A kind of computation. One module in `kernels/` makes one instance named FAMILY.

    Inputs and results cross this interface as NumPy arrays keyed by buffer name.
    """

    name: ClassVar[str]
    space_version: ClassVar[int]
    """Raised when parameters or constraints change meaning, so that old trials are told apart."""
    problem_type: ClassVar[type[Problem]]
    algorithms: ClassVar[tuple[Algorithm, ...]]
    baseline: ClassVar[Configuration]
    """The plainest kernel, legal everywhere: what any gain may be told against."""

    @abstractmethod
    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        """Buffers and launches of a valid configuration."""

    @abstractmethod
    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Valid configurations by a rule of the family, most promising first; `starts` are the profile's."""

    def default(self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]) -> Configuration:
        """What to use before anything is tuned."""
        return next(self.candidates(problem, limits, starts), self.baseline)

    @abstractmethod
    def make_case(self, problem: Problem, seed: int) -> "Case":
        """Fresh random inputs with what is needed to judge the outputs."""

    @abstractmethod
    def examples(self) -> tuple[Problem, ...]:
        """Small problems at which every kernel is checked: ragged and degenerate sizes, all types and layouts."""

    def algorithm(self, name: str) -> Algorithm:
        """Raises ConfigurationError when the family has none of that name."""
        for algorithm in self.algorithms:
            if algorithm.name == name:
                return algorithm
        known = ", ".join(a.name for a in self.algorithms)
        raise ConfigurationError(f"{self.name} has no algorithm {name[:80]!r}", hint=f"there are {known}")

    def complete(self, configuration: Configuration) -> Configuration:
        """The same with neutral values for parameters that are newer than it, and without those of before that say
        nothing; unchanged where there are none.
        """
        algorithm = next((a for a in self.algorithms if a.name == configuration.algorithm), None)
        if algorithm is None:
            return configuration
        given = dict(configuration.values)
        for name, neutral in algorithm.former:
            if given.get(name) == neutral:
                del given[name]
        missing = {
            name: parameter.neutral
            for name, parameter in algorithm.by_name.items()
            if name not in given and parameter.neutral is not None
        }
        if not missing and len(given) == len(configuration.values):
            return configuration
        return Configuration.of(configuration.algorithm, **given, **missing)

    def violations(self, problem: Problem, configuration: Configuration, limits: DeviceLimits) -> list[str]:
        """Why a configuration is not valid here, one text a reason; empty when it is."""
        found = self.misfits(configuration)
        if found:
            return found
        values = {**limits.constraint_values(), **problem.constraint_values(), **dict(configuration.values)}
        constraints = self.algorithm(configuration.algorithm).constraints
        return [f"{c.name}: {c.because}" for c in constraints if not c.condition(values)]

    def misfits(self, configuration: Configuration) -> list[str]:
        """How a configuration differs from what its algorithm declares, whatever the problem and the device.

        Raises ConfigurationError for an unknown algorithm.
        """
        algorithm = self.algorithm(configuration.algorithm)
        given = dict(configuration.values)
        found = [f"unknown parameter {name[:80]!r}" for name in given if name not in algorithm.by_name]
        for name, parameter in algorithm.by_name.items():
            if name not in given:
                found.append(f"parameter {name!r} is missing")
            elif not any(type(given[name]) is type(v) and given[name] == v for v in parameter.values):
                found.append(f"{name}={str(given[name])[:80]} is not among its values")
        return found


class Case(ABC):
    """Inputs for one verification, and the judge of its outputs."""

    inputs: Mapping[str, "NDArray[Any]"]
    """Initial contents by buffer name; an output that must be written whole starts poisoned."""
    scalars: Mapping[str, float]

    @abstractmethod
    def error_ratio(self, outputs: Mapping[str, "NDArray[Any]"]) -> float:
        """Largest error over its tolerance: right when not above 1; NaN and infinity are wrong."""


def find_family(name: str) -> KernelFamily:
    """The family of that name, from the module of that name in `kernels/`. Raises ProblemError."""
    from importlib import import_module

    if name not in family_names():
        raise ProblemError(f"there is no kernel family {name[:80]!r}", hint=f"there are {', '.join(family_names())}")
    family = import_module(f"autotune.kernels.{name}").FAMILY
    assert isinstance(family, KernelFamily)
    return family


@cache
def family_names() -> list[str]:
    """Names of all kernel families."""
    from pathlib import Path

    return sorted(path.stem for path in (Path(__file__).parent / "kernels").glob("[a-z]*"))
