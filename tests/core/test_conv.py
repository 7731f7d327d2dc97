"""The family of convolution: problems, defaults; the judge itself, against plain loops; wrong kernels; all fields."""

import dataclasses
import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.kernels.conv import FAMILY, ConvProblem
from autotune.kernels.conv.problem import EXAMPLES, WORDS
from autotune.kernels.conv.reference import ConvCase, from_layout, in_layout
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from core.test_reduce import DEVICES
from covering import occurring
from factories import find_wrong, first_short, quick_job, read_shape

PARSE = ConvProblem.parse


class TestProblem:
    @pytest.mark.parametrize(
        ("text", "label"),
        [
            ("1,56,56,64,64,3x3 pad=1 relu bias", "1,56,56,64,64,3x3 pad=1 bias relu"),
            ("1 , 7,5,8, 8 ,3x1 stride=2:1 dilation=1:3", "1,7,5,8,8,3x1 stride=2:1 dilation=1:3"),
            ("2,9,9,6,12,3X3 groups=6 pad=0:1:2:3 NCHW", "2,9,9,6,12,3x3 pad=0:1:2:3 groups=6 layout=nchw"),
            ("1,8,8,4,4,2x2 transposed stride=2", "1,8,8,4,4,2x2 stride=2 transposed"),
            ("1,8,8,4,4,1x1 residual float16-acc16", "1,8,8,4,4,1x1 float16-acc16 residual"),
        ],
    )
    def test_is_read_from_text(self, text: str, label: str) -> None:
        assert read_shape(ConvProblem, text).label == label

    @pytest.mark.parametrize(
        "text",
        [
            "", "1,8,8,4,4", "1,8,8,4,4,3", "1,8,8,4,4,3x3x3", "0,8,8,4,4,3x3", "1,8,8,4,4,12x1", "1,2,2,4,4,3x3",
            "1,8,8,4,4,3x3 pad=1 pad=2", "1,8,8,4,4,3x3 pad=1:2", "1,8,8,4,4,3x3 pad=-1", "1,8,8,4,4,3x3 stride=0",
            "1,8,8,4,4,3x3 groups=3", "1,8,8,4,6,3x3 groups=4", "1,8,8,4,4,3x3 layout=nhcw",
            "1,8,8,4,4,3x3 mode=float16",
            "1,1,1,4,4,1x1 transposed pad=1", "1,8,8,4,4,3x3 relu silu", "1,8,8,4,4,3x3 bias=1", "1,8,8,4,4,3x3 depth",
            "1,99999999,8,4,4,3x3", "9999,999,999,4,4,1x1", "1,8,8,99999,99999,1x1", "1,8,8,4,4,3x3 float16 float32",
            "x" * 10**6, "1,8,8,4,4,\u0663x3",
        ],
    )  # fmt: skip
    def test_refuses_what_is_none(self, text: str) -> None:
        with pytest.raises(ProblemError) as caught:
            PARSE(text)
        assert len(str(caught.value)) < 400

    def test_counts_what_is_moved(self) -> None:
        for text in EXAMPLES:
            problem = PARSE(text)
            buffers = FAMILY.plan(problem, FAMILY.baseline).buffers
            assert problem.bytes_moved == sum(b.size_bytes for b in buffers), text

    def test_counts_products(self) -> None:
        counts = {
            "1,5,5,3,2,3x3": 9 * 9 * 6, "1,5,5,3,2,3x3 pad=1": 25 * 9 * 6,
            "2,5,5,4,4,3x3 groups=4 stride=2": 2 * 4 * 9 * 4, "1,5,5,3,2,3x3 transposed stride=2": 25 * 9 * 6,
        }  # fmt: skip
        assert {text: PARSE(text).flops // 2 for text in counts} == counts

    def test_resized_stays_a_problem(self) -> None:
        problem = PARSE("1,9,9,8,8,3x3 groups=4 pad=1 dilation=2 relu")
        resized = problem.resized((2, 1, 3, 5, 6, 20, 2, 3))
        assert resized.label == "2,22,4,6,6,11x2 dilation=2 pad=1 groups=3 relu"

    def test_must_fit_the_device(self) -> None:
        limits = DeviceLimits(max_allocation_bytes=64 * 100 * 4, global_memory_bytes=60_000)
        PARSE("1,10,10,64,1,1x1").check_device(limits)
        with pytest.raises(ProblemError, match="allocates at most"):
            PARSE("1,10,10,65,1,1x1").check_device(limits)
        with pytest.raises(ProblemError, match="device has"):
            PARSE("1,10,10,64,64,1x1").check_device(limits)
        with pytest.raises(ProblemError, match="no float16 arithmetic"):
            PARSE("1,10,10,4,4,1x1 float16-acc16").check_device(limits)

    def test_words_name_one_field_each(self) -> None:
        named = [word for known in WORDS.values() for word in known]
        assert len(named) == len(set(named))


ASKED = [
    *EXAMPLES, "1,56,56,64,64,3x3 pad=1 bias relu", "1,224,224,3,64,7x7 stride=2 pad=3 layout=nchw",
    "1,14,14,256,1024,1x1", "8,7,7,512,512,3x3 pad=1 float16", "1,112,112,32,32,3x3 pad=1 groups=32",
    "1,56,56,64,64,3x3 pad=1 layout=nc4hw4", "1,1,1,960,1280,1x1", "1,28,28,128,128,3x3 groups=32 pad=1",
    "1,64,64,320,320,3x3 pad=1 layout=nchw", "1,16,16,64,32,4x4 transposed stride=2 pad=1", "1,1,1,1,1,1x1",
]  # fmt: skip


class TestConfigurations:
    def test_the_family_is_found_by_its_folder(self) -> None:
        assert find_family("conv") is FAMILY and FAMILY.contract_faults() == []

    @pytest.mark.parametrize("device", DEVICES)
    def test_baseline_and_default_are_legal_everywhere(self, device: str) -> None:
        limits = DEVICES[device]
        for text in ASKED:
            problem = PARSE(text)
            assert FAMILY.violations(problem, FAMILY.baseline, limits) == []
            default = FAMILY.default(problem, limits, ())
            assert FAMILY.violations(problem, default, limits) == []
            assert default.algorithm != "naive" or problem.mode == "float16-acc16", text  # which needs cl_khr_fp16

    @pytest.mark.parametrize(
        ("device", "text", "algorithm", "values"),
        [
            ("large", "1,64,64,320,320,3x3 pad=1", "winograd", {"product": "local"}),
            ("large", "1,7,7,512,512,3x3 pad=1", "implicit", {"load_width": 4, "combine": "last_group_ptx"}),
            ("large", "1,56,56,64,256,1x1", "implicit", {"first": "filters", "load_width": 4}),
            ("large", "1,112,112,32,32,3x3 groups=32 pad=1", "depthwise", {"vector_width": 2}),
            ("phone", "1,56,56,64,64,3x3 pad=1 layout=nc4hw4", "direct", {"channel_vector": 4, "multiply_add": "mad"}),
            ("processor", "1,56,56,64,64,3x3 pad=1", "winograd", {"product": "registers"}),
            ("processor", "1,56,56,64,64,3x3 pad=1 stride=2", "direct", {"work_group_p": 1}),
        ],
    )
    def test_default_suits_device_and_size(
        self, device: str, text: str, algorithm: str, values: dict[str, Any]
    ) -> None:
        chosen = FAMILY.default(PARSE(text), DEVICES[device], ())
        assert chosen.algorithm == algorithm and values.items() <= dict(chosen.values).items()

    def test_scratch_memory_is_bounded(self) -> None:
        """What Winograd's algorithm needs grows with the image, until it is left out."""
        limits = dataclasses.replace(DEVICES["large"], max_allocation_bytes=2**32, global_memory_bytes=2**36)
        found = [
            len(SearchSpace(FAMILY, PARSE(f"{n},128,128,64,64,3x3"), limits, algorithms=["winograd"])) for n in (1, 64)
        ]
        assert found[0] > 0 == found[1]

    @pytest.mark.parametrize("layout", ["nhwc", "nchw"])
    def test_images_show_quads_only(self, layout: str) -> None:
        limits = dataclasses.replace(
            DEVICES["phone"], has_images=True, max_image_width=4096, max_image_height=4096,
            extensions=("cl_khr_image2d_from_buffer",),
        )  # fmt: skip
        space = SearchSpace(FAMILY, PARSE(f"1,8,8,8,8,3x3 layout={layout}"), limits, algorithms=["direct"])
        assert "image_view" not in occurring(space, "direct", "input_storage")


def by_loops(case: ConvCase) -> Any:
    """The results in float64, output by output, from the operands as they lie in memory."""
    p, given = case._problem, case.inputs
    images = from_layout(given["input"], p.layout, p.channels).astype(np.float64)
    weights = given["weights"].astype(np.float64)
    own, of_group = p.filters // p.groups, p.channels // p.groups
    found = np.zeros((p.batch, p.filters, p.out_height, p.out_width))
    for n, f, y, x in np.ndindex(found.shape):
        group = f // own
        for c, ky, kx in itertools.product(range(of_group), range(p.kernel_height), range(p.kernel_width)):
            if p.is_transposed:
                at = y + p.pad_top - ky * p.dilation_y, x + p.pad_left - kx * p.dilation_x
                if at[0] % p.stride_y or at[1] % p.stride_x:
                    continue
                iy, ix = at[0] // p.stride_y, at[1] // p.stride_x
                weight = weights[group * of_group + c, f % own, ky, kx]
            else:
                iy, ix = y * p.stride_y - p.pad_top + ky * p.dilation_y, x * p.stride_x - p.pad_left + kx * p.dilation_x
                weight = weights[f, c, ky, kx]
            if 0 <= iy < p.height and 0 <= ix < p.width:
                found[n, f, y, x] += images[n, group * of_group + c, iy, ix] * weight
        found[n, f, y, x] += given["bias"][f] if p.bias == "bias" else 0
    if p.residual == "residual":
        found += from_layout(given["residual"], p.layout, p.filters)
    activations: dict[str, Any] = {
        "none": lambda v: v, "relu": lambda v: v * (v > 0), "relu6": lambda v: np.minimum(np.maximum(0, v), 6),
        "leaky": lambda v: np.maximum(v, 0.125 * v), "silu": lambda v: v * 0.5 * (1 + np.tanh(v / 2)),
        "hard_swish": lambda v: v * np.minimum(np.maximum(v / 6 + 0.5, 0), 1),
    }  # fmt: skip
    return activations[p.activation](found)


class TestJudge:
    @pytest.mark.parametrize("text", first_short([(text,) for text in EXAMPLES], 6))
    def test_accepts_plain_loops_and_finds_one_wrong_element(self, text: str) -> None:
        problem = PARSE(text)
        case = ConvCase(problem, 3)
        right = np.ascontiguousarray(in_layout(by_loops(case).astype(problem.dtype), problem.layout))
        assert case.error_ratio({"output": right}) <= 1
        place = np.argmax(np.abs(right))
        for factor in (1.1, np.nan):
            wrong = right.copy()
            wrong.reshape(-1)[place] *= factor
            assert not case.error_ratio({"output": wrong}) <= 1
        assert not case.error_ratio({"output": case.inputs["output"]}) <= 1, "an output never written"

    def test_what_fills_the_last_four_channels_must_be_zero(self) -> None:
        case = ConvCase(PARSE("1,4,4,3,6,1x1 layout=nc4hw4"), 1)
        right = np.ascontiguousarray(in_layout(by_loops(case).astype(np.float32), "nc4hw4"))
        assert case.error_ratio({"output": right}) <= 1
        right[0, 1, 2, 3, 2] = 1e-30
        assert case.error_ratio({"output": right}) == math.inf

    def test_of_large_problems_some_filters_are_compared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = PARSE("1,6,6,4,40,3x3")
        monkeypatch.setattr(ConvCase, "MULTIPLICATIONS", problem.multiply_adds // 8)
        case = ConvCase(problem, 1)
        right = np.ascontiguousarray(in_layout(by_loops(case).astype(np.float32), "nhwc"))
        assert case.error_ratio({"output": right}) <= 1 and 2 <= len(case._expected[0]) <= 7
        right[0, 3, 3, 39] += 0.1
        assert case.error_ratio({"output": right}) > 1

    def test_a_missing_product_is_found_where_winograd_may_round(self) -> None:
        problem = PARSE("1,8,8,64,8,3x3 pad=1 float16")
        case = ConvCase(problem, 1)
        filters, expected, tolerance = case._expected
        squares = np.abs(expected).mean() / math.sqrt(64 * 9)
        assert tolerance.mean() < squares and len(filters) == 8


DIRECT = Configuration.of(
    "direct", work_group_p=2, work_group_f=2, first="pixels", tile_p=3, tile_f=4, vector_width=2, channel_vector=1,
    unroll=1, input_storage="buffer", weights_storage="buffer", loads="vload", multiply_add="operator",
)  # fmt: skip
IMPLICIT = Configuration.of(
    "implicit", work_group_p=4, work_group_f=2, first="pixels", tile_p=2, tile_f=4, vector_width=4, tile_k=4, unroll=1,
    load_width=1, loads="vload", multiply_add="operator", split_k=1, combine="launch",
)  # fmt: skip
WINOGRAD = Configuration.of(
    "winograd", output_side=4, transform_width=2, steps="float32", product="registers", work_group_p=2, work_group_f=1,
    first="pixels", tile_p=2, tile_f=4, vector_width=4, tile_k=2, unroll=1, load_width=1, multiply_add="operator",
)  # fmt: skip
DEPTHWISE = Configuration.of(
    "depthwise", work_group_p=2, work_group_f=1, first="pixels", tile_p=2, vector_width=4, loads="vload"
)

PLAIN = "1,9,7,6,10,3x3 pad=1"
BY_CHANNELS = "1,9,7,10,10,3x3 pad=1 groups=10"
WRONG: dict[str, tuple[str, Configuration, tuple[tuple[str, str], ...]]] = {
    "a tap is left out": (PLAIN, DIRECT, (("ky < 3", "ky < 2"),)),
    "the padding is read": (PLAIN, DIRECT, (("&& iy0 < height", "&& iy0 <= height"),)),
    "a pixel's sum is another's": (PLAIN, DIRECT, (("s1_0 += a1 ", "s1_0 += a0 "),)),
    "the next filter's weights": (PLAIN, DIRECT, (("*(const __global float2 *)(w + 0)", "vload2(0, w + 1)"),)),
    "a row ends too late": (PLAIN, DIRECT, (("++x1 == out_width", "++x1 == out_width + 1"),)),
    "the bias is left out": (
        f"{PLAIN} bias", DIRECT,
        (
            ("v += *(bias + f)", ""), ("v += *(__global const float2 *)(bias + f)", ""),
            ("v += vload2(0, bias + f)", ""),
        ),
    ),
    "the activation is too": (f"{PLAIN} relu6", DIRECT, (("6.0f", "5.9f"),)),
    "the residual is another pixel's": (f"{PLAIN} residual", DIRECT, (("residual + at", "residual + (at ^ 1)"),)),
    "a channel is left out": (PLAIN, IMPLICIT, (("c0 < of_group", "c0 + 4 < of_group"),)),
    "channels behind the last": (PLAIN, IMPLICIT, (("c0 + k < of_group", "c0 + k <= of_group"),)),
    "the other work-item's pixels": (PLAIN, IMPLICIT, (("+ 4 + own_p]", "+ 0 + own_p]"),)),
    "a group reads the first's channels": ("1,9,7,6,9,3x3 groups=3", IMPLICIT, (("group * of_group", "0"),)),
    "a stride too far": ("1,9,7,6,9,3x3 stride=2", IMPLICIT, (("x * stride_x", "x * (stride_x + 1)"),)),
    "a factor of a transform": (PLAIN, WINOGRAD, (("5.0f", "4.99f"),)),
    "a transform of another square": (PLAIN, WINOGRAD, (("square / columns % rows", "0"),)),
    "a sign of the output's": (PLAIN, WINOGRAD, (("- 8.0f", "+ 8.0f"),)),
    "a pixel is the next one": (BY_CHANNELS, DEPTHWISE, (("s1 += c1 * w0", "s1 += c2 * w0"),)),
    "weights of other channels": (BY_CHANNELS, DEPTHWISE, (("* all_filters + f", "* all_filters + 0"),)),
    "the last channels are not written": (BY_CHANNELS, DEPTHWISE, (("end - f,", "end - f - 1,"),)),
}  # fmt: skip


@pytest.mark.parametrize("fault", first_short(WRONG, 4))
def test_wrong_kernels_are_found(measurer: Measurer, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    text, configuration, changes = WRONG[fault]

    def spoilt(source: str) -> str:
        for old, new in changes:
            assert old in source, f"{old!r} is not in the source any more"
            source = source.replace(old, new)
        return source

    find_wrong(measurer, monkeypatch, PARSE(text), configuration, spoilt)


def test_pixels_of_a_work_item_may_be_of_several_images(pocl: Device, measurer: Measurer) -> None:
    problem = PARSE("3,3,3,6,9,3x3 pad=1 bias")
    space = SearchSpace(FAMILY, problem, pocl.limits, algorithms=["direct"], overrides={"tile_p": (4,)})
    for configuration in (space[0], space[len(space) // 2]):
        trial = measurer.measure(quick_job(pocl, problem, configuration))
        assert trial.state is TrialState.COMPLETE, (configuration, trial.message)


def problems_of_all_pairs(draw: random.Random) -> list[ConvProblem]:
    """Problems in which every pair of values of two fields occurs that can, drawn at random until no more are new."""
    values: dict[str, tuple[Any, ...]] = {
        "batch": (1, 2), "height": (1, 4, 9), "width": (1, 5, 10), "channels": (1, 3, 4, 8), "filters": (1, 4, 6, 9),
        "kernel_height": (1, 2, 3, 5), "kernel_width": (1, 3, 4, 5), "stride_y": (1, 2, 3), "stride_x": (1, 2, 3),
        "pad_top": (0, 1, 4), "pad_left": (0, 2, 3), "pad_bottom": (0, 1, 3), "pad_right": (0, 1, 4),
        "dilation_y": (1, 2), "dilation_x": (1, 3), "groups": (1, 2, 4), **WORDS,
    }  # fmt: skip
    met: set[tuple[tuple[str, Any], tuple[str, Any]]] = set()
    found: list[ConvProblem] = []
    for _ in range(6000):
        chosen = {name: draw.choice(known) for name, known in values.items()}
        if draw.random() < 0.3:
            chosen |= {"groups": chosen["channels"], "filters": chosen["channels"] * draw.choice((1, 1, 2))}
        chosen["mode"] = draw.choice(("float32", "float16"))
        try:
            problem = ConvProblem(**chosen)
        except ProblemError:
            continue
        pairs = set(itertools.combinations(problem.to_dict().items(), 2))
        if len(pairs - met) >= (8 if len(found) < 60 else 1):
            met |= pairs
            found.append(problem)
    return found


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_all_pairs_of_problem_fields_are_right(pocl: Device, measurer: Measurer, part: int) -> None:
    """By a configuration of each algorithm, drawn at random."""
    draw = random.Random(part)
    for problem in problems_of_all_pairs(random.Random(7))[part::4]:
        for algorithm in FAMILY.algorithms:
            space = SearchSpace(FAMILY, problem, pocl.limits, algorithms=[algorithm.name])
            if len(space):
                configuration = space[draw.randrange(len(space))]
                trial = measurer.measure(quick_job(pocl, problem, configuration, seed=draw.randrange(1000)))
                assert trial.state is TrialState.COMPLETE, (problem.label, configuration, trial.message)
