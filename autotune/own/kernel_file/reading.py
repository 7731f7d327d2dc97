"""Reads kernel files as hostile input; says what is wrong beyond the types and bounds of their values."""

import ast
import re
from collections.abc import Collection
from pathlib import Path

from autotune.model.problem import ELEMENT_TYPES
from autotune.own.kernel_file.format import REFERENCE, ArgumentEntry, KernelFile, LaunchEntry
from autotune.own.tuned_file import NAME, Faults, faults_of, guess, names_in, parts, read_tuned_file, results_of
from autotune.space.expression import Expression
from autotune.space.plan_formula import STEP

INDEX = "index"
"""What counts the elements of an output in the formula of those that are valid."""
_NEEDS = {"buffer": "size", "image": "size", "line": "size", "scalar": "value"}


def read_kernel_file(path: Path) -> KernelFile:
    """Return the content of a kernel file. Raises UsageError, which names the file, the line and the key."""
    return read_tuned_file(KernelFile, path, _faults)


def _faults(file: KernelFile) -> Faults:
    if file.name == REFERENCE:
        yield "name", "this name is reserved: choose another"
    yield from _arguments(file)
    yield from _launches(file)
    yield from _formulas(file)
    for sizes in file.check:
        for name in sizes:
            if name not in file.sizes:
                yield "check", f"{name} is not one of the sizes {', '.join(file.sizes)}"
    yield from _reference(file)


def _arguments(file: KernelFile) -> Faults:
    if not file.outputs:
        yield "arguments", "none has access = 'out' or 'inout', so no result could be checked"
    for name, entry in file.arguments.items():
        message = _fault_of(entry, file)
        if message:
            yield f"arguments.{name}", message


def _fault_of(entry: ArgumentEntry, file: KernelFile) -> str:
    kinds = entry.kinds
    if len(kinds) != 1:
        has = f"both {kinds[0]} and {kinds[1]}" if kinds else "none"
        return f"needs one of buffer, image, line, scalar, struct and local, and has {has}"
    [kind] = kinds
    over = file.arguments.get(entry.over)
    conditions: dict[str, bool] = {
        f"needs a {_NEEDS.get(kind)}": kind not in _NEEDS or getattr(entry, _NEEDS[kind]) != "",
        "needs `over`, the buffer whose elements it shows": kind != "line" or entry.over != "",
        f"over: {entry.over} is not a buffer argument": not entry.over or (over is not None and over.buffer != ""),
        f"a number of {entry.scalar} cannot be {entry.value}": not (
            entry.scalar and isinstance(entry.value, float) and ELEMENT_TYPES[entry.scalar].is_whole
        )
        or entry.value.is_integer(),
        "a vector has 2, 3, 4, 8 or 16 numbers": not entry.scalar or _is_vector_or_number(entry.value),
        "a member of a structure needs one of scalar and array, and vectors have 2, 3, 4, 8 or 16 numbers": all(
            (member.scalar == "") != (member.array == "") and (member.array != "" or _is_vector_or_number(member.value))
            for member in entry.struct.values()
        ),
        "only what access = 'out' or 'inout' is compared: `valid` is for it": entry.valid == "True"
        or entry.access in ("out", "inout"),
        "only the size of an input may be 0, for NULL": not entry.may_be_null or entry.access == "in",
        "a pixel has 1, 2 or 4 channels": entry.channels != 3,
        "fill = 'file' and `file` go together": (entry.fill == "file") == (entry.file != ""),
        "fill = 'python' and `python` go together": (entry.fill == "python") == (entry.python != ""),
        "row_pitch needs `over`, the buffer whose rows it is of": entry.row_pitch == 0 or entry.over != "",
        "local memory has at least 1 byte": entry.local not in (0, "0"),
        "range needs two numbers": len(entry.range) in (0, 2),
    }
    return next((message for message, holds in conditions.items() if not holds), "")


def _is_vector_or_number(value: object) -> bool:
    return not isinstance(value, tuple) or len(value) in (2, 3, 4, 8, 16)


def _launches(file: KernelFile) -> Faults:
    known = {*file.sizes, *file.parameters}
    if file.launches and (file.global_size != "" or file.local_size != ""):
        yield "launches", "stands in place of `global_size` and `local_size`: leave these out"
    is_repeated = False
    for number, launch in enumerate(file.all_launches):
        prefix = f"launches[{number}]." if file.launches else ""
        if launch.in_turn and (launch.times != 1 or number == 0):
            yield f"{prefix}in_turn", "is for a launch that follows another, and has the `times` of that"
        is_repeated = is_repeated if launch.in_turn else launch.times != 1
        yield from faults_of(f"{prefix}times", launch.times, known)
        if launch.times != 1 and (STEP in file.sizes or STEP in file.parameters):
            yield f"{prefix}times", "formulas of repeated launches count them by `step`: give that name to nothing else"
        yield from _launch(file, launch, prefix, {*known, STEP} if is_repeated else known)
    if file.reference_launch:
        yield from _launch(file, file.reference_launch, "reference.", {*file.sizes})


def _launch(file: KernelFile, launch: LaunchEntry, prefix: str, known: Collection[str]) -> Faults:
    if launch.global_size == "":
        yield f"{prefix}global_size", "is missing"
        return
    yield from faults_of(f"{prefix}global_size", launch.global_size, known, most_parts=3)
    yield from faults_of(f"{prefix}local_size", launch.local_size, known, most_parts=3)
    if launch.local_size != "" and len(parts(launch.global_size)) != len(parts(launch.local_size)):
        yield f"{prefix}local_size", "must have as many dimensions as global_size"
    yield from faults_of(f"{prefix}when", launch.when, known)
    for text in (text for text in launch.arguments if text not in file.arguments):
        faults = [*faults_of(f"{prefix}arguments", text, {*known, *file.arguments})]
        if faults and re.fullmatch(NAME.expression, text):
            yield f"{prefix}arguments", f"{launch.kernel} has no argument {text}{guess(text, file.arguments)}"
        yield from faults
        if not faults and not all(_is_argument(file, result) for result in results_of(text)):
            yield f"{prefix}arguments", f"{text[:80]!r} must result in arguments by name, or in a whole number"
    for name in filter(None, file.names_of(launch)):
        if STEP not in known and STEP in re.findall(r"\w+", str(file.arguments[name].numbers)):
            yield (
                f"{prefix}arguments",
                f"{name} needs `step`, and {launch.kernel} has no `times`",
            )


def _is_argument(file: KernelFile, result: ast.expr) -> bool:
    """Return whether a part that an argument's formula may result in is an argument, or a whole number."""
    if isinstance(result, ast.Name):
        return result.id in file.arguments or result.id not in file.texts
    is_text = isinstance(result, ast.Constant) and isinstance(result.value, str)
    return not is_text and not Expression(ast.unparse(result)).has_fraction


def _formulas(file: KernelFile) -> Faults:
    sizes, known = {*file.sizes}, {*file.sizes, *file.parameters}
    steps = {STEP} if any(launch.times != 1 for launch in file.all_launches) else set[str]()
    for name, entry in file.arguments.items():
        key = f"arguments.{name}"
        # What is compared, and what it is computed from, must not depend on the configuration.
        is_free = entry.access == "scratch" or entry.over != ""
        faults = [*faults_of(key, entry.size, known if is_free else sizes, most_parts=2)]
        yield from faults
        if not faults and entry.size != "" and (len(parts(entry.size)) == 2) != (entry.image != ""):
            yield key, "size: has two parts, `columns, rows`" if entry.image else "size: only an image has two parts"
        for formula in (entry.local, entry.row_pitch, *entry.numbers):
            yield from faults_of(key, formula, {*known, *steps})
        yield from faults_of(key, entry.valid, {*sizes, INDEX})
        for bound in entry.range:
            yield from faults_of(key, bound, sizes)
    for name, formula in file.defines.items():
        for key, message in faults_of(f"defines.{name}", formula, known):
            is_text = re.fullmatch(r"[A-Za-z_][\w ]*", str(formula))
            yield key, f"{message}; a text has quotes of its own: \"'{formula}'\"" if is_text else message
    for option in file.build_options:
        try:
            names = names_in(option)
        except ValueError:
            yield "build_options", f"{option[:80]!r}: braces stand for names, such as {{TILE}}, unless they are doubled"
            continue
        for name in sorted(names - known):
            yield "build_options", f"{option[:80]!r} uses {name}, which is not known here{guess(name, known)}"
    yield from faults_of("work.flops", file.work.flops, sizes)
    yield from faults_of("work.bytes", file.work.bytes, sizes)


def _reference(file: KernelFile) -> Faults:
    ways = [way for way in ("kernel", "python", "outputs") if getattr(file.reference, way)]
    if len(ways) > 1:
        yield "reference", f"has both {ways[0]} and {ways[1]}: give one"
    for name in file.reference.outputs:
        if name not in file.outputs:
            yield f"reference.outputs.{name}", f"is not an output{guess(name, file.outputs)}"
