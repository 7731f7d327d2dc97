"""Plans as data: what a formula gives in Python; test_c_package.py compares C with it."""

import pytest

from autotune.errors import ConfigurationError
from autotune.kernels import find_family
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.model.configuration import Configuration
from autotune.model.plan import Buffer, Launch, Plan, Role, Scalar
from autotune.space.expression import by_value
from autotune.space.plan_formula import BufferFormula, LaunchFormula, PlanFormula

DTYPE = {"float16": "float16", "float32": "float32"}
FORMULA = PlanFormula(
    absent={"parts": 1},
    names={"splits": "parts > 1", "groups": "ceil_div(channels, work_group_size) if work_group_size > 0 else 1"},
    buffers=(
        BufferFormula(name="x", role=Role.INPUT, dtype="'float32'", elements="batch * pitch"),
        BufferFormula(name="y", role=Role.OUTPUT, dtype=by_value("dtype", DTYPE), elements="batch"),
        BufferFormula(
            name="image", role=Role.VIEW, dtype="'float32'", image="channels, batch", when="splits", view_of="x",
            row_pitch="pitch",
        ),
        BufferFormula(
            name="zeros", role=Role.SCRATCH, dtype="'int32'", elements="parts", is_zeroed=True, when="splits"
        ),
    ),
    launches=(
        LaunchFormula(
            kernel="go",
            global_size="groups * max(work_group_size, 1), batch",
            local_size="work_group_size, 1",
            local_when="work_group_size > 0",
            arguments="'image' if splits else 'x', channels, alpha, 'y'",
        ),
        LaunchFormula(kernel="join", global_size="batch", arguments="'zeros', 'y'", when="splits", prepares="y"),
    ),
    scalars={"alpha": 2.0},
    build_options={"-cl-opt={work_group_size}": "work_group_size > 0", "-never": "parts == 3"},
    template_values={"splits": "splits", "rest": "channels % 4"},
    variant={"splits": 2, "channels % 4": 4},
)  # fmt: skip


def test_a_formula_gives_a_plan() -> None:
    problem = ReduceProblem(batch=3, channels=10, pitch=12)
    x = Buffer(name="x", role=Role.INPUT, dtype="float32", elements=36)
    y = Buffer(name="y", role=Role.OUTPUT, dtype="float32", elements=3)
    ten, alpha = Scalar(dtype="int32", value=10), Scalar(dtype="float32", name="alpha", value=2.0)
    plain = FORMULA.plan(problem, Configuration.of("any", work_group_size=0))
    assert plain == Plan(
        buffers=(x, y),
        launches=(Launch(kernel="go", global_size=(1, 3), local_size=None, arguments=("x", ten, alpha, "y")),),
        template_values=(("splits", 0), ("rest", 2)),
    )
    assert [type(value) for _, value in plain.template_values] == [int, int]
    assert FORMULA.plan(problem, Configuration.of("any", work_group_size=4, parts=2)) == Plan(
        buffers=(
            x,
            y,
            Buffer(
                name="image", role=Role.VIEW, dtype="float32", elements=36, image_width=3, image_height=3, view_of="x",
                row_pitch=12,
            ),
            Buffer(name="zeros", role=Role.SCRATCH, dtype="int32", elements=2, is_zeroed=True),
        ),
        launches=(
            Launch(kernel="go", global_size=(12, 3), local_size=(4, 1), arguments=("image", ten, alpha, "y")),
            Launch(kernel="join", global_size=(3,), local_size=None, arguments=("zeros", "y"), prepares="y"),
        ),
        build_options=("-cl-opt=4",),
        template_values=(("splits", 1), ("rest", 2)),
    )  # fmt: skip


def test_variants_number_the_digits() -> None:
    numbers = {
        FORMULA.variant_of(ReduceProblem(batch=1, channels=c), Configuration.of("any", work_group_size=0, parts=parts))
        for c in range(4, 12)
        for parts in (1, 2)
    }
    assert numbers == set(range(FORMULA.variant_count)) == set(range(8))


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ConfigurationError, match="work_group_size"):
        FORMULA.plan(ReduceProblem(batch=1, channels=1), Configuration.of("any"))
    with pytest.raises(ConfigurationError, match="unroll"):
        find_family("reduce").plan(ReduceProblem(batch=1, channels=1), Configuration.of("serial", work_group_size=1))


def test_what_is_no_expression_is_refused() -> None:
    wrong = PlanFormula(names={"a": "open('x')"}, buffers=(), launches=())
    with pytest.raises(ConfigurationError, match="may not use"):
        wrong.plan(GemmProblem(m=1, n=1, k=1), FAMILY.baseline)


def test_a_driver_gets_global_sizes_that_it_can_divide() -> None:
    sums = find_family("reduce")
    serial = Configuration.of("serial", work_group_size=0, vector_width=1, unroll=1, loads="vload")
    sizes = {size: size for size in (7, 1023, 1024, 2**27 + 1, 2**31 - 1)} | {65_537: 65_600, 2**27 - 1: 2**27}
    for batch, given in sizes.items():
        assert sums.plan(ReduceProblem(batch=batch, channels=1), serial).launches[0].global_size == (given,)
    plan = FAMILY.plan(GemmProblem(m=65_537, n=5, k=3, batch=2), FAMILY.baseline)
    assert plan.launches[0].global_size == (5, 65_600, 2)
