"""Compares tuned products with the host's BLAS after a search, in a child process with a time limit.

A few of the tuned products, from small to large, are timed on both sides; `autotune.runtime.crossover` stores them.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune import child
from autotune.errors import AutotuneError, WorkerError
from autotune.kernels.gemm import GemmProblem
from autotune.model.device import Device
from autotune.model.trial import Winner

if TYPE_CHECKING:
    from autotune.runtime.crossover import CrossoverPoint

MOST_PRODUCTS = 6
MOST_SECONDS = 6.0
"""Time after which no further product is begun."""
MOST_TIME_NS = 20e6
MOST_BYTES = 2**27
"""Longer or larger products are left out: measuring them is expensive, and the device is hardly ever slower."""
LIMIT_S = 30.0

_THREADS = "OPENBLAS_NUM_THREADS"
HOST_THREADS = "AUTOTUNE_HOST_THREADS"
"""Environment variable: what the user has in OPENBLAS_NUM_THREADS, which the command line changes for itself."""


def compare_with_host(
    device: Device,
    winners: Sequence[Winner],
    table: Path,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    command: Sequence[str] = (),
) -> "list[CrossoverPoint]":
    """Return the measured points; the comparison ends at the first product that fails."""
    points: list[CrossoverPoint] = []
    end = time.monotonic() + MOST_SECONDS
    # The host's BLAS gets the threads that it has in an application; in other child processes it has one.
    threads = os.environ.get(HOST_THREADS, os.environ.get(_THREADS, "")) or "0"  # 0: one for each processor
    comparer = tuple(command) or (sys.executable, "-m", "autotune.runtime.comparison")
    with child.Child(comparer, {**os.environ, _THREADS: threads}) as process:
        for problem in choose_products(winners):
            if should_stop() or time.monotonic() > end:
                break
            try:
                answer = process.ask((device.selector, str(table), problem), {"comparison": LIMIT_S})
            except WorkerError:
                break
            if isinstance(answer, child.Loss):
                break
            points.append(answer)
    return points


def choose_products(winners: Sequence[Winner]) -> list[GemmProblem]:
    """Return a few products that are quick to measure, evenly spaced from small to large."""
    cheap = [
        winner.problem
        for winner in winners
        if isinstance(winner.problem, GemmProblem)
        and winner.problem.mode != "float16-acc16"  # arrays cannot distinguish it from float16
        and winner.time_ns <= MOST_TIME_NS
        and winner.problem.bytes_moved <= MOST_BYTES
        and _is_dense(winner.problem)
    ]
    ordered = sorted(dict.fromkeys(cheap), key=lambda problem: problem.flops)
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
    """Run as the child process: time products until the input ends."""

    def compare(question: tuple[str, str, GemmProblem], entering: Callable[[str], None]) -> "CrossoverPoint":
        entering("comparison")
        from autotune.runtime import Gemm, measure_crossover

        try:
            selector, table, problem = question
            gemm = Gemm(selector, table=table, host_blas=False)
            (point,) = measure_crossover([problem], gemm).points
        except AutotuneError:
            raise
        except Exception as error:  # drivers raise arbitrary exceptions, which the parent needs to see
            raise WorkerError(f"{type(error).__name__}: {error}") from error
        return point

    child.serve(compare)


if __name__ == "__main__":
    serve()
