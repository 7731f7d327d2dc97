"""Plans for reductions: buffers, launches, and the template's values that depend on the sizes."""

from autotune.kernels.combination import counters, is_one_launch, standard_for
from autotune.kernels.reduce.problem import ReduceProblem
from autotune.model.configuration import Configuration, Value
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar

LEAST_SUB_GROUP = 16
"""Work-items assumed in a sub-group. Larger sub-groups reduce several rows each; of smaller ones, some reduce none."""


def plan_reduce(problem: ReduceProblem, configuration: Configuration) -> Plan:
    """Return the plan: reduce the rows, or parts of them and then join the parts."""
    elements = problem.batch * problem.pitch
    buffers = [
        Buffer(name="input", role=Role.INPUT, dtype=problem.dtype, elements=elements),
        Buffer(name="output", role=Role.OUTPUT, dtype=problem.dtype, elements=problem.batch),
    ]
    if configuration.algorithm == "split_row":
        parts = problem.batch * configuration.number("parts")
        buffers.append(Buffer(name="parts", role=Role.SCRATCH, dtype="float32", elements=parts))
        if is_one_launch(configuration):
            buffers.append(counters(problem.batch))
    return Plan(
        buffers=tuple(buffers),
        launches=_launches(problem, configuration),
        build_options=_build_options(configuration),
        template_values=_template_values(problem, configuration),
    )


def _launches(problem: ReduceProblem, configuration: Configuration) -> tuple[Launch, ...]:
    pitch, batch, channels = (Scalar(dtype="int32", value=v) for v in (problem.pitch, problem.batch, problem.channels))
    items = configuration.number("work_group_size")
    if configuration.algorithm == "split_row":
        return _launches_of_split_row(problem, configuration, (pitch, channels))
    groups = -(-problem.batch // rows_per_group(configuration))
    return (
        Launch(
            kernel="reduce",
            global_size=(groups * items,) if items else (problem.batch,),
            local_size=(items,) if items else None,
            arguments=("input", pitch, "output", batch, channels),
        ),
    )


def _launches_of_split_row(
    problem: ReduceProblem, configuration: Configuration, numbers: tuple[Scalar, Scalar]
) -> tuple[Launch, ...]:
    pitch, channels = numbers
    items = configuration.number("work_group_size")
    one_launch = is_one_launch(configuration)
    reduce = Launch(
        kernel="reduce",
        global_size=(configuration.number("parts") * items, problem.batch),
        local_size=(items, 1),
        arguments=(
            ("input", pitch, "output", channels, "parts", "counters")
            if one_launch
            else ("input", pitch, "parts", channels)
        ),
    )
    combine = Launch(
        kernel="combine",
        global_size=(items * problem.batch,),
        local_size=(items,),
        arguments=("parts", "output", channels),
    )
    return (reduce,) if one_launch else (reduce, combine)


def rows_per_group(configuration: Configuration) -> int:
    """Return the number of rows that a work-group reduces, side by side or one after the other."""
    items = configuration.number("work_group_size")
    if configuration.algorithm == "serial":
        return max(items, 1)
    if configuration.algorithm == "sub_group" and configuration["row_of"] == "sub_group":
        return max(1, items // LEAST_SUB_GROUP)
    if configuration.algorithm in ("local_tree", "shuffle"):
        return configuration.number("rows_per_group")
    return 1


def _build_options(configuration: Configuration) -> tuple[str, ...]:
    by_sub_groups = configuration.algorithm == "sub_group"
    standard = configuration["standard"] if by_sub_groups else standard_for(configuration)
    return (f"-cl-std={standard}",) if standard else ()


def _template_values(problem: ReduceProblem, configuration: Configuration) -> tuple[tuple[str, Value], ...]:
    """Return the types and the guards that the sizes need: a row is whole passes, a ragged pass, single elements."""
    width = configuration.number("vector_width")
    vectors = problem.channels // width
    in_pass = configuration.number("unroll") * items_per_row(configuration)
    return (
        ("operation", problem.operation),
        ("stored_type", {"float32": "float", "float16": "half"}[problem.dtype]),
        ("sum_type", "float"),
        ("whole_pass", int(vectors >= in_pass)),
        ("ragged_pass", int(vectors % in_pass != 0)),
        ("ragged_vector", int(problem.channels % width != 0)),
        ("ragged_batch", int(problem.batch % rows_per_group(configuration) != 0)),
    )


def items_per_row(configuration: Configuration) -> int:
    """Return the number of work-items that share a row."""
    if configuration.algorithm == "serial":
        return 1
    return max(1, configuration.number("work_group_size") // rows_per_group(configuration))
