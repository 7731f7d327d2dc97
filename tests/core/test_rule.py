"""The default of GEMM: chosen by rule from the size, the device's limits and what the profile names."""

import itertools
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device.machine import machine_of
from autotune.device.profile import find_profile
from autotune.errors import ProblemError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.gemm.estimate import ESTIMATE
from autotune.kernels.gemm.rule import candidates
from autotune.lookup.json_table import read_contents
from autotune.model.configuration import Configuration
from autotune.model.device import Device, DeviceLimits
from autotune.model.machine import UNKNOWN, WorkGroup
from autotune.space.family import Starts
from factories import LARGE_GPU, PHONE, PROCESSOR

DEVICES = {
    slug: Device(slug=slug, vendor="", model="", family=family, limits=limits)
    for slug, family, limits in (
        ("nvidia-h200", "nvidia", LARGE_GPU),
        ("adreno-740", "adreno", PHONE),
        ("adreno-610", "adreno", replace(PHONE, compute_units=1)),
        ("mali-g610-mc6", "mali", replace(PHONE, sub_group_sizes=(16,), has_images=False)),
        ("intel-arc", "intel", replace(LARGE_GPU, extensions=())),
        ("amd-radeon", "amd", replace(LARGE_GPU, extensions=(), local_memory_bytes=64 * 1024)),
        ("pocl", "cpu", PROCESSOR),
        ("other", "gpu", DeviceLimits(compute_units=4)),
    )
}
H200_TABLE = Path(__file__).parents[2] / "db" / "tables" / "nvidia-h200.json"


def default(slug: str, shape: str) -> Configuration:
    device = DEVICES[slug]
    return FAMILY.default(GemmProblem.parse(shape), device.limits, find_profile(device).starting("gemm"))


def estimate(device: Device, problem: GemmProblem, configuration: Configuration) -> int:
    numbers = candidates((configuration,), device.limits)[configuration]
    return int(ESTIMATE({**device.limits.constraint_values(), **problem.constraint_values(), **numbers}))


def rows(configuration: Configuration) -> int:
    return configuration.number("work_group_m") * configuration.number("micro_tile_m")


def columns(configuration: Configuration) -> int:
    return configuration.number("work_group_n") * configuration.number("micro_tile_n")


# What is chosen


@pytest.mark.parametrize("slug", ["nvidia-h200", "adreno-740", "mali-g610-mc6", "intel-arc", "amd-radeon", "pocl"])
def test_one_row_and_one_column_have_their_own_kernels(slug: str) -> None:
    assert default(slug, "1,2048,2048").algorithm == ("strip" if slug == "pocl" else "row")
    assert default(slug, "2048,1,2048").algorithm == ("dot" if slug == "pocl" else "column")


@pytest.mark.parametrize("slug", ["nvidia-h200", "adreno-740", "mali-g610-mc6", "intel-arc", "amd-radeon"])
def test_vectors_times_a_transposed_matrix_have_the_kernels_of_the_product_of_the_transposes(slug: str) -> None:
    assert default(slug, "4096,1,4096 tn") == default(slug, "1,4096,4096")
    assert default(slug, "1,4096,4096 nt batch=3") == default(slug, "4096,1,4096 batch=3")


@pytest.mark.parametrize("slug", ["adreno-740", "mali-g610-mc6"])
def test_a_phone_copies_no_transposed_matrix_for_few_rows(slug: str) -> None:
    for few in (2, 4):
        found = default(slug, f"{few},4096,4096 nt")
        assert (found.algorithm, found["micro_tile_n"]) == ("column", few)


@pytest.mark.parametrize("slug", ["nvidia-h200", "adreno-740", "mali-g610-mc6", "intel-arc", "amd-radeon"])
@pytest.mark.parametrize("shape", ["1,1,1000000", "2,1,100000", "3,3,4096", "1,8,4096 float16"])
def test_few_results_of_a_long_k_are_shared_by_many_work_items(slug: str, shape: str) -> None:
    found = default(slug, shape)
    assert found.algorithm == "column"
    assert found.number("work_group_m") * found.number("work_group_k") >= 64
    assert found.number("work_group_m") <= GemmProblem.parse(shape).m


def test_a_processor_reads_b_once_for_many_rows() -> None:
    tall = default("pocl", "128,3136,1152")
    assert (tall.algorithm, rows(tall)) == ("microtile", 128), "B would pass once for every micro-tile's rows"
    for crowded in ("1024,1024,1024", "2048,2048,2048", "512,512,512 ldb=1024"):
        assert default("pocl", crowded).algorithm == "panel", "rows of B 4 KiB apart drive one another from the caches"
    assert default("pocl", "1024,1024,1024 nt").algorithm == "panel", "the copy turns B on the way"
    assert default("pocl", "16,4096,1024").algorithm == "microtile", "few rows do not pay for a copy"
    assert default("pocl", "2048,8,2048")["micro_tile_n"] == 8
    assert rows(default("pocl", "40,2000,1000")) == 64, "work-items without rows cost nothing"
    assert default("pocl", "40,2000,3000").algorithm == "panel", "so long a column of B leaves the caches"


@pytest.mark.parametrize(("lanes", "registers"), [(4, 16), (8, 16), (16, 32)], ids=["sse", "avx2", "avx512"])
@pytest.mark.parametrize("shape", ["512,512,512", "300,200,100", "64,3136,576", "1024,1024,1024 nt", "2000,2000,700"])
def test_the_sums_of_a_tile_fit_the_registers_of_a_processor(lanes: int, registers: int, shape: str) -> None:
    """On AVX2 8 x 32 took two to three times as long as 6 x 16."""
    device = replace(DEVICES["pocl"], limits=replace(PROCESSOR, native_vector_float32=lanes))
    chosen = FAMILY.default(GemmProblem.parse(shape), device.limits, find_profile(device).starting("gemm"))
    high, wide = chosen.number("micro_tile_m"), chosen.number("micro_tile_n") // lanes
    assert wide >= 1 and high * wide >= registers // 2, "the vector unit waits for each sum"
    assert (high + 1) * wide + 1 <= registers


def test_where_a_processor_tells_no_vector_length_the_profile_decides() -> None:
    for told in (0, 1):
        device = replace(DEVICES["pocl"], limits=replace(PROCESSOR, native_vector_float32=told))
        chosen = FAMILY.default(GemmProblem(m=512, n=512, k=512), device.limits, find_profile(device).starting("gemm"))
        assert (chosen["micro_tile_m"], chosen["micro_tile_n"]) == (8, 32)


@pytest.mark.parametrize("kind", ["int8", "float16", "nt int8", "tn float16", "tt", "int8 batch=12"])
@pytest.mark.parametrize("shape", ["1024,1024,1024", "512,2048,1024", "200,300,700"])
def test_every_mode_has_a_tile_in_local_memory_on_a_large_gpu(kind: str, shape: str) -> None:
    assert default("nvidia-h200", f"{shape} {kind}").algorithm == "local_tile"


def test_few_columns_get_a_tall_tile_and_many_do_not() -> None:
    few = default("nvidia-h200", "11008,32,4096")
    assert rows(few) >= 4 * columns(few)
    many = default("nvidia-h200", "3000,2000,500")
    assert rows(many) < 4 * columns(many)


def test_work_groups_that_a_product_does_not_fill_are_avoided() -> None:
    for n in (64, 128):
        chosen = default("adreno-740", f"12544,{n},64")
        assert columns(chosen) <= n
    assert rows(default("adreno-740", "16,8192,512 nn lda=516")) == 16
    assert rows(default("nvidia-h200", "64,50176,128")) == 64, "a macro-tile of 128 rows is half empty"


@pytest.mark.parametrize(
    ("slug", "wanted"),
    [
        ("adreno-740", [8, 8, 16, 32, 32]),
        ("adreno-610", [8, 16, 32, 32, 32]),
        ("mali-g610-mc6", [8, 8, 16, 32, 32]),
    ],
)
def test_a_work_item_of_a_phone_has_as_many_outputs_as_were_measured_to_be_best(slug: str, wanted: list[int]) -> None:
    sizes = (128, 256, 512, 1024, 4096)
    tiles = [default(slug, f"{size},{size},{size} constant=b") for size in sizes]
    outputs = [tile.number("micro_tile_m") * tile.number("micro_tile_n") for tile in tiles]
    assert outputs == wanted
    assert default(slug, "256,256,1024 batch=64 constant=b")["micro_tile_n"] == tiles[-1]["micro_tile_n"]


def test_a_tile_leaves_registers_for_what_it_loads() -> None:
    large = default("mali-g610-mc6", "1024,1024,1024")
    outputs = large.number("micro_tile_m") * large.number("micro_tile_n")
    loaded = large.number("a_vector_width") * large.number("micro_tile_m") + large.number("micro_tile_n")
    assert outputs + loaded < 64


def test_a_work_group_is_never_larger_than_the_profile_or_the_machine_has_it() -> None:
    """The limit of a kernel falls with its registers, so that a larger one may not launch."""
    for device in DEVICES.values():
        starts = find_profile(device).starting("gemm")
        known = {size_of(start) for start in starts} | {starts.machine.work_group}
        smaller = {s >> halved for s in known for halved in range(1, 6 if device.limits.is_cpu else 2)}
        assert {size_of(c) for c in candidates(starts, device.limits)} - known <= smaller


def size_of(configuration: Configuration) -> int:
    values = dict(configuration.values)
    sizes = [int(values.get(f"work_group_{name}", 1)) for name in "mnk"]
    return sizes[0] * sizes[1] * sizes[2]


def test_small_products_are_spread_over_the_compute_units() -> None:
    def groups(shape: str) -> int:
        chosen, problem = default("nvidia-h200", shape), GemmProblem.parse(shape)
        return -(-problem.m // rows(chosen)) * -(-problem.n // columns(chosen)) * chosen.number("split_k")

    assert groups("512,512,512") >= 100, "128 x 128 tiles leave 116 of 132 compute units without work"
    assert groups("512,196,4608") >= 100
    assert default("nvidia-h200", "128,128,8192").number("split_k") > 1
    assert default("nvidia-h200", "4096,4096,4096").number("split_k") == 1
    assert rows(default("nvidia-h200", "4096,4096,4096")) == 128


@pytest.mark.parametrize("shape", ["100,100,100000", "64,64,50000", "128,128,20000 nt", "100,100,100000 float16"])
def test_a_very_long_k_is_shared_by_many_work_groups(shape: str) -> None:
    chosen, problem = default("nvidia-h200", shape), GemmProblem.parse(shape)
    assert chosen.number("split_k") > 32
    assert -(-problem.m // rows(chosen)) * -(-problem.n // columns(chosen)) * chosen.number("split_k") >= 128
    assert chosen["combine"] == "launch", "the last work-group would join too many parts by itself"


def test_an_image_has_to_pay_for_its_copy() -> None:
    assert default("adreno-740", "1024,1024,1024")["b_storage"] == "image"
    assert default("adreno-740", "64,64,64")["b_storage"] == "buffer"


@pytest.mark.parametrize("slug", ["adreno-740", "mali-g610-mc6", "intel-arc", "amd-radeon", "pocl", "other"])
@pytest.mark.parametrize("kind", ["nt", "tt", "int8", "tn int8", "float16"])
def test_every_layout_and_type_gets_a_tile(slug: str, kind: str) -> None:
    assert default(slug, f"512,512,512 {kind}").algorithm in ("microtile", "local_tile", "panel")


def test_of_equal_estimates_the_first_start_is_taken() -> None:
    one = Configuration.of("naive", work_group_m=1, work_group_n=64)
    other = Configuration.of("naive", work_group_m=64 // 8, work_group_n=8)
    problem = GemmProblem(m=64, n=64, k=64)
    alike = [one, Configuration.of("naive", work_group_m=1, work_group_n=64)]
    assert FAMILY.default(problem, LARGE_GPU, alike) == one
    assert FAMILY.default(problem, LARGE_GPU, [one, other]) == other, "it shares more"


def test_what_is_not_declared_is_never_chosen() -> None:
    wrong = [
        Configuration.of("of_tomorrow", x=1),
        Configuration.of("microtile", micro_tile_m=8),
        Configuration.of("local_tile", split_k="many"),
        Configuration.of("naive", work_group_m=3, work_group_n=3),
    ]
    assert FAMILY.default(GemmProblem(m=64, n=64, k=64), LARGE_GPU, wrong) == FAMILY.baseline


# What holds for all


def problems() -> list[GemmProblem]:
    numbers = random.Random(11)
    sizes = (1, 2, 3, 7, 16, 33, 64, 100, 500, 1024, 4097)
    found = []
    for _ in range(150):
        values: dict[str, Any] = {name: numbers.choice(sizes) for name in "mnk"}
        values |= {"trans_a": numbers.randrange(2), "trans_b": numbers.randrange(2), "batch": numbers.choice((1, 1, 5))}
        found.append(GemmProblem(**values, mode=numbers.choice(("float32", "float32", "float16", "int8"))))
    return found


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.slug)
def test_defaults_are_valid_and_the_least_of_the_valid(device: Device) -> None:
    starts = find_profile(device).starting("gemm")
    known = candidates(starts, device.limits)
    assert len(starts) <= len(known) <= 600, "exported C holds them all, for every numeric mode"
    for problem in problems():
        chosen = FAMILY.default(problem, device.limits, starts)
        valid = [c for c in known if not FAMILY.violations(problem, c, device.limits)]
        values = {**device.limits.constraint_values(), **problem.constraint_values()}
        assert chosen in valid
        assert ESTIMATE({**values, **known[chosen]}) == min(ESTIMATE({**values, **known[c]}) for c in valid)


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.slug)
def test_estimates_fit_the_integers_of_c(device: Device) -> None:
    extreme = (1, 2, 3, 46340, 65536, 2**20, 2**31 - 1)
    known = candidates(find_profile(device).starting("gemm"), device.limits)
    seen = 0
    for m, n, k, batch in itertools.product(extreme, repeat=4):
        try:
            problem = GemmProblem(m=m, n=n, k=k, batch=batch)
        except ProblemError:
            continue
        seen += 1
        values = {**device.limits.constraint_values(), **problem.constraint_values(), "compute_units": 1}
        assert all(0 < ESTIMATE({**values, **numbers}) < 2**63 for numbers in known.values())
    assert seen > 50


def test_estimates_follow_what_was_measured() -> None:
    """Of the winners on an H200, from 14 us to 22 ms, whatever the shape: a fitted constant apart, and a launch."""
    contents = read_contents(H200_TABLE)
    launch_ns = 6_000
    ratios = [
        estimate(contents.devices[0], winner.problem, winner.configuration) / (winner.time_ns - launch_ns)
        for winner in contents.winners
        if isinstance(winner.problem, GemmProblem) and winner.time_ns > 14_000
    ]
    middle = statistics.median(ratios)
    assert len(ratios) > 50
    assert sum(middle / 1.5 < ratio < middle * 1.5 for ratio in ratios) >= 0.9 * len(ratios)


# How many work-groups a compute unit runs at once


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
    assert group.at_once(LARGE_GPU, UNKNOWN) == expected


def test_a_compute_unit_of_nvidias_has_local_memory_for_more() -> None:
    group = WorkGroup(items=64, outputs=16, operands=8, local_bytes=24 * 1024)
    assert (group.at_once(LARGE_GPU, UNKNOWN), group.at_once(LARGE_GPU, machine_of("nvidia-h200", "nvidia"))) == (2, 8)


def test_above_32_registers_a_mali_runs_half_the_work_items() -> None:
    machine = machine_of("mali-g610-mc6", "mali")
    light, heavy = (WorkGroup(items=64, outputs=outputs, operands=0) for outputs in (0, 16))
    assert heavy.at_once(PHONE, machine) == 8
    assert light.at_once(PHONE, machine) == 8, "40 registers are for addresses and counters already"


def test_the_default_counts_the_work_groups_that_fit_a_compute_unit() -> None:
    tile = {p.name: p.values[0] for p in FAMILY.algorithm("local_tile").parameters}
    tile |= {"work_group_m": 16, "work_group_n": 8, "micro_tile_m": 4, "micro_tile_n": 8, "tile_k": 16, "stages": 2}
    configuration = Configuration.of("local_tile", **tile)
    starts = Starts((configuration,), machine_of("nvidia-h200", "nvidia"))
    (numbers,) = (n for c, n in candidates(starts, LARGE_GPU).items() if c == configuration)
    assert numbers["resident"] == 5
