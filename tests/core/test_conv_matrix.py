"""Convolution by matrix units, which PoCL has not: functions that do the same, item by item, stand in for them."""

from dataclasses import replace

import pytest

from autotune.kernels.conv import FAMILY, ConvProblem
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Value
from autotune.model.device import Device
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from covering import covering_sample
from factories import first_short, quick_job
from stand_in import LIMITS, StandIn

SMALL: dict[str, tuple[Value, ...]] = {
    "macro_tile_m": (32, 64), "macro_tile_n": (32, 64), "sub_group_tile_m": (16, 32), "sub_group_tile_n": (16, 32),
    "split_k": (1, 2, 3), "combine": ("launch", "last_group_ptx"),
}  # fmt: skip
SHAPES = (
    "1,9,7,16,40,3x3 pad=1 float16 bias relu", "2,6,5,24,33,1x1 float16 stride=2 residual",
    "1,5,6,40,70,2x3 float16 dilation=2:1 silu", "1,4,5,16,24,3x3 float16 transposed stride=2 pad=1:0:1:1",
    "1,8,8,48,66,3x3 float16 groups=3 pad=1 bias", "3,7,7,72,64,1x1 float16 relu6",
    "1,3,2,8,12,5x5 float16 pad=3:2:3:2 leaky",
)  # fmt: skip


WIDE: dict[str, tuple[Value, ...]] = {
    "macro_tile_m": (64,), "macro_tile_n": (128,), "sub_group_tile_m": (32,), "sub_group_tile_n": (64,),
    "split_k": (4,),
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "overrides"),
    first_short([("1,6,6,256,130,1x1 float16 bias", WIDE), *((shape, SMALL) for shape in SHAPES)], 3),
)
def test_a_convolution_by_matrix_units_is_right(
    pocl: Device, shape: str, overrides: dict[str, tuple[Value, ...]]
) -> None:
    problem = ConvProblem.parse(shape)
    space = SearchSpace(FAMILY, problem, LIMITS, algorithms=["matrix_tile"], overrides=overrides)
    samples = covering_sample([space], "matrix_tile", strength=1, seed=1)
    assert samples
    for sample in samples[:4]:
        job = quick_job(pocl, problem, sample.configuration, min_sample_ns=1, probe=False)
        trial = Measurer(StandIn(pocl.selector)).measure(job)
        assert trial.state is TrialState.COMPLETE, (sample.configuration, trial.message)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("1,56,56,64,64,1x1", 1), ("1,7,7,512,512,3x3 pad=1 bias", 4), ("8,56,56,64,64,3x3 pad=1", 1)],
)
def test_the_rule_takes_matrix_units_where_there_are_any(text: str, parts: int) -> None:
    problem = ConvProblem.parse(f"{text} float16")
    chosen = FAMILY.default(problem, LIMITS, ())
    assert chosen.algorithm == "matrix_tile" and chosen.number("split_k") == parts
    without = replace(LIMITS, has_matrix_units=False)
    assert FAMILY.default(problem, without, ()).algorithm in ("implicit", "winograd")


@pytest.mark.parametrize(
    "text",
    [
        "1,9,9,16,16,3x3", "1,9,9,12,16,3x3 float16", "1,9,9,16,16,3x3 float16 layout=nchw",
        "1,9,9,16,16,3x3 groups=4 float16",
    ],
)  # fmt: skip
def test_only_channels_by_16_bytes_in_float16(text: str) -> None:
    assert not len(SearchSpace(FAMILY, ConvProblem.parse(text), LIMITS, algorithms=["matrix_tile"]))
