"""How many work-groups a compute unit runs at once: whichever runs out first tells."""

from dataclasses import replace

import pytest

from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.gemm.estimate import WorkGroup, tile_bytes
from autotune.kernels.gemm.rule import candidates
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.predict.costs import Work

LIMITS = DeviceLimits(compute_units=100, local_memory_bytes=48 * 1024, max_work_group_size=1024)
NVIDIA = replace(LIMITS, extensions=("cl_nv_device_attribute_query",))


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (WorkGroup(items=1024, outputs=1, operands=2), 1),  # of 2048 work-items two; of registers for 45 each, one
        (WorkGroup(items=512, outputs=1, operands=0), 3),
        (WorkGroup(items=64, outputs=16, operands=8), 14),
        (WorkGroup(items=256, outputs=512, operands=48), 1),  # 255 registers are the most that one may have
        (WorkGroup(items=64, outputs=16, operands=8, local_bytes=10 * 1024), 4),
        (WorkGroup(items=64, outputs=16, operands=8, local_bytes=2 * 48 * 1024), 1),
    ],
)
def test_what_runs_out_first_tells(group: WorkGroup, expected: int) -> None:
    assert group.at_once(LIMITS) == expected


def test_a_compute_unit_of_nvidias_has_local_memory_for_more() -> None:
    group = WorkGroup(items=64, outputs=16, operands=8, local_bytes=24 * 1024)
    assert (group.at_once(LIMITS), group.at_once(NVIDIA)) == (2, 8)


def test_the_default_and_predictions_count_alike() -> None:
    tile = {p.name: p.values[0] for p in FAMILY.algorithm("local_tile").parameters}
    tile |= {"work_group_m": 16, "work_group_n": 8, "micro_tile_m": 4, "micro_tile_n": 8, "tile_k": 16, "stages": 2}
    configuration = Configuration.of("local_tile", **tile)
    work = Work(configuration, GemmProblem.size_axes, NVIDIA)
    assert tile_bytes(work.number) == 4 * 2 * 16 * (64 + 64 + 2 * work.number("local_padding"))
    (numbers,) = (n for c, n in candidates((configuration,), NVIDIA).items() if c == configuration)
    assert work.at_once == numbers["resident"] == 5
