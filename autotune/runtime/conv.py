"""`Conv`: convolutions of images by the tuned kernels of a device."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.device.arrays import Kind, kind_of
from autotune.errors import ProblemError
from autotune.kernels.conv import FAMILY, ConvProblem
from autotune.kernels.conv.problem import WORDS
from autotune.runtime.choice import Choice, Weights
from autotune.runtime.executor import Operand, form
from autotune.runtime.on_device import Bound, OnDevice, ShapedRequest, check_contiguous, check_shaped
from autotune.runtime.prepared import Prepared


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a window goes over images, and what follows the sums, alike in all calls of a layer of a network."""

    stride: tuple[int, int] = (1, 1)
    """Along y and x, as for `dilation`."""
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Zeros at the top, the left, the bottom and the right; of a transposed window, pixels of the output left out."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    transposed: bool = False
    """Whether each pixel of the input spreads the window over the output."""
    layout: str = "nhwc"
    """Of images: nhwc, nchw or nc4hw4."""
    activation: str = "none"
    """none, relu, relu6, silu, hard_swish or leaky."""
    slope: float = 0.01
    """What `leaky` multiplies negative numbers by."""
    half_sums: bool = False
    """Whether float16 is added up in float16."""


PLAIN = Window()


class PreparedFilters(Prepared):
    """Weights of a convolution, packed on the device into each layout that kernels need; made by `Conv.prepare`."""

    name = "the weights"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.operand.shape)

    def __repr__(self) -> str:
        return f"<PreparedFilters {self.shape} {self.operand.dtype}, packed in {len(self._packed)} layouts>"


class Conv(OnDevice):
    """``activation(convolution(x, weights) + bias + residual)`` by the tuned kernel for each size.

    Memory, copies, the return of calls and threads are as with `Gemm`.
    """

    _family = FAMILY

    def __call__(
        self,
        x: Any,
        weights: PreparedFilters,
        out: Any = None,
        *,
        window: Window = PLAIN,
        bias: Any = None,
        residual: Any = None,
    ) -> Any:
        """Return the convolution of images, of their type, float32 or float16, in `out` where given.

        x has shape (batch, height, width, channels), in the layout nchw (batch, channels, height, width), in nc4hw4
        (batch, ceil(channels / 4), height, width, 4) with zeros behind the last channel; the result and `residual` are
        in the same layout, `bias` has shape (filters,). All are NumPy or pyopencl arrays of one type. Raises
        ProblemError and KernelError.
        """
        request, values, scalars = self._read(x, weights, out, window, bias, residual)
        self._call(request, values, scalars, reads_outputs=False)
        return values[-1]

    def bind(
        self,
        x: Any,
        weights: PreparedFilters,
        out: Any = None,
        *,
        window: Window = PLAIN,
        bias: Any = None,
        residual: Any = None,
    ) -> Bound:
        """Return a callable that repeats one call at less cost per call; the arguments are those of a call.

        It reads what x, bias and residual contain when it is called.
        """
        request, values, scalars = self._read(x, weights, out, window, bias, residual)
        return self._bind(request, values, values[-1], scalars, reads_outputs=False)

    def prepare(self, weights: Any) -> PreparedFilters:
        """Return weights for use in calls, a NumPy or pyopencl array, float32 or float16.

        Their shape is (filters, channels / groups, height, width), for a transposed window (channels, filters / groups,
        height, width). Each layout is packed once, on the device, when a call first needs it; `release` frees all of
        them. The weights must not change while this is in use. Raises ProblemError.
        """
        kind = kind_of(weights)
        if kind not in (Kind.HOST, Kind.SHARED, Kind.ARRAY) or len(weights.shape) != 4:
            raise ProblemError(f"the weights are a {type(weights).__name__}", hint="pass an array with four axes")
        if kind is Kind.HOST:
            weights = np.ascontiguousarray(weights)
        else:
            check_contiguous("the weights", weights)
            self._adopt("the weights", weights, kind)
        return PreparedFilters(self, self.stats, weights, kind, tuple(weights.shape), weights.dtype.name)

    def choice(
        self, x: Any, weights: PreparedFilters, *, window: Window = PLAIN, bias: Any = None, residual: Any = None
    ) -> Choice | None:
        """Return the configuration that ran such operands, and the reason; None before the first call."""
        return self._read(x, weights, None, window, bias, residual)[0].choice

    def _read(
        self, x: Any, weights: PreparedFilters, out: Any, window: Window, bias: Any, residual: Any
    ) -> tuple[ShapedRequest, tuple[Any, ...], tuple[float, ...]]:
        """Return the request of a call, its operands in order, and its scalar; a missing result is allocated."""
        if getattr(weights, "owner", None) is not self:
            raise ProblemError("the weights were not prepared by this Conv", hint="pass what prepare returns")
        named = {"input": x, "bias": bias, "residual": residual, "output": out}
        forms = tuple(None if value is None else form(value, name) for name, value in named.items())
        key = (forms, weights.form, window)
        request = self._request(key, lambda: _request(named, weights, window))
        return request, self._in_order(request, {**named, "weights": weights}), (float(window.slope),)


def _request(named: dict[str, Any], weights: PreparedFilters, window: Window) -> ShapedRequest:
    """Read the request of such operands. Raises ProblemError."""
    for name, value in named.items():
        check_shaped(name, value)
    p = _problem(named, weights, window)
    shape = p.stored_shape(p.filters, p.out_height, p.out_width)
    wanted = {
        "input": p.stored_shape(p.channels, p.height, p.width), "bias": (p.filters,), "residual": shape,
        "output": shape,
    }  # fmt: skip
    given = {name: value for name, value in named.items() if value is not None}
    for name, value in given.items():
        if value.dtype.name != p.dtype or tuple(value.shape) != wanted[name]:
            found = f"{value.dtype} of shape {tuple(value.shape)}"
            raise ProblemError(f"{name} is {found}, not {p.dtype} of {wanted[name]}")
        if kind_of(value) is not Kind.HOST:
            check_contiguous(name, value)
    kinds = {name: kind_of(value) for name, value in given.items()}
    kind_of_input = kinds["input"]
    assert kind_of_input
    operands = [
        Operand("input", kind_of_input, "x"), Operand("weights", weights.kind, "weights"),
        *(Operand(name, kind, name) for name, kind in kinds.items() if kind and name in ("bias", "residual")),
        Operand("output", kinds.get("output") or kind_of_input, "out", is_written=True),
    ]  # fmt: skip
    return ShapedRequest(
        problem=p, weights=Weights.PACKED_ONCE, constant="weights", operands=tuple(operands), shape=shape, dtype=p.dtype
    )


def _problem(named: dict[str, Any], weights: PreparedFilters, window: Window) -> ConvProblem:
    x = named["input"]
    shape = tuple(int(size) for size in x.shape)
    if len(shape) != (5 if window.layout == "nc4hw4" else 4) or x.dtype.name not in WORDS["mode"]:
        hint = f"images in {window.layout} have {5 if window.layout == 'nc4hw4' else 4} axes, of float32 or float16"
        raise ProblemError(f"x is {x.dtype} of shape {shape}", hint=hint)
    if weights.operand.dtype.name != x.dtype.name:
        raise ProblemError(f"x is {x.dtype}, the weights are {weights.operand.dtype}")
    height, width = shape[1:3] if window.layout == "nhwc" else shape[2:4]
    outer, inner, kernel_height, kernel_width = weights.shape
    channels, filters = (outer, inner) if window.transposed else (inner, outer)
    of_groups = max(window.groups, 1)
    return ConvProblem(
        batch=shape[0], height=height, width=width, kernel_height=kernel_height, kernel_width=kernel_width,
        channels=channels if window.transposed else channels * of_groups,
        filters=filters * of_groups if window.transposed else filters,
        **dict(zip(("stride_y", "stride_x"), window.stride, strict=True)),
        **dict(zip(("pad_top", "pad_left", "pad_bottom", "pad_right"), window.padding, strict=True)),
        **dict(zip(("dilation_y", "dilation_x"), window.dilation, strict=True)),
        groups=window.groups, direction="transposed" if window.transposed else "plain", layout=window.layout,
        mode="float16-acc16" if window.half_sums else x.dtype.name,
        bias="unbiased" if named["bias"] is None else "bias",
        residual="direct" if named["residual"] is None else "residual", activation=window.activation,
    )  # fmt: skip
