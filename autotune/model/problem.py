"""Problems: the sizes and types of one computation.

The runtime lookup imports this module, so it uses only the standard library, and little of that.
"""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from autotune.errors import ProblemError, did_you_mean
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits, mebibytes


@dataclass(frozen=True, kw_only=True)
class NumberType:
    """A type of the numbers in a kernel's memory; all that is known about a type is here."""

    name: str
    """Also NumPy's name of the type."""
    size_bytes: int
    in_c: str
    """Name of the type in OpenCL C."""
    widened: str
    """Name of the type to which kernels convert such numbers to compute with them, unless they ask for another."""
    is_whole: bool = False
    channel: str = ""
    """Type of an image's channels in OpenCL, without ``CL_``; empty if no kernel reads images of such numbers."""
    stored: str = ""
    """Of the normalized channels of images: the whole type that is stored, whose largest number stands for 1."""


NUMBER_TYPES: Mapping[str, NumberType] = {
    number.name: number
    for number in (
        NumberType(name="float32", size_bytes=4, in_c="float", widened="float32", channel="FLOAT"),
        NumberType(name="float16", size_bytes=2, in_c="half", widened="float32", channel="HALF_FLOAT"),
        NumberType(name="int8", size_bytes=1, in_c="char", widened="int32", is_whole=True, channel="SIGNED_INT8"),
        NumberType(name="int32", size_bytes=4, in_c="int", widened="int32", is_whole=True),
    )
}
"""Types that built-in kernels compute with, by name. `DeviceLimits` has a ``max_vector_`` for each."""

ELEMENT_TYPES: Mapping[str, NumberType] = {
    **NUMBER_TYPES,
    **{
        name: NumberType(
            name=name, size_bytes=size, in_c=in_c, widened=name, is_whole=name != "float64", channel=channel
        )
        for name, size, in_c, channel in (
            ("float64", 8, "double", ""),
            ("uint8", 1, "uchar", "UNSIGNED_INT8"),
            ("int16", 2, "short", "SIGNED_INT16"),
            ("uint16", 2, "ushort", "UNSIGNED_INT16"),
            ("uint32", 4, "uint", "UNSIGNED_INT32"),
            ("int64", 8, "long", ""),
            ("uint64", 8, "ulong", ""),
        )
    },
    **{
        name: NumberType(name=name, size_bytes=size, in_c="", widened="float32", stored=stored, channel=channel)
        for name, size, stored, channel in (
            ("unorm8", 1, "uint8", "UNORM_INT8"),
            ("snorm8", 1, "int8", "SNORM_INT8"),
            ("unorm16", 2, "uint16", "UNORM_INT16"),
            ("snorm16", 2, "int16", "SNORM_INT16"),
        )
    },
}
"""All types of the elements of buffers and images and of scalars; those beyond `NUMBER_TYPES` are for kernel files."""


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """Sizes and types of a computation. Each family has a subclass whose fields are integers and strings.

    A string field that is empty by default is called an addition: keys and plain data omit it while it is empty, so
    that problems stored before the field existed keep their keys.
    """

    family: ClassVar[str]
    size_axes: ClassVar[tuple[str, ...]]
    """Names of the sizes in `size_vector`. A parameter named after one, such as ``micro_tile_m``, divides it."""
    shape_format: ClassVar[str] = ""
    """What `parse` accepts, for people."""
    shape_examples: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def label(self) -> str:
        """Short text for display, such as ``512x512x512``."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Arithmetic operations of one call."""

    @property
    @abstractmethod
    def bytes_moved(self) -> int:
        """Minimum memory traffic in bytes: each input read once, each output written once."""

    def rate_text(self, time_ns: float) -> str:
        """Return a rate with four digits and a unit: GFLOP/s, or GB/s below one operation per byte moved."""
        if self.flops < self.bytes_moved:
            return f"{self.bytes_moved / time_ns:.4g} GB/s"
        return f"{self.flops / time_ns:.4g} GFLOP/s"

    @property
    def size_vector(self) -> tuple[int, ...]:
        """The sizes that the distance between two problems is computed from, all at least 1."""
        return _fields_of(type(self)).sizes(self)

    @abstractmethod
    def resized(self, sizes: Sequence[int]) -> Self:
        """Return the same kind of problem with `sizes` in the order of `size_vector`, stored without gaps."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Parse the argument of --shape. Raises ProblemError when it is invalid."""

    @abstractmethod
    def check_device(self, limits: DeviceLimits) -> None:
        """Raise ProblemError when the device lacks the memory or the types."""

    def check_words(self, words: Mapping[str, tuple[str, ...]]) -> None:
        """Raise ProblemError when a text field has none of its words."""
        for name, known in words.items():
            given = getattr(self, name)
            if given not in known:
                hint = did_you_mean(given, known) or f"there are {', '.join(known)}"
                raise ProblemError(f"{self.family} has no {name} {given[:80]!r}", hint=hint)

    @classmethod
    def words_of(cls, text: str, least: int, most: int) -> tuple[list[str], ProblemError]:
        """Return the words of a shape of at most so many characters, and the error for what is none, which it raises
        for fewer words than the `least`."""
        wrong = ProblemError(f"{text.strip()[:80]!r} is not a shape", hint=f"such as {cls.shape_examples[0]!r}")
        words = text[:most].strip().lower().replace(",", " ").split()
        if len(text) > most or len(words) < least:
            raise wrong
        return words, wrong

    def check_stored(self, dtype: str, limits: DeviceLimits) -> None:
        """Raise ProblemError when kernels cannot load and store elements of this type on the device."""
        if dtype == "float16" and limits.max_vector_float16 == 0:
            raise ProblemError(f"{self.label}: the driver gets half precision wrong", hint="use float32")

    def check_memory(self, operands: Mapping[str, int], limits: DeviceLimits) -> None:
        """Raise ProblemError when the device cannot allocate an operand, given with its bytes, or all of them."""
        for name, size in operands.items():
            if size > limits.max_allocation_bytes:
                raise ProblemError(
                    f"{self.label}: {name} needs {mebibytes(size)}, "
                    f"the device allocates at most {mebibytes(limits.max_allocation_bytes)} at once"
                )
        total = sum(operands.values())
        if total > limits.global_memory_bytes:
            has = mebibytes(limits.global_memory_bytes)
            raise ProblemError(f"{self.label} needs {mebibytes(total)}, the device has {has}")

    def to_dict(self) -> dict[str, Value]:
        # Called at every lookup of a new size, so dataclasses.asdict is far too slow. vars() would be faster still,
        # but would make every later field access, and so every hash, twice as slow.
        fields = _fields_of(type(self))
        values = dict(zip(fields.names, fields.read(self), strict=True))
        values.update(self._additions)
        return values

    @property
    def as_tuned(self) -> Self:
        """The problem whose winner serves this one: they differ only in where operands lie. By default this one."""
        return self

    @property
    def plain(self) -> Self:
        """The same problem without additions, or itself if it has none. Exported C supports only plain problems."""
        return dataclasses.replace(self, **{name: "" for name, _ in self._additions}) if self._additions else self

    @property
    def _additions(self) -> list[tuple[str, str]]:
        """Names and values of the additions that are not empty."""
        return [(name, value) for name in _fields_of(type(self)).additions if (value := getattr(self, name))]

    def is_constant(self, operand: str) -> bool:  # noqa: ARG002 - families without constant operands
        """Return whether an operand keeps its values between calls, so that call times exclude preparing it."""
        return False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. Raises ProblemError for unknown or missing names and wrong types."""
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
        fields = _fields_of(type(self))
        values = list(fields.read_key(self))
        for place in fields.text_places:
            values[place] = encode_basestring_ascii(values[place])
        return fields.key % tuple(values)

    def constraint_values(self) -> dict[str, Value]:
        """Return the values that constraints may refer to, by name."""
        return self.to_dict()

    def is_comparable(self, other: "Problem") -> bool:
        """Return whether a configuration for `other` could serve this problem: they differ at most in sizes."""
        return self.family == other.family and self.kind == other.kind

    @property
    def kind(self) -> tuple[tuple[str, str], ...]:
        """All string fields: within a family, equal exactly for comparable problems."""
        return tuple([(name, getattr(self, name)) for name in _fields_of(type(self)).texts] + self._additions)


def whole_number(text: str, wrong: ProblemError) -> int:
    """Return a number of a shape. Raises `wrong` if it is none."""
    if not (text.lstrip("+-").isdecimal() and text.isascii() and len(text) < 20):
        raise wrong
    return int(text)


class _Fields(NamedTuple):
    """The fields of a problem type other than additions."""

    names: tuple[str, ...]
    read: Callable[[Problem], tuple[Any, ...]]
    """Returns the values of `names`."""
    sizes: Callable[[Problem], tuple[Any, ...]]
    """Returns the values of the size axes."""
    texts: tuple[str, ...]
    """Names of the string fields."""
    key: str
    """Canonical JSON with ``%s`` for each value: every lookup makes a key, several times faster than JSON's encoder."""
    read_key: Callable[[Problem], tuple[Any, ...]]
    """Returns the values in the order of `key`."""
    text_places: tuple[int, ...]
    """Indices of `texts` in `key`."""
    additions: tuple[str, ...]
    """Names of the additions; see `Problem`."""


@cache
def _fields_of(problem_type: type[Problem]) -> _Fields:
    fields = dataclasses.fields(problem_type)
    own = [field for field in fields if field.default != ""]
    names = [field.name for field in own]
    texts = tuple(field.name for field in own if field.type is str)
    in_key = sorted(names)
    return _Fields(
        names=tuple(names),
        read=_values_of(names),
        sizes=_values_of(problem_type.size_axes),
        texts=texts,
        key=f"{{{','.join(f'{chr(34)}{name}{chr(34)}:%s' for name in in_key)}}}",
        read_key=_values_of(in_key),
        text_places=tuple(map(in_key.index, texts)),
        additions=tuple(field.name for field in fields if field.default == ""),
    )


def _values_of(names: Sequence[str]) -> Callable[[Problem], tuple[Any, ...]]:
    """Return a function that returns the values of these fields."""
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda problem: (read(problem),)
