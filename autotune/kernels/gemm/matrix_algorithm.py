"""The algorithm of GEMM for matrix units: small products of float16 or int8 in one instruction of a sub-group."""

from autotune.kernels.combination import COMBINE, HAS_ORDERING
from autotune.kernels.gemm.algorithms import (
    EDGES,
    PARTS_TO_COMBINE,
    SPLIT_LEAVES_WORK,
    accumulators_fit,
    columns_to_do,
    modes_where,
    rows_to_do,
)
from autotune.kernels.matrix_units import FEATURES, ITEMS, SUB_GROUP, SUB_GROUPS_TILE
from autotune.space.family import Algorithm, constraint, parameter

_REGISTERS_BESIDES = 64
"""Registers of a work-item for operands and addresses; a compute unit has 65,536."""
_ROW_BYTES = 16
"""Bytes that one copy moves; rows of operands start at multiples of it."""
_MODES = modes_where(lambda mode: mode.operand.name in ("float16", "int8"))
_FLOAT16 = modes_where(lambda mode: mode.operand.name == "float16")
_GROUPS = "((m + macro_tile_m - 1) // macro_tile_m * ((n + macro_tile_n - 1) // macro_tile_n) * batch * split_k)"
_AS_THEY_ARE = " and ".join(
    [
        *(f"{name} * element_bytes % {_ROW_BYTES} == 0" for name in ("lda", "ldb", "stride_a", "stride_b")),
        f"(mode in {_FLOAT16} or (trans_a == 0 and trans_b == 1))",
    ]
)


def _shared_evenly(width: str) -> str:
    return f"{width} * tile_k * element_bytes % ({_ROW_BYTES} * max({ITEMS}, 1)) == 0"


MATRIX_TILE = Algorithm(
    name="matrix_tile",
    meaning="macro-tiles of A and B in local memory, multiplied by matrix units",
    parameters=(
        parameter("macro_tile_m", (32, 64, 128, 256), "rows of C a work-group computes"),
        parameter("macro_tile_n", (32, 64, 128, 256), "columns of C a work-group computes"),
        parameter("sub_group_tile_m", (16, 32, 64), "rows of C a sub-group computes"),
        parameter("sub_group_tile_n", (16, 32, 64), "columns of C a sub-group computes"),
        parameter("tile_k", (16, 32, 64, 128), "depth of the tiles in local memory"),
        parameter("stages", (2, 3, 4), "tiles in local memory at once; all but one are fetched ahead"),
        parameter("group_rows", (0, 4, 8), "rows of work-groups that run as one band; 0: row by row"),
        parameter("split_k", (1, 2, 3, 4, 6, 8, 16, 32), "work-groups that share the k of one macro-tile"),
        COMBINE,
        EDGES,
    ),
    constraints=(
        constraint(
            "has_matrix_units",
            f"has_matrix_units == 1 and mode in {_MODES}",
            "the device has no matrix units for these numbers",
        ),
        constraint("matrices_to_do", "m >= 8 and n >= 8", "most of every matrix would have nothing to compute"),
        HAS_ORDERING,
        PARTS_TO_COMBINE,
        constraint(
            "rows_are_ready",
            f"edges == 'pad' or ({_AS_THEY_ARE})",
            "rows do not start at multiples of 16 bytes, or the k of int8 does not lie in them",
        ),
        constraint("padding_helps", f"edges == 'guard' or not ({_AS_THEY_ARE})", "rows are aligned as they are"),
        *SUB_GROUPS_TILE,
        accumulators_fit(
            f"sub_group_tile_m * sub_group_tile_n <= 4096 "
            f"and {ITEMS} * (sub_group_tile_m * sub_group_tile_n // {SUB_GROUP} + {_REGISTERS_BESIDES}) <= 65536"
        ),
        constraint(
            "matrices_fill_tile",
            "tile_k * element_bytes >= 32 and tile_k * element_bytes <= 128",
            "a matrix is 32 bytes deep, and deeper tiles than 128 bytes gain nothing",
        ),
        constraint(
            "even_share",
            f"{_shared_evenly('macro_tile_m')} and {_shared_evenly('macro_tile_n')}",
            "every work-item copies equally much of A and of B",
        ),
        constraint(
            "tiles_fit_local_memory",
            "element_bytes * stages * tile_k * (macro_tile_m + macro_tile_n) + (0 if combine == 'launch' else 128) "
            "<= max(local_memory_bytes, declared_local_memory_bytes)",
            "the tiles of A and B exceed local memory",
        ),
        rows_to_do("macro_tile_m < 2 * m or macro_tile_m == 32", share="most"),
        columns_to_do("macro_tile_n < 2 * n or macro_tile_n == 32", share="most"),
        constraint("step_within_k", "tile_k < 2 * k or tile_k * element_bytes == 32", "one tile is longer than k"),
        constraint(
            "bands_matter",
            "group_rows == 0 or (split_k == 1 and m > group_rows * macro_tile_m and n > group_rows * macro_tile_n)",
            "there are too few work-groups for bands to differ from rows",
        ),
        SPLIT_LEAVES_WORK,
        constraint(
            "split_fills_device",
            f"split_k == 1 or {_GROUPS} <= 8 * compute_units",
            "there are enough work-groups without splitting k",
        ),
        constraint(
            "macro_tile_near_square",
            "(macro_tile_m <= 4 * macro_tile_n or n < 64) and (macro_tile_n <= 4 * macro_tile_m or m < 64)",
            "a long macro-tile reads more than it computes",
        ),
    ),
    features=FEATURES,
)
