"""The algorithm of QGemm for many columns by matrix units: products of 16 x 8 in one instruction of a sub-group."""

from autotune.kernels.combination import LAST_GROUP
from autotune.kernels.matrix_units import FEATURES, ITEMS, SUB_GROUP, SUB_GROUPS_TILE
from autotune.kernels.qgemm.formats import WeightFormat, by_format
from autotune.space.expression import by_value
from autotune.space.family import Algorithm, constraint, parameter

PIECE = 16
"""Rows of weights that are packed together; the last of an expert are padded to as many."""
COMBINE = LAST_GROUP + "ptx"
"""How the parts of k are joined: devices with these matrix units have the ordering of PTX."""
BY_BLOCK = "(weights == 'q4_k' and mode != 'int8' and scaling == 'sums')"
"""Whether it is blocks of 256 weights that are scaled, and the sums of activations are needed for offsets."""


def _row_bytes(one: WeightFormat) -> int:
    """Return how many bytes of local memory a unit of a row takes at most, with its scales."""
    return one.quant_bytes + one.high_bytes + (6 if one.packed_growth else 4)


_COLUMN_BYTES = by_value("mode", {"float16": 64, "float32": 128, "int8": 40})
_TILES = f"(stages * (tile_k // 32) * (macro_tile_m * ({by_format(_row_bytes)}) + macro_tile_n * ({_COLUMN_BYTES})))"
_GROUPS = "((m + macro_tile_m - 1) // macro_tile_m * ((n + macro_tile_n - 1) // macro_tile_n + experts - 1) * split_k)"

MATRIX_TILE = Algorithm(
    name="matrix_tile",
    meaning="macro-tiles in local memory, whose weights are decoded in registers and multiplied by matrix units",
    parameters=(
        parameter("macro_tile_m", (32, 64, 128, 256), "rows of weights a work-group computes"),
        parameter("macro_tile_n", (16, 32, 64, 128, 256), "columns of activations a work-group computes"),
        parameter("sub_group_tile_m", (16, 32, 64), "rows of weights a sub-group computes"),
        parameter("sub_group_tile_n", (16, 32, 64), "columns of activations a sub-group computes"),
        parameter("tile_k", (32, 64, 128), "depth of the tiles in local memory"),
        parameter("stages", (2, 3, 4), "tiles in local memory at once; all but one are fetched ahead"),
        parameter("read_ahead", (0, 1), "whether a unit is read into registers while the one before is multiplied"),
        parameter("split_k", (1, 2, 3, 4, 6, 8, 16), "work-groups that share the k of one macro-tile"),
        parameter("scaling", ("sums", "weights"), "what scales and offsets are applied to", neutral="sums"),
    ),
    constraints=(
        constraint("has_matrix_units", "has_matrix_units == 1", "the device has no matrix units"),
        constraint("matrices_to_do", "m >= 16 and n > 4", "most of every matrix would have nothing to compute"),
        constraint("whole_tiles", "k % tile_k == 0", "the last tile along k would be a part of one"),
        *SUB_GROUPS_TILE,
        constraint(
            "sums_fit_registers",
            f"sub_group_tile_m * sub_group_tile_n <= 4096"
            f" and {ITEMS} * (sub_group_tile_m * sub_group_tile_n // {SUB_GROUP} + 64) <= 65536",
            "the sums do not fit the registers",
        ),
        constraint(
            "tiles_fit_local_memory",
            f"{_TILES} + (128 if split_k > 1 else 0) <= max(local_memory_bytes, declared_local_memory_bytes)",
            "the tiles exceed local memory",
        ),
        constraint(
            "scales_are_float16",
            "scaling == 'sums' or (mode == 'float16' and weights != 'mxfp4')",
            "weights are multiplied by their scale in float16, where activations are no more precise",
        ),
        constraint("rows_to_do", "macro_tile_m < 2 * m or macro_tile_m == 32", "most rows would not exist"),
        constraint("columns_to_do", "macro_tile_n < 2 * n or macro_tile_n == 16", "most columns would not exist"),
        constraint(
            "split_leaves_work",
            f"split_k == 1 or (k >= 2 * split_k * (max(tile_k, 256) if {BY_BLOCK} else tile_k)"
            " and (n + experts * macro_tile_n) * (m + macro_tile_m) * split_k <= 33554432)",
            "each part of k holds at least two tiles, and the parts of the output fit 128 MiB",
        ),
        constraint(
            "split_fills_device",
            f"split_k == 1 or {_GROUPS} <= 8 * compute_units",
            "there are enough work-groups without splitting k",
        ),
    ),
    features=FEATURES,
)
