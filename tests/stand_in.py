"""A session on PoCL, which has no matrix units; functions that do the same, an item at a time, stand in for them."""

import re
from collections.abc import Sequence

import pyopencl as cl

from autotune.device.opencl import Session
from autotune.kernels.render import render
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily
from autotune.space.search_space import SearchSpace
from covering import covering_sample
from factories import UNOPTIMIZED

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
void copy_8(__local char *to, __global const void *from)
{
    for (int i = 0; i < 8; ++i)
        to[i] = ((__global const char *)from)[i];
}
void copy_4(__local char *to, __global const void *from)
{
    for (int i = 0; i < 4; ++i)
        to[i] = ((__global const char *)from)[i];
}
#define end_copies()
#define wait_for_copies()
uint4 four_matrices(__local const char *row, const bool is_turned, __local ulong *rows)
{
    const int item = get_local_id(1) * get_local_size(0) + get_local_id(0), first = item / 32 * 32, lane = item % 32;
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
    const int item = get_local_id(1) * get_local_size(0) + get_local_id(0), first = item / 32 * 32, lane = item % 32;
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
float from_another(const float value, const uint other, __local uint *values)
{
    const int item = get_local_id(1) * get_local_size(0) + get_local_id(0);
    values[item] = as_uint(value);
    barrier(CLK_LOCAL_MEM_FENCE);
    const float found = as_float(values[item / 32 * 32 + other % 32]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return found;
}
uint two_halves(const float low, const float high)
{
    /* Bytes, since what is written as halves may only be read as such or as bytes. */
    uchar bytes[4] __attribute__((aligned(4)));
    vstore_half(low, 0, (half *)bytes);
    vstore_half(high, 1, (half *)bytes);
    return as_uint(vload4(0, bytes));
}
float2 of_two_halves(const uint halves)
{
    uchar bytes[4] __attribute__((aligned(4)));
    vstore4(as_uchar4(halves), 0, bytes);
    return (float2)(vload_half(0, (const half *)bytes), vload_half(1, (const half *)bytes));
}
uint multiply_add_halves(const uint a, const uint b, const uint c)
{
    const float2 found = of_two_halves(a) * of_two_halves(b) + of_two_halves(c);
    return two_halves(found.x, found.y);
}
#define in_mantissa(word, mask, begun) (((word) & (mask)) ^ (begun))
#define multiply_halves(a, b) multiply_add_halves(a, b, 0x80008000u)
#define add_halves(a, b) multiply_add_halves(a, 0x3c003c00u, b)
#define read_matrices(row) four_matrices(row, false, rows_of_items)
#define read_turned_matrices(row) four_matrices(row, true, rows_of_items)
#define multiply(sums, a, b) multiply_by_one(sums, a, b, of_a, of_b)
#define streamed(from) (*(from))
#define from_item(value, item) from_another(value, item, of_a)
"""
LOCALS = """\
    __local ulong rows_of_items[512];
    __local uint of_a[2048];
    __local uint of_b[1024];
"""
REPLACED = re.compile(
    r"^(void|uint4|uint|float) (copy_(?:16|8|4)|end_copies|wait_for_copies|read_matrices|read_turned_matrices|multiply"
    r"|from_item|streamed|two_halves|add_halves|multiply_halves|multiply_add_halves|in_mantissa)\(.*?^}\n",
    re.MULTILINE | re.DOTALL,
)
FENCE = 'asm volatile("membar.gl;" ::: "memory");'
KERNEL = re.compile(r"^void (?:q?gemm|attention|conv)\(.*?^\{\n", re.MULTILINE | re.DOTALL)


class StandIn(Session):
    """A session on PoCL that behaves as if its sub-groups had matrix units."""

    def build(self, source: str, options: Sequence[str]) -> cl.Program:
        options = [*options, *UNOPTIMIZED]
        if "mma.sync" not in source:
            return super().build(source, options)
        whole = "int4 *sums" in source
        types = (
            "#define SUM int\n#define SUM4 int4\n#define WHOLE\n"
            if whole
            else "#define SUM float\n#define SUM4 float4\n"
        )
        plain, replaced = REPLACED.subn("", source.replace(FENCE, "mem_fence(CLK_GLOBAL_MEM_FENCE);"))
        assert replaced
        with_locals, kernels = KERNEL.subn(lambda begin: begin[0] + LOCALS, plain)
        assert kernels == 1
        return super().build(types + PRELUDE + with_locals, options)


def check_tiles(family: KernelFamily, problem: Problem, items: str, others: str) -> None:
    """Every tile that fits can be rendered and launched: work-groups along the sizes named `items`, then `others`."""
    found = SearchSpace(family, problem, LIMITS, algorithms=["matrix_tile"])
    for sample in covering_sample([found], "matrix_tile", strength=2, seed=1):
        c = sample.configuration
        plan = family.plan(problem, c)
        source = render(family, c, plan)
        [launch] = [launch for launch in plan.launches if launch.kernel == family.name]
        assert launch.local_size and f"reqd_work_group_size({launch.local_size[0]}, 1, 1)" in source
        first, second = (-(-getattr(problem, size) // c.number(f"macro_tile_{size}")) for size in (items, others))
        assert launch.global_size == (first * launch.local_size[0], second, c.number("split_k"))
        [tiles] = re.findall(r"__local char tiles\[(\d+)\]", source)
        assert int(tiles) <= LIMITS.local_memory_bytes
