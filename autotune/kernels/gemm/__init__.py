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

from autotune.kernels.gemm.algorithms import ALGORITHMS
from autotune.kernels.gemm.plan import plan_gemm
from autotune.kernels.gemm.problem import EXAMPLES, GemmProblem
from autotune.kernels.gemm.rule import by_rule
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.space.family import Case, KernelFamily

__all__ = ["FAMILY", "Gemm", "GemmProblem"]


class Gemm(KernelFamily):
    """The GEMM family; see the module's docstring."""

    name = "gemm"
    meaning = "matrix product"
    space_version = 2
    problem_type = GemmProblem
    algorithms = ALGORITHMS
    baseline = Configuration.of("naive", work_group_m=0, work_group_n=0)

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        assert isinstance(problem, GemmProblem)
        return plan_gemm(problem, configuration)

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield the valid starts and their variants, as `rule.py` ranks them, without known faults of the driver."""
        assert isinstance(problem, GemmProblem)
        faults = self.faults(limits)
        found = by_rule(problem, limits, starts)
        return (c for c in found if not any(f.matches(c) for f in faults)) if faults else found

    def examples(self) -> tuple[Problem, ...]:
        return tuple(GemmProblem.parse(text) for text in EXAMPLES)

    def make_case(self, problem: Problem, seed: int) -> Case:
        from autotune.kernels.gemm.reference import GemmCase  # loads NumPy, which lookups do not need

        assert isinstance(problem, GemmProblem)
        return GemmCase(problem, seed)


FAMILY = Gemm()
