"""Whether the arguments of a kernel file are those that its kernels declare, as far as the source tells."""

import re
from collections.abc import Iterator, Sequence

from autotune.errors import UsageError
from autotune.model.problem import ELEMENT_TYPES
from autotune.own.kernel_file.format import ArgumentEntry, KernelFile, LaunchEntry
from autotune.own.kernel_file.preprocessor import OF_COMPILER, Preprocessed, preprocess, without_comments
from autotune.own.kernel_file.source import TEMPLATE, include_folders, inside, with_includes, without_definitions
from autotune.own.kernel_file.structure import members
from autotune.own.kernel_file.syntax import C_TYPES, Argument, Unit


def check_signatures(file: KernelFile) -> None:
    """Raise UsageError where a launch has other arguments than its kernel.

    Nothing is said of templates, and of kernels that macros or the preprocessor put together.
    """
    for launch, sources in _launches(file):
        text = _text(file, sources)
        declared = _declared(file, launch, text)
        fault = next(_faults(file, launch, declared, text), "") if declared is not None else ""
        if fault:
            raise UsageError(f"{file.path}: {launch.kernel} {fault}")


def doubts(file: KernelFile) -> Iterator[str]:
    """Yield what may be meant, and is more often a mistake: elements of another size than those of the pointer."""
    for launch, sources in _launches(file):
        text = _text(file, sources)
        for name, argument in zip(file.names_of(launch), _declared(file, launch, text) or (), strict=False):
            given, declared = (
                file.arguments[name].buffer if name else "",
                C_TYPES.get(re.sub(r"\d+$", "", argument.type), ""),
            )
            if given and declared and argument.is_pointer and not _changes(file, argument, text):
                sizes = ELEMENT_TYPES[given].size_bytes, ELEMENT_TYPES[declared].size_bytes
                if sizes[0] != sizes[1] and sizes[1] > 1:
                    yield f"{launch.kernel} takes {argument.text}, and is given elements of {given}: is that meant?"


def _launches(file: KernelFile) -> Iterator[tuple[LaunchEntry, Sequence[str]]]:
    """Yield the launches whose sources are plain OpenCL C, with these."""
    given = file.reference
    launches = [(launch, file.sources) for launch in file.all_launches]
    if file.reference_launch:
        launches.append((file.reference_launch, (given.source,) if given.source else file.sources))
    yield from (pair for pair in launches if not any(name.endswith(TEMPLATE) for name in pair[1]))


def _text(file: KernelFile, sources: Sequence[str]) -> str:
    folder, others = file.path.parent, include_folders(file)
    return without_comments("\n".join(with_includes(inside(folder, name), folder, others) for name in sources))


def _declared(file: KernelFile, launch: LaunchEntry, text: str) -> Sequence[Argument] | None:
    """Return the arguments that a launch's kernel declares; None where the text does not tell.

    Raises UsageError where no source has the kernel.
    """
    kernels = [kernel for reading in _readings(file, text) for kernel in Unit(reading).kernels]
    found = [kernel.arguments for kernel in kernels if kernel.name == launch.kernel]
    words = {*re.findall(r"\w+", text)}
    is_made = "##" in text or any(launch.kernel in option for option in file.build_options)
    if not found and not is_made and launch.kernel not in words and (kernels or "include" not in words):
        names = dict.fromkeys(kernel.name for kernel in kernels)
        hint = f"there are {', '.join(names)}" if names else "there is none at all"
        raise UsageError(f"{file.path}: no source has a kernel {launch.kernel}", hint=hint)
    if not found or any(other != found[0] for other in found) or not all(argument.type for argument in found[0]):
        return None
    return found[0]


def _readings(file: KernelFile, text: str) -> Iterator[Preprocessed]:
    """Yield what the preprocessor may make of a source, with and without what a parameter or an option decides."""
    words = re.findall(r"\w+", " ".join(file.build_options))
    chosen = {*file.parameters, *file.defines, *words, *(word.removeprefix("D") for word in words)} - {""}
    text = without_definitions(text, [*chosen])
    is_whole = not re.search(r"(?m)^[ \t]*#[ \t]*include\b", text)

    def is_unknown(name: str) -> bool:
        return not is_whole or name in chosen or OF_COMPILER.match(name) is not None

    seen = set[str]()
    for assumed in (None, True, False):
        reading = preprocess(text, is_unknown, assumed)
        if reading.text not in seen:
            seen.add(reading.text)
            yield reading


def _changes(file: KernelFile, argument: Argument, text: str) -> bool:
    """Return whether an argument's type is not what its name says."""
    changed = rf"\b(?:define|typedef\b[^\n]{{0,200}})\s+{argument.type}\b|-D\s*{argument.type}\b"
    is_chosen = argument.type in (*file.parameters, *file.defines)
    return is_chosen or re.search(changed, f"{text}\n{file.build_options}") is not None


def _faults(file: KernelFile, launch: LaunchEntry, declared: Sequence[Argument], text: str) -> Iterator[str]:
    given, wanted = file.names_of(launch), [argument.name for argument in declared]
    for argument in declared:
        if argument.type == "sampler_t":
            yield f"takes a sampler ({argument.text}): declare it in the source, since a file cannot give one"
        if re.search(r"\b(?:pipe|image(?!2d_t\b|1d_buffer_t\b)\w*_t)\b", argument.text):
            yield f"takes what a file cannot give ({argument.text}): of images there are image2d_t and image1d_buffer_t"
    if len(given) != len(wanted):
        shown = [name for name in given if any(other and file.arguments[other].over == name for other in given)]
        left_out = f": leave out {', '.join(shown)} by `launches` with `arguments`" if shown else ""
        counts = f"takes {len(wanted)} arguments ({', '.join(wanted)}), and is given {len(given)} ({', '.join(given)})"
        yield f"{counts}{left_out}"
    # Launches in turn may exchange buffers, as one of them shows that has the kernel's own order, or a formula.
    orders = [list(file.names_of(other)) for other in file.all_launches if other.kernel == launch.kernel]
    if (
        {*file.formulas_of(launch)} <= {*given}
        and sorted(given) == sorted(wanted)
        and list(given) != wanted
        and wanted not in orders
    ):
        yield f"takes its arguments in the order {', '.join(wanted)}, and is given {', '.join(given)}"
    for name, argument in zip(given, declared, strict=False):
        entry = file.arguments[name] if name else _WHOLE_NUMBER
        is_memory = argument.is_pointer or argument.is_image
        if not is_memory:
            yield from _faults_of_value(argument, name, entry, text)
        if not _changes(file, argument, text):
            yield from (_faults_of_memory if is_memory else _faults_of_number)(argument, name, entry)
            if argument.is_image and argument.type in _IMAGES:
                yield from _faults_of_channels(argument, name, entry, _kind_read(file, launch, argument.name, text))


_IMAGES = {"image2d_t": "image", "image1d_buffer_t": "line"}
_WHOLE_NUMBER = ArgumentEntry(scalar="int32", value=0)
"""What a formula of a launch's arguments passes where it results in no argument."""


def _faults_of_value(argument: Argument, name: str, entry: ArgumentEntry, text: str) -> Iterator[str]:
    """Yield how what a kernel takes by value differs from a number, a vector or a structure that it is given."""
    is_structure = re.search(rf"\}}\s*{argument.type}\s*;|\bstruct\s+{argument.type}\b", text)
    found = re.fullmatch(r"[a-z]+(\d+)", argument.type)
    width = int(found[1]) if found and argument.element[1] > 1 else 1
    given = len(entry.value) if isinstance(entry.value, tuple) else 1
    declared = members(text, argument.type) if is_structure else []
    if is_structure and not entry.struct:
        listed = ", ".join(f"{member.name} = {member.entry}" for member in declared)
        listed = listed or 'gain = { scalar = "float32", value = 1 }'
        yield f"takes a structure ({argument.text}): list its members in order, as in {name}.struct = {{ {listed} }}"
    elif declared and len(declared) != len(entry.struct):
        names = ", ".join(member.name for member in declared)
        yield f"takes a structure with {len(declared)} members ({names}), and {name} has {len(entry.struct)}"
    for member, (key, given_member) in zip(declared, entry.struct.items(), strict=False):
        if not member.fits(given_member):
            yield f"takes a structure whose member {member.name} is {member.entry}, and {key} of {name} is not"
    if entry.struct:
        return
    if entry.scalar and width != given and (width > 1 or argument.type in C_TYPES):
        value = ", ".join(["0"] * width)
        example = f"as in value = [{value}]" if width > 1 else "not a list"
        yield f"takes {width} numbers ({argument.text}), and is given {given} by {name}: give `value` {example}"


def _kind_read(file: KernelFile, launch: LaunchEntry, name: str, text: str) -> str:
    """Return how a kernel reads or writes an image: f, i or ui of ``read_imagef`` and its like; empty if not plain."""
    kinds = set[str]()
    for reading in _readings(file, text):
        unit = Unit(reading)
        for kernel in unit.kernels:
            for function, values in kernel.code.calls if kernel.name == launch.kernel else ():
                if (found := re.fullmatch(r"(?:read|write)_image(f|u?i)", function)) and values:
                    kinds |= {found[1]} if unit.text_of(values[0]) == name else set()
    return kinds.pop() if len(kinds) == 1 else ""


def _faults_of_memory(argument: Argument, name: str, entry: ArgumentEntry) -> Iterator[str]:
    wanted = _IMAGES.get(argument.type, "")
    if entry.is_passed:
        yield f"takes memory ({argument.text}), and is given the {entry.kinds[0]} {name}"
    elif wanted != (entry.image and "image") + (entry.line and "line"):
        kind = f"an argument of the kind {wanted}" if wanted else "a buffer"
        yield f"takes {kind} ({argument.text}), and is given the {entry.kinds[0]} {name}"


def _faults_of_number(argument: Argument, name: str, entry: ArgumentEntry) -> Iterator[str]:
    kind = C_TYPES.get(argument.type, "")
    if kind and not entry.scalar:
        yield f"takes a number ({argument.text}), and is given the {entry.kinds[0]} {name}"
    elif kind and kind.lstrip("u") != entry.scalar.lstrip("u"):
        yield f"takes a number of {kind} ({argument.text}), and is given {name} of {entry.scalar}"


def _faults_of_channels(argument: Argument, name: str, entry: ArgumentEntry, kind: str) -> Iterator[str]:
    """Yield that the channels of an image are not what the kernel reads or writes."""
    element = entry.element
    if not kind or (kind == "f") == (element[:5] in ("float", "unorm", "snorm")):
        return
    normalized = element.replace("uint", "unorm").replace("int", "snorm")
    can_be = kind == "f" and normalized in ELEMENT_TYPES
    instead = f'{entry.kinds[0]} = "{normalized}"' if can_be else "float32" if kind == "f" else "a whole type"
    function = f"read_image{kind} or write_image{kind}"
    yield f"uses {function} for {argument.name}, and {name} has channels of {element}: {instead} is for that"
