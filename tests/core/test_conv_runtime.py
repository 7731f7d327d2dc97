"""`Conv` on arrays: layouts, operands on the device, weights packed once, and what does not fit."""

from typing import Any

import numpy as np
import pyopencl.array as cla
import pytest

from autotune.errors import ProblemError
from autotune.kernels.conv import ConvProblem
from autotune.kernels.conv.reference import convolved, from_layout, in_layout
from autotune.lookup import TuningTable
from autotune.model.device import Device
from autotune.runtime import Conv, Window
from factories import first_short


@pytest.fixture(scope="module")
def conv(pocl: Device, tmp_path_factory: pytest.TempPathFactory) -> Conv:
    return Conv(pocl.selector, table=TuningTable([pocl], []), binaries=tmp_path_factory.mktemp("programs"))


def drawn(*shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32).astype(dtype)


def expected(text: str, images: Any, weights: Any) -> Any:
    """The sums alone, shape (batch, filters, height, width)."""
    problem = ConvProblem.parse(text)
    return convolved(problem, images.astype(float), weights.astype(float), np.arange(problem.filters))


PADDED = Window(padding=(1, 1, 1, 1))


class TestRuntime:
    @pytest.mark.parametrize("layout", first_short(["nhwc", "nchw", "nc4hw4"], 1))
    def test_numpy_operands(self, conv: Conv, layout: str) -> None:
        images, w, bias = drawn(2, 6, 9, 8), drawn(10, 6, 3, 3), drawn(10)
        added = drawn(2, 10, 9, 8)
        x, residual = (np.ascontiguousarray(in_layout(values, layout)) for values in (images, added))
        window = Window(padding=(1, 1, 1, 1), layout=layout, activation="leaky", slope=0.25)
        found = conv(x, conv.prepare(w), bias=bias, residual=residual, window=window)
        right = expected("2,9,8,6,10,3x3 pad=1", images, w) + bias[:, None, None] + added
        np.testing.assert_allclose(from_layout(found, layout, 10), np.where(right < 0, right / 4, right), atol=1e-4)

    @pytest.mark.long
    def test_steps_groups_and_transposed_windows(self, conv: Conv) -> None:
        images = drawn(1, 6, 9, 8)
        x, w = np.moveaxis(images, 1, 3), drawn(12, 3, 3, 2)
        found = conv(x, conv.prepare(w), window=Window(stride=(2, 1), padding=(1, 0, 0, 1), dilation=(1, 2), groups=2))
        right = expected("1,9,8,6,12,3x2 stride=2:1 pad=1:0:0:1 dilation=1:2 groups=2", images, w)
        np.testing.assert_allclose(np.moveaxis(found, 3, 1), right, atol=1e-4)
        w = drawn(6, 2, 3, 3)
        found = conv(x, conv.prepare(w), window=Window(stride=(2, 2), padding=(1, 1, 0, 0), groups=2, transposed=True))
        right = expected("1,9,8,6,4,3x3 stride=2 pad=1:1:0:0 groups=2 transposed", images, w)
        assert found.shape == (1, 18, 16, 4)
        np.testing.assert_allclose(np.moveaxis(found, 3, 1), right, atol=1e-4)
        w = drawn(6, 1, 3, 3, dtype="float16")
        found = conv(x.astype("float16"), conv.prepare(w), window=Window(padding=(1, 1, 1, 1), groups=6))
        right = expected("1,9,8,6,6,3x3 pad=1 groups=6", images.astype("float16"), w)
        np.testing.assert_allclose(np.moveaxis(found, 3, 1), right, atol=2e-2)

    def test_operands_on_the_device_and_bound_calls(self, conv: Conv) -> None:
        images, w = drawn(1, 5, 7, 6), drawn(7, 5, 3, 3)
        x = cla.to_device(conv.queue, np.ascontiguousarray(np.moveaxis(images, 1, 3)))
        weights, packings = conv.prepare(cla.to_device(conv.queue, w)), conv.stats.packings
        out = cla.zeros(conv.queue, (1, 7, 6, 7), np.float32)
        call = conv.bind(x, weights, out, window=PADDED)
        for factor in (1, 1, 2):
            x.set(np.ascontiguousarray(np.moveaxis(factor * images, 1, 3)))
            right = factor * expected("1,7,6,5,7,3x3 pad=1", images, w)
            np.testing.assert_allclose(np.moveaxis(call().get(), 3, 1), right, atol=1e-4)
        assert conv.stats.packings == packings + 1
        np.testing.assert_allclose(conv(x, weights, window=PADDED).get(), out.get(), atol=1e-4)
        assert conv.stats.packings == packings + 1 and weights.size_bytes > 0
        chosen = conv.choice(x, weights, window=PADDED)
        assert chosen is not None and chosen.configuration.algorithm in ("direct", "winograd")
        weights.release()
        assert weights.size_bytes == 0
        np.testing.assert_allclose(conv(x, weights, window=PADDED).get(), out.get(), atol=1e-4)

    def test_refuses_what_does_not_fit(self, conv: Conv) -> None:
        x, weights = drawn(1, 7, 6, 5), conv.prepare(drawn(8, 5, 3, 3))
        on_device = cla.to_device(conv.queue, drawn(1, 3, 3, 5))
        cases: list[tuple[str, Any]] = [
            ("prepare", lambda: conv(x, drawn(8, 5, 3, 3))),
            ("weights are", lambda: conv.prepare(drawn(8, 5, 3))),
            ("not float32 of", lambda: conv(x[..., :4], weights)),
            ("axes", lambda: conv(x[0], weights)),
            ("axes", lambda: conv(x, weights, window=Window(layout="nc4hw4"))),
            ("the weights are float32", lambda: conv(x.astype("float16"), weights)),
            ("bias is float32 of shape", lambda: conv(x, weights, bias=drawn(7))),
            ("output is float32 of shape", lambda: conv(x, weights, np.empty((1, 7, 6, 8), np.float32))),
            ("groups must", lambda: conv(x, weights, window=Window(groups=0))),
            ("no layout", lambda: conv(x, weights, window=Window(layout="nhcw"))),
            ("larger than the padded image", lambda: conv(x[:, :2], weights)),
            ("shares memory", lambda: conv(on_device, conv.prepare(drawn(5, 5, 3, 3)), on_device, window=PADDED)),
        ]  # fmt: skip
        for message, wrong in cases:
            with pytest.raises(ProblemError, match=message):
                wrong()
