"""The algorithms of GEMM with their parameters and constraints.

Constraints may name every parameter, the problem's fields (m, n, k, lda, trans_a, batch, element_bytes, ...; see
`GemmProblem.constraint_values`) and the device's limits (`DeviceLimits`).
"""

from autotune.kernels.gemm.plain_algorithms import DOT, NAIVE
from autotune.kernels.gemm.thin_algorithms import COLUMN, ROW
from autotune.kernels.gemm.tile_algorithms import LOCAL_TILE, MICROTILE, PANEL

ALGORITHMS = (NAIVE, DOT, MICROTILE, LOCAL_TILE, PANEL, ROW, COLUMN)
