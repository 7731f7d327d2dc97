"""A first kernel file for a source of OpenCL C: its arguments, numeric ``#define`` lines and required work-group."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotune.errors import ConfigurationError, UsageError, did_you_mean
from autotune.model.problem import ELEMENT_TYPES, Problem
from autotune.own.kernel_file.preprocessor import OF_COMPILER, preprocess, without_comments
from autotune.own.kernel_file.source import with_includes
from autotune.own.kernel_file.structure import members
from autotune.own.kernel_file.syntax import C_TYPES, REQUIRED, Argument, Code, Function, Unit
from autotune.own.tuned_file import RESERVED
from autotune.space.expression import Expression

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?(\d{1,6})[uU]?\)?[ \t]*$", re.MULTILINE)
_OF_LANGUAGE = re.compile(
    r"(?:CLK_|CL_|M_|FLT_|DBL_|HALF_|U?(?:CHAR|SHRT|INT|LONG)_|__|cl_)\w*|INFINITY|NAN|MAXFLOAT|NULL|HUGE_VALF?|true|false"
    r"|(?:u?(?:char|short|int|long)|float|double|half)\d*|bool|(?:u?int|size|ptrdiff|image|sampler|event|atomic|queue|ndrange|clk|reserve)\w*_t|pipe|void"
)
_USUAL_SIZE = 1024
_LARGEST = 1024
"""Largest number of a source that is taken for something to choose, rather than a size."""
_GROUP_NAMES = (
    re.compile(r"(block|group|wg|work|local)_?size", re.IGNORECASE),
    re.compile(r"(block|group|wg|work|local)", re.IGNORECASE),
)
"""What names of the work-group have in them, the surest first."""
_NO_GROUP = re.compile(r"mem|pad|max|log|sub_?group", re.IGNORECASE)
_NO_SIZES = re.compile(r"(?i).*(?:off|stride|step|pitch|pad|dilat).*|ld[abc]|nb\d+")
_WIDE = re.compile(r"(?i).*(?:width|columns?|cols?|_x)|w")
"""Sizes that the first dimension of a launch usually goes along."""
_OUTPUT_NAMES = re.compile(r"(?:p_|d_)?(?:out\w*|dst\w*|dest\w*|res\w*|y|c)", re.IGNORECASE)
_AXES = "XYZ"
_OWN_VALUES = {"LOCAL_SIZE": [64, 16, 32, 128, 256], "LOCAL_SIZE_Z": [1, 2, 4]}


def draft(source: Path, kernel: str = "") -> str:
    """Return the text of a kernel file for the first kernel of a source, or the one named.

    Raises UsageError when the source cannot be read or has no such kernel.
    """
    text = without_comments(with_includes(source))
    every = Unit(preprocess(text, lambda _: True))
    usual = Unit(preprocess(text, lambda name: OF_COMPILER.match(name) is not None))
    # First those that are built without options, also of several of one name.
    kernels = {found.name: found for found in usual.kernels}
    others = {found.name: found for found in every.kernels}
    kernels |= {name: found for name, found in others.items() if name not in kernels}
    if not kernels:
        raise UsageError(f"{source} defines no kernel", hint="write the kernel file by hand: autotune help own")
    name = kernel or next(iter(kernels))
    if name not in kernels:
        hint = did_you_mean(name, kernels) or f"there are {', '.join(kernels)}"
        raise UsageError(f"{source} has no kernel {name[:80]!r}", hint=hint)
    unit = every if name in others else usual
    return "\n".join(_Draft(source.name, text, kernels[name], [*kernels], unit).lines())


@dataclass(frozen=True)
class _Draft:
    """What is known of a kernel that is to be described."""

    source: str
    text: str
    kernel: Function
    kernels: list[str]
    unit: Unit
    """The source with all that conditions of the preprocessor choose from."""

    # What the source tells

    @cached_property
    def _same(self) -> list[Function]:
        return [kernel for kernel in self.unit.kernels if kernel.name == self.kernel.name]

    @cached_property
    def body(self) -> Code:
        """Of all kernels of that name."""
        return sum((kernel.code for kernel in self._same), Code(self.unit))

    @cached_property
    def code(self) -> Code:
        """The kernel with the functions that it calls."""
        return self.body + self.unit.helpers(self.body)

    @cached_property
    def dimensions(self) -> int:
        """How many dimensions the kernel asks for its place in."""
        return self.code.asked("global|local|group|num|enqueued")

    @cached_property
    def local_dimensions(self) -> int:
        """How many of them its work-group seems to have: more than those of whole work-groups only."""
        return self.code.asked("global|local|enqueued_local")

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Numbers that are defined, and used other than to ask whether they are."""
        plain = re.sub(r"^[ \t]*#[ \t]*(?:ifn?def|undef)\b.*$|\bdefined\s*\(?\s*\w+", "", self.text, flags=re.MULTILINE)
        defined = {name: int(value) for name, value in _DEFINE.findall(self.text) if self._definitions(name) == 1}
        return {name: value for name, value in defined.items() if len(re.findall(rf"\b{name}\b", plain)) > 1}

    def _definitions(self, name: str) -> int:
        """How often a name is defined: more than once where the source derives it from others."""
        return len(re.findall(rf"#[ \t]*define[ \t]+{name}\b", self.text))

    @cached_property
    def undefined(self) -> list[str]:
        """Names that the kernel or a condition of the preprocessor uses, and nothing defines, as for ``-D`` options."""
        conditions = " ".join(re.findall(r"^[ \t]*#[ \t]*(?:el)?if\b(.*)$", self.text, re.MULTILINE))
        unrolled = " ".join(re.findall(r"#[ \t]*pragma[ \t]+unroll[ \t(]+([A-Za-z_]\w*)", self.text))
        groups = " ".join(group for kernel in self._same for group in REQUIRED.findall(kernel.code.text))
        others = re.sub(r"\bdefined[ \t]*\(?[ \t]*\w+", "", f"{groups} {conditions} {unrolled}")
        used = [*self.code.names, *re.findall(r"\b[A-Za-z_]\w*\b(?!\s*\()", others)]
        known = {*self.unit.declared, *re.findall(r"#[ \t]*define[ \t]+(\w+)", self.text)}
        return [name for name in dict.fromkeys(used) if name not in known and not _OF_LANGUAGE.fullmatch(name)]

    @cached_property
    def chosen_types(self) -> dict[str, str]:
        """Types that the kernel uses and nothing declares, as for ``-DFLOAT4=float4``: floats, as most of them are."""
        used = [self.unit.text_of(node) for node in self.code.of_kind("type_identifier")]
        known = {*self.unit.declared, *self.unit.types, *re.findall(r"#[ \t]*define[ \t]+(\w+)", self.text)}
        named = re.findall(r"\b(?:struct|enum|union)\s+(\w+)|\}\s*(\w+)\s*;", self.text)
        known |= {name for names in named for name in names}
        found = (name for name in dict.fromkeys(used) if name not in known and not _OF_LANGUAGE.fullmatch(name))
        widths = {name: re.search(r"(?<!\d)(2|3|4|8|16)$", name) for name in found}
        return {name: f"float{width[1] if width else ''}" for name, width in widths.items()}

    @cached_property
    def switches(self) -> list[str]:
        """Names that conditions ask for and nothing defines, as options of the compiler do."""
        asked = re.findall(r"(?m)^[ \t]*#[ \t]*ifn?def[ \t]+(\w+)|\bdefined[ \t]*\(?[ \t]*(\w+)", self.text)
        names = dict.fromkeys(first or second for first, second in asked)
        return [name for name in names if not self._definitions(name) and not OF_COMPILER.match(name)][:20]

    def _values_of(self, name: str) -> list[int]:
        """Return values for a name that is not defined: those that conditions compare with, or powers of two."""
        compared = {int(v) for v in re.findall(rf"#.*\b{name}\s*[=!>]=\s*(\d{{1,9}})\b", self.text)}
        above = {int(v) for v in re.findall(rf"#.*\b{name}\s*>\s*(\d{{1,4}})\b", self.text)}
        compared |= above | {2 * limit or 1 for limit in above}
        is_switch = not re.search(rf"\b{name}\b", re.sub(r"#[ \t]*(?:(?:el)?if|undef|pragma).*", "", self.text))
        if (len(compared) > 1 or compared - {0, 1}) and not (compared == {0, 1} and is_counted(name, self.text)):
            return sorted(compared)
        if is_counted(name, self.text) and compared:
            return [1, 2, 4, 8]
        if re.search(rf"#[ \t]*pragma[ \t]+unroll[ \t(]+{name}\b", self.text):
            return [1, 2, 4, 8]
        return [0, 1] if compared or is_switch or re.search("(?i)pad", name) else [16, 4, 8, 32, 64]

    # What is chosen

    @cached_property
    def arguments(self) -> list[Argument]:
        """The kernel's, with the types by which its body reads them."""
        found = {}
        for argument in self.kernel.arguments:
            kind = self.kernel.code.type_read_as(argument)
            meaning = self.unit.types.get(kind)
            found[argument.name] = replace(
                argument, type=meaning.type if meaning else self.chosen_types.get(kind, kind)
            )
        return [*found.values()]

    @cached_property
    def _large(self) -> list[str]:
        return [name for name, value in self.numbers.items() if value > _LARGEST]

    @cached_property
    def sizes(self) -> list[str]:
        """Whole numbers among the arguments, or large ones that the source defines."""
        numbers = (a for a in self.arguments if not a.is_pointer and a.type in C_TYPES)
        whole = (a.name for a in numbers if a.element[0] in ("int32", "uint32"))
        free = [name for name in whole if not hasattr(Problem, name) and name not in RESERVED]
        return [name for name in free if not _NO_SIZES.fullmatch(name)] or self._large or ["n"]

    @cached_property
    def defined_sizes(self) -> list[str]:
        """Sizes that the source takes from definitions."""
        return [size for size in self.sizes if size in self._large or size in self.undefined]

    @cached_property
    def missing(self) -> dict[str, list[int] | list[str]]:
        """Parameters that the source does not define, with values."""
        others = {argument.name for argument in self.arguments} | {*self.sizes, *self.chosen_types}
        types = {name: [kind] for name, kind in self.chosen_types.items()}
        return types | {name: self._values_of(name) for name in self.undefined if name not in others}

    @cached_property
    def work_group(self) -> list[str]:
        """What is required, names that seem to be it, or parameters of our own."""
        parts = [part.strip() for part in self.kernel.required.split(",") if part.strip()]
        while len(parts) > 1 and parts[-1] == "1":
            parts.pop()
        for pattern in _GROUP_NAMES:
            numbers = [*(name for name, value in self.numbers.items() if value), *self.missing]
            named = sorted(name for name in numbers if pattern.search(name) and not _NO_GROUP.search(name))
            if not parts and len(named) in (self.local_dimensions, self.dimensions):
                parts = named
        axes = _AXES[: self.local_dimensions]
        return parts or (["LOCAL_SIZE"] if len(axes) == 1 else [f"LOCAL_SIZE_{axis}" for axis in axes])

    @cached_property
    def parameters(self) -> dict[str, list[int]]:
        """Parameters for the work-group and those that the source defines, with values, the usual one first."""
        own = [part for part in self.work_group if part.startswith("LOCAL_SIZE")]
        found = {part: _OWN_VALUES.get(part, [16, 1, 4, 8, 32]) for part in own}
        for name, value in self.numbers.items():
            values = values_near(name, value, self.text)
            if name not in self.sizes and len(values) > 1:
                found[name] = [value, *(other for other in values if other != value)]
        return found

    @cached_property
    def outputs(self) -> list[str]:
        free = [a.name for a in self.arguments if a.is_pointer and not a.is_fixed]
        written = [name for name in free if self.body.access(name)[0]]
        return written or [name for name in free if _OUTPUT_NAMES.fullmatch(name)] or free

    # What is written

    def lines(self) -> Iterator[str]:
        """Yield the lines of the kernel file."""
        family = re.sub(r"[^a-z0-9_]", "_", self.kernel.name.lower()).lstrip("_0123456789")[:32] or "kernel"
        if others := [name for name in self.kernels if name != self.kernel.name]:
            yield f"# Other kernels of the source (--kernel NAME): {', '.join(others[:20])}"
        yield f'name = "{family}"'
        yield f'source = "{self.source}"'
        yield "# Work-items in each dimension, and the work-group: formulas over sizes and parameters."
        yield from self._launch()
        if self.defined_sizes:
            defines = ", ".join(f'{size} = "{size}"' for size in self.defined_sizes)
            yield f"defines = {{ {defines} }}  # sizes that the source defines, or its build"
        yield ""
        yield "[sizes]  # what is tuned unless other sizes are asked for"
        yield from (f"{size} = {self.numbers.get(size, _USUAL_SIZE)}" for size in dict.fromkeys(self.sizes))
        yield ""
        yield "[parameters]  # values to choose from; the first is used now unless [default] says otherwise"
        yield from (f"{name} = {values}" for name, values in self.parameters.items())
        for name, values in self.missing.items():
            yield f"{name} = {values}  # the source does not define it: check this"
        if self.switches:
            asked = ", ".join(self.switches)
            yield f"# Parameters are always defined. The source asks with #ifdef: {asked} (autotune help own)"
        yield ""
        yield "[arguments]  # in order; `size` is in elements"
        yield from self._buffers_of_lines()
        yield from (f"{a.name} = {{ {self._entry(a)} }}{self._doubt(a)}" for a in self.arguments)
        yield ""
        yield "# Small and ragged sizes at which it must be right too, for autotune check:"
        small = [f"# {name} = {37 + 16 * number}" for number, name in enumerate(dict.fromkeys(self.sizes))]
        yield from ("# [[check]]", *small)
        yield "# The default says what is right. A plain kernel or a Python function is better:"
        yield '# [reference]\n# python = "reference.py:reference"'
        yield ""

    def _launch(self) -> Iterator[str]:
        padded = [*self.work_group, *["1"] * (self.dimensions - len(self.work_group))]
        groups = {"global_size": ", ".join(self._work_items()), "local_size": ", ".join(padded)}
        if any(a.type == "image1d_buffer_t" for a in self.arguments):
            written = ", ".join(f'{key} = "{value}"' for key, value in groups.items())
            named = ", ".join(f'"{a.name}"' for a in self.arguments)
            yield f'launches = [{{ kernel = "{self.kernel.name}", {written}, arguments = [{named}] }}]  # check this'
        else:
            yield f'kernel = "{self.kernel.name}"'
            yield f'global_size = "{groups["global_size"]}"  # check this'
            yield f'local_size = "{groups["local_size"]}"'

    def _work_items(self) -> list[str]:
        """Return guesses of the work-items in each dimension: whole work-groups over a size, or one for each."""
        first = self.sizes[:2]
        if len([size for size in first if _WIDE.fullmatch(size)]) == 1:
            first.sort(key=lambda size: not _WIDE.fullmatch(size))
        along = [*first, *self.sizes[2:]] if len(self.sizes) > 1 else self.sizes * min(2, self.dimensions)
        dimensions = max(self.dimensions, len(self.work_group))
        parts = [*self.work_group, *[""] * (dimensions - len(self.work_group))]
        pairs = zip(along + [""] * dimensions, parts, strict=False)
        return [f"round_up({size}, {part})" if size and part else size or part or "1" for size, part in pairs]

    @cached_property
    def _shape(self) -> list[str]:
        return self.sizes if len(self.sizes) > 1 or self.dimensions == 1 else self.sizes * 2

    def _buffers_of_lines(self) -> Iterator[str]:
        for a in self.arguments:
            if a.type == "image1d_buffer_t":
                access = ', access = "out"' if "write_only" in a.words else ""
                size = " * ".join(self._shape[:2])
                yield f'{a.name}_data = {{ buffer = "{self._channel(a)}", size = "{size}"{access} }}'

    def _entry(self, argument: Argument) -> str:
        """Return what an argument is given."""
        size = " * ".join(self._shape[:2])
        element, width = argument.element
        if argument.is_image:
            access = ', access = "out"' if "write_only" in argument.words else ""
            if argument.type == "image1d_buffer_t":
                return f'line = "{self._channel(argument)}", size = "{size}", over = "{argument.name}_data"{access}'
            return f'image = "{self._channel(argument)}", size = "4 * {self._shape[0]}, {self._shape[-1]}"{access}'
        if argument.is_pointer and "local" in argument.words:
            count = self._length(argument) or " * ".join(self.work_group)
            return f'local = "{width * ELEMENT_TYPES[element].size_bytes} * {count}"'
        if argument.is_pointer:
            is_used = self.body.access(argument.name)[1]
            access = f', access = "{"inout" if is_used else "out"}"' if argument.name in self.outputs else ""
            return f'buffer = "{element}", size = "{f"{width} * " if width > 1 else ""}{size}"{access}'
        if found := [] if argument.type in C_TYPES else members(self.unit.text, argument.type):
            listed = ", ".join(f"{member.name} = {member.entry}" for member in found)
            return f"struct = {{ {listed} }}"
        if width > 1:
            zeros = ", ".join(["0"] * int(re.sub(r"\D", "", argument.type)))
            return f'scalar = "{element}", value = [{zeros}]'
        if argument.name in self._shape:
            return f'scalar = "{element}", value = "{argument.name}"'
        return f'scalar = "{element}", value = {0 if re.search("(?i)off|pad", argument.name) else 1}'

    def _length(self, argument: Argument) -> str:
        """Return the formula of an array's length; empty where the file does not know its names."""
        chosen = {*self.parameters, *self.missing, *self.sizes}
        fixed = {name: value for name, value in self.numbers.items() if name not in chosen}
        try:
            formula = Expression(argument.length).given(fixed)
        except (ConfigurationError, SyntaxError, ValueError, RecursionError, MemoryError):
            return ""
        return f"({formula.text})" if formula.names <= chosen else ""

    def _channel(self, argument: Argument) -> str:
        """Return the type in which a kernel reads or writes an image."""
        for function, values in self.code.calls:
            if re.fullmatch("(?:read|write)_imageh", function) and self.unit.text_of(values[0]) == argument.name:
                return "float16"
        return "float32"

    def _doubt(self, argument: Argument) -> str:
        """Return a comment on an argument that may be another than it seems."""
        is_known = argument.is_image or argument.element[0] != "uint8" or argument.type in ("uchar", "bool")
        is_value = not argument.is_pointer and not argument.is_image and argument.type not in C_TYPES
        is_plain = (
            is_known
            and not is_value
            and re.search(rf"\b{argument.type.removeprefix('u')}\b|\b{argument.type}\b", argument.text)
        )
        is_local = "local" in argument.words and not self._length(argument)
        return "" if is_plain and not is_local else f"  # check this: it is {' '.join(argument.text.split())}"


def is_counted(name: str, source: str) -> bool:
    """Return whether a source calculates with a number, rather than using it as a switch."""
    plain = re.sub(r"(?m)^[ \t]*#[ \t]*(?:(?:el)?if|ifdef|ifndef|undef|pragma)\b.*$", "", source)
    return re.search(rf"[-+*/%]\s*{name}\b|\b{name}\s*[-*/%]|<\s*{name}\b", plain) is not None


def values_near(name: str, value: int, source: str) -> list[int]:
    """Return values to try: those that the preprocessor compares with, a switch, or powers of two around one."""
    conditions = [line for line in re.findall(r"#[ \t]*(?:el)?if\b(.*)", source) if re.search(rf"\b{name}\b", line)]
    compared = {int(v) for line in conditions for v in re.findall(rf"\b{name}\s*[=!]=\s*(\d{{1,9}})\b", line)}
    if len(compared | {value}) > 2:
        return sorted(compared | {value})
    if value == 0 or (value == 1 and conditions and not is_counted(name, source)):
        return [0, 1]
    if value > _LARGEST or value & (value - 1):
        return [value]
    return [v for v in (value // 4, value // 2, value, 2 * value, 4 * value) if 1 <= v <= _LARGEST]
