"""GEMM: ``C = alpha * op(A) @ op(B) + beta * C``, row-major, plain or transposed operands, batched.

op(A) is m x k, op(B) is k x n, C is m x n. Row pitches `lda`, `ldb`, `ldc` and batch strides count elements of the
stored matrices. Work-items run along n in dimension 0 and along m in dimension 1; dimension 2 holds the batch and the
parts of a split k. With beta 0, C is never read.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers
and launches, and `reference.py` the verification.

Sources: the `microtile` kernel and its image for B follow Qualcomm's description of SGEMM on Adreno; `dot` follows the
float4 dot products used on Mali-T604; `local_tile` is the classic tiling through local memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from autotune.kernels.gemm.estimate import ESTIMATE
from autotune.kernels.gemm.plan import PLAN
from autotune.kernels.gemm.problem import EXAMPLES, MAX_ELEMENTS, MODES, GemmProblem
from autotune.kernels.gemm.rule import by_rule, candidates
from autotune.kernels.gemm.tile_algorithms import ALGORITHMS
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.family import BuiltInFamily, CExport

__all__ = ["FAMILY", "Gemm", "GemmProblem"]


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, GemmProblem)
    values = PLAN.values(example, configuration)

    def lengths(tile: int, group: int) -> list[int]:
        """Return whole tiles of a work-group and a work-item with each remainder by 4 possible, then ragged lengths."""
        steps = (1, 2, 3, 4)
        wanted = [step * part for part in (group, tile) for step in steps] + [4 * group + step for step in steps]
        return list({(length % group, length % tile, length % 4): length for length in wanted}.values())

    tile_m, tile_n = values["micro_tile_m"], values["micro_tile_n"]
    rows = lengths(tile_m, tile_m * max(values["work_group_m"], 1) * values["tiles_m"] * values["macro_tile_m"])
    columns = lengths(tile_n, tile_n * max(values["work_group_n"], 1) * values["macro_tile_n"])
    deep = 4 * values["unroll"] * values["vector_width"] * values["tile_k"]
    sizes = list(product(rows, columns, (0, 1)))
    if configuration.algorithm in ("row", "strip") and example.trans_a:
        sizes += [(length, 1, 0) for length in columns]
    if configuration.algorithm == "column" and example.trans_b:
        more = 64 * tile_m * values["work_group_m"]  # so that n is at least m
        sizes += [(wide, more + high, gap) for high, wide, gap in product(rows, (4, 5, 6, 7), (0, 1))]
    for batch, (m, n, gap), k in product((1, 2), sizes, (deep, deep + 1)):
        yield replace(
            example, m=m, n=n, k=k, batch=batch, lda=0, ldb=0, ldc=n + gap, stride_a=0, stride_b=0, stride_c=0
        )


_C_EXPORT = CExport(
    about="C = alpha * op(A) * op(B) + beta * C, row-major, in buffers.",
    kind=("mode", "trans_a", "trans_b"),
    words={"mode": tuple(MODES)},
    least={
        **dict.fromkeys(("m", "n", "k", "batch"), "1"),
        "lda": "m if trans_a == 1 else k",
        "ldb": "k if trans_b == 1 else n",
        "ldc": "n",
        "stride_a": "(k if trans_a == 1 else m) * lda",
        "stride_b": "(n if trans_b == 1 else k) * ldb",
        "stride_c": "m * ldc",
    },
    conditions=(
        "trans_a in (0, 1) and trans_b in (0, 1)",
        *(f"batch * stride_{operand} <= {MAX_ELEMENTS}" for operand in "abc"),
    ),
    candidates=candidates,
    estimate=ESTIMATE,
    plan=PLAN,
    samples=_samples,
)


class Gemm(BuiltInFamily):
    """The GEMM family; see the module's docstring."""

    name = "gemm"
    meaning = "matrix product"
    space_version = 2
    problem_type = GemmProblem
    algorithms = ALGORITHMS
    baseline = Configuration.of("naive", work_group_m=0, work_group_n=0)
    c_export = _C_EXPORT
    shapes_to_check = EXAMPLES

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield the valid starts and their variants, as `rule.py` ranks them, without known faults of the driver."""
        assert isinstance(problem, GemmProblem)
        faults = self.faults(limits)
        found = by_rule(problem, limits, starts)
        return (c for c in found if not any(f.matches(c) for f in faults)) if faults else found


FAMILY = Gemm()
