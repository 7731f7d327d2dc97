"""Products with quantised weights: problems, formats, search space and plans; every kernel right; the judge itself."""

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.device.machine import absent_device
from autotune.device.profile import find_profile
from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.kernels.qgemm import FAMILY, QGemmProblem
from autotune.kernels.qgemm.blocks import dequantise, random_weights, rows_of
from autotune.kernels.qgemm.formats import FORMATS
from autotune.kernels.qgemm.plan import PLAN
from autotune.kernels.qgemm.problem import MODES
from autotune.kernels.qgemm.reference import QGemmCase
from autotune.kernels.render import render, template_hash
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.plan import Role
from autotune.model.trial import Trial, TrialState
from autotune.space.search_space import SearchSpace
from core.test_gate import SPOILED_WORKER, Oclgrind
from covering import Sample, covering_sample, occurring
from factories import LARGE_GPU, PHONE, PROCESSOR, find_wrong, first_short, quick_job, read_shape, spoil_sources

gguf = pytest.importorskip("gguf")

SMALLEST = DeviceLimits(max_work_group_size=1, max_work_item_sizes=(1, 1, 1), local_memory_bytes=0)
ADRENO = dataclasses.replace(PHONE, max_image_line=2**27, extensions=("cl_qcom_reqd_sub_group_size",))
NVIDIA = dataclasses.replace(LARGE_GPU, extensions=("cl_nv_device_attribute_query",))
DEVICES = {
    "smallest": SMALLEST,
    "phone": ADRENO,
    "short images": dataclasses.replace(ADRENO, max_image_line=2**16),
    "no images": dataclasses.replace(ADRENO, has_images=False),
    "mali": dataclasses.replace(PHONE, compute_units=16, local_memory_is_dedicated=False),
    "processor": PROCESSOR,
    "narrow processor": dataclasses.replace(PROCESSOR, max_vector_float32=8),
    "large": LARGE_GPU,
    "nvidia": dataclasses.replace(NVIDIA, has_ptx_integer_dot=True),
    "nvidia without dot products": NVIDIA,
    "matrix units": dataclasses.replace(NVIDIA, has_ptx_integer_dot=True, has_matrix_units=True),
}
IN_GGUF = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
    "mxfp4": gguf.GGMLQuantizationType.MXFP4,
}
INT4 = tuple(name for name in FORMATS if name.startswith("int4"))


def measure(measurer: Measurer, problem: QGemmProblem, configuration: Configuration, seed: int = 1) -> Trial:
    return measurer.measure(quick_job("", problem, configuration, seed=seed, probe=False))


def weights_of(problem: QGemmProblem, seed: int = 3) -> NDArray[np.uint8]:
    return random_weights(problem.format, problem.experts * problem.m, problem.k, np.random.default_rng(seed))


class TestProblem:
    @pytest.mark.parametrize(
        ("text", "label"),
        [
            ("2048,1,2048 q4_0", "2048x1x2048 q4_0"),
            ("2048x1x2048 q4_0 float32", "2048x1x2048 q4_0"),
            (" 70 , 3 , 256, Q4_K, int8 ", "70x3x256 q4_k int8"),
            ("1,2,128 float16 int4z-g128", "1x2x128 int4z-g128 float16"),
            ("2880x4x2880 mxfp4 experts=32", "2880x4x2880 mxfp4 experts=32"),
            ("8,4,32 experts=2 int8 q8_0", "8x4x32 q8_0 int8 experts=2"),
            ("8,4,32 q8_0 experts=1", "8x4x32 q8_0"),
        ],
    )
    def test_is_read_from_text(self, text: str, label: str) -> None:
        assert read_shape(QGemmProblem, text).label == label

    @pytest.mark.parametrize(
        "text",
        [
            "", ",", "8,4", "8,4,32", "8,4,32 q4_1", "8,4,32 q4_0 float64", "0,4,32 q4_0", "8,0,32 q4_0", "8,4,0 q4_0",
            "8,4,31 q4_0", "8,4,128 q4_k", "8,4,64 int4-g128", "-8,4,32 q4_0", "8.5,4,32 q4_0", "8,4,32 q4_0 experts=0",
            "8,4,32 q4_0 experts=5000", "8,4,32 q4_0 experts", "8,4,32 q4_0 experts=x", "8,4,32 q4_0 expert=2",
            "8,4,32,9 q4_0", "\u0661,4,32 q4_0", f"{2**20},1,{2**12} q4_0", f"32,{2**26},64 q4_0",
            f"4096,1,4096 q4_0 experts={2**7}", "9" * 30 + ",1,32 q4_0", "x" * 10**6, "1," * 10**6,
        ],
    )  # fmt: skip
    def test_refuses_what_is_none(self, text: str) -> None:
        with pytest.raises(ProblemError) as caught:
            QGemmProblem.parse(text)
        assert len(str(caught.value)) < 300

    def test_tells_how_to_write_it(self) -> None:
        with pytest.raises(ProblemError) as caught:
            QGemmProblem.parse("8,4,32 q4k")
        assert "q4_k" in str(caught.value.hint)
        with pytest.raises(ProblemError) as caught:
            QGemmProblem.parse("8,4,32")
        assert "int4-g32" in str(caught.value.hint) or "q4_0" in str(caught.value.hint)

    def test_refuses_wrong_fields(self) -> None:
        right = {"m": 8, "n": 4, "k": 32, "weights": "q4_0"}
        for wrong in ({"weights": "x" * 999}, {"mode": "int4"}, {"m": "8"}, {"pitch": 4}, {"experts": -1}):
            with pytest.raises(ProblemError):
                QGemmProblem.from_dict({**right, **wrong})
        for name in right:
            with pytest.raises(ProblemError):
                QGemmProblem.from_dict({n: value for n, value in right.items() if n != name})

    def test_tells_its_sizes(self) -> None:
        problem = QGemmProblem.parse("70,3,512 q4_k float16 experts=2")
        assert problem.size_vector == (70, 3, 512, 2)
        assert problem.flops == 2 * 70 * 3 * 512
        assert problem.weight_bytes == 2 * 70 * 2 * 144
        assert problem.bytes_moved == problem.weight_bytes + 2 * 3 * (70 + 512)
        one_row = dataclasses.replace(problem, n=1)
        assert one_row.bytes_moved == 70 * 2 * 144 + 2 * (70 + 512), "one row of activations has one expert"
        assert problem.stored == "float16" and dataclasses.replace(problem, mode="int8").stored == "float32"
        assert problem.is_constant("weights") and not any(map(problem.is_constant, ("x", "y", "starts", "")))

    def test_resized_keeps_whole_blocks(self) -> None:
        problem = QGemmProblem.parse("70,3,512 q4_k int8 experts=2")
        assert problem.resized((9, 8, 300, 5)) == QGemmProblem.parse("9,8,512 q4_k int8 experts=5")
        assert problem.resized(problem.size_vector) == problem

    def test_is_comparable_with_the_same_weights_and_mode_only(self) -> None:
        problem = QGemmProblem.parse("70,3,512 q4_k")
        assert problem.is_comparable(QGemmProblem.parse("9,1,256 q4_k experts=3"))
        assert not problem.is_comparable(QGemmProblem.parse("70,3,512 q6_k"))
        assert not problem.is_comparable(QGemmProblem.parse("70,3,512 q4_k int8"))

    def test_must_fit_the_device(self) -> None:
        problem = QGemmProblem.parse("10,2,320 q4_0")
        weights, x, y = 1800, 2560, 80
        limits = DeviceLimits(max_allocation_bytes=x, global_memory_bytes=2 * weights + x + y)
        problem.check_device(limits)
        with pytest.raises(ProblemError, match="device allocates at most"):
            problem.check_device(dataclasses.replace(limits, max_allocation_bytes=x - 1))
        with pytest.raises(ProblemError, match="device has"):
            problem.check_device(dataclasses.replace(limits, global_memory_bytes=2 * weights + x + y - 1))
        half = dataclasses.replace(problem, mode="float16")
        half.check_device(dataclasses.replace(limits, max_vector_float16=1))
        with pytest.raises(ProblemError, match="half precision"):
            half.check_device(dataclasses.replace(limits, max_vector_float16=0))

    def test_examples_have_every_format_mode_and_kind_of_size(self) -> None:
        examples = [problem for problem in FAMILY.examples() if isinstance(problem, QGemmProblem)]
        assert {p.weights for p in examples} == set(FORMATS)
        assert {p.mode for p in examples} == set(MODES)
        for grouped in (False, True):
            assert {p.mode for p in examples if (p.experts > 1) is grouped} == set(MODES)
        assert {min(p.n, 2) for p in examples} == {1, 2} and any(p.m % 2 for p in examples)
        assert all(QGemmProblem.parse(p.label) == p for p in examples)


class TestFormats:
    @pytest.mark.parametrize("name", IN_GGUF)
    def test_blocks_of_gguf_mean_what_gguf_says(self, name: str) -> None:
        one = FORMATS[name]
        block, size = gguf.GGML_QUANT_SIZES[IN_GGUF[name]]
        assert (one.block, one.block_bytes) == (block, size)
        rows, k = 37, 2 * block
        weights = random_weights(one, rows, k, np.random.default_rng(5))
        values, offsets = dequantise(weights, one, rows, k)
        expected = gguf.quants.dequantize(weights.reshape(rows, -1), IN_GGUF[name])
        np.testing.assert_allclose(values - offsets, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())

    @pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k", "q6_k", "mxfp4"])
    def test_every_byte_of_a_block_matters_as_in_gguf(self, name: str) -> None:
        """Changed one by one, from a block in which they all differ."""
        one = FORMATS[name]
        [weights] = random_weights(one, 1, one.block, np.random.default_rng(8)).reshape(1, -1)
        for place in range(one.block_bytes):
            changed = weights.copy()
            changed[place] ^= 0x11 if name != "mxfp4" or place else 0x01
            values, offsets = dequantise(changed, one, 1, one.block)
            expected = gguf.quants.dequantize(changed.reshape(1, -1), IN_GGUF[name])
            np.testing.assert_allclose(values - offsets, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
            assert not np.array_equal(expected, gguf.quants.dequantize(weights.reshape(1, -1), IN_GGUF[name]))

    @pytest.mark.parametrize("name", INT4)
    def test_int4_is_a_scale_times_quant_less_zero_point(self, name: str) -> None:
        one, rows, k = FORMATS[name], 5, 256
        weights = random_weights(one, rows, k, np.random.default_rng(5))
        groups = k // one.group
        assert weights.size == rows * groups * one.block_bytes
        scales = np.frombuffer(weights.tobytes(), np.float16, rows * groups, offset=rows * k // 2)
        zeros = weights[rows * (k // 2 + 2 * groups) :] if one.has_zero_points else np.full(rows * groups, 8)
        values, offsets = dequantise(weights, one, rows, k)
        for row in range(rows):
            for column in range(k):
                unit, place = divmod(column, 32)
                byte = int(weights[row * (k // 2) + 16 * unit + place % 16])
                quant = byte >> 4 if place >= 16 else byte & 15
                of = row * groups + column // one.group
                expected = float(scales[of]) * (quant - float(zeros[of]))
                assert math.isclose(values[row, column] - offsets[row, column], expected, rel_tol=1e-5, abs_tol=1e-5)

    @pytest.mark.parametrize("name", FORMATS)
    def test_some_rows_mean_what_they_mean_among_all(self, name: str) -> None:
        one, rows, k = FORMATS[name], 9, 2 * FORMATS[name].block
        weights = random_weights(one, rows, k, np.random.default_rng(2))
        values, offsets = dequantise(weights, one, rows, k)
        for first, count in ((0, 9), (3, 4), (8, 1)):
            some, off = dequantise(rows_of(weights, one, rows, k, first, count), one, count, k)
            np.testing.assert_array_equal(some, values[first : first + count])
            np.testing.assert_array_equal(off, offsets[first : first + count])

    @pytest.mark.parametrize("name", FORMATS)
    def test_random_weights_have_every_quant_and_about_unit_size(self, name: str) -> None:
        one, rows, k = FORMATS[name], 64, 1024
        values, offsets = dequantise(random_weights(one, rows, k, np.random.default_rng(2)), one, rows, k)
        weights = values - offsets
        assert np.isfinite(weights).all() and 0.1 < np.abs(weights).mean() < 10
        assert len(np.unique(np.abs(weights))) > 1000 or name == "mxfp4"
        assert (weights > 0).mean() > 0.3 and (weights < 0).mean() > 0.3


class TestConfigurations:
    def test_the_family_is_found_by_its_file(self) -> None:
        assert find_family("qgemm") is FAMILY
        hashes = {template_hash(FAMILY, algorithm.name) for algorithm in FAMILY.algorithms}
        assert len(hashes) == len(FAMILY.algorithms)

    @pytest.mark.parametrize("device", DEVICES)
    def test_baseline_and_default_are_legal_everywhere(self, device: str) -> None:
        limits = DEVICES[device]
        large = ("262144,1,2048 q6_k", "14336,512,4096 q4_k int8", "2880,2048,2880 mxfp4 float16", "1,1,32 q4_0")
        for problem in (*FAMILY.examples(), *map(QGemmProblem.parse, large)):
            assert FAMILY.violations(problem, FAMILY.baseline, limits) == []
            assert FAMILY.violations(problem, FAMILY.default(problem, limits, ()), limits) == []

    @pytest.mark.parametrize("device", [name for name in DEVICES if name != "smallest"])
    def test_the_default_is_more_than_the_baseline(self, device: str) -> None:
        shapes = ("64,1,256 q4_0", "2048,1,2048 q4_k", "2048,4,2048 q6_k int8", "8192,512,2048 q8_0 float16")
        arrays = ("2048,1,2048 int4-g32", "4096,4,4096 int4z-g128 int8", "4096,64,4096 int4-g128 float16")
        few_rows = ("1,1,2048 q4_0", "1,64,160 int4-g32 int8", "2,3,256 q6_k float16", "4,9,32 mxfp4 experts=3")
        others = ("24,1,256 mxfp4", "2880,4,2880 mxfp4 experts=32 int8", *arrays, *few_rows)
        for problem in map(QGemmProblem.parse, (*shapes, *others)):
            default = FAMILY.default(problem, DEVICES[device], ())
            assert default.algorithm != "naive", problem.label
            assert device != "mali" or default.algorithm != "local_tile", "its local memory is main memory"
            assert device != "nvidia without dot products" or dict(default.values)["integer_dot"] == "off"

    @pytest.mark.parametrize("columns", [1, 2, 4, 64])
    def test_processors_add_integers_up_in_vectors_that_their_driver_gets_right(self, columns: int) -> None:
        problem = QGemmProblem.parse(f"2048,{columns},2048 q4_0 int8")
        assert FAMILY.default(problem, PROCESSOR, ()).algorithm == "vector_rows"
        ragged = FAMILY.default(dataclasses.replace(problem, m=2040), PROCESSOR, ())
        assert (dict(ragged.values)["sums"], dict(ragged.values)["chunk"]) == ("vector", 4)
        narrow = FAMILY.default(problem, dataclasses.replace(PROCESSOR, max_vector_int8=1), ())
        assert (narrow.algorithm, dict(narrow.values)["sums"]) == ("shared_rows", "scalar")

    def test_names_of_constraints_are_distinct_and_say_why(self) -> None:
        for algorithm in FAMILY.algorithms:
            names = [constraint.name for constraint in algorithm.constraints]
            assert len(set(names)) == len(names)
            assert all(
                name.isidentifier() and one.because for name, one in zip(names, algorithm.constraints, strict=True)
            )

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize(
        "shape", first_short(["70,3,512 q4_k", "131,64,96 q8_0 int8", "36,75,128 int4z-g64 experts=4 float16"])
    )
    def test_the_space_has_exactly_the_valid_configurations(self, device: str, shape: str) -> None:
        """Of configurations drawn at random, and of those that the space has."""
        problem, limits, draw = QGemmProblem.parse(shape), DEVICES[device], random.Random(shape)
        for algorithm in FAMILY.algorithms:
            space = SearchSpace(FAMILY, problem, limits, algorithms=[algorithm.name])
            for row in draw.sample(range(len(space)), min(len(space), 60)):
                assert FAMILY.violations(problem, space[row], limits) == []
            for _ in range(300):
                drawn = {p.name: draw.choice(p.values) for p in algorithm.parameters}
                configuration = Configuration.of(algorithm.name, **drawn)
                is_valid = not FAMILY.violations(problem, configuration, limits)
                assert is_valid == (space.row_of(configuration) is not None), configuration

    @pytest.mark.parametrize("algorithm", [a.name for a in FAMILY.algorithms if a.name != "naive"])
    def test_every_value_is_valid_somewhere(self, algorithm: str) -> None:
        """On some device, for some problem: what never is valid would be dead."""
        shapes = (
            "4096,1,4096 q4_k",
            "4096,4,16384 q4_0",
            "4096,16,4096 q4_0",
            "4096,16,4096 q8_0 int8",
            "4096,512,4096 q4_k float16",
            "4096,512,4096 q6_k int8",
        )
        everything = (
            "cl_khr_integer_dot_product", "cl_arm_integer_dot_product_int8", "cl_qcom_reqd_sub_group_size",
            "cl_nv_device_attribute_query", "cl_khr_fp16",
        )  # fmt: skip
        limits = dataclasses.replace(
            ADRENO,
            has_sub_groups=True,
            max_vector_float32=16,
            extensions=everything,
            local_memory_bytes=2**18,
            has_ptx_integer_dot=True,
            has_matrix_units=True,
            compute_units=64,
        )
        others = tuple(name for name in everything if name != "cl_nv_device_attribute_query")
        without_ptx = dataclasses.replace(limits, extensions=others)
        variants = (
            limits,
            dataclasses.replace(limits, is_cpu=True),
            *(dataclasses.replace(without_ptx, ordering_standard=standard) for standard in (200, 300)),
        )
        missing = {(p.name, v) for p in FAMILY.algorithm(algorithm).parameters for v in p.values}
        for shape in shapes:
            for variant in variants:
                space = SearchSpace(FAMILY, QGemmProblem.parse(shape), variant, algorithms=[algorithm])
                missing -= {(n, v) for n, _ in missing for v in occurring(space, algorithm, n)}
        assert missing == set()

    def test_parts_of_k_of_many_experts_stay_small(self) -> None:
        """Each expert may have a tile of its own, however few columns it has."""
        problem = QGemmProblem.parse("1024,128,4096 q4_0 experts=64")
        space = SearchSpace(FAMILY, problem, NVIDIA, algorithms=["local_tile"])
        sizes = [
            buffer.size_bytes
            for sample in covering_sample([space], "local_tile", strength=2, seed=1)
            for buffer in FAMILY.plan(problem, sample.configuration).buffers
            if buffer.name == "c_parts"
        ]
        assert sizes and max(sizes) <= 2**25


class TestPlans:
    @pytest.mark.parametrize("shape", [problem.label for problem in FAMILY.examples()])
    def test_buffers_have_the_sizes_of_their_contents(self, shape: str) -> None:
        problem, draw = QGemmProblem.parse(shape), random.Random(shape)
        case = QGemmCase(problem, 1)
        for algorithm in FAMILY.algorithms:
            space = SearchSpace(FAMILY, problem, ADRENO, algorithms=[algorithm.name])
            for _ in range(min(len(space), 20)):
                plan = FAMILY.plan(problem, space[draw.randrange(len(space))])
                buffers = {buffer.name: buffer for buffer in plan.buffers}
                given = {n: b for n, b in buffers.items() if b.role in (Role.INPUT, Role.OUTPUT)}
                assert given.keys() == case.inputs.keys()
                for name, buffer in given.items():
                    assert (buffer.size_bytes, buffer.dtype) == (case.inputs[name].nbytes, case.inputs[name].dtype.name)
                names = {
                    argument for launch in plan.launches for argument in launch.arguments if isinstance(argument, str)
                }
                assert names <= buffers.keys()
                for image in (b for b in plan.buffers if b.role is Role.VIEW):
                    assert image.size_bytes <= buffers[image.view_of].size_bytes
                assert [one.kernel for one in plan.launches if one.prepares] in ([], ["pack"])
                assert [one.kernel for one in plan.launches][-1] == "qgemm"

    def test_packed_weights_take_as_many_bytes_as_stored_but_for_the_scales_of_q4_k(self) -> None:
        for problem in FAMILY.examples():
            assert isinstance(problem, QGemmProblem)
            own = Configuration.of(
                "own_rows",
                **{p.name: p.values[0] for p in FAMILY.algorithm("own_rows").parameters},
            )
            [packed] = [b for b in FAMILY.plan(problem, own).buffers if b.name == "w_packed"]
            more = problem.experts * problem.m * problem.k // 256 * 4 if problem.weights == "q4_k" else 0
            assert packed.size_bytes == problem.weight_bytes + more

    def test_launches_cover_every_output(self) -> None:
        problem = QGemmProblem.parse("131,67,160 q4_0 experts=3")
        for algorithm in FAMILY.algorithms:
            space = SearchSpace(FAMILY, problem, ADRENO, algorithms=[algorithm.name])
            for row in random.Random(4).sample(range(len(space)), min(len(space), 50)):
                values = PLAN.values(problem, space[row])
                launch = FAMILY.plan(problem, space[row]).launches[-1]
                groups = [
                    -(-size // local)
                    for size, local in zip(launch.global_size, launch.local_size or (1, 1), strict=True)
                ]
                assert groups[0] * values["group_rows"] >= problem.m
                tiles = -(-problem.n // values["group_columns"])
                assert groups[1] == tiles + problem.experts - 1, "each expert may begin a tile of its own"


class TestJudge:
    """What the check accepts and what it sees."""

    SHAPES = (
        "70,3,512 q4_k", "37,2,256 q6_k float16", "131,64,96 q8_0 int8", "36,75,256 q4_0 experts=4", "66,12,64 mxfp4",
        "40,9,128 int4z-g64 int8",
    )  # fmt: skip

    def right(self, case: QGemmCase, problem: QGemmProblem) -> NDArray[Any]:
        """As a float32 kernel computes it, expert by expert."""
        values, offsets = dequantise(case.inputs["weights"], problem.format, problem.experts * problem.m, problem.k)
        weights = (values - offsets).reshape(problem.experts, problem.m, problem.k)
        x = case.inputs["x"].astype(np.float32)
        if problem.mode == "int8":
            units = x.reshape(problem.n, -1, 32)
            scale = np.abs(units).max(axis=-1, keepdims=True) / np.float32(127)
            x = (np.rint(units / scale) * scale).reshape(x.shape).astype(np.float32)
        starts = case.inputs.get("starts", np.array([0, problem.n]))
        found = [x[a:b] @ weights[e].T for e, (a, b) in enumerate(itertools.pairwise(starts))]
        return np.concatenate(found).astype(problem.stored)

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("is_sampled", [False, True])
    def test_accepts_what_is_right_and_sees_what_is_wrong(
        self, shape: str, is_sampled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if is_sampled:
            monkeypatch.setattr(QGemmCase, "FULL_REFERENCE_MACS", 1)
            monkeypatch.setattr(QGemmCase, "WEIGHTS_AT_ONCE", 1000)
        problem = QGemmProblem.parse(shape)
        case = QGemmCase(problem, 7)
        right = self.right(case, problem)
        assert case.error_ratio({"y": right}) <= 1
        assert case.error_ratio({"y": case.inputs["y"]}) == math.inf, "an output never written"
        assert case.error_ratio({"y": np.zeros_like(right)}) > 1
        draw = np.random.default_rng(1)
        for _ in range(20):
            wrong = right.copy()
            n, m = draw.integers(problem.n), draw.integers(problem.m)
            wrong[n, m] += 0.25 * np.abs(right).mean()
            assert case.error_ratio({"y": wrong}) > 1, (n, m)
            wrong[n, m] = np.nan
            assert case.error_ratio({"y": wrong}) == math.inf
        swapped = right.copy()
        swapped[:, [0, problem.m - 1]] = right[:, [problem.m - 1, 0]]
        assert case.error_ratio({"y": swapped}) > 1, "two rows of weights"
        swapped = right.copy()
        swapped[[0, problem.n - 1]] = right[[problem.n - 1, 0]]
        assert case.error_ratio({"y": swapped}) > 1, "two columns"

    @pytest.mark.parametrize("shape", ["4096,64,64 q4_0 float16", "8192,48,256 q4_k float16"])
    def test_rounding_many_outputs_is_no_error(self, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(QGemmCase, "FULL_REFERENCE_MACS", 1)
        problem = QGemmProblem.parse(shape)
        for seed in range(3):
            case = QGemmCase(problem, seed)
            right = self.right(case, problem)
            assert case.error_ratio({"y": right}) <= 1
            right[7, 1000] += np.float16(0.25 * np.abs(right).mean())
            assert case.error_ratio({"y": right}) > 1

    def test_sees_the_wrong_expert(self) -> None:
        problem = QGemmProblem.parse("36,75,256 q4_k experts=4")
        case = QGemmCase(problem, 7)
        starts = case.inputs["starts"]
        moved = starts.copy()
        boundary = next(e for e in range(1, problem.experts) if 0 < starts[e] < problem.n)
        moved[boundary] -= 1
        wrong = QGemmCase(problem, 7)
        wrong.inputs = {**case.inputs, "starts": moved}
        assert case.error_ratio({"y": self.right(wrong, problem)}) > 1

    @pytest.mark.parametrize("mode", ["float32", "float16"])
    def test_one_unit_of_weights_missing_shows(self, mode: str) -> None:
        problem = QGemmProblem.parse(f"16,2,4096 q4_0 {mode}")
        case = QGemmCase(problem, 7)
        values, offsets = dequantise(case.inputs["weights"], problem.format, problem.m, problem.k)
        for first in (0, 2048, 4064):
            weights = values - offsets
            weights[:, first : first + 32] = 0
            assert case.error_ratio({"y": case.inputs["x"] @ weights.T}) > 1

    @pytest.mark.parametrize("shape", ["67,9,512 q4_k int8", "131,64,96 q8_0 int8", "16,1,4096 q6_k int8"])
    def test_activations_that_were_not_quantised_are_seen(self, shape: str) -> None:
        """The tolerance of quantised activations is tighter than what quantising changes."""
        problem = QGemmProblem.parse(shape)
        case = QGemmCase(problem, 7)
        as_they_are = self.right(case, dataclasses.replace(problem, mode="float32"))
        assert case.error_ratio({"y": self.right(case, problem)}) <= 1
        assert case.error_ratio({"y": as_they_are}) > 1

    def test_inputs_are_fresh_for_each_seed_and_equal_for_one(self) -> None:
        problem = QGemmProblem.parse("40,30,64 q4_0 experts=5")
        first, again, other = (QGemmCase(problem, seed).inputs for seed in (4, 4, 6))
        for name in ("weights", "x", "starts"):
            assert np.array_equal(first[name], again[name])
            assert not np.array_equal(first[name], other[name])

    @pytest.mark.parametrize("seed", range(5))
    def test_experts_have_ragged_counts(self, seed: int) -> None:
        starts = QGemmCase(QGemmProblem.parse("36,75,256 q4_k experts=8"), seed).inputs["starts"]
        counts = np.diff(starts)
        assert (starts[0], starts[-1]) == (0, 75) and counts.min() >= 0 and len(set(counts.tolist())) > 2


def values(algorithm: str, **changes: Any) -> Configuration:
    """A plain configuration of an algorithm, with changes."""
    chosen: Mapping[str, Any] = {**PLAIN_VALUES[algorithm], **changes}
    declared = FAMILY.algorithm(algorithm).by_name
    return Configuration.of(algorithm, **{n: chosen.get(n, p.values[0]) for n, p in declared.items()})


PLAIN_VALUES: Mapping[str, Mapping[str, Any]] = {
    "shared_rows": {"layout": "file", "lanes": 8, "work_group_m": 2, "micro_tile_m": 2, "chunk": 2, "standard": "none"},
    "own_rows": {"work_group_m": 8, "work_group_k": 4, "micro_tile_m": 2, "micro_tile_n": 2, "packed_words": 4},
    "local_tile": {
        "work_group_m": 8, "work_group_n": 4, "micro_tile_m": 4, "micro_tile_n": 4, "packed_words": 4, "unroll": 8,
    },
}  # fmt: skip
SHARED, OWN, TILE = (values(algorithm) for algorithm in PLAIN_VALUES)
WHOLE_TILE = values("local_tile", unroll=32)
SHARED_TILE = values("local_tile", unroll=8, split_k=2, combine="last_group_cl3")

BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"
Q4_0, MANY, EXPERTS = "67,3,256 q4_0", "67,35,256 q4_0", "67,13,256 q4_k experts=3"


def changed(old: str, new: str) -> Callable[[str], str]:
    return lambda source: source.replace(old, new)


WRONG: dict[str, tuple[Configuration, str, Callable[[str], str]]] = {
    "low nibbles are taken for high ones": (SHARED, Q4_0, changed(">> 4) & 0x0f0f0f0fu", ">> 0) & 0x0f0f0f0fu")),
    "the offset is one step less": (SHARED, Q4_0, changed("8.0f *", "7.0f *")),
    "the scale is that of the next row": (
        SHARED, Q4_0, lambda s: re.sub(r"(_of = W \+ \(size_t\)\(uint\)\(\()row0", r"\1row1", s)
    ),
    "one level of the tree is left out": (SHARED, Q4_0, changed("mine[2 + lane]", "0.0f")),
    "lanes join before all have written": (SHARED, Q4_0, lambda s: s.replace(BARRIER, "", 1)),
    "the first units are left out": (SHARED, Q4_0, changed("unit = lane / 2;", "unit = lane / 2 + 4;")),
    "the last row keeps what was there": (SHARED, Q4_0, changed("first_row + 0 < m)", "first_row + 0 < m - 1)")),
    "a row more is written": (SHARED, Q4_0, changed("first_row + 1 < m)", "first_row + 1 < m + 1)")),
    "all columns are the first": (SHARED, Q4_0, changed("(column0) * units", "(0) * units")),
    "the last row is not packed": (
        OWN, Q4_0, changed("const int row = get_global_id(1);", "const int row = min((int)get_global_id(1), rows - 2);")
    ),
    "scales are packed in another order": (
        OWN, Q4_0, changed("scale_plane + (size_t)place", "scale_plane + (size_t)(place ^ 1)")
    ),
    "a part of k is left out": (OWN, Q4_0, changed("part[32 + item]", "0.0f")),
    "parts of k overlap": (OWN, Q4_0, changed("unit += 4", "unit += 3")),
    "parts are joined before all are there": (OWN, Q4_0, changed(BARRIER, "")),
    "a column more is written": (OWN, Q4_0, changed("column + 1 <= last_column)", "column + 1 <= last_column + 1)")),
    "offsets are multiplied by the scales": (OWN, EXPERTS, changed("_sub.s1;", "_sub.s0;")),
    "all experts are the first": (OWN, EXPERTS, changed("expert_row = expert * m", "expert_row = 0")),
    "an expert lacks its first column": (OWN, EXPERTS, changed("column = begin +", "column = begin + 1 +")),
    "upper bits are one bit lower": (OWN, "67,3,256 q6_k", changed("0x03030303u) << 4));", "0x03030303u) << 3));")),
    "scales are twice as large": (OWN, "67,3,96 mxfp4", changed(", 1) - 1) << 23", ", 1)) << 23")),
    "zero points are those of the next group": (
        OWN, "67,3,128 int4z-g64",
        changed("_a * zero_plane[(uint)(((unit) / 2)", "_a * zero_plane[(uint)((1 - (unit) / 2)"),
    ),
    "a tile is read before it is full": (TILE, MANY, lambda s: s.replace(BARRIER, "", 1)),
    "steps along k are left out": (TILE, MANY, changed("p < 32;", "p < 24;")),
    "a unit is taken twice": (TILE, MANY, changed("next = min(unit + 1, last_unit - 1)", "next = unit")),
    "work-groups begin at the same unit": (SHARED_TILE, MANY, changed("k_begin = part * share", "k_begin = 0")),
    "a part of a sum is left out": (SHARED_TILE, MANY, changed("c0_0 += x1_0_0;", "")),
    "rows behind the last quad are left out": (TILE, MANY, changed("row + 3 == m", "row + 3 < 0")),
    "activations are cut, not rounded": (WHOLE_TILE, f"{MANY} int8", changed("char4_sat_rte", "char4_sat_rtz")),
    "activations have another scale": (WHOLE_TILE, f"{MANY} int8", changed("127.0f / most", "126.0f / most")),
    "the sum of a unit is that of its end": (WHOLE_TILE, f"{MANY} int8", changed("sums += convert", "sums = convert")),
    "bytes are taken as unsigned": (WHOLE_TILE, "67,35,64 q8_0 int8", changed("as_char4(a)", "as_uchar4(a)")),
}  # fmt: skip


def in_single(source: str) -> str:
    """A kernel that adds up in half precision, in single precision, for devices without the other."""
    assert "half low0_0 = 0;" in source
    source = source.replace("*(const half2 *)&word", "vload_half2(0, (const half *)&word)")
    source = re.sub(r"\*\(\(__global const half4 \*\)X \+ (x_at\d+) \+ (\d)\)", r"vload_half4(\1 + \2, X)", source)
    return re.sub(r"\bhalf([24]?)\b(?! \*)", r"float\1", source.replace("_imageh", "_imagef"))


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_runs_in_half_precision_add_up_the_same(measurer: Measurer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    spoil_sources(monkeypatch, in_single)
    for n, changes in ((1, {"micro_tile_n": 1}), (5, {"multiply_add": "mad"}), (3, {"x_storage": "image"})):
        configuration = values("own_rows", run_type="float16", decode="magic", **changes)
        problem = QGemmProblem.parse(f"67,{n},{3 * FORMATS[name].block} {name} float16")
        measurer._built.clear()
        assert measure(measurer, problem, configuration).state is TrialState.COMPLETE
    measurer._built.clear()


@pytest.mark.parametrize("fault", first_short(WRONG))
def test_wrong_kernels_are_found(measurer: Measurer, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    configuration, shape, spoil = WRONG[fault]
    find_wrong(measurer, monkeypatch, QGemmProblem.parse(shape), configuration, spoil, seeds=2, probe=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (f"        {BARRIER}\n    }}\n", "    }\n", "data race at local memory"),
        ("next = min(unit + 1, last_unit - 1)", "next = unit + 1", "Invalid read"),
    ],
)
def test_oclgrind_tells_what_a_processor_lets_pass(tmp_path: Path, old: str, new: str, finding: str) -> None:
    """A tile that is filled while others read it, and a unit behind the last one."""
    oclgrind = Oclgrind("races", tmp_path, SPOILED_WORKER.format(old=old, new=new))
    with oclgrind.worker:
        told = oclgrind.findings(Sample(problem=QGemmProblem.parse("33,17,64 q4_0"), configuration=TILE))
    assert finding in told


@pytest.mark.parametrize(("family", "shape"), [("qgemm", "256,64,256 q4_0 int8"), ("gemm", "512,512,512 int8")])
def test_arm_adds_four_products_to_a_sum_in_one_instruction(family: str, shape: str) -> None:
    mali, kernels = absent_device("mali-g715-mc7"), find_family(family)
    problem = kernels.problem_type.parse(shape)
    candidates = kernels.candidates(problem, mali.limits, find_profile(mali).starting(family))
    chosen = next(one for one in candidates if dict(one.values).get("integer_dot") == "arm")
    assert "arm_dot_acc(as_char4(a), as_char4(b), sum)" in render(kernels, chosen, kernels.plan(problem, chosen))
