"""Products with quantised weights by matrix units, which PoCL has not: see `stand_in.py`."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.kernels.qgemm import FAMILY, QGemmProblem, reference
from autotune.kernels.qgemm.blocks import random_weights
from autotune.kernels.qgemm.formats import WeightFormat
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device
from autotune.model.trial import TrialState
from autotune.runtime.engine import can_be_undone
from autotune.space.search_space import SearchSpace
from factories import first_short, quick_job
from stand_in import LIMITS, StandIn, check_tiles

PLAIN = Configuration.of(
    "matrix_rows", work_group_m=1, work_group_k=1, micro_tile_m=4, micro_tile_n=4, packed_words=1, unroll=1,
    reading="now", x_storage="buffer", w_loads="cached",
)  # fmt: skip


def with_changes(configuration: Configuration, changes: dict[str, Value]) -> Configuration:
    return replace(configuration, values=tuple(sorted({**dict(configuration.values), **changes}.items())))


@pytest.mark.parametrize(
    ("shape", "values"),
    first_short(
        [
            ("64,1,160 q4_0", {"unroll": 2}),
            ("64,1,224 q4_0", {"unroll": 2, "reading": "ahead", "w_loads": "streamed"}),
            ("68,3,96 q4_0", {"x_storage": "local", "reading": "ahead"}),
            ("68,3,64 q4_0", {"work_group_m": 2}),
            ("32,6,64 q4_0", {"micro_tile_n": 8, "x_storage": "local"}),
            ("100,9,64 q4_0 float16", {"micro_tile_n": 8, "work_group_k": 2, "x_storage": "local"}),
            ("64,2,256 q4_k", {"micro_tile_m": 8, "work_group_k": 4, "x_storage": "local"}),
            ("36,4,256 q6_k", {"unroll": 4, "reading": "ahead"}),
            ("40,5,256 q6_k float16", {"micro_tile_n": 8}),
            ("32,1,64 q8_0", {}),
            ("36,1,160 q4_0", {"packed_words": 4, "x_storage": "local"}),
            ("64,1,256 q4_k", {"packed_words": 4, "x_storage": "local", "work_group_k": 2}),
            ("32,1,256 q6_k float16", {"packed_words": 4, "x_storage": "local", "micro_tile_n": 8, "reading": "ahead"}),
            ("36,1,96 q8_0 float16", {"packed_words": 4, "x_storage": "local", "micro_tile_n": 8}),
            ("64,1,288 mxfp4", {"packed_words": 4, "x_storage": "local", "micro_tile_m": 8, "unroll": 2}),
            ("132,2,128 mxfp4", {"micro_tile_m": 16, "unroll": 2}),
            ("36,8,64 mxfp4 float16", {"micro_tile_n": 8}),
            ("36,2,128 int4-g64", {"unroll": 2}),
            ("64,1,128 int4z-g128", {"work_group_k": 2}),
            ("36,7,64 int4z-g32 float16 experts=3", {"micro_tile_n": 8, "x_storage": "local"}),
            ("32,9,64 mxfp4 experts=4", {"x_storage": "local"}),
        ],
        5,
    ),
)
def test_a_product_with_quantised_weights_by_matrix_units_is_right(
    pocl: Device, shape: str, values: dict[str, Value]
) -> None:
    problem, configuration = QGemmProblem.parse(shape), with_changes(PLAIN, values)
    assert FAMILY.violations(problem, configuration, LIMITS) == []
    trial = Measurer(StandIn(pocl.selector)).measure(quick_job(pocl, problem, configuration))
    assert trial.state is TrialState.COMPLETE, trial.message


def test_they_are_for_floats_and_for_rows_that_can_be_read_by_four() -> None:
    def many(shape: str, *, has_units: bool = True) -> int:
        limits = replace(LIMITS, has_matrix_units=has_units)
        return len(SearchSpace(FAMILY, QGemmProblem.parse(shape), limits, algorithms=["matrix_rows"]))

    assert many("512,1,512 q4_0") and many("512,1,512 q4_0 float16")
    assert not many("512,1,512 q4_0", has_units=False)
    assert not many("512,1,512 q4_0 int8") and not many("510,1,512 q4_0")


@pytest.mark.parametrize(
    "shape", ["16384,1,8192 q4_0", "4096,1,4096 q4_k float16", "128256,4,512 q6_k", "256,8,2048 mxfp4"]
)
def test_the_rule_takes_them_for_few_columns(shape: str) -> None:
    problem = QGemmProblem.parse(shape)
    assert FAMILY.default(problem, LIMITS, ()).algorithm == "matrix_rows"
    assert FAMILY.default(problem, replace(LIMITS, has_matrix_units=False), ()).algorithm == "shared_rows"
    assert FAMILY.default(replace(problem, mode="int8"), LIMITS, ()).algorithm == "shared_rows"


def test_one_column_that_exceeds_local_memory_is_read_from_the_buffer() -> None:
    for k, storage in ((8192, "local"), (16384, "buffer")):
        default = FAMILY.default(QGemmProblem.parse(f"16384,1,{k} q4_0"), LIMITS, ())
        assert default.algorithm == "matrix_rows" and default["x_storage"] == storage


TILE = Configuration.of(
    "matrix_tile", macro_tile_m=32, macro_tile_n=32, sub_group_tile_m=16, sub_group_tile_n=32, tile_k=32, stages=2,
    read_ahead=0, split_k=1, scaling="sums",
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "values"),
    first_short(
        [
            ("37,17,64 q4_0 float16", {"read_ahead": 1}),
            ("64,33,128 q4_0", {"tile_k": 64, "read_ahead": 1, "stages": 3}),
            ("35,20,96 q4_0 int8", {"read_ahead": 1}),
            ("32,16,64 q8_0 float16", {"macro_tile_n": 16, "sub_group_tile_n": 16}),
            ("35,20,64 q8_0 int8", {"tile_k": 64}),
            ("70,20,256 q4_k float16", {"macro_tile_m": 64, "sub_group_tile_m": 32, "read_ahead": 1}),
            ("40,20,512 q4_k", {"tile_k": 64, "split_k": 1}),
            ("40,20,512 q4_k int8", {"tile_k": 128}),
            ("36,20,256 q6_k float16", {"tile_k": 64}),
            ("36,20,256 q6_k int8", {"split_k": 2}),
            ("35,20,64 mxfp4", {}),
            ("35,20,64 mxfp4 int8", {}),
            ("35,20,128 int4-g64", {"tile_k": 128}),
            ("35,20,128 int4z-g128 float16", {"tile_k": 64, "split_k": 1}),
            ("35,20,128 int4z-g32 int8", {"tile_k": 128, "read_ahead": 1}),
            ("32,32,1024 q4_k", {"split_k": 2, "tile_k": 64}),
            ("33,60,256 q4_0 float16 experts=4", {"split_k": 3}),
            ("36,75,256 q4_k float16 experts=4", {}),
            ("66,22,128 q8_0 int8 experts=3", {"split_k": 2}),
            ("36,75,96 mxfp4 experts=4", {"macro_tile_n": 64, "sub_group_tile_n": 64}),
            ("37,17,192 q4_0 float16", {"scaling": "weights", "tile_k": 64, "read_ahead": 1}),
            ("36,20,256 q4_k float16", {"scaling": "weights", "tile_k": 128}),
            ("36,20,256 q6_k float16", {"scaling": "weights", "tile_k": 64, "split_k": 2}),
            ("32,20,64 q8_0 float16", {"scaling": "weights", "read_ahead": 1}),
            ("35,20,128 int4z-g64 float16", {"scaling": "weights", "tile_k": 128}),
        ],
        4,
    ),
)
def test_a_tile_of_many_columns_by_matrix_units_is_right(pocl: Device, shape: str, values: dict[str, Value]) -> None:
    problem, configuration = QGemmProblem.parse(shape), with_changes(TILE, values)
    assert FAMILY.violations(problem, configuration, LIMITS) == []
    trial = Measurer(StandIn(pocl.selector)).measure(quick_job(pocl, problem, configuration))
    assert trial.state is TrialState.COMPLETE, trial.message


@pytest.mark.long
def test_blocks_without_a_scale_count_as_their_offsets(pocl: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of Q4_K are divided by the scales of blocks."""

    def with_zeros(one: WeightFormat, rows: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        weights = random_weights(one, rows, k, rng).reshape(-1, one.block_bytes)
        weights[::3, :2] = 0
        return weights.ravel()

    monkeypatch.setattr(reference, "random_weights", with_zeros)
    for shape in ("32,32,768 q4_k float16", "32,32,256 q4_k int8"):
        trial = Measurer(StandIn(pocl.selector)).measure(quick_job(pocl, QGemmProblem.parse(shape), TILE))
        assert trial.state is TrialState.COMPLETE, trial.message


@pytest.mark.parametrize("shape", ["1000,1016,2048 q4_0 float16", "1000,70,2048 q6_k", "1024,1024,2048 q4_k int8"])
def test_every_tile_that_fits_can_be_rendered_and_launched(shape: str) -> None:
    check_tiles(FAMILY, QGemmProblem.parse(shape), "m", "n")


def test_tiles_are_for_devices_with_matrix_units_and_the_rule_takes_them() -> None:
    without = replace(LIMITS, has_matrix_units=False)
    for shape in ("4096,512,4096 q4_0 float16", "4096,16,4096 q4_k", "300,100,2880 mxfp4 int8"):
        problem = QGemmProblem.parse(shape)
        assert FAMILY.default(problem, LIMITS, ()).algorithm == "matrix_tile"
        assert FAMILY.default(problem, without, ()).algorithm != "matrix_tile"
        assert not len(SearchSpace(FAMILY, problem, without, algorithms=["matrix_tile"]))


def test_weights_are_rounded_to_float16_only_where_activations_are() -> None:
    def default(shape: str) -> Configuration:
        return FAMILY.default(QGemmProblem.parse(shape), replace(LIMITS, declared_local_memory_bytes=147456), ())

    for shape in ("4096,512,4096 q4_0 float16", "4096,128,4096 q4_k float16", "1000,100,96 q8_0 float16"):
        assert default(shape)["scaling"] == "weights"
    for shape in ("4096,512,4096 q4_0", "4096,512,4096 mxfp4 float16", "4096,512,4096 q4_k int8"):
        assert default(shape)["scaling"] == "sums"
        problem = QGemmProblem.parse(shape)
        assert FAMILY.violations(problem, with_changes(TILE, {"scaling": "weights"}), LIMITS)


def test_k_is_shared_out_where_the_tiles_leave_compute_units_without_work() -> None:
    limits = replace(LIMITS, declared_local_memory_bytes=147456)
    parts = {
        shape: FAMILY.default(QGemmProblem.parse(f"{shape} q4_0 float16"), limits, ())["split_k"]
        for shape in ("4096,128,4096", "8192,128,4096", "14336,128,4096", "4096,512,4096")
    }
    assert list(parts.values()) == [4, 2, 1, 1]


def test_what_is_packed_for_tiles_by_matrix_units_has_no_way_back() -> None:
    problem = QGemmProblem.parse("64,32,256 q4_k")
    for configuration, has_way in ((TILE, False), (with_changes(PLAIN, {}), True)):
        plan = FAMILY.plan(replace(problem, n=1) if has_way else problem, configuration)
        packs = [launch for launch in plan.launches if launch.prepares]
        assert [can_be_undone(launch) for launch in packs] == [has_way]
