"""Proposers of rows of a search space: the protocol, our model of the times, and rows in a given order.

Optuna's samplers are behind the same protocol in `study.py`.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from autotune.propose.acquisition import Observations
from autotune.propose.explorer import Explorer
from autotune.propose.prior import Source
from autotune.space.search_space import SearchSpace


class Proposer(Protocol):
    """Proposes rows of a search space and learns from their results.

    It can be asked for many rows ahead of the results.
    """

    def enqueue(self, rows: Sequence[int]) -> None:
        """Propose these rows before any others."""

    def ask(self) -> int | None:
        """Return the row to measure next, whose result is then passed to `tell`; None when there is no other."""

    def tell(self, row: int, time_ns: float | None = None, *, at_least_ns: float | None = None) -> None:
        """Take in the result of a row, whether it was proposed or not.

        `time_ns` is None if the row is not measured or did not run correctly, and `at_least_ns` is then the time that
        it is known to exceed, if any.
        """

    @property
    def expected_gain(self) -> float | None:
        """The share of the best time that the next trial is expected to save; None without a model."""


class ModelProposer:
    """Proposes the row with the largest expected improvement (`explorer.py`).

    Rows without a result yet are not proposed again, and the model assumes its own prediction as their result.
    """

    def __init__(self, space: SearchSpace, seed: int = 0, sources: Sequence[Source] = ()) -> None:
        self._explorer = Explorer(space, seed, sources)
        self._queue: deque[int] = deque()
        self._asked: dict[int, None] = {}
        """Rows without a result yet, in the order in which they were proposed."""
        self._log_times: dict[int, float] = {}
        self._at_least: dict[int, float] = {}
        self._failed: set[int] = set()

    def enqueue(self, rows: Sequence[int]) -> None:
        """Propose these rows before any others."""
        self._queue.extend(rows)

    def ask(self) -> int | None:
        """Return the next row; None when every row has been proposed."""
        row = self._queue.popleft() if self._queue else self._explorer.propose(self.known)
        if row is not None:
            self._asked[row] = None
        return row

    def tell(self, row: int, time_ns: float | None = None, *, at_least_ns: float | None = None) -> None:
        """Take in a result; of several times of a row, the shortest counts."""
        self._asked.pop(row, None)
        if time_ns is not None:
            self._log_times[row] = min(math.log(time_ns), self._log_times.get(row, math.inf))
        elif at_least_ns is not None:
            self._at_least[row] = math.log(at_least_ns)
        else:
            self._failed.add(row)

    @property
    def expected_gain(self) -> float | None:
        """The share of the best time that the next trial is expected to save; None before there is a model."""
        gain = self._explorer.expected_gain(self.known)
        return gain if gain < 1.0 else None

    @property
    def known(self) -> Observations:
        """Results so far, and the rows without one."""
        log_times = self._log_times
        return Observations(
            log_times=log_times,
            failed=frozenset(self._failed - log_times.keys()),
            at_least={row: bound for row, bound in self._at_least.items() if row not in log_times},
            pending=frozenset([*self._asked, *self._queue]),
        )


class ListProposer:
    """Proposes rows in the given order, whatever their results."""

    expected_gain = None

    def __init__(self, rows: Iterable[int]) -> None:
        self._rows = iter(rows)

    def enqueue(self, rows: Sequence[int]) -> None:
        """Propose these rows before any others."""
        self._rows = itertools.chain(rows, self._rows)

    def ask(self) -> int | None:
        """Return the next row; None after the last."""
        return next(self._rows, None)

    def tell(self, row: int, time_ns: float | None = None, *, at_least_ns: float | None = None) -> None:
        """Ignore a result."""


def random_rows(space: SearchSpace, seed: int) -> Iterator[int]:
    """Yield every row once, in a random order given by the seed."""
    return map(int, np.random.default_rng(seed).permutation(len(space)))
