"""The format of a kernel file: a TOML file that describes a kernel of the user's: sizes, parameters and arguments."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from autotune.codec import Bounds, Items, Pattern
from autotune.model.problem import ELEMENT_TYPES
from autotune.own.tuned_file import NAME, TunedFile, result_names, results_of

KERNEL = Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "must be a name of up to 255 letters, digits and underscores")
_ELEMENTS = [name for name, number in ELEMENT_TYPES.items() if not number.stored]
_CHANNELS = [name for name, number in ELEMENT_TYPES.items() if number.channel]
ELEMENT = Pattern("|".join(_ELEMENTS), f"must be one of {', '.join(_ELEMENTS)}")
CHANNEL = Pattern("|".join(_CHANNELS), f"must be one of {', '.join(_CHANNELS)}")
FILLS = "uniform, normal, ramp, zeros, ones, file and python"
FILL = Pattern("uniform|normal|ramp|zeros|ones|file|python", f"must be one of {FILLS}")
FUNCTION = Pattern(r"|[^:]{1,500}\.py:[A-Za-z_]\w{0,99}", "must be FILE.py:FUNCTION")
MOST_SOURCE_BYTES = 4 * 2**20
REFERENCE = "reference"
"""Name of the algorithm that a reference kernel is."""

Formula = Annotated[str | int, Bounds(0, 2**40)]
"""An expression, or a number."""
Number = Annotated[str | int | float, Bounds(-1e300, 1e300)]
"""An expression, or a number, which may have a fraction."""


@dataclass(frozen=True, kw_only=True)
class MemberEntry:
    """A member of a structure: a `scalar`, or a vector if `value` is a list; or an `array`."""

    is_sparse: ClassVar = True

    scalar: Annotated[str, ELEMENT] = ""
    """Type of a number, or of those of a vector."""
    array: Annotated[str, ELEMENT] = ""
    """Type of the elements of an array; `value` lists them."""
    value: Annotated[str | tuple[Number, ...] | int | float, Items(64, 1), Bounds(-1e300, 1e300)] = 0


@dataclass(frozen=True, kw_only=True)
class ArgumentEntry:
    """An argument: one of `buffer`, `image`, `line`, `scalar`, `struct` and `local` says which kind it is."""

    is_sparse: ClassVar = True

    buffer: Annotated[str, ELEMENT] = ""
    """Type of the elements of a buffer of `size` elements."""
    image: Annotated[str, CHANNEL] = ""
    """Type of the channels of an ``image2d_t``; `size` is ``columns, rows`` in elements.

    Of unorm8, snorm8, unorm16 and snorm16, which kernels read as floats, the largest whole number stands for 1."""
    line: Annotated[str, CHANNEL] = ""
    """Type of the channels of an ``image1d_buffer_t`` over the buffer `over`; `size` is in elements."""
    scalar: Annotated[str, ELEMENT] = ""
    """Type of a number with `value`, or of those of a vector if `value` lists 2, 3, 4, 8 or 16."""
    struct: Mapping[str, MemberEntry] = field(default_factory=dict)
    """A structure that is passed by value: its members in the order in which the source declares them."""
    local: Formula = ""
    """Bytes of local memory for each work-group."""
    size: Formula = ""
    """Elements, of which a pixel has `channels`; only those of ``scratch`` and of views may depend on parameters.

    0, also as one branch of a formula, stands for a pointer to nothing (NULL)."""
    valid: str = "True"
    """Which elements of an output are compared: a condition on `index`, which counts them, and sizes."""
    value: Annotated[str | tuple[Number, ...] | int | float, Items(16, 2), Bounds(-1e300, 1e300)] = ""
    """The number, an expression over sizes and parameters, or a list of such."""
    access: Annotated[str, Pattern("in|out|inout|scratch", "must be in, out, inout or scratch")] = "in"
    """``out`` is written completely; ``inout`` is read too, or keeps elements; ``scratch`` is not compared."""
    fill: Annotated[str, FILL] = "uniform"
    """Contents before a call: random numbers, ``0, 1, 2, ...``, those of `file`, or what `python` returns."""
    range: Annotated[tuple[Number, ...], Items(2)] = ()
    """Limits of random numbers, the second excluded for floats: numbers or expressions.

    Unless given, [-1, 1], and other ranges in some checks."""
    special: bool = True
    """Whether random numbers may be denormal, infinite or NaN in some checks, if the default can cope with them."""
    file: str = ""
    """A NumPy file (.npy) with the contents."""
    python: Annotated[str, FUNCTION] = ""
    """A function that returns the contents, such as packed weights: its parameters are named like sizes, arguments of
    the file before this one, and `numbers`, a NumPy generator."""
    over: Annotated[str, NAME] = ""
    """Buffer argument whose memory an image shows."""
    row_pitch: Formula = 0
    """Elements between the starts of an image's rows in that buffer."""
    channels: Annotated[int, Bounds(1, 4)] = 4
    """Elements in a pixel of an image: 1, 2 or 4."""

    @property
    def kinds(self) -> list[str]:
        """Those of the six kinds that are given."""
        names = ("buffer", "image", "line", "scalar", "struct", "local")
        return [name for name in names if getattr(self, name) not in ("", {})]

    @property
    def is_passed(self) -> bool:
        """Whether it is passed by value: a number, a vector or a structure."""
        return self.scalar != "" or bool(self.struct)

    @property
    def numbers(self) -> tuple[str | float, ...]:
        """The numbers that are passed by value."""
        values = [member.value for member in self.struct.values()] or ([self.value] if self.scalar else [])
        return tuple(number for value in values for number in (value if isinstance(value, tuple) else (value,)))

    @property
    def may_be_null(self) -> bool:
        """Whether its size may be 0, for a pointer to nothing."""
        ends = (end for end in results_of(str(self.size)) if isinstance(end, ast.Constant))
        return self.buffer != "" and any(end.value == 0 for end in ends)

    @property
    def element(self) -> str:
        """Type of the elements, empty for local memory."""
        return self.buffer or self.image or self.line or self.scalar


@dataclass(frozen=True, kw_only=True)
class LaunchEntry:
    """A kernel of the sources that a call launches."""

    is_sparse: ClassVar = True

    kernel: Annotated[str, KERNEL]
    global_size: Formula
    """Work-items in each dimension, separated by commas."""
    local_size: Formula = ""
    """Work-group, the same number of dimensions; the driver's choice if it is left out."""
    arguments: tuple[str, ...] = ()
    """Names of its arguments in order, all of the file's unless given; or formulas whose results are such, or whole
    numbers."""
    when: str = "True"
    """The condition under which a configuration needs this launch."""
    times: Formula = 1
    """How often it is launched in a row; formulas of the launch and values of its arguments may use `step`, from 0."""
    in_turn: bool = False
    """It is launched in turn with the launch before it, as often as that."""
    once: bool = False
    """It only prepares constant data, such as repacked weights: it is checked, and not timed."""


@dataclass(frozen=True, kw_only=True)
class ReferenceEntry:
    """What is right: a kernel, a Python function, or stored outputs. Otherwise, the default configuration."""

    is_sparse: ClassVar = True

    kernel: Annotated[str, KERNEL] = ""
    source: str = ""
    """A file of its own; the file's sources unless given."""
    global_size: Formula = ""
    local_size: Formula = ""
    arguments: tuple[str, ...] = ()
    python: Annotated[str, FUNCTION] = ""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """NumPy files by the name of the output."""
    relative: Annotated[float | None, Bounds(0, 1)] = None
    """Largest error as a share of an element, or of the usual size of those in its row if that is more."""
    absolute: Annotated[float, Bounds(0, 1e300)] = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkEntry:
    """Operations and bytes of a call, from which rates are computed."""

    is_sparse: ClassVar = True

    flops: Formula = 0
    bytes: Formula = 0


@dataclass(frozen=True, kw_only=True)
class KernelFile(TunedFile):
    """A kernel file. Every text called a formula is an expression over sizes, parameters and limits of the device."""

    title: ClassVar = "kernel file"

    source: str | tuple[str, ...]
    """Files of OpenCL C; `parameters` and `defines` become ``#define`` lines. Files named .j2 are templates."""
    kernel: Annotated[str, KERNEL] = ""
    global_size: Formula = ""
    local_size: Formula = ""
    launches: tuple[LaunchEntry, ...] = ()
    """In place of `kernel`, `global_size` and `local_size`, where a call launches several kernels."""
    check: tuple[Mapping[str, Annotated[int, Bounds(1, 2**31 - 1)]], ...] = ()
    """Small or ragged sizes at which the kernel must be right too."""
    defines: Mapping[str, Number] = field(default_factory=dict)
    """Further ``#define`` lines: a formula each. Fractions become floats, such as 0.5f."""
    build_options: tuple[str, ...] = ()
    """A list of options of the compiler, in which ``{name}`` stands for a parameter or a size, ``{{`` for a brace."""
    arguments: Mapping[str, ArgumentEntry]
    reference: ReferenceEntry = field(default_factory=ReferenceEntry)
    work: WorkEntry = field(default_factory=WorkEntry)

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def all_launches(self) -> tuple[LaunchEntry, ...]:
        """The launches of a call, without that of the reference."""
        one = LaunchEntry(kernel=self.kernel or self.name, global_size=self.global_size, local_size=self.local_size)
        return self.launches or (one,)

    @property
    def reference_launch(self) -> LaunchEntry | None:
        """The launch of the reference kernel, if there is one."""
        given = self.reference
        if not given.kernel:
            return None
        return LaunchEntry(
            kernel=given.kernel, global_size=given.global_size, local_size=given.local_size, arguments=given.arguments
        )

    def formulas_of(self, launch: LaunchEntry) -> tuple[str, ...]:
        """Return the formulas of a launch's arguments, in order, most of which are names."""
        return launch.arguments or tuple(self.arguments)

    def names_of(self, launch: LaunchEntry) -> tuple[str, ...]:
        """Return the names of a launch's arguments, in order: the first of several, empty for a number."""
        return tuple(
            text
            if text in self.arguments
            else next((name for name in result_names(text) if name in self.arguments), "")
            for text in self.formulas_of(launch)
        )

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        """The sections of the file whose keys are names, with each of these."""
        yield from super().names
        for section in ("arguments", "defines"):
            yield from ((section, name) for name in getattr(self, section))

    @property
    def formulas(self) -> Iterator[tuple[str, str | float]]:
        """All formulas with their keys."""
        for number, launch in enumerate(self.all_launches):
            prefix = f"launches[{number}]." if self.launches else ""
            for key in ("global_size", "local_size", "when", "times"):
                yield f"{prefix}{key}", getattr(launch, key)
            given = (formula for formula in launch.arguments if formula not in self.arguments)
            yield from ((f"{prefix}arguments", formula) for formula in given)
        for name, entry in self.arguments.items():
            for formula in (entry.size, entry.local, entry.row_pitch, entry.valid, *entry.numbers, *entry.range):
                yield f"arguments.{name}", formula
        yield from ((f"defines.{name}", formula) for name, formula in self.defines.items())
        yield from super().formulas

    @property
    def outputs(self) -> list[str]:
        return [name for name, entry in self.arguments.items() if entry.access in ("out", "inout")]
