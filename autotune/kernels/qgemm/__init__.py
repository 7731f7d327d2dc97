"""QGemm: ``Y = X @ W.T`` with quantised weights W, as language models compute it.

X is (n, k), W is (m, k) and Y is (n, m), all row-major; n counts tokens. W has one of the formats of `formats.py`;
kernels read it as the file has it or packed: quants and scales apart, row by row or by columns, through a buffer or an
image. Weights are constant: packing them is not part of a call. With experts, the rows of X are sorted by expert.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers
and launches, `blocks.py` and `reference.py` the verification.

Sources: the formats are those of GGUF, of OCP's MX specification, and of GPTQ, AWQ and MNN; `shared_rows` is the
classic product of matrix and vector, `own_rows` follows what inference engines do on Adreno.
"""

from collections.abc import Iterator, Sequence

from autotune.kernels.qgemm.algorithms import ALGORITHMS
from autotune.kernels.qgemm.plan import PLAN
from autotune.kernels.qgemm.problem import EXAMPLES, QGemmProblem
from autotune.kernels.qgemm.rule import by_rule
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.plan import Plan
from autotune.model.problem import Problem
from autotune.space.family import Case, KernelFamily

__all__ = ["FAMILY", "QGemm", "QGemmProblem"]


class QGemm(KernelFamily):
    """The qgemm family; see the module's docstring."""

    name = "qgemm"
    meaning = "products with quantised weights"
    space_version = 1
    problem_type = QGemmProblem
    algorithms = ALGORITHMS
    baseline = Configuration.of("naive", relaxed_math="off")

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        return PLAN.plan(problem, configuration)

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield the valid starts, then the valid configurations of `by_rule`."""
        assert isinstance(problem, QGemmProblem)
        wanted = [*starts, *by_rule(problem, limits)]
        return (c for c in wanted if not self.violations(problem, c, limits))

    def examples(self) -> tuple[Problem, ...]:
        return tuple(QGemmProblem.parse(text) for text in EXAMPLES)

    def make_case(self, problem: Problem, seed: int) -> Case:
        from autotune.kernels.qgemm.reference import QGemmCase  # loads NumPy, which lookups do not need

        assert isinstance(problem, QGemmProblem)
        return QGemmCase(problem, seed)


FAMILY = QGemm()
