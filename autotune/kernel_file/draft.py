"""A first kernel file for a source of OpenCL C: its arguments, numeric ``#define`` lines and required work-group."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UsageError, did_you_mean
from autotune.kernel_file.source import with_includes
from autotune.model.problem import ELEMENT_TYPES, Problem

_BEGINNING = re.compile(r"\b(?:__)?kernel\b")
_HEAD = re.compile(
    r"(?:__)?kernel\b(?>(?P<attributes>[^;{}]*?)\bvoid\b)(?:[^;{}()]*\([^{};]*?\)\))?[^;{}()]*?"
    r"\b(?P<name>\w+)\s*\((?P<arguments>[^{};]*?)\)\s*\{"
)
_LONGEST_HEAD = 4096
"""Characters of a kernel's declaration."""
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?(\d{1,6})[uU]?\)?[ \t]*$", re.MULTILINE)
_GROUP = re.compile(r"reqd_work_group_size\s*\(([^()]*)\)")
C_TYPES = {number.in_c: name for name, number in ELEMENT_TYPES.items()}
"""Our names of the types of OpenCL C."""
_OTHERS = {"unsigned": "uint32", "size_t": "uint64", "bool": "uint8", "void": "uint8"}
_USUAL_SIZE = 1024
_LARGEST = 1024
"""Largest number of a source that is taken for something to choose, rather than a size."""
_GROUP_NAMES = (
    re.compile(r"(block|group|wg|work|local)_?size", re.IGNORECASE),
    re.compile(r"(block|group|wg|work|local)", re.IGNORECASE),
)
"""What names of the work-group have in them, the surest first."""
_NO_SIZES = re.compile(r"(?i).*(?:off|stride|pitch).*|ld[abc]")
_OUTPUT_NAMES = re.compile(r"(?:p_|d_)?(?:out\w*|dst\w*|dest\w*|res\w*|y|c)", re.IGNORECASE)
_OF_LANGUAGE = re.compile(
    r"(?:CLK_|CL_|M_|FLT_|DBL_|HALF_|U?(?:CHAR|SHRT|INT|LONG)_|__|cl_|as_|convert_)\w*|\d\w*|INFINITY|NAN|MAXFLOAT|NULL"
    r"|HUGE_VALF?|true|false|if|else|for|while|do|return|break|continue|switch|case|default|goto|sizeof|struct|typedef"
    r"|(?:u?(?:char|short|int|long)|float|double|half)\d*|unsigned|signed|bool|void|size_t|ptrdiff_t|const|restrict"
    r"|volatile|static|inline|(?:__)?(?:kernel|global|local|constant|private)|enum|union|read_only|write_only|[su]\d+"
)
_AXES = "XYZ"


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument as a kernel declares it."""

    name: str
    type: str
    """Name in OpenCL C, without qualifiers."""
    text: str
    """The whole declaration."""
    is_written: bool
    """The kernel's body seems to write to it."""
    is_updated: bool
    """The body seems to add to what is there."""

    @property
    def is_pointer(self) -> bool:
        return "*" in self.text or "[" in self.text

    @property
    def is_fixed(self) -> bool:
        """What it points to is constant or local."""
        return re.search(r"\b(?:const|(?:__)?constant|(?:__)?local)\b", self.text.partition("*")[0]) is not None

    def has(self, *words: str) -> bool:
        return any(re.search(rf"\b(?:__)?{word}\b", self.text) for word in words)

    @property
    def element(self) -> tuple[str, int]:
        """The type of the elements, and how many there are in one of the argument's type."""
        found = re.fullmatch(r"([a-z]+)(2|3|4|8|16)?", self.type)
        name = C_TYPES.get(found[1]) if found else None
        if found and name:
            return name, {"": 1, "3": 4}.get(found[2] or "", int(found[2] or 1))
        return _OTHERS.get(self.type, "uint8"), 1


def draft(source: Path, kernel: str = "") -> str:
    """Return the text of a kernel file for the first kernel of a source, or the one named.

    Raises UsageError when the source cannot be read or has no such kernel.
    """
    text = without_comments(with_includes(source))
    # With blanks for what macros are, which only looks like a kernel.
    plain = re.sub(r"(?m)^[ \t]*#[ \t]*define\b(?:\\\n|.)*$", lambda macro: re.sub(r"\S", " ", macro[0]), text)
    kernels = {found["name"]: found for found in heads(plain)}
    if not kernels:
        what = "has kernels only that macros write" if any(heads(text)) else "defines no kernel"
        raise UsageError(f"{source} {what}", hint="write the kernel file by hand: autotune help own")
    name = kernel or next(iter(kernels))
    if name not in kernels:
        hint = did_you_mean(name, kernels) or f"there are {', '.join(kernels)}"
        raise UsageError(f"{source} has no kernel {name[:80]!r}", hint=hint)
    found = kernels[name]
    body = text[found.end() :]
    body = body[: next((other.start() for other in heads(plain[found.end() :])), None)]
    before = re.split(r"[;}]", text[max(0, found.start() - 300) : found.start()])[-1]
    group = _GROUP.search(before + found[0])
    required = group[1] if group else ""
    others = [other for other in kernels if other != name]
    source_ = _Source(text=text, kernel=name, others=others, body=f"{required};{body}")
    arguments = {
        argument.name: replace(argument, type=source_.type_of(argument.type))
        for argument in declared_arguments(found["arguments"], body)
    }
    return "\n".join(_lines(source.name, source_, list(arguments.values()), required))


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The text of a source without comments, and of the kernel that is to be described."""

    text: str
    kernel: str
    others: list[str]
    body: str

    @property
    def dimensions(self) -> int:
        """How many dimensions the kernel asks for its place in."""
        asked = re.findall(r"\bget_(?:global|local|group|num|enqueued)_\w+\s*\(\s*([012])\s*\)", self.body)
        return max(map(int, asked), default=0) + 1

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers that are defined, and used other than to ask whether they are."""
        plain = re.sub(r"^[ \t]*#[ \t]*(?:ifn?def|undef)\b.*$|\bdefined\s*\(?\s*\w+", "", self.text, flags=re.MULTILINE)
        defined = {name: int(value) for name, value in _DEFINE.findall(self.text) if self._definitions(name) == 1}
        return {name: value for name, value in defined.items() if len(re.findall(rf"\b{name}\b", plain)) > 1}

    @property
    def undefined(self) -> list[str]:
        """Names that the kernel or a condition of the preprocessor uses, and nothing defines, as for ``-D`` options."""
        plain = re.sub(r'"[^"\n]*"', "", self.text)
        conditions = " ".join(re.findall(r"^[ \t]*#[ \t]*(?:el)?if\b(.*)$", plain, re.MULTILINE))
        macros = " ".join(re.findall(r"^[ \t]*#[ \t]*define[ \t]+\w+[ \t]+(\S.*)$", plain, re.MULTILINE))
        text = f"{re.sub(r'#.*', '', self.body)} {conditions} {re.sub(r'__attribute__ *[(]+.*?[)]{2}', '', macros)}"
        used = re.findall(r"(?<![.\w>])([A-Za-z_]\w*)\b(?!\s*\()", text)
        return [name for name in dict.fromkeys(used) if not _OF_LANGUAGE.fullmatch(name) and not self._defines(name)]

    def _definitions(self, name: str) -> int:
        """How often a name is defined: more than once where the source derives it from others."""
        return len(re.findall(rf"#[ \t]*define[ \t]+{name}\b", self.text))

    def type_of(self, name: str) -> str:
        """Return the type of OpenCL C that a name of a type stands for first in the source; else the name."""
        for _ in range(4):
            made = rf"\btypedef\s+(\w+)\s+{name}\s*;|#[ \t]*define[ \t]+{name}[ \t]+(\w+)[ \t]*$"
            found = re.search(made, self.text, re.MULTILINE)
            name = (found[1] or found[2]) if found else name
        return name

    def _defines(self, name: str) -> bool:
        pointer = "" if name.isupper() else rf"|[A-Za-z_]\w*\s*\*+\s*{name}\s*[=;,)\[]"
        declared = rf"[A-Za-z_]\w*\s+{name}\b|[,}}]\s*{name}\s*(?:[=;,)\[]|$)|#\s*define\s+{name}\b{pointer}"
        keywords = r"\b(?:return|else|case|defined|if|elif|sizeof)\b"
        without = rf"#[ \t]*pragma\b.*|{_GROUP.pattern}"
        plain = re.sub(without, "", re.sub(keywords, "(", self.text))
        return re.search(declared, plain, re.MULTILINE) is not None

    def values_of(self, name: str) -> list[int]:
        """Return values for a name that is not defined: those that conditions compare with, or powers of two."""
        compared = {int(v) for v in re.findall(rf"#.*\b{name}\s*[=!>]=\s*(\d{{1,9}})\b", self.text)}
        above = {int(v) for v in re.findall(rf"#.*\b{name}\s*>\s*(\d{{1,4}})\b", self.text)}
        compared |= above | {2 * limit or 1 for limit in above}
        is_switch = not re.search(rf"\b{name}\b", re.sub(r"#[ \t]*(?:(?:el)?if|undef|pragma).*", "", self.text))
        if len(compared) > 1 or compared - {0, 1}:
            return sorted(compared)
        return [0, 1] if compared or is_switch else [16, 4, 8, 32, 64]


def heads(text: str) -> Iterator[re.Match[str]]:
    """Yield where kernels are defined, up to their braces. The search is bounded, as a source may be anything."""
    end = 0
    for beginning in _BEGINNING.finditer(text):
        if beginning.start() < end:
            continue
        brace = text.find("{", beginning.start(), beginning.start() + _LONGEST_HEAD) + 1
        semicolon = text.find(";", beginning.start(), brace)
        found = _HEAD.match(text, beginning.start(), brace) if brace and semicolon < 0 else None
        if found:
            end = found.end()
            yield found


def without_comments(text: str) -> str:
    """Return a source without comments, with the same lines."""
    return re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)


def declared_arguments(text: str, body: str) -> Iterator[Argument]:
    """Yield the arguments that a kernel declares, from the text between its parentheses and that of its body."""
    qualifiers = (
        r"\b(?:__)?(?:const|volatile|global|local|constant|private|read_only|write_only|unsigned)\b"
        r"|\b(?:__)?restrict(?:__)?\b"
    )
    for part in map(str.strip, re.sub(r"(?m)^[ \t]*#.*$", "", text).split(",")):
        if part in ("", "void"):
            continue
        plain = re.sub(r"__attribute__\s*\(\(.*?\)\)|\[[^\]]*\]", "", part)
        words = re.findall(r"\w+", re.sub(qualifiers, " ", plain))
        unsigned = "u" if re.search(r"\bunsigned\b", part) else ""
        name = words[-1] if words else "unnamed"
        # Macros may stand before a type, and after the star; long int is long.
        before = re.findall(r"\w+", re.sub(qualifiers, " ", plain.partition("*")[0])) if "*" in plain else words[:-1]
        types = [word for word in before if word != "int"]
        kind = f"{unsigned}{types[-1] if types else 'int'}"
        # Through a pointer that is made from it, too.
        made = "|".join([name, *re.findall(rf"\*\s*(\w+)\s*=[^;=]*\b{name}\b[^;]*;", body)])
        written = rf"\b(?:{made})\s*\[[^;]*?\][.\w]*\s*[-+*/%&|^]?=(?!=)|[;{{}})]\s*\*[^;=]*\b(?:{made})\b[^;=]*=(?!=)"
        stored = rf"\b(?:vstore\w*|atom\w*|write_image\w*)\s*\([^;]*\b(?:{made})\b"
        is_written = bool(re.search(f"{written}|{stored}", body))
        updated = rf"\b(?:{made})\s*\[[^;=]*?\][.\w]*\s*[-+*/%&|^]=|\batom\w*\s*\([^;]*\b(?:{made})\b"
        is_updated = bool(re.search(updated, body))
        yield Argument(name=name, type=kind, text=part, is_written=is_written, is_updated=is_updated)


def _lines(name: str, source: _Source, arguments: list[Argument], group: str) -> Iterator[str]:
    numbers = [a for a in arguments if not a.is_pointer and not is_image(a) and a.element[0] in ("int32", "uint32")]
    large = [name for name, value in source.numbers.items() if value > _LARGEST]
    free = [a.name for a in numbers if not hasattr(Problem, a.name) and not _NO_SIZES.fullmatch(a.name)]
    sizes = free or large or ["n"]
    parameters = {
        key: values_near(key, value, source.text) for key, value in source.numbers.items() if key not in sizes
    }
    parameters = {key: values for key, values in parameters.items() if len(values) > 1}
    undefined = {key: source.values_of(key) for key in source.undefined}
    local = _work_group(source, group, list(undefined))
    one = {"LOCAL_SIZE": [64, 16, 32, 128, 256], "LOCAL_SIZE_Z": [1, 2, 4]}
    made = {part: one.get(part, [16, 1, 4, 8, 32]) for part in local if part.startswith("LOCAL_SIZE")}
    family = re.sub(r"[^a-z0-9_]", "_", source.kernel.lower()).lstrip("_0123456789")[:32] or "kernel"
    if source.others:
        yield f"# Other kernels of the source (--kernel NAME): {', '.join(source.others[:20])}"
    yield f'name = "{family}"'
    yield f'source = "{name}"'
    yield f'kernel = "{source.kernel}"'
    yield "# Work-items in each dimension, and the work-group: formulas over sizes and parameters."
    items = [f"round_up({size}, {part})" for size, part in zip(sizes, local, strict=False)]
    yield f'global_size = "{", ".join([*items, *local[len(items) :]])}"  # check this'
    yield f'local_size = "{", ".join(local)}"'
    tied = [size for size in sizes if size in large]
    if tied:
        defines = ", ".join(f'{size} = "{size}"' for size in tied)
        yield f"defines = {{ {defines} }}  # sizes that the source defines"
    yield ""
    yield "[sizes]  # what is tuned unless other sizes are asked for"
    yield from (f"{size} = {source.numbers.get(size, _USUAL_SIZE)}" for size in dict.fromkeys(sizes))
    yield ""
    yield "[parameters]  # values to choose from; the first is used now unless [default] says otherwise"
    for key, values in {**made, **parameters}.items():
        yield f"{key} = {_first(source.numbers.get(key, values[0]), values)}"
    for key, values in undefined.items():
        yield f"{key} = {values}  # the source does not define it: check this"
    yield ""
    yield "[arguments]  # in order; `size` is in elements"
    outputs = [a.name for a in arguments if a.is_written and a.is_pointer and not a.is_fixed]
    if not outputs:
        free = [a.name for a in arguments if a.is_pointer and not a.is_fixed]
        outputs = [name for name in free if _OUTPUT_NAMES.fullmatch(name)] or free
    items_of_group = " * ".join(local)
    yield from (f"{a.name} = {{ {_entry(a, sizes, a.name in outputs, items_of_group)} }}{_doubt(a)}" for a in arguments)
    yield ""
    yield "# Small and ragged sizes at which it must be right too, for autotune check:"
    small = ", ".join(f"{name} = {37 + 16 * number}" for number, name in enumerate(dict.fromkeys(sizes)))
    yield f"# [[check]]\n# {small.replace(', ', chr(10) + '# ')}"
    yield "# The default says what is right. A plain kernel or a Python function is better:"
    yield '# [reference]\n# python = "reference.py:reference"'
    yield ""


def _work_group(source: _Source, required: str, undefined: list[str]) -> list[str]:
    """Return the work-group: what is required, names that seem to be it, or parameters of our own."""
    parts = [part.strip() for part in required.split(",")] if required else []
    while len(parts) > 1 and parts[-1] == "1":
        parts.pop()
    for pattern in _GROUP_NAMES:
        named = sorted(name for name in (*source.numbers, *undefined) if pattern.search(name))
        if not parts and len(named) == source.dimensions:
            parts = named
    own = ["LOCAL_SIZE"] if source.dimensions == 1 else [f"LOCAL_SIZE_{axis}" for axis in _AXES[: source.dimensions]]
    return parts or own


def values_near(name: str, value: int, source: str) -> list[int]:
    """Return values to try: those that the preprocessor compares with, a switch, or powers of two around one."""
    conditions = [line for line in re.findall(r"#[ \t]*(?:el)?if\b(.*)", source) if re.search(rf"\b{name}\b", line)]
    compared = {int(v) for line in conditions for v in re.findall(rf"\b{name}\s*[=!]=\s*(\d{{1,9}})\b", line)}
    if len(compared | {value}) > 2:
        return sorted(compared | {value})
    if value == 0 or (value == 1 and conditions):
        return [0, 1]
    if value > _LARGEST or value & (value - 1):
        return [value]
    return [v for v in (value // 4, value // 2, value, 2 * value, 4 * value) if 1 <= v <= _LARGEST]


def _first(value: int, values: list[int]) -> list[int]:
    return [value, *(other for other in values if other != value)]


def _doubt(argument: Argument) -> str:
    """Return a comment on an argument whose type is not one of OpenCL C."""
    is_known = is_image(argument) or argument.element[0] != "uint8" or argument.type in ("uchar", "bool")
    is_plain = is_known and re.search(rf"\b{argument.type.removeprefix('u')}\b|\b{argument.type}\b", argument.text)
    return "" if is_plain else f"  # check this: it is {' '.join(argument.text.split())}"


def is_image(argument: Argument) -> bool:
    """Return whether an argument is an image of any kind."""
    return argument.type.startswith("image")


def _entry(argument: Argument, sizes: list[str], is_output: bool, work_group: str) -> str:
    size = " * ".join(dict.fromkeys(sizes[:2]))
    element, width = argument.element
    if is_image(argument):
        access = ', access = "out"' if argument.has("write_only") else ""
        if argument.type == "image1d_buffer_t":
            return 'line = "float32", size = "' + size + '", over = "BUFFER"'
        return f'image = "float32", size = "4 * {sizes[0]}, {sizes[-1]}"{access}'
    if argument.is_pointer and argument.has("local"):
        return f'local = "{width * ELEMENT_TYPES[element].size_bytes} * {work_group}"'
    if argument.is_pointer:
        access = f', access = "{"inout" if argument.is_updated else "out"}"' if is_output else ""
        return f'buffer = "{element}", size = "{f"{width} * " if width > 1 else ""}{size}"{access}'
    if argument.name in sizes:
        return f'scalar = "{element}", value = "{argument.name}"'
    return f'scalar = "{element}", value = {0 if "off" in argument.name.lower() else 1}'
