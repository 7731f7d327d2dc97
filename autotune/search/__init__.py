"""Tuning: the search of one or many problems within budgets, its finals, and resuming from the ledger."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autotune.errors import UsageError
from autotune.kernels import find_family
from autotune.measure.build_pool import Builds, builders_for
from autotune.measure.worker import Worker
from autotune.model.device import Device
from autotune.model.events import Listener, Outcome, ProblemFinished, ProblemStarted
from autotune.model.trial import Request
from autotune.propose.prior import Source
from autotune.propose.samplers import SamplerChoice
from autotune.search.budget import Budget, Clock, Rhythm
from autotune.search.driver_faults import with_faults
from autotune.search.knowledge import Knowledge
from autotune.search.one_problem import ProblemSearch, Tuning
from autotune.search.place import Helpers, Measures
from autotune.search.sharing import Sharing
from autotune.search.task import Task
from autotune.store import Store

__all__ = ["Budget", "Clock", "Rhythm", "SamplerChoice", "builders_for", "tune", "worker_of_commands"]


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
    is_sustained: bool = False,
    rhythm: Rhythm | None = None,
    sampler: SamplerChoice | None = None,
    foreign: Sequence[Source] = (),
    helpers: Helpers | None = None,
    clock: Clock | None = None,
) -> list[Outcome]:
    """Tune every request; each trial is stored before the next begins.

    Trials that were in flight when an earlier run was killed are quarantined, and their configurations are run again
    only with `retries_quarantined`. If `is_sustained`, times are those of a hot device; with a `rhythm`, those of the
    finals are taken in it. `should_stop` is called after each trial. Without a `worker`, one is started, and without
    `builds` also `jobs` processes that build in advance (by default one per free core). With a number of trials the
    requests are tuned one after another; a time budget is spent where it is expected to save most of the time of all
    calls, and ends early when nothing is left to gain. Without a `sampler`, the project's own is used. `foreign` guides
    it by what other tuners measured. `helpers` are equal devices that help with the first request. Worker, helpers and
    builders are closed at the end.

    Raises ProblemError before anything is measured when a problem does not fit the device, ConfigurationError for an
    unknown algorithm, UsageError for a sampler that does not support the budget, WorkerError when the device cannot be
    used.
    """
    if budget.until_gain is not None and sampler is not None and not sampler.is_ours:
        raise UsageError(
            f"the sampler {sampler.name} does not estimate what is left to gain", hint="leave out --until-gain"
        )
    rates = store.rates(device)
    for request in requests:
        request.problem.check_device(device.limits)
    for request in requests[1:]:  # the first is checked below, before it is measured
        family = find_family(request.problem.family)
        if algorithms or family.violations(request.problem, family.baseline, device.limits):
            Task(device, request.problem, rates).space(algorithms)
    if worker is None and (worker := worker_of_commands(requests)) is None:
        worker, builds = Worker(), builds or builders_for(device, jobs)
    clock, shared_s = clock or Clock(), budget.seconds if len(requests) > 1 else None
    tuning = Tuning(
        worker=worker,
        budget=budget,
        listener=listener,
        should_stop=should_stop,
        seed=seed,
        builds=builds,
        retries_quarantined=retries_quarantined,
        is_sustained=is_sustained,
        rhythm=rhythm,
        sampler=sampler,
        foreign=foreign,
        helpers=Helpers() if helpers is None else helpers,
        clock=clock,
        ends=math.inf if shared_s is None else clock() + shared_s,
    )

    def searches() -> Iterator[ProblemSearch]:
        for number, request in enumerate(requests, start=1):
            store.quarantine_lost()
            sound = device if retries_quarantined else with_faults(device, store)
            knowledge = Knowledge(sound, request.problem, store, rates)
            space = knowledge.space(algorithms)
            started = ProblemStarted(
                request=request,
                number=number,
                total=len(requests),
                configurations=len(space),
                resumed_trials=len(knowledge.resumed),
            )
            search = ProblemSearch(tuning, request, knowledge, space)
            listener(started)
            yield search

    try:
        if shared_s is not None:
            return Sharing(tuning, rates, device.limits).run(searches(), len(requests))
        return _in_turn(searches(), listener)
    finally:
        for part in (tuning.worker, tuning.helpers, builds):
            if part is not None:
                part.close()


def worker_of_commands(requests: Sequence[Request]) -> Any:
    """Return what runs the commands of requests, None where they are for kernels. Raises UsageError for a mixture."""
    families = [find_family(name) for name in dict.fromkeys(request.problem.family for request in requests)]
    commands = [family.name for family in families if family.is_command]
    if commands and len(families) > 1:
        raise UsageError(f"{commands[0]} is a command, which is tuned by itself")
    return families[0].worker() if commands else None


def _in_turn(searches: Iterator[ProblemSearch], listener: Listener) -> list[Outcome]:
    outcomes = []
    for search in searches:
        outcomes.append(search.run())
        listener(ProblemFinished(request=search.request, outcome=outcomes[-1]))
        if not outcomes[-1].is_finished:
            break
    return outcomes
