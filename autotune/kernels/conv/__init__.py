"""Convolution: ``activation(convolution(input, weights) + bias + residual)`` of a batch of images.

Windows of up to 11 x 11, strides, dilations, paddings, groups, depthwise and transposed, in three layouts. Weights
are constant: packing them is not part of a call.

`problem.py` defines the problems, `algorithms.py` the search space, `rule.py` the untuned choice, `plan.py` buffers and
launches, and `reference.py` the verification.

Sources: the implicit product is that of cuDNN's paper (Chetlur et al., 2014), Winograd's algorithm for convolutions
that of Lavin and Gray (2015).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from autotune.kernels.conv.algorithms import ALGORITHMS
from autotune.kernels.conv.plan import BASELINE, PACKING, PLAN
from autotune.kernels.conv.problem import CONDITIONS, EXAMPLES, LEAST, WORDS, ConvProblem
from autotune.kernels.conv.rule import ESTIMATE, by_rule, candidates
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.family import BuiltInFamily, CExport, Starts

__all__ = ["FAMILY", "Conv", "ConvProblem"]


def _samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, ConvProblem)
    values = PLAN.values(example, configuration)
    is_winograd = configuration.algorithm == "winograd"
    kinds = [(3, 1, 1)] if is_winograd else product((1, 2, 3, 5), (1, 2, 3), (1, 2))
    for (window, stride, groups), pad, rest in product(kinds, (0, 1), (0, 1)):
        channels = groups * (int(values["step_c"]) + rest)
        filters = groups
        if configuration.algorithm == "depthwise":
            channels = 2 * int(values["vector_f"]) + rest
            groups, filters = channels, channels * groups
        yield replace(
            example, height=9, width=9, channels=channels, filters=filters, groups=groups, kernel_height=window,
            kernel_width=window, stride_y=stride, stride_x=stride, dilation_y=1, dilation_x=1, pad_top=pad,
            pad_left=pad, pad_bottom=pad, pad_right=pad,
        )  # fmt: skip


class Conv(BuiltInFamily):
    """The family of convolution; see the module's docstring."""

    name = "conv"
    meaning = "convolution of images"
    space_version = 1
    problem_type = ConvProblem
    algorithms = ALGORITHMS
    baseline = BASELINE
    c_export = CExport(
        about="""Convolution of a batch of images, with bias, residual and activation; operands that a problem does not
   have are NULL.""",
        kind=tuple(WORDS), words=WORDS, least=LEAST, conditions=CONDITIONS, candidates=candidates, estimate=ESTIMATE,
        plan=PLAN, packing=PACKING, samples=_samples,
    )  # fmt: skip
    shapes_to_check = EXAMPLES

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield the rule's candidates that are meant and valid, those with the least estimate first."""
        ranked = by_rule(problem, limits, Starts(starts))
        return (found for found in ranked if not self.violations(problem, found, limits))


FAMILY = Conv()
