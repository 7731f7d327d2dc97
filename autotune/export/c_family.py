"""How C spells a kernel family: its names, types, problems, configurations, conditions, and candidates."""

import ast
import dataclasses
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property

from autotune.device.profile import find_profile
from autotune.errors import TableError, UsageError
from autotune.export.contents import DeviceTable
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits, Fault
from autotune.model.plan import Role
from autotune.model.problem import Problem
from autotune.space.expression import Expression
from autotune.space.family import Algorithm, KernelFamily
from autotune.space.plan_formula import LaunchFormula, parts_of


def check_distinct(names: Iterable[str]) -> None:
    """Raise TableError when two of these names are one name in C."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(identifier(name), name)
        if other != name:
            raise TableError(f"{other} and {name} have the same name in C", hint="export one device at a time")


def identifier(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", text.lower())


def braced(values: Iterable[object]) -> str:
    """Return the initializer of a structure or an array."""
    return f"{{{', '.join(map(str, values))}}}"


class FamilyInC:
    """Spells the values of one kernel family; `prefix` and `macro` begin its names.

    Raises UsageError when the family has no C export.
    """

    def __init__(self, family: KernelFamily) -> None:
        if family.c_export is None:
            raise UsageError(f"{family.name} cannot be exported to C", hint="export it to JSON")
        self.family = family
        self.rules = rules = family.c_export
        self.sizes = family.problem_type.size_axes
        self.prefix = f"autotune_{family.name}"
        self.macro = self.prefix.upper()
        fields = [field for field in dataclasses.fields(family.problem_type) if field.default != ""]  # see plain_part
        self.defaults: dict[str, Value] = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
        self.fields = [f.name for f in fields]
        self.needed = [name for name in self.fields if name not in self.defaults]
        self.parameters = family.parameter_names
        known = {*self.fields, *DeviceLimits().constraint_values()}
        self.numbers = sorted(name for name in rules.estimate.names - known if not self._derived(name))
        declared = [p for algorithm in family.algorithms for p in algorithm.parameters]
        self._texts = {p.name for p in declared if not p.is_numeric} | rules.words.keys()
        words = {word for values in rules.words.values() for word in values}
        self.words = sorted(words | {value for p in declared for value in p.values if isinstance(value, str)})
        check_distinct(self.words)

    @property
    def filled_in(self) -> list[str]:
        """The fields of a problem that are filled in where they are 0."""
        return [name for name in self.rules.least if self.defaults.get(name) == 0]

    @property
    def operands(self) -> list[str]:
        """The names of the buffers that the caller supplies, in order."""
        return [buffer.name for buffer in self.rules.plan.buffers if buffer.role in (Role.INPUT, Role.OUTPUT)]

    @cached_property
    def constants(self) -> list[str]:
        """Those of the operands that keep their values, in order."""
        return [name for name in self.operands if self.plain.is_constant(name)]

    def packs(self, launch: LaunchFormula) -> bool:
        """Return whether a launch prepares constant operands, once for many calls."""
        return launch.prepares in self.constants

    @cached_property
    def packed(self) -> set[str]:
        """The names of the buffers that such launches fill."""
        trees = [ast.parse(f"({launch.arguments},)") for launch in self.rules.plan.launches if self.packs(launch)]
        passed = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        return {buffer.name for buffer in self.rules.plan.buffers if buffer.role is Role.SCRATCH} & passed

    @property
    def packed_fields(self) -> list[str]:
        """The fields that determine what such launches do."""
        plan = self.rules.plan
        buffers = [buffer for buffer in plan.buffers if buffer.name in {*self.packed, *self.constants}]
        texts = [text for buffer in buffers for text in (buffer.dtype, buffer.elements)]
        texts += [text for one in plan.launches if self.packs(one) for text in (one.global_size, one.arguments)]
        names = {name for text in texts for part in parts_of(text) for name in Expression(part).names}
        for name, text in reversed(list(plan.names.items())):
            if name in names:
                names |= Expression(text).names
        return [name for name in self.fields if name in names]

    @property
    def arguments(self) -> str:
        """The parameters of a call that are its scalars and operands."""
        scalars = [f"double {name}" for name in self.rules.plan.scalars]
        packed = ["struct autotune_packed *packed"] if self.constants else []
        given = [f"cl_mem {name}" for name in self.operands if name not in self.constants]
        return ", ".join([*scalars, *packed, *given])

    def type_of(self, name: str, number: str) -> str:
        """Return the type of a field or parameter; `number` is that of numbers."""
        return f"enum {self.prefix}_word" if name in self._texts else number

    def word(self, text: str) -> str:
        return f"{self.macro}_{identifier(text).upper()}"

    def algorithm(self, algorithm: Algorithm) -> str:
        return f"{self.macro}_ALGORITHM_{identifier(algorithm.name).upper()}"

    def literal(self, value: Value) -> str:
        return self.word(value) if isinstance(value, str) else str(value)

    def problem(self, problem: Problem) -> str:
        return braced(self.literal(value) for value in problem.to_dict().values())

    @property
    def plain_problem(self) -> str:
        """The plain problem, with the sizes as variables."""
        return braced(self.literal(self.defaults[name]) if name in self.defaults else name for name in self.fields)

    @cached_property
    def plain(self) -> Problem:
        """A problem of the kind that is in every package."""
        return self._least_problem({})

    def _least_problem(self, texts: Mapping[str, str]) -> Problem:
        """Return the least problem with these text fields, or their defaults, or else their first words."""
        first = {name: words[0] for name, words in self.rules.words.items()}
        values: dict[str, Value] = {**first, **self.defaults, **texts}
        for name, least in self.rules.least.items():
            if name in self.needed:
                values[name] = int(Expression(least)(values))
        return self.family.problem_type.from_dict(values)

    def configuration(self, configuration: Configuration) -> str:
        chosen = dict(configuration.values)
        none = {name: f"{self.macro}_NO_WORD" if name in self._texts else "0" for name in self.parameters}
        values = [self.literal(chosen[name]) if name in chosen else none[name] for name in self.parameters]
        return braced([self.algorithm(self.family.algorithm(configuration.algorithm)), *values])

    def candidate(self, configuration: Configuration, numbers: Mapping[str, int]) -> str:
        return braced([self.configuration(configuration), *(numbers[name] for name in self.numbers)])

    def candidates(self, table: DeviceTable) -> Mapping[Configuration, Mapping[str, int]]:
        """Return the declared candidates for a device's default, each with its numbers for the estimate."""
        limits = table.device.limits
        known = self.rules.candidates(find_profile(table.device, table.rates).starting(self.family.name), limits)
        faults = self.family.faults(limits)
        return {
            configuration: numbers
            for configuration, numbers in known.items()
            if not self.family.misfits(configuration) and not any(fault.matches(configuration) for fault in faults)
        }

    def plain_expression(self, expression: Expression) -> str:
        """Return an expression over variables that have the names of its values."""
        return expression.to_c(lambda name: name, self.word)

    def of_problem(self, expression: Expression | str, number: str = "p->") -> str:
        """Return an expression over the fields of ``*p``; `number` precedes a field that is not a text."""
        read = Expression(expression) if isinstance(expression, str) else expression
        return read.to_c(lambda name: f"p->{name}" if name in self.rules.words else f"{number}{name}", self.word)

    @property
    def complete_conditions(self) -> str:
        """What holds for every problem besides the least values of fields."""
        return " && ".join(map(self.of_problem, self.rules.conditions)) or "1"

    def equal(self, names: Iterable[str], one: str, other: str) -> str:
        """Return the condition under which two structures, given by pointers, have equal members of these names."""
        return " && ".join(f"{one}->{name} == {other}->{name}" for name in names) or "1"

    def constrained(self, algorithm: Algorithm, device: Device) -> Iterator[tuple[str, str]]:
        """Yield the names that the constraints of an algorithm use, each with its meaning."""
        limits = device.limits.constraint_values()
        for name in sorted({name for constraint in algorithm.constraints for name in constraint.condition.names}):
            yield name, self.meaning(name, algorithm.by_name, limits)

    def conditions(self, algorithm: Algorithm, device: Device) -> list[str]:
        """Return the constraints of an algorithm over those names, and what avoids the known faults of a device."""
        faults = (fault for fault in self.family.faults(device.limits) if self._concerns(fault, algorithm))
        return [
            *(self.plain_expression(constraint.condition) for constraint in algorithm.constraints),
            *(f"c->{f.parameter} != {self.literal(f.value)}" if f.parameter else "0" for f in faults),
        ]

    def _concerns(self, fault: Fault, algorithm: Algorithm) -> bool:
        known = algorithm.by_name.get(fault.parameter)
        has_value = known is not None and fault.value in known.values
        return fault.algorithm in ("", algorithm.name) and (has_value or not fault.parameter)

    def meaning(self, name: str, chosen: Container[str], limits: Mapping[str, int]) -> str:
        """Return a name in C; `chosen` are members of ``*c``. Looked up in the order of `KernelFamily.violations`."""
        if name in chosen:
            return f"c->{name}"
        if name in self.fields:
            return f"p->{name}"
        derived = self._derived(name)
        if not derived and name not in limits:
            raise TableError(f"{self.family.name} uses {name!r}, which has no equivalent in C")
        return derived or f"{limits[name]}LL"

    def _derived(self, name: str) -> str:
        """Return C for a value that follows from one text field, such as the bytes of an element; empty for others."""
        if name not in self.plain.constraint_values():
            return ""
        found = ""
        for field, words in self.rules.words.items():
            examples = {word: self._least_problem({field: word}) for word in words}
            values = {word: example.constraint_values().get(name) for word, example in examples.items()}
            if None in values.values():
                return ""
            if not found or len(set(values.values())) > 1:
                *tested, last = words
                found = "".join(f"p->{field} == {self.word(word)} ? {values[word]} : " for word in tested)
                found += str(values[last])
        return f"({found})" if found else ""
