"""Convolutional networks by their configurations: ResNet and MobileNet of Hugging Face; others come as ONNX.

Norms after convolutions are counted as part of these, as engines fold them; so are the activations.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.networks.operation import Convolution, Network, Operation, convolution, other, product, reduction, step
from autotune.networks.settings import Settings, Workload

KNOWN = ("resnet", "mobilenet_v1", "mobilenet_v2")
_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
"""Filters and stride of each pair of convolutions after the first."""
_V2 = (
    (24, 2), (24, 1), (32, 2), (32, 1), (32, 1), (64, 2), (64, 1), (64, 1), (64, 1), (96, 1), (96, 1), (96, 1),
    (160, 2), (160, 1), (160, 1), (320, 1),
)  # fmt: skip
"""Filters and stride of each inverted residual after the first."""


def network(kind: str, settings: Settings, workload: Workload, dtype: str, weight_bytes: int) -> Network:
    """Return the network of a configuration. Raises UsageError."""
    side = settings.size("image_size", default=224)
    size = workload.image or (side, side)
    net = _Layers(batch=workload.batch, size=size, channels=settings.size("num_channels", default=3), dtype=dtype)
    operations = [
        *{"resnet": _resnet, "mobilenet_v1": _mobilenet_v1, "mobilenet_v2": _mobilenet_v2}[kind](net, settings)
    ]
    pixels = net.size[0] * net.size[1]
    operations.append(reduction("pool", net.batch * net.channels, pixels, "mean", dtype=dtype))
    if labels := settings.labels(1):
        operations.append(product("classifier", net.batch, labels, net.channels, weights=dtype))
    title = f"{workload.batch} x {size[0]}x{size[1]}"
    return Network(
        title=f"{kind} for images of {size[0]}x{size[1]}",
        steps=(step(title, operations, workload.batch, "images"),),
        weight_bytes=weight_bytes,
        notes=("norms are counted as part of the convolutions before them",),
    )


@dataclass
class _Layers:
    """What a network has become up to a layer: convolutions change its size and channels."""

    batch: int
    size: tuple[int, int]
    channels: int
    dtype: str
    is_padded_behind: bool = False
    """Whether padding is what TensorFlow calls SAME, which has more of it at the end."""

    def convolve(self, label: str, filters: int, window: int, stride: int, words: str, groups: int = 1) -> Operation:
        one = Convolution(
            batch=self.batch, size=self.size, channels=self.channels, filters=filters, window=(window, window),
            stride=(stride, stride), padding=self._padding(window, stride), groups=groups, words=words,
        )  # fmt: skip
        self.size, self.channels = one.output_size, filters
        return convolution(label, one, self.dtype)

    def _padding(self, window: int, stride: int) -> tuple[int, int, int, int]:
        if not self.is_padded_behind:
            return (window // 2,) * 2 + (window // 2,) * 2
        needed = [max(0, (-(-n // stride) - 1) * stride + window - n) for n in self.size]
        top, left = (n // 2 for n in needed)
        return top, left, needed[0] - top, needed[1] - left

    def add(self) -> Operation:
        return other("add", self.batch * self.size[0] * self.size[1] * self.channels, reads=2, dtype=self.dtype)


def _resnet(net: _Layers, settings: Settings) -> Iterator[Operation]:
    yield net.convolve("stem", settings.size("embedding_size", default=64), 7, 2, "bias relu")
    net.size = (net.size[0] + 1) // 2, (net.size[1] + 1) // 2
    yield other("max pool", net.batch * net.channels * net.size[0] * net.size[1], reads=9, flops=9, dtype=net.dtype)
    is_bottleneck = settings.text("layer_type") != "basic"
    widths, depths = settings.sizes("hidden_sizes"), settings.sizes("depths")
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=False)):
        shrinks = stage > 0 or settings.truth("downsample_in_first_stage", default=False)
        for number in range(min(depth, 256)):
            stride = 2 if number == 0 and shrinks else 1
            if stride > 1 or net.channels != width:
                yield replace(net).convolve("shortcut", width, 1, stride, "bias")
            if is_bottleneck:
                first = stride if settings.truth("downsample_in_bottleneck", default=False) else 1
                yield net.convolve("reduce", max(1, width // 4), 1, first, "bias relu")
                yield net.convolve("3x3", max(1, width // 4), 3, stride // first, "bias relu")
                yield net.convolve("expand", width, 1, 1, "bias")
            else:
                yield net.convolve("3x3", width, 3, stride, "bias relu")
                yield net.convolve("3x3", width, 3, 1, "bias")
            yield net.add()


def _mobilenet_v1(net: _Layers, settings: Settings) -> Iterator[Operation]:
    depth = _Depth(settings)
    net.is_padded_behind = settings.truth("tf_padding", default=True)
    yield net.convolve("stem", depth(32), 3, 2, "bias relu6")
    for filters, stride in _V1:
        yield net.convolve("depthwise", net.channels, 3, stride, "bias relu6", groups=net.channels)
        yield net.convolve("pointwise", depth(filters), 1, 1, "bias relu6")


def _mobilenet_v2(net: _Layers, settings: Settings) -> Iterator[Operation]:
    depth, ratio = _Depth(settings), settings.size("expand_ratio", default=6)
    net.is_padded_behind = settings.truth("tf_padding", default=True)
    yield net.convolve("stem", depth(32), 3, 2, "bias relu6")
    yield net.convolve("depthwise", net.channels, 3, 1, "bias relu6", groups=net.channels)
    yield net.convolve("project", depth(16), 1, 1, "bias")
    for filters, stride in _V2:
        before = net.channels
        yield net.convolve("expand", before * ratio, 1, 1, "bias relu6")
        yield net.convolve("depthwise", net.channels, 3, stride, "bias relu6", groups=net.channels)
        yield net.convolve("project", depth(filters), 1, 1, "bias")
        if stride == 1 and net.channels == before:
            yield net.add()
    is_fine = settings.truth("finegrained_output", default=True) and settings.fraction("depth_multiplier") < 1
    yield net.convolve("last", 1280 if is_fine else depth(1280), 1, 1, "bias relu6")


class _Depth:
    """Channels times the multiplier of a configuration, in whole eighths as TensorFlow's rule rounds them."""

    def __init__(self, settings: Settings) -> None:
        stated = settings.get("depth_multiplier")
        self._factor = stated if isinstance(stated, int | float) and 0 < stated <= 16 else 1
        self._step = settings.size("depth_divisible_by", default=8)
        self._least = settings.size("min_depth", default=8)

    def __call__(self, channels: int) -> int:
        exact = channels * self._factor
        rounded = max(self._least, int(exact + self._step / 2) // self._step * self._step)
        return rounded + self._step if rounded < 0.9 * exact else rounded
