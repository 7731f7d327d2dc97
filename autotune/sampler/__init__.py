"""Which configuration next: an Optuna sampler that knows the whole list of valid configurations.

The times are modelled by a Gaussian process over the parameters, their products and ratios, and the features a family
declares; the unmeasured configuration with the largest expected improvement is proposed. Nothing invalid and nothing
already measured or being measured is ever proposed, failures make their surroundings less likely, and what is known
of other problems and devices (`Prior`) is believed as far as it proves true. Optuna sees this file only; how rows are
chosen is in explorer.py.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.family import Configuration, Parameter
from autotune.sampler.explorer import Explorer, Observations, SpaceExhaustedError
from autotune.sampler.prior import Prior, Source
from autotune.space import SearchSpace

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
    "observations",
    "to_params",
]

ROW = "row"
"""User attribute of an Optuna trial: the number of its configuration in the search space."""
AT_LEAST = "at_least"
"""User attribute of a trial told as failed or pruned that was only too slow: the time it is known to exceed."""


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """One distribution for the algorithm and one for each parameter of each algorithm, ``algorithm.parameter``."""
    found: dict[str, BaseDistribution] = {"algorithm": CategoricalDistribution(list(space.parameters))}
    for algorithm, parameters in space.parameters.items():
        for parameter in parameters:
            found[f"{algorithm}.{parameter.name}"] = _distribution(parameter)
    return found


def to_params(space: SearchSpace, configuration: Configuration) -> dict[str, Any]:
    """A configuration as Optuna parameters: an ordered parameter is the index of its value."""
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
    """Expected improvement over the enumerated valid configurations.

    Trials still running or waiting count as taken and as turning out the way the model foretells, so a study may be
    asked many times ahead of the results.
    """

    def __init__(self, space: SearchSpace, seed: int = 0, *, prior: Prior | None = None) -> None:
        self._space = space
        self._explorer = Explorer(space, seed, prior)

    def row_of(self, configuration: Configuration) -> int | None:
        """The number of a configuration in the space, or None; faster than the space itself is."""
        return self._explorer.find(configuration)

    def infer_relative_search_space(self, _study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if "fixed_params" in trial.system_attrs else distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        [row] = self._explorer.propose(observations(self._explorer, self._space, others))
        return to_params(self._space, self._space[row])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NotImplementedError(f"{param_name} is no parameter of the search space")

    def expected_gain(self, study: Study) -> float:
        """The share of the best time that the next trial is expected to save; 1 before there is a model."""
        return self._explorer.expected_gain(observations(self._explorer, self._space, study.get_trials(deepcopy=False)))


def observations(explorer: Explorer, space: SearchSpace, trials: Iterable[FrozenTrial]) -> Observations:
    """What Optuna's trials say of the rows of a space; those without a row in it are left out."""
    log_times: dict[int, float] = {}
    at_least: dict[int, float] = {}
    failed: set[int] = set()
    pending: set[int] = set()
    for trial in trials:
        row = _row(explorer, space, trial)
        if row is None:
            continue
        if not trial.state.is_finished():
            pending.add(row)
        elif trial.state is TrialState.COMPLETE and trial.value is not None and trial.value > 0:
            log_times[row] = min(math.log(trial.value), log_times.get(row, math.inf))
        elif AT_LEAST in trial.user_attrs:
            at_least[row] = math.log(trial.user_attrs[AT_LEAST])
        else:
            failed.add(row)
    return Observations(
        log_times=log_times,
        failed=frozenset(failed - log_times.keys()),
        at_least={row: bound for row, bound in at_least.items() if row not in log_times},
        pending=frozenset(pending),
    )


def _row(explorer: Explorer, space: SearchSpace, trial: FrozenTrial) -> int | None:
    """The row said by the trial's user attribute, or by its parameters, drawn or enqueued."""
    if ROW in trial.user_attrs:
        return int(trial.user_attrs[ROW])
    params: Mapping[str, Any] = trial.params or trial.system_attrs.get("fixed_params", {})
    algorithm = params.get("algorithm")
    if algorithm not in space.parameters:
        return None
    indices: dict[str, int] = {}
    for parameter in space.parameters[algorithm]:
        value = params.get(f"{algorithm}.{parameter.name}")
        if value is None:
            return None
        indices[parameter.name] = int(value) if parameter.is_numeric else parameter.values.index(value)
    return explorer.row_of(algorithm, indices)
