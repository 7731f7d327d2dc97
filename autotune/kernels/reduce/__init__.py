"""Reduce: the sum, mean, max or min of each row of a row-major (batch, channels) input.

Rows start `pitch` elements apart. float16 is read and written as such and accumulated in float32. A row with a NaN
gives NaN, for max and min too, as in NumPy and torch. Row offsets are 64 bits wide, so only memory limits the input;
the length of a row and the number of rows stay below 2**31.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers
and launches, and `reference.py` the verification.

Sources: `sub_group` follows a published reduction for phones: one work-group per row, the device's own reduction
within a sub-group, local memory between sub-groups. The others are the classic forms.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from autotune.kernels.reduce.algorithms import ALGORITHMS
from autotune.kernels.reduce.plan import PLAN
from autotune.kernels.reduce.problem import DTYPES, EXAMPLES, OPERATIONS, ReduceProblem
from autotune.kernels.reduce.rule import ESTIMATE, candidates
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.family import BuiltInFamily, CExport

__all__ = ["FAMILY", "Reduce", "ReduceProblem"]


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, ReduceProblem)
    values = PLAN.values(example, configuration)
    width, rows, in_pass = values["vector_width"], values["rows"], values["in_pass"]
    for vectors, rest, batch in product((1, in_pass, 2 * in_pass, 2 * in_pass + 1), (0, 1), (rows, rows + 1)):
        # rest is less than the width, or adds one more vector, which does no harm
        yield replace(example, batch=batch, channels=vectors * width + rest, pitch=0)


_C_EXPORT = CExport(
    about="One number for each row: batch rows of `channels` elements, `pitch` elements apart.",
    kind=("operation", "dtype"),
    words={"operation": OPERATIONS, "dtype": DTYPES},
    least={"batch": "1", "channels": "1", "pitch": "channels"},
    candidates=candidates,
    estimate=ESTIMATE,
    plan=PLAN,
    samples=_samples,
)


class Reduce(BuiltInFamily):
    """The reduce family; see the module's docstring."""

    name = "reduce"
    meaning = "sums, means, maxima, minima"
    space_version = 1
    problem_type = ReduceProblem
    algorithms = ALGORITHMS
    baseline = Configuration.of("serial", work_group_size=0, vector_width=1, unroll=1, loads="vload")
    c_export = _C_EXPORT

    def examples(self) -> tuple[Problem, ...]:
        return EXAMPLES


FAMILY = Reduce()
