"""Algorithms with one output per work-item: `naive` and `dot`."""

from autotune.kernels.gemm.parameters import (
    EDGES,
    HAS_INTEGER_DOT,
    INTEGER_DOT,
    LOADS,
    MATH,
    WHOLE_NUMBERS,
    WORK_GROUP,
    WORK_GROUP_LIMITS,
    aligned,
    constraint,
    parameter,
    vectors_work,
)
from autotune.space.family import Algorithm

NAIVE = Algorithm(
    name="naive",
    meaning="one output per work-item, scalar loop over k",
    parameters=WORK_GROUP,
    constraints=(
        *WORK_GROUP_LIMITS,
        constraint("rows_to_do", "work_group_m - 1 < m", "part of every work-group would have no row to compute"),
        constraint("columns_to_do", "work_group_n - 1 < n", "part of every work-group would have no column to compute"),
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
        constraint("rows_to_do", "work_group_m - 1 < m", "part of every work-group would have no row to compute"),
        constraint("columns_to_do", "work_group_n - 1 < n", "part of every work-group would have no column to compute"),
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
