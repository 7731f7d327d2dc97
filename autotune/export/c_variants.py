"""The kernel sources that a configuration may have over all sizes: which flags a template may be given for a problem.

A family's flags form one number, the variant; `templates/c/autotune_plan_*.h` computes the same number from the sizes.
A set of sample problems that covers every variant a configuration can have stands for all sizes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from autotune.kernels.gemm import GemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.kernels.reduce.plan import items_per_row, rows_per_group
from autotune.model.configuration import Configuration, Value
from autotune.model.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A template value that depends on the sizes, as a digit of the variant."""

    name: str
    digits: Mapping[Value, int]
    """Digit by value; values with the same digit give the same text."""

    @property
    def base(self) -> int:
        return max(self.digits.values()) + 1


@dataclass(frozen=True, kw_only=True)
class Variants:
    """The flags of one family, and problems that cover them."""

    flags: tuple[Flag, ...]
    samples: Callable[[Configuration, Problem], Iterable[Problem]]
    """Returns problems of the same kind as an example that cover the variants of a configuration."""
    plain: Problem
    """A problem whose kind is in every package."""

    @property
    def count(self) -> int:
        count = 1
        for flag in self.flags:
            count *= flag.base
        return count

    def number(self, template_values: Mapping[str, Value]) -> int:
        """Return the variant of a plan, given its template values."""
        number = 0
        for flag in self.flags:
            number = number * flag.base + flag.digits[template_values[flag.name]]
        return number


_TRUTH: Mapping[Value, int] = {0: 0, 1: 1}
# Templates only depend on whether 2 or 4 divide a size.
_REMAINDER: Mapping[Value, int] = {0: 0, 1: 1, 2: 2, 3: 1}


def _gemm_samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, GemmProblem)
    values = dict(configuration.values)

    def number(name: str) -> int:
        value = values.get(name, 1)
        return value if isinstance(value, int) and value else 1

    def lengths(name: str) -> list[int]:
        """Return whole tiles of a work-group and a work-item with each remainder by 4 possible, then ragged lengths."""
        tile = number(f"micro_tile_{name}")
        group = tile * number(f"work_group_{name}") * number(f"tiles_{name}")
        steps = (1, 2, 3, 4)
        wanted = [step * part for part in (group, tile) for step in steps] + [4 * group + step for step in steps]
        return list({(length % group, length % tile, length % 4): length for length in wanted}.values())

    deep = 4 * number("unroll") * number("vector_width") * number("tile_k")
    for batch, m, n, k, gap in product((1, 2), lengths("m"), lengths("n"), (deep, deep + 1), (0, 1)):
        yield replace(
            example, m=m, n=n, k=k, batch=batch, lda=0, ldb=0, ldc=n + gap, stride_a=0, stride_b=0, stride_c=0
        )


def _reduce_samples(configuration: Configuration, example: Problem) -> Iterator[Problem]:
    assert isinstance(example, ReduceProblem)
    width, rows = configuration.number("vector_width"), rows_per_group(configuration)
    in_pass = configuration.number("unroll") * items_per_row(configuration)
    for vectors, rest, batch in product((1, in_pass, 2 * in_pass, 2 * in_pass + 1), (0, 1), (rows, rows + 1)):
        # rest is less than the width, or adds one more vector, which does no harm
        yield replace(example, batch=batch, channels=vectors * width + rest, pitch=0)


VARIANTS = {
    "gemm": Variants(
        flags=(
            Flag(name="batched", digits=_TRUTH),
            Flag(name="ragged_m", digits=_TRUTH),
            Flag(name="ragged_n", digits=_TRUTH),
            Flag(name="ragged_k", digits=_TRUTH),
            Flag(name="m_remainder", digits=_REMAINDER),
            Flag(name="n_remainder", digits=_REMAINDER),
            Flag(name="c_aligned", digits=_TRUTH),
        ),
        samples=_gemm_samples,
        plain=GemmProblem(m=1, n=1, k=1),
    ),
    "reduce": Variants(
        flags=tuple(
            Flag(name=name, digits=_TRUTH) for name in ("whole_pass", "ragged_pass", "ragged_vector", "ragged_batch")
        ),
        samples=_reduce_samples,
        plain=ReduceProblem(batch=1, channels=1),
    ),
}
