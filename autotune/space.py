"""The search space: every valid configuration of a family for one problem on one device."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.family import Configuration, Constraint, DeviceLimits, KernelFamily, Parameter, Problem, Value


class SearchSpace:
    """Every valid configuration of a family for one problem on one device, in a fixed order.

    `columns[algorithm][parameter]` holds indices into the parameter's values, one row a configuration;
    rows of all algorithms are numbered one after the other.
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
        self.family = family
        self.problem = problem
        self.limits = limits
        chosen = [family.algorithm(name) for name in algorithms] or list(family.algorithms)
        environment: dict[str, Value] = {**limits.constraint_values(), **problem.constraint_values()}
        self.parameters: dict[str, tuple[Parameter, ...]] = {}
        self.columns: dict[str, dict[str, NDArray[np.uint8]]] = {}
        self._pairs: dict[str, list[tuple[str, list[tuple[str, Value]]]]] = {}
        """What configurations are made of, shared by them all: by name, and the number of the value."""
        self._first_row: dict[str, int] = {}
        self._length = 0
        for algorithm in chosen:
            parameters = tuple(
                dataclasses.replace(p, values=(overrides or {}).get(p.name, p.values)) for p in algorithm.parameters
            )
            columns = _solve(parameters, algorithm.constraints, environment)
            self.parameters[algorithm.name] = parameters
            self._pairs[algorithm.name] = sorted((p.name, [(p.name, value) for value in p.values]) for p in parameters)
            self.columns[algorithm.name] = columns
            self._first_row[algorithm.name] = self._length
            self._length += len(next(iter(columns.values())))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Configuration:
        if not 0 <= row < self._length:
            raise IndexError(row)
        algorithm = [name for name, first in self._first_row.items() if first <= row][-1]
        while not len(next(iter(self.columns[algorithm].values()))):  # an algorithm without valid rows
            algorithm = [name for name, first in self._first_row.items() if first <= row and name != algorithm][-1]
        local = row - self._first_row[algorithm]
        columns = self.columns[algorithm]
        values = tuple(pairs[columns[name][local]] for name, pairs in self._pairs[algorithm])
        return Configuration(algorithm=algorithm, values=values)

    def first_row(self, algorithm: str) -> int:
        """Where the rows of an algorithm begin."""
        return self._first_row[algorithm]

    def __iter__(self) -> Iterator[Configuration]:
        return (self[row] for row in range(self._length))

    def row_of(self, configuration: Configuration) -> int | None:
        """The number of a configuration, or None when it is not in the space."""
        columns = self.columns.get(configuration.algorithm)
        if columns is None:
            return None
        values = dict(configuration.values)
        parameters = self.parameters[configuration.algorithm]
        if values.keys() != columns.keys():
            return None
        mask = np.ones(len(next(iter(columns.values()))), dtype=bool)
        for parameter in parameters:
            if values[parameter.name] not in parameter.values:
                return None
            mask &= columns[parameter.name] == parameter.values.index(values[parameter.name])
        rows = np.flatnonzero(mask)
        return self._first_row[configuration.algorithm] + int(rows[0]) if len(rows) else None


def _solve(
    parameters: Sequence[Parameter], constraints: Sequence[Constraint], environment: Mapping[str, Value]
) -> dict[str, NDArray[np.uint8]]:
    """Extend a table by one parameter at a time; apply each constraint as soon as its names are bound."""
    choices = {p.name: np.array(p.values) for p in parameters}
    columns: dict[str, NDArray[np.uint8]] = {}
    pending = list(constraints)
    rows = 1
    for parameter in _by_constraint_readiness(parameters, pending):
        count = len(parameter.values)
        columns = {name: np.repeat(column, count) for name, column in columns.items()}
        columns[parameter.name] = np.tile(np.arange(count, dtype=np.uint8), rows)
        rows *= count
        ready = [c for c in pending if not (c.condition.names & choices.keys()) - columns.keys()]
        pending = [c for c in pending if c not in ready]
        for constraint in ready:
            used = sorted(constraint.condition.names & columns.keys())
            keep = _allowed(constraint, {name: (choices[name], columns[name]) for name in used}, environment, rows)
            columns = {name: column[keep] for name, column in columns.items()}
            rows = int(keep.sum())
    return {p.name: columns[p.name] for p in parameters}


def _allowed(
    constraint: Constraint,
    used: Mapping[str, tuple[NDArray[Any], NDArray[np.uint8]]],
    environment: Mapping[str, Value],
    rows: int,
) -> NDArray[np.bool_]:
    """Which rows a constraint allows; `used` holds the values and the column of each parameter that it names.

    A table of all combinations of these is mostly far shorter than the rows, which then look up what it says.
    """
    shape = tuple(len(choices) for choices, _ in used.values())
    if not shape or math.prod(shape) >= rows:
        values = {name: choices[column] for name, (choices, column) in used.items()}
        return _holds(constraint, {**environment, **values}, rows)
    grid = np.indices(shape, dtype=np.uint8).reshape(len(shape), -1)
    values = {name: choices[indices] for (name, (choices, _)), indices in zip(used.items(), grid, strict=True)}
    table = _holds(constraint, {**environment, **values}, grid.shape[1])
    place: NDArray[Any] = np.zeros(rows, dtype=np.uint16 if table.size <= 2**16 else np.uint32)
    for count, (_, column) in zip(shape, used.values(), strict=True):
        place *= count
        place += column
    allowed: NDArray[np.bool_] = table[place]
    return allowed


def _holds(constraint: Constraint, values: Mapping[str, Any], rows: int) -> NDArray[np.bool_]:
    return np.broadcast_to(np.asarray(constraint.condition(values), dtype=bool), (rows,))


def _by_constraint_readiness(parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> list[Parameter]:
    """Order in which constraints can be applied soonest, so that intermediate tables stay small."""
    remaining = {p.name: p for p in parameters}
    needs = [set(c.condition.names & remaining.keys()) for c in constraints]
    ordered: list[Parameter] = []
    while remaining:
        open_needs = [need for need in (n & remaining.keys() for n in needs) if need]
        smallest = min(open_needs, key=len, default=set(remaining))
        for name in [name for name in remaining if name in smallest]:
            ordered.append(remaining.pop(name))
    return ordered
