"""Whether the arguments of a kernel file are those that its kernels declare, as far as the source tells."""

import re
from collections.abc import Iterator, Sequence

from autotune.errors import UsageError
from autotune.kernel_file.draft import C_TYPES, Argument, declared_arguments, heads, is_image, without_comments
from autotune.kernel_file.format import KernelFile, LaunchEntry
from autotune.kernel_file.source import TEMPLATE, inside, with_includes


def check_signatures(file: KernelFile) -> None:
    """Raise UsageError where a launch has other arguments than its kernel.

    Nothing is said of templates, and of kernels that macros or the preprocessor put together.
    """
    for launch in file.all_launches:
        _check(file, launch, file.sources)
    if file.reference_launch:
        _check(file, file.reference_launch, (file.reference.source,) if file.reference.source else file.sources)


def _check(file: KernelFile, launch: LaunchEntry, sources: Sequence[str]) -> None:
    if any(name.endswith(TEMPLATE) for name in sources):
        return
    text = without_comments("\n".join(with_includes(inside(file.path.parent, name)) for name in sources))
    known = {head["name"]: head for head in heads(text)}
    is_made = "##" in text or any(launch.kernel in option for option in file.build_options)
    if known and not is_made and launch.kernel not in re.findall(r"\w+", text):
        raise UsageError(f"{file.path}: no source has a kernel {launch.kernel}", hint=f"there are {', '.join(known)}")
    found = [head["arguments"] for head in heads(text) if head["name"] == launch.kernel]
    if len(found) != 1 or re.search(r"[#(]", found[0]):
        return
    declared = [*declared_arguments(found[0], "")]
    if any(len(re.findall(r"\w+", argument.text)) < 2 for argument in declared):
        return
    fault = next(_faults(file, launch, declared, text), "")
    if fault:
        raise UsageError(f"{file.path}: {launch.kernel} {fault}")


def _faults(file: KernelFile, launch: LaunchEntry, declared: Sequence[Argument], text: str) -> Iterator[str]:
    given, wanted = file.names_of(launch), [argument.name for argument in declared]
    if len(given) != len(wanted):
        yield f"takes {len(wanted)} arguments ({', '.join(wanted)}), and is given {len(given)} ({', '.join(given)})"
    elif sorted(given) == sorted(wanted) and list(given) != wanted:
        yield f"takes its arguments in the order {', '.join(wanted)}, and is given {', '.join(given)}"
    for name, argument in zip(given, declared, strict=False):
        entry = file.arguments[name]
        is_memory = argument.is_pointer or is_image(argument)
        changed = rf"\b(?:define|typedef\b[^\n]{{0,200}})\s+{argument.type}\b|-D\s*{argument.type}\b"
        kind = C_TYPES.get(argument.type, "")
        if re.search(changed, f"{text}\n{file.build_options}") or argument.type in (*file.parameters, *file.defines):
            continue
        if entry.scalar and is_memory:
            yield f"takes memory ({argument.text}), and is given the scalar {name}"
        elif kind and not entry.scalar and not is_memory:
            yield f"takes a number ({argument.text}), and is given the {entry.kinds[0]} {name}"
        elif kind and entry.scalar and not is_memory and kind.lstrip("u") != entry.scalar.lstrip("u"):
            yield f"takes a number of {kind} ({argument.text}), and is given {name} of {entry.scalar}"
