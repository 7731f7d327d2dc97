"""What is asked for: the sizes and types of one computation.

Nothing here needs more than the standard library, and little of that, since the runtime lookup loads it.
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

from autotune.errors import ProblemError
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits

DTYPE_BYTES = {"float32": 4, "float16": 2, "int8": 1, "int32": 4}


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
