"""The convolutions of published networks, one image at a time, with what networks that are deployed fuse behind them.

Batch normalisation is part of weights and bias. Layers on one pixel, as in squeeze-and-excitation, and fully connected
ones are left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from autotune.kernels.conv.problem import ConvProblem
from autotune.model.trial import Request

_Layers = Iterator[Request]
_Block = tuple[int, int, int, str, int]
"""Of an inverted residual: window, channels between, channels out, activation, stride."""


def _layer(label: str, side: int, channels: int, filters: int, window: int, words: str = "", calls: int = 1) -> Request:
    """Return a layer on a square image with as much padding as leaves its size at a stride of 1."""
    pad = f" pad={window // 2}" if window > 1 else ""
    text = f"1,{side},{side},{channels},{filters},{window}x{window}{pad} bias {words}"
    return Request(problem=ConvProblem.parse(text), calls=calls, label=label)


def _inverted_residuals(blocks: Iterable[_Block], channels: int) -> _Layers:
    side = 112
    for window, between, out, activation, stride in blocks:
        if between != channels:
            yield _layer("expand", side, channels, between, 1, activation)
        words = f"{activation} groups={between} stride={stride}"
        yield _layer("depthwise", side, between, between, window, words)
        side //= stride
        yield _layer("project", side, between, out, 1, "residual" if stride == 1 and channels == out else "")
        channels = out


def _multiplied(rows: Iterable[tuple[int, int, int, int, int]], channels: int) -> Iterator[_Block]:
    """Yield blocks with ReLU6 from rows of window, factor of the channels between, channels out, repeats, stride."""
    for window, factor, out, repeats, stride in rows:
        for number in range(repeats):
            yield window, factor * channels, out, "relu6", stride if number == 0 else 1
            channels = out


def _with_relu6(rows: Iterable[tuple[int, int, int, int, int]]) -> _Layers:
    """Yield a network of such blocks, behind its first layer and before its last."""
    yield _layer("first", 224, 3, 32, 3, "relu6 stride=2")
    yield from _inverted_residuals(_multiplied(rows, 32), 32)
    yield _layer("last", 7, 320, 1280, 1, "relu6")


def _mobilenetv2() -> _Layers:
    """Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018, table 2; width 1.0."""
    rows = (
        (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (3, 6, 32, 3, 2), (3, 6, 64, 4, 2), (3, 6, 96, 3, 1), (3, 6, 160, 3, 2),
        (3, 6, 320, 1, 1),
    )  # fmt: skip
    yield from _with_relu6(rows)


def _mobilenetv3() -> _Layers:
    """Howard et al., Searching for MobileNetV3, 2019, table 1: large."""
    yield _layer("first", 224, 3, 16, 3, "hard_swish stride=2")
    blocks = (
        (3, 16, 16, "relu", 1), (3, 64, 24, "relu", 2), (3, 72, 24, "relu", 1), (5, 72, 40, "relu", 2),
        (5, 120, 40, "relu", 1), (5, 120, 40, "relu", 1), (3, 240, 80, "hard_swish", 2), (3, 200, 80, "hard_swish", 1),
        (3, 184, 80, "hard_swish", 1), (3, 184, 80, "hard_swish", 1), (3, 480, 112, "hard_swish", 1),
        (3, 672, 112, "hard_swish", 1), (5, 672, 160, "hard_swish", 2), (5, 960, 160, "hard_swish", 1),
        (5, 960, 160, "hard_swish", 1),
    )  # fmt: skip
    yield from _inverted_residuals(blocks, 16)
    yield _layer("last", 7, 160, 960, 1, "hard_swish")


def _efficientnet() -> _Layers:
    """EfficientNet-Lite0 of TensorFlow's repository tpu: EfficientNet-B0 with ReLU6, without squeeze-and-excitation."""
    rows = (
        (3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1), (5, 6, 192, 4, 2),
        (3, 6, 320, 1, 1),
    )  # fmt: skip
    yield from _with_relu6(rows)


def _resnet50() -> _Layers:
    """He et al., Deep Residual Learning, 2015, table 1; strides in the 3x3 as in torchvision (version 1.5)."""
    yield _layer("conv1", 224, 3, 64, 7, "relu stride=2")
    channels, side = 64, 56
    for number, (width, repeats) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for block in range(repeats):
            stride = 2 if block == 0 and number > 2 else 1
            yield _layer(f"conv{number}_x reduce", side, channels, width, 1, "relu")
            yield _layer(f"conv{number}_x 3x3", side, width, width, 3, f"relu stride={stride}")
            if block == 0:
                yield _layer(f"conv{number}_x shortcut", side, channels, 4 * width, 1, f"stride={stride}")
            channels, side = 4 * width, side // stride
            yield _layer(f"conv{number}_x expand", side, width, channels, 1, "relu residual")


def _yolo_like() -> _Layers:
    """A backbone of small residual blocks on 640 x 640 pixels, with the sizes of the nano models of recent YOLOs."""
    yield _layer("first", 640, 3, 16, 3, "silu stride=2")
    side, channels = 320, 16
    for width, repeats in ((32, 1), (64, 2), (128, 2), (256, 1)):
        yield _layer("down", side, channels, width, 3, "silu stride=2")
        side, channels, half = side // 2, width, width // 2
        yield _layer("split", side, width, width, 1, "silu")
        yield _layer("block", side, half, half, 3, "silu", calls=repeats)
        yield _layer("block", side, half, half, 3, "silu residual", calls=repeats)
        yield _layer("join", side, half * (2 + repeats), width, 1, "silu")
    yield _layer("pyramid in", side, 256, 128, 1, "silu")
    yield _layer("pyramid out", side, 512, 256, 1, "silu")


def _sd_unet() -> _Layers:
    """Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, 2022: the 3x3 convolutions of the
    U-Net of version 1, on 64 x 64 latents."""
    yield _layer("in", 64, 4, 320, 3)
    for side, into, out, within in (
        (64, (), 320, 7), (32, (320, 1920, 1280, 960), 640, 6), (16, (640, 2560, 2560, 1920), 1280, 6),
        (8, (2560, 2560, 2560), 1280, 11), (64, (960, 640, 640), 320, 0),
    ):  # fmt: skip
        for channels in into:
            yield _layer("block", side, channels, out, 3)
        if within:
            yield _layer("block", side, out, out, 3, calls=within)
    for side, channels in ((64, 320), (32, 640), (16, 1280)):
        yield _layer("down", side, channels, channels, 3, "stride=2")
    for side, channels in ((16, 1280), (32, 1280), (64, 640)):
        yield _layer("up", side, channels, channels, 3)
    yield _layer("out", 64, 320, 4, 3)


NETWORKS: Mapping[str, tuple[str, Callable[[], _Layers]]] = {
    "mobilenetv2": ("MobileNetV2, one image of 224 x 224", _mobilenetv2),
    "mobilenetv3": ("MobileNetV3 large, one image of 224 x 224: its convolutions", _mobilenetv3),
    "resnet50": ("ResNet-50, one image of 224 x 224", _resnet50),
    "efficientnet-lite0": ("EfficientNet-Lite0, one image of 224 x 224: its convolutions", _efficientnet),
    "yolo-like": ("a small YOLO backbone, one image of 640 x 640: its convolutions", _yolo_like),
    "sd-unet": ("the U-Net of Stable Diffusion 1, 64 x 64 latents: its 3x3 convolutions", _sd_unet),
}
"""What a network is, and its layers, without merging equal ones, by the name of the preset."""
