"""Problems of attention: heads, lengths, types, and what changes or hides scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from autotune.errors import ProblemError
from autotune.kernels.qgemm.formats import FORMATS, UNIT
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits
from autotune.model.problem import NUMBER_TYPES, Problem, whole_number
from autotune.space.expression import Expression, by_value

MAX_LENGTH = 2**30
"""Most of any size: kernels add up to three of them in 32-bit integers."""

HEADS: Mapping[str, tuple[int, int]] = {
    **{str(size): (size, size) for size in (16, 32, 40, 48, 64, 72, 80, 88, 96, 112, 120, 128, 160, 192, 224, 256)},
    "192/128": (192, 128),
    "512": (512, 512),
    "576/512": (576, 512),
}
"""Elements of a head of Q and K, and of one of V, by name."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "head": ("128", *(name for name in HEADS if name != "128")),
    "causality": ("full", "causal"),
    "layout": ("heads", "tokens", "pages"),
    "bias": ("none", "mask", "alibi"),
    "capping": ("uncapped", "capped"),
    "sinks": ("sinkless", "sinks"),
    "dtype": ("float32", "float16"),
    "kv_type": ("float32", "float16", "q8_0", "q4_0"),
}
"""The text fields with their values, of which the first is the default."""

BLOCKS = ("q8_0", "q4_0")
"""Formats of K and V with a scale for every 32 elements, as in GGUF files."""

K_SIZE = by_value("head", {name: k for name, (k, _) in HEADS.items()})
V_SIZE = by_value("head", {name: v for name, (_, v) in HEADS.items()})
UNIT_BYTES = by_value(
    "kv_type",
    {name: FORMATS[name].block_bytes if name in BLOCKS else UNIT * NUMBER_TYPES[name].size_bytes
     for name in WORDS["kv_type"]},
)  # fmt: skip
"""Bytes of 32 elements of K or V."""
ELEMENT_BYTES = by_value("dtype", {name: NUMBER_TYPES[name].size_bytes for name in WORDS["dtype"]})
BLOCKS_FIT = f"not (kv_type in {BLOCKS}) or (({K_SIZE}) % {UNIT} == 0 and ({V_SIZE}) % {UNIT} == 0)"
LEAST = {
    **dict.fromkeys(("kv_heads", "group", "q_length", "kv_length", "batch"), "1"),
    "window": "0",
    "capacity": "kv_length",
    "page": "16 if layout == 'pages' else 1",
    "pool": "0",
}
"""Least values of the sizes as expressions; those that are 0 by default are filled in."""

BYTES_MOVED = Expression(
    f"batch * kv_heads * (kv_length if window == 0 else min(kv_length, window + q_length)) * ({UNIT_BYTES})"
    f" * (({K_SIZE}) + ({V_SIZE})) // {UNIT}"
    f" + batch * kv_heads * group * q_length * (({K_SIZE}) + ({V_SIZE})) * ({ELEMENT_BYTES})"
    f" + (batch * q_length * kv_length * ({ELEMENT_BYTES}) if bias == 'mask' else 0)"
)


@dataclass(frozen=True, kw_only=True)
class AttentionProblem(Problem):
    """Sizes of ``softmax(scale * Q @ K.T + bias) @ V`` for each query head of each sequence.

    `group` query heads share each of the `kv_heads` heads of K and V. Sequences have up to `kv_length` keys, an array
    says how many each has; `capacity` is how many there is room for. The last query belongs to the last key. A query
    sees all keys, or, if `causality` is causal, those up to its own place; with a `window` above 0, only keys fewer
    than so many places away. Layouts: heads is (batch, heads, length, size), tokens is (batch, length, heads, size),
    pages has K and V in pages of `page` tokens, (pool, page, heads, size), which a table lists for each sequence, and
    the rest as tokens; a `pool` of 0 is as many pages as sequences have room for. `bias` is a mask that is added, or
    slopes of ALiBi. Capped scores are ``cap * tanh(score / cap)``.
    """

    family: ClassVar[str] = "attention"
    size_axes: ClassVar[tuple[str, ...]] = ("kv_heads", "group", "q_length", "kv_length", "batch")
    shape_format: ClassVar[str] = (
        "HEADS[/KV_HEADS],Q_LENGTH,KV_LENGTH,HEAD, then words such as causal, kv=q8_0, batch=4"
    )
    shape_examples: ClassVar[tuple[str, ...]] = ("32/8,1,8192,128 float16 causal", "32/8,512,512,64 causal kv=q8_0")

    kv_heads: int
    group: int
    q_length: int
    kv_length: int
    head: str = "128"
    batch: int = 1
    causality: str = "full"
    window: int = 0
    layout: str = "heads"
    capacity: int = 0
    page: int = 0
    pool: int = 0
    bias: str = "none"
    capping: str = "uncapped"
    sinks: str = "sinkless"
    dtype: str = "float32"
    kv_type: str = "float32"

    def __post_init__(self) -> None:
        self.check_words(WORDS)
        object.__setattr__(self, "capacity", self.capacity or self.kv_length)
        object.__setattr__(self, "page", self.page or self._usual_page)
        for name, least in LEAST.items():
            if not (self.kv_length if name == "capacity" else int(least == "1")) <= getattr(self, name) <= MAX_LENGTH:
                raise ProblemError(f"{name} is {getattr(self, name)}, which is too small or more than {MAX_LENGTH}")
        if self.layout != "pages" and (self.page != 1 or self.pool):
            raise ProblemError(f"the layout {self.layout} has no pages")
        if self.kv_type in BLOCKS and (self.k_size % UNIT or self.v_size % UNIT):
            raise ProblemError(f"a head of {self.head} is not whole blocks of {self.kv_type}")
        if self.batch * self.q_heads > MAX_LENGTH or self.group * self.q_length > MAX_LENGTH:
            raise ProblemError(f"{self.label} has more than {MAX_LENGTH} heads, or rows of a head")

    @property
    def k_size(self) -> int:
        """Elements of a head of Q and K."""
        return HEADS[self.head][0]

    @property
    def v_size(self) -> int:
        """Elements of a head of V and of the output."""
        return HEADS[self.head][1]

    @property
    def q_heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def pages(self) -> int:
        """Pages that a sequence has room for."""
        return -(-self.capacity // self.page)

    @property
    def label(self) -> str:
        heads = f"{self.q_heads}/{self.kv_heads}" if self.group > 1 else f"{self.q_heads}"
        usual = {"window": 0, "capacity": self.kv_length, "pool": 0, "page": self._usual_page}
        words = [f"{heads},{self.q_length},{self.kv_length},{self.head}"]
        words += [f"batch={self.batch}"] if self.batch > 1 else []
        words += [getattr(self, name) for name in WORDS if name not in ("head", "kv_type")
                  and getattr(self, name) != WORDS[name][0]]  # fmt: skip
        words += [f"kv={self.kv_type}"] if self.kv_type != self.dtype else []
        words += [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        return " ".join(words)

    @property
    def _usual_page(self) -> int:
        return 16 if self.layout == "pages" else 1

    def visible(self, query: int, length: int) -> range:
        """Return the keys that a query sees in a sequence with so many keys."""
        place = length - self.q_length + query
        end = place + 1 if self.causality == "causal" else place + self.window if self.window else length
        return range(max(0, place - self.window + 1) if self.window else 0, max(0, min(end, length)))

    @property
    def flops(self) -> int:
        """As in the base class, for sequences of the full length; the softmax is not counted."""
        step = max(1, self.q_length // 1024)  # of many queries some, since the number of keys grows evenly
        asked = range(0, self.q_length, step)
        seen = sum(len(self.visible(query, self.kv_length)) for query in asked) * self.q_length // len(asked)
        return 2 * (self.k_size + self.v_size) * self.batch * self.q_heads * seen

    @property
    def bytes_moved(self) -> int:
        return int(BYTES_MOVED(self.to_dict()))

    @property
    def as_tuned(self) -> Self:
        return replace(self, capacity=0, pool=0)

    def resized(self, sizes: Sequence[int]) -> Self:
        changed: dict[str, Any] = dict(zip(self.size_axes, sizes, strict=True))
        return replace(self, **changed, capacity=0, pool=0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``HEADS[/KV_HEADS],Q_LENGTH,KV_LENGTH,HEAD``, then in any order words of `WORDS`, ``kv=type``, and
        ``batch=``, ``window=``, ``capacity=``, ``page=`` and ``pool=`` with a number. Raises ProblemError.
        """
        words, wrong = cls.words_of(text, 4, 200)
        heads, slash, kv_heads = words[0].partition("/")
        q_heads = whole_number(heads, wrong)
        values: dict[str, Any] = {"kv_heads": whole_number(kv_heads, wrong) if slash else q_heads, "head": words[3]}
        if values["kv_heads"] < 1 or q_heads % values["kv_heads"]:
            raise ProblemError(f"{wrong.message}: {q_heads} query heads are not a multiple of its heads of K and V")
        values |= {"group": q_heads // values["kv_heads"], "q_length": whole_number(words[1], wrong)}
        values["kv_length"] = whole_number(words[2], wrong)
        for word in words[4:]:
            name, equals, given = word.partition("=")
            if not equals:
                name, given = next((n for n, known in WORDS.items() if word in known and n != "head"), ""), word
            name = "kv_type" if name == "kv" else name
            if name in values or name not in ("batch", "window", "capacity", "page", "pool", *WORDS):
                raise ProblemError(f"{wrong.message}: {word[:40]!r} is not understood or repeats a word before it")
            values[name] = given if name in WORDS else whole_number(given, wrong)
        return cls(**{"kv_type": values.get("dtype", "float32"), **values})

    def constraint_values(self) -> dict[str, Value]:
        return {**self.to_dict(), "k_size": self.k_size, "v_size": self.v_size}

    def check_device(self, limits: DeviceLimits) -> None:
        for dtype in (self.dtype, self.kv_type if self.kv_type == "float32" else "float16"):
            self.check_stored(dtype, limits)
        size, unit_bytes = NUMBER_TYPES[self.dtype].size_bytes, int(Expression(UNIT_BYTES)(self.to_dict()))
        tokens = (self.pool or self.batch * self.pages) * self.page * self.kv_heads
        rows = self.batch * self.q_heads * self.q_length
        operands = {
            "Q": size * rows * self.k_size,
            "K": tokens * self.k_size * unit_bytes // UNIT,
            "V": tokens * self.v_size * unit_bytes // UNIT,
            "the output": size * rows * self.v_size,
        }
        if self.bias == "mask":
            operands["the mask"] = size * self.batch * self.q_length * self.capacity
        self.check_memory(operands, limits)


EXAMPLES = (
    "1,1,1,64", "2/1,1,37,64", "4/2,1,70,128 batch=3", "8/1,1,130,32 tokens causal", "6/2,3,40,96 causal batch=2",
    "3,5,3,40 causal", "2,7,50,72 window=9", "4/2,1,90,64 window=16", "4/2,2,90,64 causal window=16 capped",
    "2,9,33,80 mask batch=2", "4/2,4,48,112 alibi causal", "3/1,2,41,48 sinks capacity=64",
    "2/1,17,80,16 causal sinks capped alibi tokens", "2/1,40,70,32 causal tokens batch=2",
    "2,33,64,192/128", "1,70,70,64 causal window=20 mask", "4/2,1,100,64 pages page=8 batch=3 pool=50",
    "2,6,60,32 pages causal sinks",
    "4/1,1,67,128 float16", "4/2,21,50,64 float16 causal batch=2", "2,2,45,256 float16 kv=float32",
    "4/2,1,80,64 kv=float16 tokens", "4/1,1,90,64 kv=q8_0 batch=2", "2/1,5,60,128 kv=q4_0 causal",
    "4/2,18,40,96 float16 kv=q8_0 mask", "2/1,1,75,64 float16 kv=q4_0 tokens sinks", "2,20,30,32 kv=q4_0 pages capped",
    "16/1,1,30,32 causal", "1,3,20,576/512 causal",
)  # fmt: skip
"""Small problems on which every kernel is checked."""
