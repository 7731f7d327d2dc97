"""Writing a captured launch as a kernel file, with its source and its contents."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np

from autotune.errors import AutotuneError
from autotune.model.problem import ELEMENT_TYPES, Problem
from autotune.own.capture.proposals import Proposal, guarded, numbers_of, propose, split_options
from autotune.own.capture.recording import LOCAL, PRIVATE, Argument, Launch, find_compiler
from autotune.own.kernel_file.reading import read_kernel_file
from autotune.own.kernel_file.source import once
from autotune.own.tuned_file import RESERVED
from autotune.space.expression import FUNCTIONS

_BUFFER, _IMAGE_2D, _LINE = 0x10F0, 0x10F1, 0x10F6
_CHANNELS = {0x10B0: 1, 0x10B2: 2, 0x10B5: 4}
"""Channels of ``CL_R``, ``CL_RG`` and ``CL_RGBA``."""
_CHANNEL_TYPES = {
    0x10D7: "int8", 0x10D8: "int16", 0x10DA: "uint8", 0x10DB: "uint16", 0x10DC: "uint32", 0x10DD: "float16",
    0x10DE: "float32", 0x10D0: "snorm8", 0x10D1: "snorm16", 0x10D2: "unorm8", 0x10D3: "unorm16",
}  # fmt: skip
_IN_C = {
    **{number.in_c: name for name, number in ELEMENT_TYPES.items() if number.in_c},
    "unsigned char": "uint8", "unsigned short": "uint16", "unsigned int": "uint32", "unsigned long": "uint64",
    "unsigned": "uint32", "signed char": "int8", "size_t": "uint64",
}  # fmt: skip
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">].*$', re.MULTILINE)
_MOST_INCLUDES = 100


class Unsuitable(AutotuneError):
    """A launch that a kernel file cannot describe; the message says why."""


@dataclass(frozen=True)
class Entry:
    """An argument of the kernel file: its keys with their values."""

    name: str
    keys: Mapping[str, Any]


class Conversion:
    """A launch on its way to a kernel file: its arguments, sizes and proposals."""

    def __init__(self, launch: Launch, name: str, meaning: str) -> None:
        """Raises Unsuitable."""
        self._launch = launch
        self._name = name
        self._meaning = meaning
        self._check()
        self._options = split_options(launch.options)
        source = _with_includes(launch.source.read_text("utf-8", "replace"), self._folders)
        self._types = Types(_preprocessed(source, self._options))
        self._names = _names_of(launch.arguments)
        self._by_value = [i for i, a in enumerate(launch.arguments) if a.address == PRIVATE and self._scalar(a) is None]
        self._source = with_pointers(source, launch.kernel, self._by_value, len(launch.arguments))
        self._sizes = self._named_sizes() or {"work_items": launch.global_size[0]}
        macros = dict(re.findall(r"#\s*define\s+(\w+) (.*)", _preprocessed(self._source, self._options, "-dM")))
        self._proposal = propose(
            launch.kernel,
            self._source,
            macros,
            numbers_of(self._options),
            launch.global_size,
            launch.local_size,
            self._sizes,
        )

    def write(self, folder: Path) -> Path:
        """Write the files into a new folder, and return the kernel file. Raises Unsuitable and OSError."""
        folder.mkdir(parents=True)
        proposal = self._proposal
        (folder / "kernel.cl").write_text(guarded(self._source, [*proposal.parameters]), "utf-8")
        entries, outputs = self._entries(folder)
        path = folder / "kernel.toml"
        path.write_text(self._text(entries, outputs), "utf-8")
        read_kernel_file(path)
        return path

    @property
    def parameters(self) -> Mapping[str, Sequence[int]]:
        return self._proposal.parameters

    @property
    def _folders(self) -> list[Path]:
        named = [self._launch.folder / option[2:] for option in self._options if option.startswith("-I")]
        return [*named, self._launch.folder]

    def _check(self) -> None:
        launch = self._launch
        if launch.obstacle:
            raise Unsuitable(launch.obstacle)
        if any(launch.offset):
            raise Unsuitable("it is launched with a global offset, which kernel files do not have")
        if not launch.arguments:
            raise Unsuitable("the contents of its arguments were not copied: they exceed --memory, or cannot be read")
        memory = [a for a in launch.arguments if a.bytes]
        changed = [a for a in memory if a.after]
        if all(a.is_read_only for a in memory):
            raise Unsuitable("it has no argument that it could write to")
        for a in changed:
            for b in memory:
                overlap = a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
                if a.parent == b.parent and a.memory != b.memory and overlap:
                    raise Unsuitable(f"{a.name} and {b.name} share memory, which kernel files cannot express")
        for a in launch.arguments:
            if a.type == "sampler_t":
                raise Unsuitable(f"{a.name} is a sampler, which kernel files cannot pass")
            is_known = a.object in (_BUFFER, _LINE) or (a.object == _IMAGE_2D and a.region[2] == 1)
            if a.bytes and (not is_known or (a.order and self._channels(a) is None)):
                raise Unsuitable(f"{a.name} is a {a.type} of a kind or format that kernel files do not have")

    # Arguments

    def _entries(self, folder: Path) -> tuple[list[Entry], dict[str, str]]:
        """Write the contents, and return the arguments, and the files of outputs by name."""
        found: dict[str, Entry] = {}
        outputs = {}
        memory = [a for a in self._launch.arguments if a.bytes]
        nothing_changed = not any(a.after for a in memory)
        for number, (name, argument) in enumerate(zip(self._names, self._launch.arguments, strict=True)):
            if name in found:
                continue
            if argument.address == LOCAL:
                found[name] = Entry(name, {"local": self._local_bytes(argument.size)})
            elif number in self._by_value:
                _save(folder / f"{name}.npy", argument.value, "uint8")
                keys = {"buffer": "uint8", "size": len(argument.value), "fill": "file", "file": f"{name}.npy"}
                found[name] = Entry(name, keys)
            elif argument.address == PRIVATE:
                element = self._types.element(argument.type)
                found[name] = Entry(name, {"scalar": element, "value": self._value(argument)})
            else:
                aliases = [a for a in memory if a.memory == argument.memory]
                is_output = bool(argument.after) or (nothing_changed and not any(a.is_read_only for a in aliases))
                found.update((e.name, e) for e in self._memory(name, argument, folder, is_output=is_output))
                if is_output:
                    outputs[name] = f"{name}_after.npy"
                    _save(
                        folder / outputs[name],
                        (argument.after or argument.before).read_bytes(),
                        self._element(argument),
                    )
        return [*found.values()], outputs

    def _memory(self, name: str, argument: Argument, folder: Path, *, is_output: bool) -> Iterator[Entry]:
        element = self._element(argument)
        count = argument.bytes // np.dtype(element).itemsize
        # An output that the launch left as it was is to be written afresh; others may be read before they are written.
        access = {"access": "inout" if argument.after else "out"} if is_output else {}
        fill = {"fill": "file", "file": f"{name}.npy"} if access != {"access": "out"} else {}
        if fill:
            _save(folder / f"{name}.npy", argument.before.read_bytes(), element)
        if argument.object == _BUFFER:
            yield Entry(name, {"buffer": element, "size": self._formula(count), **access, **fill})
            return
        channels = _CHANNELS[argument.order]
        if argument.object == _LINE:
            if is_output:
                raise Unsuitable(f"{name} is an image over a buffer that is written, which kernel files do not have")
            yield Entry(f"{name}_memory", {"buffer": element, "size": self._formula(count), **fill})
            yield Entry(
                name, {"line": element, "size": self._formula(count), "over": f"{name}_memory", "channels": channels}
            )
            return
        columns, rows = argument.region[0] * channels, argument.region[1]
        size = f"{self._formula(columns)}, {self._formula(rows)}"
        yield Entry(name, {"image": element, "size": size, "channels": channels, **access, **fill})

    def _element(self, argument: Argument) -> str:
        if argument.order:
            return self._channels(argument) or ""
        element = self._types.element(argument.type)
        return element if element and argument.bytes % np.dtype(element).itemsize == 0 else "uint8"

    @staticmethod
    def _channels(argument: Argument) -> str | None:
        return _CHANNEL_TYPES.get(argument.channel) if argument.order in _CHANNELS else None

    def _scalar(self, argument: Argument) -> int | float | None:
        """Return the number that an argument passed by value is, or None: a vector, a structure, infinity."""
        element = self._types.element(argument.type)
        if not element or np.dtype(element).itemsize != argument.size or self._types.is_vector(argument.type):
            return None
        value = np.frombuffer(argument.value, element)[0].item()
        is_exact = abs(value) <= 2**53 if isinstance(value, int) else isfinite(value) and abs(value) < 1e300
        return value if is_exact else None

    def _value(self, argument: Argument) -> int | float | str:
        value = self._scalar(argument)
        assert value is not None
        named = next((name for name, size in self._sizes.items() if type(value) is int and size == value > 1), "")
        return named or value

    def _named_sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for argument in self._launch.arguments:
            value = self._scalar(argument) if argument.address == PRIVATE else None
            name = re.sub(r"\W", "_", argument.name).lower()
            if isinstance(value, int) and 1 < value < 2**31 and value not in found.values():
                while (
                    hasattr(Problem, name) or name in RESERVED or name in FUNCTIONS or name in numbers_of(self._options)
                ):
                    name += "_"
                if re.fullmatch(r"[a-z_]\w{0,60}", name) and name not in found:
                    found[name] = value
        return found

    def _formula(self, count: int) -> str | int:
        """Return a number in terms of the sizes, if it is one or the product of two."""
        sizes = {name: size for name, size in self._sizes.items() if size > 1}
        equal = [name for name, size in sizes.items() if size == count]
        names = [*sizes]
        products = [f"{a} * {b}" for i, a in enumerate(names) for b in names[i:] if sizes[a] * sizes[b] == count]
        return next(iter([*equal, *products]), count)

    def _local_bytes(self, size: int) -> str | int:
        """Return the bytes of local memory, in proportion to the work-group where that varies."""
        proposal, used = self._proposal, self._launch.local_size
        if not used or size % prod(used) or proposal.local_size == ", ".join(map(str, used)):
            return size
        product = " * ".join(part for part in proposal.local_size.split(", ") if part != "1")
        return f"{size // prod(used)} * {product}" if not proposal.driver_chooses else size

    # Text

    def _text(self, entries: Sequence[Entry], outputs: Mapping[str, str]) -> str:
        launch, proposal = self._launch, self._proposal
        left = [o for o in self._options if not o.startswith("-I") and not _defines(o, proposal.parameters)]
        options = [option.replace("{", "{{").replace("}", "}}") for option in left]
        lines = [
            f"# {self._meaning}",
            f"# {_told_of(launch)}",
            f"name = {_toml(self._name)}",
            'source = "kernel.cl"',
            *([f"build_options = {_toml(options)}"] if options else []),
            *_launch_lines(launch.kernel, proposal, self._names),
            "", "[sizes]", *_pairs(self._sizes),
            "", "# Proposed: check which of these may vary, and remove the others.", "[parameters]",
            *_pairs(proposal.parameters),
            "", "# What the program uses.", "[default]", *_pairs(proposal.default),
        ]  # fmt: skip
        if proposal.constraints:
            lines += ["", "[constraints]", *_pairs(proposal.constraints)]
        lines += ["", "[arguments]"]
        lines += [f"{e.name} = {{ {', '.join(_pairs(e.keys))} }}" for e in entries]
        lines += ["", "# The contents after the captured launch.", "[reference.outputs]", *_pairs(outputs)]
        return "\n".join(lines) + "\n"


def with_pointers(source: str, kernel: str, by_value: Sequence[int], count: int) -> str:
    """Return a source whose kernel reads the arguments of these numbers from memory, instead of taking them by value.

    Kernel files pass only numbers by value. A second kernel that calls the first would not do: what becomes of the
    local memory of a kernel that another calls is up to the driver. Raises Unsuitable where the definition, of `count`
    arguments, is not found.
    """
    found = 0

    def changed(definition: re.Match[str]) -> str:
        nonlocal found
        parameters = re.split(r",(?![^()]*\))", re.sub(r"//[^\n]*|/\*.*?\*/", " ", definition[2], flags=re.DOTALL))
        if len(parameters) != count or "#" in definition[2]:
            return definition[0]
        found += 1
        values = []
        for number in by_value:
            declared = parameters[number].strip()
            kind, name = (
                re.sub(r"\b(?:const|(?:__)?private)\b", " ", declared[: -len(_last(declared))]),
                _last(declared),
            )
            parameters[number] = f"__global const {kind.strip()} *{name}_in_memory"
            values.append(f" {declared} = *{name}_in_memory;")
        return f"{definition[1]}({','.join(parameters)}) {{{''.join(values)}"

    text = r"(?:[^(){};]|\((?:[^()]|\([^()]*\))*\))*"
    result = re.sub(rf"(\b{kernel}\s*)\(({text})\)\s*\{{", changed, source) if by_value else source
    if by_value and not found:
        raise Unsuitable("it takes structures or vectors by value, and its definition was not found in the source")
    return result


def _last(declaration: str) -> str:
    return re.split(r"\W", declaration)[-1]


def _launch_lines(kernel: str, proposal: Proposal, names: Sequence[str]) -> list[str]:
    local = [f"local_size = {_toml(proposal.local_size)}"] if proposal.local_size else []
    sizes = [f"kernel = {_toml(kernel)}", f"global_size = {_toml(proposal.global_size)}"]
    if not proposal.driver_chooses and len({*names}) == len(names):
        return [*sizes, *local]
    # In this order, also where one buffer is several arguments.
    inner = [*sizes, f"arguments = {_toml(names)}"]
    driver = [[*inner, f"when = {_toml(proposal.driver_chooses)}"]] if proposal.driver_chooses else []
    given = [*inner, *local, *([f"when = {_toml(f'not ({proposal.driver_chooses})')}"] if driver else [])]
    return [f"launches = [{', '.join('{ ' + ', '.join(launch) + ' }' for launch in (*driver, given))}]"]


def _told_of(launch: Launch) -> str:
    sizes = "x".join(map(str, launch.global_size))
    local = (
        f"work-groups of {'x'.join(map(str, launch.local_size))}" if launch.local_size else "the driver's work-groups"
    )
    return f"{launch.runs} launches of {sizes} work-items in {local} on {launch.device}."


class Types:
    """Types of a source by the names that it defines for them."""

    def __init__(self, text: str) -> None:
        self._defined: dict[str, str] = {}
        for found in re.finditer(r"\btypedef\s+((?:unsigned\s+|signed\s+)?\w+)\s+(\w+)\s*;", text):
            self._defined[found[2]] = found[1]

    def element(self, type_name: str) -> str:
        """Return the element type of memory or a number; empty for a structure."""
        return _IN_C.get(re.sub(r"(?<=[a-z])(2|3|4|8|16)$", "", self._plain(type_name)), "")

    def is_vector(self, type_name: str) -> bool:
        return self._plain(type_name)[-1:].isdigit()

    def _plain(self, type_name: str) -> str:
        words = re.sub(r"\b(const|volatile|restrict|__global|__constant)\b|\*", " ", type_name).split()
        plain = " ".join(words)
        for _ in range(10):
            if plain in _IN_C or plain not in self._defined:
                break
            plain = self._defined[plain]
        return plain


def _preprocessed(source: str, options: Sequence[str], *wanted: str) -> str:
    """Return what the C preprocessor makes of a source, such as ``-dM`` for its macros; the source if it fails."""
    defined = [option for option in options if option.startswith("-D")]
    command = [*find_compiler(), "-E", "-P", "-undef", "-w", *wanted, *defined, "-xc", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout if done.returncode == 0 else source


def _with_includes(text: str, folders: Sequence[Path]) -> str:
    """Return a source with the files that it includes in their places, where they can be found."""
    count = 0

    def inserted(text: str, beside: Sequence[Path]) -> str:
        def included(found: re.Match[str]) -> str:
            nonlocal count
            path = next((place / found[1] for place in (*beside, *folders) if (place / found[1]).is_file()), None)
            count += 1
            if path is None or count > _MOST_INCLUDES:
                return found[0]
            return inserted(once(path.read_text("utf-8", "replace"), str(path.resolve())), [path.parent])

        return _INCLUDE.sub(included, text)

    return inserted(text, ())


def _names_of(arguments: Sequence[Argument]) -> list[str]:
    """Return a name for each argument; those that are the same memory have the same name."""
    found: list[str] = []
    by_memory: dict[int, str] = {}
    for number, argument in enumerate(arguments):
        name = argument.name if re.fullmatch(r"[A-Za-z_]\w{0,50}", argument.name) else f"argument_{number}"
        name = by_memory.get(argument.memory, name) if argument.memory else name
        if argument.memory:
            by_memory[argument.memory] = name
        found.append(name)
    return found


def _defines(option: str, names: Mapping[str, object]) -> bool:
    found = re.fullmatch(r"-D(\w+)=\d+", option)
    return found is not None and found[1] in names


def _save(path: Path, data: bytes, element: str) -> None:
    np.save(path, np.frombuffer(data, element), allow_pickle=False)


def _toml(value: Any) -> str:
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list | tuple) else json.dumps(value)


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in values.items()]
