"""Problems of convolution: sizes, windows, layouts, types, and what is fused behind the sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from autotune.errors import ProblemError, did_you_mean
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits
from autotune.model.problem import NUMBER_TYPES, Problem, whole_number
from autotune.space.expression import Expression, by_value

MAX_ELEMENTS = 2**31 - 1
"""Most elements of an operand: kernels number them by 32-bit integers."""
MAX_SIDE = 2**20
MAX_STEP = 1024
"""Most of a stride, a dilation and a padding."""
MAX_WINDOW = 11

WORDS: Mapping[str, tuple[str, ...]] = {
    "direction": ("plain", "transposed"),
    "layout": ("nhwc", "nchw", "nc4hw4"),
    "mode": ("float32", "float16", "float16-acc16"),
    "bias": ("unbiased", "bias"),
    "residual": ("direct", "residual"),
    "activation": ("none", "relu", "relu6", "silu", "hard_swish", "leaky"),
}
"""The text fields with their values, of which the first is the default."""
DTYPES = {mode: mode.partition("-")[0] for mode in WORDS["mode"]}
"""The type of what is in memory, by mode."""

_SIZES = ("batch", "height", "width", "channels", "filters")
_PADS = ("pad_top", "pad_left", "pad_bottom", "pad_right")
_STEPS = ("stride_y", "stride_x", "dilation_y", "dilation_x")
_NUMBERS = {"stride": _STEPS[:2], "dilation": _STEPS[2:], "pad": _PADS, "groups": ("groups",)}
"""The fields that a word with numbers states, of which one may stand for all."""
LEAST = {
    **dict.fromkeys((*_SIZES, "kernel_height", "kernel_width", "groups", *_STEPS), "1"), **dict.fromkeys(_PADS, "0")
}  # fmt: skip
"""Least values of the sizes as expressions."""


def _out(size: str, kernel: str, axis: str, first: str, last: str) -> tuple[str, str]:
    """Return expressions of the padded size without the window, and of the size of the output."""
    window, pads = f"dilation_{axis} * ({kernel} - 1)", f"({first} + {last})"
    room = f"({size} + {pads} - {window} - 1)"
    spread = f"(({size} - 1) * stride_{axis} + {window} + 1 - {pads})"
    return room, f"({spread} if direction == 'transposed' else {room} // stride_{axis} + 1)"


ROOM_Y, OUT_HEIGHT = _out("height", "kernel_height", "y", "pad_top", "pad_bottom")
ROOM_X, OUT_WIDTH = _out("width", "kernel_width", "x", "pad_left", "pad_right")
IS_DEPTHWISE = "(groups == channels and groups > 1)"
_STORED_CHANNELS = "(round_up({0}, 4) if layout == 'nc4hw4' else {0})"
INPUT_ELEMENTS = f"batch * height * width * {_STORED_CHANNELS.format('channels')}"
OUTPUT_ELEMENTS = f"batch * ({OUT_HEIGHT}) * ({OUT_WIDTH}) * {_STORED_CHANNELS.format('filters')}"
WEIGHT_ELEMENTS = "filters * (channels // groups) * kernel_height * kernel_width"
ELEMENT_BYTES = by_value("mode", {mode: NUMBER_TYPES[dtype].size_bytes for mode, dtype in DTYPES.items()})

_REASONS = {
    f"kernel_height <= {MAX_WINDOW} and kernel_width <= {MAX_WINDOW}": f"windows have sides of at most {MAX_WINDOW}",
    f"height <= {MAX_SIDE} and width <= {MAX_SIDE}": f"sides have at most {MAX_SIDE} pixels",
    " and ".join(f"{name} <= {MAX_STEP}" for name in (*_PADS, *_STEPS)):
        f"strides, dilations and paddings are at most {MAX_STEP}",
    "channels % groups == 0 and filters % groups == 0": "groups must divide channels and filters",
    f"direction == 'transposed' or ({ROOM_Y} >= 0 and {ROOM_X} >= 0)": "the window is larger than the padded image",
    f"({OUT_HEIGHT}) >= 1 and ({OUT_WIDTH}) >= 1": "nothing is left of the output",
    # Packed weights have filters in whole tiles of up to 128, and channels in whole steps of up to 64.
    f"(filters + 128 * groups) * (channels // groups + 64) * kernel_height * kernel_width <= {MAX_ELEMENTS}":
        "there are too many weights",
    f"batch * height * width <= {MAX_ELEMENTS} and ({INPUT_ELEMENTS}) <= {MAX_ELEMENTS}":
        f"the input has more than {MAX_ELEMENTS} elements",
    # The last work-group counts on behind the last pixel.
    f"batch * ({OUT_HEIGHT}) * ({OUT_WIDTH}) <= {MAX_ELEMENTS - 1024} and ({OUTPUT_ELEMENTS}) <= {MAX_ELEMENTS}":
        f"the output has more than {MAX_ELEMENTS} elements, or almost as many pixels",
}  # fmt: skip
"""The error for each condition that does not hold; a condition is evaluated only if those before it hold."""
CONDITIONS = tuple(_REASONS)
"""Conditions of every problem, in addition to the least values."""
_CONDITIONS = [(Expression(condition), reason) for condition, reason in _REASONS.items()]

BYTES_MOVED = Expression(
    f"({ELEMENT_BYTES}) * ({INPUT_ELEMENTS} + {WEIGHT_ELEMENTS} + ({OUTPUT_ELEMENTS}) * (2 if residual == 'residual'"
    " else 1) + (filters if bias == 'bias' else 0))"
)
_out_height, _out_width = Expression(OUT_HEIGHT), Expression(OUT_WIDTH)


@dataclass(frozen=True, kw_only=True)
class ConvProblem(Problem):
    """Sizes of ``activation(convolution(input, weights) + bias + residual)``; windows are not flipped.

    Sizes are in pixels, `channels` those of the input, `filters` those of the output. `groups` divide both; with as
    many groups as channels it is depthwise, with ``filters // channels`` results of each channel. If `direction` is
    transposed, each input pixel spreads the window over the output, `stride` pixels apart. Weights are (filters,
    channels // groups, kernel_height, kernel_width), of a transposed convolution (channels, filters // groups,
    kernel_height, kernel_width); they keep their values between calls and are packed once.

    Layouts are nhwc, nchw and nc4hw4: (batch, ceil(channels / 4), height, width, 4), in which what is behind the last
    channel is zero, in the output too. A residual has the output's layout and type; bias is of that type. Sums are
    in float32; in the mode float16-acc16 they are in float16.
    """

    family: ClassVar[str] = "conv"
    size_axes: ClassVar[tuple[str, ...]] = (*_SIZES, "kernel_height", "kernel_width", "groups")
    shape_format: ClassVar[str] = (
        "BATCH,HEIGHT,WIDTH,CHANNELS,FILTERS,KHxKW, then words such as stride=2, pad=1, groups=32, layout=nchw, relu"
    )
    shape_examples: ClassVar[tuple[str, ...]] = (
        "1,56,56,64,64,3x3 pad=1 bias relu", "1,112,112,32,32,3x3 pad=1 groups=32 bias relu6",
    )  # fmt: skip

    batch: int
    height: int
    width: int
    channels: int
    filters: int
    kernel_height: int
    kernel_width: int
    stride_y: int = 1
    stride_x: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    dilation_y: int = 1
    dilation_x: int = 1
    groups: int = 1
    direction: str = "plain"
    layout: str = "nhwc"
    mode: str = "float32"
    bias: str = "unbiased"
    residual: str = "direct"
    activation: str = "none"

    def __post_init__(self) -> None:
        self.check_words(WORDS)
        for name, least in LEAST.items():
            if getattr(self, name) < int(least):
                raise ProblemError(f"{name} must be at least {least}, not {getattr(self, name)}")
        values = self.to_dict()
        for condition, reason in _CONDITIONS:
            if not condition(values):
                raise ProblemError(f"{self.label[:120]}: {reason}")

    @property
    def dtype(self) -> str:
        """Type of what is in memory."""
        return DTYPES[self.mode]

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return "float16" if self.mode == "float16-acc16" else "float32"

    @property
    def out_height(self) -> int:
        return int(_out_height(self.to_dict()))

    @property
    def out_width(self) -> int:
        return int(_out_width(self.to_dict()))

    @property
    def is_transposed(self) -> bool:
        return self.direction == "transposed"

    @property
    def weights_shape(self) -> tuple[int, int, int, int]:
        outer, inner = (self.channels, self.filters) if self.is_transposed else (self.filters, self.channels)
        return outer, inner // self.groups, self.kernel_height, self.kernel_width

    def stored_shape(self, channels: int, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of an image of so many channels and pixels as it lies in memory."""
        if self.layout == "nhwc":
            return self.batch, height, width, channels
        if self.layout == "nchw":
            return self.batch, channels, height, width
        return self.batch, -(-channels // 4), height, width, 4

    @property
    def label(self) -> str:
        words = [",".join(str(getattr(self, name)) for name in _SIZES) + f",{self.kernel_height}x{self.kernel_width}"]
        for name, fields in _NUMBERS.items():
            numbers = [str(getattr(self, field)) for field in fields]
            if numbers != [LEAST[field] for field in fields]:
                words += [f"{name}={numbers[0] if len(set(numbers)) == 1 else ':'.join(numbers)}"]
        for name, known in WORDS.items():
            given = getattr(self, name)
            if given != known[0]:
                words += [f"{name}={given}" if name == "layout" else given]
        return " ".join(words)

    @property
    def multiply_adds(self) -> int:
        """Products of a call; those with the padding count, as everywhere."""
        places = self.height * self.width if self.is_transposed else self.out_height * self.out_width
        taps = self.kernel_height * self.kernel_width
        return self.batch * places * taps * self.channels * self.filters // self.groups

    @property
    def flops(self) -> int:
        return 2 * self.multiply_adds

    @property
    def bytes_moved(self) -> int:
        return int(BYTES_MOVED(self.to_dict()))

    def is_constant(self, operand: str) -> bool:
        """Return whether an operand keeps its values: weights do, so that packing them is not part of a call."""
        return operand == "weights"

    def resized(self, sizes: Sequence[int]) -> Self:
        """Return the same kind of problem; channels and filters become multiples of the groups, images large enough."""
        changed: dict[str, Any] = dict(zip(self.size_axes, sizes, strict=True))
        for name in ("kernel_height", "kernel_width"):
            changed[name] = min(changed[name], MAX_WINDOW)
        groups = changed["groups"] = min(changed["groups"], changed["channels"])
        for name in ("channels", "filters"):
            changed[name] = -(-changed[name] // groups) * groups
        changed["height"] = max(changed["height"], self.dilation_y * (changed["kernel_height"] - 1) + 1 + self.pad_top)
        changed["width"] = max(changed["width"], self.dilation_x * (changed["kernel_width"] - 1) + 1 + self.pad_left)
        return replace(self, **changed)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``BATCH,HEIGHT,WIDTH,CHANNELS,FILTERS,KHxKW``, then in any order ``stride=``, ``dilation=`` (a number,
        or y:x), ``pad=`` (a number, or top:left:bottom:right), ``groups=``, ``layout=`` and words of `WORDS`.

        Raises ProblemError.
        """
        words, wrong = cls.words_of(text, 6, 300)
        if words[5].count("x") != 1:
            raise wrong
        values: dict[str, Any] = {n: whole_number(w, wrong) for n, w in zip(_SIZES, words, strict=False)}
        height, _, width = words[5].partition("x")
        values |= {"kernel_height": whole_number(height, wrong), "kernel_width": whole_number(width, wrong)}
        for word in words[6:]:
            found = _word(word, wrong)
            if found.keys() & values.keys():
                raise ProblemError(f"{wrong.message}: {word[:40]!r} repeats or contradicts a word before it")
            values |= found
        return cls(**values)

    def constraint_values(self) -> dict[str, Value]:
        return {**self.to_dict(), "element_bytes": NUMBER_TYPES[self.dtype].size_bytes}

    def check_device(self, limits: DeviceLimits) -> None:
        self.check_stored(self.dtype, limits)
        if self.accumulator == "float16" and not limits.has_float16:
            raise ProblemError(f"{self.label}: the device has no float16 arithmetic", hint="use float16")
        values, size = self.to_dict(), NUMBER_TYPES[self.dtype].size_bytes
        texts = {"the input": INPUT_ELEMENTS, "the weights": WEIGHT_ELEMENTS, "the output": OUTPUT_ELEMENTS}
        operands = {name: size * int(Expression(text)(values)) for name, text in texts.items()}
        if self.residual == "residual":
            operands["the residual"] = operands["the output"]
        self.check_memory(operands, limits)


def _word(word: str, wrong: ProblemError) -> dict[str, Any]:
    """Return the fields that a word of a shape states. Raises ProblemError."""
    name, equals, given = word.partition("=")
    if not equals:
        name, given = next((n for n, known in WORDS.items() if word in known), ""), word
    if name in WORDS and (name == "layout" or not equals):
        return {name: given}
    numbers = [whole_number(number, wrong) for number in given.split(":")] if equals else []
    fields = _NUMBERS.get(name, ())
    if fields and len(numbers) in (1, len(fields)):
        return dict(zip(fields, numbers * (len(fields) // len(numbers)), strict=True))
    known = [word for words in WORDS.values() for word in words] + [*_NUMBERS]
    hint = did_you_mean(word, known) or wrong.hint
    raise ProblemError(f"{wrong.message}: {word[:40]!r} is not understood", hint=hint)


EXAMPLES = (
    "1,1,1,1,1,1x1", "1,5,7,3,5,3x3 pad=1", "2,6,5,8,12,1x1 bias relu", "1,9,8,7,10,5x5 pad=2 stride=2 residual",
    "1,3,2,6,9,7x5 pad=3:2:3:2 leaky", "2,8,9,12,8,3x3 groups=4 pad=1 bias", "1,10,11,4,6,3x1 dilation=2:1 relu6",
    "1,7,5,16,20,3x3 stride=2:1 pad=0:1:1:0 silu", "1,5,4,6,9,3x3 transposed stride=2 pad=1 bias",
    "1,4,5,8,6,4x4 transposed stride=2 pad=1:1:0:1 groups=2", "2,7,6,5,9,3x3 layout=nchw pad=1 bias hard_swish",
    "1,8,8,8,16,3x3 layout=nchw stride=2 residual relu", "1,6,7,10,13,3x3 layout=nc4hw4 pad=1 bias residual relu",
    "2,5,5,16,8,1x1 layout=nc4hw4 stride=2", "1,6,6,12,18,3x3 layout=nc4hw4 groups=3 pad=1 bias",
    "1,6,6,8,8,2x2 layout=nc4hw4 groups=2 transposed stride=3", "1,5,6,7,5,2x3 layout=nchw transposed dilation=2",
    "1,9,9,16,16,3x3 pad=1 relu", "2,12,10,20,24,3x3 pad=1:0:1:2 bias residual silu",
    "1,11,9,12,20,3x3 pad=1 layout=nchw", "1,9,8,18,33,3x3 pad=1 layout=nc4hw4 bias",
    "1,8,9,6,6,3x3 groups=6 pad=1 bias relu6", "2,9,7,16,16,3x3 groups=16 stride=2 pad=1",
    "1,7,8,5,15,5x5 groups=5 pad=2", "1,8,17,6,6,3x3 groups=6 pad=1 layout=nchw relu",
    "1,9,10,6,6,3x3 groups=6 pad=1 dilation=1:2",
    "1,9,20,4,8,3x3 groups=4 stride=2 layout=nchw", "1,8,9,10,10,3x3 groups=10 pad=1 layout=nc4hw4 bias residual",
    "1,7,7,6,12,3x3 groups=6 layout=nc4hw4 dilation=2", "1,5,6,8,8,3x3 groups=8 transposed stride=2 pad=1",
    "1,7,9,8,16,3x3 float16 pad=1 bias relu", "1,6,5,9,7,1x1 float16 layout=nchw",
    "1,8,8,12,8,3x3 float16 layout=nc4hw4", "1,9,7,8,8,3x3 float16 groups=8 pad=1 silu",
    "1,6,7,12,10,3x3 float16-acc16 pad=1 bias",
)  # fmt: skip
"""Small problems on which every kernel is checked."""
