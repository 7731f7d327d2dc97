"""The algorithms of a reduction with their parameters and constraints."""

from autotune.kernels.combination import COMBINE, HAS_ORDERING
from autotune.kernels.shared_rows import (
    ALIGNMENT_MATTERS,
    LOCAL_MEMORY,
    UNDER_WAY,
    WIDTH_WORKS,
    WITHIN_ROW,
    WORK_GROUP_FITS,
    row_algorithms,
    work_group,
)
from autotune.space.family import Algorithm, constraint, features, parameter

_READING = (
    parameter("vector_width", (1, 2, 4, 8, 16), "elements in one load"),
    parameter("unroll", (1, 2, 4, 8), "loads a work-item has under way at once, each into sums of its own"),
    parameter(
        "loads", ("vload", "aligned"), "vload promises the alignment of one element; aligned reads whole vectors"
    ),
)

_COMMON = (
    WORK_GROUP_FITS,
    WIDTH_WORKS,
    WITHIN_ROW,
    constraint(
        "accumulators_fit",
        "vector_width * unroll <= 64 or (is_cpu == 1 and vector_width * unroll <= 128)",
        "the accumulators do not fit the registers",
    ),
    constraint("aligned_rows", "loads == 'vload' or pitch % vector_width == 0", "rows do not start at whole vectors"),
    ALIGNMENT_MATTERS,
)

_SPLIT_ROW = Algorithm(
    name="split_row",
    meaning="several work-groups per row; a second kernel, or the last of them to finish, joins their parts",
    parameters=(
        work_group(1, 64, 128, 256, 512, 1024),
        parameter("parts", (2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 2048), "work-groups that share a row"),
        *_READING,
        COMBINE,
    ),
    constraints=(
        HAS_ORDERING,
        *_COMMON,
        LOCAL_MEMORY,
        constraint(
            "split_leaves_work",
            "parts * work_group_size * vector_width * unroll < 2 * channels",
            "one pass of the work-items that share a row is longer than the row",
        ),
        constraint(
            "split_fills_device", "batch * parts <= 32 * compute_units", "there are enough rows without splitting them"
        ),
    ),
    features=features(UNDER_WAY, "parts * work_group_size"),
)

ALGORITHMS = (*row_algorithms(_COMMON, _READING), _SPLIT_ROW)
