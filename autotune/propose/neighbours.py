"""Neighbours in a search space: configurations that differ in one parameter."""

import numpy as np
from numpy.typing import NDArray

from autotune.space.diagram import Numbers, Paths
from autotune.space.search_space import SearchSpace


class Neighbours:
    """Finds the rows that differ from given ones in one parameter, in a time almost independent of the space's size."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._changes = {name: _changes(diagram.sizes) for name, diagram in space.diagrams.items()}

    def of(self, rows: Numbers) -> Numbers:
        """Return rows of the same algorithm that differ from one of these in one parameter; may have duplicates."""
        found = [np.zeros(0, dtype=np.int64)]
        for span, _, paths in self._space.paths(rows):
            found.append(self._space.rows(span.algorithm, _changed(paths, self._changes[span.algorithm])))
        near = np.concatenate(found)
        return near[near >= 0]

    def within_two(self, row: int) -> Numbers:
        """Return the rows of the same algorithm that differ from this one in one or two parameters."""
        [(span, _, paths)] = self._space.paths(np.array([row]))
        once = _changed(paths, self._changes[span.algorithm])
        twice = _changed(once, self._changes[span.algorithm])
        near = np.unique(self._space.rows(span.algorithm, np.concatenate([once, twice])))
        others: Numbers = near[(near >= 0) & (near != row)]
        return others


def _changes(sizes: tuple[int, ...]) -> NDArray[np.uint16]:
    """Return all changes of one value, shape (changes, 3): layer, increment of the index, and size (the modulus)."""
    changes = [(layer, by, size) for layer, size in enumerate(sizes) for by in range(1, size)]
    return np.array(changes, dtype=np.uint16).reshape(-1, 3)


def _changed(paths: Paths, changes: NDArray[np.uint16]) -> Paths:
    """Apply each change to each path; the result has shape (paths * changes, layers)."""
    layers, by, sizes = changes.T
    after = np.repeat(paths, len(changes), axis=0)
    lines = np.arange(len(after))
    columns = np.tile(layers, len(paths))
    after[lines, columns] = (after[lines, columns] + np.tile(by, len(paths))) % np.tile(sizes, len(paths))
    return after
