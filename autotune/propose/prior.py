"""Prior knowledge: the usual size of work-groups, and measurements of other sizes.

Whether these measurements apply here is learnt, not assumed: the explorer keeps a model without any source beside one
for each, and weights them by how well they predict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.model.configuration import Configuration
from autotune.propose.features import Features, Rows
from autotune.propose.gaussian import Array, GaussianProcess, HyperPrior, fit
from autotune.space.search_space import SearchSpace


class UsualWorkGroup:
    """Expects, before anything is measured, that work-groups of a usual size are the fastest on a GPU.

    Small ones leave lanes of sub-groups or places of a compute unit empty, large ones leave few registers for each
    work-item and wait for their slowest sub-group. The model learns what differs from that.
    """

    LOG_ITEMS = 7.25
    """Binary logarithm of the usual number of work-items, between 128 and 256."""
    SLOWNESS = 0.06
    """What the square of the distance from that adds on the explorer's scale: 0.06 for half or twice as many.

    On the ten recorded spaces of the design, searches reached 95% of the optimum in 27.0 trials instead of 33.7 (mean
    of medians, 40 seeds); with 0.03, in 27.7.
    """
    KEPT_ROWS = 100_000
    """What is expected of all rows of a space no larger is computed once and kept."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._environment: Mapping[str, Any] = {
            **space.limits.constraint_values(),
            **space.problem.constraint_values(),
        }
        self._table = self._compute(np.arange(len(space))) if len(space) <= self.KEPT_ROWS else None

    @staticmethod
    def is_known_of(space: SearchSpace) -> bool:
        """Return whether the space is a GPU's, and its algorithms state the size of their work-groups."""
        algorithms = map(space.family.algorithm, space.parameters)
        return not space.limits.is_cpu and all(algorithm.work_items for algorithm in algorithms)

    def of(self, rows: Rows) -> Array:
        """Return what is expected of each of n rows, shape (n,), 0 for the usual size."""
        return self._compute(rows) if self._table is None else self._table[rows]

    def _compute(self, rows: Rows) -> Array:
        found = np.zeros(len(rows))
        for span, lines, paths in self._space.paths(rows):
            work_items = self._space.family.algorithm(span.algorithm).work_items
            assert work_items is not None
            named = {
                p.name: np.array(p.values)[paths[:, layer]]
                for layer, p in enumerate(self._space.parameters[span.algorithm])
                if p.name in work_items.names
            }
            with np.errstate(divide="ignore", invalid="ignore"):  # of a launch that these values leave out
                items = np.asarray(work_items({**self._environment, **named}), dtype=np.float64)
            found[lines] = self.SLOWNESS * (np.log2(np.maximum(items, 1.0)) - self.LOG_ITEMS) ** 2
        return found


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
            mean = self._process.mean(self._features.of(missing))
            self._known.update(zip(missing.tolist(), mean.tolist(), strict=True))
        return np.array([self._known[row] for row in wanted])
