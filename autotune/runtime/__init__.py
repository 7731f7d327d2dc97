"""Tuned kernels on arrays: `Gemm`, `QGemm`, `Attention`, `Conv`, `Reduce`, `Operation` for any family.

    from autotune.runtime import Gemm, allocate

    gemm = Gemm()                                   # the device at hand, the user's tuning table
    c = gemm(a, b)                                  # NumPy or pyopencl arrays
    gemm(a, b, out=c, alpha=2, beta=1, trans_b=True)
    weights = gemm.prepare(b)                       # constant: packed once, on the device
    c = gemm(a, weights)
    qgemm = QGemm()
    y = qgemm(x, qgemm.prepare(tensor))             # of a GGUF file: x @ dequantised.T
    attention = Attention()
    out = attention(q, KeyValues(k=k, v=v), lengths=1000, scores=Scores(causal=True))
    conv = Conv()
    y = conv(x, conv.prepare(w), bias=b, window=Window(padding=(1, 1, 1, 1), activation="relu"))

`layout` reads the problem from the operands, `choice` picks configurations, `verification` checks them before their
first use, `engine` builds and runs them, `on_device` is what calls have in common, `prepared` keeps constant operands,
`executor` moves what they work on, and `crossover` knows which products the host does faster.
"""

from autotune.kernels.qgemm.int4 import from_awq, from_gptq
from autotune.runtime.attention import Attention, KeyValues, Scores
from autotune.runtime.conv import Conv, PreparedFilters, Window
from autotune.runtime.crossover import Crossover, CrossoverPoint, measure_crossover, measure_host_ns
from autotune.runtime.executor import Statistics, allocate
from autotune.runtime.gemm import Gemm
from autotune.runtime.on_device import Bound
from autotune.runtime.operation import Operation, Reduce
from autotune.runtime.prepared import PreparedMatrix
from autotune.runtime.qgemm import PreparedWeights, QGemm

__all__ = [
    "Attention",
    "Bound",
    "Conv",
    "Crossover",
    "CrossoverPoint",
    "Gemm",
    "KeyValues",
    "Operation",
    "PreparedFilters",
    "PreparedMatrix",
    "PreparedWeights",
    "QGemm",
    "Reduce",
    "Scores",
    "Statistics",
    "Window",
    "allocate",
    "from_awq",
    "from_gptq",
    "measure_crossover",
    "measure_host_ns",
]
