"""GEMM by matrix units, which PoCL has not: functions that do the same, work-item by work-item, stand in for them."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.device.profile import find_profile
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from covering import covering_sample, occurring
from factories import device, first_short, quick_job
from stand_in import LIMITS, StandIn, check_tiles

NVIDIA = device("nvidia-h100", limits=LIMITS)


def wrong(pocl: Device, problem: GemmProblem, configuration: Configuration) -> str:
    """Empty when the result is right."""
    assert FAMILY.violations(problem, configuration, LIMITS) == []
    trial = Measurer(StandIn(pocl.selector)).measure(quick_job(pocl, problem, configuration))
    return "" if trial.state is TrialState.COMPLETE else f"{problem.label}: {configuration}: {trial.message[:1400]}"


SMALL: dict[str, tuple[Value, ...]] = {
    "macro_tile_m": (32, 64), "macro_tile_n": (32, 64), "sub_group_tile_m": (16, 32), "sub_group_tile_n": (16, 32),
    "combine": ("launch",),
}  # fmt: skip
SHAPES = (
    "36,52,40 float16", "33,50,72 nt float16 batch=2", "70,39,131 tn float16 lda=72 ldb=40 ldc=42",
    "41,22,18 tt float16 lda=48 ldb=24 batch=2", "33,64,400 float16", "37,43,21 nt int8 lda=32 ldb=32 ldc=44",
    "67,34,133 tn int8 batch=2 stride_c=2400", "32,32,700 nt int8 lda=704 ldb=704 batch=2",
)  # fmt: skip


@pytest.mark.parametrize("shape", first_short(SHAPES, 2))
def test_a_product_by_matrix_units_is_right(pocl: Device, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    space = SearchSpace(FAMILY, problem, LIMITS, algorithms=["matrix_tile"], overrides=SMALL)
    samples = covering_sample([space], "matrix_tile", strength=1, seed=1)[:3]
    assert samples
    assert not [told for s in samples if (told := wrong(pocl, problem, s.configuration))]


def space(shape: str, **changes: Any) -> SearchSpace:
    problem = GemmProblem.parse(shape)
    return SearchSpace(FAMILY, problem, replace(LIMITS, **changes), algorithms=["matrix_tile"])


def test_only_matrix_units_take_them_and_only_numbers_they_know() -> None:
    assert all(len(space(f"512,512,512 {mode}")) for mode in ("float16", "float16-acc16", "nt int8", "int8"))
    assert not len(space("512,512,512"))
    assert not len(space("512,512,512 float16", has_matrix_units=False))


@pytest.mark.parametrize(
    ("shape", "edges"),
    [
        ("512,512,512 float16", "guard"), ("500,512,512 tn float16", "pad"), ("512,512,512 float16 ldb=516", "pad"),
        ("512,512,512 nt int8", "guard"), ("512,512,512 int8", "pad"), ("512,512,504 nt int8", "pad"),
        ("512,512,504 float16 batch=2", "guard"), ("512,512,512 float16 batch=2 stride_a=262148", "pad"),
    ],
)  # fmt: skip
def test_rows_are_packed_where_16_bytes_cannot_be_copied(shape: str, edges: str) -> None:
    assert set(occurring(space(shape), "matrix_tile", "edges")) == {edges}


@pytest.mark.parametrize("mode", ["float16", "float16-acc16", "tt float16", "nt int8", "int8"])
def test_the_rule_takes_matrix_units_where_there_are_any(mode: str) -> None:
    problem = GemmProblem.parse(f"2048,2048,2048 {mode}")
    starts = find_profile(NVIDIA).starting("gemm")
    assert FAMILY.default(problem, LIMITS, starts).algorithm == "matrix_tile"
    assert FAMILY.default(problem, replace(LIMITS, has_matrix_units=False), starts).algorithm == "local_tile"


@pytest.mark.parametrize("mode", ["float16", "float16-acc16", "nt int8"])
@pytest.mark.parametrize(("kibibytes", "outputs"), [(0, 128 * 128), (144, 256 * 128)])
def test_the_largest_tiles_are_taken_where_they_fit(mode: str, kibibytes: int, outputs: int) -> None:
    limits = replace(LIMITS, declared_local_memory_bytes=1024 * kibibytes)
    starts = find_profile(NVIDIA).starting("gemm")
    chosen = FAMILY.default(GemmProblem.parse(f"4096,4096,4096 {mode}"), limits, starts)
    assert chosen.number("macro_tile_m") * chosen.number("macro_tile_n") == outputs
    small = FAMILY.default(GemmProblem.parse(f"1024,1024,1024 {mode}"), limits, starts)
    assert small.number("macro_tile_m") * small.number("macro_tile_n") < outputs


@pytest.mark.parametrize("mode", ["nn float16", "tt float16", "tn float16-acc16", "nt int8"])
def test_every_tile_that_fits_can_be_rendered_and_launched(mode: str) -> None:
    check_tiles(FAMILY, GemmProblem.parse(f"1000,1016,2048 {mode}".replace("nn ", "")), "n", "m")
