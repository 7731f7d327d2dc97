"""GEMM by matrix units, which PoCL has not: functions that do the same, work-item by work-item, stand in for them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyopencl as cl
import pytest

from autotune.device.opencl import Session
from autotune.device.profile import find_profile
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.kernels.render import render
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from autotune.testing import covering_sample
from factories import device, quick_job
from untraced import untraced

LIMITS = DeviceLimits(
    compute_units=132, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64), local_memory_bytes=49152,
    has_float16=True, has_matrix_units=True, sub_group_sizes=(32,), extensions=("cl_nv_device_attribute_query",),
)  # fmt: skip

NVIDIA = device("nvidia-h100", limits=LIMITS)

PRELUDE = """
void copy_16(__local char *to, __global const void *from, const int there)
{
    for (int i = 0; i < 16; ++i)
        to[i] = i < there ? ((__global const char *)from)[i] : 0;
}
#define end_copies()
#define wait_for_copies()
uint4 four_matrices(__local const char *row, const bool is_turned, __local ulong *rows)
{
    const int item = get_local_id(0), first = item / 32 * 32, lane = item % 32;
    rows[item] = (ulong)row;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint found[4];
    for (int q = 0; q < 4; ++q) {
        __local const ulong *at = rows + first + 8 * q;
        if (is_turned) {
            const uint low = ((__local const ushort *)at[lane % 4 * 2])[lane / 4];
            const uint high = ((__local const ushort *)at[lane % 4 * 2 + 1])[lane / 4];
            found[q] = low | high << 16;
        } else {
            found[q] = ((__local const uint *)at[lane / 4])[lane % 4];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return (uint4)(found[0], found[1], found[2], found[3]);
}
SUM product(const uint a, const uint b)
{
#ifdef WHOLE
    const char4 x = as_char4(a), y = as_char4(b);
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
#else
    const uint x[1] = {a}, y[1] = {b};
    return vload_half(0, (const half *)x) * vload_half(0, (const half *)y)
         + vload_half(1, (const half *)x) * vload_half(1, (const half *)y);
#endif
}
void multiply_by_one(SUM4 *sums, const uint4 a, const uint2 b, __local uint *of_a, __local uint *of_b)
{
    const int item = get_local_id(0), first = item / 32 * 32, lane = item % 32;
    vstore4(a, item, of_a);
    vstore2(b, item, of_b);
    barrier(CLK_LOCAL_MEM_FENCE);
    SUM found[4];
    for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        found[e] = 0;
        for (int step = 0; step < 8; ++step)
            found[e] += product(of_a[(first + row % 8 * 4 + step % 4) * 4 + step / 4 * 2 + row / 8],
                                of_b[(first + column * 4 + step % 4) * 2 + step / 4]);
    }
    *sums += (SUM4)(found[0], found[1], found[2], found[3]);
    barrier(CLK_LOCAL_MEM_FENCE);
}
#define read_matrices(row) four_matrices(row, false, rows_of_items)
#define read_turned_matrices(row) four_matrices(row, true, rows_of_items)
#define multiply(sums, a, b) multiply_by_one(sums, a, b, of_a, of_b)
"""
LOCALS = """
    __local ulong rows_of_items[512];
    __local uint of_a[2048];
    __local uint of_b[1024];
"""
REPLACED = re.compile(
    r"^(void|uint4) (copy_16|end_copies|wait_for_copies|read_matrices|read_turned_matrices|multiply)\(.*?^}\n",
    re.MULTILINE | re.DOTALL,
)


class StandIn(Session):
    """A session on PoCL that behaves as if its sub-groups had matrix units."""

    def build(self, source: str, options: Sequence[str]) -> cl.Program:
        if "tiles" not in source:
            return super().build(source, options)
        whole = "char *restrict A" in source
        types = (
            "#define SUM int\n#define SUM4 int4\n#define WHOLE\n"
            if whole
            else "#define SUM float\n#define SUM4 float4\n"
        )
        plain, replaced = REPLACED.subn("", source)
        assert replaced in (5, 6)
        before, tiles, after = plain.partition("    __local char tiles")
        assert tiles
        return super().build(types + PRELUDE + before + LOCALS + tiles + after, options)


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


@pytest.mark.parametrize("shape", SHAPES)
@untraced()
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
    assert set(space(shape).occurring("matrix_tile", "edges")) == {edges}


@pytest.mark.parametrize("mode", ["float16", "float16-acc16", "tt float16", "nt int8", "int8"])
def test_the_rule_takes_matrix_units_where_there_are_any(mode: str) -> None:
    problem = GemmProblem.parse(f"2048,2048,2048 {mode}")
    starts = find_profile(NVIDIA).starting("gemm")
    assert FAMILY.default(problem, LIMITS, starts).algorithm == "matrix_tile"
    assert FAMILY.default(problem, replace(LIMITS, has_matrix_units=False), starts).algorithm == "local_tile"


@pytest.mark.parametrize("mode", ["nn float16", "tt float16", "tn float16-acc16", "nt int8"])
def test_every_tile_that_fits_can_be_rendered_and_launched(mode: str) -> None:
    problem = GemmProblem.parse(f"1000,1016,2048 {mode}".replace("nn ", ""))
    found = SearchSpace(FAMILY, problem, LIMITS, algorithms=["matrix_tile"])
    for sample in covering_sample([found], "matrix_tile", strength=2, seed=1):
        c = sample.configuration
        plan = FAMILY.plan(problem, c)
        source = render(FAMILY, c, plan)
        [launch] = [launch for launch in plan.launches if launch.kernel == "gemm"]
        assert launch.local_size and f"reqd_work_group_size({launch.local_size[0]}, 1, 1)" in source
        groups = [-(-1000 // c.number("macro_tile_m")), -(-1016 // c.number("macro_tile_n"))]
        assert launch.global_size == (groups[1] * launch.local_size[0], groups[0], c.number("split_k"))
        [tiles] = re.findall(r"__local char tiles\[(\d+)\]", source)
        assert int(tiles) <= LIMITS.local_memory_bytes
