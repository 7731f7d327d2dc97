"""Presets against the totals published for each network, and files of shapes, good and hostile."""

from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.kernels.conv import ConvProblem
from autotune.kernels.gemm import GemmProblem
from autotune.kernels.qgemm import QGemmProblem
from autotune.kernels.reduce import ReduceProblem
from autotune.kernels.shapes import MAX_FILE_BYTES, merge, parse_lines, read_shapes, size_names
from autotune.model.trial import Request
from autotune.networks.presets import NETWORKS, PRESETS, preset


def _multiply_adds(requests: list[Request]) -> int:
    return sum(request.calls * request.problem.flops // 2 for request in requests)


def _calls(requests: list[Request]) -> dict[str, int]:
    return {request.problem.label: request.calls for request in requests}


def _elements_of_b(requests: list[Request], *labels: str) -> int:
    """Over all products with these labels, or over all."""
    return sum(
        request.calls * request.problem.batch * request.problem.n * request.problem.k
        for request in requests
        if isinstance(request.problem, GemmProblem) and (not labels or request.label in labels)
    )


@pytest.mark.parametrize("name", [name for name, entry in PRESETS.items() if not entry.group])
def test_every_preset_lists_distinct_labelled_products(name: str) -> None:
    requests = preset(name)
    assert len({request.problem for request in requests}) == len(requests) > 5
    assert all(request.calls >= 1 and request.label for request in requests)


def test_resnet50_matches_published_totals() -> None:
    requests = preset("resnet50")
    assert _multiply_adds(requests) == 4_089_184_256  # torchvision tells 4.09 GFLOPS, counting multiply-adds
    assert sum(request.calls for request in requests) == 54  # 53 convolutions and one fully connected layer
    assert len(requests) == 21
    weights = (r.calls * r.problem.m * r.problem.k for r in requests if isinstance(r.problem, GemmProblem))
    assert sum(weights) == 23_454_912 + 2048 * 1000
    # Strides are in the 3x3.
    calls = _calls(requests)
    assert calls["64x12544x147"] == 1
    assert calls["128x3136x256"] == 1  # the reduction before the stride still sees 56 x 56 pixels
    assert calls["256x196x2304"] == 6


def test_mobilenetv2_matches_published_totals_with_its_depthwise_layers() -> None:
    layers = preset("mobilenetv2", family="conv")
    depthwise = [one for one in layers if isinstance(one.problem, ConvProblem) and one.problem.groups > 1]
    total = _multiply_adds(layers) + 1280 * 1000
    assert total == 300_774_272  # torchvision tells 0.30 GFLOPS
    assert (sum(layer.calls for layer in layers), sum(layer.calls for layer in depthwise)) == (52, 17)
    requests = preset("mobilenetv2")
    assert _multiply_adds(requests) == total - _multiply_adds(depthwise)
    assert sum(request.calls for request in requests) == 52 - 17 + 1
    calls = _calls(requests)
    assert (calls["32x12544x27"], calls["384x196x64"], calls["320x49x960"], calls["1000x1x1280"]) == (1, 4, 1, 1)


def test_networks_as_convolutions_match_published_totals() -> None:
    found = {name: preset(name, family="conv") for name in ("resnet50", "mobilenetv2", "sd-unet")}
    assert _multiply_adds(found["resnet50"]) == 4_089_184_256 - 2048 * 1000
    assert _multiply_adds(found["mobilenetv2"]) == 300_774_272 - 1280 * 1000
    assert {name: sum(r.calls for r in requests) for name, requests in found.items()} == {
        "resnet50": 53, "mobilenetv2": 52, "sd-unet": 22 * 2 + 3 + 3 + 2,
    }  # fmt: skip
    # The paper states 0.22 billion multiply-adds for MobileNetV3 large; 4 million are on one pixel or fully connected.
    assert _multiply_adds(preset("mobilenetv3", family="conv")) == pytest.approx(217e6, rel=0.03)
    assert preset("mobilenetv3") == preset("mobilenetv3", family="conv"), "it has no products"
    assert {request.problem.family for request in preset("resnet50")} == {"gemm"}


def test_layers_meet_in_size() -> None:
    """Each reads what one before it has written."""
    for name in ("resnet50", "mobilenetv2", "mobilenetv3", "efficientnet-lite0"):
        written = {(3, 224), (64, 56)}  # pixels are pooled behind the first of ResNet-50
        for request in NETWORKS[name][1]():
            layer = request.problem
            assert isinstance(layer, ConvProblem) and (layer.channels, layer.height) in written, (name, layer.label)
            written.add((layer.filters, layer.out_height))


def test_bert_base_matches_published_totals() -> None:
    requests = preset("bert-base")
    # 22.5 GFLOP are told for 128 tokens (Jiao et al., TinyBERT, 2019); the rest is no matrix product.
    assert 2 * _multiply_adds(requests) == pytest.approx(22.5e9, rel=0.01)
    activations = _elements_of_b(requests, "attention scores", "attention context")
    assert _elements_of_b(requests) - activations - 768**2 == 12 * 7_077_888
    assert _calls(requests)["128x128x64 nt batch=12"] == 12
    assert _calls(requests)["128x64x128 batch=12"] == 12


@pytest.mark.parametrize(("name", "tokens"), [("llama-1b-prefill", 128), ("llama-1b-decode", 1)])
def test_llama_multiplies_by_every_published_weight(name: str, tokens: int) -> None:
    requests = preset(name)
    attention = _elements_of_b(requests, "attention scores", "attention context")
    norms = 33 * 2048
    assert _elements_of_b(requests) - attention + norms == 1_235_814_400
    assert {request.problem.size_vector[0] for request in requests} == {1, tokens}


def test_llama_attends_with_every_head_to_the_whole_context() -> None:
    calls = _calls(preset("llama-1b-decode"))
    assert (calls["1x1024x64 nt batch=32"], calls["1x64x1024 batch=32"]) == (16, 16)
    attention = [r for r in preset("llama-1b-prefill") if r.label in ("attention scores", "attention context")]
    assert _multiply_adds(attention) == 16 * 32 * 2 * 128 * 128 * 64


def test_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="resnet50, mobilenetv2, bert-base"):
        preset("alexnet")


def test_merge_adds_calls_and_joins_labels() -> None:
    problem, other = GemmProblem(m=1, n=2, k=3), GemmProblem(m=3, n=2, k=1)
    merged = merge(
        [
            Request(problem=problem, calls=2, label="a"),
            Request(problem=other),
            Request(problem=problem, calls=3, label="b"),
            Request(problem=problem, label="a"),
        ]
    )
    assert merged == [Request(problem=problem, calls=6, label="a, b"), Request(problem=other)]


def _file(folder: Path, content: str | bytes) -> Path:
    path = folder / "shapes.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_shapes_file_with_counts_labels_and_comments(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "\ufeff# our model\r\n\r\n512,512,512\n64 , 32,16 x3 first layer  # slow\n1x2x3\tX10\n"
        "64,32,16\n7,5,3 #label\n8,8,8 lda=16 ldb=16 ldc=16 extra rows x2",
    )
    assert read_shapes(path) == [
        Request(problem=GemmProblem(m=512, n=512, k=512)),
        Request(problem=GemmProblem(m=64, n=32, k=16), calls=4, label="first layer"),
        Request(problem=GemmProblem(m=1, n=2, k=3), calls=10),
        Request(problem=GemmProblem(m=7, n=5, k=3)),
        Request(problem=GemmProblem(m=8, n=8, k=8, lda=16, ldb=16, ldc=16), label="extra rows x2"),
    ]


def test_shapes_file_as_csv_in_any_order_of_columns(tmp_path: Path) -> None:
    path = _file(tmp_path, '# by hand\nK, M, N, label, calls\n3,1,2,"one, two",4\n6,4,5,,1\n')
    assert read_shapes(path) == [
        Request(problem=GemmProblem(m=1, n=2, k=3), calls=4, label="one, two"),
        Request(problem=GemmProblem(m=4, n=5, k=6)),
    ]


@pytest.mark.parametrize(
    ("line", "problem", "calls", "label"),
    [
        ("64,32,16 nt float16 batch=12 x3 scores", {"trans_b": 1, "mode": "float16", "batch": 12}, 3, "scores"),
        ("64,32,16 tn lda=70 ldb=40", {"trans_a": 1, "lda": 70, "ldb": 40}, 1, ""),
        ("64,32,16 lda=70 stride_a=1200 tn", {"trans_a": 1, "lda": 70, "stride_a": 1200}, 1, ""),
        ("64,32,100 lda=70 tn", {"k": 100, "trans_a": 1, "lda": 70}, 1, ""),  # too small a pitch without the tn
        ("64, 32, 16 first, then int8", {}, 1, "first, then int8"),
        ("64,32,16 X7 last, nt", {}, 7, "last, nt"),
        ("64,32,16 1x1 reduce", {}, 1, "1x1 reduce"),
    ],
)
def test_words_belong_to_the_shape_as_long_as_they_fit(
    tmp_path: Path, line: str, problem: dict[str, Any], calls: int, label: str
) -> None:
    expected = GemmProblem(**{"m": 64, "n": 32, "k": 16, **problem})
    assert read_shapes(_file(tmp_path, line)) == [Request(problem=expected, calls=calls, label=label)]


def test_shapes_of_another_family_as_lines_and_as_csv(tmp_path: Path) -> None:
    lines = _file(tmp_path, "512,768\n64 , 1000,max,float16 x2 pooling\n8,9 max pool\n")
    half = ReduceProblem(batch=64, channels=1000, operation="max", dtype="float16")
    assert read_shapes(lines, ReduceProblem) == [
        Request(problem=ReduceProblem(batch=512, channels=768)),
        Request(problem=half, calls=2, label="pooling"),
        Request(problem=ReduceProblem(batch=8, channels=9, operation="max"), label="pool"),
    ]
    table = _file(tmp_path, "channels,batch,operation,pitch,label\n768,512,mean,,rows\n9,8,,12,\n")
    assert read_shapes(table, ReduceProblem) == [
        Request(problem=ReduceProblem(batch=512, channels=768, operation="mean"), label="rows"),
        Request(problem=ReduceProblem(batch=8, channels=9, pitch=12)),
    ]


def test_the_sizes_a_shape_cannot_be_without() -> None:
    assert size_names(GemmProblem) == ("m", "n", "k")
    assert size_names(ReduceProblem) == ("batch", "channels")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no shapes"),
        ("# nothing\n\n", "holds no shapes"),
        ("m,n,k\n", "a header and no shapes"),
        ("1,2,3\n4,5\n", ":2: '4,5' is not a shape"),
        ("1,2,3\n\n# x\n1,2,0\n", ":4: k must be at least 1"),
        ("1,2,-3", ":1: k must be at least 1"),
        ("1,2,3 x0", ":1: '0' is not a number of calls"),
        ("1,2,3 x-1", ":1: '-1' is not a number of calls"),
        ("1,2,3 xmany", ":1: 'many' is not a number of calls"),
        ("1,2,3 x9999999999999", "is not a number of calls"),
        ("1,2,3 x" + "9" * 5000, "is not a number of calls"),
        ("2147483647,2147483647,1", ":1: .* more than"),
        ("9" * 10000 + ",1,1", ":1: .* is not a shape"),
        ("1,2,3 " + "l" * 1000, ":1: a label is at most"),
        ("1,2,3 bell\a", ":1: a label is at most"),
        ("1,2,3 lda=2 slow", ":1: lda must be at least 3"),
        ("1,2,3 nt batch=none x3", ":1: '1,2,3 nt batch=none' is not a shape"),
        ("1,2,3 fp16 x3", ":1: '1,2,3 fp16' is not a shape: 'fp16' is not a layout, numeric mode or value"),
        ("1,2,3 half", "'half' is not a layout"),
        ("1,2,3 x3 float15 conv", "'float15' is not a layout"),
        ("1,2,3 x3 float16 conv", ":1: 'float16' comes after the number of calls"),
        ("1,2,3 x3 nt", "'nt' comes after the number of calls"),
        ("1,2,3 x3 batch=2", "'batch=2' comes after the number of calls"),
        ("4 , 0 , 6", ":1: n must be at least 1"),
        ("1,2,3\n\xff\xfe".encode("latin-1"), ":2: is not text in UTF-8"),
        (b"\x7fELF\x02\0\0\0\xf0", ":1: is not text"),
        (b"1,2,3\0", ":1:"),
        ("m,n,k,calls\n1,2,3", ":2: 3 cells under a header of 4"),
        ("m,n,k\n1,2,3.5", ":2: k is '3.5', not an integer"),
        ("m,n,k\n1,2,\u0663", ":2: k is"),
        ("m,n,k,m\n1,2,3,4", ":2: the header names a column twice"),
        ("m,n,k,colour\n1,2,3,4", ":2: gemm has no size named 'colour'"),
        ("m,n,k,colour\n1,2,3,blue", ":2: gemm has no size named 'colour'"),
        ("m,n,k,mode\n1,2,3,fast", ":2: gemm has no numeric mode 'fast'"),
        ("m,n,k\n1,2,", ":2: k is '', not an integer"),
        ("m,n\n1,2", ":2: gemm needs k"),
        ('m,n,k,label\n1,2,3,"open', ":2:"),
        ("m,n,k,calls\n1,2,3,0", ":2: '0' is not a number of calls"),
    ],
)
def test_a_bad_shapes_file_is_one_clear_error(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = _file(tmp_path, content)
    with pytest.raises(UsageError, match=message) as caught:
        read_shapes(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,1,33 q4_0 x3 conv", "k must be a multiple of 32, the block of q4_0, not 33"),
        ("1,1,0 q4_k", "k must be at least 1"),
        ("1099511627776,1,256 q4_0", "an operand of more than"),
        ("1,1,32 q4_0 experts=1000000000 conv", "experts must be at most 4096"),
        ("1,1,32", "it names no weights"),
    ],
)
def test_the_error_of_a_line_is_about_what_is_wrong_in_it(line: str, message: str) -> None:
    [(number, found)] = parse_lines([line], QGemmProblem)
    assert number == 1 and isinstance(found, UsageError)
    assert message in str(found)


def test_unreadable_shapes_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_shapes(tmp_path / "missing")
    with pytest.raises(UsageError, match="directory"):
        read_shapes(tmp_path)
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        read_shapes(_file(tmp_path, b"1,2,3\n" * (MAX_FILE_BYTES // 6 + 1)))
