"""What tests are made of: stand-ins for devices, and the configurations at which kernels are checked.

Also for trying search strategies without a device, and for checking all kernels on a device of one's own.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.child import Leave
from autotune.diagram import Numbers, Paths
from autotune.errors import ProblemError
from autotune.family import Algorithm, KernelFamily
from autotune.problem import Configuration, Device, DeviceLimits, Problem, Value
from autotune.search import Outcome, Total
from autotune.space import SearchSpace
from autotune.trial import Build, BuildJob, BuildState, Job, Measurement, Request, Trial, TrialState


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
    """The search spaces of one algorithm for every example that the device can run.

    A CPU is checked as a GPU too, one of small work-groups, so that it runs what only a GPU would choose.
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


def values_left_out(algorithm: Algorithm, spaces: Sequence[SearchSpace]) -> list[str]:
    """Declared values, as ``name=value``, that no valid configuration of these spaces has."""
    parameters = spaces[0].parameters[algorithm.name] if spaces else algorithm.parameters
    found = {p.name: {value for s in spaces for value in s.occurring(algorithm.name, p.name)} for p in parameters}
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
    """Few configurations that have every pair of parameter values which any valid configuration of `spaces` has.

    A `strength` of 1 is content with every single value. Every problem that has valid configurations occurs; with
    `each_problem` the problem counts as one more parameter. The sample is spread over the problems as evenly as goes
    with few configurations, and differs with `seed`. The spaces must have the same parameters. With a `cost`, what is
    dear occurs where its values must, and cheap ones are filled in where any would do.
    """
    spaces = [space for space in spaces if len(space)]
    if not spaces:
        return []
    groups = _column_groups(len(spaces[0].parameters[algorithm]), strength, each_problem)
    return _Cover(spaces, algorithm, groups, seed).samples(cost)


def _column_groups(parameters: int, strength: int, each_problem: bool) -> list[tuple[int, ...]]:
    """The columns whose combinations of values are to occur; the last column is the problem."""
    groups: list[tuple[int, ...]] = [(parameters,), *itertools.combinations(range(parameters), strength)]
    if each_problem and strength > 1:
        groups += [(*group, parameters) for group in itertools.combinations(range(parameters), strength - 1)]
    return groups


class _Cover:
    """Greedy: again and again, of some rows that have a random combination still missing, the row with most such for
    its cost.

    A row is the value numbers of a configuration, then the number of its problem. A combination of values in some
    columns has a code, its place in one long array of flags.
    """

    DRAWN_ROWS = 5000
    """Rows kept of each space, besides one for each combination that occurs."""
    COMPARED_ROWS = 400
    ROWS_AT_ONCE = 2**15
    """Fit the caches of a processor."""
    EVENNESS = 4
    """The smaller, the more a row of a problem that has come less often is preferred to one with more combinations."""

    def __init__(
        self, spaces: Sequence[SearchSpace], algorithm: str, groups: Sequence[tuple[int, ...]], seed: int
    ) -> None:
        self._draw = np.random.default_rng(seed)
        self._algorithm = algorithm
        self._problems = list(dict.fromkeys(space.problem for space in spaces))
        self._parameters = spaces[0].parameters[algorithm]
        assert all(space.parameters[algorithm] == self._parameters for space in spaces)
        self._sizes = [len(p.values) for p in self._parameters] + [len(self._problems)]
        self._groups = groups
        self._starts = np.cumsum([0, *(np.prod([self._sizes[c] for c in group]) for group in groups)])
        self._missing = np.zeros(self._starts[-1], dtype=bool)
        self._rows = np.concatenate([self._reduced(space) for space in spaces])

    def _reduced(self, space: SearchSpace) -> Paths:
        """Some random rows of a space, and one of each combination; notes which combinations there are."""
        row_of = np.full(len(self._missing), -1)
        for first in range(0, len(space), self.ROWS_AT_ONCE):
            numbers = np.arange(first, min(first + self.ROWS_AT_ONCE, len(space)))
            for codes in self._codes(list(self._lines(space, numbers).T)):
                row_of[codes] = numbers
        self._missing |= row_of >= 0
        drawn = self._draw.choice(len(space), min(len(space), self.DRAWN_ROWS), replace=False)
        return self._lines(space, np.unique(np.concatenate([drawn, row_of[row_of >= 0]])))

    def _lines(self, space: SearchSpace, rows: Numbers) -> Paths:
        """The value numbers of each row, and the number of the problem."""
        paths = space.diagrams[self._algorithm].paths(rows)
        return np.insert(paths, paths.shape[1], self._problems.index(space.problem), axis=1)

    def _codes(self, columns: Sequence[NDArray[np.uint16]]) -> Iterator[NDArray[np.int64]]:
        """The code of every row, for one group of columns after the other."""
        for start, group in zip(self._starts, self._groups, strict=False):
            codes = columns[group[0]].astype(np.int64)
            for column in group[1:]:
                codes *= self._sizes[column]
                codes += columns[column]
            codes += start
            yield codes

    def samples(self, cost: Callable[[Sample], float] | None) -> list[Sample]:
        uses = np.zeros(len(self._problems))
        found = []
        while self._missing.any():
            rows = self._rows_with(int(self._draw.choice(np.flatnonzero(self._missing))))
            rows = rows[self._draw.permutation(len(rows))[: self.COMPARED_ROWS]]
            codes = np.stack(list(self._codes(list(rows.T))), axis=1)
            gain = self._missing[codes].sum(axis=1)
            costs = np.array([cost(self._sample(row)) if cost else 1.0 for row in rows])
            best = int((gain / (costs * (self.EVENNESS + uses[rows[:, -1]]))).argmax())
            self._missing[codes[best]] = False
            uses[rows[best, -1]] += 1
            found.append(self._sample(rows[best]))
        return found

    def _rows_with(self, code: int) -> Paths:
        number = int(np.searchsorted(self._starts, code, side="right")) - 1
        rest = code - int(self._starts[number])
        mask = np.ones(len(self._rows), dtype=bool)
        for column in reversed(self._groups[number]):
            rest, value = divmod(rest, self._sizes[column])
            mask &= self._rows[:, column] == value
        return self._rows[mask]

    def _sample(self, row: NDArray[Any]) -> Sample:
        values = {p.name: p.values[int(number)] for p, number in zip(self._parameters, row, strict=False)}
        return Sample(problem=self._problems[int(row[-1])], configuration=Configuration.of(self._algorithm, **values))


def _fits(problem: Problem, limits: DeviceLimits) -> bool:
    try:
        problem.check_device(limits)
    except ProblemError:
        return False
    return True


INVENTED_PROCESSOR = Device(
    slug="pocl-invented",
    vendor="none",
    model="invented",
    family="cpu",
    selector="0:0",
    driver="1.0",
    limits=DeviceLimits(
        max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 1024), is_cpu=True, max_allocation_bytes=2**28
    ),
)
"""A device that nothing is asked of but its name and limits."""


class Silence:
    """A listener of a search that says nothing."""

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None: ...

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None: ...

    def device_drifted(self, request: Request, slowdown: float, rest_s: float) -> None: ...

    def gain_estimated(self, request: Request, gain_left: float) -> None: ...

    def share_started(self, request: Request, total: Total) -> None: ...

    def finals_started(self, request: Request, finalists: int) -> None: ...

    def problem_finished(self, outcome: Outcome) -> None: ...


class FakeWorker:
    """Measures by a formula: a time in nanoseconds, or the state in which a configuration ends."""

    def __init__(self, outcome: Callable[[Job], float | TrialState]) -> None:
        self._outcome = outcome
        self.jobs: list[Job] = []
        self.is_closed = False

    def run(self, job: Job, leave: Leave | None = None) -> Trial:
        if leave:
            leave.result()
        self.jobs.append(job)
        outcome = self._outcome(job)
        if isinstance(outcome, TrialState):
            return Trial(configuration=job.configuration, state=outcome, message="as told", seed=job.seed)
        measurement = Measurement(
            time_ns=outcome, samples_ns=(outcome,) * job.samples, calls_per_sample=1, timer=job.timer
        )
        return Trial(configuration=job.configuration, state=TrialState.COMPLETE, measurement=measurement, seed=job.seed)

    def close(self) -> None:
        self.is_closed = True

    @property
    def measured(self) -> list[Configuration]:
        """Configurations in the order in which they were measured."""
        return [job.configuration for job in self.jobs]


class FakeBuilds:
    """Builds by a formula: the state in which a source ends, and which of the builds, counted from 0, end at all."""

    def __init__(
        self,
        size: int,
        outcome: Callable[[BuildJob], BuildState] = lambda _: BuildState.BUILT,
        *,
        ends: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self.size = size
        self.jobs: list[BuildJob] = []
        self.futures: list[Future[Build]] = []
        self.is_closed = False
        self._outcome = outcome
        self._ends = ends

    def submit(self, job: BuildJob) -> Future[Build]:
        future: Future[Build] = Future()
        if self._ends(len(self.jobs)):
            state = self._outcome(job)
            message = "" if state is BuildState.BUILT else "as told"
            future.set_result(Build(source_hash=job.source_hash, state=state, message=message, build_ns=1e6))
        self.jobs.append(job)
        self.futures.append(future)
        return future

    def close(self) -> None:
        self.is_closed = True
