"""Feature vectors of configurations, for a model of run times.

The features do not depend on a particular kernel: the logarithm of each numeric parameter; with less weight an
indicator of each single value, since one may stand out; the largest power of two that divides each value, because
sub-groups, memory transactions and banks of local memory come in powers of two; and the products and ratios of any two
parameters, because work-group sizes, outputs of a work-item and tiles in local memory are such products (sums and
differences of the logarithms). The family's own features are added. All are scaled by how much they vary over the
space.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.model.configuration import Configuration
from autotune.space.diagram import Paths
from autotune.space.family import Parameter
from autotune.space.search_space import SearchSpace

Matrix = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Columns that share a prior; `weight` is their expected part of the squared distance of two configurations."""

    columns: NDArray[np.intp]
    weight: float


class Features:
    """Features of each configuration, with mean 0 and standard deviation 1 over the space, computed on request."""

    SAMPLE = 4096
    """Number of configurations from which mean and deviation of each feature are estimated."""
    KEPT_NUMBERS = 2_000_000
    """A table of features with at most this many elements is computed once and kept."""
    RARE = 0.35
    """Indicators of rare values are scaled by at least this deviation, so that they are not scaled up to the others."""
    MAIN_WEIGHT, VALUE_WEIGHT, DERIVED_WEIGHT = 1.0, 0.03, 0.5
    """Prior weights of the groups; a large VALUE_WEIGHT makes a space of many parameters slow to learn."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._environment: Mapping[str, Any] = {
            **space.limits.constraint_values(),
            **space.problem.constraint_values(),
        }
        self._columns: dict[str, tuple[int, int]] = {}
        """By name of the column: its index among all columns, and its group."""
        self._pairs: dict[str, list[tuple[str, str]]] = {}
        for algorithm, parameters in space.parameters.items():
            self._name_columns(algorithm, parameters)
        self._all = np.array([group for _, group in self._columns.values()])
        self._choose_columns()
        self._sums = {
            algorithm: _Sums(*self._parts(algorithm, parameters)) for algorithm, parameters in space.parameters.items()
        }
        self._table: NDArray[np.float32] | None = None
        if len(space) * self.count <= self.KEPT_NUMBERS:
            self._table = self._compute(np.arange(len(space)))

    def of(self, rows: Rows) -> NDArray[np.float32]:
        """Return the features of n rows, shape (n, features); features of other algorithms are 0."""
        return self._compute(rows) if self._table is None else self._table[rows]

    def of_configurations(self, configurations: Sequence[Configuration]) -> NDArray[np.float32]:
        """Return the features of n configurations, shape (n, features).

        They must have this space's algorithms and parameters, but need not be valid here.
        """
        out = np.zeros((len(configurations), len(self._columns)))
        for algorithm, parameters in self._space.parameters.items():
            lines = np.array([i for i, c in enumerate(configurations) if c.algorithm == algorithm], dtype=np.intp)
            if len(lines):
                values = {p.name: np.array([configurations[i][p.name] for i in lines]) for p in parameters}
                self._fill(out, lines, algorithm, values)
        return self._scaled(out).astype(np.float32)

    def can_describe(self, configuration: Configuration) -> bool:
        """Return whether it has an algorithm of this space and exactly that algorithm's parameters.

        Where these are numbers, so must its values be: a kernel file may have named them by words before.
        """
        parameters, values = self._space.parameters.get(configuration.algorithm), dict(configuration.values)
        if parameters is None or {p.name for p in parameters} != values.keys():
            return False
        return all(isinstance(values[p.name], int) for p in parameters if p.is_numeric)

    def _name_columns(self, algorithm: str, parameters: Sequence[Parameter]) -> None:
        def add(name: str, group: int) -> None:
            self._columns.setdefault(name, (len(self._columns), group))

        if len(self._space.parameters) > 1:
            add(f"is {algorithm}", _MAIN)
        for parameter in parameters:
            if parameter.is_numeric:
                add(parameter.name, _MAIN)
            if not parameter.is_numeric or len(parameter.values) > 2:
                for name in _value_names(parameter):
                    add(name, _VALUE if parameter.is_numeric else _MAIN)
            if _has_odd_factors(parameter):
                add(f"power of two in {parameter.name}", _DERIVED)
        ranging = [p.name for p in parameters if p.is_numeric and len(p.values) > 2]
        self._pairs[algorithm] = [(a, b) for i, a in enumerate(ranging) for b in ranging[:i]]
        for a, b in self._pairs[algorithm]:
            add(f"{a} * {b}", _DERIVED)
            add(f"{a} / {b}", _DERIVED)
        for feature in self._space.family.algorithm(algorithm).features:
            add(f"feature {feature.text}", _DERIVED)

    def _choose_columns(self) -> None:
        """Estimate means and scales from a sample of the space; drop columns that do not vary."""
        count = len(self._space)
        rows = np.arange(count) if count <= self.SAMPLE else np.random.default_rng(0).integers(0, count, self.SAMPLE)
        self._kept = np.arange(len(self._columns))
        self._mean, self._factor = np.zeros(len(self._kept)), np.ones(len(self._kept))
        raw = self._slowly(rows)
        mean, deviation = raw.mean(axis=0), raw.std(axis=0)
        self._kept = np.flatnonzero(deviation > 1e-6)
        self._places = np.full(len(self._columns), -1)
        """Index of each column among those kept, -1 if dropped."""
        self._places[self._kept] = np.arange(len(self._kept))
        groups = self._all[self._kept]
        deviation = deviation[self._kept]
        self._mean = mean[self._kept]
        self._factor = 1.0 / np.where(groups == _VALUE, np.maximum(deviation, self.RARE), deviation)
        self.count = len(self._kept)
        weights = {_MAIN: self.MAIN_WEIGHT, _VALUE: self.VALUE_WEIGHT, _DERIVED: self.DERIVED_WEIGHT}
        self.groups = [
            Group(columns=np.flatnonzero(groups == group), weight=weight) for group, weight in weights.items()
        ]

    def _compute(self, rows: Rows) -> NDArray[np.float32]:
        out = np.zeros((len(rows), self.count), dtype=np.float32)
        for span, lines, paths in self._space.paths(rows):
            found = self._sums[span.algorithm].of(paths)
            self._add_features(found, span.algorithm, paths)
            if len(lines) == len(rows):
                return found
            out[lines] = found
        return out

    def _add_features(self, out: NDArray[np.float32], algorithm: str, paths: Paths) -> None:
        """Add the features that the family declares to their columns of `out`."""
        choices = {p.name: (layer, np.array(p.values)) for layer, p in enumerate(self._space.parameters[algorithm])}
        for feature in self._space.family.algorithm(algorithm).features:
            place = self._places[self._columns[f"feature {feature.text}"][0]]
            if place >= 0:
                named = {
                    name: values[paths[:, layer]] for name, (layer, values) in choices.items() if name in feature.names
                }
                number = _feature_number(feature({**self._environment, **named}))
                out[:, place] += number * self._factor[place]

    def _parts(self, algorithm: str, parameters: Sequence[Parameter]) -> tuple[Matrix, list[Matrix]]:
        """Return the summands of the columns: those common to an algorithm, and those of each value of each parameter.

        The first has shape (features,); for each parameter there is a matrix of shape (values, features).
        """
        base = np.zeros(len(self._columns))
        if len(self._space.parameters) > 1:
            base[self._columns[f"is {algorithm}"][0]] = 1.0
        parts = []
        for parameter in parameters:
            part = np.zeros((len(parameter.values), len(self._columns)))
            for name, numbers in self._summands(algorithm, parameter, np.array(parameter.values)):
                part[:, self._columns[name][0]] = numbers
            parts.append(part[:, self._kept] * self._factor)
        return self._scaled(base[None, :])[0], parts

    def _summands(self, algorithm: str, parameter: Parameter, given: Any) -> Iterator[tuple[str, Any]]:
        """Yield the name of each column to which a parameter adds, and what its `given` values add to it."""
        if parameter.is_numeric:
            logs = _logarithm(given, has_zero=min(parameter.values) == 0)
            yield parameter.name, logs
            for a, b in self._pairs[algorithm]:
                if parameter.name in (a, b):
                    yield f"{a} * {b}", logs
                    yield f"{a} / {b}", logs if parameter.name == a else -logs
        if not parameter.is_numeric or len(parameter.values) > 2:
            for value, name in zip(parameter.values, _value_names(parameter), strict=True):
                yield name, given == value
        if _has_odd_factors(parameter):
            yield f"power of two in {parameter.name}", np.log2(np.maximum(given & -given, 1))

    def _slowly(self, rows: Rows) -> Matrix:
        out = np.zeros((len(rows), len(self._columns)))
        for span, lines, paths in self._space.paths(rows):
            parameters = self._space.parameters[span.algorithm]
            values = {p.name: np.array(p.values)[paths[:, layer]] for layer, p in enumerate(parameters)}
            self._fill(out, lines, span.algorithm, values)
        return self._scaled(out)

    def _scaled(self, out: Matrix) -> Matrix:
        scaled: Matrix = (out[:, self._kept] - self._mean) * self._factor
        return scaled

    def _fill(self, out: Matrix, lines: NDArray[np.intp], algorithm: str, values: Mapping[str, Any]) -> None:
        if len(self._space.parameters) > 1:
            out[lines, self._columns[f"is {algorithm}"][0]] = 1.0
        for parameter in self._space.parameters[algorithm]:
            for name, numbers in self._summands(algorithm, parameter, values[parameter.name]):
                out[lines, self._columns[name][0]] += numbers
        for feature in self._space.family.algorithm(algorithm).features:
            numbers = _feature_number(feature({**self._environment, **values}))
            out[lines, self._columns[f"feature {feature.text}"][0]] = numbers


class _Sums:
    """Sums a base and one row per parameter with a few table look-ups: parameters with few values share a table."""

    LARGEST_TABLE = 1024

    def __init__(self, base: Matrix, parts: Sequence[Matrix]) -> None:
        self._tables: list[tuple[list[tuple[int, int]], NDArray[np.float32]]] = []
        layers: list[tuple[int, int]] = []
        table = base[None, :]
        for layer, part in enumerate(parts):
            if len(table) * len(part) > self.LARGEST_TABLE:
                self._tables.append((layers, table.astype(np.float32)))
                layers, table = [], np.zeros((1, len(base)))
            layers = [*layers, (layer, len(part))]
            table = (table[:, None, :] + part[None, :, :]).reshape(len(table) * len(part), len(base))
        self._tables.append((layers, table.astype(np.float32)))

    def of(self, paths: Paths) -> NDArray[np.float32]:
        """Return the sums for paths of shape (n, parameters), shape (n, features)."""
        out: NDArray[np.float32] | None = None
        for layers, table in self._tables:
            place = np.zeros(len(paths), dtype=np.int64)
            for layer, count in layers:
                place *= count
                place += paths[:, layer]
            out = table[place] if out is None else np.add(out, table[place], out=out)
        assert out is not None
        return out


def _feature_number(value: Any) -> Matrix:
    return np.asarray(np.log2(1.0 + np.maximum(np.asarray(value, dtype=np.float64), 0.0)))


_MAIN, _VALUE, _DERIVED = range(3)


def _value_names(parameter: Parameter) -> list[str]:
    return [f"{parameter.name}={value}" for value in parameter.values]


def _has_odd_factors(parameter: Parameter) -> bool:
    """Return whether its values, more than two, are whole numbers and not only powers of two."""
    values = parameter.values
    return parameter.is_numeric and len(values) > 2 and any(int(value) & (int(value) - 1) for value in values)


def _logarithm(values: Any, *, has_zero: bool) -> Matrix:
    """Return base-2 logarithms, of value + 1 if zero is among the choices; negative values stay as they are."""
    numbers = np.asarray(values, dtype=np.float64)
    shifted = numbers + 1.0 if has_zero else numbers
    return np.where(shifted > 0, np.log2(np.maximum(shifted, 2.0**-30)), shifted)
