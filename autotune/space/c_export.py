"""What exported C code must know about a kernel family beyond its parameters, constraints and problem's fields."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.expression import Expression
from autotune.space.plan_formula import PlanFormula


@dataclass(frozen=True, kw_only=True, eq=False)
class CExport:
    """Counterparts of the family's Python code, printed into C; a test compares both on random problems.

    Only a family whose default is the valid candidate with the least estimate can have one.
    """

    about: str
    """What a call computes, as a comment in C; its arguments are the scalars and the operands of the plan."""
    kind: tuple[str, ...]
    """Fields that comparable problems share."""
    words: Mapping[str, tuple[str, ...]]
    """Values of the text fields; the first is used for a field that is not given."""
    least: Mapping[str, str]
    """Least values of fields, in order, as expressions; the most is 2**31 - 1.

    A field that is 0 by default takes its least value if it is 0.
    """
    conditions: tuple[str, ...] = ()
    """What else holds for every problem."""
    candidates: Callable[[tuple[Configuration, ...], DeviceLimits], Mapping[Configuration, Mapping[str, int]]]
    """Returns the candidates for the default of a device, each with its numbers for the estimate."""
    estimate: Expression
    """An expression over fields, limits and numbers: the first valid candidate with the least value is the default.

    A negative value means that the candidate is not meant for this problem.
    """
    bytes_moved: Expression
    """`Problem.bytes_moved` over the fields."""
    plan: PlanFormula
    samples: Callable[[Configuration, Problem], Iterable[Problem]]
    """Returns problems of the same kind as an example that cover the variants of a configuration."""
