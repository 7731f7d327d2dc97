"""What the families that go over the rows of an input, reduce and rows, declare alike."""

from autotune.space.expression import Expression
from autotune.space.family import Parameter, constraint, parameter

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
SHARED_ROWS = (
    constraint("row_is_shared", "work_group_size >= 2 * rows_per_group", "a row needs two work-items or more"),
    constraint("rows_to_do", "rows_per_group < 2 * batch", "most of every work-group would have no row to compute"),
    constraint(
        "items_to_do",
        "work_group_size * vector_width * unroll < 2 * channels * rows_per_group",
        "one pass of the work-items that share a row is longer than the row",
    ),
)
"""Of algorithms in which the work-items of a work-group share rows."""
ROW_A_WORK_ITEM = (
    constraint("rows_to_do", "work_group_size < 2 * batch", "most of every work-group would have no row to compute"),
    constraint("pass_within_row", "vector_width * unroll < 2 * channels", "one pass is longer than a row"),
)
"""Of algorithms in which a work-item has a row of its own."""


def work_group(*values: int) -> Parameter:
    """Return the parameter for the size of a work-group."""
    return parameter("work_group_size", values, "work-items in a work-group; 0 leaves it to the driver")


def features(*texts: str) -> tuple[Expression, ...]:
    """Return the derived numbers of an algorithm, after the elements that a work-item has under way."""
    return tuple(Expression(text) for text in ("vector_width * unroll", *texts))
