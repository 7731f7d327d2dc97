"""Products with quantised weights by matrix units, which PoCL has not: see `stand_in.py`."""

from dataclasses import replace

import pytest

from autotune.kernels.qgemm import FAMILY, QGemmProblem
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from factories import quick_job
from stand_in import LIMITS, StandIn
from untraced import untraced

PLAIN = Configuration.of(
    "matrix_rows", work_group_m=1, work_group_k=1, micro_tile_m=4, micro_tile_n=4, packed_words=1, unroll=1,
    reading="now", x_storage="buffer",
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("64,1,160 q4_0", {"unroll": 2}),
        ("64,1,224 q4_0", {"unroll": 2, "reading": "ahead"}),
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
)
@untraced()
def test_a_product_with_quantised_weights_by_matrix_units_is_right(
    pocl: Device, shape: str, values: dict[str, Value]
) -> None:
    problem = QGemmProblem.parse(shape)
    configuration = replace(PLAIN, values=tuple(sorted({**dict(PLAIN.values), **values}.items())))
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
