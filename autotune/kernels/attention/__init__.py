"""Attention: ``softmax(scale * Q @ K.T + bias) @ V`` for each query head, with heads of K and V shared by groups.

K and V are float32, float16, or GGUF's blocks q8_0 and q4_0, and lie head by head, token by token or in pages. Softmax
is online and in float32. The number of keys of each sequence is an operand: kernels are chosen for a bound of
it. A row that sees no key is zero.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers and
launches, and `reference.py` the verification.

Sources: the online softmax is that of Milakov and Gimelshein, tiles of queries are those of FlashAttention, and
work-groups that share out keys those of Flash-Decoding.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from autotune.kernels.attention.algorithms import ALGORITHMS
from autotune.kernels.attention.plan import BASELINE, PLAN
from autotune.kernels.attention.problem import BLOCKS_FIT, EXAMPLES, LEAST, WORDS, AttentionProblem
from autotune.kernels.attention.rule import ESTIMATE, candidates
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.family import BuiltInFamily, CExport

__all__ = ["FAMILY", "Attention", "AttentionProblem"]


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:  # noqa: ARG001 - sizes alone decide
    assert isinstance(example, AttentionProblem)
    for window, queries in product((0, 5), (1, 9)):
        yield replace(example, window=window, q_length=queries)


_C_EXPORT = CExport(
    about="""Attention of each query head to the keys of its sequence; operands that a problem does not have are NULL.
   `lengths` has, as int, how many keys each sequence has, at most kv_length.""",
    kind=tuple(WORDS),
    words=WORDS,
    least=LEAST,
    conditions=(BLOCKS_FIT,),
    candidates=candidates,
    estimate=ESTIMATE,
    plan=PLAN,
    samples=_samples,
)


class Attention(BuiltInFamily):
    """The family of attention; see the module's docstring."""

    name = "attention"
    meaning = "attention with a cache of keys and values"
    space_version = 1
    problem_type = AttentionProblem
    algorithms = ALGORITHMS
    baseline = BASELINE
    c_export = _C_EXPORT
    shapes_to_check = EXAMPLES


FAMILY = Attention()
