"""Convolution: ``activation(convolution(input, weights) + bias + residual)`` of a batch of images.

Windows of up to 11 x 11, strides, dilations, paddings, groups, depthwise and transposed, in three layouts. Weights
are constant: packing them is not part of a call.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers and
launches, and `reference.py` the verification.
"""

from collections.abc import Iterator

from autotune.kernels.conv.algorithms import ALGORITHMS
from autotune.kernels.conv.plan import BASELINE, PLAN
from autotune.kernels.conv.problem import CONDITIONS, EXAMPLES, LEAST, WORDS, ConvProblem
from autotune.kernels.conv.rule import ESTIMATE, candidates
from autotune.model.configuration import Configuration
from autotune.model.problem import Problem
from autotune.space.family import BuiltInFamily, CExport

__all__ = ["FAMILY", "Conv", "ConvProblem"]


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    yield example


_C_EXPORT = CExport(
    about="""Convolution of a batch of images, with bias, residual and activation; operands that a problem does not
   have are NULL.""",
    kind=tuple(WORDS),
    words=WORDS,
    least=LEAST,
    conditions=CONDITIONS,
    candidates=candidates,
    estimate=ESTIMATE,
    plan=PLAN,
    samples=_samples,
)


class Conv(BuiltInFamily):
    """The family of convolution; see the module's docstring."""

    name = "conv"
    meaning = "convolution of images"
    space_version = 1
    problem_type = ConvProblem
    algorithms = ALGORITHMS
    baseline = BASELINE
    c_export = _C_EXPORT
    shapes_to_check = EXAMPLES


FAMILY = Conv()
