"""Recorded spaces as search spaces: every configuration of a kernel that somebody timed on one device."""

import math
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from search_rivals import Recorded

from autotune.model.device import DeviceLimits
from autotune.space.diagram import Diagram, Paths
from autotune.space.expression import Expression
from autotune.space.family import Algorithm, Parameter
from autotune.space.search_space import SearchSpace

WORK_GROUPS = (("block_size_x", "block_size_y", "block_size_z"), ("MDIMC", "NDIMC"))
"""Parameters whose product is the work-items of a work-group: Kernel Tuner's names, and those of CLBlast's GEMM."""


class _Blank:
    """Stands for the problem and the family of a recorded space, of which only the size of work-groups is known."""

    def __init__(self, kernel: str, parameters: tuple[Parameter, ...]) -> None:
        names = {parameter.name for parameter in parameters}
        factors = next((found for group in WORK_GROUPS if (found := [n for n in group if n in names])), None)
        self._algorithm = Algorithm(
            name=kernel,
            meaning="",
            parameters=parameters,
            work_items=Expression(" * ".join(factors)) if factors else None,
        )

    def algorithm(self, _name: str) -> Algorithm:
        return self._algorithm

    def constraint_values(self) -> dict[str, int]:
        return {}


class RecordedSpace(SearchSpace):
    """The rows of a file as a search space of one algorithm, named after the kernel."""

    def __init__(self, path: Path) -> None:
        recorded = Recorded(path)
        self.kernel = f"{path.name.partition('_')[0]}_{zlib.crc32(' '.join(recorded.names).encode()):08x}"
        """Spaces of the same kernel have the same parameters."""
        parameters = tuple(
            Parameter(name=name, values=tuple(recorded.values[name]), meaning="") for name in recorded.names
        )
        numbers = [{value: i for i, value in enumerate(recorded.values[name])} for name in recorded.names]
        paths = np.array(
            [[number[value] for number, value in zip(numbers, row, strict=True)] for row in recorded.rows],
            dtype=np.uint16,
        )
        self.family = self.problem = _Blank(self.kernel, parameters)  # type: ignore[assignment]
        self.limits = DeviceLimits()
        self._number({self.kernel: parameters}, {self.kernel: _diagram([len(n) for n in numbers], paths)})
        self.times_ms = np.full(len(self), math.nan)
        self.times_ms[self.rows(self.kernel, paths)] = recorded.times_ms


def _diagram(sizes: Sequence[int], paths: Paths) -> Diagram:
    """The diagram of exactly these paths, in any order; duplicates count once."""
    states = np.zeros(len(paths), dtype=np.int64)
    edges, count = [], 1
    for layer, size in enumerate(sizes):
        found, numbers = np.unique(states * size + paths[:, layer], return_inverse=True)
        targets = np.full(count * size, -1)
        targets[found] = np.arange(len(found))
        edges.append(targets.reshape(count, size))
        states, count = numbers, len(found)
    return Diagram(edges)


@cache
def load(path: Path) -> RecordedSpace:
    return RecordedSpace(path)
