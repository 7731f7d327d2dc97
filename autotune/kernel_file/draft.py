"""A first kernel file for a source of OpenCL C: its arguments, numeric ``#define`` lines and required work-group."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError, did_you_mean
from autotune.kernel_file.source import read_text
from autotune.model.problem import ELEMENT_TYPES, Problem

_KERNEL = re.compile(
    r"\b(?:__)?kernel\b(?P<attributes>[^;{}]*?)\bvoid\b(?:[^;{}()]*\([^{};]*?\)\))?[^;{}()]*?"
    r"\b(?P<name>\w+)\s*\((?P<arguments>[^{};]*?)\)\s*\{"
)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d{1,6})[ \t]*$", re.MULTILINE)
_GROUP = re.compile(r"reqd_work_group_size\s*\(([^()]*)\)")
_TYPES = {number.in_c: name for name, number in ELEMENT_TYPES.items()}
_OTHERS = {"unsigned": "uint32", "size_t": "uint64", "bool": "uint8", "void": "uint8"}
_USUAL_SIZE = 1024


@dataclass(frozen=True, kw_only=True)
class _Argument:
    name: str
    type: str
    """Name in OpenCL C, without qualifiers."""
    text: str
    """The whole declaration."""
    is_written: bool
    """The kernel's body seems to write to it."""

    @property
    def is_pointer(self) -> bool:
        return "*" in self.text

    def has(self, *words: str) -> bool:
        return any(re.search(rf"\b(?:__)?{word}\b", self.text) for word in words)

    @property
    def element(self) -> tuple[str, int]:
        """The type of the elements, and how many there are in one of the argument's type."""
        found = re.fullmatch(r"([a-z]+)(2|3|4|8|16)?", self.type)
        name = _TYPES.get(found[1]) if found else None
        if found and name:
            return name, {"": 1, "3": 4}.get(found[2] or "", int(found[2] or 1))
        return _OTHERS.get(self.type, "uint8"), 1


def draft(source: Path, kernel: str = "") -> str:
    """Return the text of a kernel file for the first kernel of a source, or the one named.

    Raises UsageError when the source cannot be read or has no such kernel.
    """
    text = _without_comments(read_text(source))
    kernels = {found["name"]: found for found in _KERNEL.finditer(text)}
    if not kernels:
        raise UsageError(f"{source} defines no kernel", hint="write the kernel file by hand: autotune help kernels")
    name = kernel or next(iter(kernels))
    if name not in kernels:
        hint = did_you_mean(name, kernels) or f"there are {', '.join(kernels)}"
        raise UsageError(f"{source} has no kernel {name[:80]!r}", hint=hint)
    found = kernels[name]
    body = text[found.end() :]
    body = body[: next((other.start() for other in _KERNEL.finditer(body)), None)]
    arguments = {argument.name: argument for argument in _arguments(found["arguments"], body)}
    group = _GROUP.search(found[0])
    used = {key: value for key, value in _DEFINE.findall(text) if len(re.findall(rf"\b{key}\b", text)) > 1}
    return "\n".join(_lines(source.name, name, list(arguments.values()), used, group[1] if group else ""))


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)


def _arguments(text: str, body: str) -> Iterator[_Argument]:
    qualifiers = r"\b(?:__)?(?:const|restrict|volatile|global|local|constant|private|read_only|write_only|unsigned)\b"
    for part in filter(None, map(str.strip, text.split(","))):
        words = re.findall(r"\w+", re.sub(qualifiers, " ", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", part)))
        unsigned = "u" if re.search(r"\bunsigned\b", part) else ""
        kind = f"{unsigned}{words[0] if len(words) > 1 else 'int'}" if words else "int"
        name = words[-1] if words else "unnamed"
        written = rf"\b{name}\s*\[[^;]*?\][.\w]*\s*[-+*/%&|^]?=(?!=)|\*\s*\(?{name}\b[^;=]*=(?!=)"
        stored = rf"\b(?:vstore\w*|atom\w*|write_image\w*)\s*\([^;]*\b{name}\b"
        is_written = bool(re.search(f"{written}|{stored}", body))
        yield _Argument(name=name, type=kind, text=part, is_written=is_written)


def _lines(source: str, kernel: str, arguments: list[_Argument], defines: dict[str, str], group: str) -> Iterator[str]:
    numbers = [a for a in arguments if not a.is_pointer and not _is_image(a) and a.element[0] in ("int32", "uint32")]
    sizes = [a.name for a in numbers if not hasattr(Problem, a.name)] or ["n"]
    family = re.sub(r"[^a-z0-9_]", "_", kernel.lower()).lstrip("_0123456789")[:32] or "kernel"
    yield f'name = "{family}"'
    yield f'source = "{source}"'
    yield f'kernel = "{kernel}"'
    yield "# Work-items in each dimension, and the work-group: formulas over sizes and parameters."
    required = [part.strip() for part in group.split(",")] if group else []
    while len(required) > 1 and required[-1] == "1":
        required.pop()
    local = required or ["LOCAL_SIZE"]
    yield f'global_size = "{", ".join([f"round_up({sizes[0]}, {local[0]})", *local[1:]])}"  # check this'
    yield f'local_size = "{", ".join(local)}"'
    yield ""
    yield "[sizes]  # what is tuned unless other sizes are asked for"
    yield from (f"{name} = {_USUAL_SIZE}" for name in dict.fromkeys(sizes))
    yield ""
    yield "[parameters]  # values to choose from; the first is used now unless [default] says otherwise"
    if not required:
        yield "LOCAL_SIZE = [64, 16, 32, 128, 256]"
    for name, value in defines.items():
        yield f"{name} = {_values(int(value))}"
    yield ""
    yield "[arguments]  # in order; `size` is in elements"
    has_written = any(a.is_written and a.is_pointer for a in arguments)
    yield from (f"{a.name} = {{ {_entry(a, sizes, guesses=not has_written)} }}" for a in arguments)
    yield ""
    yield "# Small and ragged sizes at which it must be right too, for autotune check:"
    small = ", ".join(f"{name} = {37 + 16 * number}" for number, name in enumerate(dict.fromkeys(sizes)))
    yield f"# [[check]]\n# {small.replace(', ', chr(10) + '# ')}"
    yield "# The default says what is right. A plain kernel or a Python function is better:"
    yield '# [reference]\n# python = "reference.py:reference"'
    yield ""


def _values(value: int) -> list[int]:
    """Return a value, then others near it: powers of two if it is one."""
    if value and value & (value - 1) == 0:
        others = [value // 4, value // 2, 2 * value, 4 * value]
    else:
        others = [max(value - 1, 0), value + 1]
    return list(dict.fromkeys([value, *others]))


def _is_image(argument: _Argument) -> bool:
    return argument.type.startswith("image")


def _entry(argument: _Argument, sizes: list[str], *, guesses: bool) -> str:
    """Return the entry of an argument; with `guesses`, all that is not constant counts as written."""
    size = " * ".join(dict.fromkeys(sizes[:2]))
    element, width = argument.element
    if _is_image(argument):
        access = ', access = "out"' if argument.has("write_only") else ""
        if argument.type == "image1d_buffer_t":
            return 'line = "float32", size = "' + size + '", over = "BUFFER"'
        return f'image = "float32", size = "4 * {sizes[0]}, {sizes[-1]}"{access}'
    if argument.is_pointer and argument.has("local"):
        return f'local = "{width * ELEMENT_TYPES[element].size_bytes} * LOCAL_SIZE"'
    if argument.is_pointer:
        is_out = (guesses or argument.is_written) and not argument.has("const", "constant")
        access = ', access = "out"' if is_out else ""
        return f'buffer = "{element}", size = "{f"{width} * " if width > 1 else ""}{size}"{access}'
    if argument.name in sizes:
        return f'scalar = "{element}", value = "{argument.name}"'
    return f'scalar = "{element}", value = {0 if "off" in argument.name.lower() else 1}'
