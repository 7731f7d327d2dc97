"""Reduce: one number for each row of a (batch, channels) input, row-major: sum, mean, max or min.

Rows lie `pitch` elements apart. float16 is read and written as such and accumulated in float32. A row that holds
NaN gives NaN, for max and min too, as NumPy and torch have it. Row offsets are 64 bits wide, so only memory limits
the input; one row, and the number of rows, stay below 2**31.

Sources: `sub_group` follows a published reduction for phones: one work-group a row, the device's own reduction
within a sub-group, local memory between sub-groups. The others are the classic forms.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from autotune.errors import ProblemError
from autotune.expression import Expression
from autotune.family import (
    DTYPE_BYTES,
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

OPERATIONS = ("sum", "mean", "max", "min")
DTYPES = ("float32", "float16")
MAX_LENGTH = 2**31 - 1
"""Rows, and elements of a row: kernels take them as 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class ReduceProblem(Problem):
    """Sizes, and the pitch of rows in elements; a pitch of 0 means rows without a gap."""

    family: ClassVar[str] = "reduce"

    batch: int
    channels: int
    operation: str = "sum"
    dtype: str = "float32"
    pitch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "pitch", self.pitch or self.channels)
        for name in ("batch", "channels", "pitch"):
            if not 1 <= getattr(self, name) <= MAX_LENGTH:
                raise ProblemError(f"{name} must be from 1 to {MAX_LENGTH}, not {getattr(self, name)}")
        if self.pitch < self.channels:
            raise ProblemError(f"pitch must be at least {self.channels}, the length of a row, not {self.pitch}")
        for given, known in ((self.operation, OPERATIONS), (self.dtype, DTYPES)):
            if given not in known:
                raise ProblemError(f"reduce has no {given[:80]!r}", hint=f"there are {', '.join(known)}")

    @property
    def label(self) -> str:
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        pitch = "" if self.pitch == self.channels else f" pitch={self.pitch}"
        return f"{self.batch}x{self.channels} {self.operation}{dtype}{pitch}"

    @property
    def flops(self) -> int:
        return self.batch * self.channels

    @property
    def bytes_moved(self) -> int:
        return DTYPE_BYTES[self.dtype] * self.batch * (self.channels + 1)

    @property
    def size_vector(self) -> tuple[int, ...]:
        return (self.batch, self.channels)

    @classmethod
    def parse(cls, text: str) -> Self:
        """``BATCH,CHANNELS[,operation[,dtype]]``; an ``x`` separates the sizes as well."""
        # ASCII alone: \d and isdecimal() would let other digits through.
        found = re.fullmatch(
            r"\s*([+-]?[0-9]{1,19})\s*[,x]\s*([+-]?[0-9]{1,19})(?:[\s,]+([a-z]+)(?:[\s,]+([a-z0-9]+))?)?\s*",
            text[:200].lower(),
        )
        if not found or len(text) > 200:
            raise ProblemError(
                f"{text[:80]!r} is not a shape", hint="write BATCH,CHANNELS[,operation[,dtype]] such as 512,768,mean"
            )
        batch, channels, operation, dtype = found.groups()
        return cls(batch=int(batch), channels=int(channels), operation=operation or "sum", dtype=dtype or "float32")

    def check_device(self, limits: DeviceLimits) -> None:
        size = DTYPE_BYTES[self.dtype]
        needed, output = size * self.batch * self.pitch, size * self.batch
        if max(needed, output) > limits.max_allocation_bytes:
            raise ProblemError(
                f"{self.label}: the input needs {_mebibytes(needed)}, "
                f"the device allocates at most {_mebibytes(limits.max_allocation_bytes)} at once"
            )
        if needed + output > limits.global_memory_bytes:
            raise ProblemError(
                f"{self.label} needs {_mebibytes(needed + output)}, "
                f"the device has {_mebibytes(limits.global_memory_bytes)}"
            )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _parameter(name: str, values: Sequence[Value], meaning: str) -> Parameter:
    return Parameter(name=name, values=tuple(values), meaning=meaning)


def _constraint(name: str, condition: str, because: str) -> Constraint:
    return Constraint(name=name, condition=Expression(condition), because=because)


def _work_group(*values: int) -> Parameter:
    return _parameter("work_group_size", values, "work-items in a work-group; 0 leaves it to the driver")


_ROWS = _parameter("rows_per_group", (1, 2, 4, 8, 16, 32, 64), "rows that a work-group reduces side by side")
_READING = (
    _parameter("vector_width", (1, 2, 4, 8, 16), "elements in one load"),
    _parameter("unroll", (1, 2, 4, 8), "loads a work-item has under way at once, each into sums of its own"),
    _parameter(
        "loads", ("vload", "aligned"), "vload promises the alignment of one element; aligned reads whole vectors"
    ),
)

_COMMON = (
    _constraint(
        "work_group_fits_device",
        "work_group_size <= max_work_group_size and work_group_size <= max_work_group_0",
        "the work-group exceeds what the device allows",
    ),
    _constraint("vector_within_row", "vector_width <= channels", "a vector is longer than a row"),
    _constraint(
        "accumulators_fit",
        "vector_width * unroll <= 64 or (is_cpu == 1 and vector_width * unroll <= 128)",
        "the accumulators do not fit the registers",
    ),
    _constraint("aligned_rows", "loads == 'vload' or pitch % vector_width == 0", "rows do not start at whole vectors"),
    _constraint("alignment_matters", "loads == 'vload' or vector_width > 1", "single elements are always aligned"),
)

_LOCAL_MEMORY = _constraint(
    "totals_fit_local_memory", "4 * work_group_size <= local_memory_bytes", "the totals exceed local memory"
)

_SHARED_ROWS = (
    _constraint("row_is_shared", "work_group_size >= 2 * rows_per_group", "a row needs two work-items or more"),
    _constraint("rows_to_do", "rows_per_group < 2 * batch", "most of every work-group would have no row to do"),
    _constraint(
        "items_to_do",
        "work_group_size * vector_width * unroll < 2 * channels * rows_per_group",
        "one pass of the work-items that share a row is more than all of it",
    ),
)


def _features(*texts: str) -> tuple[Expression, ...]:
    return tuple(Expression(text) for text in ("vector_width * unroll", *texts))


_SERIAL = Algorithm(
    name="serial",
    meaning="one row a work-item",
    parameters=(_work_group(0, 1, 8, 32, 64, 128, 256), *_READING),
    constraints=(
        *_COMMON,
        _constraint("rows_to_do", "work_group_size < 2 * batch", "most of every work-group would have no row to do"),
        _constraint("pass_within_row", "vector_width * unroll < 2 * channels", "one pass is more than all of a row"),
    ),
    features=_features(),
)

_LOCAL_TREE = Algorithm(
    name="local_tree",
    meaning="a work-group for one row or several, joined by a tree in local memory",
    parameters=(
        _work_group(16, 32, 64, 128, 256, 512, 1024),
        _ROWS,
        *_READING,
        _parameter("fan_in", (2, 4, 16), "totals that one level of the tree joins into one"),
    ),
    constraints=(
        *_COMMON,
        *_SHARED_ROWS,
        _LOCAL_MEMORY,
        _constraint(
            "fan_in_within_row",
            "fan_in * rows_per_group <= work_group_size",
            "one level would join more totals than a row has",
        ),
    ),
    features=_features("work_group_size // rows_per_group"),
)

_SHUFFLE = Algorithm(
    name="shuffle",
    meaning="as local_tree, joined by NVIDIA's shuffle instruction",
    parameters=(_work_group(32, 64, 128, 256, 512, 1024), _ROWS, *_READING),
    constraints=(
        *_COMMON,
        *_SHARED_ROWS,
        _LOCAL_MEMORY,
        _constraint("device_takes_ptx", "has_ptx == 1", "only NVIDIA's compiler takes the instruction"),
    ),
    features=_features("work_group_size // rows_per_group"),
)

_SUB_GROUP = Algorithm(
    name="sub_group",
    meaning="a row a work-group or a sub-group, joined by the device's sub-group reduction",
    parameters=(
        _work_group(16, 32, 64, 128, 256, 512, 1024),
        _parameter("row_of", ("work_group", "sub_group"), "what shares a row"),
        *_READING,
        _parameter("standard", ("CL2.0", "CL3.0"), "the OpenCL C that sub-groups are asked for under"),
    ),
    constraints=(
        *_COMMON,
        _LOCAL_MEMORY,
        _constraint("device_has_sub_groups", "has_sub_groups == 1", "the device has no sub-groups"),
        _constraint(
            "items_to_do",
            "(row_of == 'work_group' and work_group_size * vector_width * unroll < 2 * channels) "
            "or (row_of == 'sub_group' and vector_width * unroll < channels)",
            "one pass of the work-items that share a row is more than all of it",
        ),
    ),
    features=_features(),
)

_SPLIT_ROW = Algorithm(
    name="split_row",
    meaning="several work-groups a row, whose parts a second kernel joins",
    parameters=(
        _work_group(1, 64, 128, 256, 512, 1024),
        _parameter("parts", (2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 2048), "work-groups that share a row"),
        *_READING,
    ),
    constraints=(
        *_COMMON,
        _LOCAL_MEMORY,
        _constraint(
            "split_leaves_work",
            "parts * work_group_size * vector_width * unroll < 2 * channels",
            "one pass of the work-items that share a row is more than all of it",
        ),
        _constraint(
            "split_fills_device", "batch * parts <= 32 * compute_units", "there are rows enough without splitting them"
        ),
    ),
    features=_features("parts * work_group_size"),
)


class Reduce(KernelFamily):
    """The reduce family; see the module's docstring."""

    name = "reduce"
    space_version = 1
    problem_type = ReduceProblem
    algorithms = (_SERIAL, _LOCAL_TREE, _SHUFFLE, _SUB_GROUP, _SPLIT_ROW)
    baseline = Configuration.of("serial", work_group_size=0, vector_width=1, unroll=1, loads="vload")

    def plan(self, problem: Problem, configuration: Configuration) -> Plan:
        assert isinstance(problem, ReduceProblem)
        elements = problem.batch * problem.pitch
        buffers = [
            Buffer(name="input", role=Role.INPUT, dtype=problem.dtype, elements=elements),
            Buffer(name="output", role=Role.OUTPUT, dtype=problem.dtype, elements=problem.batch),
        ]
        if configuration.algorithm == "split_row":
            parts = problem.batch * configuration.number("parts")
            buffers.append(Buffer(name="parts", role=Role.SCRATCH, dtype="float32", elements=parts))
        return Plan(
            buffers=tuple(buffers),
            launches=_launches(problem, configuration),
            build_options=_build_options(configuration),
            template_values=_template_values(problem, configuration),
        )

    def default(self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]) -> Configuration:
        """The first of the starts that is legal here, else the first of a rule by size, else the baseline."""
        assert isinstance(problem, ReduceProblem)
        candidates = [*starts, *_by_rule(problem, limits)]
        return next((c for c in candidates if not self.violations(problem, c, limits)), self.baseline)

    def make_case(self, problem: Problem, seed: int) -> Case:
        assert isinstance(problem, ReduceProblem)
        return ReduceCase(problem, seed)


FAMILY = Reduce()


def _launches(problem: ReduceProblem, configuration: Configuration) -> tuple[Launch, ...]:
    pitch, batch, channels = (Scalar(dtype="int32", value=v) for v in (problem.pitch, problem.batch, problem.channels))
    items = configuration.number("work_group_size")
    if configuration.algorithm == "split_row":
        parts = configuration.number("parts")
        return (
            Launch(
                kernel="reduce",
                global_size=(parts * items, problem.batch),
                local_size=(items, 1),
                arguments=("input", pitch, "parts", channels),
            ),
            Launch(
                kernel="combine",
                global_size=(items * problem.batch,),
                local_size=(items,),
                arguments=("parts", "output", channels),
            ),
        )
    groups = -(-problem.batch // _rows_per_group(configuration))
    return (
        Launch(
            kernel="reduce",
            global_size=(groups * items,) if items else (problem.batch,),
            local_size=(items,) if items else None,
            arguments=("input", pitch, "output", batch, channels),
        ),
    )


LEAST_SUB_GROUP = 16
"""Work-items assumed in a sub-group; where there are more, each reduces several rows, where fewer, some none."""


def _rows_per_group(configuration: Configuration) -> int:
    items = configuration.number("work_group_size")
    if configuration.algorithm == "serial":
        return max(items, 1)
    if configuration.algorithm == "sub_group" and configuration["row_of"] == "sub_group":
        return max(1, items // LEAST_SUB_GROUP)
    if configuration.algorithm in ("local_tree", "shuffle"):
        return configuration.number("rows_per_group")
    return 1


def _build_options(configuration: Configuration) -> tuple[str, ...]:
    return (f"-cl-std={configuration['standard']}",) if configuration.algorithm == "sub_group" else ()


def _template_values(problem: ReduceProblem, configuration: Configuration) -> tuple[tuple[str, Value], ...]:
    """Types, and which guards the sizes call for: a row is whole passes, a ragged one, and single elements."""
    width = configuration.number("vector_width")
    vectors = problem.channels // width
    in_pass = configuration.number("unroll") * _items_per_row(configuration)
    return (
        ("operation", problem.operation),
        ("stored_type", {"float32": "float", "float16": "half"}[problem.dtype]),
        ("sum_type", "float"),
        ("whole_pass", int(vectors >= in_pass)),
        ("ragged_pass", int(vectors % in_pass != 0)),
        ("ragged_vector", int(problem.channels % width != 0)),
        ("ragged_batch", int(problem.batch % _rows_per_group(configuration) != 0)),
    )


def _items_per_row(configuration: Configuration) -> int:
    if configuration.algorithm == "serial":
        return 1
    return max(1, configuration.number("work_group_size") // _rows_per_group(configuration))


def _by_rule(problem: ReduceProblem, limits: DeviceLimits) -> Iterator[Configuration]:
    """What to begin with, best first: rows too few for the device are split, short ones share a work-group."""
    group = 1 if limits.is_cpu else 256
    for width in (16, 8, 4, 2, 1) if limits.is_cpu else (4, 2, 1):
        reading = _reading(problem, width)
        for parts in (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2):
            yield Configuration.of("split_row", work_group_size=group, parts=parts, unroll=4, **reading)
        if not limits.is_cpu:
            yield _shared_rows(problem, width)
        for unroll in (4, 1):
            yield Configuration.of("serial", work_group_size=0, unroll=unroll, **reading)


def _reading(problem: ReduceProblem, width: int) -> dict[str, Value]:
    aligned = width > 1 and problem.pitch % width == 0
    return {"vector_width": width, "loads": "aligned" if aligned else "vload"}


def _shared_rows(problem: ReduceProblem, width: int) -> Configuration:
    """256 work-items over as many rows as leave each of them two vectors or more."""
    lanes = 2
    while lanes < 256 and 4 * lanes * width <= problem.channels:
        lanes *= 2
    unroll = next((u for u in (8, 4, 2) if u * lanes * width <= problem.channels), 1)
    return Configuration.of(
        "local_tree",
        work_group_size=256,
        rows_per_group=256 // max(lanes, 4),
        fan_in=4,
        unroll=unroll,
        **_reading(problem, width),
    )


class ReduceCase(Case):
    """Random rows, gaps between them filled with NaN, the output poisoned; a float64 reference.

    An even seed draws odd eighths: their sums are exact in float32 in any order, so that a sum of float32 has to be
    exact, and one element missing or counted twice shows in a row of any length. An odd seed draws from [-1, 1),
    judged by a tolerance, and puts NaN or an infinity into some rows.
    """

    DISTINCT_ELEMENTS = 2**23
    """Beyond these the rows come again: drawing and judging more would take longer than everything else."""
    SPECIAL_ROWS = 3
    """Rows of each special kind, where there are rows enough."""

    def __init__(self, problem: ReduceProblem, seed: int) -> None:
        import numpy as np

        self._problem = p = problem
        self._is_exact = seed % 2 == 0
        rng = np.random.default_rng(seed)
        shape = (min(p.batch, max(1, self.DISTINCT_ELEMENTS // p.pitch)), p.pitch)
        if self._is_exact:
            values = (rng.integers(-4, 4, shape, dtype=np.int8) * 2 + 1).astype(np.float32) / np.float32(8)
        else:
            values = rng.random(shape, dtype=np.float32) * np.float32(2) - np.float32(1)
            self._make_special(values, rng)
        values[:, p.channels :] = np.nan
        self._rows = values.astype(p.dtype)
        self.inputs: Mapping[str, NDArray[Any]] = {
            "input": self._rows if len(values) == p.batch else np.resize(self._rows, (p.batch, p.pitch)),
            "output": np.full(p.batch, np.nan, dtype=p.dtype),
        }
        self.scalars: Mapping[str, float] = {}

    def _make_special(self, values: "NDArray[np.float32]", rng: "np.random.Generator") -> None:
        """NaN and infinities in a quarter of the rows at most, each kind: with one row there is none, since that
        one must show rounding too. For max and min also rows that hold nothing but the worst there is."""
        import numpy as np

        p = self._problem
        count = min(len(values) // 4, self.SPECIAL_ROWS)
        for special in (np.nan, np.inf, -np.inf):
            rows = rng.choice(len(values), count, replace=False)
            values[rows, rng.integers(p.channels, size=count)] = special
        if p.operation in ("max", "min"):
            values[rng.choice(len(values), count, replace=False)] = -np.inf if p.operation == "max" else np.inf

    def error_ratio(self, outputs: "Mapping[str, NDArray[Any]]") -> float:
        import numpy as np

        output = outputs["output"].astype(np.float64)
        expected, tolerance = self._expected()
        finite = np.isfinite(expected)
        if not np.array_equal(output[~finite], expected[~finite], equal_nan=True):
            return math.inf
        if not np.isfinite(output[finite]).all():
            return math.inf
        error = np.abs(output[finite] - expected[finite])
        return float((error / tolerance[finite]).max(initial=0.0))

    def _expected(self) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
        """Results of all rows, and the error allowed to each."""
        import numpy as np

        p = self._problem
        rows = self._rows[:, : p.channels].astype(np.float64)
        with np.errstate(invalid="ignore"):
            expected = getattr(rows, p.operation)(axis=1)
        return np.resize(expected, p.batch), np.resize(self._tolerance(rows, expected), p.batch)

    def _tolerance(self, rows: "NDArray[np.float64]", expected: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """A largest and a smallest element are exact. A sum may be rounded to the type of the output, and where it
        is not exact each addition rounds: one after the other, the error of random terms came to 1.9 epsilon times
        their norm times the root of their number, at most, among millions of rows."""
        import numpy as np

        p = self._problem
        exact = np.full(len(expected), 1e-30)
        if p.operation in ("max", "min"):
            return exact
        if not self._is_exact:
            norm = np.sqrt((rows * rows).sum(axis=1)) / (p.channels if p.operation == "mean" else 1)
            exact += 2.0**-23 * (4.0 + 2.5 * math.sqrt(p.channels)) * norm
        if p.dtype == "float16":
            return exact + 2.0**-10 * np.abs(expected) + 2.0**-24
        return exact + (4 * 2.0**-24 * np.abs(expected) if p.operation == "mean" else 0.0)
