"""QGemm: ``Y = X @ W.T`` with quantised weights W, as language models compute it.

X is (n, k), W is (m, k) and Y is (n, m), all row-major; n counts tokens. W has one of the formats of `formats.py`;
kernels read it as the file has it or packed: quants and scales apart, row by row or by columns, through a buffer or an
image. Weights are constant: packing them is not part of a call. With experts, the rows of X are sorted by expert.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers
and launches, `blocks.py` and `reference.py` the verification.

Sources: the formats are those of GGUF, of OCP's MX specification, and of GPTQ, AWQ and MNN; `shared_rows` is the
classic product of matrix and vector, `own_rows` follows what inference engines do on Adreno.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from autotune.kernels.qgemm.algorithms import ALGORITHMS
from autotune.kernels.qgemm.formats import FORMATS
from autotune.kernels.qgemm.plan import PLAN
from autotune.kernels.qgemm.problem import (
    BLOCK,
    EXAMPLES,
    MAX_ELEMENTS,
    MAX_EXPERTS,
    MODES,
    QGemmProblem,
)
from autotune.kernels.qgemm.rule import ESTIMATE, candidates
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.family import BuiltInFamily, CExport

__all__ = ["FAMILY", "QGemm", "QGemmProblem"]


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, QGemmProblem)
    values = PLAN.values(example, configuration)
    for m_rest, n_rest, experts in product((0, 1), (0, 1), (1, 2)):
        m, n = values["group_rows"] + m_rest, values["group_columns"] + n_rest
        yield replace(example, m=m, n=n, experts=experts, k=example.format.block)


_C_EXPORT = CExport(
    about="""Y = X * W^T, row-major, in buffers: X n x k, Y n x m, W m x k for each expert in the bytes of its format.
   The rows of X are sorted by expert: `starts` has, as int, where those of each begin, and n; NULL for one expert.""",
    kind=("weights", "mode"),
    words={"weights": tuple(FORMATS), "mode": tuple(MODES)},
    least={"m": "1", "n": "1", "k": BLOCK, "experts": "1"},
    conditions=(
        f"k % ({BLOCK}) == 0 and experts <= {MAX_EXPERTS}",
        f"n * k <= {MAX_ELEMENTS} and n * m <= {MAX_ELEMENTS} and m * k <= {MAX_ELEMENTS}",
        f"experts * m * k <= {MAX_ELEMENTS}",
    ),
    candidates=candidates,
    estimate=ESTIMATE,
    plan=PLAN,
    packing="8 if by_matrices else 16 if in_panels else 0 if layout == 'rows' else packed_words",
    samples=_samples,
)


class QGemm(BuiltInFamily):
    """The qgemm family; see the module's docstring."""

    name = "qgemm"
    meaning = "products with quantised weights"
    space_version = 1
    problem_type = QGemmProblem
    algorithms = ALGORITHMS
    baseline = Configuration.of("naive", relaxed_math="off")
    c_export = _C_EXPORT
    shapes_to_check = EXAMPLES
    packing_parameters = ("layout", "packed_words")
    can_unpack = True


FAMILY = QGemm()
