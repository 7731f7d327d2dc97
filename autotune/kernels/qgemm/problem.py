"""Problems of products with quantised weights: sizes, format of the weights, numeric mode, experts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.errors import ProblemError, did_you_mean
from autotune.kernels.qgemm.formats import FORMATS, WeightFormat, by_format
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits
from autotune.model.problem import NUMBER_TYPES, Problem, whole_number
from autotune.space.expression import Expression, by_value

MAX_ELEMENTS = 2**31 - 1
"""Most weights, activations and outputs: kernels count them with 32-bit integers."""
MAX_EXPERTS = 4096

MODES: Mapping[str, str] = {"float32": "float32", "float16": "float16", "int8": "float32"}
"""The numeric modes, each with the type in which activations and outputs are stored.

Both float modes compute in float32, but in float16 kernels may add up the products of 32 weights in half precision, or
round weights to it. In int8, the float32 activations are quantised on the way, 32 with one scale, and multiplied as
integers.
"""

STORED_BYTES = by_value("mode", {mode: NUMBER_TYPES[stored].size_bytes for mode, stored in MODES.items()})
BLOCK, BLOCK_BYTES = by_format(lambda f: f.block), by_format(lambda f: f.block_bytes)
WEIGHT_BYTES = f"m * (k // ({BLOCK})) * ({BLOCK_BYTES})"
"""Bytes of the weights of one expert."""
PACKED_ROW_BYTES = f"(k // ({BLOCK})) * ({by_format(lambda f: f.block_bytes + f.packed_growth)})"
"""Bytes that a row of them takes when packed."""
BYTES_MOVED = Expression(f"min(experts, n) * ({WEIGHT_BYTES}) + ({STORED_BYTES}) * n * (m + k)")
_bytes_moved = BYTES_MOVED.taking("m", "n", "k", "experts", "weights", "mode")

EXAMPLES = (
    "1,1,32 q4_0",
    "3,1,64 q8_0",
    "70,1,1024 q4_0",
    "33,1,512 q4_k",
    "37,2,256 q6_k float16",
    "130,5,96 mxfp4",
    "19,1,2880 mxfp4 float16",
    "64,1,256 int4-g32",
    "65,3,384 int4-g128 float16",
    "31,4,128 int4z-g64",
    "40,1,768 int4z-g32",
    "18,6,256 q4_0",
    "129,67,160 q4_0 float16",
    "66,70,512 q4_k",
    "130,33,256 q6_k",
    "35,66,224 q8_0",
    "128,64,128 int4-g64",
    "72,130,128 int4z-g128 float16",
    "50,64,2880 mxfp4",
    "61,1,288 q4_0 int8",
    "67,9,512 q4_k int8",
    "68,35,256 q6_k int8",
    "131,64,96 q8_0 int8",
    "33,3,160 mxfp4 int8",
    "70,40,128 int4z-g64 int8",
    "40,6,64 q4_0 experts=5",
    "32,7,96 mxfp4 experts=3",
    "36,75,256 q4_k experts=4 float16",
    "67,40,96 mxfp4 experts=7",
    "66,12,64 q8_0 experts=3 int8",
)
"""Small problems on which every kernel is checked, in the form that `QGemmProblem.parse` reads."""


@dataclass(frozen=True, kw_only=True)
class QGemmProblem(Problem):
    """Sizes of Y = X @ W.T, with X of shape (n, k), quantised weights W (m, k) and Y (n, m), all row-major.

    n counts columns of the product: the tokens of a language model, 1 when it decodes. `weights` names a format of
    `FORMATS`, `mode` one of `MODES`. With `experts` above 1 the weights are (experts, m, k), the rows of X are sorted
    by expert, and an array tells where the rows of each expert begin.
    """

    family: ClassVar[str] = "qgemm"
    size_axes: ClassVar[tuple[str, ...]] = ("m", "n", "k", "experts")
    shape_format: ClassVar[str] = "M,N,K weights, then mode (float32, float16, int8), experts=number"
    shape_examples: ClassVar[tuple[str, ...]] = ("2048,1,2048 q4_0", "8192,512,2048 q4_k float16")

    m: int
    n: int
    k: int
    weights: str
    mode: str = "float32"
    experts: int = 1

    def __post_init__(self) -> None:
        for given, known, what in ((self.weights, FORMATS, "weights"), (self.mode, MODES, "numeric mode")):
            if given not in known:
                hint = did_you_mean(given, known) or f"there are {', '.join(known)}"
                raise ProblemError(f"qgemm has no {what} {given[:80]!r}", hint=hint)
        for name in ("m", "n", "k", "experts"):
            if getattr(self, name) < 1:
                raise ProblemError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.k % self.format.block:
            raise ProblemError(
                f"k must be a multiple of {self.format.block}, the block of {self.weights}, not {self.k}"
            )
        if self.experts > MAX_EXPERTS:
            raise ProblemError(f"experts must be at most {MAX_EXPERTS}, not {self.experts}")
        elements = max(self.experts * self.m * self.k, self.n * self.k, self.n * self.m)
        if elements > MAX_ELEMENTS:
            raise ProblemError(f"{self.label} has an operand of more than {MAX_ELEMENTS} elements")

    @property
    def format(self) -> WeightFormat:
        return FORMATS[self.weights]

    @property
    def stored(self) -> str:
        """The type of activations and outputs in memory."""
        return MODES[self.mode]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all experts."""
        return self.experts * self.m * (self.k // self.format.block) * self.format.block_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights of all experts."""
        return self.weight_bytes // self.format.block_bytes * (self.format.block_bytes + self.format.packed_growth)

    @property
    def label(self) -> str:
        mode = "" if self.mode == "float32" else f" {self.mode}"
        experts = "" if self.experts == 1 else f" experts={self.experts}"
        return f"{self.m}x{self.n}x{self.k} {self.weights}{mode}{experts}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        return _bytes_moved(self.m, self.n, self.k, self.experts, self.weights, self.mode)

    def resized(self, sizes: Sequence[int]) -> Self:
        """Return the same kind of problem; k is rounded up to whole blocks."""
        m, n, k, experts = sizes
        block = self.format.block
        return type(self)(m=m, n=n, k=-(-k // block) * block, weights=self.weights, mode=self.mode, experts=experts)

    def is_constant(self, operand: str) -> bool:
        """Return whether an operand keeps its values: weights do, so that packing them is not part of a call."""
        return operand == "weights"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``M,N,K`` or ``MxNxK``, then in any order a format, a mode and ``experts=number``. Raises ProblemError.

        Example: ``2880x4x2880 mxfp4 experts=32``.
        """
        words = text[:200].strip().lower().replace(",", " ").split()
        if words and words[0].count("x") == 2:
            words[:1] = words[0].split("x")
        wrong = ProblemError(
            f"{text.strip()[:80]!r} is not a shape", hint="write M,N,K and the weights, such as 2048,1,2048 q4_0"
        )
        if len(words) < 3 or len(text) > 200:
            raise wrong
        values: dict[str, Any] = {name: whole_number(word, wrong) for name, word in zip("mnk", words, strict=False)}
        for word in words[3:]:
            name, equals, digits = word.partition("=")
            if {"weights" if word in FORMATS else "mode" if word in MODES else name} & values.keys():
                raise ProblemError(f"{wrong.message}: {word[:40]!r} repeats or contradicts a word before it")
            if word in FORMATS:
                values["weights"] = word
            elif word in MODES:
                values["mode"] = word
            elif name == "experts" and equals:
                values["experts"] = whole_number(digits, wrong)
            else:
                hint = did_you_mean(word, [*FORMATS, *MODES]) or f"weights are {', '.join(FORMATS)}"
                raise ProblemError(f"{wrong.message}: {word[:40]!r} is no format, mode or value", hint=hint)
        if "weights" not in values:
            raise ProblemError(f"{wrong.message}: it names no weights", hint=f"there are {', '.join(FORMATS)}")
        return cls(**values)

    def constraint_values(self) -> dict[str, Value]:
        values = self.to_dict()
        values["in_arrays"] = int(self.format.in_arrays)
        values["quant_words"] = self.format.quant_bytes // 4
        return values

    def check_device(self, limits: DeviceLimits) -> None:
        self.check_stored(self.stored, limits)
        size = NUMBER_TYPES[self.stored].size_bytes
        operands = {
            "the weights": self.weight_bytes,
            "the packed weights": self.packed_bytes,
            "the activations": size * self.n * self.k,
            "the output": size * self.n * self.m,
        }
        self.check_memory(operands, limits)
