"""The search space: every valid configuration of a family for one problem on one device."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits, Fault
from autotune.model.problem import Problem
from autotune.space.diagram import Diagram, Numbers, Paths, automaton
from autotune.space.expression import Expression
from autotune.space.family import KernelFamily, Parameter

_ROWS_AT_ONCE = 4096
MOST_COMBINATIONS = 2_000_000
"""Combinations of the values of parameters that a table of a condition may have."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """The rows of one algorithm: `count` rows starting at `first`."""

    algorithm: str
    first: int
    count: int


class SearchSpace:
    """Every valid configuration of a family for one problem on one device, in a fixed order.

    A row is the number of a configuration. Algorithms are numbered one after the other, and within an algorithm rows
    follow the order of its parameters' values. `diagrams[algorithm]` holds its rows as paths, with a layer for each of
    `parameters[algorithm]`.
    """

    def __init__(
        self,
        family: KernelFamily,
        problem: Problem,
        limits: DeviceLimits,
        *,
        algorithms: Sequence[str] = (),
        overrides: Mapping[str, tuple[Value, ...]] | None = None,
    ) -> None:
        """`algorithms` restricts the space; `overrides` replaces the values of named parameters.

        Raises ConfigurationError when an algorithm is unknown.
        """
        chosen = [family.algorithm(name) for name in algorithms] or list(family.algorithms)
        environment: dict[str, Value] = {**limits.constraint_values(), **problem.constraint_values()}
        parameters: dict[str, tuple[Parameter, ...]] = {}
        diagrams: dict[str, Diagram] = {}
        for algorithm in chosen:
            named = tuple(
                dataclasses.replace(p, values=(overrides or {}).get(p.name, p.values)) for p in algorithm.parameters
            )
            tables, automata = [], []
            for constraint in algorithm.constraints:
                for condition, is_large in _divided(constraint.condition, named):
                    if is_large:
                        automata.append(_chain(condition, named, environment))
                    else:
                        tables.append(_table(condition, named, environment))
            tables += [_fault_table(fault, algorithm.name, named) for fault in family.faults(limits)]
            parameters[algorithm.name] = named
            diagrams[algorithm.name] = Diagram.of_tables([len(p.values) for p in named], tables, automata)
        self.family = family
        self.problem = problem
        self.limits = limits
        self._number(parameters, diagrams)

    def _number(self, parameters: dict[str, tuple[Parameter, ...]], diagrams: dict[str, Diagram]) -> None:
        self.parameters = parameters
        self.diagrams = diagrams
        self.spans: list[Span] = []
        first = 0
        for algorithm, diagram in diagrams.items():
            self.spans.append(Span(algorithm=algorithm, first=first, count=len(diagram)))
            first += len(diagram)
        self._length = first
        self._pairs = {
            algorithm: sorted((p.name, layer, [(p.name, value) for value in p.values]) for layer, p in enumerate(named))
            for algorithm, named in parameters.items()
        }
        """Name, layer and (name, value) pairs of each parameter, sorted by name; all configurations share the pairs."""

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Configuration:
        if not 0 <= row < self._length:
            raise IndexError(row)
        return next(self.configurations([row]))

    def __iter__(self) -> Iterator[Configuration]:
        return self.configurations(range(self._length))

    def configurations(self, rows: Sequence[int] | Numbers) -> Iterator[Configuration]:
        """Yield the configurations of many rows, in order; faster than indexing one by one."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = np.asarray(rows[start : start + _ROWS_AT_ONCE])
            found: dict[int, Configuration] = {}
            for span, places, paths in self.paths(some):
                pairs = self._pairs[span.algorithm]
                for place, path in zip(places.tolist(), paths.tolist(), strict=True):
                    values = tuple(choices[path[layer]] for _, layer, choices in pairs)
                    found[place] = Configuration(algorithm=span.algorithm, values=values)
            yield from (found[place] for place in range(len(some)))

    def paths(self, rows: Numbers) -> Iterator[tuple[Span, NDArray[np.intp], Paths]]:
        """Yield for each algorithm among these rows its span, the indices of its rows, and their paths."""
        for span in self.spans:
            places = np.flatnonzero((rows >= span.first) & (rows < span.first + span.count))
            if len(places):
                yield span, places, self.diagrams[span.algorithm].paths(rows[places] - span.first)

    def rows(self, algorithm: str, paths: Paths) -> Numbers:
        """Return the row of each of n paths of an algorithm, shape (n,); -1 for a path that is not valid."""
        found = self.diagrams[algorithm].numbers(paths)
        return np.where(found < 0, found, found + self.span(algorithm).first)

    def span(self, algorithm: str) -> Span:
        """Return the rows of an algorithm."""
        return next(span for span in self.spans if span.algorithm == algorithm)

    def row_of(self, configuration: Configuration) -> int | None:
        """Return the row of a configuration, or None if it is not in the space."""
        parameters = self.parameters.get(configuration.algorithm)
        values = dict(configuration.values)
        if parameters is None or values.keys() != {p.name for p in parameters}:
            return None
        if any(values[p.name] not in p.values for p in parameters):
            return None
        return self.row_at(configuration.algorithm, [p.values.index(values[p.name]) for p in parameters])

    def row_at(self, algorithm: str, path: Sequence[int]) -> int | None:
        """Return the row of one path of an algorithm, or None if it is not valid."""
        [row] = self.rows(algorithm, np.array([path], dtype=np.uint16))
        return int(row) if row >= 0 else None

    def near_row(self, algorithm: str, indices: Mapping[str, int]) -> int | None:
        """Return a valid row near these indices into the values of an algorithm's parameters; None if it has no row.

        Greedy: each parameter in order takes the nearest value that some valid row combines with those chosen before.
        """
        parameters = self.parameters[algorithm]
        wanted, are_numeric = [indices[p.name] for p in parameters], [p.is_numeric for p in parameters]
        path = self.diagrams[algorithm].nearest(wanted, are_numeric)
        return None if path is None else self.row_at(algorithm, path)


def _fault_table(fault: Fault, algorithm: str, parameters: Sequence[Parameter]) -> tuple[list[int], NDArray[np.bool_]]:
    """Return the layer that a fault constrains, and which of its values the fault allows; see `_table`."""
    if fault.parameter:
        found = next(((layer, p) for layer, p in enumerate(parameters) if p.name == fault.parameter), None)
    else:
        found = 0, parameters[0]
    if found is None or fault.algorithm not in ("", algorithm):
        return [0], np.ones(len(parameters[0].values), dtype=bool)
    layer, parameter = found
    allowed = [bool(fault.parameter) and value != fault.value for value in parameter.values]
    return [layer], np.array(allowed, dtype=bool)


def _divided(condition: Expression, parameters: Sequence[Parameter]) -> Iterator[tuple[Expression, bool]]:
    """Yield a condition, or its parts if it relates many combinations; and whether a part still relates many."""
    parts = condition.conjuncts if _combinations(condition, parameters) > MOST_COMBINATIONS else [condition]
    yield from ((part, _combinations(part, parameters) > MOST_COMBINATIONS) for part in parts)


def examined(condition: Expression, parameters: Sequence[Parameter], environment: Mapping[str, Value]) -> None:
    """Raise ConfigurationError where a condition relates more combinations than a search space can tell apart."""
    for part, is_large in _divided(condition, parameters):
        if is_large:
            _chain(part, parameters, environment)


def _combinations(condition: Expression, parameters: Sequence[Parameter]) -> int:
    return prod(len(p.values) for p in parameters if p.name in condition.names)


def _chain(
    condition: Expression, parameters: Sequence[Parameter], environment: Mapping[str, Value]
) -> tuple[list[int], list[Numbers]]:
    """Return the layers of the parameters that a condition names, and its automaton. Raises ConfigurationError."""
    layers = [layer for layer, p in enumerate(parameters) if p.name in condition.names]
    named = {parameters[layer].name: parameters[layer].values for layer in layers}
    known = {name: value for name, value in environment.items() if name not in named}
    try:
        return layers, automaton(condition, [*named.items()], known)
    except ZeroDivisionError:  # by a size alone
        return layers, [np.zeros((0, len(values)), np.int64) for values in named.values()]


def _table(
    condition: Expression, parameters: Sequence[Parameter], environment: Mapping[str, Value]
) -> tuple[list[int], NDArray[np.bool_]]:
    """Return the layers of the parameters that a condition names, and a boolean table with an axis for each.

    The table says which combinations of their values the condition allows.
    """
    layers = [layer for layer, p in enumerate(parameters) if p.name in condition.names]
    shape = [len(parameters[layer].values) for layer in layers]
    values: dict[str, Any] = dict(environment)
    for axis, layer in enumerate(layers):
        choices = np.array(parameters[layer].values)
        values[parameters[layer].name] = choices.reshape([-1 if other == axis else 1 for other in range(len(layers))])
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            holds = condition(values)
            for is_defined in condition.definitions:  # arrays divide by 0 without an error
                holds = holds & is_defined(values)
    except ZeroDivisionError:  # by a size alone: it holds for no configuration, as in a lookup
        holds = False
    return layers, np.broadcast_to(np.asarray(holds, dtype=bool), shape)
