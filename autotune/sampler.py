"""Which configuration next: an Optuna sampler that knows the whole list of valid configurations.

Times are modelled by a Gaussian process (Matern 5/2) on the logarithm of time over log-scaled parameters and the
features a family declares; the unmeasured configuration with the largest expected improvement is proposed. Failed
trials count as slow ones. Nothing invalid and nothing already measured is ever proposed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.family import Configuration, Parameter
from autotune.space import SearchSpace

ROW = "row"
"""User attribute of an Optuna trial: the number of its configuration in the search space."""

Matrix = NDArray[np.float64]


class SpaceExhaustedError(Exception):
    """Every configuration of the space has been proposed."""


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
    """Expected improvement over the enumerated valid configurations."""

    RANDOM_TRIALS = 8
    """Complete trials before the model is asked; what the search enqueues itself counts."""
    CANDIDATES = 2048
    """Random configurations ranked at each proposal, besides the neighbours of the best."""
    WORTHWHILE = 0.03
    """Smallest improvement of log time that counts: less is noise, and there are many near-equals."""
    CLIMBS = 4
    """Steps from the most promising of these to its most promising neighbour."""
    MODELLED_TRIALS = 400

    def __init__(self, space: SearchSpace, seed: int = 0) -> None:
        self._space = space
        self._rng = np.random.default_rng(seed)
        self._features = _Features(space)
        self._lengths: NDArray[np.float64] | None = None

    def infer_relative_search_space(self, _study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if "fixed_params" in trial.system_attrs else distributions(self._space)

    def sample_relative(
        self, study: Study, _trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        return to_params(self._space, self._space[self._propose(study.get_trials(deepcopy=False))])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise NotImplementedError(f"{param_name} is no parameter of the search space")

    def _propose(self, trials: Sequence[FrozenTrial]) -> int:
        taken = {t.user_attrs[ROW] for t in trials if ROW in t.user_attrs}
        if len(taken) >= len(self._space):
            raise SpaceExhaustedError
        told = [t for t in trials if ROW in t.user_attrs and t.state.is_finished()]
        complete = [t for t in told if t.state is TrialState.COMPLETE and t.value is not None]
        if len(complete) < self.RANDOM_TRIALS:
            return self._random_row(taken)
        told = sorted(told, key=_value)[: self.MODELLED_TRIALS]
        rows = np.array([t.user_attrs[ROW] for t in told])
        candidates = self._candidates(rows, taken)
        if not len(candidates):
            return self._random_row(taken)
        slowest = max(_value(t) for t in complete)
        values = np.array([math.log(min(_value(t), slowest)) for t in told])
        model = _GaussianProcess(self._features.of(rows), values, self._lengths, self._rng)
        self._lengths = model.lengths
        target = float(values.min()) - self.WORTHWHILE
        best, promise = self._most_promising(model, candidates, target)
        for _ in range(self.CLIMBS):
            near = self._untaken(self._features.neighbours(best), taken)
            if not len(near):
                break
            better, gain = self._most_promising(model, near, target)
            if gain <= promise:
                break
            best, promise = better, gain
        return best

    def _most_promising(
        self, model: "_GaussianProcess", rows: NDArray[np.int64], incumbent: float
    ) -> tuple[int, float]:
        """The row with the largest expected improvement on the incumbent's log time, and that improvement."""
        gains = _expected_improvement(*model.predict(self._features.of(rows)), incumbent)
        best = int(np.argmax(gains))
        return int(rows[best]), float(gains[best])

    def _random_row(self, taken: set[int]) -> int:
        """Of the algorithm least tried for its size, a random configuration."""
        tried = [sum(first <= row < first + count for row in taken) for first, count in self._features.spans]
        shares = [
            (number + 1) / math.log2(2 + count) if number < count else math.inf
            for number, (_, count) in zip(tried, self._features.spans, strict=True)
        ]
        first, count = self._features.spans[shares.index(min(shares))]
        for _ in range(64):
            row = int(self._rng.integers(first, first + count))
            if row not in taken:
                return row
        free = np.setdiff1d(np.arange(first, first + count), np.fromiter(taken, dtype=np.int64))
        return int(self._rng.choice(free))

    def _candidates(self, best_first: NDArray[np.int64], taken: set[int]) -> NDArray[np.int64]:
        count = len(self._space)
        drawn = np.arange(count) if count <= self.CANDIDATES else self._rng.integers(0, count, self.CANDIDATES)
        near = [self._features.neighbours(int(row)) for row in best_first[:3]]
        return self._untaken(np.unique(np.concatenate([drawn, *near])), taken)

    @staticmethod
    def _untaken(rows: NDArray[np.int64], taken: set[int]) -> NDArray[np.int64]:
        return rows[~np.isin(rows, np.fromiter(taken, dtype=np.int64))]


def _value(trial: FrozenTrial) -> float:
    return trial.value if trial.value is not None else math.inf


class _Features:
    """Numbers in [0, 1] for each configuration, computed for the rows asked for."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.spans: list[tuple[int, int]] = []
        first = 0
        for columns in space.columns.values():
            count = len(next(iter(columns.values())))
            self.spans.append((first, count))
            first += count
        self._tables: dict[str, Matrix] = {}
        names: dict[str, int] = {}
        for algorithm, parameters in space.parameters.items():
            names.setdefault(f"is {algorithm}", len(names))
            for parameter in parameters:
                for suffix in self._suffixes(parameter):
                    names.setdefault(parameter.name + suffix, len(names))
            for feature in space.family.algorithm(algorithm).features:
                names.setdefault(feature.text, len(names))
        self._names = names

    @staticmethod
    def _suffixes(parameter: Parameter) -> list[str]:
        return [""] if parameter.is_numeric else [f"={value}" for value in parameter.values]

    def of(self, rows: NDArray[np.int64]) -> Matrix:
        """One line a row, one column a feature; features of other algorithms are zero."""
        out = np.zeros((len(rows), len(self._names)))
        for (first, count), algorithm in zip(self.spans, self._space.columns, strict=True):
            mine = np.flatnonzero((rows >= first) & (rows < first + count))
            if len(mine):
                self._fill(out, mine, algorithm, rows[mine] - first)
        return out

    def _fill(self, out: Matrix, lines: NDArray[np.intp], algorithm: str, local: NDArray[np.int64]) -> None:
        columns = self._space.columns[algorithm]
        values: dict[str, Any] = dict(self._environment())
        out[lines, self._names[f"is {algorithm}"]] = 1.0
        for parameter in self._space.parameters[algorithm]:
            index = columns[parameter.name][local]
            values[parameter.name] = np.array(parameter.values)[index]
            if parameter.is_numeric:
                logs = np.log2(1.0 + np.array(parameter.values, dtype=np.float64))
                out[lines, self._names[parameter.name]] = (logs / max(1.0, logs.max()))[index]
            else:
                for number, suffix in enumerate(self._suffixes(parameter)):
                    out[lines, self._names[parameter.name + suffix]] = 0.5 * (index == number)
        for feature in self._space.family.algorithm(algorithm).features:
            out[lines, self._names[feature.text]] = np.log2(1.0 + np.asarray(feature(values), dtype=np.float64)) / 8.0

    def _environment(self) -> Mapping[str, Any]:
        return {**self._space.limits.constraint_values(), **self._space.problem.constraint_values()}

    def neighbours(self, row: int) -> NDArray[np.int64]:
        """Rows of the same algorithm that differ from this one in one parameter."""
        for (first, count), columns in zip(self.spans, self._space.columns.values(), strict=True):
            if first <= row < first + count:
                different = np.zeros(count, dtype=np.uint8)
                for column in columns.values():
                    different += column != column[row - first]
                return first + np.flatnonzero(different == 1)
        raise IndexError(row)


class _GaussianProcess:
    """Matern 5/2 with a length scale for each feature, by maximum a posteriori likelihood.

    `lengths` is where the search for length scales begins: the model of the trials before.
    """

    START_LENGTH = 1.4
    NOISES = (1e-3, 1e-2, 1e-1)
    SWEPT_FEATURES = 16
    """Length scales reconsidered in one sweep; the others wait for the next."""
    FIRST_SWEEPS = 4

    def __init__(
        self,
        features: Matrix,
        values: NDArray[np.float64],
        lengths: NDArray[np.float64] | None,
        rng: np.random.Generator,
    ) -> None:
        self._features = features
        self._mean = float(values.mean())
        self._scale = float(values.std()) or 1.0
        self._target = (values - self._mean) / self._scale
        self._noise = self.NOISES[0]
        self.lengths = np.full(features.shape[1], self.START_LENGTH) if lengths is None else lengths.copy()
        self._score = -math.inf
        for _ in range(self.FIRST_SWEEPS if lengths is None else 1):
            self._sweep(rng)

    def predict(self, features: Matrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of log time."""
        kernel = _matern(_distances(features / self.lengths, self._features / self.lengths))
        mean = kernel @ self._weights
        reduction = kernel @ self._inverse_factor.T
        variance = np.maximum(1e-9, 1.0 - (reduction * reduction).sum(axis=1))
        return self._mean + self._scale * mean, self._scale * np.sqrt(variance)

    def _sweep(self, rng: np.random.Generator) -> None:
        for noise in self.NOISES:
            self._consider(self.lengths, noise)
        varied = np.flatnonzero(np.ptp(self._features, axis=0) > 0)
        for feature in rng.permutation(varied)[: self.SWEPT_FEATURES]:
            for factor in (0.4, 2.5):
                lengths = self.lengths.copy()
                lengths[feature] *= factor
                if self._consider(lengths, self._noise):
                    break

    def _consider(self, lengths: NDArray[np.float64], noise: float) -> bool:
        """Adopt length scales and noise when they explain the times better."""
        scaled = self._features / lengths
        kernel = _matern(_distances(scaled, scaled)) + noise * np.eye(len(self._target))
        try:
            factor = np.linalg.cholesky(kernel)
        except np.linalg.LinAlgError:
            return False
        inverse = np.linalg.inv(factor)
        half = inverse @ self._target
        score = -0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum())
        score -= 0.05 * float((np.log(lengths / self.START_LENGTH) ** 2).sum())
        if score <= self._score:
            return False
        self._score, self.lengths, self._noise = score, lengths, noise
        self._inverse_factor, self._weights = inverse, inverse.T @ half
        return True


def _distances(a: Matrix, b: Matrix) -> Matrix:
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
    result: Matrix = np.sqrt(np.maximum(squares, 0.0))
    return result


def _matern(distance: Matrix) -> Matrix:
    scaled = math.sqrt(5.0) * distance
    result: Matrix = (1.0 + scaled + scaled * scaled / 3.0) * np.exp(-scaled)
    return result


def _expected_improvement(mean: Matrix, deviation: Matrix, best: float) -> Matrix:
    gain = best - mean
    z = gain / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    below = 0.5 * (1.0 + np.vectorize(math.erf)(z / math.sqrt(2.0)))
    result: Matrix = gain * below + deviation * density
    return result
