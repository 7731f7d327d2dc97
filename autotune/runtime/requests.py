"""Reads requests from the operands of products, once for all operands of the same form."""

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, NamedTuple

from autotune.device.arrays import Kind, kind_of, shared_memory
from autotune.errors import ProblemError
from autotune.kernels.gemm import GemmProblem
from autotune.model.problem import NUMBER_TYPES
from autotune.runtime.choice import Weights
from autotune.runtime.crossover import Crossover
from autotune.runtime.engine import PreparedMatrix, Request
from autotune.runtime.layout import gemm_problem, read_layout, result_shape

NAMES = ("a", "b", "c")
PACKED = frozenset((Kind.HOST, Kind.IMAGE))
"""Kinds whose pitch does not matter: host arrays are copied, images have the driver's own pitch."""
_ON_HOST = frozenset((Kind.HOST, Kind.SHARED))


class How(NamedTuple):
    """Arguments of a call besides its operands."""

    trans_a: bool = False
    trans_b: bool = False
    mode: str = ""
    problem: GemmProblem | None = None


@dataclass(kw_only=True)
class GemmRequest(Request):
    """A request with the shape of the result, and which operands are stored by columns."""

    problem: GemmProblem
    shape: tuple[int, ...]
    a_by_columns: bool = False
    b_by_columns: bool = False
    on_host: bool = False
    """Whether the host's BLAS does the product."""

    def __post_init__(self) -> None:
        """Derive what calls need at once."""
        self.is_resident = all(kind in (Kind.ARRAY, Kind.BUFFER) for kind in self.kinds)
        is_prepared = self.weights is Weights.PACKED_ONCE
        self.arrays = [i for i, kind in enumerate(self.kinds) if kind is Kind.ARRAY and not (is_prepared and i == 1)]
        self.takes_whole_numbers = self.problem.is_whole
        self.bytes = tuple(_bytes(self.problem, name) for name in NAMES)


def read_request(owner: object, operands: tuple[Any, Any, Any], how: How, crossover: Crossover) -> GemmRequest:
    """Read the request of `operands` (a, b, out), of which out may be None. Raises ProblemError where they do not fit.

    A `PreparedMatrix` must have been prepared by `owner`.
    """
    a, b, out = operands
    prepared = b if isinstance(b, PreparedMatrix) else None
    kind_a, kind_b = kind_of(a), prepared.kind if prepared else kind_of(b)
    kind_c = kind_of(out) if out is not None else None
    assert kind_a and kind_b
    if how.problem or Kind.BUFFER in (kind_a, kind_c) or (kind_b is Kind.BUFFER and not prepared):
        return _read_buffers((kind_a, kind_b, kind_c), how.problem)
    if kind_a is Kind.IMAGE or kind_c is Kind.IMAGE:
        raise ProblemError("only b can be in an image")
    if prepared and prepared.owner is not owner:
        raise ProblemError("b was prepared by another Gemm")
    if prepared and how.trans_b:
        raise ProblemError("b was prepared, so trans_b cannot be set here", hint="pass trans_b to prepare")
    trans_b = prepared.is_transposed if prepared else how.trans_b
    if kind_b is Kind.IMAGE and trans_b:
        raise ProblemError("an image for b must hold op(B), k x n", hint="fill it with the transpose")
    layout_a = read_layout("a", a, packs=kind_a is Kind.HOST)
    layout_b = prepared.layout if prepared else read_layout("b", b, packs=kind_b in PACKED)
    layout_c = None if kind_c is None else read_layout("out", out, packs=kind_c is Kind.HOST)
    problem = gemm_problem(layout_a, layout_b, layout_c, trans_a=how.trans_a, trans_b=trans_b, mode=how.mode)
    weights = Weights.IN_IMAGE if kind_b is Kind.IMAGE else Weights.PACKED_ONCE if prepared else Weights.PER_CALL
    if weights is Weights.PACKED_ONCE:
        problem = replace(problem, constant="b")
    # A result that is not passed is of A's kind, but shared beside a shared B, since A is copied in any case.
    is_shared = kind_a is Kind.HOST and kind_b in (Kind.SHARED, Kind.IMAGE)
    kinds = (kind_a, kind_b, kind_c or (Kind.SHARED if is_shared else kind_a))
    return GemmRequest(
        problem=problem,
        weights=weights,
        kinds=kinds,
        shape=result_shape(problem, layout_a),
        a_by_columns=layout_a.is_transposed,
        b_by_columns=layout_b.is_transposed,
        on_host=not prepared and _ON_HOST.issuperset(kinds) and crossover.prefers_host(problem),
    )


def _read_buffers(kinds: tuple[Kind | None, ...], problem: GemmProblem | None) -> GemmRequest:
    if problem is None:
        raise ProblemError("a buffer has no shape", hint="pass problem=GemmProblem(m=..., n=..., k=..., ...)")
    if any(kind is not Kind.BUFFER for kind in kinds):
        raise ProblemError("when problem is passed, all of a, b and out must be buffers")
    return GemmRequest(
        problem=problem, weights=Weights.PER_CALL, kinds=(Kind.BUFFER,) * 3, shape=(problem.m, problem.n)
    )


def check_scalars(request: GemmRequest, scalars: tuple[Any, Any]) -> None:
    """Raise ProblemError where alpha or beta is not a number that the product can be scaled by."""
    alpha, beta = scalars
    if type(alpha) is type(beta) is float and not request.takes_whole_numbers:  # fast path: runs at every call
        return
    for name, value in (("alpha", alpha), ("beta", beta)):
        is_number = isinstance(value, Real)
        if not is_number:
            raise ProblemError(f"{name} is a {type(value).__name__}", hint="pass a number")
        if request.takes_whole_numbers and not (-(2**31) <= value < 2**31 and value == int(value)):
            raise ProblemError(f"{name} is {value}: in mode int8 alpha and beta must be whole numbers of 32 bits")


def check_image(b: Any) -> None:
    memory = shared_memory(b)
    if memory is None or not memory.is_whole(b):
        raise ProblemError("b must be an image as allocated, not a view of it", hint="allocate one for this matrix")


def _bytes(problem: GemmProblem, operand: str) -> int:
    """Return the size of an operand in bytes, from its first element to its last."""
    rows, columns = problem.stored[operand]
    last = (problem.batch - 1) * problem.stride(operand) + (rows - 1) * problem.pitch(operand) + columns
    return last * NUMBER_TYPES[problem.dtype(operand)].size_bytes
