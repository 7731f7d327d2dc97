"""Ask, measure, tell, store: the search over one or many problems, its budgets, finals and resume."""

import math
import time
from collections.abc import Callable, Sequence

from autotune.errors import ProblemError
from autotune.family import Device, Problem, find_family
from autotune.profile import find_profile
from autotune.search.ahead import Builds, builders_for
from autotune.search.contract import Budget, Limits, Listener, Outcome
from autotune.search.one_problem import ProblemSearch
from autotune.space import SearchSpace
from autotune.store import Store
from autotune.trial import Request
from autotune.worker import Measures, Worker

__all__ = ["Budget", "Listener", "Outcome", "tune"]


def tune(
    device: Device,
    requests: Sequence[Request],
    store: Store,
    budget: Budget,
    listener: Listener,
    *,
    algorithms: Sequence[str] = (),
    seed: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
    worker: Measures | None = None,
    builds: Builds | None = None,
    jobs: int | None = None,
    retries_quarantined: bool = False,
) -> list[Outcome]:
    """Tune each request in turn; every trial is stored before the next begins.

    What was in flight when an earlier run was killed is quarantined, and not run unless `retries_quarantined`.
    `should_stop` is asked after each trial. Without a worker, one is started, and `jobs` processes that build in
    advance (by default one for each free core). A time budget is shared evenly among the requests still to come.
    Raises ProblemError before anything is measured when a problem does not fit the device, ConfigurationError
    for an unknown algorithm, WorkerError when the device cannot be used.
    """
    for request in requests:
        request.problem.check_device(device.limits)
        _check_algorithms(request.problem, device, algorithms)
    profile = find_profile(device)
    place = worker or Worker()
    if worker is None and builds is None:
        builds = builders_for(device, jobs)
    deadline = time.monotonic() + (budget.seconds if budget.seconds is not None else math.inf)
    outcomes: list[Outcome] = []
    try:
        for number, request in enumerate(requests):
            if outcomes and not outcomes[-1].is_finished:
                break
            share = (deadline - time.monotonic()) / (len(requests) - number)
            limits = Limits(
                trials=budget.trials,
                seconds=share,
                should_stop=should_stop,
                retries_quarantined=retries_quarantined,
            )
            store.quarantine_lost()
            space = SearchSpace(
                find_family(request.problem.family),
                request.problem,
                device.limits,
                algorithms=algorithms,
                overrides=profile.overrides_for(request.problem.family),
            )
            search = ProblemSearch(device, profile, request, space, store, place, listener, limits, seed, builds)
            listener.problem_started(request, number + 1, len(requests), len(space), search.resumed_trials)
            outcomes.append(search.run())
            listener.problem_finished(outcomes[-1])
    finally:
        place.close()
        if builds:
            builds.close()
    return outcomes


def _check_algorithms(problem: Problem, device: Device, algorithms: Sequence[str]) -> None:
    """Raises ConfigurationError for an unknown algorithm, ProblemError when none of those named can do the problem."""
    family = find_family(problem.family)
    for name in algorithms:
        family.algorithm(name)
    if algorithms and not len(SearchSpace(family, problem, device.limits, algorithms=algorithms)):
        names = " and ".join(algorithms)
        raise ProblemError(
            f"{names}: no valid configuration for {problem.label}", hint="leave the shape out, or name other algorithms"
        )
