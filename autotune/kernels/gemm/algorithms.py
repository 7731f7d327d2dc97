"""The algorithms of GEMM with their parameters and constraints.

Here are `naive` and `dot`, with one output per work-item, and `row` and `column`, for few rows or few columns, which
are limited by the speed of reading the larger operand.

Constraints may name every parameter, the problem's fields (m, n, k, lda, trans_a, batch, element_bytes, ...; see
`GemmProblem.constraint_values`) and the device's limits (`DeviceLimits`).
"""

from autotune.kernels.combination import COMBINE, HAS_ORDERING
from autotune.kernels.gemm.parameters import (
    EDGES,
    HAS_INTEGER_DOT,
    HAS_WAVE_SIZE,
    INTEGER_DOT,
    LOADS,
    MATH,
    PARTS_TO_COMBINE,
    WAVE_SIZE,
    WHOLE_NUMBERS,
    WORK_GROUP,
    WORK_GROUP_LIMITS,
    accumulators_fit,
    aligned,
    columns_to_do,
    rows_to_do,
    sums_fit_local_memory,
    vectors_work,
)
from autotune.kernels.gemm.tile_algorithms import LOCAL_TILE, MICROTILE, PANEL
from autotune.space.expression import Expression
from autotune.space.family import Algorithm, constraint, parameter

_OUTPUTS_TO_DO = rows_to_do("work_group_m - 1 < m"), columns_to_do("work_group_n - 1 < n")
_ALIGNMENT_MATTERS = constraint(
    "alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"
)

NAIVE = Algorithm(
    name="naive",
    meaning="one output per work-item, scalar loop over k",
    parameters=WORK_GROUP,
    constraints=(
        *WORK_GROUP_LIMITS,
        *_OUTPUTS_TO_DO,
    ),
)

DOT = Algorithm(
    name="dot",
    meaning="one output per work-item, vector dot products along k",
    parameters=(
        *WORK_GROUP,
        parameter("vector_width", (2, 4, 8, 16), "elements of k in one product"),
        parameter("unroll", (1, 2, 4), "vectors of k in one step of the loop"),
        parameter("b_storage", ("buffer", "transposed"), "gather columns of B, or first copy B transposed"),
        EDGES,
        LOADS,
        MATH,
        INTEGER_DOT,
    ),
    constraints=(
        *WORK_GROUP_LIMITS,
        vectors_work("vector_width"),
        *_OUTPUTS_TO_DO,
        constraint("step_within_k", "vector_width * unroll < 2 * k", "one step is longer than k"),
        aligned(
            "edges == 'pad' or ((trans_a == 1 or (lda % vector_width == 0 and stride_a % vector_width == 0)) "
            "and (trans_b == 0 or (ldb % vector_width == 0 and stride_b % vector_width == 0)))"
        ),
        constraint(
            "transposed_b_is_ready",
            "trans_b == 0 or (b_storage == 'buffer' and edges == 'guard')",
            "the k of a transposed B lies in its rows already",
        ),
        WHOLE_NUMBERS[0],
        HAS_INTEGER_DOT,
        constraint(
            "integer_dot_of_rows",
            "integer_dot == 'off' or (vector_width >= 4 and (trans_a == 0 or edges == 'pad') "
            "and (trans_b == 1 or b_storage == 'transposed'))",
            "four elements of k have to lie side by side",
        ),
    ),
)

ROW = Algorithm(
    name="row",
    meaning="few rows: work-items own columns and share out k; as fast as B can be read",
    parameters=(
        parameter("micro_tile_m", (1, 2, 4, 8), "rows of C a work-item computes"),
        parameter("micro_tile_n", (1, 2, 4, 8, 16, 32, 64, 128, 256), "columns of C a work-item computes"),
        parameter("vector_width", (1, 2, 4, 8, 16), "columns in one vector"),
        parameter("work_group_n", (1, 8, 16, 32, 64, 128), "work-items along n"),
        parameter("work_group_k", (1, 2, 4, 8, 16, 32, 64, 128), "work-items that share out k"),
        parameter("unroll", (1, 2, 4, 8), "steps of k in one pass of the loop"),
        parameter("split_k", (1, 2, 4, 8, 16, 32, 64), "work-groups that share out k"),
        COMBINE,
        LOADS,
        WAVE_SIZE,
    ),
    constraints=(
        HAS_ORDERING,
        PARTS_TO_COMBINE,
        vectors_work("vector_width"),
        constraint("few_rows", "m <= 16 and micro_tile_m < 2 * m", "the algorithm is for few rows"),
        constraint("rows_of_b", "trans_b == 0", "the kernel reads rows of B"),
        constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0 and micro_tile_n <= 16 * vector_width "
            "and (vector_width == 16 or micro_tile_n <= 4 * vector_width)",
            "a work-item owns whole vectors of columns, and not more than its registers hold",
        ),
        accumulators_fit(
            "micro_tile_m * micro_tile_n * unroll <= 64 "
            "or (is_cpu == 1 and micro_tile_m * micro_tile_n <= 256 and micro_tile_n * unroll <= 512)"
        ),
        constraint("tile_within_row", "micro_tile_n <= n", "a row must hold the columns of a work-item"),
        columns_to_do("work_group_n * micro_tile_n - micro_tile_n < n"),
        constraint(
            "work_group_fits_device",
            "work_group_n * work_group_k <= min(max_work_group_size, 1024) and work_group_n <= max_work_group_0 "
            "and work_group_k <= max_work_group_1 and (is_cpu == 0 or work_group_n * work_group_k <= 64)",
            "the work-group exceeds what the device allows, or is too large for a CPU",
        ),
        sums_fit_local_memory("work_group_k // 2 * work_group_n * micro_tile_n * accumulator_bytes"),
        constraint("step_within_k", "work_group_k * unroll * split_k <= k", "some work-items would have no part of k"),
        constraint("parts_stay_small", "split_k == 1 or batch * m * n * split_k <= 33554432", "the parts fit 128 MiB"),
        aligned("(ldb % vector_width == 0 and stride_b % vector_width == 0 and n % vector_width == 0)"),
        _ALIGNMENT_MATTERS,
        HAS_WAVE_SIZE,
    ),
    features=(
        Expression("work_group_n * work_group_k"),
        Expression("micro_tile_m * micro_tile_n"),
        Expression("n // (work_group_n * micro_tile_n) * split_k"),
        Expression("work_group_k * split_k"),
    ),
)

COLUMN = Algorithm(
    name="column",
    meaning="few columns: the work-items of a group share out the k of some rows; as fast as A can be read",
    parameters=(
        parameter("micro_tile_m", (1, 2, 4, 8), "rows of C a work-item helps with"),
        parameter("micro_tile_n", (1, 2, 4), "columns of C a work-item helps with"),
        parameter("vector_width", (1, 2, 4, 8, 16), "elements of k in one load"),
        parameter("work_group_m", (1, 2, 4, 8, 16), "groups of rows in a work-group"),
        parameter("work_group_k", (1, 8, 16, 32, 64, 128, 256), "work-items that share out k"),
        parameter("unroll", (1, 2, 4), "vectors of each row in one pass of the loop"),
        LOADS,
        WAVE_SIZE,
    ),
    constraints=(
        vectors_work("vector_width"),
        constraint("few_columns", "n <= 16 and micro_tile_n < 2 * n", "the algorithm is for few columns"),
        constraint("rows_of_a", "trans_a == 0", "the kernel reads rows of A"),
        constraint(
            "registers_hold_it",
            "micro_tile_m * (micro_tile_n + unroll) * vector_width <= 64 "
            "or (is_cpu == 1 and micro_tile_m * (micro_tile_n + unroll) * vector_width <= 384)",
            "the registers do not hold the sums and what is loaded",
        ),
        rows_to_do("(work_group_m - 1) * micro_tile_m < m"),
        constraint(
            "work_group_fits_device",
            "work_group_m * work_group_k <= min(max_work_group_size, 1024) and work_group_k <= max_work_group_0 "
            "and work_group_m <= max_work_group_1 and (is_cpu == 0 or work_group_m * work_group_k <= 64)",
            "the work-group exceeds what the device allows, or is too large for a CPU",
        ),
        sums_fit_local_memory("work_group_m * work_group_k * accumulator_bytes"),
        constraint("step_within_k", "work_group_k * vector_width < 2 * k", "half the items would have no part of k"),
        aligned(
            "(lda % vector_width == 0 and stride_a % vector_width == 0 "
            "and (trans_b == 0 or (ldb % vector_width == 0 and stride_b % vector_width == 0)))"
        ),
        _ALIGNMENT_MATTERS,
        HAS_WAVE_SIZE,
    ),
    features=(
        Expression("work_group_m * work_group_k"),
        Expression("work_group_k * vector_width * unroll"),
        Expression("work_group_m * micro_tile_m"),
    ),
)

ALGORITHMS = (NAIVE, DOT, MICROTILE, LOCAL_TILE, PANEL, ROW, COLUMN)
