"""Tuned kernels on arrays: `Gemm`, `Reduce`, `Operation` for any family, and `allocate` for shared memory.

    from autotune.runtime import Gemm, allocate

    gemm = Gemm()                                   # the device at hand, the user's tuning table
    c = gemm(a, b)                                  # NumPy or pyopencl arrays
    gemm(a, b, out=c, alpha=2, beta=1, trans_b=True)
    weights = gemm.prepare(b)                       # constant: packed once, on the device
    c = gemm(a, weights)

`layout` reads the problem from the operands, `choice` picks configurations, `verification` checks them before their
first use, `engine` builds and runs them, `on_device` is what calls have in common, `executor` moves what they work on,
and `crossover` knows which products the host does faster.
"""

from autotune.runtime.crossover import Crossover, CrossoverPoint, measure_crossover, measure_host_ns
from autotune.runtime.engine import PreparedMatrix
from autotune.runtime.executor import Statistics, allocate
from autotune.runtime.gemm import Gemm
from autotune.runtime.on_device import Bound
from autotune.runtime.operation import Operation
from autotune.runtime.reduce import Reduce

__all__ = [
    "Bound",
    "Crossover",
    "CrossoverPoint",
    "Gemm",
    "Operation",
    "PreparedMatrix",
    "Reduce",
    "Statistics",
    "allocate",
    "measure_crossover",
    "measure_host_ns",
]
