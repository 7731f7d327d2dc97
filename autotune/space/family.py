"""The interface of a kernel family: its algorithms, parameters, constraints, plans and reference results.

A `KernelFamily` (one package in `kernels/`) declares its `Algorithm`s; each has `Parameter`s and `Constraint`s. For a
`Problem` on a device with given `DeviceLimits` they span a search space (`search_space.py`) of valid `Configuration`s.
A `Plan` says which buffers and launches a configuration needs.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

from autotune.errors import ConfigurationError, ProblemError, did_you_mean
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits, Fault
from autotune.model.machine import UNKNOWN, Machine
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.paths import data_folder
from autotune.plugins import part
from autotune.space.case import Case
from autotune.space.expression import Expression
from autotune.space.plan_formula import PlanFormula


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of an algorithm. `values` lists every choice, in ascending order if they are numbers."""

    name: str
    values: tuple[Value, ...]
    meaning: str
    neutral: Value | None = None
    """The value implied for configurations older than this parameter; None if it must always be given."""

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, int) for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A named condition on parameters, problem sizes and device limits; see `expression.py`."""

    name: str
    condition: Expression
    because: str


def parameter(name: str, values: Sequence[Value], meaning: str, *, neutral: Value | None = None) -> Parameter:
    return Parameter(name=name, values=tuple(values), meaning=meaning, neutral=neutral)


def constraint(name: str, condition: str, because: str) -> Constraint:
    return Constraint(name=name, condition=Expression(condition), because=because)


def features(*texts: str) -> tuple[Expression, ...]:
    return tuple(map(Expression, texts))


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One template of a family with its parameters, constraints and work sizes."""

    name: str
    meaning: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()
    features: tuple[Expression, ...] = ()
    """Derived numbers that help a model of the run time, such as work-items in a work-group."""
    work_items: Expression | None = None
    """Work-items of a work-group, where the search may expect usual numbers of them to be fast (`propose/prior.py`)."""

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}


class Starts(tuple[Configuration, ...]):  # noqa: SLOT001 - a tuple cannot have slots that are not empty
    """The configurations to try first on a device, best first, and the machine that a rule estimates for."""

    machine: Machine

    def __new__(cls, configurations: Iterable[Configuration] = (), machine: Machine = UNKNOWN) -> Self:
        """Return `configurations` as they are, if they are such already."""
        if isinstance(configurations, cls):
            return configurations
        made = super().__new__(cls, configurations)
        made.machine = machine
        return made

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and (not isinstance(other, Starts) or self.machine == other.machine)

    __hash__ = tuple.__hash__


@dataclass(frozen=True, kw_only=True, eq=False)
class CExport:
    """What exported C code must know about a family beyond its parameters, constraints and problem's fields.

    These are counterparts of the family's Python code; a test compares both on random problems. Only a family whose
    default is the valid candidate with the least estimate can have one.
    """

    about: str
    """What a call computes, as a comment in C; its arguments are the scalars and the operands of the plan."""
    kind: tuple[str, ...]
    """Fields that comparable problems share."""
    words: Mapping[str, tuple[str, ...]]
    """Values of the text fields; the first is used for a field that is not given."""
    least: Mapping[str, str]
    """Least values of fields, in order, as expressions; the most is 2**31 - 1.

    A field that is 0 by default takes its least value if it is 0.
    """
    conditions: tuple[str, ...] = ()
    """What else holds for every problem."""
    candidates: Callable[[Starts, DeviceLimits], Mapping[Configuration, Mapping[str, int]]]
    """Returns the candidates for the default of a device, each with its numbers for the estimate."""
    estimate: Expression
    """An expression over fields, limits and numbers: the first valid candidate with the least value is the default.

    A negative value means that the candidate is not meant for this problem.
    """
    plan: PlanFormula
    packing: str = "0"
    """How a configuration packs constant operands, as a number: what is packed serves all that have the same."""
    samples: Callable[[Configuration, Problem], Iterable[Problem]]
    """Returns problems of the same kind as an example that cover the variants of a configuration."""


def ranked(
    starts: Iterable[Configuration], rule: Mapping[Configuration, Mapping[str, int]], anywhere: Mapping[str, int]
) -> Mapping[Configuration, Mapping[str, int]]:
    """Return candidates with their place in the order of preference as a number: starts, meant anywhere, then a rule's.

    Their estimate is that place, or negative.
    """
    first = dict.fromkeys(starts, anywhere)
    found = first | {configuration: numbers for configuration, numbers in rule.items() if configuration not in first}
    return {configuration: {**numbers, "order": order} for order, (configuration, numbers) in enumerate(found.items())}


class KernelFamily(ABC):
    """A kind of computation; its module defines one instance named FAMILY. `kernels/__init__.py` says how it is found.

    Inputs and results are passed as NumPy arrays keyed by buffer name.
    """

    name: ClassVar[str]
    space_version: ClassVar[int]
    """Incremented when parameters or constraints change meaning, to distinguish old trials."""
    problem_type: ClassVar[type[Problem]]
    algorithms: ClassVar[tuple[Algorithm, ...]]
    baseline: ClassVar[Configuration]
    """The plainest kernel, legal everywhere: a reference for gains."""
    meaning: ClassVar[str] = ""
    """What the kernels compute, in a few words."""
    template_files: ClassVar[Path | Mapping[str, str] | None] = None
    """A folder with a file ``<algorithm>.cl.j2`` for each algorithm, or the texts of such files by name.

    None for the built-in families, whose folder is ``templates/<family>``.
    """
    is_trusted: ClassVar[bool] = True
    """Whether its templates may use all of Jinja2; otherwise they are rendered in a sandbox, with limits."""
    is_command: ClassVar[bool] = False
    """Whether its configurations are run as commands, by `worker`, rather than launched as kernels."""
    run_limit_s: ClassVar[float | None] = None
    """Longest time to build, and for the rest of a trial, in seconds, if not those of all jobs."""
    remedy: ClassVar[str] = ""
    """What helps where no configuration gives correct results, other than to examine the device."""
    packing_parameters: ClassVar[tuple[str, ...]] = ()
    """Parameters that, besides the launches of a plan, tell how an operand is packed. Kernels of configurations that
    agree on all of that can use the same packed operand."""
    can_unpack: ClassVar[bool] = False
    """Whether launches that prepare an operand undo that when their last argument is 1; plans pass 0, or none such."""
    checks: tuple[Problem, ...] = ()
    """Small or ragged problems at which a winner must be right too."""
    unasked: tuple[Problem, ...] = ()
    """The same for problems of a kind that was not asked for, such as unequal sizes where all are equal; they count
    where the baseline is right."""
    c_export: ClassVar[CExport | None] = None
    """What the export to C needs, if the family has one."""

    def worker(self) -> Any:
        """Return what runs its commands; None where it has kernels, which a process that opens the device measures."""
        return part("command_worker")(self) if self.is_command else None

    def use(self, problem: Problem, configuration: Configuration) -> str:  # noqa: ARG002 - of those that are no kernels
        """Return how to run a configuration, as lines for people, if it is a command."""
        return ""

    @property
    def has_rule(self) -> bool:
        """Whether a lookup prefers the default to the winner of a size that is only near: the default is an estimate's.

        At 96 held-out products on an H100, an H200 and PoCL, the default of GEMM reached 0.96 to 0.97 of the tuned
        speed in the geometric mean, the winner of the nearest size 0.83 to 0.91.
        """
        return self.c_export is not None

    @abstractmethod
    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        """Return the buffers and launches of a valid configuration."""

    @abstractmethod
    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield valid configurations by a rule of the family, most promising first.

        `starts` are the starting configurations of the device profile.
        """

    def default(self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]) -> Configuration:
        """Return the configuration to use without tuning. Raises ProblemError where none is legal."""
        chosen = next(self.candidates(problem, limits, starts), None)
        if chosen is not None:
            return chosen
        if broken := self.violations(problem, self.baseline, limits):
            raise ProblemError(
                f"no configuration of {self.name} is legal for {problem.label} on this device; its default: {broken[0]}"
            )
        return self.baseline

    @abstractmethod
    def make_case(self, problem: Problem, seed: int) -> Case:
        """Return random inputs drawn with `seed`, and the check of the outputs."""

    @property
    def regimes(self) -> tuple[str, ...]:
        """Further kinds of inputs on which results are compared, as words."""
        return ()

    def make_case_of(self, regime: str, problem: Problem, seed: int) -> Case:
        """Return inputs of one of `regimes`."""
        raise NotImplementedError(f"{self.name} has no {regime} for {problem.label} and seed {seed}")

    @abstractmethod
    def examples(self) -> tuple[Problem, ...]:
        """Return small problems to check every kernel on: ragged and degenerate sizes, all types and layouts."""

    def template_name(self, algorithm: str) -> str:
        """Return the key of an algorithm's template in `templates`."""
        return f"{self.name}/{algorithm}.cl.j2"

    @cached_property
    def templates(self) -> Mapping[str, str]:
        """Texts of the family's templates, ``<family>/<file>``, and of those that all families may import."""
        shared = data_folder("templates")
        given = self.template_files if self.template_files is not None else shared / self.name
        own = _texts_in(given) if isinstance(given, Path) else given
        return {**_texts_in(shared), **{f"{self.name}/{name}": text for name, text in own.items()}}

    def contract_faults(self) -> list[str]:
        """Return how a family from outside breaks the contract; empty if it can be used."""
        found = []
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", self.name):
            found.append(f"the name {self.name[:80]!r} is not up to 32 lowercase letters, digits and underscores")
        if self.problem_type.family != self.name:
            found.append(f"{self.problem_type.__name__}.family is {self.problem_type.family!r}, not {self.name!r}")
        found += self.misfits(self.baseline)
        missing = [a.name for a in self.algorithms if self.template_name(a.name) not in self.templates]
        found += [f"the template {name}.cl.j2 is missing" for name in missing]
        return found

    @cached_property
    def parameter_names(self) -> list[str]:
        """The parameters of all algorithms, in the order in which they are declared."""
        return list(dict.fromkeys(p.name for algorithm in self.algorithms for p in algorithm.parameters))

    def algorithm(self, name: str) -> Algorithm:
        """Return the algorithm of that name. Raises ConfigurationError when the family does not have it."""
        for algorithm in self.algorithms:
            if algorithm.name == name:
                return algorithm
        known = [algorithm.name for algorithm in self.algorithms]
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise ConfigurationError(f"{self.name} has no algorithm {name[:80]!r}", hint=hint)

    def complete(self, configuration: Configuration) -> Configuration:
        """Return the configuration with neutral values added for parameters newer than it."""
        algorithm = next((a for a in self.algorithms if a.name == configuration.algorithm), None)
        if algorithm is None:
            return configuration
        given = dict(configuration.values)
        missing = {
            name: parameter.neutral
            for name, parameter in algorithm.by_name.items()
            if name not in given and parameter.neutral is not None
        }
        return Configuration.of(configuration.algorithm, **given, **missing) if missing else configuration

    def violations(self, problem: Problem, configuration: Configuration, limits: DeviceLimits) -> list[str]:
        """Return the reasons why a configuration is not valid for a problem and device; empty if it is valid."""
        found = self.misfits(configuration)
        if found:
            return found
        values = {**limits.constraint_values(), **problem.constraint_values(), **dict(configuration.values)}
        constraints = self.algorithm(configuration.algorithm).constraints
        broken = [f"{c.name}: {c.because}" for c in constraints if not c.condition(values)]
        return [*broken, *(reason_of(fault) for fault in self.faults(limits) if fault.matches(configuration))]

    def faults(self, limits: DeviceLimits) -> tuple[Fault, ...]:
        """Return the known faults that concern this family, except any that match the baseline, which stays legal."""
        return tuple(f for f in limits.faults if f.family == self.name and not f.matches(self.baseline))

    def further_options(
        self,
        configuration: Configuration,  # noqa: ARG002 - for those that need it
        sizes: Mapping[str, Any],  # noqa: ARG002
    ) -> list[str]:
        """Return options of the compiler that a configuration needs besides its parameters, as far as `sizes` tell."""
        return []

    def misfits(self, configuration: Configuration) -> list[str]:
        """Return how a configuration deviates from the declared parameters, regardless of problem and device."""
        try:
            algorithm = self.algorithm(configuration.algorithm)
        except ConfigurationError as error:
            return [error.message]
        given = dict(configuration.values)
        found = [f"{algorithm.name} has no parameter {name[:80]!r}" for name in given if name not in algorithm.by_name]
        for name, parameter in algorithm.by_name.items():
            if name not in given:
                found.append(f"parameter {name!r} is missing")
            elif not any(type(given[name]) is type(v) and given[name] == v for v in parameter.values):
                known = ", ".join(map(str, parameter.values))
                found.append(f"{name}={repr(given[name])[:40]} is not among {known}")
        return found


class BuiltInFamily(KernelFamily):
    """A family of this package: it has a formula for plans, and a module `reference` with a `Case` named after it.

    That takes one of the REGIMES of the module, if there are any, as its last argument.
    """

    c_export: ClassVar[CExport]
    shapes_to_check: ClassVar[tuple[str, ...]] = ()
    """The examples, as people write them."""

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield those of the export, in their order, that it means for the problem and that are valid."""
        values, estimate = problem.to_dict(), self.c_export.estimate
        known = self.c_export.candidates(Starts(starts), limits).items()
        meant = (configuration for configuration, numbers in known if estimate({**values, **numbers}) >= 0)
        return (configuration for configuration in meant if not self.violations(problem, configuration, limits))

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        return self.c_export.plan.plan(problem, configuration)

    def examples(self) -> tuple[Problem, ...]:
        return tuple(map(self.problem_type.parse, self.shapes_to_check))

    @property
    def regimes(self) -> tuple[str, ...]:
        return tuple(getattr(self._reference, "REGIMES", ()))

    def make_case(self, problem: Problem, seed: int) -> Case:
        assert isinstance(problem, self.problem_type)
        case: Case = getattr(self._reference, f"{type(self).__name__}Case")(problem, seed)
        return case

    def make_case_of(self, regime: str, problem: Problem, seed: int) -> Case:
        assert regime in self.regimes
        case: Case = getattr(self._reference, f"{type(self).__name__}Case")(problem, seed, regime)
        return case

    @property
    def _reference(self) -> ModuleType:
        return import_module(f"autotune.kernels.{self.name}.reference")  # loads NumPy, which lookups do not need


def _texts_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.j2"))}


def reason_of(fault: Fault) -> str:
    """Return the reason why a configuration that matches a fault is not valid."""
    return f"known_fault: this driver gets {fault} wrong"
