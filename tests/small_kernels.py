"""Small kernels of every shape: for each, a kernel file, its source, and the Python beside it."""

import textwrap
from pathlib import Path

import numpy as np

AXPY = (
    """
    name = "axpy"
    source = "axpy.cl"
    global_size = "ceil_div(n, each)"
    sizes = { n = 1000 }
    check = [{ n = 1 }, { n = 77 }]
    parameters = { each = [4, 1, 3] }
    [arguments]
    a = { scalar = "float32", value = 0.5 }
    x = { buffer = "float32", size = "n" }
    y = { buffer = "float32", size = "n", access = "inout", fill = "normal" }
    n = { scalar = "int32", value = "n" }
    [reference]
    python = "reference.py:axpy"
    """,
    """
    __kernel void axpy(const float a, __global const float *x, __global float *y, const int n) {
        for (int i = get_global_id(0) * each; i < min(n, (int)(get_global_id(0) + 1) * each); i++)
            y[i] += a * x[i];
    }
    """,
    "def axpy(x, y):\n    return y + 0.5 * x.astype(float)\n",
)
REPACKED = (
    """
    name = "repacked"
    source = "repacked.cl"
    sizes = { m = 60, k = 40 }
    check = [{ m = 7, k = 3 }]
    parameters = { pad = [0, 1, 5], transposed = [0, 1] }
    [arguments]
    a = { buffer = "float32", size = "m * k" }
    x = { buffer = "float32", size = "k" }
    packed = { buffer = "float32", size = "(m + pad) * k", access = "scratch" }
    y = { buffer = "float32", size = "m", access = "out" }
    m = { scalar = "int32", value = "m" }
    k = { scalar = "int32", value = "k" }
    [[launches]]
    kernel = "pack"
    global_size = "m, k"
    arguments = ["a", "packed", "m", "k"]
    when = "transposed == 1"
    once = true
    [[launches]]
    kernel = "columns"
    global_size = "m"
    arguments = ["packed", "x", "y", "m", "k"]
    when = "transposed == 1"
    [[launches]]
    kernel = "rows"
    global_size = "m"
    arguments = ["a", "x", "y", "m", "k"]
    when = "transposed == 0"
    """,
    """
    __kernel void pack(__global const float *a, __global float *packed, const int m, const int k) {
        packed[get_global_id(1) * (m + pad) + get_global_id(0)] = a[get_global_id(0) * k + get_global_id(1)];
    }
    __kernel void columns(__global const float *packed, __global const float *x, __global float *y, int m, int k) {
        float sum = 0;
        for (int p = 0; p < k; p++)
            sum += packed[p * (m + pad) + get_global_id(0)] * x[p];
        y[get_global_id(0)] = sum;
    }
    __kernel void rows(__global const float *a, __global const float *x, __global float *y, int m, int k) {
        float sum = 0;
        for (int p = 0; p < k; p++)
            sum += a[get_global_id(0) * k + p] * x[p];
        y[get_global_id(0)] = sum;
    }
    """,
    "",
)
LARGEST = (
    """
    name = "largest"
    source = "largest.cl"
    global_size = "rows * group"
    local_size = "group"
    sizes = { rows = 5, columns = 100 }
    check = [{ rows = 2, columns = 3 }]
    parameters = { group = [16, 1, 64] }
    [arguments]
    x = { buffer = "float32", size = "rows * columns" }
    value = { buffer = "float32", size = "rows", access = "out" }
    place = { buffer = "int32", size = "rows", access = "out" }
    columns = { scalar = "uint64", value = "columns" }
    found = { local = "4 * group" }
    [reference]
    python = "reference.py:largest"
    """,
    """
    __kernel void largest(
        __global const float *x, __global float *value, __global int *place, const ulong columns, __local int *found
    ) {
        const int item = get_local_id(0);
        x += get_group_id(0) * columns;
        int best = 0;
        for (int i = item; i < (int)columns; i += group)
            best = x[i] > x[best] ? i : best;
        found[item] = best;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item == 0) {
            for (int other = 1; other < group; other++)
                best = x[found[other]] > x[best] ? found[other] : best;
            value[get_group_id(0)] = x[best];
            place[get_group_id(0)] = best;
        }
    }
    """,
    """
def largest(x, rows):
    x = x.reshape(rows, -1)
    return {"value": x.max(axis=1), "place": x.argmax(axis=1)}
    """,
)
BLOCKS = (
    """
    name = "blocks"
    source = "blocks.cl"
    global_size = "m"
    local_size = "group"
    sizes = { m = 64, k = 256 }
    check = [{ m = 16, k = 32 }]
    parameters = { group = [8, 1, 16] }
    constraints = { whole_groups = "m % group == 0" }
    [arguments]
    weights = { buffer = "uint8", size = "m * k // 32 * 18", fill = "python", python = "reference.py:packed" }
    offset = { scalar = "uint64", value = 0 }
    x = { buffer = "float32", size = "k" }
    y = { buffer = "float32", size = "m", access = "out" }
    k = { scalar = "int32", value = "k" }
    [reference]
    python = "reference.py:product"
    """,
    """
    struct block { ushort scale; uchar codes[16]; };
    __kernel void blocks(__global const char *weights, const ulong offset, __global const float *x,
                         __global float *y, const int k) {
        __global const struct block *row = (__global const struct block *)(weights + offset);
        float sum = 0;
        row += get_global_id(0) * (k / 32);
        for (int b = 0; b < k / 32; b++, row++)
            for (int j = 0; j < 16; j++)
                sum += vload_half(0, (__global const half *)&row->scale) * (
                    ((row->codes[j] & 15) - 8) * x[b * 32 + j] + ((row->codes[j] >> 4) - 8) * x[b * 32 + j + 16]);
        y[get_global_id(0)] = sum;
    }
    """,
    """
import numpy as np

BLOCK = np.dtype([("scale", np.float16), ("codes", np.uint8, 16)])

def packed(m, k, numbers):
    blocks = np.zeros(m * k // 32, BLOCK)
    blocks["scale"] = numbers.uniform(0.01, 0.1, blocks.size)
    blocks["codes"] = numbers.integers(0, 256, (blocks.size, 16))
    return blocks.view(np.uint8)

def product(m, k, weights, x):
    blocks = weights.view(BLOCK)
    codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1) - 8.0
    return (codes * blocks["scale"][:, None].astype(float)).reshape(m, k) @ x
    """,
)
STORED = (
    """
    name = "stored"
    source = "stored.cl"
    global_size = "n"
    local_size = "group"
    sizes = { n = 64 }
    parameters = { group = [8, 1, 64] }
    [arguments]
    x = { buffer = "int32", size = "n", fill = "file", file = "x.npy" }
    y = { buffer = "int32", size = "n", access = "out" }
    [reference]
    outputs = { y = "y.npy" }
    """,
    """
    __kernel void stored(__global const int *x, __global int *y) {
        y[get_global_id(0)] = 3 * x[get_global_id(0)];
    }
    """,
    "",
)
OWN = {"axpy": AXPY, "repacked": REPACKED, "largest": LARGEST, "blocks": BLOCKS, "stored": STORED}


def written(folder: Path, name: str) -> Path:
    """Write a small kernel of OWN with its files."""
    text, source, reference = OWN[name]
    (folder / f"{name}.cl").write_text(source)
    (folder / "reference.py").write_text(reference)
    np.save(folder / "x.npy", np.arange(64, dtype=np.int32) ** 2)
    np.save(folder / "y.npy", 3 * np.arange(64, dtype=np.int32) ** 2)
    file = folder / f"{name}.toml"
    file.write_text(textwrap.dedent(text))
    return file
