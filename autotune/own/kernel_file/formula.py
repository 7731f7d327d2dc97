"""The buffers and launches of a kernel file as formulas of its sizes and parameters."""

import ast
import dataclasses
from collections.abc import Mapping
from math import prod
from typing import Any

from autotune.errors import ConfigurationError
from autotune.model.configuration import Value
from autotune.model.plan import Plan, Role, Scalar
from autotune.model.problem import ELEMENT_TYPES
from autotune.own.kernel_file.format import REFERENCE, ArgumentEntry, KernelFile, LaunchEntry, MemberEntry
from autotune.own.kernel_file.options import options_of
from autotune.space.plan_formula import MOST_LAUNCHES, ArgumentFormula, BufferFormula, LaunchFormula, PlanFormula

MOST_WORK_ITEMS = 2**40
MOST_ELEMENTS = 2**50
_NULL = "_null"
_ROLES = {"in": Role.INPUT, "out": Role.OUTPUT, "inout": Role.OUTPUT, "scratch": Role.SCRATCH}


def plan_formula(file: KernelFile, absent: Mapping[str, Value]) -> PlanFormula:
    """Return the buffers and launches of a kernel file; `absent` are values for parameters that are not given."""
    buffers, arguments = [], {}
    for name, entry in file.arguments.items():
        if entry.local != "":
            arguments[f"_a_{name}"] = ArgumentFormula(value=str(entry.local))
        elif entry.is_passed:
            arguments[f"_a_{name}"] = _passed(entry)
        else:
            size = str(entry.size)
            is_image = bool(entry.image or entry.line)
            buffers.append(
                BufferFormula(
                    name=name,
                    role=Role.VIEW if entry.over else _ROLES[entry.access],
                    dtype=repr(entry.element),
                    elements="" if is_image else size,
                    image=(f"{size}, 1" if entry.line else size) if is_image else "",
                    channels=entry.channels,
                    is_line=bool(entry.line),
                    view_of=entry.over,
                    row_pitch=str(entry.row_pitch),
                    when=f"({size}) != 0" if entry.may_be_null else "True",
                )
            )
    buffers.sort(key=lambda buffer: buffer.role is Role.VIEW)
    is_reference = f"algorithm == {REFERENCE!r}"
    launches = [
        _launch(file, launch, f"(algorithm != {REFERENCE!r}) and ({launch.when})") for launch in file.all_launches
    ]
    if file.reference_launch:
        launches.append(_launch(file, file.reference_launch, is_reference))
    arguments[_NULL] = ArgumentFormula()
    return PlanFormula(
        absent=absent,
        buffers=tuple(buffers),
        launches=tuple(launches),
        arguments=arguments,
        build_options={option.whole: "True" for option in options_of(file.build_options) if not option.definition},
        template_values={
            **{name: name for name in (*file.sizes, *file.parameters)},
            **{name: str(formula) for name, formula in file.defines.items()},
        },
    )


def _launch(file: KernelFile, launch: LaunchEntry, when: str) -> LaunchFormula:
    named = {name: ast.parse(_argument(name, entry), mode="eval").body for name, entry in file.arguments.items()}
    formulas = [
        named[text] if text in named else _named(ast.parse(text, mode="eval").body, named)  # a name may be no formula
        for text in file.formulas_of(launch)
    ]
    return LaunchFormula(
        kernel=launch.kernel,
        global_size=str(launch.global_size),
        local_size=str(launch.local_size),
        arguments=", ".join(map(ast.unparse, formulas)),
        when=when,
        times=str(launch.times),
        in_turn=launch.in_turn,
        prepares="constants" if launch.once else "",
    )


def _argument(name: str, entry: ArgumentEntry) -> str:
    """Return the expression of an argument in a plan."""
    if entry.is_passed or entry.local != "":
        return f"_a_{name}"
    return f"{name!r} if ({entry.size}) != 0 else {_NULL}" if entry.may_be_null else repr(name)


def _named(node: ast.expr, named: Mapping[str, ast.expr]) -> ast.expr:
    """Return an expression with others in the place of the names that it may result in."""
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, _named(body, named), _named(orelse, named))
        case ast.Name(id=name):
            return named.get(name, node)
    return node


def _passed(entry: ArgumentEntry) -> ArgumentFormula:
    """Return a number, a vector or a structure, whose members lie where C puts them."""
    if entry.scalar and not isinstance(entry.value, tuple):
        return ArgumentFormula(dtype=entry.scalar, value=entry.value)
    members: list[tuple[int, str, str | float]] = []
    end, largest = 0, 1
    for member in entry.struct.values() or (MemberEntry(scalar=entry.scalar, value=entry.value),):
        dtype = member.array or member.scalar
        values = member.value if isinstance(member.value, tuple) else (member.value,)
        size = ELEMENT_TYPES[dtype].size_bytes
        count = 4 if len(values) == 3 and member.scalar else len(values)  # a vector of 3 takes the place of 4
        alignment = size if member.array else size * count
        start = -(-end // alignment) * alignment
        members += [(start + size * number, dtype, value) for number, value in enumerate(values)]
        end, largest = start + size * count, max(largest, alignment)
    return ArgumentFormula(members=tuple(members), size_bytes=-(-end // largest) * largest)


def checked(plan: Plan) -> Plan:
    """Return a plan with whole sizes. Raises ConfigurationError when a formula gave something impossible."""
    plan = dataclasses.replace(
        plan,
        buffers=tuple(_whole(b, "elements", "image_width", "image_height", "row_pitch") for b in plan.buffers),
        launches=tuple(_whole(launch, "global_size", "local_size") for launch in plan.launches),
    )
    for buffer in plan.buffers:
        if not 1 <= buffer.elements <= MOST_ELEMENTS:
            raise ConfigurationError(f"{buffer.name} would have {buffer.elements} elements")
    if not 1 <= len(plan.launches) <= MOST_LAUNCHES:
        count = "more" if plan.launches else "no"
        raise ConfigurationError(f"there are {count} launches, where from 1 to {MOST_LAUNCHES} are possible")
    for launch in plan.launches:
        sizes = (*launch.global_size, *(launch.local_size or (1,)))
        if min(sizes) < 1 or max(sizes) > MOST_WORK_ITEMS or prod(launch.global_size) > MOST_WORK_ITEMS:
            by = f"work-groups of {launch.local_size}" if launch.local_size else "work-groups of the driver's choice"
            raise ConfigurationError(f"{launch.kernel} cannot be launched with {launch.global_size} work-items in {by}")
        for argument in launch.arguments:
            if isinstance(argument, Scalar) and ELEMENT_TYPES[argument.dtype].is_whole:
                _whole(argument, "value")
    return plan


def _whole(part: Any, *names: str) -> Any:
    """Return a part of a plan whose sizes are whole numbers. Raises ConfigurationError where one has a fraction."""
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(part, name)
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, float) and not number.is_integer() for number in numbers):
            raise ConfigurationError(f"{name} would be {value}, which is not whole: // and ceil_div have no rest")
        if any(isinstance(number, float) for number in numbers):
            found[name] = tuple(map(int, value)) if isinstance(value, tuple) else int(value)
    return dataclasses.replace(part, **found) if found else part
