"""The algorithms of a reduction with their parameters and constraints."""

from autotune.kernels.combination import COMBINE, HAS_ORDERING
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

_ROWS = parameter("rows_per_group", (1, 2, 4, 8, 16, 32, 64), "rows that a work-group reduces side by side")
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
        parameter("fan_in", (2, 4, 16), "totals that one level of the tree joins into one"),
    ),
    constraints=(
        *_COMMON,
        *SHARED_ROWS,
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
    parameters=(work_group(32, 64, 128, 256, 512, 1024), _ROWS, *_READING),
    constraints=(
        *_COMMON,
        *SHARED_ROWS,
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
        parameter("standard", ("CL2.0", "CL3.0"), "OpenCL C version under which sub-groups are requested"),
    ),
    constraints=(
        *_COMMON,
        LOCAL_MEMORY,
        constraint("device_has_sub_groups", "has_sub_groups == 1", "the device has no sub-groups"),
        constraint(
            "items_to_do",
            "(row_of == 'work_group' and work_group_size * vector_width * unroll < 2 * channels) "
            "or (row_of == 'sub_group' and vector_width * unroll < channels)",
            "one pass of the work-items that share a row is longer than the row",
        ),
    ),
    features=features(),
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
    features=features("parts * work_group_size"),
)

ALGORITHMS = (_SERIAL, _LOCAL_TREE, _SHUFFLE, _SUB_GROUP, _SPLIT_ROW)
