"""What exported C code must know about a family's problems beyond their fields: C counterparts of Python code.

A test compares both on random problems. A family without rules here has no C export. A family can have rules only if
its default is the valid candidate with the least estimate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.kernels.gemm import rule as gemm_rule
from autotune.kernels.reduce import rule as reduce_rule
from autotune.kernels.reduce.problem import DTYPES, OPERATIONS
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression


@dataclass(frozen=True, kw_only=True)
class ProblemRules:
    """`Problem.size_vector`, `Problem.is_comparable`, what its constructor fills in and rejects, and the default."""

    sizes: tuple[str, ...]
    """Fields in which the distance of problems is measured, in the order of `size_vector`."""
    kind: tuple[str, ...]
    """Fields that comparable problems share."""
    words: Mapping[str, tuple[str, ...]]
    """Values of the text fields; the first is used for a field that is not given."""
    complete: str
    """C statements of a function that fills in fields of ``*p`` that are 0, and returns 0 for an invalid problem."""
    candidates: Callable[[tuple[Configuration, ...], DeviceLimits], Mapping[Configuration, Mapping[str, int]]]
    """Returns the candidates for the default of a device, each with its numbers for the estimate."""
    estimate: Expression
    """An expression over fields, limits and numbers: the first valid candidate with the least value is the default.

    A negative value means that the candidate is not meant for this problem.
    """
    bytes_moved: str
    """`Problem.bytes_moved` as a C expression of type double."""


_GEMM = """\
    const long long most = 2147483647LL;
    const long long a_rows = p->trans_a ? p->k : p->m, a_columns = p->trans_a ? p->m : p->k;
    const long long b_rows = p->trans_b ? p->n : p->k, b_columns = p->trans_b ? p->k : p->n;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->batch < 1) return 0;
    if (p->m > most || p->n > most || p->k > most || p->batch > most) return 0;
    if (p->trans_a < 0 || p->trans_a > 1 || p->trans_b < 0 || p->trans_b > 1) return 0;
    if (!autotune_gemm_fill(&p->lda, a_columns) || !autotune_gemm_fill(&p->ldb, b_columns)) return 0;
    if (!autotune_gemm_fill(&p->ldc, p->n)) return 0;
    if (!autotune_gemm_fill(&p->stride_a, a_rows * p->lda)) return 0;
    if (!autotune_gemm_fill(&p->stride_b, b_rows * p->ldb)) return 0;
    if (!autotune_gemm_fill(&p->stride_c, p->m * p->ldc)) return 0;
    return p->batch * p->stride_a <= most && p->batch * p->stride_b <= most && p->batch * p->stride_c <= most;
"""


_INPUT_BYTES = "(p->mode == AUTOTUNE_GEMM_FLOAT32 ? 4.0 : p->mode == AUTOTUNE_GEMM_INT8 ? 1.0 : 2.0)"
_OUTPUT_BYTES = "(p->mode == AUTOTUNE_GEMM_FLOAT32 || p->mode == AUTOTUNE_GEMM_INT8 ? 4.0 : 2.0)"

_REDUCE = """\
    const long long most = 2147483647LL;
    if (p->batch < 1 || p->batch > most || p->channels < 1 || p->channels > most) return 0;
    return autotune_reduce_fill(&p->pitch, p->channels);
"""


_RULES = {
    "gemm": ProblemRules(
        sizes=("m", "n", "k", "batch"),
        kind=("mode", "trans_a", "trans_b"),
        words={"mode": ("float32", "float16", "float16-acc16", "int8")},
        complete=_GEMM,
        candidates=gemm_rule.candidates,
        estimate=gemm_rule.ESTIMATE,
        bytes_moved=f"(double)p->batch * ({_INPUT_BYTES} * ((double)(p->m * p->k) + (double)(p->k * p->n))"
        f" + {_OUTPUT_BYTES} * (double)(p->m * p->n))",
    ),
    "reduce": ProblemRules(
        sizes=("batch", "channels"),
        kind=("operation", "dtype"),
        words={"operation": OPERATIONS, "dtype": DTYPES},
        complete=_REDUCE,
        candidates=reduce_rule.candidates,
        estimate=reduce_rule.ESTIMATE,
        bytes_moved="(p->dtype == AUTOTUNE_REDUCE_FLOAT16 ? 2.0 : 4.0) * (double)(p->batch * (p->channels + 1))",
    ),
}


def problem_rules(family: str) -> ProblemRules:
    """Return the rules of a family. Raises UsageError for a family without a C export."""
    if family not in _RULES:
        raise UsageError(f"{family} cannot be exported to C", hint="export it to JSON")
    return _RULES[family]
