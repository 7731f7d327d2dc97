"""A kernel family in one file outside the package: the transpose of a float32 matrix, plain or through local memory."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ProblemError
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits, mebibytes
from autotune.model.plan import Plan, Role
from autotune.model.problem import Problem
from autotune.space.case import Case
from autotune.space.expression import Expression
from autotune.space.family import Algorithm, CExport, Constraint, KernelFamily, Parameter
from autotune.space.plan_formula import BufferFormula, LaunchFormula, PlanFormula

PLAIN = """\
kernel void transpose(global const float *input, int rows, int columns, global float *output) {
    const int column = get_global_id(0);
    const int first = get_global_id(1) * {{ rows_per_item }};
    if (column >= columns) return;
    for (int row = first; row < min(first + {{ rows_per_item }}, rows); row++)
        output[column * rows + row] = input[row * columns + column];
}
"""
TILED = """\
kernel void transpose(global const float *input, int rows, int columns, global float *output) {
    local float tile[{{ tile }}][{{ tile }} + {{ padding }}];
    const int x = get_local_id(0), y = get_local_id(1);
    int column = get_group_id(0) * {{ tile }} + x, row = get_group_id(1) * {{ tile }} + y;
    if (row < rows && column < columns) tile[y][x] = input[row * columns + column];
    barrier(CLK_LOCAL_MEM_FENCE);
    column = get_group_id(0) * {{ tile }} + y;
    row = get_group_id(1) * {{ tile }} + x;
    if (row < rows && column < columns) output[column * rows + row] = tile[x][y];
}
"""


PLAIN_1, TILED_16 = Configuration.of("plain", rows_per_item=1), Configuration.of("tiled", tile=16, padding=1)
PLAN = PlanFormula(
    absent={"rows_per_item": 1, "tile": 1},
    names={"is_tiled": "algorithm == 'tiled'"},
    buffers=(
        BufferFormula(name="input", role=Role.INPUT, dtype="'float32'", elements="rows * columns"),
        BufferFormula(name="output", role=Role.OUTPUT, dtype="'float32'", elements="rows * columns"),
    ),
    launches=(
        LaunchFormula(
            kernel="transpose",
            global_size="round_up(columns, tile), round_up(rows, tile) if is_tiled else ceil_div(rows, rows_per_item)",
            local_size="tile, tile",
            local_when="is_tiled",
            arguments="'input', rows, columns, 'output'",
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class TransposeProblem(Problem):
    """The sizes of the input, a row-major matrix."""

    family: ClassVar[str] = "transpose"
    size_axes: ClassVar[tuple[str, ...]] = ("rows", "columns")
    shape_format: ClassVar[str] = "rows,columns"
    shape_examples: ClassVar[tuple[str, ...]] = ("512,768",)

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= 32768 and 1 <= self.columns <= 32768):
            raise ProblemError(f"rows and columns must be from 1 to 32768, not {self.rows} and {self.columns}")

    @property
    def label(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes_moved(self) -> int:
        return 8 * self.rows * self.columns

    def resized(self, sizes: Sequence[int]) -> Self:
        rows, columns = sizes
        return type(self)(rows=rows, columns=columns)

    @classmethod
    def parse(cls, text: str) -> Self:
        found = re.fullmatch(r"([0-9]{1,9})[x,]([0-9]{1,9})", text[:80])
        if found is None:
            raise ProblemError(f"{text[:80]!r} is not a shape", hint="write ROWS,COLUMNS such as 512,768")
        return cls(rows=int(found[1]), columns=int(found[2]))

    def check_device(self, limits: DeviceLimits) -> None:
        if self.bytes_moved > limits.global_memory_bytes:
            raise ProblemError(f"{self.label} needs {mebibytes(self.bytes_moved)}")


class TransposeCase(Case):
    """A random matrix, and the comparison with NumPy's transpose."""

    def __init__(self, problem: TransposeProblem, seed: int) -> None:
        size = (problem.rows, problem.columns)
        self._input = np.random.default_rng(seed).random(size, dtype=np.float32)
        self.inputs: Mapping[str, NDArray[Any]] = {
            "input": self._input.ravel(),
            "output": np.full(self._input.size, np.nan, np.float32),
        }

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        return 0.0 if np.array_equal(outputs["output"], self._input.T.ravel()) else float("inf")


class Transpose(KernelFamily):
    """Transposes matrices."""

    name = "transpose"
    space_version = 1
    meaning = "transpose of a matrix"
    problem_type = TransposeProblem
    template_files: ClassVar = {"plain.cl.j2": PLAIN, "tiled.cl.j2": TILED}
    baseline = PLAIN_1
    algorithms = (
        Algorithm(
            name="plain",
            meaning="some elements of a column by each work-item",
            parameters=(Parameter(name="rows_per_item", values=(1, 2, 4, 8, 16), meaning="elements of a work-item"),),
            constraints=(
                Constraint(
                    name="rows_to_do",
                    condition=Expression("rows_per_item < 2 * rows"),
                    because="half of each work-item's rows would be outside",
                ),
            ),
        ),
        Algorithm(
            name="tiled",
            meaning="a square tile in local memory by each work-group",
            parameters=(
                Parameter(name="tile", values=(4, 8, 16, 32), meaning="rows and columns of the tile"),
                Parameter(name="padding", values=(0, 1), meaning="unused elements at the end of a row of the tile"),
            ),
            constraints=(
                Constraint(
                    name="work_group_size",
                    condition=Expression("tile * tile <= max_work_group_size"),
                    because="the device has smaller work-groups",
                ),
            ),
        ),
    )

    c_export = CExport(
        about="The transpose of a row-major matrix of float32.",
        kind=(),
        words={},
        least={"rows": "1", "columns": "1"},
        conditions=("rows <= 32768 and columns <= 32768",),
        candidates=lambda starts, _: {
            configuration: {"place": place} for place, configuration in enumerate((*starts, TILED_16, PLAIN_1))
        },
        estimate=Expression("place"),
        plan=PLAN,
        samples=lambda _, example: (example,),
    )

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        return PLAN.plan(problem, configuration)

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        wanted = (*starts, TILED_16, PLAIN_1)
        return (c for c in wanted if not self.violations(problem, c, limits))

    def examples(self) -> tuple[Problem, ...]:
        return (TransposeProblem(rows=1, columns=1), TransposeProblem(rows=33, columns=70))

    def make_case(self, problem: Problem, seed: int) -> Case:
        assert isinstance(problem, TransposeProblem)
        return TransposeCase(problem, seed)


FAMILY = Transpose()
