"""GEMM by matrix units, which PoCL has not: functions that do the same, work-item by work-item, stand in for them."""

import re
from collections.abc import Sequence

import pyopencl as cl
import pytest

from autotune.device.opencl import Session
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration, Value
from autotune.model.device import Device, DeviceLimits
from autotune.model.trial import TrialState
from autotune.space.search_space import SearchSpace
from autotune.testing import covering_sample
from factories import quick_job
from untraced import untraced

LIMITS = DeviceLimits(
    compute_units=132, max_work_group_size=1024, max_work_item_sizes=(1024, 1024, 64), local_memory_bytes=49152,
    has_float16=True, has_matrix_units=True, sub_group_sizes=(32,), extensions=("cl_nv_device_attribute_query",),
)  # fmt: skip

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


@pytest.mark.parametrize(
    "shape",
    [
        "36,52,40 float16", "33,50,72 nt float16 batch=2", "70,39,131 tn float16 lda=72 ldb=40 ldc=42",
        "41,22,18 tt float16 lda=48 ldb=24 batch=2", "64,96,64 tt float16", "37,43,21 nt int8 lda=32 ldb=32 ldc=44",
        "67,34,133 tn int8 batch=2 stride_c=2400", "64,32,128 nt int8", "33,64,400 float16",
        "32,32,700 nt int8 batch=2",
    ],
)  # fmt: skip
@untraced()
def test_a_product_by_matrix_units_is_right(pocl: Device, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    space = SearchSpace(FAMILY, problem, LIMITS, algorithms=["matrix_tile"], overrides=SMALL)
    samples = covering_sample([space], "matrix_tile", strength=1, seed=1)[:4]
    assert samples
    assert not [told for s in samples if (told := wrong(pocl, problem, s.configuration))]
