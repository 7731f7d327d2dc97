"""A program for the tests of `autotune capture`: a product in local memory, and a kernel without a work-group."""

import numpy as np
import pyopencl as cl

SOURCE = """
#define TILE 8
#ifndef STEP
#define STEP 1
#endif
__kernel void matmul(const int n, __global const float *a, __global const float *b, __global float *c) {
    __local float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const int x = get_local_id(0), y = get_local_id(1);
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        a_tile[y][x] = a[get_global_id(1) * n + k + x];
        b_tile[y][x] = b[(k + y) * n + get_global_id(0)];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < TILE; i++) sum += a_tile[y][i] * b_tile[i][x];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[get_global_id(1) * n + get_global_id(0)] = sum;
}
__kernel void scale(__global float *c, float by) {
    for (int i = 0; i < STEP; i++) c[get_global_id(0) * STEP + i] *= by;
}
"""
n = 64
device = next(d for p in cl.get_platforms() for d in p.get_devices() if "pocl" in d.version.lower())
queue = cl.CommandQueue(context := cl.Context([device]))
program = cl.Program(context, SOURCE).build("-D STEP=2")
matmul, scale = cl.Kernel(program, "matmul"), cl.Kernel(program, "scale")
numbers = np.random.default_rng(0).random((2, n, n), dtype=np.float32)
a, b = (cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=x.copy()) for x in numbers)
c = cl.Buffer(context, 0, numbers[0].nbytes)
for _ in range(5):
    matmul(queue, (n, n), (8, 8), np.int32(n), a, b, c)
    scale(queue, (n * n // 2,), None, c, np.float32(0.5))
found = np.empty((n, n), np.float32)
cl.enqueue_copy(queue, found, c)
assert np.allclose(found, 0.5 * numbers[0] @ numbers[1])
