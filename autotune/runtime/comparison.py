"""Comparing tuned products with the host's BLAS after a search, in a child process that may not outlast its limit.

A few products of what was tuned, from small to large, are timed on both sides; `autotune.runtime.crossover` keeps them.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autotune.errors import AutotuneError, WorkerError
from autotune.kernels.gemm import GemmProblem
from autotune.model.device import Device
from autotune.model.trial import Winner
from autotune.process import child

if TYPE_CHECKING:
    from autotune.runtime.crossover import CrossoverPoint

MOST_PRODUCTS = 6
MOST_SECONDS = 6.0
"""No further product is begun after so long."""
MOST_TIME_NS = 20e6
MOST_BYTES = 2**27
"""Of one product: where it takes longer or moves more, knowing it is not cheap, and the device hardly ever loses."""
LIMIT_S = 30.0

_THREADS = "OPENBLAS_NUM_THREADS"


class Question(NamedTuple):
    """One product to time, with the configurations of a table."""

    selector: str
    table: str
    problem: GemmProblem


def compare_with_host(
    device: Device,
    winners: Sequence[Winner],
    table: Path,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    command: Sequence[str] = (),
) -> "list[CrossoverPoint]":
    """What was measured; nothing of products that fail, and no more after the first that does."""
    points: list[CrossoverPoint] = []
    end = time.monotonic() + MOST_SECONDS
    # The host's BLAS is to have the threads that it has in an application; those of other children have one.
    comparer = tuple(command) or (sys.executable, "-m", "autotune.runtime.comparison", os.environ.get(_THREADS, ""))
    with child.Child(comparer) as process:
        for problem in choose_products(winners):
            if should_stop() or time.monotonic() > end:
                break
            try:
                answer = process.ask(Question(device.selector, str(table), problem), {"comparison": LIMIT_S})
            except WorkerError:
                break
            if isinstance(answer, child.Loss):
                break
            points.append(answer)
    return points


def choose_products(winners: Sequence[Winner]) -> list[GemmProblem]:
    """A few that are quick to measure, evenly from small to large."""
    cheap = {
        winner.problem: winner.problem.flops
        for winner in winners
        if isinstance(winner.problem, GemmProblem)
        and winner.problem.mode != "float16-acc16"  # the arrays do not tell it from float16
        and winner.time_ns <= MOST_TIME_NS
        and winner.problem.bytes_moved <= MOST_BYTES
        and _is_dense(winner.problem)
    }
    ordered = sorted(cheap, key=cheap.__getitem__)
    count = min(len(ordered), MOST_PRODUCTS)
    if count < 2:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (count - 1))] for number in range(count)]


def _is_dense(problem: GemmProblem) -> bool:
    return problem == GemmProblem(
        m=problem.m, n=problem.n, k=problem.k, batch=problem.batch, mode=problem.mode,
        trans_a=problem.trans_a, trans_b=problem.trans_b,
    )  # fmt: skip


def serve() -> None:
    """The child: time products until the input ends."""

    def compare(question: Question, entering: Callable[[str], None]) -> "CrossoverPoint":
        entering("comparison")
        from autotune.runtime import Gemm, measure_crossover

        try:
            gemm = Gemm(question.selector, table=question.table, host_blas=False)
            (point,) = measure_crossover([question.problem], gemm).points
        except AutotuneError:
            raise
        except Exception as error:  # drivers raise what they like, and the parent wants to know
            raise WorkerError(f"{type(error).__name__}: {error}") from error
        return point

    child.serve(compare)


if __name__ == "__main__":
    # Before NumPy is loaded, which asks then and not again.
    os.environ.pop(_THREADS, None)
    if sys.argv[1:] and sys.argv[1]:
        os.environ[_THREADS] = sys.argv[1]
    serve()
