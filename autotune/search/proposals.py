"""What to measure next: an Optuna study over the valid configurations, told what the ledger knows."""

import itertools
import math

import optuna

from autotune import tracing
from autotune.compiling import Unfit
from autotune.family import Configuration, Problem, Value
from autotune.sampler import (
    AT_LEAST,
    ROW,
    Prior,
    Source,
    SpaceExhaustedError,
    SpaceSampler,
    distributions,
    to_params,
)
from autotune.search.knowledge import Knowledge
from autotune.space import SearchSpace
from autotune.store import Store
from autotune.trial import Trial, TrialState, Winner


class Proposals:
    """Configurations not measured yet, those first that promise most."""

    NEAR_PROBLEMS = 2
    CANDIDATES = 8
    """Configurations measured first that the family's rule ranks best."""
    LEAST_OF_SOURCE = 8
    """Trials of a near problem from which on they are worth a model."""
    SLOW_FACTOR = 3.0
    """What was cut off for being slow is at least this much slower than the best."""
    STALE = 5
    """Configurations measured again first after a change of driver, template or space."""

    def __init__(self, knowledge: Knowledge, space: SearchSpace, store: Store, seed: int) -> None:
        self._knowledge = knowledge
        self._space = space
        self._store = store
        device = knowledge.device
        self._unfit = Unfit(device, knowledge.problem, store.builds(device.slug, device.driver))
        self._winners = self._nearest_winners()
        self._asked: dict[Configuration, optuna.Trial] = {}
        self._sampler = SpaceSampler(space, seed + len(knowledge.known), prior=self._prior())
        self._study = self._new_study()

    @tracing.span("propose")
    def next(self) -> Configuration | None:
        """One to measure, to be told of; None when all are known."""
        while True:
            try:
                asked = self._study.ask()
                configuration = suggest(asked, self._space)
            except SpaceExhaustedError:
                return None
            asked.set_user_attr(ROW, self._sampler.row_of(configuration))
            if configuration not in self._unfit and configuration not in self._knowledge.quarantine:
                self._asked[configuration] = asked
                return configuration
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)

    @tracing.span("tell")
    def tell(self, trial: Trial) -> None:
        """What became of a configuration proposed."""
        asked = self._asked.pop(trial.configuration)
        if trial.state is TrialState.COMPLETE:
            self._study.tell(asked, trial.time_ns)
        else:
            for name, value in self._known_of_slow(trial).items():
                asked.set_user_attr(name, value)
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _known_of_slow(self, trial: Trial) -> dict[str, float]:
        is_slow = trial.state in (TrialState.TOO_SLOW, TrialState.TIMED_OUT)
        best_ns = self._knowledge.best_ns
        return {AT_LEAST: self.SLOW_FACTOR * best_ns} if is_slow and math.isfinite(best_ns) else {}

    def _new_study(self) -> optuna.Study:
        """A study in memory that knows the ledger's trials and is to begin with what promises most."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="minimize", sampler=self._sampler)
        everything = distributions(self._space)
        for trial in self._knowledge.known.values():
            row = self._sampler.row_of(trial.configuration)
            if row is None:
                continue
            params = to_params(self._space, trial.configuration)
            is_complete = trial.state is TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.COMPLETE if is_complete else optuna.trial.TrialState.FAIL,
                    value=trial.time_ns if is_complete else None,
                    params=params,
                    distributions={name: everything[name] for name in params},
                    user_attrs={ROW: row, **self._known_of_slow(trial)},
                )
            )
        for configuration in self._promising():
            study.enqueue_trial(to_params(self._space, configuration))
        return study

    def _promising(self) -> list[Configuration]:
        """What to try first: what won before, here and at near problems, and what the rule ranks best."""
        knowledge = self._knowledge
        left_out = knowledge.known.keys() | knowledge.quarantine
        candidates = knowledge.family.candidates(knowledge.problem, knowledge.device.limits, knowledge.starts)
        wanted = [
            *(w.configuration for w in self._winners if w.problem == knowledge.problem),
            *[c for c in knowledge.stale_ranking if c not in left_out][: self.STALE],
            *(w.configuration for w in self._winners[: self.NEAR_PROBLEMS]),
            *itertools.islice(candidates, self.CANDIDATES),
        ]
        distinct = dict.fromkeys(map(knowledge.family.complete, wanted))
        return [c for c in distinct if c not in left_out and self._sampler.row_of(c) is not None]

    def _nearest_winners(self) -> list[Winner]:
        """Of comparable problems on this device, nearest first."""
        knowledge = self._knowledge
        winners = self._store.best(knowledge.device.slug, knowledge.family.name)
        comparable = [w for w in winners if w.problem.is_comparable(knowledge.problem)]
        return sorted(comparable, key=lambda w: _distance(w.problem, knowledge.problem))

    def _prior(self) -> Prior:
        """Trials of the nearest other problems on this device; the sampler learns how far they hold here."""
        knowledge = self._knowledge
        others = [w.problem for w in self._winners if w.problem != knowledge.problem]
        sources = [self._source(problem) for problem in others[: self.NEAR_PROBLEMS]]
        return Prior(sources=tuple(s for s in sources if len(s.configurations) >= self.LEAST_OF_SOURCE))

    def _source(self, problem: Problem) -> Source:
        device, family = self._knowledge.device, self._knowledge.family
        stored = self._store.trials(device.slug, family.name, problem)
        complete = [s.trial for s in stored if s.purpose == "search" and s.trial.state is TrialState.COMPLETE]
        return Source(
            name=problem.label,
            configurations=tuple(family.complete(trial.configuration) for trial in complete),
            log_times=tuple(math.log(trial.time_ns) for trial in complete),
        )


def suggest(asked: optuna.Trial, space: SearchSpace) -> Configuration:
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
