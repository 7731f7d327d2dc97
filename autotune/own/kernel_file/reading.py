"""Reads kernel files as hostile input; says what is wrong beyond the types and bounds of their values."""

import ast
import dataclasses
import keyword
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from math import prod
from pathlib import Path

from autotune.codec import Node, parse, read, read_file, visible
from autotune.errors import ConfigurationError, TableError, UsageError, did_you_mean
from autotune.model.device import DeviceLimits
from autotune.model.problem import ELEMENT_TYPES, Problem
from autotune.own.kernel_file.format import (
    NAME,
    REFERENCE,
    ArgumentEntry,
    KernelFile,
    LaunchEntry,
    names_in,
    results_of,
)
from autotune.space.expression import Expression
from autotune.space.family import Parameter
from autotune.space.plan_formula import STEP, parts_of

MOST_PARAMETERS = 32
MOST_COMBINATIONS = 2_000_000
"""Combinations of the values of parameters that a constraint may relate without being examined."""
MOST_CONFIGURATIONS = 10**11
BESIDE_SIZES = ("calls", "label")
"""Members of a problem that are not sizes."""
RESERVED = (*BESIDE_SIZES, "algorithm", *keyword.kwlist)
"""Names that sizes and parameters cannot have. Python's keywords, such as ``in``, cannot be names in formulas."""

INDEX = "index"
"""What counts the elements of an output in the formula of those that are valid."""

_NO_NAMES = frozenset(keyword.kwlist) - {"and", "or", "not", "if", "else", "True", "False"}

Faults = Iterator[tuple[str, str]]
"""Keys, such as ``arguments.a``, each with a message."""
_NEEDS = {"buffer": "size", "image": "size", "line": "size", "scalar": "value"}


def read_kernel_file(path: Path) -> KernelFile:
    """Return the content of a kernel file. Raises UsageError, which names the file, the line and the key."""
    text = ""
    try:
        text = read_file(path).decode("utf-8-sig")
        node = parse(text) if path.suffix == ".json" else Node(tomllib.loads(text))
        _refuse_unknown(node.members())
        _refuse_fractions(node.value.get("parameters"))
        file = dataclasses.replace(read(KernelFile, node), path=path.resolve())
        _check(file)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    except ValueError as error:  # Python converts no number of more than 4300 digits
        raise UsageError(f"{path} has a number of too many digits") from error
    except RecursionError as error:
        raise UsageError(f"{path}: tables are nested too deeply") from error
    except TableError as error:
        line = _line_of(text, error.message.partition(": ")[0])
        where = f"{path}, line {line}" if line else f"{path}"
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from error
    return file


def _check(file: KernelFile) -> None:
    """Raise TableError for the first fault, with its key."""
    found = chain(
        _names(file), _parameters(file), _default(file), _arguments(file), _launches(file), _formulas(file),
        _constraints(file), _problems(file), _reference(file), _calculations(file),
    )  # fmt: skip
    fault = next(found, None)
    if fault:
        raise TableError(": ".join(fault))


def _names(file: KernelFile) -> Faults:
    pattern = re.compile(NAME.expression)
    for section in ("sizes", "parameters", "arguments", "constraints", "defines"):
        for name in getattr(file, section):
            if not pattern.fullmatch(name):
                yield f"{section}.{name}", NAME.description
    if file.name == REFERENCE:
        yield "name", "this name is reserved: choose another"
    if not file.sizes:
        yield "sizes", "needs at least one size"
    for name in file.sizes:
        if hasattr(Problem, name) or name in RESERVED:
            yield f"sizes.{name}", "this name is reserved: choose another"


def _parameters(file: KernelFile) -> Faults:
    if not 1 <= len(file.parameters) <= MOST_PARAMETERS:
        yield "parameters", f"needs from 1 to {MOST_PARAMETERS} parameters"
    for name, values in file.parameters.items():
        if name in file.sizes or name in RESERVED:
            yield f"parameters.{name}", "is also the name of a size" if name in file.sizes else "is reserved"
        if len(set(values)) < len(values):
            yield f"parameters.{name}", "has a value twice"
        if len({type(value) for value in values}) > 1:
            yield f"parameters.{name}", "mixes numbers and texts"
    count = prod(map(len, file.parameters.values()))
    if count > MOST_CONFIGURATIONS:
        yield "parameters", f"span {count:.1e} configurations: at most {MOST_CONFIGURATIONS:.0e} are possible"


def _default(file: KernelFile) -> Faults:
    for name, value in file.default.items():
        if name not in file.parameters:
            yield f"default.{name}", f"is not a parameter{_guess(name, file.parameters)}"
        elif value not in file.parameters[name]:
            values = ", ".join(map(str, file.parameters[name]))
            yield f"default.{name}", f"{value!r} is not among the parameter's values {values}"


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
        yield from _faults_of(f"{prefix}times", launch.times, known)
        if launch.times != 1 and (STEP in file.sizes or STEP in file.parameters):
            yield f"{prefix}times", "formulas of repeated launches count them by `step`: give that name to nothing else"
        yield from _launch(file, launch, prefix, {*known, STEP} if is_repeated else known)
    if file.reference_launch:
        yield from _launch(file, file.reference_launch, "reference.", {*file.sizes})


def _launch(file: KernelFile, launch: LaunchEntry, prefix: str, known: Collection[str]) -> Faults:
    if launch.global_size == "":
        yield f"{prefix}global_size", "is missing"
        return
    yield from _faults_of(f"{prefix}global_size", launch.global_size, known, most_parts=3)
    yield from _faults_of(f"{prefix}local_size", launch.local_size, known, most_parts=3)
    if launch.local_size != "" and len(parts(launch.global_size)) != len(parts(launch.local_size)):
        yield f"{prefix}local_size", "must have as many dimensions as global_size"
    yield from _faults_of(f"{prefix}when", launch.when, known)
    for text in (text for text in launch.arguments if text not in file.arguments):
        faults = [*_faults_of(f"{prefix}arguments", text, {*known, *file.arguments})]
        if faults and re.fullmatch(NAME.expression, text):
            yield f"{prefix}arguments", f"{launch.kernel} has no argument {text}{_guess(text, file.arguments)}"
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


def _calculations(file: KernelFile) -> Faults:
    """Yield formulas that calculate with parameters that are texts: one times a number may fill the memory."""
    for key, formula in file.formulas if file.texts else ():
        for part in parts(formula):
            for name in sorted(Expression(part).counted & file.texts):
                yield key, f"{part[:80]!r} calculates with {name}, whose values are texts"


def _formulas(file: KernelFile) -> Faults:
    sizes, known = {*file.sizes}, {*file.sizes, *file.parameters}
    steps = {STEP} if any(launch.times != 1 for launch in file.all_launches) else set[str]()
    for name, entry in file.arguments.items():
        key = f"arguments.{name}"
        # What is compared, and what it is computed from, must not depend on the configuration.
        is_free = entry.access == "scratch" or entry.over != ""
        faults = [*_faults_of(key, entry.size, known if is_free else sizes, most_parts=2)]
        yield from faults
        if not faults and entry.size != "" and (len(parts(entry.size)) == 2) != (entry.image != ""):
            yield key, "size: has two parts, `columns, rows`" if entry.image else "size: only an image has two parts"
        for formula in (entry.local, entry.row_pitch, *entry.numbers):
            yield from _faults_of(key, formula, {*known, *steps})
        yield from _faults_of(key, entry.valid, {*sizes, INDEX})
        for bound in entry.range:
            yield from _faults_of(key, bound, sizes)
    for name, formula in file.defines.items():
        for key, message in _faults_of(f"defines.{name}", formula, known):
            is_text = re.fullmatch(r"[A-Za-z_][\w ]*", str(formula))
            yield key, f"{message}; a text has quotes of its own: \"'{formula}'\"" if is_text else message
    for option in file.build_options:
        try:
            names = names_in(option)
        except ValueError:
            yield "build_options", f"{option[:80]!r}: braces stand for names, such as {{TILE}}, unless they are doubled"
            continue
        for name in sorted(names - known):
            yield "build_options", f"{option[:80]!r} uses {name}, which is not known here{_guess(name, known)}"
    yield from _faults_of("work.flops", file.work.flops, sizes)
    yield from _faults_of("work.bytes", file.work.bytes, sizes)


def _constraints(file: KernelFile) -> Faults:
    limits = DeviceLimits().constraint_values()
    for name, wanted in file.constraints.items():
        key, condition = f"constraints.{name}", wanted if isinstance(wanted, str) else wanted.condition
        faults = list(_faults_of(key, condition, {*file.sizes, *file.parameters, *limits}))
        yield from faults
        used = frozenset() if faults else Expression(condition).names
        if prod(len(values) for parameter, values in file.parameters.items() if parameter in used) > MOST_COMBINATIONS:
            from autotune.space.search_space import examined  # loads NumPy

            parameters = [Parameter(name=name, values=values, meaning="") for name, values in file.parameters.items()]
            try:
                examined(Expression(condition), parameters, {**limits, **file.sizes})
            except ConfigurationError as error:
                yield key, error.message


def _problems(file: KernelFile) -> Faults:
    for key, problems, beside in (("problems", file.problems, BESIDE_SIZES), ("check", file.check, ())):
        for problem in problems:
            for name, value in problem.items():
                if name not in file.sizes and name not in beside:
                    yield key, f"{name} is not one of the sizes {', '.join(file.sizes)}"
                elif isinstance(value, str) and name != "label":
                    yield key, f"{name} must be a number, not {value!r}"


def _reference(file: KernelFile) -> Faults:
    ways = [way for way in ("kernel", "python", "outputs") if getattr(file.reference, way)]
    if len(ways) > 1:
        yield "reference", f"has both {ways[0]} and {ways[1]}: give one"
    for name in file.reference.outputs:
        if name not in file.outputs:
            yield f"reference.outputs.{name}", f"is not an output{_guess(name, file.outputs)}"


def parts(formula: str | float) -> list[str]:
    """Return the formulas of one that has several, separated by commas."""
    return [str(formula)] if not isinstance(formula, str) else parts_of(formula) if formula else []


def _faults_of(key: str, formula: str | float, known: Collection[str], *, most_parts: int = 1) -> Faults:
    """Yield what is wrong with a formula; `known` are the names it may use."""
    if not isinstance(formula, str) or formula == "":
        return
    try:
        found = parts(formula) if most_parts > 1 else [formula]
        expressions = [Expression(part) for part in found]
        names = {name for expression in expressions for name in expression.names} - {"True", "False"}
        for expression in expressions:
            expression.prepare()
    except (ConfigurationError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = f" ({error.msg})" if isinstance(error, SyntaxError) else ""
        if words := [word for word in re.findall(r"[A-Za-z_]\w*", formula) if word in _NO_NAMES]:
            reason = f" ({words[0]} has a meaning of its own in formulas: give another name to what has this one)"
        reason = error.message if isinstance(error, ConfigurationError) else f"it is not an expression{reason}"
        yield key, f"{formula[:80]!r}: {reason}"
        return
    if len(found) > most_parts:
        yield key, f"has more than {most_parts} parts"
    for name in sorted(names - {*known}):
        yield key, f"{formula[:80]!r} uses {name}, which is not known here{_guess(name, known)}"


def _guess(name: str, known: Collection[str]) -> str:
    guess = did_you_mean(name, list(known)) or (f"there are {', '.join(sorted(known))}" if 0 < len(known) <= 12 else "")
    return f" ({guess})" if guess else ""


def _refuse_unknown(data: Mapping[str, object]) -> None:
    """Raise TableError for an unknown key at the top, with the one that was probably meant."""
    known = [name for name in KernelFile.__dataclass_fields__ if name != "path"]
    for name in data:
        if name not in known:
            raise TableError(f"{name}: is not a key of a kernel file", hint=did_you_mean(name, known))


def _refuse_fractions(parameters: object) -> None:
    """Raise TableError for a parameter with values that are neither whole numbers nor texts, such as 0.5."""
    for name, values in parameters.items() if isinstance(parameters, dict) else ():
        for value in values if isinstance(values, list) else ():
            if isinstance(value, float | bool):
                hint = f'write "{value}"' if isinstance(value, float) else "write 0 and 1"
                message = f"has {str(value).lower()}, which is neither a whole number nor a text"
                raise TableError(f"parameters.{visible(name)}: {message}", hint=hint)


def _line_of(text: str, key: str) -> int:
    """Return the line, from 1, on which a key such as ``arguments.a.size`` is set, or that of what holds it; else 0."""
    wanted = re.sub(r"\[\d+\]", "", key).split(".")
    table: list[str] = []
    best, depth = 0, 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([\w.\"-]+)\s*\]\]?", line)
        item = re.match(r"\s*([\w.\"-]+)\s*=", line)
        if header:
            table = header[1].replace('"', "").split(".")
        found = table if header else [*table, *item[1].replace('"', "").split(".")] if item else []
        common = next(
            (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
        )
        if common == len(found) and common > depth:
            best, depth = number, common
    return best
