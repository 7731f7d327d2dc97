"""What kernel files and command files have in common: TOML files with sizes, parameters, constraints and a default.

They are read as hostile input. Errors name the file, the line and the key.
"""

import ast
import dataclasses
import keyword
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from pathlib import Path
from string import Formatter
from typing import Annotated, ClassVar, TypeVar

from autotune.codec import LOCAL, Bounds, Items, Node, Pattern, parse, read, read_file, visible
from autotune.errors import ConfigurationError, TableError, UsageError, did_you_mean
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.expression import Expression
from autotune.space.family import Parameter
from autotune.space.plan_formula import parts_of

NAME = Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,63}", "must be a name of up to 64 letters, digits and underscores")
FAMILY_NAME = Pattern(r"[a-z][a-z0-9_]{0,31}", "must be up to 32 lowercase letters, digits and underscores")
VALUE = Pattern(r"[A-Za-z0-9_.+(), -]{0,120}", "must be up to 120 letters, digits and any of _ . + - ( ) , and space")
MOST_VALUES = 1024
"""Most values of a parameter."""
MOST_PARAMETERS = 32
MOST_COMBINATIONS = 2_000_000
"""Combinations of the values of parameters that a constraint may relate without being examined."""
MOST_CONFIGURATIONS = 10**11
BESIDE_SIZES = ("calls", "label")
"""Members of a problem that are not sizes."""
RESERVED = (*BESIDE_SIZES, "algorithm", *keyword.kwlist)
"""Names that sizes and parameters cannot have. Python's keywords, such as ``in``, cannot be names in formulas."""
_NO_NAMES = frozenset(keyword.kwlist) - {"and", "or", "not", "if", "else", "True", "False"}

Choice = Annotated[str | int, VALUE, Bounds(-(2**31), 2**31 - 1)]
Faults = Iterator[tuple[str, str]]
"""Keys, such as ``arguments.a``, each with a message."""


@dataclass(frozen=True, kw_only=True)
class ConstraintEntry:
    """A condition on parameters, sizes and the device, with the reason."""

    condition: str
    because: str


@dataclass(frozen=True, kw_only=True)
class TunedFile:
    """What all files have in common that describe something of the user's to tune."""

    is_sparse: ClassVar = True
    title: ClassVar[str]
    """What such a file is called in messages."""

    name: Annotated[str, FAMILY_NAME]
    meaning: str = ""
    sizes: Mapping[str, Annotated[int, Bounds(1, 2**31 - 1)]]
    """The sizes of the problem, with the values to tune unless others are asked for."""
    problems: tuple[Mapping[str, Annotated[str | int, Bounds(1, 2**31 - 1)]], ...] = ()
    """Several such, each with the sizes that differ; ``calls`` and ``label`` say how often and where it is used."""
    parameters: Mapping[str, Annotated[tuple[Choice, ...], Items(MOST_VALUES, 1)]]
    constraints: Mapping[str, str | ConstraintEntry] = field(default_factory=dict)
    default: Mapping[str, Choice] = field(default_factory=dict)
    """What is used now, measured first; the first value of each parameter that is left out."""

    path: Path = field(default=Path(), metadata=LOCAL)

    @property
    def formulas(self) -> Iterator[tuple[str, str | float]]:
        """All formulas with their keys."""
        for name, wanted in self.constraints.items():
            yield f"constraints.{name}", wanted if isinstance(wanted, str) else wanted.condition

    @property
    def texts(self) -> set[str]:
        """Parameters whose values are texts."""
        return {name for name, values in self.parameters.items() if isinstance(values[0], str)}

    @property
    def names(self) -> Iterator[tuple[str, str]]:
        """The sections of the file whose keys are names, with each of these."""
        for section in ("sizes", "parameters", "constraints"):
            yield from ((section, name) for name in getattr(self, section))


F = TypeVar("F", bound=TunedFile)


def read_tuned_file(kind: type[F], path: Path, faults: Callable[[F], Faults]) -> F:
    """Return the content of a file. `faults` yields what is wrong beyond what all files have in common.

    Raises UsageError, which names the file, the line and the key.
    """
    text = ""
    try:
        text = read_file(path).decode("utf-8-sig")
        node = parse(text) if path.suffix == ".json" else Node(tomllib.loads(text))
        _refuse_unknown(node.members(), kind)
        _refuse_fractions(node.value.get("parameters"))
        file = dataclasses.replace(read(kind, node), path=path.resolve())
        for fault in chain(_common_faults(file), faults(file), _calculations(file)):
            raise TableError(": ".join(fault))  # noqa: TRY301 - as what cannot be read
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


def _common_faults(file: TunedFile) -> Faults:
    pattern = re.compile(NAME.expression)
    for section, name in file.names:
        if not pattern.fullmatch(name):
            yield f"{section}.{name}", NAME.description
    if not file.sizes:
        yield "sizes", "needs at least one size"
    for name in file.sizes:
        if hasattr(Problem, name) or name in RESERVED:
            yield f"sizes.{name}", "this name is reserved: choose another"
    yield from _parameters(file)
    yield from _default(file)
    yield from _constraints(file)
    yield from _problems(file)


def _parameters(file: TunedFile) -> Faults:
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


def _default(file: TunedFile) -> Faults:
    for name, value in file.default.items():
        if name not in file.parameters:
            yield f"default.{name}", f"is not a parameter{guess(name, file.parameters)}"
        elif value not in file.parameters[name]:
            values = ", ".join(map(str, file.parameters[name]))
            yield f"default.{name}", f"{value!r} is not among the parameter's values {values}"


def _constraints(file: TunedFile) -> Faults:
    limits = DeviceLimits().constraint_values()
    for name, wanted in file.constraints.items():
        key, condition = f"constraints.{name}", wanted if isinstance(wanted, str) else wanted.condition
        faults = list(faults_of(key, condition, {*file.sizes, *file.parameters, *limits}))
        yield from faults
        used = frozenset() if faults else Expression(condition).names
        if prod(len(values) for parameter, values in file.parameters.items() if parameter in used) > MOST_COMBINATIONS:
            from autotune.space.search_space import examined  # loads NumPy

            parameters = [Parameter(name=name, values=values, meaning="") for name, values in file.parameters.items()]
            try:
                examined(Expression(condition), parameters, {**limits, **file.sizes})
            except ConfigurationError as error:
                yield key, error.message


def _problems(file: TunedFile) -> Faults:
    for problem in file.problems:
        for name, value in problem.items():
            if name not in file.sizes and name not in BESIDE_SIZES:
                yield "problems", f"{name} is not one of the sizes {', '.join(file.sizes)}"
            elif isinstance(value, str) and name != "label":
                yield "problems", f"{name} must be a number, not {value!r}"


def _calculations(file: TunedFile) -> Faults:
    """Yield formulas that calculate with parameters that are texts: one times a number may fill the memory."""
    for key, formula in file.formulas if file.texts else ():
        for part in parts(formula):
            for name in sorted(Expression(part).counted & file.texts):
                yield key, f"{part[:80]!r} calculates with {name}, whose values are texts"


def result_names(text: str) -> list[str]:
    """Return the names that a formula may result in."""
    return [end.id for end in results_of(text) if isinstance(end, ast.Name)]


def results_of(text: str) -> list[ast.expr]:
    """Return the parts that a formula may result in; none if the text is not a formula."""
    try:
        return Expression(text).results
    except (ConfigurationError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def names_in(option: str) -> set[str]:
    """Return the names in the braces of a text; doubled braces stand for themselves.

    Raises ValueError for other braces.
    """
    fields = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(option) if name is not None]
    if any(spec or conversion or not re.fullmatch(r"\w+", name) for name, spec, conversion in fields):
        raise ValueError("braces stand for names")
    return {name for name, _, _ in fields}


def parts(formula: str | float) -> list[str]:
    """Return the formulas of one that has several, separated by commas."""
    return [str(formula)] if not isinstance(formula, str) else parts_of(formula) if formula else []


def faults_of(key: str, formula: str | float, known: Collection[str], *, most_parts: int = 1) -> Faults:
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
        yield key, f"{formula[:80]!r} uses {name}, which is not known here{guess(name, known)}"


def guess(name: str, known: Collection[str]) -> str:
    guess = did_you_mean(name, list(known)) or (f"there are {', '.join(sorted(known))}" if 0 < len(known) <= 12 else "")
    return f" ({guess})" if guess else ""


def _refuse_unknown(data: Mapping[str, object], kind: type[TunedFile]) -> None:
    """Raise TableError for an unknown key at the top, with the one that was probably meant."""
    known = [field.name for field in dataclasses.fields(kind) if field.name != "path"]
    for name in data:
        if name not in known:
            raise TableError(f"{name}: is not a key of a {kind.title}", hint=did_you_mean(name, known))


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
