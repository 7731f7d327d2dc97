"""Networks of ONNX graphs against published counts; hostile files."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.networks.onnx_graph import MAX_FIELD, without_weights
from factories import Run
from model_files import calls, convolution_weights, labelled, read, size

onnx = pytest.importorskip("onnx")


def light(name: str) -> Path:
    """A published network whose weights the package leaves out of its test data."""
    path = Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"
    if not path.exists():
        pytest.skip(f"not covered: this version of onnx has no {path.name}")
    return path


GRAPHS = {
    "bvlc_alexnet": (60_965_224 - 10_568, 654_560_384, {"LRN": 2, "MaxPool": 3, "Relu": 2}),
    "vgg19": (143_667_240 - 14_696, 19_632_062_464, {"MaxPool": 5, "Relu": 2}),
    "squeezenet": (1_235_496 - 3_944, 349_151_936, {"MaxPool": 3, "Concat": 8}),
    "densenet121": (7_978_856 - 83_648 - 1000, 2_834_161_664,
                    {"BatchNormalization": 121, "Mul": 121, "Add": 121, "Relu": 121, "MaxPool": 1, "Concat": 58,
                     "AveragePool": 3}),
    "inception_v1": (6_998_552 - 8_280, 1_431_556_352, {"MaxPool": 13, "LRN": 2, "Concat": 9, "AveragePool": 1}),
    "resnet50": (25_557_032 - 53_120 - 1000, 4_089_184_256,
                 {"BatchNormalization": 53, "Relu": 49, "MaxPool": 1, "Sum": 16, "AveragePool": 1}),
}  # fmt: skip
"""Published parameters less those of biases and norms, multiply-adds, and operators without a family."""


@pytest.mark.parametrize("name", GRAPHS)
def test_published_graphs(name: str) -> None:
    weights, multiply_adds, others = GRAPHS[name]
    network = read(light(name))
    (step,) = network.steps
    gemms = [one for one in step.operations if one.family == "gemm"]
    products = sum(one.calls * getattr(one.problem, "n", 0) * getattr(one.problem, "k", 0) for one in gemms)
    assert convolution_weights(step) + products == weights
    assert sum(one.flops for one in step.operations if one.family in ("conv", "gemm")) == 2 * multiply_adds
    assert {one.label: one.calls for one in step.operations if not one.family} == others
    assert not network.notes


def graph_file(
    path: Path, nodes: Sequence[Any], inputs: dict[str, Sequence[int | str]], constants: dict[str, Sequence[int]]
) -> Path:
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, floats, shape) for name, shape in inputs.items()]
    tensors = [onnx.TensorProto(name=name, data_type=floats, dims=dims) for name, dims in constants.items()]
    for tensor in tensors:
        size = 4
        for dim in tensor.dims:
            size *= dim
        tensor.raw_data = bytes(min(size, 2**20))
    shape = helper.make_tensor("shape", onnx.TensorProto.INT64, [4], [0, 0, 4, 16])
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], floats, None)]
    graph = helper.make_graph(nodes, "made", values, outputs, [*tensors, shape])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_a_transformer_with_free_axes(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("LayerNormalization", ["x", "scale", "bias"], ["normed"]),
        node("MatMul", ["normed", "wq"], ["q"]),
        node("Reshape", ["q", "shape"], ["q4"]),
        node("Transpose", ["q4"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["q4"], ["kt"], perm=[0, 2, 3, 1]),
        node("MatMul", ["qt", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "qt"], ["o"]),
        node("Gemm", ["flat", "wg", "bg"], ["g"], transB=1),
        node("ReduceMean", ["o"], ["mean"], axes=[2, 3], keepdims=0),
        node("Add", ["mean", "mean"], ["y"]),
    ]
    path = graph_file(
        tmp_path / "model.onnx", nodes, {"x": ["batch", "tokens", 64], "flat": [3, 64]},
        {"scale": [64], "bias": [64], "wq": [64, 64], "wg": [10, 64], "bg": [10]},
    )  # fmt: skip
    network = read(path, prompt=32, batch=2)
    (step,) = network.steps
    assert calls(step, "gemm") == {
        "64x64x64 constant=b": 1, "32x32x16 batch=8": 1, "32x16x32 batch=8": 1, "3x10x64 nt constant=b": 1,
    }  # fmt: skip
    assert calls(step, "rows") == {"64x64 layer_norm": 1, "256x32 softmax": 1}
    assert calls(step, "reduce") == {"8x512 mean": 1}
    assert {one.label: one.calls for one in step.operations if not one.family} == {"Transpose": 2, "Add": 1}
    assert (step.amount, network.notes) == (2, ())


def test_convolutions_of_every_kind(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], strides=[2, 2], pads=[0, 0, 1, 1], kernel_shape=[3, 3]),
        node("Clip", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], group=8, auto_pad="SAME_UPPER", strides=[2, 1]),
        node("Conv", ["c2", "w3"], ["c3"], dilations=[2, 2]),
        node("ConvTranspose", ["c3", "w4"], ["c4"], strides=[2, 2]),
        node("GlobalAveragePool", ["c4"], ["g"]),
        node("Resize", ["c4", "", "scales"], ["y"], mode="nearest"),
    ]
    path = graph_file(
        tmp_path / "model.onnx", nodes, {"x": ["N", 3, "H", "W"]},
        {"w1": [8, 3, 3, 3], "b1": [8], "w2": [8, 1, 3, 3], "w3": [16, 8, 3, 3], "w4": [16, 4, 2, 2], "scales": [4]},
    )  # fmt: skip
    network = read(path, image=(32, 48), batch=2)
    (step,) = network.steps
    assert calls(step, "conv") == {
        "2,32,48,3,8,3x3 stride=2 pad=0:0:1:1 layout=nchw bias relu6": 1,
        "2,16,24,8,8,3x3 stride=2x1 pad=0:1:1:1 groups=8 layout=nchw": 1,
        "2,8,24,8,16,3x3 dilation=2 layout=nchw": 1,
        "2,4,20,16,4,2x2 stride=2 transposed layout=nchw": 1,
    }
    flops = 2 * 2 * (16 * 24 * 8 * 27 + 8 * 24 * 8 * 9 + 4 * 20 * 16 * 72 + 4 * 20 * 16 * 16)
    assert sum(one.flops for one in step.operations if one.family == "conv") == flops
    assert calls(step, "reduce") == {"8x320 mean": 1}
    assert network.notes in ((), ("not counted, since their sizes are not known: 1 x Resize",))


def test_products_of_integers_are_listed_with_their_work(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["c"]),
        node("MatMulInteger", ["x", "m", "z", "z"], ["y"]),
        node("If", ["flag"], ["branch"]),
    ]
    path = graph_file(
        tmp_path / "model.onnx", nodes, {"x": [1, 3, 8, 8], "flag": [1]},
        {"s": [1], "z": [1], "w": [4, 3, 3, 3], "m": [8, 5]},
    )  # fmt: skip
    network = read(path)
    (step,) = network.steps
    assert labelled(step, "QLinearConv").flops == 2 * 4 * 6 * 6 * 27
    assert labelled(step, "MatMulInteger").flops == 2 * 3 * 8 * 8 * 5
    assert {one.problem for one in step.operations} == {None}
    assert "not counted: the bodies of If" in network.notes


def test_convolutions_of_one_dimension_and_of_three(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2], pads=[1, 1]),
        node("GlobalMaxPool", ["c"], ["g"]),
        node("Conv", ["v", "u"], ["d"]),
    ]
    path = graph_file(
        tmp_path / "model.onnx", nodes, {"x": [1, 80, 100], "v": [1, 2, 4, 4, 4]},
        {"w": [64, 80, 3], "u": [2, 2, 3, 3, 3]},
    )  # fmt: skip
    (step,) = read(path).steps
    assert calls(step, "conv") == {"1,1,100,80,64,1x3 stride=1x2 pad=0:1:0:1 layout=nchw": 1}
    assert calls(step, "reduce") == {"64x50 max": 1}
    (other,) = (one for one in step.operations if one.family == "")
    assert (other.label, other.flops) == ("Conv", 2 * 2 * 8 * 2 * 27)


def test_a_graph_that_computes_nothing(tmp_path: Path, run: Run) -> None:
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    path = graph_file(tmp_path / "model.onnx", nodes, {"x": [1, 3]}, {})
    assert "without a kernel here: <0.1%" in run(["model", str(path)]).out


def test_a_cache_has_the_depth_that_is_asked_for(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("MatMul", ["q", "keys"], ["scores"])]
    inputs: dict[str, Sequence[int | str]] = {"q": ["batch", 8, "tokens", 64], "keys": ["batch", 8, 64, "past_length"]}
    path = graph_file(tmp_path / "model.onnx", nodes, inputs, {})
    for workload, shape in (({"depth": 100}, "1x100x64 batch=8"), ({"prompt": 16}, "16x16x64 batch=8")):
        (step,) = read(path, **workload).steps
        assert calls(step, "gemm") == {shape: 1}


def test_fixed_sizes_stay(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    path = graph_file(tmp_path / "model.onnx", nodes, {"x": [1, 3, 8, 8]}, {})
    assert read(path).steps[0].bytes_moved == 2 * 4 * 3 * 64
    for workload in ({"batch": 2}, {"image": (9, 9)}):
        with pytest.raises(UsageError, match=r"has a fixed size of"):
            read(path, **workload)


def test_weights_are_left_out_before_anything_is_parsed(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = graph_file(tmp_path / "model.onnx", nodes, {"x": [1, 256]}, {"w": [256, 1024]})
    kept = without_weights(path.read_bytes())
    assert path.stat().st_size > 2**20 > 1000 > len(kept)
    assert size(labelled(read(path).steps[0], "MatMul")) == "1x1024x256 constant=b"


def field_of(number: int, content: bytes) -> bytes:
    size, out = len(content), bytearray([number << 3 | 2])
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size]) + content


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff" * 20, "is cut off, or no ONNX file"),
        (b"\x0b\x00", "is cut off"),
        (field_of(7, b"\x0a\xff\x01"), "is cut off"),
        (field_of(7, field_of(2, bytes(MAX_FIELD + 1))), r"has a field of \d+ bytes in a graph"),
        (field_of(7, field_of(1, field_of(4, b"\xff\xfe"))), "not a valid ONNX file"),
        (field_of(2, b"nobody"), "has no graph"),
        (field_of(7, field_of(5, field_of(8, b"w") + b"\x08" + b"\xff" * 9 + b"\x01")), "has no graph|tensor of shape"),
    ],
)
def test_hostile_graphs(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"model.onnx: .*({message})"):
        read(path)


def test_every_cut_of_a_graph_is_refused_or_read(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = graph_file(tmp_path / "model.onnx", nodes, {"x": [1, 4]}, {"w": [4, 4]})
    whole = path.read_bytes()
    for end in range(1, len(whole)):
        path.write_bytes(whole[:end])
        with suppress(UsageError):
            read(path)


def test_attributes_that_do_not_fit_are_no_crash(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Gemm", ["x", "w"], ["a"]),
        node("Conv", ["x", "w"], ["b"], strides=[0, 0]),
        node("Softmax", ["x"], ["c"], axis=9),
    ]
    network = read(graph_file(tmp_path / "model.onnx", nodes, {"x": [1, 3, 8, 8]}, {"w": [4, 3, 3, 3]}))
    assert "not counted, since their sizes are not known" in network.notes[0]
