"""A Gaussian process on the logarithm of time: Matern 5/2 with a length scale for each feature.

Length scales and noise maximise the likelihood times a prior, by a few steps of gradient ascent that begin where the
fit before ended: from one trial to the next little changes.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Matrix = NDArray[np.float64] | NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """`log_weights`: logarithm of the inverse length scale of each feature."""

    log_weights: Array
    log_noise: float


@dataclass(frozen=True, kw_only=True)
class HyperPrior:
    """Where hyperparameters are thought to lie before anything is measured: normal in their logarithms."""

    mean: Hyperparameters
    weight_deviation: float = 1.0
    noise_deviation: float = 1.5

    def log_density(self, at: Hyperparameters) -> float:
        weights = (at.log_weights - self.mean.log_weights) / self.weight_deviation
        noise = (at.log_noise - self.mean.log_noise) / self.noise_deviation
        return -0.5 * float(weights @ weights) - 0.5 * noise * noise

    def gradient(self, at: Hyperparameters) -> Array:
        """By each log weight, then by the log noise."""
        weights = (self.mean.log_weights - at.log_weights) / self.weight_deviation**2
        return np.append(weights, (self.mean.log_noise - at.log_noise) / self.noise_deviation**2)


class GaussianProcess:
    """What is known of a function after its values at some points, under given hyperparameters."""

    JITTER = 1e-6
    NEGLIGIBLE = 0.003
    """Features that together make less than this of the distances are left out when predicting."""

    def __init__(self, features: Matrix, values: Array, at: Hyperparameters) -> None:
        """`features`: one line a point. Raises LinAlgError when the kernel matrix is singular."""
        self.at = at
        self._features = features
        self._values = values
        self._mean = float(values.mean())
        self._scale = float(values.std()) or 1.0
        self._solve()

    def _solve(self) -> None:
        self._weighted = self._features * np.exp(self.at.log_weights)
        self._root, self._decay = _distances(self._weighted, self._weighted)
        kernel = (1.0 + self._root + self._root**2 / 3.0) * self._decay
        kernel[np.diag_indices(len(kernel))] += math.exp(self.at.log_noise) + self.JITTER
        factor = np.linalg.cholesky(kernel)
        self._inverse = np.linalg.inv(factor)
        self._conclude(2.0 * float(np.log(np.diag(factor)).sum()))

    @property
    def log_likelihood(self) -> float:
        """Of the values as they were given, so that models of differently scaled values compare."""
        own = -0.5 * float(self._half @ self._half) - 0.5 * self._log_determinant
        return own - len(self._values) * math.log(self._scale)

    def gradient(self) -> Array:
        """Of the likelihood by each log weight, then by the log noise."""
        inner = np.outer(self._solution, self._solution) - self._inverse.T @ self._inverse
        slope = inner * ((5.0 / 3.0) * (1.0 + self._root) * self._decay)
        squares = slope.sum(axis=1) @ self._weighted**2 - ((slope @ self._weighted) * self._weighted).sum(axis=0)
        return np.append(-squares, 0.5 * float(np.trace(inner)) * math.exp(self.at.log_noise))

    def believing(self, features: Matrix, *, at_least: Array | None = None) -> Self:
        """The same with more points, taken to turn out as predicted, or as `at_least` where that is more."""
        if not len(features):
            return self
        values, _ = self.predict(features)
        other = object.__new__(type(self))
        other.at, other._mean, other._scale = self.at, self._mean, self._scale
        other._features = np.concatenate([self._features, features])
        other._values = np.append(self._values, values if at_least is None else np.maximum(values, at_least))
        other._extend(self, features)
        return other

    def _extend(self, before: Self, features: Matrix) -> None:
        """As `_solve`, from the solution without the last points: the time grows with the square of the others."""
        more = features * np.exp(self.at.log_weights)
        self._weighted = np.concatenate([before._weighted, more])
        cross, own = _matern(more, before._weighted), _matern(more, more)
        own[np.diag_indices(len(own))] += math.exp(self.at.log_noise) + self.JITTER
        side = cross @ before._inverse.T
        corner = np.linalg.cholesky(own - side @ side.T)
        corner_inverse = np.linalg.inv(corner)
        size = len(before._inverse)
        self._inverse = np.zeros((size + len(more), size + len(more)))
        self._inverse[:size, :size] = before._inverse
        self._inverse[size:, :size] = -corner_inverse @ (side @ before._inverse)
        self._inverse[size:, size:] = corner_inverse
        self._conclude(before._log_determinant + 2.0 * float(np.log(np.diag(corner)).sum()))

    def _conclude(self, log_determinant: float) -> None:
        self._half = self._inverse @ ((self._values - self._mean) / self._scale)
        self._solution = self._inverse.T @ self._half
        self._log_determinant = log_determinant
        self._used: NDArray[np.intp] | None = None

    def predict(self, features: Matrix) -> tuple[Array, Array]:
        """Mean and standard deviation at each line of features."""
        if self._used is None:
            self._choose_used()
        assert self._used is not None
        points = features[:, self._used] * self._used_weights
        root, decay = _distances(points, self._used_points)
        kernel = (1.0 + root + root * root * np.float32(1 / 3)) * decay
        reduction = kernel @ self._inverse32.T
        variance = np.maximum(1e-9, 1.0 - np.einsum("ij,ij->i", reduction, reduction, dtype=np.float64))
        mean = (kernel @ self._solution.astype(np.float32)).astype(np.float64)
        return self._mean + self._scale * mean, self._scale * np.sqrt(variance)

    def _choose_used(self) -> None:
        shares = self._weighted.var(axis=0)
        order = np.argsort(shares)
        spare = np.cumsum(shares[order]) <= self.NEGLIGIBLE * max(float(shares.sum()), 1e-30)
        self._used = np.sort(order[~spare])
        self._used_weights = np.exp(self.at.log_weights[self._used]).astype(np.float32)
        self._used_points = self._weighted[:, self._used].astype(np.float32)
        self._inverse32 = self._inverse.astype(np.float32)


def fit(features: Matrix, values: Array, prior: HyperPrior, start: Hyperparameters, steps: int) -> GaussianProcess:
    """The best of the models met in so many steps of gradient ascent (Adam) from `start`."""
    rate, smallest_noise, largest_noise = 0.2, math.log(1e-4), math.log(0.5)
    first = np.zeros(len(start.log_weights) + 1)
    second = np.zeros_like(first)
    best: GaussianProcess | None = None
    best_score = -math.inf
    at = start
    for step in range(steps + 1):
        try:
            model = GaussianProcess(features, values, at)
        except np.linalg.LinAlgError:
            break
        score = model.log_likelihood + prior.log_density(at)
        if score > best_score:
            best, best_score = model, score
        if step == steps:
            break
        gradient = model.gradient() + prior.gradient(at)
        first = 0.8 * first + 0.2 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        move = rate * first / (1 - 0.8 ** (step + 1)) / (np.sqrt(second / (1 - 0.9 ** (step + 1))) + 1e-3)
        noise = min(max(at.log_noise + float(move[-1]), smallest_noise), largest_noise)
        at = dataclasses.replace(at, log_weights=at.log_weights + move[:-1], log_noise=noise)
    return best or GaussianProcess(features, values, prior.mean)


def _distances(a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """Distances times the root of five, and the exponentials of what is below zero by them."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
    root = np.sqrt(5.0 * np.maximum(squares, 0.0))
    return root, np.exp(-root)


def _matern(a: Matrix, b: Matrix) -> Array:
    root, decay = _distances(a, b)
    return np.asarray((1.0 + root + root**2 / 3.0) * decay, dtype=np.float64)
