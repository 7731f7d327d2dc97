"""The selection of configurations to check kernels on, also by `scripts/gate` on a device of your own."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ProblemError
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.diagram import MOST_PATHS, Diagram, Numbers, Paths
from autotune.space.family import Algorithm, KernelFamily
from autotune.space.search_space import SearchSpace


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A configuration to check on a problem."""

    problem: Problem
    configuration: Configuration


def spaces_to_check(
    family: KernelFamily,
    algorithm: str,
    limits: DeviceLimits,
    overrides: Mapping[str, tuple[Value, ...]] | None = None,
) -> list[SearchSpace]:
    """Return the search spaces of one algorithm for every example problem that the device can run.

    A CPU is also treated as a GPU with small work-groups, so that it runs configurations valid only for GPUs.
    """
    variants = [limits]
    if limits.is_cpu:
        group = min(limits.max_work_group_size, 256)
        variants.append(dataclasses.replace(limits, is_cpu=False, compute_units=64, max_work_group_size=group))
    problems = [problem for problem in family.examples() if _fits(problem, limits)]
    return [
        SearchSpace(family, problem, variant, algorithms=[algorithm], overrides=overrides)
        for problem in problems
        for variant in variants
    ]


def occurring(space: SearchSpace, algorithm: str, name: str) -> list[Value]:
    """Return the values of a parameter that occur in valid configurations of the algorithm."""
    [(layer, parameter)] = [(i, p) for i, p in enumerate(space.parameters[algorithm]) if p.name == name]
    return [parameter.values[number] for number in values_of(space.diagrams[algorithm], layer)]


def values_of(diagram: Diagram, layer: int) -> list[int]:
    """Return the indices of the values that occur in a layer of some path."""
    return [int(value) for value in np.flatnonzero((diagram.edges[layer] >= 0).any(axis=0))]


def values_left_out(algorithm: Algorithm, spaces: Sequence[SearchSpace]) -> list[str]:
    """Return declared values, as ``name=value``, that do not occur in any valid configuration of these spaces."""
    parameters = spaces[0].parameters[algorithm.name] if spaces else algorithm.parameters
    found = {p.name: {value for s in spaces for value in occurring(s, algorithm.name, p.name)} for p in parameters}
    return [f"{p.name}={value}" for p in parameters for value in p.values if value not in found[p.name]]


def covering_sample(
    spaces: Sequence[SearchSpace],
    algorithm: str,
    *,
    strength: int = 2,
    each_problem: bool = False,
    cost: Callable[[Sample], float] | None = None,
    seed: int = 0,
) -> list[Sample]:
    """Return few configurations that together have every pair of parameter values valid in some space (pairwise cover).

    With a `strength` of 1 they have every single value. Every problem that has valid configurations occurs; with
    `each_problem` the problem counts as one more parameter. The sample is spread over the problems as evenly as few
    configurations allow, and depends on `seed`. The spaces must have the same parameters. With a `cost` of 1 or more,
    expensive configurations are used only for pairs that need them, cheap ones otherwise.
    """
    spaces = [space for space in spaces if len(space)]
    if not spaces:
        return []
    columns = _column_pairs(len(spaces[0].parameters[algorithm]), strength, each_problem)
    return _Cover(spaces, algorithm, columns, seed).samples(cost)


def _column_pairs(parameters: int, strength: int, each_problem: bool) -> list[tuple[int, int]]:
    """Return the pairs of columns to cover; a column paired with itself stands for its single values.

    The last column is the problem.
    """
    columns = range(parameters)
    pairs = itertools.combinations(columns, 2) if strength > 1 else zip(columns, columns, strict=True)
    with_problem = columns if each_problem and strength > 1 else ()
    return [(parameters, parameters), *pairs, *((column, parameters) for column in with_problem)]


class _Cover:
    """Greedy cover: repeatedly draws a missing pair and takes, of some rows with it, the one that covers most per cost.

    The values of all parameters, then the problems, are numbered consecutively. A row consists of the numbers of a
    configuration's values and of its problem.
    """

    DRAWN_ROWS = 5000
    """Random rows kept of each space, besides one for each pair that occurs."""
    COMPARED_ROWS = 1500
    EVENNESS = 4
    """The smaller, the more rows of rarely used problems are preferred to rows that cover more pairs."""

    def __init__(
        self, spaces: Sequence[SearchSpace], algorithm: str, columns: Sequence[tuple[int, int]], seed: int
    ) -> None:
        parameters = spaces[0].parameters[algorithm]
        assert all(space.parameters[algorithm] == parameters for space in spaces)
        self._draw = np.random.default_rng(seed)
        self._algorithm = algorithm
        self._problems = list(dict.fromkeys(space.problem for space in spaces))
        self._values = [(p.name, value) for p in parameters for value in p.values]
        sizes = [*(len(p.values) for p in parameters), len(self._problems)]
        self._firsts = np.cumsum([0, *sizes[:-1]])
        self._column_of = np.repeat(np.arange(len(sizes)), sizes)
        self._left, self._right = np.array(columns).T
        are_wanted = np.zeros((len(sizes), len(sizes)), dtype=bool)
        are_wanted[self._left, self._right] = True
        self._is_wanted = are_wanted[np.ix_(self._column_of, self._column_of)]
        self._missing = np.zeros_like(self._is_wanted)
        self._rows = np.concatenate([self._reduced(space) for space in spaces])

    def _reduced(self, space: SearchSpace) -> Paths:
        """Return random rows of a space and one row for each pair; mark the pairs that occur as missing."""
        diagram, count = space.diagrams[self._algorithm], len(self._values)
        problem = count + self._problems.index(space.problem)
        path_of = np.full(self._missing.shape, -1)
        path_of[:count, :count] = pairs_of(diagram)
        path_of[:count, problem] = path_of[:count, :count].diagonal()
        path_of[problem, problem] = 0
        occurs = self._is_wanted & (path_of >= 0)
        self._missing |= occurs
        drawn = self._draw.choice(len(diagram), min(len(diagram), self.DRAWN_ROWS), replace=False)
        paths = diagram.paths(np.unique(np.concatenate([drawn, path_of[occurs]])))
        return np.insert(paths + self._firsts[:-1].astype(np.uint16), paths.shape[1], problem, axis=1)

    def samples(self, cost: Callable[[Sample], float] | None) -> list[Sample]:
        uses = np.zeros(len(self._problems))
        found = []
        while self._missing.any():
            pair = self._draw.choice(np.argwhere(self._missing))
            rows = self._rows[(self._rows[:, self._column_of[pair]] == pair).all(axis=1)]
            rows = rows[self._draw.permutation(len(rows))[: self.COMPARED_ROWS]]
            gain = self._missing[rows[:, self._left], rows[:, self._right]].sum(axis=1)
            evenness = self.EVENNESS + uses[rows[:, -1] - len(self._values)]
            best = rows[self._best(rows, gain, evenness, cost)]
            self._missing[best[self._left], best[self._right]] = False
            uses[best[-1] - len(self._values)] += 1
            found.append(self._sample(best))
        return found

    def _best(
        self, rows: Paths, gain: NDArray[Any], evenness: NDArray[Any], cost: Callable[[Sample], float] | None
    ) -> int:
        """Return the row with the most gain per cost, of few of which the cost is asked: each is at least 1."""
        best, most = 0, -1.0
        for row in np.argsort(-gain / evenness, kind="stable").tolist():
            if gain[row] / evenness[row] < most:
                break
            worth = gain[row] / ((cost(self._sample(rows[row])) if cost else 1.0) * evenness[row])
            if worth > most or (worth == most and row < best):
                best, most = row, worth
        return best

    def _sample(self, row: NDArray[Any]) -> Sample:
        *values, problem = row.tolist()
        configuration = Configuration.of(self._algorithm, **dict(self._values[value] for value in values))
        return Sample(problem=self._problems[problem - len(self._values)], configuration=configuration)


def pairs_of(diagram: Diagram) -> Numbers:
    """Return for every two values of a diagram the number of a path that has both, negative if there is none.

    The result is square; its rows and columns are the values of all layers, one layer after the other.
    """
    found = np.full((sum(diagram.sizes), sum(diagram.sizes)), -MOST_PATHS)
    # reached[value, state]: largest number of a partial path to the state through the value; last row: any value.
    reached = np.full((len(found) + 1, 1), -MOST_PATHS)
    reached[-1] = 0
    first = 0
    for targets, starts, size in zip(diagram.edges, diagram.starts, diagram.sizes, strict=True):
        here = slice(first, first + size)
        states, values = np.nonzero(targets >= 0)
        ends = targets[states, values]
        count = int(ends.max(initial=0)) + 1
        through = reached[:, states] + starts[states, values]
        largest = _largest(through, values, size)
        found[:, here] = largest[:-1]
        np.fill_diagonal(found[here, here], largest[-1])
        reached = _largest(through, ends, count)
        reached[here] = _largest(through[-1:], values * count + ends, size * count).reshape(size, count)
        first += size
    return np.maximum(found, found.T)


def _largest(lines: Numbers, kinds: Numbers, count: int) -> Numbers:
    """Return, for each row and each kind below `count`, the largest element of that kind.

    `lines` has shape (rows, n), `kinds` shape (n,), the result (rows, count). Kinds without elements get -MOST_PATHS.
    """
    order = np.argsort(kinds, kind="stable")
    found, firsts = np.unique(kinds[order], return_index=True)
    largest = np.full((len(lines), count), -MOST_PATHS)
    if len(found):
        largest[:, found] = np.maximum.reduceat(lines[:, order], firsts, axis=1)
    return largest


def _fits(problem: Problem, limits: DeviceLimits) -> bool:
    try:
        problem.check_device(limits)
    except ProblemError:
        return False
    return True
