"""A first kernel file for a source of OpenCL C: its arguments, numeric ``#define`` lines and required work-group."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from autotune.errors import UsageError, did_you_mean
from autotune.model.problem import ELEMENT_TYPES, Problem
from autotune.own.kernel_file.declarations import (
    OF_LANGUAGE,
    Argument,
    declared_arguments,
    end_of,
    heads,
    helpers,
    is_image,
    shown_as,
    without_comments,
    without_dead,
    without_names_of_pointers,
    without_strings,
    written_out,
)
from autotune.own.kernel_file.reading import RESERVED
from autotune.own.kernel_file.source import with_includes

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?(\d{1,6})[uU]?\)?[ \t]*$", re.MULTILINE)
_GROUP = re.compile(r"reqd_work_group_size\s*\(([^()]*)\)")
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
_IS_MADE = re.compile(r"[^()]*\)\s*\(")
"""How what seems to be a kernel's arguments begins where a macro writes its name."""
_MOST_OF_ONE_NAME = 16
_MOST_MACROS = 100
_OF_COMPILER = re.compile("__|cl_|CL_")
_AXES = "XYZ"


def draft(source: Path, kernel: str = "") -> str:
    """Return the text of a kernel file for the first kernel of a source, or the one named.

    Raises UsageError when the source cannot be read or has no such kernel.
    """
    text = without_dead(written_out(without_strings(without_comments(with_includes(source)))))
    # With blanks for what macros are, which only looks like a kernel.
    plain = re.sub(r"(?m)^[ \t]*#[ \t]*define\b(?:\\\n|.)*$", lambda macro: re.sub(r"\S", " ", macro[0]), text)
    kernels = {found["name"]: found for found in heads(plain) if not _IS_MADE.match(found["arguments"])}
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
    # Conditions of the preprocessor may choose among several kernels of this name.
    same = islice((head for head in heads(plain) if head["name"] == name), _MOST_OF_ONE_NAME)
    every = "".join(text[head.start() : end_of(text, head.end() - 1)] for head in same)
    source_ = _Source(text=text, kernel=name, others=others, body=f"{required};{body}{helpers(plain, body)}{every}")
    arguments = {
        argument.name: replace(argument, type=source_.type_of(shown_as(argument, body)))
        for argument in declared_arguments(without_names_of_pointers(found["arguments"], text), body)
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
        return self._asked("global|local|group|num|enqueued")

    @property
    def local_dimensions(self) -> int:
        """How many of them its work-group seems to have: more than those of whole work-groups only."""
        return self._asked("global|local|enqueued_local")

    def _asked(self, what: str) -> int:
        asked = re.findall(rf"\bget_(?:{what})_\w+\s*\(\s*([012])\s*\)", self.body)
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
        plain = re.sub(r'"[^"\n]*"|\bdefined[ \t]*\(?[ \t]*\w+', "", self.text)
        conditions = " ".join(re.findall(r"^[ \t]*#[ \t]*(?:el)?if\b(.*)$", plain, re.MULTILINE))
        macros = " ".join(re.findall(r"^[ \t]*#[ \t]*define[ \t]+\w+[ \t]+(\S.*)$", plain, re.MULTILINE))
        unrolled = " ".join(re.findall(r"#[ \t]*pragma[ \t]+unroll[ \t(]+([A-Za-z_]\w*)", self.body))
        macros = f"{unrolled} {re.sub(r'__attribute__ *[(]+.*?[)]{2}', '', macros)}"
        text = f"{re.sub(r'#.*', '', self.body)} {conditions} {macros}"
        used = re.findall(r"(?<![.\w>])([A-Za-z_]\w*)\b(?!\s*\()", text)
        names = dict.fromkeys(name for name in used if not OF_LANGUAGE.fullmatch(name))
        return [name for name in names if name not in self._of_macros and not self._defines(name)]

    @cached_property
    def _of_macros(self) -> set[str]:
        """Names that macros with parameters declare, such as the index of a loop."""
        found: set[str] = set()
        macros = re.findall(r"#[ \t]*define[ \t]+(\w+)\(([\w \t,]*)\)(.*)", self.text)
        for macro, parameters, text in macros[:_MOST_MACROS]:
            made = [bool(re.search(rf"[a-z]\w*[ \t]+{name}[ \t]*=", text)) for name in re.findall(r"\w+", parameters)]
            for call in re.findall(rf"\b{macro}[ \t]*\(([^;{{}}\n]{{1,200}})", self.text) if any(made) else ():
                found.update(name.strip() for name, is_made in zip(call.split(","), made, strict=False) if is_made)
        return found

    @property
    def switches(self) -> list[str]:
        """Names that conditions ask for and nothing defines, as options of the compiler do."""
        asked = re.findall(r"(?m)^[ \t]*#[ \t]*ifn?def[ \t]+(\w+)|\bdefined[ \t]*\(?[ \t]*(\w+)", self.text)
        names = dict.fromkeys(first or second for first, second in asked)
        return [name for name in names if not self._definitions(name) and not _OF_COMPILER.match(name)][:20]

    def _definitions(self, name: str) -> int:
        """How often a name is defined: more than once where the source derives it from others."""
        return len(re.findall(rf"#[ \t]*define[ \t]+{name}\b", self.text))

    def type_of(self, name: str) -> str:
        """Return the type of OpenCL C that a name of a type stands for first in the source; else the name."""
        for _ in range(4):
            made = rf"\btypedef\s+(\w+)\s+{name}\s*;|#[ \t]*define[ \t]+{name}[ \t]+(\w+)[ \t]*$"
            found = re.search(made, self._usual, re.MULTILINE)
            name = (found[1] or found[2]) if found else name
        return name

    @cached_property
    def _usual(self) -> str:
        """The text without what only options of the compiler include."""
        defined = {*re.findall(r"#[ \t]*define[ \t]+(\w+)", self.text)}
        return without_dead(self.text, lambda name: name not in defined and not _OF_COMPILER.match(name))

    @cached_property
    def _declarations(self) -> tuple[str, str]:
        """The text without what is no declaration, and this without what stands in parentheses."""
        keywords = r"\b(?:return|else|case|defined|if|elif|sizeof)\b"
        plain = re.sub(rf"#[ \t]*pragma\b.*|{_GROUP.pattern}", "", re.sub(keywords, "(", self.text))
        without = re.sub(r"#[ \t]*define\b.*", "", plain)
        for _ in range(8):
            without = re.sub(r"\([^()]*\)", "", without)
        return plain, without

    @cached_property
    def _pointed_to(self) -> str:
        """What stands before the star of a declared pointer, as a pattern: a type; in a product it is a number."""
        kind = r"\b(?:u?(?:char|short|int|long)|float|double|half|void|bool|size_t|unsigned)\d*|\b\w+_t"
        qualified = r"\b(?:__)?(?:global|local|constant|private|const|struct)\s+\w+"
        made = re.findall(r"\btypedef\s(?:[^;{}]{0,200}[\s*])?(\w+)\s*;", self.text)[:200]
        return "|".join([kind, qualified, *(rf"\b{name}" for name in made)])

    def _defines(self, name: str) -> bool:
        plain, without = self._declarations
        pointer = rf"(?:{self._pointed_to})\s*\*+\s*{name}\s*[=;,)\[]"
        again = rf",\s*\*+\s*{name}\s*[=;,)\[]|\bfor\s*\(\s*\w+\s+[^;]*,\s*{name}\b"
        declared = rf"[A-Za-z_]\w*\s+{name}\b|#\s*define\s+{name}\b|{pointer}|{again}"
        if re.search(declared, plain):
            return True
        return re.search(rf"[,}}]\s*{name}\s*(?:[=;,)\[]|$)", without, re.MULTILINE) is not None

    def values_of(self, name: str) -> list[int]:
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


def _lines(name: str, source: _Source, arguments: list[Argument], group: str) -> Iterator[str]:
    numbers = [a for a in arguments if not a.is_pointer and not is_image(a) and a.element[0] in ("int32", "uint32")]
    large = [name for name, value in source.numbers.items() if value > _LARGEST]
    taken = [a.name for a in numbers if hasattr(Problem, a.name) or a.name in RESERVED]
    free = [a.name for a in numbers if a.name not in taken and not _NO_SIZES.fullmatch(a.name)]
    sizes = free or large or ["n"]
    parameters = {
        key: values_near(key, value, source.text) for key, value in source.numbers.items() if key not in sizes
    }
    parameters = {key: values for key, values in parameters.items() if len(values) > 1}
    known = {a.name for a in arguments}
    undefined = {key: source.values_of(key) for key in source.undefined if key not in known}
    local = _work_group(source, group, list(undefined))
    one = {"LOCAL_SIZE": [64, 16, 32, 128, 256], "LOCAL_SIZE_Z": [1, 2, 4]}
    made = {part: one.get(part, [16, 1, 4, 8, 32]) for part in local if part.startswith("LOCAL_SIZE")}
    family = re.sub(r"[^a-z0-9_]", "_", source.kernel.lower()).lstrip("_0123456789")[:32] or "kernel"
    if source.others:
        yield f"# Other kernels of the source (--kernel NAME): {', '.join(source.others[:20])}"
    yield f'name = "{family}"'
    yield f'source = "{name}"'
    yield "# Work-items in each dimension, and the work-group: formulas over sizes and parameters."
    padded = [*local, *["1"] * (source.dimensions - len(local))]
    groups = {"global_size": ", ".join(_items(source, sizes, local)), "local_size": ", ".join(padded)}
    lines = [a for a in arguments if a.type == "image1d_buffer_t"]
    if lines:
        written = ", ".join(f'{key} = "{value}"' for key, value in groups.items())
        named = ", ".join(f'"{a.name}"' for a in arguments)
        yield f'launches = [{{ kernel = "{source.kernel}", {written}, arguments = [{named}] }}]  # check this'
    else:
        yield f'kernel = "{source.kernel}"'
        yield f'global_size = "{groups["global_size"]}"  # check this'
        yield f'local_size = "{groups["local_size"]}"'
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
    if source.switches:
        asked = ", ".join(source.switches)
        yield f"# Parameters are always defined. The source asks with #ifdef: {asked} (autotune help own)"
    yield ""
    yield "[arguments]  # in order; `size` is in elements"
    outputs = [a.name for a in arguments if a.is_written and a.is_pointer and not a.is_fixed]
    if not outputs:
        free = [a.name for a in arguments if a.is_pointer and not a.is_fixed]
        outputs = [name for name in free if _OUTPUT_NAMES.fullmatch(name)] or free
    items_of_group = " * ".join(local)
    shape = sizes if len(sizes) > 1 or source.dimensions == 1 else sizes * 2
    for a in lines:
        access = ', access = "out"' if a.has("write_only") else ""
        yield f'{a.name}_data = {{ buffer = "{_channel(a, source)}", size = "{" * ".join(shape[:2])}"{access} }}'
    for a in arguments:
        yield f"{a.name} = {{ {_entry(a, shape, a.name in outputs, items_of_group, source)} }}{_doubt(a)}"
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
        numbers = [*(name for name, value in source.numbers.items() if value), *undefined]
        named = sorted(name for name in numbers if pattern.search(name) and not _NO_GROUP.search(name))
        if not parts and len(named) in (source.local_dimensions, source.dimensions):
            parts = named
    axes = _AXES[: source.local_dimensions]
    own = ["LOCAL_SIZE"] if len(axes) == 1 else [f"LOCAL_SIZE_{axis}" for axis in axes]
    return parts or own


def _items(source: _Source, sizes: list[str], local: list[str]) -> list[str]:
    """Return guesses of the work-items in each dimension: whole work-groups over a size, or one for each of a size."""
    first = sizes[:2]
    if len([size for size in first if _WIDE.fullmatch(size)]) == 1:
        first.sort(key=lambda size: not _WIDE.fullmatch(size))
    along = [*first, *sizes[2:]] if len(sizes) > 1 else sizes * min(2, source.dimensions)
    dimensions = max(source.dimensions, len(local))
    parts = [*local, *[""] * (dimensions - len(local))]
    pairs = zip(along + [""] * dimensions, parts, strict=False)
    return [f"round_up({size}, {part})" if size and part else size or part or "1" for size, part in pairs]


def is_counted(name: str, source: str) -> bool:
    """Return whether a source calculates with a number, so that it is no switch."""
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


def _first(value: int, values: list[int]) -> list[int]:
    return [value, *(other for other in values if other != value)]


def _doubt(argument: Argument) -> str:
    """Return a comment on an argument whose type is not one of OpenCL C."""
    is_known = is_image(argument) or argument.element[0] != "uint8" or argument.type in ("uchar", "bool")
    is_plain = is_known and re.search(rf"\b{argument.type.removeprefix('u')}\b|\b{argument.type}\b", argument.text)
    return "" if is_plain else f"  # check this: it is {' '.join(argument.text.split())}"


def _channel(argument: Argument, source: _Source) -> str:
    """Return the type in which a kernel reads or writes an image."""
    found = re.search(rf"\b(?:read|write)_image(\w+)\s*\(\s*{argument.name}\b", source.body)
    return {"h": "float16"}.get(found[1] if found else "", "float32")


def _entry(argument: Argument, sizes: list[str], is_output: bool, work_group: str, source: _Source) -> str:
    size = " * ".join(sizes[:2])
    element, width = argument.element
    if is_image(argument):
        access = ', access = "out"' if argument.has("write_only") else ""
        if argument.type == "image1d_buffer_t":
            return f'line = "{_channel(argument, source)}", size = "{size}", over = "{argument.name}_data"{access}'
        return f'image = "{_channel(argument, source)}", size = "4 * {sizes[0]}, {sizes[-1]}"{access}'
    if argument.is_pointer and argument.has("local"):
        return f'local = "{width * ELEMENT_TYPES[element].size_bytes} * {work_group}"'
    if argument.is_pointer:
        access = f', access = "{"inout" if argument.is_updated else "out"}"' if is_output else ""
        return f'buffer = "{element}", size = "{f"{width} * " if width > 1 else ""}{size}"{access}'
    if argument.name in sizes:
        return f'scalar = "{element}", value = "{argument.name}"'
    return f'scalar = "{element}", value = {0 if re.search("(?i)off|pad", argument.name) else 1}'
