"""An Optuna sampler that proposes the next configuration from the enumerated valid configurations.

A Gaussian process over the parameters, their products and ratios, and the features of the family models the times; the
sampler proposes the unmeasured configuration with the largest expected improvement (Jones, Schonlau, Welch 1998). It
never proposes invalid configurations, nor ones measured or being measured. Failures make similar configurations less
likely. Measurements of other problems and devices (`Prior`) count as far as they agree with those here. This file
connects to Optuna; `explorer.py` chooses the rows and does not depend on it.
"""

import math
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.model.configuration import Configuration
from autotune.propose.explorer import Explorer, Observations, SpaceExhaustedError
from autotune.propose.prior import Prior, Source
from autotune.space.family import Parameter
from autotune.space.search_space import SearchSpace

__all__ = [
    "AT_LEAST",
    "ROW",
    "Explorer",
    "Observations",
    "Prior",
    "Source",
    "SpaceExhaustedError",
    "SpaceSampler",
    "distributions",
    "to_params",
]

ROW = "row"
"""User attribute of an Optuna trial: the row of its configuration in the search space."""
AT_LEAST = "at_least"
"""User attribute of a trial reported as failed or pruned that was only too slow: the time it is known to exceed."""


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return a distribution for the algorithm, and one for each parameter of each, named ``algorithm.parameter``."""
    found: dict[str, BaseDistribution] = {"algorithm": CategoricalDistribution(list(space.parameters))}
    for algorithm, parameters in space.parameters.items():
        for parameter in parameters:
            found[f"{algorithm}.{parameter.name}"] = _distribution(parameter)
    return found


def to_params(space: SearchSpace, configuration: Configuration) -> dict[str, Any]:
    """Convert a configuration to Optuna parameters: a numeric parameter becomes the index of its value."""
    params: dict[str, Any] = {"algorithm": configuration.algorithm}
    for parameter in space.parameters[configuration.algorithm]:
        value = configuration[parameter.name]
        name = f"{configuration.algorithm}.{parameter.name}"
        params[name] = parameter.values.index(value) if parameter.is_numeric else value
    return params


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.is_numeric:
        return IntDistribution(0, len(parameter.values) - 1)
    return CategoricalDistribution(parameter.values)


class SpaceSampler(BaseSampler):
    """Proposes by expected improvement over the enumerated valid configurations.

    Trials still running or waiting are not proposed again, and the model assumes its own prediction as their result, so
    a study can be asked for many trials ahead of the results.
    """

    def __init__(self, space: SearchSpace, seed: int = 0, *, prior: Prior | None = None) -> None:
        self._space = space
        self._distributions = distributions(space)
        self._explorer = Explorer(space, seed, prior)
        self._study: Study | None = None
        self._read = 0
        self._open: list[int] = []
        """Numbers of the trials that had not finished when last read."""
        self._ledger = _Ledger()

    def infer_relative_search_space(self, _study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if "fixed_params" in trial.system_attrs else self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        [row] = self._explorer.propose(self._known(study, leaving_out=trial.number))
        return to_params(self._space, self._space[row])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NotImplementedError(f"{param_name} is not a parameter of the search space")

    def expected_gain(self, study: Study) -> float:
        """Return the fraction of the best time that the next trial is expected to save; 1 before there is a model."""
        return self._explorer.expected_gain(self._known(study))

    def _known(self, study: Study, leaving_out: int = -1) -> Observations:
        """Return the observations of the study's trials; trials that had finished at the last call are not reread."""
        if self._study is not study:
            self._study, self._read, self._open, self._ledger = study, 0, [], _Ledger()
        trials = study.get_trials(deepcopy=False)
        numbers = [*self._open, *range(self._read, len(trials))]
        self._read = len(trials)
        self._open = [number for number in numbers if not trials[number].state.is_finished()]
        for number in numbers:
            if trials[number].state.is_finished():
                self._ledger.add(trials[number], _row(self._space, trials[number]))
        waiting = (_row(self._space, trials[n]) for n in self._open if n != leaving_out)
        return self._ledger.observations(frozenset(row for row in waiting if row is not None))


class _Ledger:
    """Results of finished trials by row of a space."""

    def __init__(self) -> None:
        self._log_times: dict[int, float] = {}
        self._at_least: dict[int, float] = {}
        self._failed: set[int] = set()

    def add(self, trial: FrozenTrial, row: int | None) -> None:
        """Add a trial; one without a row in the space is ignored."""
        if row is None:
            return
        if trial.state is TrialState.COMPLETE and trial.value is not None and trial.value > 0:
            self._log_times[row] = min(math.log(trial.value), self._log_times.get(row, math.inf))
        elif AT_LEAST in trial.user_attrs:
            self._at_least[row] = math.log(trial.user_attrs[AT_LEAST])
        else:
            self._failed.add(row)

    def observations(self, pending: frozenset[int]) -> Observations:
        log_times = self._log_times
        return Observations(
            log_times=log_times,
            failed=frozenset(self._failed - log_times.keys()),
            at_least={row: bound for row, bound in self._at_least.items() if row not in log_times},
            pending=pending,
        )


def _row(space: SearchSpace, trial: FrozenTrial) -> int | None:
    """Return the row in the trial's user attribute, or that of its parameters, sampled or enqueued; None if neither."""
    if ROW in trial.user_attrs:
        return int(trial.user_attrs[ROW])
    params: Mapping[str, Any] = trial.params or trial.system_attrs.get("fixed_params", {})
    algorithm = params.get("algorithm")
    if algorithm not in space.parameters:
        return None
    path: list[int] = []
    for parameter in space.parameters[algorithm]:
        value = params.get(f"{algorithm}.{parameter.name}")
        if value is None:
            return None
        path.append(int(value) if parameter.is_numeric else parameter.values.index(value))
    return space.row_at(algorithm, path)
