"""A Gaussian process on the logarithm of time, with a Matern 5/2 kernel and a length scale for each feature.

Kernel: Rasmussen and Williams 2006, section 4.2. Length scales and noise maximise the likelihood times a prior by a few
steps of gradient ascent from the previous fit, since little changes from one trial to the next.
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
    """`log_weights`, shape (features,): logarithm of the inverse length scale of each feature."""

    log_weights: Array
    log_noise: float


@dataclass(frozen=True, kw_only=True)
class HyperPrior:
    """Prior of the hyperparameters: normal in their logarithms."""

    mean: Hyperparameters
    weight_deviation: float = 1.0
    noise_deviation: float = 1.5

    def log_density(self, at: Hyperparameters) -> float:
        weights = (at.log_weights - self.mean.log_weights) / self.weight_deviation
        noise = (at.log_noise - self.mean.log_noise) / self.noise_deviation
        return -0.5 * float(weights @ weights) - 0.5 * noise * noise

    def gradient(self, at: Hyperparameters) -> Array:
        """Return the gradient with respect to each log weight, then the log noise; shape (features + 1,)."""
        weights = (self.mean.log_weights - at.log_weights) / self.weight_deviation**2
        return np.append(weights, (self.mean.log_noise - at.log_noise) / self.noise_deviation**2)


class GaussianProcess:
    """The posterior of a function given its values at some points and the hyperparameters."""

    JITTER = 1e-6
    NEGLIGIBLE = 0.003
    """Features that together contribute less than this fraction of the distances are ignored when predicting."""

    def __init__(self, features: Matrix, values: Array, at: Hyperparameters) -> None:
        """`features` has shape (points, features), `values` shape (points,).

        Raises LinAlgError when the kernel matrix is singular.
        """
        self.at = at
        self._features = features
        self._values = values
        self._mean = float(values.mean())
        self._scale = float(values.std()) or 1.0
        self._solve()

    def _solve(self) -> None:
        self._weighted = self._features * np.exp(self.at.log_weights)
        self._root, self._decay = _distances(self._weighted, self._weighted)
        kernel = _kernel(self._root, self._decay)
        kernel[np.diag_indices(len(kernel))] += math.exp(self.at.log_noise) + self.JITTER
        factor = np.linalg.cholesky(kernel)
        self._inverse = _inverse_of_lower(factor)
        self._conclude(2.0 * float(np.log(np.diag(factor)).sum()))

    @property
    def log_likelihood(self) -> float:
        """Log likelihood of the values as given, not standardised, so that models of different scales compare."""
        own = -0.5 * float(self._half @ self._half) - 0.5 * self._log_determinant
        return own - len(self._values) * math.log(self._scale)

    def gradient(self) -> Array:
        """Return the gradient of the log likelihood: each log weight, then the log noise; shape (features + 1,).

        Rasmussen and Williams 2006, section 5.4.1.
        """
        inner = np.outer(self._solution, self._solution) - self._inverse.T @ self._inverse
        slope = inner * ((5.0 / 3.0) * (1.0 + self._root) * self._decay)
        squares = slope.sum(axis=1) @ self._weighted**2 - ((slope @ self._weighted) * self._weighted).sum(axis=0)
        return np.append(-squares, 0.5 * float(np.trace(inner)) * math.exp(self.at.log_noise))

    def believing(self, features: Matrix, *, at_least: Array | None = None) -> Self:
        """Return the process with more points, whose values are assumed as predicted, or `at_least` if that is larger.

        `features` has shape (n, features), `at_least` shape (n,).
        """
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
        """Do as `_solve`, starting from the solution without the new points, in time quadratic in the old ones."""
        more = features * np.exp(self.at.log_weights)
        self._weighted = np.concatenate([before._weighted, more])
        cross, own = _kernel(*_distances(more, before._weighted)), _kernel(*_distances(more, more))
        own[np.diag_indices(len(own))] += math.exp(self.at.log_noise) + self.JITTER
        side = cross @ before._inverse.T
        corner = np.linalg.cholesky(own - side @ side.T)
        corner_inverse = _inverse_of_lower(corner)
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
        """Return mean and standard deviation, shape (n,) each, at features of shape (n, features)."""
        kernel = self._kernel_to(features)
        reduction = kernel @ self._inverse32.T
        variance = np.maximum(1e-9, 1.0 - np.einsum("ij,ij->i", reduction, reduction, dtype=np.float64))
        return self._mean_by(kernel), self._scale * np.sqrt(variance)

    def mean(self, features: Matrix) -> Array:
        """Return the mean, shape (n,), at features of shape (n, features)."""
        return self._mean_by(self._kernel_to(features))

    def _mean_by(self, kernel: Matrix) -> Array:
        return self._mean + self._scale * (kernel @ self._solution.astype(np.float32)).astype(np.float64)

    def _kernel_to(self, features: Matrix) -> Matrix:
        if self._used is None:
            self._choose_used()
        assert self._used is not None
        points = features[:, self._used] * self._used_weights
        return _kernel(*_distances(points, self._used_points))

    def _choose_used(self) -> None:
        shares = self._weighted.var(axis=0)
        order = np.argsort(shares)
        spare = np.cumsum(shares[order]) <= self.NEGLIGIBLE * max(float(shares.sum()), 1e-30)
        self._used = np.sort(order[~spare])
        self._used_weights = np.exp(self.at.log_weights[self._used]).astype(np.float32)
        self._used_points = self._weighted[:, self._used].astype(np.float32)
        self._inverse32 = self._inverse.astype(np.float32)


def fit(features: Matrix, values: Array, prior: HyperPrior, start: Hyperparameters, steps: int) -> GaussianProcess:
    """Return the best model met in `steps` steps of gradient ascent from `start` (Adam: Kingma and Ba 2015)."""
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
    """Return ``sqrt(5) * distance`` between the rows of `a` and `b`, and ``exp(-sqrt(5) * distance)``.

    Shapes: (n, features) and (m, features); both results (n, m).
    """
    root: Matrix = a @ b.T  # and then in place, since new arrays take longer than what is computed
    root *= -2.0
    root += np.einsum("ij,ij->i", a, a)[:, None]
    root += np.einsum("ij,ij->i", b, b)
    np.maximum(root, 0.0, out=root)
    root *= 5.0
    np.sqrt(root, out=root)
    decay = -root
    return root, np.exp(decay, out=decay)


def _kernel(root: Matrix, decay: Matrix) -> Matrix:
    """Return the Matern 5/2 kernel from the results of `_distances`."""
    kernel: Matrix = root * root
    kernel *= 1 / 3
    kernel += root
    kernel += 1.0
    kernel *= decay
    return kernel


def _inverse_of_lower(factor: Matrix) -> Array:
    """Return the inverse of a lower triangular matrix, by halves: several times as fast as NumPy's of any matrix."""
    size = len(factor)
    if size <= 48:
        return np.asarray(np.linalg.inv(factor), dtype=np.float64)
    half = size // 2
    inverse = np.zeros((size, size))
    inverse[:half, :half] = _inverse_of_lower(factor[:half, :half])
    inverse[half:, half:] = _inverse_of_lower(factor[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ (factor[half:, :half] @ inverse[:half, :half])
    return inverse
