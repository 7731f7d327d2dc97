"""Ask, measure, tell, store: the search over one or many problems, its budgets, finals and resume."""

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
import optuna

from autotune import __version__
from autotune.compiling import Unfit
from autotune.errors import ProblemError
from autotune.family import Configuration, Device, KernelFamily, Problem, Value, find_family
from autotune.profile import Profile, find_profile
from autotune.render import template_hash
from autotune.sampler import ROW, SpaceExhaustedError, SpaceSampler, distributions, to_params
from autotune.space import SearchSpace
from autotune.store import Store, StoredTrial
from autotune.trial import Job, Provenance, Request, Trial, TrialState, Winner
from autotune.worker import Measures, Worker


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of one run; at least one of them is given. `trials` counts new trials per problem."""

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one request."""

    request: Request
    winner: Winner | None
    """None when nothing ran right, not even the default."""
    new_trials: int
    resumed_trials: int
    failures: dict[str, int]
    """Trials by state (value of TrialState), complete ones left out."""
    is_finished: bool
    """False when the search was stopped before its budget ended."""


class Listener(Protocol):
    """Told what happens, in the order in which it happens."""

    def problem_started(self, request: Request, number: int, total: int, space_size: int, resumed: int) -> None: ...

    def trial_finished(self, request: Request, trial: Trial, new_trials: int, best_ns: float) -> None: ...

    def finals_started(self, request: Request, finalists: int) -> None: ...

    def problem_finished(self, outcome: Outcome) -> None: ...


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
) -> list[Outcome]:
    """Tune each request in turn; every trial is stored before the next begins.

    `should_stop` is asked after each trial. A time budget is shared evenly among the requests still to come.
    Raises ProblemError before anything is measured when a problem does not fit the device, ConfigurationError
    for an unknown algorithm, WorkerError when the device cannot be used.
    """
    for request in requests:
        request.problem.check_device(device.limits)
        _check_algorithms(request.problem, device, algorithms)
    profile = find_profile(device)
    place = worker or Worker()
    deadline = time.monotonic() + (budget.seconds if budget.seconds is not None else math.inf)
    outcomes: list[Outcome] = []
    try:
        for number, request in enumerate(requests):
            if outcomes and not outcomes[-1].is_finished:
                break
            share = (deadline - time.monotonic()) / (len(requests) - number)
            limits = _Limits(trials=budget.trials, seconds=share, should_stop=should_stop)
            search = _ProblemSearch(device, profile, request, store, place, listener, limits, algorithms, seed)
            listener.problem_started(request, number + 1, len(requests), len(search.space), len(search.resumed))
            outcomes.append(search.run())
            listener.problem_finished(outcomes[-1])
    finally:
        place.close()
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


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What ends the search of one problem."""

    trials: int | None
    seconds: float
    should_stop: Callable[[], bool]


class _ProblemSearch:
    """The search of one problem: its space, what is known of it, and its new trials."""

    FINALISTS = 4
    FINAL_ROUNDS = 11
    FINALS_SHARE = 0.4
    """Largest part of a time budget kept for the finals."""
    GIVE_UP_FACTOR = 3.0
    """One sample is enough for what is this much slower than the best."""
    NEAR_PROBLEMS = 2
    FINAL_SAMPLES = 3
    LEAST_ROUNDS = 4
    VERIFIED_ROUNDS = 4
    """Rounds in which every finalist is verified on fresh inputs again; the others only time it."""

    def __init__(
        self,
        device: Device,
        profile: Profile,
        request: Request,
        store: Store,
        worker: Measures,
        listener: Listener,
        limits: _Limits,
        algorithms: Sequence[str],
        seed: int,
    ) -> None:
        self._device = device
        self._profile = profile
        self._request = request
        self._problem: Problem = request.problem
        self._family: KernelFamily = find_family(request.problem.family)
        self._store = store
        self._worker = worker
        self._listener = listener
        self._limits = limits
        self._started = time.monotonic()
        self._seed = seed
        self._starts = profile.starting(self._family.name)
        self.space = SearchSpace(
            self._family,
            self._problem,
            device.limits,
            algorithms=algorithms,
            overrides=profile.overrides_for(self._family.name),
        )
        self._default = self._family.default(self._problem, device.limits, self._starts)
        self._unfit = Unfit(device, self._problem, store.builds(device.slug, device.driver))
        self._known: dict[Configuration, Trial] = {}
        self._unsound: set[Configuration] = set()
        self._failures: Counter[str] = Counter()
        self._new_trials = 0
        self._best_ns = math.inf
        self._running_seconds: list[float] = []
        stored = store.trials(device.slug, self._family.name, self._problem)
        current = [s for s in stored if self._is_current(s)]
        self.resumed = [s for s in current if s.purpose == "search"]
        self._stale = [s for s in stored if not self._is_current(s)]
        for item in current:
            self._learn(item.trial)

    def run(self) -> Outcome:
        """Search until the budget ends, then decide the winner in the finals."""
        deadline = self._started + self._limits.seconds
        self._search(deadline)
        winner = None if self._limits.should_stop() else self._decide(deadline)
        return Outcome(
            request=self._request,
            winner=winner or self._record_provisional(),
            new_trials=self._new_trials,
            resumed_trials=len(self.resumed),
            failures=dict(self._failures),
            is_finished=not self._limits.should_stop(),
        )

    def _search(self, deadline: float) -> None:
        if self._default not in self._known:
            self._measure(self._default)
        study = self._study()
        while not self._is_over(deadline):
            try:
                asked = study.ask()
                configuration = _suggest(asked, self.space)
            except SpaceExhaustedError:
                break
            asked.set_user_attr(ROW, self.space.row_of(configuration))
            if configuration in self._unfit:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
                continue
            trial = self._measure(configuration)
            if trial.state is TrialState.COMPLETE:
                study.tell(asked, trial.time_ns)
            else:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _is_over(self, deadline: float) -> bool:
        if self._limits.should_stop() or time.monotonic() + self._finals_seconds() >= deadline:
            return True
        return self._limits.trials is not None and self._new_trials >= self._limits.trials

    def _finals_seconds(self) -> float:
        """How long the finals are going to take, from how long trials took without building."""
        if not self._running_seconds or math.isinf(self._limits.seconds):
            return 0.0
        jobs = self.FINAL_ROUNDS * (self.FINALISTS + 1)
        typical = float(np.median(self._running_seconds[-20:]))
        return min(self.FINALS_SHARE * self._limits.seconds, jobs * typical)

    def _study(self) -> optuna.Study:
        """A study in memory that knows the ledger's trials and is to begin with what promises most."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = SpaceSampler(self.space, self._seed + len(self._known))
        study = optuna.create_study(direction="minimize", sampler=sampler)
        everything = distributions(self.space)
        for trial in self._known.values():
            row = self.space.row_of(trial.configuration)
            if row is None:
                continue
            params = to_params(self.space, trial.configuration)
            is_complete = trial.state is TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.COMPLETE if is_complete else optuna.trial.TrialState.FAIL,
                    value=trial.time_ns if is_complete else None,
                    params=params,
                    distributions={name: everything[name] for name in params},
                    user_attrs={ROW: row},
                )
            )
        for configuration in self._promising():
            study.enqueue_trial(to_params(self.space, configuration))
        return study

    def _promising(self) -> list[Configuration]:
        """What to try first: the best of before a change, winners of this and near problems, the profile's starts."""
        stale = sorted(self._stale, key=lambda s: s.trial.time_ns)[:3]
        winners = self._store.best(self._device.slug, self._family.name)
        comparable = [w for w in winners if w.problem.is_comparable(self._problem)]
        near = sorted(comparable, key=lambda w: _distance(w.problem, self._problem))
        wanted = [
            *(s.trial.configuration for s in stale if s.trial.state is TrialState.COMPLETE),
            *(w.configuration for w in near[: self.NEAR_PROBLEMS]),
            *self._starts,
        ]
        distinct = dict.fromkeys(map(self._family.complete, wanted))
        return [c for c in distinct if c not in self._known and self.space.row_of(c) is not None]

    def _measure(self, configuration: Configuration) -> Trial:
        """One new trial of the search, stored and told."""
        give_up = self.GIVE_UP_FACTOR * self._best_ns
        trial = self._run_and_store(self._job(configuration, give_up_above_ns=give_up), "search")
        self._new_trials += 1
        if trial.state is not TrialState.COMPLETE:
            self._failures[trial.state.value] += 1
        improved = trial.time_ns < self._best_ns
        self._learn(trial)
        if improved:
            self._record_provisional()
        self._listener.trial_finished(self._request, trial, self._new_trials, self._best_ns)
        return trial

    def _job(self, configuration: Configuration, **changes: float) -> Job:
        job = Job(
            selector=self._device.selector,
            problem=self._problem,
            configuration=configuration,
            build_options=self._profile.build_options,
            seed=int(np.random.default_rng().integers(2**31)),
        )
        return dataclasses.replace(job, **changes)  # type: ignore[arg-type]

    def _run_and_store(self, job: Job, purpose: str) -> Trial:
        started = time.monotonic()
        trial = self._worker.run(job)
        if trial.measurement:
            self._running_seconds.append(time.monotonic() - started - trial.measurement.build_ns / 1e9)
        provenance = self._provenance(job.configuration)
        self._store.add_trial(self._device, self._problem, trial, provenance, purpose)
        return trial

    def _learn(self, trial: Trial) -> None:
        """A configuration that ever failed does not count, however often it was right."""
        before = self._known.get(trial.configuration)
        if trial.state is not TrialState.COMPLETE:
            self._unsound.add(trial.configuration)
            self._known[trial.configuration] = trial
        elif trial.configuration not in self._unsound and (before is None or trial.time_ns < before.time_ns):
            self._known[trial.configuration] = trial
        self._best_ns = min((t.time_ns for t in self._known.values()), default=math.inf)

    def _provenance(self, configuration: Configuration) -> Provenance:
        return Provenance(
            driver=self._device.driver,
            template_hash=template_hash(self._family, configuration.algorithm),
            space_version=self._family.space_version,
            tool_version=__version__,
            measured_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def _is_current(self, stored: StoredTrial) -> bool:
        """Whether a stored trial still says something about driver, template and space of today."""
        now = self._provenance(stored.trial.configuration)
        then = stored.provenance
        return (then.driver, then.template_hash, then.space_version) == (
            now.driver,
            now.template_hash,
            now.space_version,
        )

    def _record_provisional(self) -> Winner | None:
        """Store and return the best so far, or the default where it is not beaten; no final has confirmed it."""
        sound = [t for t in self._known.values() if t.state is TrialState.COMPLETE]
        if not sound:
            return None
        best = min(sound, key=lambda t: t.time_ns)
        reference = self._known.get(self._default, best)
        default_ns = reference.time_ns if reference.state is TrialState.COMPLETE else best.time_ns
        gain = default_ns / best.time_ns
        winner = self._winner(best.configuration, best.time_ns, default_ns, (gain, gain), samples=0)
        self._store.record_winner(winner)
        return winner

    def _winner(
        self,
        configuration: Configuration,
        time_ns: float,
        default_ns: float,
        interval: tuple[float, float],
        samples: int,
    ) -> Winner:
        baseline = self._known.get(self._family.baseline)
        return Winner(
            device=self._device.slug,
            problem=self._problem,
            configuration=configuration,
            time_ns=time_ns,
            default_ns=default_ns,
            baseline_ns=baseline.time_ns if baseline and baseline.state is TrialState.COMPLETE else None,
            gain_low=interval[0],
            gain_high=interval[1],
            samples=samples,
            is_default=configuration == self._default,
            provenance=self._provenance(configuration),
        )

    def _decide(self, deadline: float) -> Winner | None:
        """Measure the best few and the default in turns; the default wins unless it is surely beaten."""
        self._measure_baseline()
        finalists = self._finalists()
        if not finalists:
            return None
        self._listener.finals_started(self._request, len(finalists))
        rounds = self._final_rounds(finalists, deadline)
        if not rounds:
            return None
        reference = self._default if self._default in rounds else min(rounds, key=lambda c: _median(rounds[c]))
        best = min(rounds, key=lambda c: _median(rounds[c]))
        gain, interval = _gain(rounds[reference], rounds[best])
        if best != reference and interval[0] <= 1.0:
            best, gain, interval = reference, 1.0, (1.0, 1.0)
        samples = self.FINAL_SAMPLES * len(rounds[best])
        time_ns = _median(rounds[best])
        winner = self._winner(best, time_ns, gain * time_ns, interval, samples)
        if self._family.baseline in rounds:
            over_baseline, _ = _gain(rounds[self._family.baseline], rounds[best])
            winner = dataclasses.replace(winner, baseline_ns=over_baseline * time_ns)
        self._store.record_winner(winner)
        return winner

    def _measure_baseline(self) -> None:
        """The plainest kernel, once, so that gains can be told against it."""
        baseline = self._family.baseline
        if baseline in self._known:
            return
        job = self._job(baseline, give_up_above_ns=self.GIVE_UP_FACTOR * self._best_ns, run_limit_s=20.0)
        self._learn(self._run_and_store(job, "search"))

    def _finalists(self) -> list[Configuration]:
        sound = [t for t in self._known.values() if t.state is TrialState.COMPLETE]
        best = [t.configuration for t in sorted(sound, key=lambda t: t.time_ns)[: self.FINALISTS]]
        incumbents = [
            w.configuration
            for w in self._store.best(self._device.slug, self._family.name)
            if w.problem == self._problem and w.is_final and w.configuration in self._known
        ]
        wanted = dict.fromkeys([*best, *incumbents, self._default, *self._near_baseline()])
        return [c for c in wanted if c not in self._unsound and c in self._known]

    def _near_baseline(self) -> list[Configuration]:
        """The baseline where it is a rival; where it is far slower, the time of its one trial tells enough."""
        trial = self._known.get(self._family.baseline)
        is_near = trial is not None and trial.time_ns <= self.GIVE_UP_FACTOR * self._best_ns
        return [self._family.baseline] if is_near else []

    def _final_rounds(self, finalists: Sequence[Configuration], deadline: float) -> dict[Configuration, list[float]]:
        """Time of each finalist in each round; who fails once is out. Empty when stopped."""
        rounds: dict[Configuration, list[float]] = {c: [] for c in finalists}
        for number in range(self.FINAL_ROUNDS):
            if number >= self.LEAST_ROUNDS and time.monotonic() > deadline:
                break
            order = list(rounds)
            for configuration in order[number % len(order) :] + order[: number % len(order)]:
                job = self._job(configuration, samples=self.FINAL_SAMPLES)
                if number >= self.VERIFIED_ROUNDS:
                    job = dataclasses.replace(job, verify=False, seed=0)
                trial = self._run_and_store(job, "final")
                if trial.state is TrialState.COMPLETE:
                    rounds[configuration].append(trial.time_ns)
                else:
                    self._learn(trial)
                    self._failures[trial.state.value] += 1
                    del rounds[configuration]
                if self._limits.should_stop():
                    return {}
            if not rounds:
                break
        return rounds


def _suggest(asked: optuna.Trial, space: SearchSpace) -> Configuration:
    """The configuration an Optuna trial stands for."""
    algorithm = asked.suggest_categorical("algorithm", list(space.parameters))
    values: dict[str, Value] = {}
    for parameter in space.parameters[algorithm]:
        name = f"{algorithm}.{parameter.name}"
        if parameter.is_numeric:
            values[parameter.name] = parameter.values[asked.suggest_int(name, 0, len(parameter.values) - 1)]
        else:
            values[parameter.name] = str(asked.suggest_categorical(name, parameter.values))
    return Configuration.of(algorithm, **values)


def _distance(a: Problem, b: Problem) -> float:
    """Product over the sizes of larger over smaller: 1 for equal sizes."""
    return math.prod(max(x, y) / min(x, y) for x, y in zip(a.size_vector, b.size_vector, strict=True))


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _gain(reference: Sequence[float], candidate: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The gain, as the median ratio of times within a round, and its 95% interval by bootstrap over rounds."""
    ratios = np.array([r / c for r, c in zip(reference, candidate, strict=False)])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), (float(low), float(high))
