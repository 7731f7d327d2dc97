"""GEMM on what only some devices have: images over buffers, products of four int8, sizes of waves, register options.

PoCL has none of it, so that a session of the tests stands in for it: it copies what a view would show, brings the
missing functions along, and keeps the options of other compilers to itself. Everything else is as on the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from autotune.device.opencl import Session
from autotune.device.port import NO_MEMORY, NUMPY_TYPES, Call, Memory, Run
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import render
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits
from autotune.model.plan import Buffer, Role
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from covering import covering_sample, occurring
from factories import PHONE, first_short, quick_job

EVERYTHING = replace(
    PHONE,
    max_work_group_size=256,
    max_image_height=8192,
    image_pitch_alignment=2,
    has_float16=True,
    has_ptx_integer_dot=True,
    register_allocations=(32, 64),
    extensions=(
        "cl_khr_image2d_from_buffer", "cl_khr_integer_dot_product", "cl_arm_integer_dot_product_int8",
        "cl_qcom_reqd_sub_group_size", "cl_nv_compiler_options",
    ),
)  # fmt: skip
"""A device that no one makes: it has what each of several makers has."""
NOTHING = replace(EVERYTHING, has_ptx_integer_dot=False, register_allocations=(), extensions=())

NEWER = {
    (a.name, p.name): p
    for a in FAMILY.algorithms
    for p in a.parameters
    if p.neutral is not None and p.name != "combine"  # test_combining.py
}

PRELUDE = """
int sum_of_products(const char4 a, const char4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
#define dot_4x8packed_ss_int(a, b) sum_of_products(as_char4((uint)(a)), as_char4((uint)(b)))
#define arm_dot(a, b) sum_of_products(a, b)
"""
OF_TILE: dict[str, tuple[Value, ...]] = {"unroll": (4, 8), "micro_tile_m": (1, 2, 4)}
FOREIGN_OPTIONS = ("-cl-std=", "-qcom", "-cl-nv", "-fregister")


class StandIn(Session):
    """A session on PoCL that behaves as if the device had everything."""

    def __init__(self, selector: str) -> None:
        super().__init__(selector)
        self._views: list[tuple[Buffer, Memory, Memory]] = []

    def build(self, source: str, options: Sequence[str]) -> cl.Program:
        return super().build(PRELUDE + source, [o for o in options if not o.startswith(FOREIGN_OPTIONS)])

    def allocate(self, buffer: Buffer, allocated: Mapping[str, Memory] = NO_MEMORY) -> Memory:
        memory = super().allocate(replace(buffer, view_of=""))
        if buffer.view_of:
            assert buffer.role is Role.VIEW
            self._views.append((buffer, allocated[buffer.view_of], memory))
        return memory

    def run(self, call: Call, times: int = 1, *, has_events: bool = True) -> Run:
        """Launch by launch, with the views as the launches ahead of each have left their buffers."""
        runs = []
        for step in call.steps * times:
            self._show()
            runs.append(super().run(replace(call, steps=(step,)), has_events=has_events))
        events = np.concatenate([run.events for run in runs]).reshape(times, len(call.steps), 2)
        return Run(host_start_ns=runs[0].host_start_ns, host_end_ns=runs[-1].host_end_ns, events=events)

    def _show(self) -> None:
        for layout, source, image in self._views:
            self.write(image, self._shown(layout, source))

    def _shown(self, layout: Buffer, source: Memory) -> np.ndarray[Any, Any]:
        """The elements of a view; a row of pixels may go beyond that of the matrix, but not beyond its pitch."""
        stored = np.empty(source.size // np.dtype(NUMPY_TYPES[layout.dtype]).itemsize, NUMPY_TYPES[layout.dtype])
        self.read(source, stored)
        width, height = 4 * layout.image_width, layout.image_height
        assert width <= layout.row_pitch and height * layout.row_pitch <= len(stored)
        return np.ascontiguousarray(stored[: height * layout.row_pitch].reshape(height, -1)[:, :width])


def measure(pocl: Device, problem: GemmProblem, configuration: Configuration) -> str:
    """Empty when the result is right."""
    assert FAMILY.violations(problem, configuration, EVERYTHING) == []
    trial = Measurer(StandIn(pocl.selector)).measure(quick_job(pocl, problem, configuration))
    return "" if trial.state is TrialState.COMPLETE else f"{problem.label}: {configuration}: {trial.message[:400]}"


@pytest.mark.parametrize(
    ("algorithm", "wanted", "shapes"),
    first_short(
        [
            ("dot", {"integer_dot": ("arm",)}, ("24,56,32 int8",)),
            ("microtile", {"integer_dot": ("khr",)}, ("37,43,21 nt int8 ldb=24", "67,34,133 tn int8 batch=2")),
            ("microtile", {"integer_dot": ("arm",)}, ("24,56,32 int8", "19,70,50 tt int8 lda=20 ldb=52")),
            (
                "local_tile",
                {"integer_dot": ("khr",), **OF_TILE},
                ("37,43,21 nt int8 ldb=24", "67,34,133 tn int8 batch=2"),
            ),
            ("local_tile", {"integer_dot": ("arm",), **OF_TILE}, ("24,56,132 int8", "19,70,50 tt int8 lda=20 ldb=52")),
            ("dot", {"integer_dot": ("khr",)}, ("37,43,21 nt int8 ldb=24", "19,70,50 tn int8 ldb=72 batch=2")),
            (
                "microtile",
                {"a_storage": ("image_view",)},
                ("9,50,35 lda=40", "33,20,29 nt float16 lda=32 batch=2 stride_a=1120", "24,56,31 int8 lda=32"),
            ),
            (
                "microtile",
                {"b_storage": ("image_view",)},
                ("9,50,35 ldb=56", "33,30,29 tn float16 ldb=32 batch=2 stride_b=960", "24,55,32 int8 ldb=56"),
            ),
        ],
        1,
    ),
)
def test_a_product_that_only_some_devices_can_do_is_right(
    pocl: Device, algorithm: str, wanted: dict[str, tuple[Value, ...]], shapes: tuple[str, ...]
) -> None:
    small: dict[str, tuple[Value, ...]] = {
        "micro_tile_m": (1, 2, 3), "micro_tile_n": (1, 2, 4, 8), "unroll": (1, 4), "relaxed_math": ("off",),
        "wave_size": ("any",), "qcom_16_bit": ("off",), "register_cap": (0,), "register_allocation": (0,),
    }  # fmt: skip
    for shape in shapes:
        problem = GemmProblem.parse(shape)
        space = SearchSpace(FAMILY, problem, EVERYTHING, algorithms=[algorithm], overrides={**small, **wanted})
        samples = covering_sample([space], algorithm, strength=1, seed=1)[:2]
        assert samples
        assert not [told for s in samples if (told := measure(pocl, problem, s.configuration))]


@cache
def spaces_on(limits: DeviceLimits, algorithm: str) -> list[SearchSpace]:
    shape = {"row": "1,512,512", "column": "512,1,512"}.get(algorithm, "64,64,64")
    problems = [GemmProblem.parse(f"{shape} {mode}") for mode in ("float32", "float16", "int8")]
    return [SearchSpace(FAMILY, problem, limits, algorithms=[algorithm]) for problem in problems]


@pytest.mark.parametrize(("algorithm", "name"), NEWER)
def test_a_device_without_a_feature_has_one_value_for_it(algorithm: str, name: str) -> None:
    parameter = NEWER[algorithm, name]
    assert parameter.neutral == parameter.values[0]
    found = {
        limits: {value for space in spaces_on(limits, algorithm) for value in occurring(space, algorithm, name)}
        for limits in (NOTHING, EVERYTHING)
    }
    without = ("buffer", "image") if name == "a_storage" else (parameter.neutral,)
    assert found[NOTHING] == set(without)
    assert found[EVERYTHING] == set(parameter.values)


BEFORE = Configuration.of(
    "microtile", micro_tile_m=8, micro_tile_n=8, vector_width=4, unroll=4, a_vector_width=4, b_storage="image",
    work_group_m=0, work_group_n=0, edges="guard", loads="vload", multiply_add="mad", relaxed_math="off",
)  # fmt: skip


def tile(**changes: int | str) -> Configuration:
    return FAMILY.complete(Configuration.of("microtile", **{**dict(BEFORE.values), **changes}))


def test_configurations_of_before_are_completed_and_no_others() -> None:
    problem = GemmProblem(m=512, n=512, k=512)
    assert FAMILY.violations(problem, BEFORE, EVERYTHING)
    now = FAMILY.complete(BEFORE)
    assert FAMILY.violations(problem, now, EVERYTHING) == []
    assert FAMILY.violations(problem, now, NOTHING) == []
    assert set(BEFORE.values) < set(now.values)
    assert FAMILY.complete(now) is now
    broken = Configuration.of("naive", work_group_m=1)
    assert FAMILY.complete(broken) is broken
    unknown = Configuration.of("of_tomorrow", x=1)
    assert FAMILY.complete(unknown) is unknown


@pytest.mark.parametrize(
    ("changes", "shape", "option"),
    [
        ({"qcom_16_bit": "on"}, "64,64,64 float16", "-qcom-accelerate-16-bit"),
        ({"register_cap": 128}, "64,64,64", "-cl-nv-maxrregcount=128"),
        ({"register_allocation": 64}, "64,64,64", "-fregister-allocation=64"),
        ({}, "64,64,64", None),
    ],
)
def test_options_of_one_makers_compiler(changes: dict[str, int | str], shape: str, option: str | None) -> None:
    problem = GemmProblem.parse(shape)
    assert FAMILY.violations(problem, tile(**changes), EVERYTHING) == []
    assert FAMILY.plan(problem, tile(**changes)).build_options == ((option,) if option else ())


@pytest.mark.parametrize("algorithm", ["microtile", "row", "column"])
def test_the_size_of_a_wave_is_required_of_the_kernel(algorithm: str) -> None:
    problem = GemmProblem.parse({"row": "1,512,512", "column": "512,1,512"}.get(algorithm, "64,64,64"))
    space = SearchSpace(FAMILY, problem, EVERYTHING, algorithms=[algorithm], overrides={"wave_size": ("half",)})
    source = render(FAMILY, space[0], FAMILY.plan(problem, space[0]))
    assert '__kernel __attribute__((qcom_reqd_sub_group_size("half"))) ' in source
    assert "#pragma OPENCL EXTENSION cl_qcom_reqd_sub_group_size : enable" in source


@pytest.mark.parametrize(
    ("shape", "changes", "fits"),
    [
        ("64,64,64", {"b_storage": "image_view"}, True),
        ("64,60,64", {"b_storage": "image_view"}, False),
        ("64,60,64 ldb=64", {"b_storage": "image_view"}, True),
        ("64,64,64 nt", {"b_storage": "image_view"}, False),
        ("64,64,64 batch=2 stride_b=4160", {"b_storage": "image_view"}, True),
        ("64,64,64 batch=2 stride_b=4104", {"b_storage": "image_view"}, False),
        ("64,64,6000 batch=2", {"b_storage": "image_view"}, False),
        ("64,64,64", {"a_storage": "image_view"}, True),
        ("64,64,60", {"a_storage": "image_view"}, False),
        ("64,64,64 tn", {"a_storage": "image_view"}, False),
        ("64,64,64 tn", {"a_storage": "image"}, True),
    ],
)
def test_a_view_needs_pitch_and_height_that_fit(shape: str, changes: dict[str, int | str], fits: bool) -> None:
    limits = replace(EVERYTHING, image_pitch_alignment=8)
    violations = FAMILY.violations(GemmProblem.parse(shape), tile(**changes), limits)
    assert (violations == []) is fits, violations
