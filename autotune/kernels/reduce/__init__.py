"""Reduce: the sum, mean, max or min of each row of a row-major (batch, channels) input.

Rows start `pitch` elements apart. float16 is read and written as such and accumulated in float32. A row with a NaN
gives NaN, for max and min too, as in NumPy and torch. Row offsets are 64 bits wide, so only memory limits the input;
the length of a row and the number of rows stay below 2**31.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers
and launches, and `reference.py` the verification.

Sources: `sub_group` follows a published reduction for phones: one work-group per row, the device's own reduction
within a sub-group, local memory between sub-groups. The others are the classic forms.
"""

from collections.abc import Iterator, Sequence

from autotune.kernels.combination import one_launch_variants
from autotune.kernels.reduce.algorithms import ALGORITHMS
from autotune.kernels.reduce.plan import plan_reduce
from autotune.kernels.reduce.problem import EXAMPLES, ReduceProblem
from autotune.kernels.reduce.rule import by_rule
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.space.family import Case, KernelFamily

__all__ = ["FAMILY", "Reduce", "ReduceProblem"]


class Reduce(KernelFamily):
    """The reduce family; see the module's docstring."""

    name = "reduce"
    meaning = "sums, means, maxima, minima"
    space_version = 1
    problem_type = ReduceProblem
    algorithms = ALGORITHMS
    baseline = Configuration.of("serial", work_group_size=0, vector_width=1, unroll=1, loads="vload")

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        assert isinstance(problem, ReduceProblem)
        return plan_reduce(problem, configuration)

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield the valid starts, their valid variants in one launch, then the valid configurations of `by_rule`."""
        assert isinstance(problem, ReduceProblem)
        in_one_launch = [variant for start in starts for variant in one_launch_variants(start, limits)]
        wanted = [*starts, *in_one_launch, *by_rule(problem, limits)]
        return (c for c in wanted if not self.violations(problem, c, limits))

    def examples(self) -> tuple[Problem, ...]:
        return EXAMPLES

    def make_case(self, problem: Problem, seed: int) -> Case:
        from autotune.kernels.reduce.reference import ReduceCase  # loads NumPy, which lookups do not need

        assert isinstance(problem, ReduceProblem)
        return ReduceCase(problem, seed)


FAMILY = Reduce()
