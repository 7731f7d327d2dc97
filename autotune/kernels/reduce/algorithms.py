"""The algorithms of a reduction with their parameters and constraints."""

from autotune.kernels.combination import COMBINE, HAS_ORDERING
from autotune.space.expression import Expression
from autotune.space.family import Algorithm, Parameter, constraint, parameter


def _work_group(*values: int) -> Parameter:
    return parameter("work_group_size", values, "work-items in a work-group; 0 leaves it to the driver")


_ROWS = parameter("rows_per_group", (1, 2, 4, 8, 16, 32, 64), "rows that a work-group reduces side by side")
_READING = (
    parameter("vector_width", (1, 2, 4, 8, 16), "elements in one load"),
    parameter("unroll", (1, 2, 4, 8), "loads a work-item has under way at once, each into sums of its own"),
    parameter(
        "loads", ("vload", "aligned"), "vload promises the alignment of one element; aligned reads whole vectors"
    ),
)

_COMMON = (
    constraint(
        "work_group_fits_device",
        "work_group_size <= max_work_group_size and work_group_size <= max_work_group_0",
        "the work-group exceeds what the device allows",
    ),
    constraint(
        "vector_width_works",
        "vector_width <= max_vector_float32 and (dtype == 'float32' or vector_width <= max_vector_float16)",
        "the driver gets vectors of this width wrong",
    ),
    constraint("vector_within_row", "vector_width <= channels", "a vector is longer than a row"),
    constraint(
        "accumulators_fit",
        "vector_width * unroll <= 64 or (is_cpu == 1 and vector_width * unroll <= 128)",
        "the accumulators do not fit the registers",
    ),
    constraint("aligned_rows", "loads == 'vload' or pitch % vector_width == 0", "rows do not start at whole vectors"),
    constraint("alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"),
)

_LOCAL_MEMORY = constraint(
    "totals_fit_local_memory", "4 * work_group_size <= local_memory_bytes", "the totals exceed local memory"
)

_SHARED_ROWS = (
    constraint("row_is_shared", "work_group_size >= 2 * rows_per_group", "a row needs two work-items or more"),
    constraint("rows_to_do", "rows_per_group < 2 * batch", "most of every work-group would have no row to compute"),
    constraint(
        "items_to_do",
        "work_group_size * vector_width * unroll < 2 * channels * rows_per_group",
        "one pass of the work-items that share a row is longer than the row",
    ),
)


def _features(*texts: str) -> tuple[Expression, ...]:
    return tuple(Expression(text) for text in ("vector_width * unroll", *texts))


_SERIAL = Algorithm(
    name="serial",
    meaning="one row per work-item",
    parameters=(_work_group(0, 1, 8, 32, 64, 128, 256), *_READING),
    constraints=(
        *_COMMON,
        constraint(
            "rows_to_do", "work_group_size < 2 * batch", "most of every work-group would have no row to compute"
        ),
        constraint("pass_within_row", "vector_width * unroll < 2 * channels", "one pass is longer than a row"),
    ),
    features=_features(),
)

_LOCAL_TREE = Algorithm(
    name="local_tree",
    meaning="one or several rows per work-group, joined by a tree in local memory",
    parameters=(
        _work_group(16, 32, 64, 128, 256, 512, 1024),
        _ROWS,
        *_READING,
        parameter("fan_in", (2, 4, 16), "totals that one level of the tree joins into one"),
    ),
    constraints=(
        *_COMMON,
        *_SHARED_ROWS,
        _LOCAL_MEMORY,
        constraint(
            "fan_in_within_row",
            "fan_in * rows_per_group <= work_group_size",
            "one level would join more totals than a row has",
        ),
    ),
    features=_features("work_group_size // rows_per_group"),
)

_SHUFFLE = Algorithm(
    name="shuffle",
    meaning="as local_tree, joined by NVIDIA's shuffle instruction",
    parameters=(_work_group(32, 64, 128, 256, 512, 1024), _ROWS, *_READING),
    constraints=(
        *_COMMON,
        *_SHARED_ROWS,
        _LOCAL_MEMORY,
        constraint("device_takes_ptx", "has_ptx == 1", "only NVIDIA's compiler accepts the instruction"),
    ),
    features=_features("work_group_size // rows_per_group"),
)

_SUB_GROUP = Algorithm(
    name="sub_group",
    meaning="one row per work-group or sub-group, joined by the device's sub-group reduction",
    parameters=(
        _work_group(16, 32, 64, 128, 256, 512, 1024),
        parameter("row_of", ("work_group", "sub_group"), "what shares a row"),
        *_READING,
        parameter("standard", ("CL2.0", "CL3.0"), "OpenCL C version under which sub-groups are requested"),
    ),
    constraints=(
        *_COMMON,
        _LOCAL_MEMORY,
        constraint("device_has_sub_groups", "has_sub_groups == 1", "the device has no sub-groups"),
        constraint(
            "items_to_do",
            "(row_of == 'work_group' and work_group_size * vector_width * unroll < 2 * channels) "
            "or (row_of == 'sub_group' and vector_width * unroll < channels)",
            "one pass of the work-items that share a row is longer than the row",
        ),
    ),
    features=_features(),
)

_SPLIT_ROW = Algorithm(
    name="split_row",
    meaning="several work-groups per row; a second kernel, or the last of them to finish, joins their parts",
    parameters=(
        _work_group(1, 64, 128, 256, 512, 1024),
        parameter("parts", (2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 2048), "work-groups that share a row"),
        *_READING,
        COMBINE,
    ),
    constraints=(
        HAS_ORDERING,
        *_COMMON,
        _LOCAL_MEMORY,
        constraint(
            "split_leaves_work",
            "parts * work_group_size * vector_width * unroll < 2 * channels",
            "one pass of the work-items that share a row is longer than the row",
        ),
        constraint(
            "split_fills_device", "batch * parts <= 32 * compute_units", "there are enough rows without splitting them"
        ),
    ),
    features=_features("parts * work_group_size"),
)

ALGORITHMS = (_SERIAL, _LOCAL_TREE, _SHUFFLE, _SUB_GROUP, _SPLIT_ROW)
