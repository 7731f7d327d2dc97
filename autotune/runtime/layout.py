"""Reads the memory layout of operands from their shapes and strides, and the problem that they form together."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autotune.device.arrays import Kind, kind_of
from autotune.errors import ProblemError
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.gemm.problem import MODES
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.qgemm.problem import MODES as QGEMM_MODES
from autotune.kernels.reduce import ReduceProblem

_MODE_OF = {name: name for name, mode in MODES.items() if mode.operand.name == name}
"""Default numeric mode by the type of A and B."""
_QUANTISED_MODES = tuple(mode for mode, stored in QGEMM_MODES.items() if mode == stored)
"""Default numeric modes of products with quantised weights, named like the type of the activations."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A matrix, or a batch of matrices, as the caller sees it.

    `pitch` is the distance in elements between stored rows, `stride` that between matrices of the batch.
    """

    rows: int
    columns: int
    pitch: int
    batch: int
    stride: int
    is_batched: bool
    """Whether there is a batch axis; its length may be 1."""
    is_transposed: bool
    """Whether it is stored by columns: memory holds `columns` rows of `rows` elements."""
    dtype: str

    @property
    def shape(self) -> str:
        """The shape for messages."""
        return f"{f'{self.batch} x ' if self.is_batched else ''}{self.rows} x {self.columns}"

    @property
    def has_whole_rows(self) -> bool:
        """Whether the batch can be taken as one matrix with more rows."""
        return not self.is_transposed and self.stride == self.rows * self.pitch


def read_layout(name: str, array: Any, *, packs: bool) -> Layout:
    """Return the layout of a NumPy or pyopencl array of shape (rows, columns) or (batch, rows, columns).

    `packs` means that its rows will be copied without gaps. Raises ProblemError, such as for other numbers of axes and
    where neither rows nor columns are contiguous.
    """
    shape, dtype = tuple(int(size) for size in array.shape), array.dtype
    strides = tuple(int(stride) for stride in array.strides)
    if len(shape) not in (2, 3):
        raise ProblemError(f"{name} has {len(shape)} axes", hint="pass two axes for a matrix, three for a batch")
    _check_bytes(name, dtype)
    if min(shape) < 1:
        raise ProblemError(f"{name} is empty: its shape is {shape}")
    rows, columns = shape[-2:]
    (down, across), size = strides[-2:], dtype.itemsize
    is_transposed = not _is_run(columns, across, size) and _is_run(rows, down, size)
    if not is_transposed and not _is_run(columns, across, size):
        raise ProblemError(
            f"neither rows nor columns of {name} are contiguous: its strides are {strides} bytes",
            hint="pass a copy made by numpy.ascontiguousarray",
        )
    stored_rows, run = (columns, rows) if is_transposed else (rows, columns)
    step = across if is_transposed else down
    pitch = run if packs or stored_rows == 1 else _elements(name, step, size, run)
    matrix = stored_rows * pitch
    is_batched = len(shape) == 3
    batch = shape[0] if is_batched else 1
    stride = matrix if packs or batch == 1 else _elements(name, strides[0], size, matrix)
    return Layout(
        rows=rows,
        columns=columns,
        pitch=pitch,
        batch=batch,
        stride=stride,
        is_batched=is_batched,
        is_transposed=is_transposed,
        dtype=dtype.name,
    )


def gemm_problem(
    a: Layout, b: Layout, c: Layout | None, *, trans_a: bool = False, trans_b: bool = False, mode: str = ""
) -> GemmProblem:
    """Return the problem of op(A) @ op(B); if `c` is None, C has rows without gaps. Raises ProblemError."""
    mode = _mode(a, b, mode)
    m, k = (a.columns, a.rows) if trans_a else (a.rows, a.columns)
    depth, n = (b.columns, b.rows) if trans_b else (b.rows, b.columns)
    if k != depth:
        raise ProblemError(
            f"a is {a.shape}{' transposed' if trans_a else ''} and b is {b.shape}{' transposed' if trans_b else ''}: "
            f"{k} and {depth} should be equal"
        )
    batch = _batch(a, b, c, trans_a=trans_a)
    if a.batch > 1 and batch == 1:
        m *= a.batch  # one B for all of A: its batch becomes one matrix with more rows
    if c is not None:
        _check_result(c, m // (a.batch if batch == 1 else 1), n, a)
    values: dict[str, Any] = {"lda": a.pitch, "ldb": b.pitch, "ldc": c.pitch if c else 0}
    if batch > 1:
        values |= {"stride_a": a.stride, "stride_b": b.stride, "stride_c": c.stride if c else 0}
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        mode=mode,
        trans_a=int(trans_a != a.is_transposed),
        trans_b=int(trans_b != b.is_transposed),
        **values,
    )
    if c is not None and c.dtype != problem.dtype("c"):
        raise ProblemError(f"out is {c.dtype}, the product in mode {mode} is {problem.dtype('c')}")
    return problem


def result_shape(problem: GemmProblem, a: Layout) -> tuple[int, ...]:
    """Return the shape of the result: (m, n), or (batch, m, n) where A has a batch axis."""
    if not a.is_batched:
        return (problem.m, problem.n)
    return (a.batch, problem.m // (a.batch if problem.batch == 1 else 1), problem.n)


def reduce_problem(array: Any, operation: str, *, packs: bool) -> ReduceProblem:
    """Return the problem of reducing the last axis; all other axes together are the rows.

    Rows must be at equal distances, unless `packs`. Raises ProblemError.
    """
    shape = tuple(int(size) for size in array.shape)
    if not shape or min(shape) < 1:
        raise ProblemError(f"an array of shape {shape} has no rows to reduce")
    _check_bytes("the input", array.dtype)
    size, channels = array.dtype.itemsize, shape[-1]
    if not _is_run(channels, int(array.strides[-1]), size):
        raise ProblemError(
            f"the last axis is not contiguous: strides are {tuple(array.strides)} bytes",
            hint="pass a copy made by numpy.ascontiguousarray",
        )
    rows = 1
    step = channels * size
    for length, stride in reversed(list(zip(shape[:-1], array.strides[:-1], strict=True))):
        if length > 1 and rows > 1 and stride != rows * step:
            if not packs:
                raise ProblemError(
                    "the rows are not evenly spaced", hint="reduce a contiguous copy, or one part at a time"
                )
        elif length > 1 and rows == 1:
            step = int(stride)
        rows *= length
    pitch = channels if packs or rows == 1 else _elements("the input", step, size, channels)
    return ReduceProblem(batch=rows, channels=channels, operation=operation, dtype=array.dtype.name, pitch=pitch)


def qgemm_problem(x: Any, out: Any, weights: QGemmProblem, mode: str) -> QGemmProblem:
    """Return the problem of an x of shape (..., k), stored without gaps; `weights` gives all but n and the mode.

    NumPy arrays may have gaps, since they are copied. Raises ProblemError.
    """
    shape = tuple(int(size) for size in x.shape)
    if shape and min(shape) < 1:
        raise ProblemError(f"x is empty: its shape is {shape}")
    if not shape or shape[-1] != weights.k:
        raise ProblemError(f"x has shape {shape}: its last axis should be the {weights.k} of the weights")
    if not mode and x.dtype.name not in _QUANTISED_MODES:
        raise ProblemError(f"x is {x.dtype}", hint=f"pass {' or '.join(_QUANTISED_MODES)}")
    problem = replace(weights, n=prod(shape[:-1]), mode=mode or x.dtype.name)
    for name, operand, wanted in (("x", x, shape), ("out", out, (*shape[:-1], weights.m))):
        if operand is None:
            continue
        if operand.dtype.name != problem.stored or tuple(operand.shape) != wanted:
            found = f"{operand.dtype} of shape {tuple(operand.shape)}"
            raise ProblemError(f"{name} is {found}, mode {problem.mode} needs {problem.stored} of shape {wanted}")
        _check_bytes(name, operand.dtype)
        if kind_of(operand) is Kind.IMAGE:
            raise ProblemError(f"{name} cannot be in an image")
        if kind_of(operand) is not Kind.HOST and not operand.flags.c_contiguous:
            raise ProblemError(f"{name} is not contiguous", hint="pass contiguous memory")
    return problem


def _check_bytes(name: str, dtype: Any) -> None:
    if not dtype.isnative:
        raise ProblemError(
            f"{name} does not have this machine's byte order", hint="pass x.astype(x.dtype.newbyteorder('='))"
        )


def _is_run(length: int, stride: int, size: int) -> bool:
    return length == 1 or stride == size


def _elements(name: str, stride: int, size: int, least: int) -> int:
    """Convert a stride from bytes to elements. Raises ProblemError below `least` elements."""
    if stride % size or stride // size < least:
        raise ProblemError(
            f"{name} overlaps itself or runs backwards: {stride} bytes from one part to the next, "
            f"each of {least * size}",
            hint="copy it first",
        )
    return stride // size


def _mode(a: Layout, b: Layout, mode: str) -> str:
    if a.dtype != b.dtype:
        raise ProblemError(f"a is {a.dtype}, b is {b.dtype}: they must have the same type")
    if not mode:
        if a.dtype not in _MODE_OF:
            raise ProblemError(f"a product of {a.dtype} is not supported", hint=f"there are {', '.join(_MODE_OF)}")
        return _MODE_OF[a.dtype]
    if mode not in MODES:
        raise ProblemError(f"gemm has no numeric mode {mode[:80]!r}", hint=f"there are {', '.join(MODES)}")
    if a.dtype != MODES[mode].operand.name:
        raise ProblemError(f"a and b are {a.dtype}, which mode {mode} does not accept")
    return mode


def _batch(a: Layout, b: Layout, c: Layout | None, *, trans_a: bool) -> int:
    """Return the number of matrices in the batch; 1 where one B serves all of A."""
    if b.is_batched or not a.is_batched:
        if a.batch != b.batch or a.is_batched != b.is_batched:
            raise ProblemError(f"a is {a.shape} and b is {b.shape}: batches must have the same length")
        return a.batch
    if a.batch > 1 and (trans_a or not a.has_whole_rows or (c is not None and not c.has_whole_rows)):
        raise ProblemError(
            "one b for a batch of a requires that a and out store their matrices by rows, one directly after another",
            hint="pass a batch for b as well, or copies of a and out",
        )
    return 1


def _check_result(c: Layout, m: int, n: int, a: Layout) -> None:
    if (c.batch, c.rows, c.columns, c.is_batched) != (a.batch, m, n, a.is_batched):
        expected = f"{f'{a.batch} x ' if a.is_batched else ''}{m} x {n}"
        raise ProblemError(f"out is {c.shape}, the product is {expected}")
    if c.is_transposed:
        raise ProblemError(
            "out is stored by columns", hint="pass one stored by rows, or compute the transpose, B^T A^T"
        )
