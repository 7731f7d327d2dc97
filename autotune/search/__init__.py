"""Tuning: the search of one or many problems within budgets, its finals, and resuming from the ledger."""

import math
from collections.abc import Callable, Iterator, Sequence

from autotune.device.profile import find_profile
from autotune.errors import ProblemError, UsageError
from autotune.kernels import find_family
from autotune.measure.worker import Measures, Worker
from autotune.model.device import Device
from autotune.model.events import Listener, Outcome, ProblemFinished, ProblemStarted
from autotune.model.problem import Problem
from autotune.model.trial import Request
from autotune.propose.samplers import SamplerChoice
from autotune.search.ahead import Builds, builders_for
from autotune.search.budget import NOTHING, Budget, Clock, Limits
from autotune.search.faults import with_faults
from autotune.search.helpers import Helpers
from autotune.search.one_problem import ProblemSearch
from autotune.search.shared_budget import Sharing
from autotune.space.search_space import SearchSpace
from autotune.store import Store

__all__ = ["Budget", "Clock", "SamplerChoice", "builders_for", "space_of", "tune"]


def tune(
    device: Device,
    requests: Sequence[Request],
    store: Store,
    budget: Budget,
    listener: Listener = lambda _: None,
    *,
    algorithms: Sequence[str] = (),
    seed: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
    worker: Measures | None = None,
    builds: Builds | None = None,
    jobs: int | None = None,
    retries_quarantined: bool = False,
    sampler: SamplerChoice | None = None,
    helpers: Helpers | None = None,
    clock: Clock | None = None,
) -> list[Outcome]:
    """Tune every request; each trial is stored before the next begins.

    Trials that were in flight when an earlier run was killed are quarantined, and their configurations are run again
    only with `retries_quarantined`. `should_stop` is called after each trial. Without a `worker`, one is started, and
    without `builds` also `jobs` processes that build in advance (by default one per free core). With a number of trials
    the requests are tuned one after another; a time budget is spent where it is expected to save most of the time of
    all calls, and ends early when nothing is left to gain. Without a `sampler`, the project's own is used. `helpers`
    are equal devices that help with the first request. Worker, helpers and builders are closed at the end.

    Raises ProblemError before anything is measured when a problem does not fit the device, ConfigurationError for an
    unknown algorithm, UsageError for a sampler that does not support the budget, WorkerError when the device cannot be
    used.
    """
    if budget.until_gain is not None and sampler is not None and not sampler.is_ours:
        raise UsageError(
            f"the sampler {sampler.name} does not estimate what is left to gain", hint="leave out --until-gain"
        )
    for request in requests:
        request.problem.check_device(device.limits)
    for request in requests[1:] if algorithms else ():  # the first is checked below, before it is measured
        space_of(request.problem, device, algorithms)
    place = worker or Worker()
    if worker is None and builds is None:
        builds = builders_for(device, jobs)
    sharing, clock = None, clock or Clock()
    if budget.seconds is not None and len(requests) > 1:
        sharing = Sharing(budget.seconds, listener, should_stop, clock)
    limits = Limits(
        trials=budget.trials,
        seconds=math.inf if budget.seconds is None or sharing else budget.seconds,
        should_stop=should_stop,
        left_s=lambda: sharing.left_s if sharing else math.inf,
        retries_quarantined=retries_quarantined,
        until_gain=_threshold(budget),
        clock=clock,
    )

    def searches() -> Iterator[ProblemSearch]:
        for number, request in enumerate(requests, start=1):
            store.quarantine_lost()
            sound = device if retries_quarantined else with_faults(device, store)
            space = space_of(request.problem, sound, algorithms)
            search = ProblemSearch(
                sound, request, space, store, place, listener, limits, seed, builds,
                choice=sampler, helpers=helpers,
            )  # fmt: skip
            started = ProblemStarted(
                request=request,
                number=number,
                total=len(requests),
                configurations=len(space),
                resumed_trials=len(search.knowledge.resumed),
            )
            listener(started)
            yield search

    try:
        if sharing:
            return sharing.run(searches(), len(requests))
        return _in_turn(searches(), listener)
    finally:
        for part in (place, helpers, builds):
            if part is not None:
                part.close()


def space_of(problem: Problem, device: Device, algorithms: Sequence[str] = ()) -> SearchSpace:
    """Return the search space of a problem on a device.

    Raises ConfigurationError for an unknown algorithm, ProblemError when none of the named algorithms can solve the
    problem.
    """
    space = SearchSpace(
        find_family(problem.family),
        problem,
        device.limits,
        algorithms=algorithms,
        overrides=find_profile(device).overrides_for(problem.family),
    )
    if algorithms and not len(space):
        names = " and ".join(algorithms)
        raise ProblemError(
            f"{names}: no valid configuration for {problem.label}", hint="leave the shape out, or name other algorithms"
        )
    return space


def _in_turn(searches: Iterator[ProblemSearch], listener: Listener) -> list[Outcome]:
    outcomes = []
    for search in searches:
        outcomes.append(search.run())
        listener(ProblemFinished(request=search.request, outcome=outcomes[-1]))
        if not outcomes[-1].is_finished:
            break
    return outcomes


def _threshold(budget: Budget) -> float:
    """Return the gain, as a share of the time, below which a search ends.

    By default a time budget ends when nothing is left to gain, while a number of trials is used up.
    """
    if budget.until_gain is not None:
        return budget.until_gain
    return NOTHING if budget.seconds is not None else 0.0
