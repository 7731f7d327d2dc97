"""GEMM problems: sizes, pitches, layouts, types and batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self

from autotune.errors import ProblemError, did_you_mean
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits
from autotune.model.problem import NUMBER_TYPES, NumberType, Problem, whole_number
from autotune.space.expression import Expression, by_value

MAX_ELEMENTS = 2**31 - 1
"""Most elements of an operand: kernels index with 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """The types of a numeric mode: of the stored elements of A and B, of the sums, and of C."""

    operand: NumberType
    accumulator: NumberType
    result: NumberType

    @property
    def vectors(self) -> tuple[str, str]:
        """Types of the vectors that kernels use: as stored, and as they compute with them."""
        return self.operand.name, self.operand.widened


def _mode(operand: str, accumulator: str, result: str) -> Mode:
    return Mode(operand=NUMBER_TYPES[operand], accumulator=NUMBER_TYPES[accumulator], result=NUMBER_TYPES[result])


MODES = {
    "float32": _mode("float32", "float32", "float32"),
    "float16": _mode("float16", "float32", "float16"),
    "float16-acc16": _mode("float16", "float16", "float16"),
    "int8": _mode("int8", "int32", "int32"),
}
"""The numeric modes, by the name used after --shape."""


def by_mode(value: Callable[[Mode], str | int]) -> str:
    """Return an expression for a value that the mode of a problem determines."""
    return by_value("mode", {name: value(mode) for name, mode in MODES.items()})


_INPUT_BYTES, _OUTPUT_BYTES = (by_mode(attrgetter(use)) for use in ("operand.size_bytes", "result.size_bytes"))
BYTES_MOVED = Expression(f"batch * (({_INPUT_BYTES}) * (m * k + k * n) + ({_OUTPUT_BYTES}) * m * n)")
_bytes_moved = BYTES_MOVED.taking("m", "n", "k", "batch", "mode")

COLUMN_OF_ROWS = "(n == 1 and ldc == 1 and trans_a == 1)"
"""The condition under which C' = B' A' is a row, and rows of A hold its columns."""
ROWS_OF_COLUMNS = "(m <= 16 and trans_b == 1 and (m <= n or trans_a == 1))"
"""The condition under which C' = B' A' is a few columns, and rows of B hold its k."""

_LAYOUTS = (("00", "01"), ("10", "11"))

_TEXTS = ("mode", "constant")
_CONSTANT = ("a", "b", "ab")
_WORDS = (*MODES, *(f"constant={operands}" for operands in _CONSTANT))

_PITCHES = {operand: f"ld{operand}" for operand in "abc"}
_STRIDES = {operand: f"stride_{operand}" for operand in "abc"}

EXAMPLES = (
    "1,1,1",
    "7,5,3",
    "65,33,17",
    "64,64,64",
    "3,2,130",
    "29,150,67 lda=72 ldb=156 ldc=151",
    "37,35,1090 ldc=36",
    "150,131,37 tn batch=2",
    "34,66,41 nt lda=44 stride_a=1504 batch=3 stride_c=2300",
    "43,21,76 tt ldb=80 ldc=28",
    # few rows, few columns
    "1,300,2100",
    "13,259,140 ldb=264 ldc=262 batch=2",
    "3,270,600 tn",
    "4,130,260 float16",
    "7,132,280 int8 batch=3",
    "1,300,2100 nt ldb=2104 batch=2",
    "6,270,600 nt ldc=280",
    "2,1200,37",
    "1200,1,37 tn",
    "300,1,2100",
    "300,1,2100 tn lda=304 float16",
    "133,13,150 lda=152 ldc=15 batch=2",
    "66,3,600 nt ldb=608",
    "70,4,270 float16",
    "35,6,290 int8 lda=296 batch=2",
    # the other types in every layout
    "36,52,40 float16",
    "33,50,29 nt float16 batch=2",
    "70,39,131 tn float16 lda=72 ldb=40 ldc=42",
    "41,22,18 tt float16 stride_b=500 batch=2",
    "24,56,32 int8",
    "37,43,21 nt int8 ldb=24 ldc=44",
    "67,34,133 tn int8 batch=2 stride_c=2400",
    "19,70,50 tt int8 lda=20 ldb=52",
    "36,52,40 float16-acc16",
    "33,50,29 nt float16-acc16 ldc=53",
    "39,42,31 tn float16-acc16 batch=2",
    "21,37,50 tt float16-acc16 ldb=52",
    "5,70,130 float16-acc16 batch=2",
    "70,5,130 float16-acc16",
)
"""Small problems on which every kernel is checked, in the form that `GemmProblem.parse` reads."""


@dataclass(frozen=True, kw_only=True)
class GemmProblem(Problem):
    """Sizes, row pitches and batch strides in elements; a pitch or stride of 0 means rows or matrices without a gap.

    `mode` is float32, float16 (accumulated in float32), float16-acc16 (accumulated in float16), or int8 (accumulated
    in int32, C is int32). With `trans_a` 1, A is stored as k x m; with `trans_b` 1, B as n x k.
    `constant` names the operands that keep their values from call to call: "a", "b" or "ab". They are packed once,
    which the time of a call does not include.
    """

    family: ClassVar[str] = "gemm"
    size_axes: ClassVar[tuple[str, ...]] = ("m", "n", "k", "batch")
    shape_format: ClassVar[str] = "M,N,K, then layout (nn, nt, tn, tt), mode, name=number, constant=b"
    shape_examples: ClassVar[tuple[str, ...]] = ("512,512,512", "64,3136,576", "128,128,64 nt batch=12 float16")

    m: int
    n: int
    k: int
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    trans_a: int = 0
    trans_b: int = 0
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    mode: str = "float32"
    constant: str = ""

    def __post_init__(self) -> None:
        # This runs at every lookup of a new size: errors are diagnosed only once a quick test has found one.
        if min(self.m, self.n, self.k, self.batch) < 1 or self.trans_a not in (0, 1) or self.trans_b not in (0, 1):
            self._refuse()
        if self.mode not in MODES:
            raise ProblemError(f"gemm has no numeric mode {self.mode[:80]!r}", hint=f"there are {', '.join(MODES)}")
        if self.constant:
            self._check_constant()
        a, b, c = self._shapes
        self._fill("a", a, self.lda, self.stride_a)
        self._fill("b", b, self.ldb, self.stride_b)
        self._fill("c", c, self.ldc, self.stride_c)

    def _fill(self, operand: str, shape: tuple[int, int], pitch: int, stride: int) -> None:
        rows, columns = shape
        pitch = pitch or columns
        least = rows * pitch
        stride = stride or least
        if pitch < columns or stride < least or self.batch * stride > MAX_ELEMENTS:
            self._refuse_operand(operand, shape, pitch, stride)
        object.__setattr__(self, _PITCHES[operand], pitch)
        object.__setattr__(self, _STRIDES[operand], stride)

    def _check_constant(self) -> None:
        operands = "".join(sorted(set(self.constant)))
        if operands not in _CONSTANT:
            hint = "constant=b packs B once, outside the measured time"
            raise ProblemError(f"constant must be a, b or ab, not {self.constant[:40]!r}", hint=hint)
        object.__setattr__(self, "constant", operands)

    def _refuse(self) -> None:
        for name in ("m", "n", "k", "batch"):
            if getattr(self, name) < 1:
                raise ProblemError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("trans_a", "trans_b"):
            if getattr(self, name) not in (0, 1):
                raise ProblemError(f"{name} must be 0 or 1, not {getattr(self, name)}")

    def _refuse_operand(self, operand: str, shape: tuple[int, int], pitch: int, stride: int) -> None:
        rows, columns = shape
        if pitch < columns:
            raise ProblemError(f"ld{operand} must be at least {columns}, the length of a row, not {pitch}")
        if stride < rows * pitch:
            raise ProblemError(f"stride_{operand} must be at least {rows * pitch}, the size of a matrix, not {stride}")
        object.__setattr__(self, _PITCHES[operand], pitch)
        raise ProblemError(f"{self.label} has an operand of more than {MAX_ELEMENTS} elements")

    @property
    def stored(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of a, b and c as stored in memory."""
        return dict(zip("abc", self._shapes, strict=True))

    @property
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        a = (self.k, self.m) if self.trans_a else (self.m, self.k)
        b = (self.n, self.k) if self.trans_b else (self.k, self.n)
        return a, b, (self.m, self.n)

    def pitch(self, operand: str) -> int:
        """Return the elements from one row of a, b or c to the next."""
        return int(getattr(self, f"ld{operand}"))

    def stride(self, operand: str) -> int:
        """Return the elements from one matrix of a batch to the next."""
        return int(getattr(self, f"stride_{operand}"))

    def dtype(self, operand: str) -> str:
        """Return the type of the stored elements of a, b or c."""
        mode = MODES[self.mode]
        return (mode.result if operand == "c" else mode.operand).name

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return MODES[self.mode].accumulator.name

    @property
    def is_whole(self) -> bool:
        """Whether the product is one of whole numbers."""
        return MODES[self.mode].operand.is_whole

    @property
    def label(self) -> str:
        """The sizes, then all that is not a default: ``512x512x512``, ``512x512x64 nt batch=12 float16``."""
        text = f"{self.m}x{self.n}x{self.k}"
        layout = ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")
        text += f" {layout}" if layout != "nn" else ""
        text += f" batch={self.batch}" if self.batch > 1 else ""
        text += f" {self.mode}" if self.mode != "float32" else ""
        for operand, (rows, columns) in self.stored.items():
            if self.pitch(operand) not in (0, columns):
                text += f" ld{operand}={self.pitch(operand)}"
            if self.batch > 1 and self.stride(operand) not in (0, rows * self.pitch(operand)):
                text += f" stride_{operand}={self.stride(operand)}"
        return f"{text} constant={self.constant}" if self.constant else text

    def is_constant(self, operand: str) -> bool:
        return operand != "" and operand in self.constant

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        return _bytes_moved(self.m, self.n, self.k, self.batch, self.mode)

    def resized(self, sizes: Sequence[int]) -> Self:
        m, n, k, batch = sizes
        return type(self)(
            m=m, n=n, k=k, batch=batch, trans_a=self.trans_a, trans_b=self.trans_b, mode=self.mode,
            constant=self.constant,
        )  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``M,N,K`` or ``MxNxK``, then in any order a layout (nn, nt, tn, tt), a mode and ``name=number``.

        Names are lda, ldb, ldc, batch, stride_a, stride_b, stride_c; ``constant=b``, ``constant=a`` or
        ``constant=ab`` names constant operands. Example: ``512x512x64 nt batch=12 float16``. Raises ProblemError.
        """
        words = text.strip().lower().replace(",", " ").split()
        if words and words[0].count("x") == 2:
            words[:1] = words[0].split("x")
        wrong = ProblemError(f"{text.strip()[:80]!r} is not a shape", hint="write M,N,K such as 512,512,512")
        values: dict[str, Any] = {}
        said_before: set[str] = set()
        for number, word in enumerate(words):
            name, equals, digits = word.partition("=")
            is_layout = word in ("nn", "nt", "tn", "tt")
            said = {"trans_a", "trans_b"} if is_layout else {"mode"} if word in MODES else {name} - {"constant"}
            if said & said_before:
                raise ProblemError(f"{wrong.message}: {word[:40]!r} repeats or contradicts a word before it")
            said_before |= said if number > 2 else set()
            if number < 3:
                values["mnk"[number]] = whole_number(word, wrong)
            elif is_layout:
                values["trans_a"], values["trans_b"] = int(word[0] == "t"), int(word[1] == "t")
            elif word in MODES:
                values["mode"] = word
            elif name == "constant" and digits:
                values[name] = values.get(name, "") + digits
            elif equals and name in cls.__dataclass_fields__ and name not in ("m", "n", "k", *_TEXTS):
                values[name] = whole_number(digits, wrong)
            else:
                message = f"{wrong.message}: {word[:40]!r} is not a layout, numeric mode or value"
                hint = did_you_mean(word, _WORDS) or f"such as 512,512,512 nt batch=12, and {', '.join(MODES)}"
                raise ProblemError(message, hint=hint)
        if len(values.keys() & {"m", "n", "k"}) < 3:
            raise wrong
        return cls(**values)

    def constraint_values(self) -> dict[str, Value]:
        mode = MODES[self.mode]
        values = self.to_dict()
        values["element_bytes"], values["accumulator_bytes"] = mode.operand.size_bytes, mode.accumulator.size_bytes
        return values

    @property
    def kind(self) -> tuple[tuple[str, str], ...]:
        return ("mode", self.mode), ("layout", _LAYOUTS[self.trans_a][self.trans_b]), *self._additions

    def check_device(self, limits: DeviceLimits) -> None:
        if self.accumulator == "float16" and not limits.has_float16:
            raise ProblemError(f"{self.label}: the device has no float16 arithmetic", hint="use float16")
        self.check_stored(self.dtype("a"), limits)
        sizes = {x.upper(): self.batch * self.stride(x) * NUMBER_TYPES[self.dtype(x)].size_bytes for x in "abc"}
        self.check_memory(sizes, limits)
