"""What to measure next: an Optuna study over the valid configurations that contains the ledger's trials."""

import itertools
import math
from collections.abc import Iterator, Sequence

import optuna

from autotune import tracing
from autotune.errors import UsageError
from autotune.lookup.answer import distance
from autotune.model.configuration import Configuration, Value
from autotune.model.problem import Problem
from autotune.model.trial import Trial, TrialState, Winner
from autotune.propose import AT_LEAST, ROW, Prior, Source, SpaceExhaustedError, SpaceSampler, distributions, to_params
from autotune.propose.choice import SamplerChoice, near_row, random_rows
from autotune.search.compilation import Unfit
from autotune.search.fallbacks import Suspicion
from autotune.search.knowledge import Knowledge
from autotune.space.search_space import SearchSpace
from autotune.store import Store


class Proposals:
    """Proposes configurations not measured yet, the most promising first, or in the order of another sampler."""

    NEAR_PROBLEMS = 2
    CANDIDATES = 12
    """Configurations ranked best by the family's rule, which are measured first."""
    LEAST_OF_SOURCE = 8
    """Fewest trials of a near problem that make a model worthwhile."""
    SLOW_FACTOR = 3.0
    """A configuration cut off as too slow is at least this many times slower than the best."""
    STALE = 5
    """Configurations that are measured again first after a change of driver, template or space."""
    MOST_SUSPECTED = 50
    """Consecutive proposals skipped because they resemble failures; if all of them do, one has to be tried."""
    IDLE = 25
    """Consecutive known proposals, which samplers without a list make, before a configuration is drawn at random."""

    def __init__(
        self,
        knowledge: Knowledge,
        space: SearchSpace,
        store: Store,
        seed: int,
        choice: SamplerChoice | None = None,
    ) -> None:
        """`choice` defaults to the project's own sampler."""
        self._knowledge = knowledge
        self._space = space
        self._store = store
        device = knowledge.device
        self._unfit = Unfit(device, knowledge.problem, store.builds(device.slug, device.driver))
        self._winners = self._nearest_winners()
        self._suspicion = Suspicion(knowledge.known.values())
        self._asked: dict[Configuration, optuna.Trial] = {}
        self._unasked: set[Configuration] = set()
        """Measured without having been proposed."""
        self._choice = choice or SamplerChoice()
        self._leftover: Iterator[int] = iter(())
        if not self._choice.knows_the_space:
            self._leftover = random_rows(space, seed)
        prior = self._prior() if self._choice.is_ours else Prior()
        self._distributions = distributions(space)
        self._sampler = self._choice.make(space, seed + len(knowledge.known), prior)
        self._study = self._new_study()

    @tracing.span("propose")
    def next(self) -> Configuration | None:
        """Return a configuration to measure and then to pass to `tell`; None when all are known.

        Raises UsageError when a sampler fails.
        """
        for number in itertools.count(1):
            try:
                asked, configuration = self._propose()
            except SpaceExhaustedError:
                return None
            is_suspected = (
                configuration is not None
                and self._choice.is_ours
                and number <= self.MOST_SUSPECTED
                and self._suspicion.falls_on(configuration)
            )
            if configuration is not None and not is_suspected and self._is_new(configuration):
                self._asked[configuration] = asked
                return configuration
            self._tell(asked, self._knowledge.known.get(configuration) if configuration else None)
            if not self._choice.knows_the_space and number % self.IDLE == 0:
                row = next((row for row in self._leftover if self._is_new(self._space[row])), None)
                if row is None:
                    return None
                self._study.enqueue_trial(to_params(self._space, self._space[row]))
        raise AssertionError

    def leave_out(self, configuration: Configuration) -> None:
        """Exclude a configuration that is measured without being proposed; its trial is passed to `tell` as well."""
        self._unasked.add(configuration)

    @tracing.span("tell")
    def tell(self, trial: Trial) -> None:
        """Take in the trial of a configuration that was proposed or left out."""
        self._suspicion.learn(trial)
        if trial.configuration in self._unasked:
            self._unasked.remove(trial.configuration)
            self._add(self._study, trial)
        else:
            self._tell(self._asked.pop(trial.configuration), trial)

    @property
    def expected_gain(self) -> float | None:
        """The share of the best time that the next trial is expected to save; None without a model."""
        if not isinstance(self._sampler, SpaceSampler):
            return None
        gain = self._sampler.expected_gain(self._study)
        return gain if gain < 1.0 else None

    def _propose(self) -> tuple[optuna.Trial, Configuration | None]:
        """Return Optuna's proposal as a valid configuration; None if the algorithm it chose has none."""
        if self._choice.knows_the_space:
            asked = self._study.ask()
            row = self._space.row_of(suggest(asked, self._space))
            assert row is not None
            asked.set_user_attr(ROW, row)
            return asked, self._space[row]
        try:
            asked = self._study.ask()
            algorithm, indices = suggest_indices(asked, self._space)
        except Exception as error:  # an unknown sampler may raise anything
            raise UsageError(
                f"the sampler {self._choice.name} failed: {type(error).__name__}: {error}",
                hint="all trials are stored; continue with another sampler, or leave out --sampler",
            ) from error
        row = near_row(self._space, algorithm, indices)
        return asked, None if row is None else self._space[row]

    def _is_new(self, configuration: Configuration) -> bool:
        knowledge = self._knowledge
        is_seen = configuration in self._asked or configuration in self._unasked or configuration in knowledge.known
        return not (is_seen or configuration in knowledge.quarantine or configuration in self._unfit)

    def _tell(self, asked: optuna.Trial, trial: Trial | None) -> None:
        """`trial` is None for a configuration that is not measured."""
        if trial is not None and trial.state is TrialState.COMPLETE:
            self._study.tell(asked, self._value(trial))
            return
        for name, value in self._known_of_slow(trial).items() if trial else ():
            asked.set_user_attr(name, value)
        self._study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _value(self, trial: Trial) -> float:
        """Return the time for our sampler, and its logarithm for others.

        Models fit the logarithm better; our sampler takes it itself.
        """
        return trial.time_ns if self._choice.is_ours else math.log(trial.time_ns)

    def _known_of_slow(self, trial: Trial) -> dict[str, float]:
        is_slow = trial.state in (TrialState.TOO_SLOW, TrialState.TIMED_OUT)
        best_ns = self._knowledge.best_ns
        return {AT_LEAST: self.SLOW_FACTOR * best_ns} if is_slow and math.isfinite(best_ns) else {}

    def _new_study(self) -> optuna.Study:
        """Return a study in memory that knows the ledger's trials and begins with the most promising configurations."""
        optuna.logging.set_verbosity(optuna.logging.WARNING if self._choice.is_ours else optuna.logging.ERROR)
        storage = _LeanStorage() if self._choice.knows_the_space else None
        study = optuna.create_study(direction="minimize", sampler=self._sampler, storage=storage)
        for trial in self._knowledge.known.values():
            self._add(study, trial)
        for configuration in self._promising():
            study.enqueue_trial(to_params(self._space, configuration))
        return study

    def _add(self, study: optuna.Study, trial: Trial) -> None:
        """Add a trial that was not proposed, unless its configuration is outside the space."""
        row = self._space.row_of(trial.configuration)
        if row is None:
            return
        params = {} if self._choice.knows_the_space else to_params(self._space, trial.configuration)
        is_complete = trial.state is TrialState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.COMPLETE if is_complete else optuna.trial.TrialState.FAIL,
                value=self._value(trial) if is_complete else None,
                params=params,
                distributions={name: self._distributions[name] for name in params},
                user_attrs={ROW: row, **self._known_of_slow(trial)},
            )
        )

    def _promising(self) -> list[Configuration]:
        """Return what to try first: winners here and at near problems, the fastest stale ones, the rule's best."""
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
        return [c for c in distinct if c not in left_out and self._space.row_of(c) is not None]

    def _nearest_winners(self) -> list[Winner]:
        """Return the winners of comparable problems on this device, whatever operands are constant, nearest first."""
        knowledge = self._knowledge
        winners = self._store.best(knowledge.device.slug, knowledge.family.name)
        comparable = [w for w in winners if w.problem.plain.is_comparable(knowledge.problem.plain)]
        return sorted(comparable, key=lambda w: distance(w.problem, knowledge.problem))

    def _prior(self) -> Prior:
        """Return the trials of the nearest other problems on this device; the sampler learns how far they apply."""
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


class _LeanStorage(optuna.storages.InMemoryStorage):
    """Drops the parameters of ended trials, most of what a trial occupies: their rows contain the same information."""

    def set_trial_state_values(
        self, trial_id: int, state: optuna.trial.TrialState, values: Sequence[float] | None = None
    ) -> bool:
        is_set = super().set_trial_state_values(trial_id, state, values)
        if state.is_finished():
            trial = self.get_trial(trial_id)
            trial.params, trial.distributions = {}, {}
        return is_set


def suggest(asked: optuna.Trial, space: SearchSpace) -> Configuration:
    """Return the configuration that an Optuna trial stands for."""
    algorithm, indices = suggest_indices(asked, space)
    values: dict[str, Value] = {p.name: p.values[indices[p.name]] for p in space.parameters[algorithm]}
    return Configuration.of(algorithm, **values)


def suggest_indices(asked: optuna.Trial, space: SearchSpace) -> tuple[str, dict[str, int]]:
    """Return the algorithm of an Optuna trial and the value index of each of its parameters, valid or not."""
    algorithm = asked.suggest_categorical("algorithm", list(space.parameters))
    indices: dict[str, int] = {}
    for parameter in space.parameters[algorithm]:
        name = f"{algorithm}.{parameter.name}"
        if parameter.is_numeric:
            indices[parameter.name] = asked.suggest_int(name, 0, len(parameter.values) - 1)
        else:
            indices[parameter.name] = parameter.values.index(asked.suggest_categorical(name, parameter.values))
    return algorithm, indices
