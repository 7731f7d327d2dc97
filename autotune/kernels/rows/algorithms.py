"""The algorithms of row operations with their parameters and constraints."""

from autotune.kernels.shared_rows import (
    ALIGNMENT_MATTERS,
    LOCAL_MEMORY,
    ROW_A_WORK_ITEM,
    SHARED_ROWS,
    WIDTH_WORKS,
    WITHIN_ROW,
    WORK_GROUP_FITS,
    features,
    work_group,
)
from autotune.space.family import Algorithm, constraint, parameter

_ROWS = parameter("rows_per_group", (1, 2, 4, 8, 16, 32, 64), "rows that a work-group computes side by side")
_READING = (
    parameter("vector_width", (1, 2, 4, 8, 16), "elements in one load; of RoPE, pairs"),
    parameter("unroll", (1, 2, 4, 8, 16), "vectors a work-item has under way at once"),
    parameter(
        "loads", ("vload", "aligned"), "vload promises the alignment of one element; aligned accesses whole vectors"
    ),
)
_KEEP = parameter(
    "keep",
    ("memory", "registers"),
    "where a row is between the passes over it: read again from memory, or held in registers",
)

IS_ROPE = "operation in ('rope', 'rope_halves')"
IS_SPREAD = "operation in ('swiglu', 'swiglu_halves', 'rope', 'rope_halves')"
"""Operations whose elements or pairs do not depend on the rest of the row."""
_PAIRS = "max(channels // heads // 2, 1)"

_COMMON = (
    WORK_GROUP_FITS,
    WIDTH_WORKS,
    constraint(
        "pairs_fit_vectors",
        f"not ({IS_ROPE}) or vector_width == 1 or ({_PAIRS} % vector_width == 0 and vector_width <= 8 and"
        " 2 * vector_width <= max_vector_float32 and (dtype == 'float32' or 2 * vector_width <= max_vector_float16))",
        "the pairs of a head are not whole vectors, or the driver gets vectors of twice the width wrong",
    ),
    WITHIN_ROW,
    constraint(
        "elements_fit_registers",
        "vector_width * unroll <= 64 or (is_cpu == 1 and vector_width * unroll <= 128)",
        "the elements under way do not fit the registers",
    ),
    constraint(
        "aligned_rows",
        "loads == 'vload' or (pitch % vector_width == 0 and out_pitch % vector_width == 0"
        " and (operation != 'swiglu_halves' or channels % vector_width == 0)"
        " and (operation != 'rope' or (pitch % (2 * vector_width) == 0 and out_pitch % (2 * vector_width) == 0)))",
        "rows do not start at whole vectors",
    ),
    ALIGNMENT_MATTERS,
)

_JOINS = constraint("row_is_joined", f"not ({IS_SPREAD})", "the elements of a row do not depend on each other")

_SHARED_ROWS = (
    _JOINS,
    *SHARED_ROWS,
    constraint(
        "row_fits_registers",
        "keep == 'memory' or channels // vector_width <= unroll * (work_group_size // rows_per_group)",
        "the work-items that share a row cannot hold it",
    ),
)


_SERIAL = Algorithm(
    name="serial",
    meaning="one row per work-item",
    parameters=(work_group(0, 1, 8, 32, 64, 128, 256), *_READING),
    constraints=(
        *_COMMON,
        *ROW_A_WORK_ITEM,
    ),
    features=features(),
)

_LOCAL_TREE = Algorithm(
    name="local_tree",
    meaning="one or several rows per work-group, joined by a tree in local memory",
    parameters=(
        work_group(16, 32, 64, 128, 256, 512, 1024),
        _ROWS,
        *_READING,
        _KEEP,
        parameter("fan_in", (2, 4, 16), "totals that one level of the tree joins into one"),
    ),
    constraints=(
        *_COMMON,
        *_SHARED_ROWS,
        LOCAL_MEMORY,
        constraint(
            "fan_in_within_row",
            "fan_in * rows_per_group <= work_group_size",
            "one level would join more totals than a row has",
        ),
    ),
    features=features("work_group_size // rows_per_group"),
)

_SHUFFLE = Algorithm(
    name="shuffle",
    meaning="as local_tree, joined by NVIDIA's shuffle instruction",
    parameters=(work_group(32, 64, 128, 256, 512, 1024), _ROWS, *_READING, _KEEP),
    constraints=(
        *_COMMON,
        *_SHARED_ROWS,
        LOCAL_MEMORY,
        constraint("device_takes_ptx", "has_ptx == 1", "only NVIDIA's compiler accepts the instruction"),
    ),
    features=features("work_group_size // rows_per_group"),
)

_SUB_GROUP = Algorithm(
    name="sub_group",
    meaning="one row per work-group or sub-group, joined by the device's sub-group reduction",
    parameters=(
        work_group(16, 32, 64, 128, 256, 512, 1024),
        parameter("row_of", ("work_group", "sub_group"), "what shares a row"),
        *_READING,
        _KEEP,
        parameter("standard", ("CL2.0", "CL3.0"), "OpenCL C version under which sub-groups are requested"),
    ),
    constraints=(
        *_COMMON,
        _JOINS,
        LOCAL_MEMORY,
        constraint("device_has_sub_groups", "has_sub_groups == 1", "the device has no sub-groups"),
        constraint(
            "items_to_do",
            "(row_of == 'work_group' and work_group_size * vector_width * unroll < 2 * channels) "
            "or (row_of == 'sub_group' and vector_width * unroll < channels)",
            "one pass of the work-items that share a row is longer than the row",
        ),
        constraint(
            "row_fits_registers",
            "keep == 'memory' or (row_of == 'work_group' and channels // vector_width <= unroll * work_group_size)",
            "the work-items that share a row cannot hold it; how many a sub-group has is not known before it runs",
        ),
    ),
    features=features(),
)

_SPREAD = Algorithm(
    name="spread",
    meaning="a few vectors per work-item, for operations that need nothing of the rest of the row",
    parameters=(work_group(1, 16, 32, 64, 128, 256, 512, 1024), _ROWS, *_READING),
    constraints=(
        *_COMMON,
        constraint("row_is_spread", IS_SPREAD, "the elements of a row depend on each other"),
        constraint("rows_to_do", "rows_per_group < 2 * batch", "most of every work-group would have no row to compute"),
        constraint(
            "rows_fit_work_group", "rows_per_group <= work_group_size", "a work-group has fewer work-items than rows"
        ),
        constraint(
            "items_to_do",
            "work_group_size * vector_width * unroll < 2 * channels * rows_per_group",
            "one pass of the work-items that share a row is longer than the row",
        ),
        constraint(
            "groups_fit",
            "ceil_div(batch, rows_per_group) * channels // unroll <= 2147483647",
            "there are more work-items than a kernel can number",
        ),
    ),
    features=features("work_group_size // rows_per_group"),
)

ALGORITHMS = (_SERIAL, _LOCAL_TREE, _SHUFFLE, _SUB_GROUP, _SPREAD)
