"""A kernel file as a family, which is tuned, stored, looked up and run like the built-in ones."""

import dataclasses
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from math import prod
from time import monotonic
from typing import TYPE_CHECKING, Any

from autotune.errors import ConfigurationError, ProblemError, UsageError, did_you_mean
from autotune.model.configuration import Configuration, Value
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.own.kernel_file.format import REFERENCE, Formula, KernelFile
from autotune.own.kernel_file.formula import checked, plan_formula
from autotune.own.kernel_file.options import options_of
from autotune.own.kernel_file.problem import KernelFileProblem
from autotune.own.kernel_file.source import template_of
from autotune.own.tuned_family import LARGEST_SIZE, TunedFileFamily
from autotune.own.tuned_file import names_in, parts
from autotune.space.case import Case
from autotune.space.expression import Expression
from autotune.space.family import Constraint
from autotune.space.plan_formula import STEP, PlanFormula, in_c

if TYPE_CHECKING:
    from autotune.own.kernel_file.contents import FileCase

ALIGNED = 64
"""Sizes divisible by it suit any vector and most work-groups: what is wrong only there is missed at ragged sizes."""
SLOW_CASE_S = 0.5
"""Inputs whose reference takes longer are kept, also when the device has no room for them."""
KEPT_BYTES = 2**29


class FileFamily(TunedFileFamily):
    """The family that a kernel file describes."""

    file: KernelFile

    def __init__(self, file: KernelFile, module: str) -> None:
        """`module` is the name under which the problem's class can be imported in child processes.

        Raises UsageError when a source cannot be read.
        """
        self.file = file
        super().__init__(file, KernelFileProblem, module)
        self.space_version = _version(file)  # type: ignore[misc]
        self.meaning = file.meaning or f"kernels of {file.path.name}"  # type: ignore[misc]
        own = self._algorithm("the kernel of the file", self._constraints(), self._work_items())
        self.algorithms = (own,)  # type: ignore[misc]
        texts = {f"{file.name}.cl.j2": template_of(file, file.sources)}
        self._slow_cases: dict[tuple[Problem, int, str], FileCase] = {}
        self._right = self.usual
        """The configuration whose outputs are the reference, unless the file names a function or stored outputs."""
        if file.reference_launch:
            self._right = Configuration.of(REFERENCE, kernel=file.reference_launch.kernel)
            sources = (file.reference.source,) if file.reference.source else file.sources
            texts[f"{REFERENCE}.cl.j2"] = template_of(file, sources)
        self.template_files = texts  # type: ignore[misc]
        self.checks = tuple(self.problem_type.from_dict({**file.sizes, **sizes}) for sizes in file.check)
        self.unasked = self._unasked()
        self._check_use(texts[f"{file.name}.cl.j2"])
        if find_spec("tree_sitter"):  # which is absent where kernels only run: the file was checked where it was tuned
            from autotune.own.kernel_file.signature import check_signatures

            check_signatures(file)
        self.remedy = f"run `autotune check {file.path}`, which says more"  # type: ignore[misc]

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        """Return the buffers and launches. Raises ConfigurationError when a formula gives something impossible."""
        try:
            plan = self._formula.plan(problem, configuration)
        except ZeroDivisionError as error:
            place = self._divided_by_zero({**problem.constraint_values(), **dict(configuration.values)})
            raise ConfigurationError(
                f"{configuration}: {place} divides by zero", hint="guard it, as in: a // b if b else 0"
            ) from error
        except TypeError as error:
            raise ConfigurationError(
                f"{configuration}: a formula of {self.file.path.name} mixes texts and numbers"
            ) from error
        try:
            return checked(plan)
        except ConfigurationError as error:
            raise ConfigurationError(f"{configuration}: {error.message}") from error

    def _divided_by_zero(self, values: Mapping[str, Value]) -> str:
        """Return which formula divides by zero with these values."""
        for key, formula in self.file.formulas:
            for part in map(Expression, parts(formula)):
                try:
                    if part.names <= values.keys():
                        part(values)
                except ZeroDivisionError:
                    return f"{key}, {part.text!r},"
        return f"a formula of {self.file.path.name}"

    def further_options(self, configuration: Configuration, sizes: Mapping[str, Any]) -> list[str]:
        values = {**sizes, **dict(configuration.values)}
        defines = {name: Expression(str(formula)) for name, formula in self.file.defines.items()}
        known = {name: value(values) for name, value in defines.items() if value.names <= values.keys()}
        found = [f"-D{name}={in_c(value)}" for name, value in known.items()]
        names = {option.whole: names_in(option.whole) for option in options_of(self.file.build_options)}
        return [*found, *(option.format_map(values) for option in names if names[option] <= values.keys())]

    def examples(self) -> tuple[Problem, ...]:
        return (*self.checks, *(request.problem for request in self.requests))

    def make_case(self, problem: Problem, seed: int) -> Case:
        return self.make_case_of("", problem, seed)

    def make_case_of(self, regime: str, problem: Problem, seed: int) -> Case:
        from autotune.own.kernel_file.contents import FileCase  # loads NumPy

        key = (problem, seed, regime)
        if key in self._slow_cases:
            return self._slow_cases[key]
        sizes = {name: int(value) for name, value in problem.to_dict().items()}
        given = self.file.reference
        reference = None if not regime and (given.python or given.outputs) else self._right
        began = monotonic()
        case = FileCase(self.file, self.plan(problem, self.usual), sizes, seed, reference, regime)
        if given.python and monotonic() - began > SLOW_CASE_S:
            self._slow_cases[key] = case
            while sum(one.size_bytes for one in self._slow_cases.values()) > KEPT_BYTES:
                del self._slow_cases[next(iter(self._slow_cases))]
        return case

    @cached_property
    def regimes(self) -> tuple[str, ...]:
        from autotune.own.kernel_file.regimes import regimes_of  # loads NumPy

        return regimes_of(self.file)

    def _unasked(self) -> tuple[Problem, ...]:
        """Return variants of the smallest problem asked for, in which what all problems have in common is otherwise.

        One has multiples of sizes that are equal to others in all of them, which are divisible by whatever those were
        divisible by; one has sizes divisible by 64; and one has three of what there were never more than two of.
        """
        known = self.examples()
        smallest = min(known, key=lambda problem: prod(problem.size_vector))
        seen: Counter[tuple[int, ...]] = Counter()
        sizes: list[int] = []
        for of_one in zip(*(problem.size_vector for problem in known), strict=True):
            seen[of_one] += max(of_one) > 1
            sizes.append(smallest.size_vector[len(sizes)] * max(1, seen[of_one]))
        even = [-(-size // ALIGNED) * ALIGNED if size > 2 else size for size in smallest.size_vector]
        few = [max(of_one) <= 2 for of_one in zip(*(problem.size_vector for problem in known), strict=True)]
        many = [3 if is_few else size for size, is_few in zip(smallest.size_vector, few, strict=True)]
        given = {problem.size_vector for problem in known}
        wanted = dict.fromkeys(map(tuple, (sizes, even, many)))
        found = [smallest.resized(one) for one in wanted if one not in given and max(one) <= LARGEST_SIZE]
        return tuple(problem for problem in found if self._has_buffers_of(problem, smallest))

    def _has_buffers_of(self, problem: Problem, other: Problem) -> bool:
        """Return whether the same buffers exist at two sizes; one that may be NULL depends on a switch of 0 or 1."""
        try:
            names = [{buffer.name for buffer in self.plan(one, self.usual).buffers} for one in (problem, other)]
        except (ProblemError, ConfigurationError):
            return False
        return names[0] == names[1]

    def _check_use(self, source: str) -> None:
        """Raise UsageError for a parameter that neither the source nor any formula uses: probably a misspelling."""
        file = self.file
        formulas = [str(formula) for key, formula in file.formulas if not key.startswith("constraints.")]
        text = " ".join([*file.build_options, *formulas]) + re.sub(r"(?m)^#define (\w+) \{\{ \1 \}\}$", "", source)
        used = set(re.findall(r"\w+", text))
        for name in file.parameters:
            if name not in used:
                raise UsageError(
                    f"{file.path}: the parameter {name} has no effect: neither a source nor a formula uses it",
                    hint=did_you_mean(name, sorted(used)) or "leave it out",
                )

    def _constraints(self) -> Iterator[Constraint]:
        """Yield what any launch needs, and the limits of work-groups and local memory."""
        for name, entry in self.file.arguments.items():
            yield from self._positive(f"size_of_{name}", [entry.size, entry.local], "True")
        for number, launch in enumerate(self.file.all_launches):
            if self._differs(launch.global_size, launch.local_size, launch.when):
                continue  # from step to step: it is checked when it is known
            yield from self._positive(f"launch_{number}", [launch.global_size, launch.local_size], launch.when)
            if launch.local_size != "":
                yield Constraint(
                    name=f"work_group_{number}",
                    condition=_where(launch.when, f"{_product(launch.local_size)} <= max_work_group_size"),
                    because=f"work-groups of {launch.local_size} have more work-items than the device allows",
                )
            entries = [self.file.arguments[name] for name in self.file.names_of(launch) if name]
            if local := " + ".join(f"({entry.local})" for entry in entries if entry.local != ""):
                yield Constraint(
                    name=f"local_memory_{number}",
                    condition=_where(launch.when, f"{local} <= local_memory_bytes"),
                    because="the device has less local memory",
                )

    def _differs(self, *formulas: Formula) -> bool:
        """Return whether formulas of a launch that is repeated differ from step to step."""
        names = {name for formula in formulas for part in parts(formula) for name in Expression(part).names}
        return STEP in names - self.file.sizes.keys() - self.file.parameters.keys()

    def _work_items(self) -> Expression | None:
        """Return the work-items in a work-group of the first launch whose work-group parameters decide."""
        sizes = (launch.local_size for launch in self.file.all_launches)
        tuned = next((size for size in sizes if self._depends(size) and not self._differs(size)), None)
        return None if tuned is None else Expression(_product(tuned))

    def _positive(self, name: str, formulas: Sequence[Formula], when: str) -> Iterator[Constraint]:
        """Yield the constraint that the parts of formulas are at least 1, if parameters decide that."""
        found = [part for formula in formulas if formula != "" for part in parts(formula) if self._depends(part)]
        if found:
            yield Constraint(
                name=name,
                condition=_where(when, " and ".join(f"({part}) >= 1" for part in found)),
                because=f"{', '.join(found)} would be less than 1",
            )

    def _depends(self, formula: Formula) -> bool:
        return any(not Expression(part).names.isdisjoint(self.file.parameters) for part in parts(formula))

    @cached_property
    def _formula(self) -> PlanFormula:
        return plan_formula(self.file, dict(self.usual.values))


def _version(file: KernelFile) -> int:
    """Return a number that changes with everything but the sources that gives a configuration its meaning."""
    meaning = (file.all_launches, file.arguments, file.defines, file.build_options)
    return zlib.crc32(repr(_given(meaning)).encode()) & 0x7FFFFFFF


def _given(value: Any) -> Any:
    """Return a value with only those fields of its entries that were given, so that new keys change nothing."""
    if isinstance(value, tuple):
        return [_given(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _given(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {field.name: item for field, item in fields if item != field.default}
    return value


def _where(when: str, condition: str) -> Expression:
    """Return a condition that is asked only of configurations that need a launch."""
    return Expression(condition if when == "True" else f"({condition}) if ({when}) else 1 == 1")


def _product(formula: Formula) -> str:
    return " * ".join(f"({part})" for part in parts(formula))
