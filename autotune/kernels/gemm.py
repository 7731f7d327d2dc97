"""GEMM: ``C = alpha * A @ B + beta * C``, row-major, float32.

A is m x k with row pitch `lda`, B is k x n with `ldb`, C is m x n with `ldc`, all in elements. Work-items
run along n in dimension 0 and along m in dimension 1. With beta zero C is never read.

Sources: the `microtile` kernel and its image for B follow Qualcomm's description of SGEMM on Adreno, `dot`
the float4 dot products used on Mali-T604, `local_tile` the classic tiling through local memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from autotune.errors import ProblemError
from autotune.expression import Expression
from autotune.family import (
    Algorithm,
    Buffer,
    Case,
    Configuration,
    Constraint,
    DeviceLimits,
    KernelFamily,
    Launch,
    Parameter,
    Plan,
    Problem,
    Role,
    Scalar,
    Value,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ELEMENTS = 2**31 - 1
"""Kernels index with 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class GemmProblem(Problem):
    """Sizes and row pitches in elements; a pitch of 0 means rows without a gap."""

    family: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            if getattr(self, name) < 1:
                raise ProblemError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, least in (("lda", self.k), ("ldb", self.n), ("ldc", self.n)):
            pitch = getattr(self, name) or least
            object.__setattr__(self, name, pitch)
            if pitch < least:
                raise ProblemError(f"{name} must be at least {least}, the length of a row, not {pitch}")
        if max(self.m * self.lda, self.k * self.ldb, self.m * self.ldc) > MAX_ELEMENTS:
            raise ProblemError(f"{self.label} has an operand of more than {MAX_ELEMENTS} elements")
        if self.dtype != "float32":
            raise ProblemError(f"gemm has no type {self.dtype[:80]!r}", hint="float32")

    @property
    def label(self) -> str:
        pitches = [
            f" {name}={getattr(self, name)}"
            for name, least in (("lda", self.k), ("ldb", self.n), ("ldc", self.n))
            if getattr(self, name) != least
        ]
        return f"{self.m}x{self.n}x{self.k}" + "".join(pitches)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def size_vector(self) -> tuple[int, ...]:
        return (self.m, self.n, self.k)

    @classmethod
    def parse(cls, text: str) -> Self:
        """``M,N,K`` (an ``x`` separates as well), optionally followed by ``,lda,ldb,ldc``."""
        parts = text.strip().lower().replace("x", ",").split(",")
        if len(parts) not in (3, 6) or not all(p.strip().lstrip("+-").isdecimal() and len(p) < 20 for p in parts):
            raise ProblemError(f"{text[:80]!r} is not a shape", hint="write M,N,K such as 512,512,512")
        sizes: dict[str, Any] = dict(zip(("m", "n", "k", "lda", "ldb", "ldc"), map(int, parts), strict=False))
        return cls(**sizes)

    def check_memory(self, limits: DeviceLimits) -> None:
        operands = {"A": self.m * self.lda, "B": self.k * self.ldb, "C": self.m * self.ldc}
        for name, elements in operands.items():
            if 4 * elements > limits.max_allocation_bytes:
                raise ProblemError(
                    f"{self.label}: {name} needs {_mebibytes(4 * elements)}, "
                    f"the device allocates at most {_mebibytes(limits.max_allocation_bytes)} at once"
                )
        if 4 * sum(operands.values()) > limits.global_memory_bytes:
            raise ProblemError(
                f"{self.label} needs {_mebibytes(4 * sum(operands.values()))}, "
                f"the device has {_mebibytes(limits.global_memory_bytes)}"
            )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _parameter(name: str, values: Sequence[Value], meaning: str) -> Parameter:
    return Parameter(name=name, values=tuple(values), meaning=meaning)


def _constraint(name: str, condition: str, because: str) -> Constraint:
    return Constraint(name=name, condition=Expression(condition), because=because)


_EDGES = _parameter(
    "edges",
    ("guard", "pad"),
    "guard: work on A and B where they are, with guarded edges; pad: first copy them into zero-padded rows",
)
_LOADS = _parameter(
    "loads", ("vload", "aligned"), "vload promises 4-byte alignment only; aligned reads whole aligned vectors"
)
_MATH = _parameter("relaxed_math", ("off", "on"), "build with -cl-fast-relaxed-math")
_MULTIPLY_ADD = _parameter("multiply_add", ("operator", "mad"), "write a * b + c, or mad(a, b, c)")
_WORK_GROUP = (
    _parameter("work_group_m", (0, 1, 2, 4, 8, 16, 32), "work-items along m; 0 leaves the work-group to the driver"),
    _parameter("work_group_n", (0, 1, 2, 4, 8, 16, 32, 64, 128), "work-items along n; 0: the driver chooses"),
)

_WORK_GROUP_LIMITS = (
    _constraint(
        "work_group_whole_or_driver",
        "(work_group_m == 0 and work_group_n == 0) or (work_group_m > 0 and work_group_n > 0)",
        "the driver chooses both dimensions of the work-group or none",
    ),
    _constraint(
        "work_group_fits_device",
        "work_group_m * work_group_n <= max_work_group_size and work_group_n <= max_work_group_0 "
        "and work_group_m <= max_work_group_1",
        "the work-group exceeds what the device allows",
    ),
)


_FEATURES = tuple(
    Expression(text)
    for text in (
        "work_group_m * work_group_n",
        "micro_tile_m * micro_tile_n",
        "work_group_m * micro_tile_m",
        "work_group_n * micro_tile_n",
    )
)


def _aligned(rows: str) -> Constraint:
    return _constraint("aligned_rows", f"loads == 'vload' or {rows}", "rows do not start at aligned addresses")


_NAIVE = Algorithm(
    name="naive",
    meaning="one output a work-item, scalar loop over k",
    parameters=_WORK_GROUP,
    constraints=(
        *_WORK_GROUP_LIMITS,
        _constraint("rows_to_do", "work_group_m - 1 < m", "part of every work-group would have no row to do"),
        _constraint("columns_to_do", "work_group_n - 1 < n", "part of every work-group would have no column to do"),
    ),
)

_DOT = Algorithm(
    name="dot",
    meaning="one output a work-item, vector dot products along k",
    parameters=(
        *_WORK_GROUP,
        _parameter("vector_width", (2, 4, 8, 16), "elements of k in one product"),
        _parameter("unroll", (1, 2, 4), "vectors of k in one step of the loop"),
        _parameter("b_storage", ("buffer", "transposed"), "gather columns of B, or first copy B transposed"),
        _EDGES,
        _LOADS,
        _MATH,
    ),
    constraints=(
        *_WORK_GROUP_LIMITS,
        _constraint("rows_to_do", "work_group_m - 1 < m", "part of every work-group would have no row to do"),
        _constraint("columns_to_do", "work_group_n - 1 < n", "part of every work-group would have no column to do"),
        _constraint("step_within_k", "vector_width * unroll < 2 * k", "one step is more than all of k"),
        _aligned("edges == 'pad' or lda % vector_width == 0"),
    ),
)

_MICROTILE = Algorithm(
    name="microtile",
    meaning="a register micro-tile a work-item, no local memory; B from an image or a buffer",
    parameters=(
        _parameter("micro_tile_m", (1, 2, 3, 4, 6, 8, 12, 16), "rows of C a work-item computes"),
        _parameter("micro_tile_n", (1, 2, 4, 8, 16, 32, 64), "columns of C a work-item computes"),
        _parameter("vector_width", (1, 2, 4, 8, 16), "columns in one vector"),
        _parameter("unroll", (1, 2, 4, 8), "steps of k in one pass of the loop"),
        _parameter("a_vector_width", (1, 2, 4, 8), "elements of k in one load of A"),
        _parameter("b_storage", ("buffer", "image"), "read B from its buffer, or first copy it into an RGBA image"),
        *_WORK_GROUP,
        _EDGES,
        _LOADS,
        _MULTIPLY_ADD,
        _MATH,
    ),
    constraints=(
        *_WORK_GROUP_LIMITS,
        _constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0 and micro_tile_n <= 4 * vector_width",
            "a micro-tile is one to four whole vectors wide",
        ),
        _constraint("a_vectors_fill_step", "unroll % a_vector_width == 0", "a step of k is whole vectors of A"),
        _constraint(
            "accumulators_fit",
            "micro_tile_m * micro_tile_n <= 128 or (is_cpu == 1 and micro_tile_m * micro_tile_n <= 512)",
            "the accumulators do not fit the registers",
        ),
        _constraint(
            "rows_to_do",
            "work_group_m * micro_tile_m - micro_tile_m < m and micro_tile_m < 2 * m",
            "part of every work-group would have no row to do",
        ),
        _constraint(
            "columns_to_do",
            "work_group_n * micro_tile_n - micro_tile_n < n and micro_tile_n < 2 * n",
            "part of every work-group would have no column to do",
        ),
        _constraint("step_within_k", "unroll < 2 * k", "one step is more than all of k"),
        _constraint(
            "tile_within_row",
            "edges == 'pad' or b_storage == 'image' or micro_tile_n <= n",
            "the last micro-tile of a row is moved back to end with it, so a row must hold one",
        ),
        _constraint(
            "image_fits",
            "b_storage == 'buffer' or (has_images == 1 and vector_width == 4 "
            "and n <= 4 * max_image_width and k <= max_image_height)",
            "the device has no image of that size, or pixels and vectors differ in length",
        ),
        _constraint("image_needs_no_padding", "b_storage == 'buffer' or edges == 'guard'", "an image pads itself"),
        _aligned(
            "edges == 'pad' or (lda % a_vector_width == 0 "
            "and (b_storage == 'image' or (ldb % vector_width == 0 and n % vector_width == 0)))"
        ),
        _constraint(
            "alignment_matters",
            "loads == 'vload' or (vector_width > 1 and b_storage == 'buffer') or a_vector_width > 1",
            "single elements are always aligned",
        ),
    ),
    features=_FEATURES,
)

_LOCAL_TILE = Algorithm(
    name="local_tile",
    meaning="macro-tiles of A and B in local memory, a register micro-tile a work-item",
    parameters=(
        _parameter("work_group_m", (4, 8, 16, 32), "work-items along m"),
        _parameter("work_group_n", (4, 8, 16, 32), "work-items along n"),
        _parameter("micro_tile_m", (1, 2, 4, 8, 16), "rows of C a work-item computes"),
        _parameter("micro_tile_n", (1, 2, 4, 8, 16), "columns of C a work-item computes"),
        _parameter("tile_k", (8, 16, 32), "depth of the tiles in local memory"),
        _parameter("vector_width", (1, 2, 4), "elements in one load from global or local memory"),
        _parameter("unroll", (1, 4, 8, 16), "steps of k in one pass of the inner loop"),
        _parameter("local_padding", (0, 4), "elements between rows of a tile in local memory"),
        _parameter("stages", (1, 2), "tiles in local memory at once; with two the next is fetched ahead"),
        _parameter("sub_group_columns", (0, 4, 8, 16), "32 work-items as a block of so many columns; 0: as a row"),
        _parameter("group_rows", (0, 4, 8), "rows of work-groups that run as one band; 0: row by row"),
        _parameter("split_k", (1, 2, 4, 8, 16, 32), "work-groups that share the k of one macro-tile"),
        _EDGES,
        _LOADS,
        _MULTIPLY_ADD,
    ),
    constraints=(
        _WORK_GROUP_LIMITS[1],
        _constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0 and micro_tile_m % vector_width == 0 and tile_k % vector_width == 0",
            "tiles are made of whole vectors",
        ),
        _constraint("accumulators_fit", "micro_tile_m * micro_tile_n <= 128", "the accumulators spill"),
        _constraint("enough_work_items", "work_group_m * work_group_n >= 32", "a work-group leaves a compute unit idle"),
        _constraint("unroll_divides_tile", "tile_k % unroll == 0", "the inner loop has no remainder"),
        _constraint(
            "even_share_of_a",
            "(work_group_m * micro_tile_m * tile_k) % (work_group_m * work_group_n * vector_width) == 0",
            "every work-item loads the same number of vectors of A",
        ),
        _constraint(
            "even_share_of_b",
            "(work_group_n * micro_tile_n * tile_k) % (work_group_m * work_group_n * vector_width) == 0",
            "every work-item loads the same number of vectors of B",
        ),
        _constraint(
            "tiles_fit_local_memory",
            "4 * stages * tile_k * (work_group_m * micro_tile_m + work_group_n * micro_tile_n + 2 * local_padding) "
            "<= local_memory_bytes",
            "the tiles of A and B exceed local memory",
        ),
        _constraint(
            "rows_to_do",
            "work_group_m * micro_tile_m < 2 * m + 8",
            "most of every work-group would have no row to do",
        ),
        _constraint(
            "columns_to_do",
            "work_group_n * micro_tile_n < 2 * n + 8",
            "most of every work-group would have no column to do",
        ),
        _constraint("step_within_k", "tile_k < 2 * k + 8", "one tile is more than all of k"),
        _constraint(
            "sub_groups_fill_work_group",
            "sub_group_columns == 0 or (is_cpu == 0 and work_group_n % max(sub_group_columns, 1) == 0 "
            "and work_group_m * sub_group_columns % 32 == 0)",
            "blocks of 32 work-items do not tile the work-group, or the device is a CPU",
        ),
        _constraint(
            "bands_matter",
            "group_rows == 0 or (m > 2 * group_rows * work_group_m * micro_tile_m "
            "and n > 2 * group_rows * work_group_n * micro_tile_n)",
            "there are too few work-groups for bands to differ from rows",
        ),
        _constraint(
            "split_leaves_work",
            "split_k == 1 or (k >= 4 * split_k * tile_k and m * n * split_k <= 33554432)",
            "each part of k holds at least four tiles, and the parts of C fit 128 MiB",
        ),
        _constraint(
            "split_fills_device",
            "split_k == 1 or (m * n * split_k) // (work_group_m * micro_tile_m * work_group_n * micro_tile_n) "
            "<= 32 * compute_units",
            "there are work-groups enough without splitting k",
        ),
        _aligned("edges == 'pad' or (lda % vector_width == 0 and ldb % vector_width == 0 and n % vector_width == 0)"),
        _constraint("alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"),
    ),
    features=_FEATURES,
)


class Gemm(KernelFamily):
    """The GEMM family; see the module's docstring."""

    name = "gemm"
    space_version = 1
    problem_type = GemmProblem
    algorithms = (_NAIVE, _DOT, _MICROTILE, _LOCAL_TILE)
    baseline = Configuration.of("naive", work_group_m=0, work_group_n=0)

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        assert isinstance(problem, GemmProblem)
        return _Planner(problem, configuration).plan()

    def default(self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]) -> Configuration:
        """The first of the starts that is legal here, else the baseline."""
        return next((c for c in starts if not self.violations(problem, c, limits)), self.baseline)

    def make_case(self, problem: Problem, seed: int) -> Case:
        assert isinstance(problem, GemmProblem)
        return GemmCase(problem, seed)


FAMILY = Gemm()


class _Planner:
    """Layouts and work sizes of one configuration."""

    def __init__(self, problem: GemmProblem, configuration: Configuration) -> None:
        self.problem = problem
        self.configuration = configuration
        self.values = dict(configuration.values)
        tile_m, tile_n = self._number("micro_tile_m", 1), self._number("micro_tile_n", 1)
        step_k = self._number("unroll", 1)
        if configuration.algorithm == "local_tile":
            tile_m *= self._number("work_group_m", 1)
            tile_n *= self._number("work_group_n", 1)
            step_k = self._number("tile_k", 1)
        elif configuration.algorithm == "dot":
            step_k *= self._number("vector_width", 1)
        self.rows, self.columns = _round_up(problem.m, tile_m), _round_up(problem.n, tile_n)
        self.depth = _round_up(problem.k, step_k)
        self.pads = self.values.get("edges") == "pad"
        self.b_storage = self.values.get("b_storage", "buffer")
        self.split = self._number("split_k", 1)

    def plan(self) -> Plan:
        p = self.problem
        buffers = [_buffer("a", Role.INPUT, p.m * p.lda), _buffer("b", Role.INPUT, p.k * p.ldb)]
        buffers.append(_buffer("c", Role.OUTPUT, p.m * p.ldc))
        launches: list[Launch] = []
        a, lda = "a", p.lda
        if self.pads:
            a, lda = "a_packed", self.depth
            buffers.append(_buffer(a, Role.SCRATCH, self.rows * lda))
            launches.append(_pack("pack", "a", p.lda, p.m, p.k, a, self.rows, lda))
        b, ldb = "b", p.ldb
        if self.b_storage == "image":
            b, ldb, width = "b_image", 0, _round_up(p.n, 4) // 4
            buffers.append(
                Buffer(
                    name=b,
                    role=Role.SCRATCH,
                    dtype="float32",
                    elements=4 * width * p.k,
                    image_width=width,
                    image_height=p.k,
                )
            )
            launches.append(_pack("pack_image", "b", p.ldb, p.k, p.n, b, p.k, width))
        elif self.b_storage == "transposed":
            b, ldb = "b_transposed", _round_up(self.depth, self._number("vector_width", 1))
            buffers.append(_buffer(b, Role.SCRATCH, p.n * ldb))
            launches.append(_pack("pack_transposed", "b", p.ldb, p.k, p.n, b, p.n, ldb))
        elif self.pads:
            b, ldb = "b_packed", self.columns
            buffers.append(_buffer(b, Role.SCRATCH, self.depth * ldb))
            launches.append(_pack("pack", "b", p.ldb, p.k, p.n, b, self.depth, ldb))
        launches += self._main(a, lda, b, ldb)
        if self.split > 1:
            buffers.append(_buffer("c_parts", Role.SCRATCH, self.split * p.m * p.n))
        return Plan(
            buffers=tuple(buffers),
            launches=tuple(launches),
            build_options=("-cl-fast-relaxed-math",) if self.values.get("relaxed_math") == "on" else (),
            template_values=(
                ("ragged_m", int(p.m % (self.rows_per_group()) != 0)),
                ("ragged_n", int(self.columns != p.n)),
                ("ragged_k", int(self.depth != p.k and not self.pads)),
                ("c_aligned", int(p.ldc % 4 == 0 and p.n % 4 == 0)),
            ),
        )

    def rows_per_group(self) -> int:
        """Rows after which the kernel needs no guard."""
        if self.configuration.algorithm == "local_tile":
            return self._number("micro_tile_m", 1) * self._number("work_group_m", 1)
        return self._number("micro_tile_m", 1)

    def _main(self, a: str, lda: int, b: str, ldb: int) -> list[Launch]:
        p = self.problem
        k = self.depth if self.pads else p.k
        items = (
            -(-p.n // self._number("micro_tile_n", 1)),
            -(-p.m // self._number("micro_tile_m", 1)),
        )
        local = (self._number("work_group_n", 1), self._number("work_group_m", 1))
        given = local[0] > 0
        size = (_round_up(items[0], local[0]), _round_up(items[1], local[1])) if given else items
        scale = (Scalar(dtype="float32", name="alpha", value=1.0), Scalar(dtype="float32", name="beta"))
        sizes = (_int(p.m), _int(p.n))
        if self.split == 1:
            arguments = (a, _int(lda), b, _int(ldb), "c", _int(p.ldc), *sizes, _int(k), *scale)
            local_size = local if given else None
            return [Launch(kernel="gemm", global_size=size, local_size=local_size, arguments=arguments)]
        arguments = (a, _int(lda), b, _int(ldb), "c_parts", _int(p.n), *sizes, _int(k), *scale)
        return [
            Launch(kernel="gemm", global_size=(*size, self.split), local_size=(*local, 1), arguments=arguments),
            Launch(
                kernel="combine",
                global_size=(p.n, p.m),
                local_size=None,
                arguments=("c_parts", "c", _int(p.ldc), *sizes, *scale),
            ),
        ]

    def _number(self, name: str, otherwise: int) -> int:
        value = self.values.get(name, otherwise)
        assert isinstance(value, int)
        return value


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _int(value: int) -> Scalar:
    return Scalar(dtype="int32", value=value)


def _buffer(name: str, role: Role, elements: int) -> Buffer:
    return Buffer(name=name, role=role, dtype="float32", elements=elements)


def _pack(
    kernel: str, source: str, pitch: int, rows: int, columns: int, target: str, out_rows: int, out: int
) -> Launch:
    """A launch that copies `rows` x `columns` of `source` into `out_rows` rows of `out` elements (or pixels)."""
    return Launch(
        kernel=kernel,
        global_size=(out, out_rows),
        local_size=None,
        arguments=(source, _int(pitch), _int(rows), _int(columns), target, _int(out)),
        prepares=source,
    )


class GemmCase(Case):
    """Random operands in [-1, 1), gaps between rows filled with NaN; a float64 reference.

    An even seed has beta zero and C full of NaN; an odd one has random beta and C.
    """

    FULL_REFERENCE_MACS = 2**27
    """Up to this many multiply-adds every output is computed in float64; above, rows and columns are sampled
    and every column is checked through a random combination of the rows (Freivalds)."""

    def __init__(self, problem: GemmProblem, seed: int) -> None:
        import numpy as np

        self._problem = p = problem
        self._rng = np.random.default_rng(seed)
        self._a, self._b = self._matrix(p.m, p.k, p.lda), self._matrix(p.k, p.n, p.ldb)
        if seed % 2:
            self._c = self._matrix(p.m, p.n, p.ldc)
            alpha, beta = (float(np.float32(x)) for x in self._rng.uniform(0.5, 2.0, 2))
        else:
            self._c = np.full((p.m, p.ldc), np.nan, dtype=np.float32)
            alpha, beta = 1.0, 0.0
        self.inputs: Mapping[str, NDArray[Any]] = {"a": self._a, "b": self._b, "c": self._c}
        self.scalars: Mapping[str, float] = {"alpha": alpha, "beta": beta}

    def error_ratio(self, outputs: "Mapping[str, NDArray[Any]]") -> float:
        import numpy as np

        p = self._problem
        c = outputs["c"].reshape(p.m, p.ldc)
        gap_before, gap_after = self._c[:, p.n :].view(np.uint32), c[:, p.n :].view(np.uint32)
        if not np.isfinite(c[:, : p.n]).all() or not np.array_equal(gap_before, gap_after):
            return math.inf
        rows = columns = slice(None)
        if p.m * p.n * p.k <= self.FULL_REFERENCE_MACS:
            return self._block_error(c, rows, columns)
        some_rows = self._sample(p.m, max(2, self.FULL_REFERENCE_MACS // (2 * p.n * p.k)))
        some_columns = self._sample(p.n, max(2, self.FULL_REFERENCE_MACS // (2 * p.m * p.k)))
        return max(
            self._block_error(c, some_rows, columns),
            self._block_error(c, rows, some_columns),
            self._combined_error(c),
        )

    def _matrix(self, rows: int, columns: int, pitch: int) -> "NDArray[np.float32]":
        import numpy as np

        values = self._rng.random((rows, pitch), dtype=np.float32) * np.float32(2) - np.float32(1)
        values[:, columns:] = np.nan
        return values

    def _sample(self, size: int, count: int) -> "NDArray[np.intp]":
        import numpy as np

        inner = self._rng.choice(size, min(size, count), replace=False)
        return np.unique(np.concatenate([inner, [0, size - 1]]))

    def _block_error(self, c: "NDArray[Any]", rows: Any, columns: Any) -> float:
        """Largest error over tolerance in a block. The tolerance of one output is a few rounding errors of
        the length of its row of A times that of its column of B, which grows with k as the products do."""
        import numpy as np

        p = self._problem
        alpha, beta = self.scalars["alpha"], self.scalars["beta"]
        a = self._a[rows, : p.k].astype(np.float64)
        b = self._b[:, : p.n][:, columns].astype(np.float64)
        expected = alpha * (a @ b)
        scale = abs(alpha) * np.outer(np.sqrt((a * a).sum(axis=1)), np.sqrt((b * b).sum(axis=0)))
        if beta:
            before = beta * self._c[rows, : p.n][:, columns].astype(np.float64)
            expected += before
            scale += np.abs(before)
        error = np.abs(c[rows, : p.n][:, columns].astype(np.float64) - expected)
        return float((error / (_tolerance(p.k) * scale + 1e-30)).max())

    def _combined_error(self, c: "NDArray[Any]") -> float:
        """The error of w^T C against (w^T A) B for random signs w: finds a wrong output anywhere."""
        import numpy as np

        p = self._problem
        alpha, beta = self.scalars["alpha"], self.scalars["beta"]
        signs = self._rng.choice([-1.0, 1.0], p.m)
        a, b = self._a[:, : p.k].astype(np.float64), self._b[:, : p.n].astype(np.float64)
        expected = alpha * ((signs @ a) @ b)
        scale = abs(alpha) * math.sqrt(float((a * a).sum())) * np.sqrt((b * b).sum(axis=0))
        if beta:
            before = beta * self._c[:, : p.n].astype(np.float64)
            expected += signs @ before
            scale += np.sqrt((before * before).sum(axis=0))
        error = np.abs(signs @ c[:, : p.n].astype(np.float64) - expected)
        return float((error / (_tolerance(p.k) * scale)).max())


def _tolerance(k: int) -> float:
    """Relative to the lengths of row and column: rounding of a sum over k random terms is about 0.2 of a
    float32 epsilon (sequential order) and its maximum over millions of outputs below 2."""
    return 2.0**-23 * (4.0 + 0.25 * math.log2(k + 1))
