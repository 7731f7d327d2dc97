"""What the families that go over the rows of an input, reduce and rows, declare alike."""

from collections.abc import Iterable, Iterator

from autotune.model.configuration import Configuration
from autotune.space.family import Algorithm, Constraint, Parameter, constraint, features, parameter

UNDER_WAY = "vector_width * unroll"
"""Elements that a work-item has under way."""

WORK_GROUP_FITS = constraint(
    "work_group_fits_device",
    "work_group_size <= max_work_group_size and work_group_size <= max_work_group_0",
    "the work-group exceeds what the device allows",
)
WIDTH_WORKS = constraint(
    "vector_width_works",
    "vector_width <= max_vector_float32 and (dtype == 'float32' or vector_width <= max_vector_float16)",
    "the driver gets vectors of this width wrong",
)
WITHIN_ROW = constraint("vector_within_row", "vector_width <= channels", "a vector is longer than a row")
ALIGNMENT_MATTERS = constraint(
    "alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"
)
LOCAL_MEMORY = constraint(
    "totals_fit_local_memory", "4 * work_group_size <= local_memory_bytes", "the totals exceed local memory"
)
ROWS_PER_GROUP = parameter("rows_per_group", (1, 2, 4, 8, 16, 32, 64), "rows that a work-group computes side by side")
ROWS_TO_DO = constraint(
    "rows_to_do", "rows_per_group < 2 * batch", "most of every work-group would have no row to compute"
)
ITEMS_TO_DO = constraint(
    "items_to_do",
    "work_group_size * vector_width * unroll < 2 * channels * rows_per_group",
    "one pass of the work-items that share a row is longer than the row",
)
_SHARED_ROWS = (
    constraint("row_is_shared", "work_group_size >= 2 * rows_per_group", "a row needs two work-items or more"),
    ROWS_TO_DO,
    ITEMS_TO_DO,
)
"""Of algorithms in which the work-items of a work-group share rows."""
_ROW_A_WORK_ITEM = (
    constraint("rows_to_do", "work_group_size < 2 * batch", "most of every work-group would have no row to compute"),
    constraint("pass_within_row", "vector_width * unroll < 2 * channels", "one pass is longer than a row"),
)
"""Of algorithms in which a work-item has a row of its own."""
TAKES_STANDARD = constraint(
    "takes_standard",
    "(standard != 'CL2.0' or takes_cl2 == 1) and (standard != 'CL3.0' or takes_cl3 == 1)",
    "the compiler does not take this version of OpenCL C",
)
_SUB_GROUPS = (
    constraint("device_has_sub_groups", "has_sub_groups == 1", "the device has no sub-groups"),
    TAKES_STANDARD,
    constraint(
        "items_to_do",
        "(row_of == 'work_group' and work_group_size * vector_width * unroll < 2 * channels) "
        "or (row_of == 'sub_group' and vector_width * unroll < channels)",
        "one pass of the work-items that share a row is longer than the row",
    ),
)
_FAN_IN = parameter("fan_in", (2, 4, 16), "totals that one level of the tree joins into one")
_FAN_IN_WITHIN_ROW = constraint(
    "fan_in_within_row",
    "fan_in * rows_per_group <= work_group_size",
    "one level would join more totals than a row has",
)
_TAKES_PTX = constraint("device_takes_ptx", "has_ptx == 1", "only NVIDIA's compiler accepts the instruction")
_ROW_OF = parameter("row_of", ("work_group", "sub_group"), "what shares a row")
_STANDARD = parameter("standard", ("CL2.0", "CL3.0"), "OpenCL C version under which sub-groups are requested")

LEAST_SUB_GROUP = 16
"""Work-items assumed in a sub-group. Larger ones compute several rows each; of smaller ones, some compute none."""
OF_ROWS = {
    # Rows that a work-group computes, side by side or one after the other.
    "rows": f"max(work_group_size, 1) if algorithm == 'serial' else max(work_group_size // {LEAST_SUB_GROUP}, 1) "
    "if row_of == 'sub_group' else rows_per_group",
    "items_per_row": "1 if algorithm == 'serial' else max(work_group_size // rows, 1)",
    "in_pass": "unroll * items_per_row",
}
"""Names in the formulas of plans."""


def work_group(*values: int) -> Parameter:
    """Return the parameter for the size of a work-group."""
    return parameter("work_group_size", values, "work-items in a work-group; 0 leaves it to the driver")


def of_standards(starts: Iterable[Configuration]) -> Iterator[Configuration]:
    """Yield starts, those with sub-groups under OpenCL C 2.0 also under 3.0, for compilers that do not take theirs."""
    for start in starts:
        yield start
        values = dict(start.values)
        if values.get("standard") == "CL2.0":
            yield Configuration.of(start.algorithm, **{**values, "standard": "CL3.0"})


def row_algorithms(
    common: tuple[Constraint, ...],
    reading: tuple[Parameter, ...],
    kept: tuple[Parameter, ...] = (),
    joined: tuple[Constraint, ...] = (),
    fits_group: tuple[Constraint, ...] = (),
    fits_sub_group: tuple[Constraint, ...] = (),
) -> tuple[Algorithm, ...]:
    """Return `serial`, `local_tree`, `shuffle` and `sub_group` with what all algorithms of a family have.

    Where work-items share rows, these also have the parameters `kept` and the constraints `joined`, and `fits_group` or
    `fits_sub_group`.
    """
    groups = work_group(16, 32, 64, 128, 256, 512, 1024)
    in_group = (*common, *joined, *_SHARED_ROWS, *fits_group, LOCAL_MEMORY)
    per_row = features(UNDER_WAY, "work_group_size // rows_per_group")
    return (
        Algorithm(
            name="serial",
            meaning="one row per work-item",
            parameters=(work_group(0, 1, 8, 32, 64, 128, 256), *reading),
            constraints=(*common, *_ROW_A_WORK_ITEM),
            features=features(UNDER_WAY),
        ),
        Algorithm(
            name="local_tree",
            meaning="one or several rows per work-group, joined by a tree in local memory",
            parameters=(groups, ROWS_PER_GROUP, *reading, *kept, _FAN_IN),
            constraints=(*in_group, _FAN_IN_WITHIN_ROW),
            features=per_row,
        ),
        Algorithm(
            name="shuffle",
            meaning="as local_tree, joined by NVIDIA's shuffle instruction",
            parameters=(work_group(32, 64, 128, 256, 512, 1024), ROWS_PER_GROUP, *reading, *kept),
            constraints=(*in_group, _TAKES_PTX),
            features=per_row,
        ),
        Algorithm(
            name="sub_group",
            meaning="one row per work-group or sub-group, joined by the device's sub-group reduction",
            parameters=(groups, _ROW_OF, *reading, *kept, _STANDARD),
            constraints=(*common, *joined, LOCAL_MEMORY, *_SUB_GROUPS, *fits_sub_group),
            features=features(UNDER_WAY),
        ),
    )
