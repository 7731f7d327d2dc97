"""What was measured elsewhere: on other devices, for other sizes, in an imported table.

How far it holds here is not assumed but learnt: the explorer keeps a model without each source beside one with it, and
believes them as they foretell.
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
    """Natural logarithms, in any unit: only differences count."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Everything known from elsewhere, the most alike first."""

    sources: tuple[Source, ...] = ()


class SourceModel:
    """A source's times as a function on this space, squeezed as the explorer's are and 0 at the source's best."""

    MODELLED = 300
    STEPS = 40
    BEST = 32

    def __init__(self, source: Source, space: SearchSpace, features: Features, hyper_prior: HyperPrior) -> None:
        """What of the source is not of this space's algorithms and parameters is left out; not all of it may be."""
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
        """Of many trials the fastest, and as many over the whole range."""
        order = np.argsort(values)
        if len(order) <= self.MODELLED:
            return order
        half = self.MODELLED // 2
        rest = order[half:]
        return np.concatenate([order[:half], rest[np.linspace(0, len(rest) - 1, half).astype(np.intp)]])

    def of(self, rows: Rows) -> Array:
        """What the source would have us expect of each row."""
        wanted = rows.tolist()
        missing = np.array(sorted({row for row in wanted if row not in self._known}), dtype=np.int64)
        if len(missing):
            mean, _ = self._process.predict(self._features.of(missing))
            self._known.update(zip(missing.tolist(), mean.tolist(), strict=True))
        return np.array([self._known[row] for row in wanted])
