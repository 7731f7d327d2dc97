"""Reductions for exported C code."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from autotune.kernels.reduce.plan import PLAN
from autotune.kernels.reduce.problem import BYTES_MOVED, DTYPES, OPERATIONS, ReduceProblem
from autotune.kernels.reduce.rule import ESTIMATE, candidates
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.c_export import CExport


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, ReduceProblem)
    values = PLAN.values(example, configuration)
    width, rows, in_pass = values["vector_width"], values["rows"], values["in_pass"]
    for vectors, rest, batch in product((1, in_pass, 2 * in_pass, 2 * in_pass + 1), (0, 1), (rows, rows + 1)):
        # rest is less than the width, or adds one more vector, which does no harm
        yield replace(example, batch=batch, channels=vectors * width + rest, pitch=0)


C_EXPORT = CExport(
    about="One number for each row: batch rows of `channels` elements, `pitch` elements apart.",
    kind=("operation", "dtype"),
    words={"operation": OPERATIONS, "dtype": DTYPES},
    least={"batch": "1", "channels": "1", "pitch": "channels"},
    candidates=candidates,
    estimate=ESTIMATE,
    bytes_moved=BYTES_MOVED,
    plan=PLAN,
    samples=_samples,
)
