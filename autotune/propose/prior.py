"""Prior knowledge: measurements of other sizes.

Whether they apply here is learnt, not assumed: the explorer keeps a model without any source beside one for each, and
weights them by how well they predict.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.model.configuration import Configuration
from autotune.propose.features import Features, Rows
from autotune.propose.gaussian import Array, GaussianProcess, HyperPrior, fit
from autotune.space.search_space import SearchSpace


@dataclass(frozen=True, kw_only=True)
class Source:
    """Complete trials of one other problem or device."""

    name: str
    configurations: tuple[Configuration, ...]
    log_times: tuple[float, ...]
    """Natural logarithms of the times in any unit: only differences count."""


class SourceModel:
    """A source's times as a function on this space.

    They are on the explorer's compressed logarithmic scale (`explorer.py`), and 0 at the source's best.
    """

    MODELLED = 300
    STEPS = 40
    BEST = 32

    def __init__(self, source: Source, space: SearchSpace, features: Features, hyper_prior: HyperPrior) -> None:
        """Configurations with other algorithms or parameters than this space are ignored; at least one must remain."""
        usable = [i for i, c in enumerate(source.configurations) if features.can_describe(c)]
        times = np.array([source.log_times[i] for i in usable])
        values = np.log1p(times - times.min())
        chosen = self._chosen(values)
        points = features.of_configurations([source.configurations[usable[i]] for i in chosen])
        start = hyper_prior.mean
        self._process: GaussianProcess = fit(points, values[chosen], hyper_prior, start, self.STEPS)
        self._features = features
        self._known: dict[int, float] = {}
        fastest = [source.configurations[usable[i]] for i in np.argsort(values)[: self.BEST]]
        rows = [space.row_of(configuration) for configuration in fastest]
        self.best_rows: Rows = np.array([row for row in rows if row is not None], dtype=np.int64)
        """Rows of the source's fastest configurations that are valid here."""

    def _chosen(self, values: Array) -> NDArray[np.intp]:
        """Return indices of at most MODELLED values: the smallest, and as many spread over the rest."""
        order = np.argsort(values)
        if len(order) <= self.MODELLED:
            return order
        half = self.MODELLED // 2
        rest = order[half:]
        return np.concatenate([order[:half], rest[np.linspace(0, len(rest) - 1, half).astype(np.intp)]])

    def of(self, rows: Rows) -> Array:
        """Return the source's prediction for each of n rows, shape (n,)."""
        wanted = rows.tolist()
        missing = np.array(sorted({row for row in wanted if row not in self._known}), dtype=np.int64)
        if len(missing):
            mean, _ = self._process.predict(self._features.of(missing))
            self._known.update(zip(missing.tolist(), mean.tolist(), strict=True))
        return np.array([self._known[row] for row in wanted])
