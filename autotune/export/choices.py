"""Choices of a kernel's defines by size: as a C99 header of its own, and as compiler options, one line each.

For families without a planner in C, such as kernel files: the application launches the kernel itself.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from autotune.errors import UsageError
from autotune.export.c_family import check_distinct
from autotune.export.contents import DeviceTable
from autotune.kernels import find_family
from autotune.kernels.render import render_c
from autotune.lookup.answer import MAX_FACTOR
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.trial import Winner
from autotune.space.family import Algorithm, Constraint, KernelFamily

MOST_FALLBACKS = 32
"""Configurations for sizes and devices for which nothing was tuned."""
_NEVER = "0"
_TAKEN = {
    *("device", "sizes", "algorithm", "options", "auto", "break", "case", "char", "const", "continue", "default"),
    *("do", "double", "else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register"),
    *("restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned"),
    *("void", "volatile", "while"),
}
"""Names that members of a choice have, or that C keeps for itself."""
NO_SIZES: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class _Row:
    sizes: tuple[int, ...]
    algorithm: str
    options: str
    """What a build needs: each parameter as a define, and what the family adds, at any size or at these."""
    values: tuple[int, ...]
    gain: str = ""
    needs: str = ""
    """What the constraints ask of the wanted sizes, in C; empty for nothing."""


def write_choices(tables: Sequence[DeviceTable], family: str) -> str:
    """Return a header with a function `<family>_choose` for the devices of these tables, and the default for others.

    Raises UsageError for a family whose problems have texts, or values that no option can hold, TableError when two
    devices have one name in C.
    """
    known = find_family(family)
    sizes = [field.name for field in dataclasses.fields(known.problem_type)]
    if any(field.type is not int for field in dataclasses.fields(known.problem_type)):
        raise UsageError(f"problems of {family} have more than sizes", hint="export it to JSON")
    check_distinct(table.device.slug for table in tables)
    numbers = [p.name for p in known.algorithms[0].parameters if p.is_numeric]
    anywhere = _anywhere(known, sizes, numbers)
    measured = [(table.device.slug, _of_device(known, table, sizes, numbers)) for table in tables if table.winners]
    rows = [*anywhere, *(row for _, of_device in measured for row in of_device)]
    unknown = [c.name for a in known.algorithms for c in a.constraints if not _is_decided_by(sizes, c, a)]
    return render_c(
        "choices.h",
        family=family,
        meaning=known.meaning.replace("*/", "* /"),
        sizes=sizes,
        members={name: f"{name}_" if name in _TAKEN else name for name in numbers},
        numbers=numbers,
        devices=measured,
        anywhere=anywhere,
        conditions=list(dict.fromkeys(row.needs for row in rows if row.needs)),
        most_factor=MAX_FACTOR,
        unchecked=", ".join(unknown).replace("*/", "* /"),
    )


def write_defines(tables: Sequence[DeviceTable], family: str) -> str:
    """Return a line for each winner: device, sizes, algorithm, then compiler options such as ``-DTILE=16``.

    Raises UsageError for values that no option can hold.
    """
    known = find_family(family)
    lines = [f"# Written by autotune: device, sizes, algorithm, and options for the compiler, of {family}."]
    for table in tables:
        for winner in table.winners:
            given = winner.problem.to_dict()
            sizes = " ".join(f"{name}={value}" for name, value in given.items())
            row = _row_of(known, winner.configuration, (), (), given)
            lines.append(f"{winner.device} {sizes} {row.algorithm} {row.options}".rstrip())
    return "\n".join(lines) + "\n"


def _of_device(family: KernelFamily, table: DeviceTable, sizes: Sequence[str], numbers: Sequence[str]) -> list[_Row]:
    """Return the rows of a device, without winners that it cannot use any more, even at their own sizes."""
    limits = table.device.limits
    usable = (w for w in table.winners if not family.violations(w.problem, w.configuration, limits))
    return [_row(family, winner, _needs(family, winner.configuration, limits, sizes), numbers) for winner in usable]


def _anywhere(family: KernelFamily, sizes: Sequence[str], numbers: Sequence[str]) -> list[_Row]:
    """Return rows for any device: the default, then what differs from it in one parameter."""
    default = next(family.candidates(family.examples()[-1], DeviceLimits(), ()), family.baseline)
    parameters = family.algorithm(default.algorithm).parameters
    changes = ({p.name: value} for p in parameters for value in p.values)
    others = (Configuration.of(default.algorithm, **{**dict(default.values), **change}) for change in changes)
    rows = [
        dataclasses.replace(_row_of(family, one, (0,) * len(sizes), numbers), needs=needs)
        for one in dict.fromkeys([default, *others])
        if (needs := _needs(family, one, DeviceLimits(), sizes)) != _NEVER
    ]
    return rows[:MOST_FALLBACKS]


def _row(family: KernelFamily, winner: Winner, needs: str, numbers: Sequence[str]) -> _Row:
    sizes = tuple(int(value) for value in winner.problem.to_dict().values())
    gain = f"{winner.gain_over_default:.3g}x the default's speed" if winner.gain_over_default else "provisional"
    return dataclasses.replace(_row_of(family, winner.configuration, sizes, numbers), gain=gain, needs=needs)


def _needs(family: KernelFamily, configuration: Configuration, limits: DeviceLimits, sizes: Sequence[str]) -> str:
    """Return what the constraints on a configuration ask of the sizes, on a device with these limits.

    A constraint that divides by zero does not hold, as in a lookup. _NEVER where no size would do.
    """
    algorithm = family.algorithm(configuration.algorithm)
    of_device = {name: value for name, value in limits.constraint_values().items() if name not in sizes}
    known = [c.condition for c in algorithm.constraints if _is_decided_by(sizes, c, algorithm)]
    open_ones = [condition.given({**of_device, **dict(configuration.values)}) for condition in known]
    if any(not one.names and not one({}) for one in open_ones):
        return _NEVER
    places = {name: f"(long long)autotune_wanted[{number}]" for number, name in enumerate(sizes)}
    asked = [part for one in open_ones if one.names for part in (*one.definitions, one)]
    return " && ".join(part.to_c(places.__getitem__, str, has_negatives=True) for part in asked)


def _is_decided_by(sizes: Sequence[str], constraint: Constraint, algorithm: Algorithm) -> bool:
    """Return whether sizes, parameters and the limits of a device decide a constraint."""
    return constraint.condition.names <= {*sizes, *algorithm.by_name, *DeviceLimits().constraint_values()}


def _row_of(
    family: KernelFamily,
    configuration: Configuration,
    sizes: tuple[int, ...],
    numbers: Sequence[str],
    known: Mapping[str, Value] = NO_SIZES,
) -> _Row:
    values = dict(configuration.values)
    options = [f"-D{name}={plain_option(value)}" for name, value in values.items()]
    options += [_unquoted(option) for option in family.further_options(configuration, known)]
    return _Row(
        sizes=sizes,
        algorithm=configuration.algorithm,
        options=" ".join(options),
        values=tuple(int(values.get(name, 0)) for name in numbers),
    )


def _unquoted(option: str) -> str:
    """Return an option that needs no quotes, or has them where a compiler takes them. Raises UsageError for others."""
    if re.fullmatch(r'-(?:D\w+=|I )"[\w.+(),/=: *-]*"', option, re.ASCII):
        return option
    return str(plain_option(option, r"/=:" if option.startswith("-D") else r"/=: "))


def plain_option(value: Value, further: str = "") -> Value:
    """Return a value that can stand in a compiler's option without quotes. Raises UsageError for any other."""
    if isinstance(value, str) and not re.fullmatch(rf"[\w.+(),{further}-]*", value, re.ASCII):
        raise UsageError(f"the value {value[:80]!r} cannot be an option of a compiler", hint="export to JSON")
    return value
