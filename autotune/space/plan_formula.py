"""Plans as data: the buffers and launches of a family as expressions, evaluated by Python and printed into C.

Every text is an `Expression` over the fields of the problem and its constraint values, the parameters of the
configuration, `algorithm`, and the names defined before it. A text in a text, such as ``'c_parts' if splits else 'c'``,
names a buffer or a type.
"""

import ast
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from types import CodeType
from typing import Any

from autotune.errors import ConfigurationError
from autotune.model.configuration import Configuration, Value
from autotune.model.plan import Buffer, Launch, LocalMemory, Plan, Role, Scalar, Structure
from autotune.model.problem import Problem
from autotune.space.expression import FUNCTIONS, Expression


@dataclass(frozen=True, kw_only=True)
class BufferFormula:
    """A buffer that a plan has if `when` holds. Buffers with one name exclude each other."""

    name: str
    role: Role
    dtype: str
    elements: str = ""
    """Number of elements of a plain buffer."""
    image: str = ""
    """For an image, ``columns, rows`` in elements; `channels` columns fill a pixel."""
    channels: int = 4
    is_line: bool = False
    """See `Buffer`."""
    when: str = "True"
    view_of: str = ""
    row_pitch: str = "0"
    is_zeroed: bool = False

    @property
    def sizes(self) -> tuple[str, str, str]:
        """The number of elements, and width and height of an image in pixels; of the two kinds, one is 0."""
        if not self.image:
            return self.elements, "0", "0"
        columns, rows = parts_of(self.image)
        return "0", f"ceil_div({columns}, {self.channels})", rows


@dataclass(frozen=True, kw_only=True)
class LaunchFormula:
    """A launch that a plan has if `when` holds.

    Sizes and arguments are expressions separated by commas. An argument that results in a text is the name of a buffer.
    """

    kernel: str
    global_size: str
    local_size: str = ""
    """The same number of dimensions; empty if the driver always chooses."""
    local_when: str = "True"
    """If this does not hold, the driver chooses the work-group."""
    arguments: str
    when: str = "True"
    times: str = "1"
    """How often it is launched in a row. Its other formulas may use `step`, which counts from 0."""
    in_turn: bool = False
    """It is launched in turn with the launch before it, as often as that, at the same `step`."""
    prepares: str = ""


STEP = "step"
MOST_LAUNCHES = 1024


def divisible(count: str) -> str:
    """Return the formula of a global size of `count` or a little more that a driver can divide into work-groups.

    Drivers divide 65,537, a prime number, into work-groups of one work-item each, which are several times as slow. The
    kernel must ignore work-items beyond `count`. Sizes above 2**27 stay as they are: a kernel multiplies an index by up
    to 16 rows, which must not exceed an int.
    """
    return f"(round_up({count}, 64) if {count} >= 1024 and {count} <= {2**27} else {count})"


@dataclass(frozen=True, kw_only=True)
class ArgumentFormula:
    """An argument of a kernel that is neither a buffer nor a number of type int32.

    It may use `step`, see `LaunchFormula`.
    """

    dtype: str = ""
    """Type of a scalar; empty for local memory."""
    value: str | float = 0
    """The scalar, or the bytes of local memory for each work-group: an expression or a number."""
    members: tuple[tuple[int, str, str | float], ...] = ()
    """Of a structure or vector, the place in bytes, the type and the value of each number."""
    size_bytes: int = 0
    """Of a structure or vector; 0 for others."""

    @property
    def is_null(self) -> bool:
        """Whether it is a pointer to nothing: it has neither a type nor a size."""
        return not self.dtype and not self.size_bytes and self.value == 0

    @property
    def texts(self) -> list[str]:
        """Its expressions."""
        values = (self.value, *(value for _, _, value in self.members))
        return [value for value in values if isinstance(value, str)]

    def written(self) -> str:
        """Return the Python text that makes the argument."""
        if self.is_null:
            return "None"
        if self.size_bytes:
            members = "".join(f"({place}, {dtype!r}, {_number(value)}), " for place, dtype, value in self.members)
            return f"_structure({self.size_bytes}, ({members}))"
        value = _number(self.value)
        return f"_Scalar(dtype={self.dtype!r}, value={value})" if self.dtype else f"_Local(size_bytes={value})"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanFormula:
    """A family's plans as data: with a problem and a configuration, it gives their `Plan`."""

    absent: Mapping[str, Value] = field(default_factory=dict)
    """Values of parameters for algorithms without them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Derived numbers by name, in order."""
    buffers: tuple[BufferFormula, ...]
    launches: tuple[LaunchFormula, ...]
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Arguments whose values the caller supplies, with the values that measurements use."""
    scalar_dtype: str = "'float32'"
    arguments: Mapping[str, ArgumentFormula] = field(default_factory=dict)
    """Arguments by a name that launches use for them. Exports to C support local memory only."""
    build_options: Mapping[str, str] = field(default_factory=dict)
    """Compiler options, in which `{name}` stands for a value, each with the condition under which it is used."""
    template_values: Mapping[str, str] = field(default_factory=dict)
    variant: Mapping[str, int] = field(default_factory=dict)
    """What a kernel's source depends on besides the configuration and the kind of problem: digits and their bases.

    Problems with equal digits have equal sources.
    """

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        """Return the buffers and launches of a valid configuration."""
        values = self.values(problem, configuration)
        return Plan(
            buffers=tuple(
                [_buffer(b, *found) for b, found in zip(self.buffers, values["_buffers"], strict=True) if found]
            ),
            launches=tuple([_launch(self.launches[number], *found) for number, *found in values["_launches"]]),
            build_options=tuple(
                [o.format_map(values) for o, holds in zip(self.build_options, values["_options"], strict=True) if holds]
            ),
            template_values=tuple(zip(self.template_values, map(in_c, values["_template_values"]), strict=True)),
        )

    def variant_of(self, problem: Problem, configuration: Configuration) -> int:
        """Return the digits of `variant` as one number."""
        return int(self.values(problem, configuration)["_variant"])

    @property
    def variant_number(self) -> str:
        """The expression of the number that the digits of `variant` form."""
        number = "0"
        for digit, base in self.variant.items():
            number = f"({number} * {base} + ({digit}))"
        return number

    @property
    def variant_count(self) -> int:
        return prod(self.variant.values())

    def values(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """Return what the expressions may use, the derived names included."""
        # One namespace for all, since what is in a comprehension sees no local names of this code.
        values: dict[str, Any] = {**_NAMES, **self.absent, **problem.constraint_values(), **dict(configuration.values)}
        values["algorithm"] = configuration.algorithm
        try:
            exec(self._program, values)  # noqa: S102 - the texts were checked
        except NameError as error:
            raise ConfigurationError(f"{configuration}: the plan needs {error.name}, which is missing") from error
        return values

    @cached_property
    def _program(self) -> CodeType:
        """Python code that defines the names, then everything else of a plan at once: one call instead of many."""
        lines = [f"{name} = {_checked(text)}" for name, text in self.names.items()]
        lines += [
            f"{name} = _Scalar(dtype={_checked(self.scalar_dtype)}, name={name!r}, value={value!r})"
            for name, value in self.scalars.items()
        ]
        of_step = {
            name: argument.written()
            for name, argument in self.arguments.items()
            if any(STEP in Expression(text).names for text in argument.texts)
        }
        lines += [f"{name} = {one.written()}" for name, one in self.arguments.items() if name not in of_step]
        buffers = [f"({_tuple(b.dtype, *b.sizes, b.row_pitch)} if {_checked(b.when)} else ())" for b in self.buffers]
        lines += [
            f"_buffers = [{', '.join(buffers)}]",
            f"_launches = [{', '.join(self._rounds(of_step))}]",
            f"_options = {_tuple(*self.build_options.values())}",
            f"_template_values = {_tuple(*self.template_values.values())}",
            f"_variant = {_checked(self.variant_number)}",
        ]
        return compile("\n".join(lines), "<plan>", "exec")

    def _rounds(self, of_step: Mapping[str, str]) -> list[str]:
        """Return the Python texts of launches, those that are launched in turn as one.

        `of_step` are the texts of arguments that differ from step to step.
        """
        rounds: list[list[str]] = []
        for number, launch in enumerate(self.launches):
            if not (launch.in_turn and rounds):
                steps = f"range(min({_checked(launch.times)}, {MOST_LAUNCHES + 1}))"
                rounds.append(["" if launch.times == "1" else steps])
            rounds[-1].append(self._written(number, of_step))
        return [
            f"*[_one for {STEP} in {steps} for _one in ({', '.join(texts)},)]" if steps else ", ".join(texts)
            for steps, *texts in rounds
        ]

    def _written(self, number: int, of_step: Mapping[str, str]) -> str:
        """Return the Python text of a launch among others: its number and its parts, or nothing if it is not needed."""
        launch = self.launches[number]
        local = _tuple(*parts_of(launch.local_size)) if launch.local_size else "None"
        local = f"({local} if {_checked(launch.local_when)} else None)"
        parts = f"({number}, {_tuple(*parts_of(launch.global_size))}, {local}, {_tuple(*parts_of(launch.arguments))})"
        used = {name for part in parts_of(launch.arguments) for name in Expression(part).names}
        made = "".join(f" for {name} in [{text}]" for name, text in of_step.items() if name in used)
        found = f"[{parts}{made}]" if made else f"({parts},)"
        return f"*({found} if {_checked(launch.when)} else ())"


def parts_of(text: str) -> list[str]:
    """Return the expressions of a text that are separated by commas."""
    tree = ast.parse(f"({text},)", mode="eval").body
    assert isinstance(tree, ast.Tuple)
    return [ast.unparse(part) for part in tree.elts]


def _number(value: str | float) -> str:
    return _checked(value) if isinstance(value, str) else repr(value)


def _checked(text: str) -> str:
    return Expression(text).text


def _tuple(*texts: str) -> str:
    return f"({''.join(f'{_checked(text)}, ' for text in texts)})"


def _buffer(formula: BufferFormula, dtype: str, elements: int, width: int, height: int, row_pitch: int) -> Buffer:
    return Buffer(
        name=formula.name,
        role=formula.role,
        dtype=dtype,
        elements=elements or formula.channels * width * height,
        image_width=width,
        image_height=height,
        view_of=formula.view_of,
        row_pitch=row_pitch,
        channels=formula.channels,
        is_line=formula.is_line,
        is_zeroed=formula.is_zeroed,
    )


def _launch(
    formula: LaunchFormula, global_size: tuple[int, ...], local_size: tuple[int, ...] | None, arguments: tuple[Any, ...]
) -> Launch:
    return Launch(
        kernel=formula.kernel,
        global_size=global_size,
        local_size=local_size,
        arguments=tuple([Scalar(dtype="int32", value=x) if isinstance(x, int) else x for x in arguments]),
        prepares=formula.prepares,
    )


def _structure(size_bytes: int, members: tuple[tuple[int, str, float], ...]) -> Structure:
    content = bytearray(size_bytes)
    for place, dtype, value in members:
        try:
            struct.pack_into(f"<{_FORMATS[dtype]}", content, place, value)
        except (struct.error, OverflowError) as error:
            raise ConfigurationError(f"a number of {dtype} cannot be {value}") from error
    return Structure(content=bytes(content))


_FORMATS = {
    "float16": "e", "float32": "f", "float64": "d", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H",
    "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
}  # fmt: skip
"""Python's names of types that structures hold."""


def in_c(value: Value | float) -> Value:
    """Return a value as a definition in C spells it: fractions are floats, as kernels without doubles need them."""
    return f"{value!r}f" if isinstance(value, float) else int(value) if isinstance(value, bool) else value


_NAMES = {**FUNCTIONS, "_Scalar": Scalar, "_Local": LocalMemory, "_structure": _structure, "range": range}
