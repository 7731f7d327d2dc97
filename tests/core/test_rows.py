"""The family of row operations: problems, defaults; what PoCL lacks in emulation; the judge itself; the runtime."""

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla
import pytest

from autotune.errors import ProblemError
from autotune.kernels import find_family
from autotune.kernels.reduce import ReduceProblem
from autotune.kernels.render import template_hash
from autotune.kernels.rows import FAMILY, Rows, RowsProblem
from autotune.kernels.rows.plan import PLAN
from autotune.kernels.rows.problem import DTYPES, OPERATIONS
from autotune.kernels.rows.reference import RowsCase
from autotune.lookup import TuningTable
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import TrialState
from autotune.runtime import Operation
from autotune.space.search_space import SearchSpace
from core.test_reduce import DEVICES, PHONE, benchmarked, shuffle_through_local_memory, sub_groups_of_one
from factories import LARGE_GPU, find_wrong, first_short, quick_job, read_shape, spoil_sources

SIZES = [(1, 2), (3, 258), (512, 768), (1, 200_000), (100_000, 64), (4096, 4096), (7, 65_538), (2**20, 2)]


class TestProblem:
    @pytest.mark.parametrize(
        ("text", "label"),
        [
            ("512,4096", "512x4096 rms_norm"),
            ("512x4096 softmax", "512x4096 softmax"),
            (" 1 , 64 , ROPE_halves , Float16 heads=4", "1x64 rope_halves float16 heads=4"),
            ("2,6,float16", "2x6 rms_norm float16"),
            ("7,6,swiglu_halves pitch=14 out_pitch=8", "7x6 swiglu_halves pitch=14 out_pitch=8"),
            ("7,6,swiglu_halves pitch=12 out_pitch=6", "7x6 swiglu_halves"),
        ],
    )
    def test_is_read_from_text(self, text: str, label: str) -> None:
        assert read_shape(RowsProblem, text).label == label

    @pytest.mark.parametrize(
        "text",
        [
            "", "512", "512,", "512,768,median", "512,768,softmax,float64", "0,5", "5,0", "-1,5", "2147483648,1",
            "8,8,softmax heads=2", "8,9,rope", "8,8,rope heads=3", "8,8,swiglu_halves pitch=15", "8,8 pitch=7",
            "8,8 out_pitch=7", "8,8,softmax,softmax", "8,8 batch=3", "8,8 rows=3", "8,8 operation=3", "x" * 10**6,
            "1, " + " " * 10**6 + "2", "\u0661,\u0662",
        ],
    )  # fmt: skip
    def test_refuses_what_is_none(self, text: str) -> None:
        with pytest.raises(ProblemError) as caught:
            RowsProblem.parse(text)
        assert len(str(caught.value)) < 400

    def test_counts_what_is_moved(self) -> None:
        moved = {name: RowsProblem(batch=3, channels=8, operation=name).bytes_moved for name in OPERATIONS}
        assert moved["rms_norm"] == 4 * 2 * 24 and moved["rms_norm_add_weight"] == 4 * (4 * 24 + 8)
        assert moved["swiglu"] == moved["swiglu_halves"] == moved["softmax_row_mask"] == 4 * 3 * 24
        assert moved["rope"] == 4 * 2 * 24 + 4 * 3
        for operation, dtype in itertools.product(OPERATIONS, DTYPES):  # with two vectors at most
            problem = RowsProblem(batch=3, channels=8, operation=operation, dtype=dtype)
            buffers = FAMILY.plan(problem, FAMILY.baseline).buffers
            assert problem.bytes_moved == sum(buffer.size_bytes for buffer in buffers)

    def test_is_comparable_with_the_same_operation_and_type_only(self) -> None:
        problem = RowsProblem(batch=3, channels=64, operation="rope", heads=2)
        assert problem.is_comparable(RowsProblem(batch=9, channels=8, operation="rope"))
        assert not problem.is_comparable(RowsProblem(batch=3, channels=64, operation="rope_halves"))
        assert not problem.is_comparable(RowsProblem(batch=3, channels=64, operation="rope", dtype="float16"))

    def test_resized_stays_a_problem(self) -> None:
        problem = RowsProblem(batch=3, channels=96, operation="rope", heads=3)
        assert problem.resized((5, 193)).to_dict() == {**problem.to_dict(), "batch": 5, "channels": 192, "heads": 3,
                                                       "pitch": 192, "out_pitch": 192}  # fmt: skip
        assert problem.resized((1, 1)).channels == 2
        assert RowsProblem(batch=3, channels=5, operation="softmax").resized((2, 7)).channels == 7

    def test_must_fit_the_device(self) -> None:
        limits = DeviceLimits(max_allocation_bytes=1000, global_memory_bytes=3000)
        RowsProblem(batch=10, channels=25).check_device(limits)
        RowsProblem(batch=10, channels=20, operation="softmax_row_mask").check_device(limits)
        with pytest.raises(ProblemError, match="allocates at most"):
            RowsProblem(batch=10, channels=26).check_device(limits)
        with pytest.raises(ProblemError, match="device has"):
            RowsProblem(batch=10, channels=20, operation="rms_norm_add").check_device(limits)


class TestConfigurations:
    def test_the_family_is_found_by_its_file(self) -> None:
        assert find_family("rows") is FAMILY
        hashes = {template_hash(FAMILY, algorithm.name) for algorithm in FAMILY.algorithms}
        assert len(hashes) == len(FAMILY.algorithms) == 5

    @pytest.mark.parametrize("sizes", first_short([(sizes,) for sizes in SIZES], 3))
    @pytest.mark.parametrize("device", DEVICES)
    def test_baseline_and_default_are_legal_everywhere(self, device: str, sizes: tuple[int, int]) -> None:
        limits = DEVICES[device]
        for operation, dtype, gap in itertools.product(OPERATIONS, DTYPES, (0, 3)):
            pitch = (2 if operation == "swiglu_halves" else 1) * sizes[1] + gap
            problem = RowsProblem(batch=sizes[0], channels=sizes[1], operation=operation, dtype=dtype, pitch=pitch)
            assert FAMILY.violations(problem, FAMILY.baseline, limits) == []
            assert FAMILY.violations(problem, FAMILY.default(problem, limits, ()), limits) == []
            assert len(SearchSpace(FAMILY, problem, limits)) >= 2

    @pytest.mark.parametrize(
        ("device", "shape", "algorithm"),
        [
            ("large", "512,4096,rms_norm_weight", "shuffle"),
            ("large", "512,4096,swiglu", "spread"),
            ("phone", "512,4096,softmax", "local_tree"),
            ("phone", "64,2048,rope,heads=16", "spread"),
            ("processor", "512,4096,softmax", "serial"),
            ("phone", "2,1", "serial"),
        ],
    )
    def test_the_rule_fits_the_size(self, device: str, shape: str, algorithm: str) -> None:
        found = FAMILY.default(RowsProblem.parse(shape), DEVICES[device], ())
        assert found.algorithm == algorithm
        if algorithm in ("shuffle", "local_tree"):
            assert found["keep"] == "registers" and found["loads"] == "aligned"

    def test_a_row_in_registers_fits_them(self) -> None:
        values: dict[str, Any] = {"work_group_size": 64, "rows_per_group": 1, "loads": "vload", "fan_in": 4}
        kept = Configuration.of("local_tree", **values, vector_width=4, unroll=4, keep="registers")
        for channels, fits in ((1024, True), (1027, True), (1028, False)):
            assert (FAMILY.violations(RowsProblem(batch=5, channels=channels), kept, PHONE) == []) == fits


def emulated_by_functions(spelled: Callable[[str], str]) -> Callable[[str], str]:
    """Return the emulation that `test_reduce` has for its function `join`, for each function that joins here."""

    def emulated(source: str) -> str:
        for name in ("join_max", "join_sum"):
            source = re.sub(rf"total = {name}\(total, from_lane", "total = join(total, from_lane", source)
            source = spelled(source) if "total = join(" in source else source
            source = re.sub(r"total = join\(total, (other_\d+)\)", rf"total = {name}(total, \1)", source)
            source = source.replace("    __local float seen[1024];\n" * 2, "    __local float seen[1024];\n")
        return source

    return emulated


SHAPES = ("65,33,rms_norm_add_weight", "33,130,softmax_mask", "7,768,layer_norm", "5,2000,softmax,float16")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("algorithm", "emulated"),
    [("sub_group", sub_groups_of_one), ("shuffle", emulated_by_functions(shuffle_through_local_memory))],
)
def test_what_needs_other_hardware_is_right_in_emulation(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, shape: str, algorithm: str, emulated: Callable[[str], str]
) -> None:
    spoil_sources(monkeypatch, emulated)
    monkeypatch.setattr(Rows, "plan", lambda _, *given: dataclasses.replace(PLAN.plan(*given), build_options=()))
    draw = random.Random(shape)
    problem, limits = RowsProblem.parse(shape), dataclasses.replace(LARGE_GPU, has_sub_groups=True)
    for keep in ("memory", "registers"):
        space = SearchSpace(FAMILY, problem, limits, algorithms=[algorithm], overrides={"keep": (keep,)})
        configuration = space[draw.randrange(len(space))]
        trial = measurer.measure(quick_job("", problem, configuration, seed=draw.randrange(1000)))
        assert trial.state is TrialState.COMPLETE, (configuration, trial.message)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("shape", "width"),
    [
        ("9,264,rms_norm_add_weight float16", 8), ("9,272,softmax_mask float16", 16), ("9,270,layer_norm float16", 2),
        ("4,96,rope float16 heads=3", 8), ("4,96,rope float16 heads=3", 2), ("9,264,swiglu", 4), ("9,272,rms_norm", 16),
    ],
)  # fmt: skip
def test_how_nvidia_reads_and_writes_is_right(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch, shape: str, width: int, streams: bool
) -> None:
    """Their source is other code where the compiler is NVIDIA's; its instruction is spelled out here."""
    streamed = []

    def spelled(found: re.Match[str]) -> str:
        streamed.append(found)
        words = re.findall(r'"([rf])"\((.*?)\)', found[1])
        kind = {"r": "uint", "f": "float"}[words[0][0]]
        stores = (f"((__global {kind} *)to)[{e}] = {value};" for e, (_, value) in enumerate(words))
        return f"{{ {' '.join(stores)} }}"

    def chosen(source: str) -> str:
        source = source.replace("#ifdef cl_nv_pragma_unroll", "#if 1")
        source, count = re.subn(r"(bool streams =) .*?;", rf"\1 {int(streams)};", source)
        assert count == 1
        return re.sub(
            r'asm volatile\("st\.global\.cs.*?: : "l"\(\(ulong\)to\), (.*?)\);', spelled, source, flags=re.DOTALL
        )

    spoil_sources(monkeypatch, chosen)
    problem = RowsProblem.parse(shape)
    unroll = 1 + streams  # or the program of the other case would be taken
    configuration = Configuration.of("serial", work_group_size=0, vector_width=width, unroll=unroll, loads="aligned")
    trial = measurer.measure(quick_job("", problem, configuration, seed=3))
    assert trial.state is TrialState.COMPLETE, trial.message
    assert streamed


TREE = Configuration.of(
    "local_tree",
    work_group_size=32,
    rows_per_group=4,
    vector_width=4,
    unroll=4,
    loads="vload",
    keep="registers",
    fan_in=2,
)
AGAIN = Configuration.of(
    "local_tree", work_group_size=32, rows_per_group=4, vector_width=4, unroll=2, loads="vload", keep="memory",
    fan_in=2,
)  # fmt: skip
SPREAD = Configuration.of("spread", work_group_size=16, rows_per_group=2, vector_width=2, unroll=2, loads="vload")

WRONG: dict[str, tuple[str, Configuration, Callable[[str], str]]] = {
    "elements behind the last vector are left out": (
        "rms_norm", AGAIN, lambda s: s.replace("for (uint e =", "for (; 0;) for (uint e =")
    ),
    "a vector is left out": ("rms_norm", TREE, lambda s: s.replace("a2 += x2 * x2", "a2 += x2 * 0.0f")),
    "one level of the tree is left out": ("rms_norm", TREE, lambda s: s.replace("part[item + 2]", "0.0f")),
    "lanes have different totals": ("rms_norm", TREE, lambda s: s.replace("part[item - lane]", "part[item]")),
    "rows are swapped": ("rms_norm", TREE, lambda s: s.replace("min(row,", "min(row ^ 1,")),
    "the residual is not added": ("rms_norm_add", TREE, lambda s: re.sub(r" \+ vload4\(0, beside[^;:]*", "", s)),
    "the sum is not written": ("rms_norm_add", TREE, lambda s: s.replace("to_sum + (", "to + (")),
    "the weight of another element": ("rms_norm_weight", TREE, lambda s: s.replace("weight + (", "weight + 1 + (")),
    "epsilon is left out": ("rms_norm", TREE, lambda s: s.replace(" + epsilon", " + 1.0f")),
    "the bias is left out": ("layer_norm", TREE, lambda s: re.sub(r" \+ vload4\(0, bias[^,]*\)", "", s)),
    "the variance is not centred": ("layer_norm", AGAIN, lambda s: s.replace("-= mean", "-= 0.0f")),
    "the maximum is not subtracted": ("softmax", TREE, lambda s: s.replace("- largest", "- 0.0f")),
    "the scale is left out": ("softmax", TREE, lambda s: s.replace("* scale", "* 0.25f")),
    "the mask is left out": ("softmax_mask", TREE, lambda s: re.sub(r" \+ vload4\(0, beside[^;:]*", "", s)),
    "the mask of the first row": (
        "softmax_row_mask", TREE, lambda s: re.sub(r"mask \+ \(size_t\)\w+ \* pitch", "mask", s)
    ),
    "a row more is written": ("softmax", TREE, lambda s: s.replace("row < (uint)batch", "row < (uint)batch + 1")),
    "the gap is written": ("softmax", AGAIN, lambda s: s.replace("e < (uint)channels", "e < (uint)channels + 1")),
    "silu without its product": ("swiglu", SPREAD, lambda s: s.replace(" * y0", "")),
    "the halves are swapped": ("swiglu_halves", SPREAD, lambda s: s.replace("exp(-x0)", "exp(-y0)")),
    "the angle turns the other way": ("rope", SPREAD, lambda s: s.replace("sinpi(", "-sinpi(")),
    "angles of the next pair": ("rope", SPREAD, lambda s: s.replace("% pairs)", "% pairs + 1)")),
    "pairs of neighbours, not of halves": ("rope_halves", SPREAD, lambda s: s.replace("+ pairs)", "+ 1)")),
    "the position of another row": ("rope", SPREAD, lambda s: s.replace("positions[row]", "positions[row ^ 1]")),
}  # fmt: skip


@pytest.mark.parametrize("fault", first_short(WRONG))
def test_wrong_kernels_are_found(measurer: Measurer, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    operation, right, spoil = WRONG[fault]
    is_rope = operation.startswith("rope")
    problem = RowsProblem(
        batch=14, channels=96 if is_rope else 99, operation=operation, heads=3 if is_rope else 1,
        pitch=208, out_pitch=104,
    )  # fmt: skip
    find_wrong(measurer, monkeypatch, problem, right, spoil)


def in_float32(problem: RowsProblem, inputs: dict[str, Any]) -> dict[str, Any]:
    """The operation as NumPy does it in single precision, with gaps untouched."""
    p = problem
    given: dict[str, Any] = {
        name: values.reshape(p.batch, p.pitch)[:, : p.row_elements if name == "input" else p.channels].astype(
            np.float32
        )
        for name, values in inputs.items()
        if name in ("input", "residual", "up") or (name == "mask" and p.operation == "softmax_row_mask")
    }
    given |= {n: inputs[n].astype(np.float32) for n in ("weight", "bias", "mask") if n in inputs and n not in given}
    x = given["input"]
    results: dict[str, Any] = {}
    if "norm" in p.operation:
        if "residual" in given:
            results["sum"] = x = x + given["residual"]
        x = x - x.mean(axis=1, keepdims=True) if p.operation == "layer_norm" else x
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-5))
        results["output"] = x * given.get("weight", np.float32(1)) + given.get("bias", np.float32(0))
    elif p.operation.startswith("softmax"):
        x = x * np.float32(0.125) + given.get("mask", np.float32(0))
        raised = np.exp(x - x.max(axis=1, keepdims=True))
        results["output"] = raised / raised.sum(axis=1, keepdims=True)
    elif p.operation.startswith("swiglu"):
        gate, up = (x, given["up"]) if "up" in given else np.split(x, 2, axis=1)
        results["output"] = gate / (1 + np.exp(-gate)) * up
    else:
        pairs = p.channels // p.heads // 2
        steps = np.float32(10000) ** (-np.arange(pairs, dtype=np.float32) / np.float32(pairs))
        angles = (inputs["positions"].astype(np.float32)[:, None] * steps)[:, None]
        heads = x.reshape(p.batch, p.heads, 2 * pairs)
        a, b = (heads[..., ::2], heads[..., 1::2]) if p.operation == "rope" else np.split(heads, 2, axis=2)
        turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
        both = np.stack(turned, axis=3) if p.operation == "rope" else np.concatenate(turned, axis=2)
        results["output"] = both.reshape(x.shape)
    outputs = {}
    for name, values in results.items():
        outputs[name] = np.full((p.batch, p.out_pitch), np.nan, p.dtype)
        outputs[name][:, : p.channels] = values
    return outputs


class TestJudge:
    @pytest.mark.parametrize("operation", OPERATIONS)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("seed", [2, 3])
    def test_accepts_single_precision_and_finds_one_wrong_element(self, operation: str, dtype: str, seed: int) -> None:
        heads = 4 if operation.startswith("rope") else 1
        problem = RowsProblem(
            batch=40, channels=304, operation=operation, dtype=dtype, heads=heads, pitch=610, out_pitch=305
        )
        case = RowsCase(problem, seed)
        with np.errstate(all="ignore"):
            right = in_float32(problem, dict(case.inputs))
        assert case.error_ratio(right) <= 1
        for name, values in right.items():
            row, column = next(iter(zip(*np.nonzero(np.abs(values) > np.nanmax(np.abs(values)) / 4), strict=True)))
            for change in (1.1, np.nan):
                wrong = {**right, name: values.copy()}
                wrong[name][row, column] *= change
                assert case.error_ratio(wrong) > 1
            spilled = {**right, name: values.copy()}
            spilled[name][-1, -1] = 0
            assert case.error_ratio(spilled) == math.inf, "a gap was written"
            assert case.error_ratio({**right, name: case.inputs[name]}) == math.inf, "an output never written"

    def test_a_nan_must_reach_its_row(self) -> None:
        problem = RowsProblem(batch=8, channels=50, operation="softmax")
        case = RowsCase(problem, 1)
        [row] = np.flatnonzero(np.isnan(case.inputs["input"]).any(axis=1))
        with np.errstate(all="ignore"):
            right = in_float32(problem, dict(case.inputs))
        assert np.isnan(right["output"][row]).all() and case.error_ratio(right) <= 1
        right["output"][row, 3] = 0.5
        assert case.error_ratio(right) == math.inf

    def test_positions_are_drawn_near_and_far(self) -> None:
        problem = RowsProblem(batch=8, channels=32, operation="rope")
        drawn = np.concatenate([RowsCase(problem, seed).inputs["positions"] for seed in range(8)])
        assert drawn.min() < 64 and drawn.max() > 2**16

    def test_rows_that_come_again_are_judged_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RowsCase, "DISTINCT_ELEMENTS", 1000)
        problem = RowsProblem(batch=50, channels=98, operation="rope", pitch=100)
        case = RowsCase(problem, 2)
        right = in_float32(problem, dict(case.inputs))
        assert np.array_equal(right["output"][:10], right["output"][40:])
        assert case.error_ratio(right) <= 1
        right["output"][44] *= np.float32(1 + 2**-23)  # other bits, as right
        assert case.error_ratio(right) <= 1
        right["output"][49, 7] += 0.5
        assert case.error_ratio(right) > 1


@pytest.fixture(scope="module")
def operation(pocl: Device, tmp_path_factory: pytest.TempPathFactory) -> Operation:
    return Operation("rows", pocl.selector, table=TuningTable([pocl], []), binaries=tmp_path_factory.mktemp("programs"))


class TestRuntime:
    def test_numpy_operands(self, operation: Operation) -> None:
        x, weight = np.random.default_rng(1).random((5, 96), np.float32), np.full(96, 2, np.float32)
        problem = RowsProblem(batch=5, channels=96, operation="rms_norm_weight")
        for epsilon in (1e-5, 0.5):
            found = operation(problem, input=x, weight=weight, epsilon=epsilon)["output"].reshape(5, 96)
            expected = 2 * x / np.sqrt((x * x).mean(axis=1, keepdims=True) + epsilon)
            np.testing.assert_allclose(found, expected, rtol=1e-5)

    @pytest.mark.parametrize("as_buffers", [False, True])
    def test_operands_on_the_device_and_bound_calls(self, operation: Operation, as_buffers: bool) -> None:
        rng, queue = np.random.default_rng(2), operation.queue
        problem = RowsProblem(batch=6, channels=64, operation="rms_norm_add")
        x, residual = rng.random((6, 64), np.float32), rng.random((6, 64), np.float32)
        arrays = {"input": cla.to_device(queue, x), "residual": cla.to_device(queue, residual)}
        arrays |= {name: cla.zeros(queue, (6, 64), np.float32) for name in ("output", "sum")}
        passed = {name: array.base_data if as_buffers else array for name, array in arrays.items()}
        copied = operation.stats.bytes_copied
        found = operation(problem, **passed)
        assert found["output"] is passed["output"] and found["sum"] is passed["sum"]
        summed = x + residual
        expected = summed / np.sqrt((summed * summed).mean(axis=1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(arrays["sum"].get(), summed, rtol=1e-6)
        np.testing.assert_allclose(arrays["output"].get(), expected, rtol=1e-5)
        bound, calls = operation.bind(problem, **passed), operation.stats.calls
        for number in range(3):
            arrays["output"].fill(0)
            arrays["residual"].set(residual + number)
            assert bound()["output"] is passed["output"]
            np.testing.assert_allclose(arrays["sum"].get(), summed + number, rtol=1e-6)
        assert operation.stats.calls == calls + 3
        assert operation.stats.bytes_copied == copied

    def test_a_result_on_the_device_is_allocated(self, operation: Operation) -> None:
        x = np.random.default_rng(3).random((4, 30), np.float32)
        problem = RowsProblem(batch=4, channels=30, operation="softmax")
        found = operation(problem, input=cla.to_device(operation.queue, x), scale=1.0)["output"]
        np.testing.assert_allclose(found.get().reshape(4, 30).sum(axis=1), 1, rtol=1e-5)

    def test_operands_on_the_device_are_checked(self, operation: Operation) -> None:
        queue, problem = operation.queue, RowsProblem(batch=4, channels=8, operation="swiglu")
        x = cla.zeros(queue, (4, 8), np.float32)
        small = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 4 * 31)
        for operands, message in (
            ({"input": x}, "the operand up is missing"),
            ({"input": x, "up": x.get()}, "up is a ndarray, other operands are on the device"),
            ({"input": x, "up": small}, r"up holds 124 bytes, 4x8 swiglu needs 128"),
            ({"input": x, "up": x[:3]}, r"up is float32 of shape \(3, 8\), the problem needs 32 contiguous elements"),
            ({"input": x, "up": x, "output": x}, "out shares memory with input"),
            ({"input": x, "up": x, "gate": x}, "rows has no operand 'gate'"),
        ):
            with pytest.raises(ProblemError, match=message):
                operation(problem, **operands)
        with pytest.raises(ProblemError, match="scale is a str"):
            operation(RowsProblem(batch=4, channels=8, operation="softmax"), input=x, scale="large")
        with pytest.raises(ProblemError, match="rows takes a RowsProblem, not a ReduceProblem"):
            operation(ReduceProblem(batch=4, channels=8), input=x)

    def test_an_array_of_another_queue_is_waited_for_at_every_call(self, operation: Operation) -> None:
        elsewhere = cl.CommandQueue(operation.queue.context)
        problem = RowsProblem(batch=2, channels=8, operation="swiglu_halves")
        x = cla.to_device(elsewhere, np.ones((2, 16), np.float32))
        bound = operation.bind(problem, input=x)
        for value in (1.0, 2.0):
            x.fill(value)
            found = bound()["output"].get()
            np.testing.assert_allclose(found, value * value / (1 + math.exp(-value)), rtol=1e-6)


@pytest.mark.long
def test_the_benchmark_compares_and_writes_json(pocl: Device, tmp_path: Path) -> None:
    shapes = ("60,32,softmax_row_mask", "60,32,rope,heads=2", "60,32,layer_norm")
    assert len(benchmarked("bench_rows", pocl, tmp_path, *shapes)) == len(shapes)


def test_rope_is_at_far_positions_more_exact_than_angles_of_float32(pocl: Device, binaries: Path) -> None:
    problem = RowsProblem(batch=64, channels=128, operation="rope")
    rope = Operation("rows", pocl.selector, table=TuningTable([], []), binaries=binaries, verify=False)
    rng = np.random.default_rng(5)
    positions = rng.integers(2**16, 2**17, problem.batch, dtype=np.int32)
    x = rng.standard_normal((problem.batch, problem.channels), dtype=np.float32)
    found = rope(problem, input=x, positions=positions)["output"].reshape(x.shape)

    def turned(angles: Any) -> Any:
        a, b = x[:, ::2].astype(np.float64), x[:, 1::2].astype(np.float64)
        both = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
        return np.stack(both, axis=2).reshape(x.shape)

    steps = np.arange(problem.channels // 2) / (problem.channels // 2)
    exact = turned(positions[:, None] * 10000.0**-steps)
    single = turned(
        (positions[:, None].astype(np.float32) * np.float32(10000) ** -steps.astype(np.float32)).astype(float)
    )
    assert np.abs(found - exact).max() < np.abs(single - exact).max()
