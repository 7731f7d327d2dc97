"""The algorithms of row operations with their parameters and constraints."""

from autotune.kernels.shared_rows import (
    ALIGNMENT_MATTERS,
    ITEMS_TO_DO,
    ROWS_PER_GROUP,
    ROWS_TO_DO,
    UNDER_WAY,
    WIDTH_WORKS,
    WITHIN_ROW,
    WORK_GROUP_FITS,
    row_algorithms,
    work_group,
)
from autotune.space.family import Algorithm, constraint, features, parameter

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

_JOINED = row_algorithms(
    _COMMON,
    _READING,
    kept=(_KEEP,),
    joined=(constraint("row_is_joined", f"not ({IS_SPREAD})", "the elements of a row do not depend on each other"),),
    fits_group=(
        constraint(
            "row_fits_registers",
            "keep == 'memory' or channels // vector_width <= unroll * (work_group_size // rows_per_group)",
            "the work-items that share a row cannot hold it",
        ),
    ),
    fits_sub_group=(
        constraint(
            "row_fits_registers",
            "keep == 'memory' or (row_of == 'work_group' and channels // vector_width <= unroll * work_group_size)",
            "the work-items that share a row cannot hold it; how many a sub-group has is not known before it runs",
        ),
    ),
)

_SPREAD = Algorithm(
    name="spread",
    meaning="a few vectors per work-item, for operations that need nothing of the rest of the row",
    parameters=(work_group(1, 16, 32, 64, 128, 256, 512, 1024), ROWS_PER_GROUP, *_READING),
    constraints=(
        *_COMMON,
        constraint("row_is_spread", IS_SPREAD, "the elements of a row depend on each other"),
        ROWS_TO_DO,
        constraint(
            "rows_fit_work_group", "rows_per_group <= work_group_size", "a work-group has fewer work-items than rows"
        ),
        ITEMS_TO_DO,
        constraint(
            "groups_fit",
            "ceil_div(batch, rows_per_group) * channels // unroll <= 2147483647",
            "there are more work-items than a kernel can number",
        ),
    ),
    features=features(UNDER_WAY, "work_group_size // rows_per_group"),
)

ALGORITHMS = (*_JOINED, _SPREAD)
