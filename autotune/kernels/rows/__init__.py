"""Row operations: what language models do between products, on each row of row-major (batch, channels) operands.

RMSNorm (times a weight; of a sum with a residual, which is written too), LayerNorm, softmax (of scaled elements, with
an additive mask of one row or of each), SwiGLU (``silu(gate) * up``, in two operands or the halves of a row) and RoPE
(pairs of neighbours, or of the halves of a head). float16 is read and written as such and computed with in float32. A
NaN reaches all that depends on it. Row offsets are 64 bits wide.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers
and launches, and `reference.py` the verification. How work-items join what they found is shared with `reduce`.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from autotune.kernels.rows.algorithms import ALGORITHMS
from autotune.kernels.rows.plan import BASELINE, PLAN
from autotune.kernels.rows.problem import DTYPES, EXAMPLES, HEADS_FIT, LEAST_PITCH, OPERATIONS, PAIRS_FIT, RowsProblem
from autotune.kernels.rows.rule import ESTIMATE, candidates
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.family import BuiltInFamily, CExport

__all__ = ["FAMILY", "Rows", "RowsProblem"]


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, RowsProblem)
    values = PLAN.values(example, configuration)
    width, rows, in_pass = values["vector_width"], values["rows"], values["in_pass"]
    counts = {1, max(in_pass - 1, 1), in_pass, 2 * in_pass, 2 * in_pass + 1}
    for vectors, rest, batch in product(sorted(counts), (0, 1), (rows, rows + 1)):
        if example.is_rope:
            # The vectors as one head, or in as many heads as there are, so that all or none have the same angles.
            for heads in (1, vectors):
                yield replace(example, batch=batch, channels=2 * vectors * width, heads=heads, pitch=0, out_pitch=0)
        else:
            # rest is less than the width, or adds one more vector, which does no harm
            yield replace(example, batch=batch, channels=vectors * width + rest, pitch=0, out_pitch=0)


_C_EXPORT = CExport(
    about="An operation on batch rows of `channels` elements; operands that it does not have are NULL. Rows of all"
    " that is read start `pitch` elements apart, rows of what is written `out_pitch`.",
    kind=("operation", "dtype"),
    words={"operation": tuple(OPERATIONS), "dtype": DTYPES},
    least={
        **dict.fromkeys(("batch", "channels", "heads"), "1"),
        "pitch": LEAST_PITCH,
        "out_pitch": "channels",
    },
    conditions=(HEADS_FIT, PAIRS_FIT),
    candidates=candidates,
    estimate=ESTIMATE,
    plan=PLAN,
    samples=_samples,
)


class Rows(BuiltInFamily):
    """The family of row operations; see the module's docstring."""

    name = "rows"
    meaning = "norms, softmax, SwiGLU and RoPE"
    space_version = 1
    problem_type = RowsProblem
    algorithms = ALGORITHMS
    baseline = BASELINE
    c_export = _C_EXPORT
    shapes_to_check = EXAMPLES


FAMILY = Rows()
