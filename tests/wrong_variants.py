"""Small kernels that are right, and what makes each of them wrong: texts of the source and what replaces them.

`SEEN` must be refused on any device. `HIDDEN` is right on a processor that runs the work-items of a work-group one
after the other and whose memory behind a buffer may be read; Oclgrind tells it.
"""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path

Change = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel file with its source and reference, and changes of the source that make it wrong."""

    file: str
    source: str
    reference: str
    seen: tuple[Change, ...]
    hidden: tuple[Change, ...] = ()
    unseen: tuple[Change, ...] = field(default=())
    """Wrong for inputs that are hardly ever drawn: a limit of what random numbers tell."""

    def write(self, folder: Path, kernel: str, change: Change | None = None, name: str = "") -> Path:
        """Write the files, with a change of the source if one is given, and return the kernel file's path.

        The family is called like its `kernel`, unless it is given a name.
        """
        name = name or kernel
        source = textwrap.dedent(self.source)
        if change:
            old, new = change
            assert old in source, f"{name} has no {old!r} any more"
            source = source.replace(old, new, 1)
        (folder / f"{name}.cl").write_text(source)
        (folder / f"{name}.py").write_text(f"import numpy as np\n{textwrap.dedent(self.reference)}")
        path = folder / f"{name}.toml"
        text = textwrap.dedent(self.file).replace("reference.py", f"{name}.py")
        path.write_text(f'name = "{name}"\nkernel = "{kernel}"\nsource = "{name}.cl"\n{text}')
        return path


PRODUCT = Kernel(
    file="""
    global_size = "round_up(n, T), round_up(m, T)"
    local_size = "T, T"
    sizes = { m = 11, n = 13, k = 19 }
    parameters = { T = [4] }
    [arguments]
    a = { buffer = "float32", size = "m * k" }
    b = { buffer = "float32", size = "k * n" }
    c = { buffer = "float32", size = "m * n", access = "out" }
    m = { scalar = "int32", value = "m" }
    n = { scalar = "int32", value = "n" }
    k = { scalar = "int32", value = "k" }
    [reference]
    python = "reference.py:product"
    """,
    reference="def product(a, b, m, n, k):\n    return a.reshape(m, k).astype(float) @ b.reshape(k, n)\n",
    source="""
    __kernel void product(
        __global const float *a, __global const float *b, __global float *c, const int m, const int n, const int k
    ) {
        __local float tile_a[T][T];
        __local float tile_b[T][T];
        const int x = get_local_id(0), y = get_local_id(1);
        const int column = get_global_id(0), row = get_global_id(1);
        float sum = 0;
        for (int p = 0; p < k; p += T) {
            tile_a[y][x] = row < m && p + x < k ? a[row * k + p + x] : 0;
            tile_b[y][x] = column < n && p + y < k ? b[(p + y) * n + column] : 0;
            barrier(CLK_LOCAL_MEM_FENCE);  // loaded
            for (int q = 0; q < T; q++)
                sum += tile_a[y][q] * tile_b[q][x];
            barrier(CLK_LOCAL_MEM_FENCE);  // used
        }
        if (row < m && column < n)
            c[row * n + column] = sum;
    }
    """,
    seen=(
        ("float sum = 0;", "float sum = 0.01f;"),
        ("int p = 0", "int p = T"),
        ("p < k; p", "p + T <= k; p"),
        ("p += T", "p += 2 * T"),
        ("int q = 0", "int q = 1"),
        ("q < T", "q < T - 1"),
        ("a[row * k + p + x]", "a[row * k + p + y]"),
        ("a[row * k + p + x]", "a[row + m * x]"),
        ("b[(p + y) * n + column]", "b[(p + x) * n + column]"),
        ("tile_b[q][x]", "tile_b[x][q]"),
        ("tile_a[y][q]", "tile_a[q][y]"),
        ("sum += tile", "sum = tile"),
        ("sum += tile", "sum -= tile"),
        ("sum += tile_a[y][q]", "sum += fabs(tile_a[y][q])"),
        ("sum += tile_a[y][q]", "sum += min(tile_a[y][q], 0.95f)"),
        ("sum += tile_a[y][q]", "sum += convert_int(tile_a[y][q] * 1000) / 1000.0f"),
        ("column < n)", "column <= n)"),
        ("if (row < m && c", "if (row <= m && c"),
        ("if (row < m && c", "if (row < m - 1 && c"),
        ("column < n)", "column < n - 1)"),
        ("= sum;", "+= sum;"),
        ("= sum;", "= sum + (row == m - 1 ? 0.01f : 0);"),
        ("= sum;", "= row == m - 1 && column == n - 1 ? 0 : sum;"),
        ("= sum;", "= 0.25f;"),
        ("= sum;", "= sum; c[m * n] = sum;"),
        ("= sum;", "= sum; c[m * n + 255] = 1;"),
        ("= sum;", "= sum > 0 ? sum : 0;"),
        ("= sum;", "= a[0] > -0.6f ? sum : 0;"),
        ("c[row * n + column]", "c[column * m + row]"),
        ("c[row * n + column]", "c[row * n]"),
    ),
    hidden=(
        ("barrier(CLK_LOCAL_MEM_FENCE);  // loaded", ""),
        ("barrier(CLK_LOCAL_MEM_FENCE);  // used", ""),
        ("row < m && p + x < k ? a", "row < m ? a"),
        ("column < n && p + y < k ? b", "column < n ? b"),
    ),
)
ROW_SUMS = Kernel(
    file="""
    global_size = "rows * G"
    local_size = "G"
    sizes = { rows = 5, columns = 77 }
    parameters = { G = [16] }
    [arguments]
    x = { buffer = "float32", size = "rows * columns" }
    y = { buffer = "float32", size = "rows", access = "out" }
    columns = { scalar = "int32", value = "columns" }
    rows = { scalar = "int32", value = "rows" }
    [reference]
    python = "reference.py:row_sums"
    """,
    reference="def row_sums(x, rows):\n    return x.reshape(rows, -1).sum(axis=1, dtype=float)\n",
    source="""
    __kernel void row_sums(__global const float *x, __global float *y, const int columns, const int rows) {
        __local float part[G];
        const int item = get_local_id(0), row = get_group_id(0);
        float sum = 0;
        for (int i = item; i < columns; i += G)
            sum += x[row * columns + i];
        part[item] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);  // written
        for (int s = G / 2; s > 0; s /= 2) {
            if (item < s)
                part[item] += part[item + s];
            barrier(CLK_LOCAL_MEM_FENCE);  // added
        }
        if (item == 0)
            y[row] = part[0];
    }
    """,
    seen=(
        ("barrier(CLK_LOCAL_MEM_FENCE);  // added", ""),
        ("int s = G / 2", "int s = G / 4"),
        ("s > 0", "s > 1"),
        ("s /= 2", "s /= 4"),
        ("item < s)", "item < s - 1)"),
        ("i = item;", "i = item + 1;"),
        ("i < columns", "i < columns - 1"),
        ("i < columns", "i < columns / G * G"),
        ("i += G", "i += G + 1"),
        ("float sum = 0", "float sum = 1"),
        ("sum += x", "sum = x"),
        ("sum += x[row * columns + i]", "sum += x[i]"),
        ("sum += x[row * columns + i]", "sum += x[row * columns]"),
        ("sum += x[row * columns + i]", "sum += convert_int(x[row * columns + i] * 100) * 0.01f"),
        ("part[0];", "part[1];"),
        ("part[0];", "sum;"),
        ("part[0];", "part[0] / columns;"),
        ("y[row] =", "y[row] +="),
        ("y[row] =", "y[0] ="),
        ("y[row] =", "y[row + 1] ="),
        ("if (item == 0)", "if (item == 0 && row < rows - 1)"),
        ("part[0];", "part[0]; y[rows] = 0;"),
        ("part[0];", "fabs(part[0]);"),
        ("part[item] = sum;", "part[item] = max(sum, -2.0f);"),
    ),
    hidden=(
        ("barrier(CLK_LOCAL_MEM_FENCE);  // written", ""),
        ("if (item < s)", "if (item <= s && item + s < G)"),
        ("float sum = 0;", "float sum;"),
        ("sum += x[row * columns + i];", "sum += x[row * columns + i] + 0 * x[row * columns + i + 1];"),
    ),
)
STENCIL = Kernel(
    file="""
    global_size = "w, h"
    sizes = { w = 17, h = 9 }
    parameters = { WEIGHT = [5] }
    [arguments]
    x = { buffer = "float32", size = "w * h", fill = "normal" }
    y = { buffer = "float32", size = "w * h", access = "out" }
    w = { scalar = "int32", value = "w" }
    h = { scalar = "int32", value = "h" }
    [reference]
    python = "reference.py:stencil"
    """,
    reference="""
    def stencil(x, w, h):
        x = x.reshape(h, w).astype(float)
        y = x.copy()
        y[1:-1, 1:-1] = (x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 5
        return y
    """,
    source="""
    __kernel void stencil(__global float *x, __global float *y, const int w, const int h) {
        const int i = get_global_id(0), j = get_global_id(1), here = j * w + i;
        float value = x[here];
        if (i > 0 && i < w - 1 && j > 0 && j < h - 1)
            value = (value + x[here - 1] + x[here + 1] + x[here - w] + x[here + w]) / WEIGHT;
        y[here] = value;
    }
    """,
    seen=(
        ("i > 0 &&", "i > 1 &&"),
        ("i > 0 && i < w - 1 &&", ""),
        ("i < w - 1", "i < w - 2"),
        ("i < w - 1 &&", ""),
        ("j > 0", "j > 1"),
        ("j < h - 1", "j < h - 2"),
        ("x[here - 1]", "x[here]"),
        ("x[here + 1]", "x[here + 2]"),
        ("x[here - w]", "x[here - h]"),
        ("x[here + w]", "x[here + w - 1]"),
        ("x[here + w]", "x[here - w]"),
        ("/ WEIGHT", "/ (WEIGHT - 1)"),
        ("/ WEIGHT", "* (0.04002f * WEIGHT)"),
        ("y[here] = value", "x[here] = value"),
        ("y[here] = value", "y[here] = x[here]"),
        ("y[here] = value", "if (j < h - 1) y[here] = value"),
        ("y[here] = value", "if (i > 0) y[here] = value"),
        ("y[here] = value", "y[here + 1] = value"),
        ("y[here] = value", "y[here] = i == w - 2 && j == h - 2 ? 0 : value"),
        ("y[here] = value", "y[here] = convert_float(convert_int(value * 256)) / 256"),
        ("y[here] = value", "y[here] = fabs(value) > 2.2f ? 2.2f : value"),
        ("y[here] = value", "y[here] = y[here] + value"),
        ("value = (value", "x[here] = value = (value"),
    ),
    hidden=(("y[here] = value;", "y[here] = value + 0 * x[here + w];"),),
)
SCAN = Kernel(
    file="""
    global_size = "G"
    local_size = "G"
    sizes = { n = 29 }
    parameters = { G = [32] }
    [arguments]
    x = { buffer = "int32", size = "n", range = [-1000, 1000] }
    y = { buffer = "int32", size = "n", access = "inout" }
    n = { scalar = "int32", value = "n" }
    [reference]
    python = "reference.py:scan"
    """,
    reference="def scan(x, y):\n    return y + np.cumsum(x)\n",
    source="""
    __kernel void scan(__global const int *x, __global int *y, const int n) {
        __local int now[G], next[G];
        const int item = get_local_id(0);
        now[item] = item < n ? x[item] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);  // loaded
        for (int step = 1; step < G; step *= 2) {
            next[item] = now[item] + (item >= step ? now[item - step] : 0);
            barrier(CLK_LOCAL_MEM_FENCE);  // added
            now[item] = next[item];
            barrier(CLK_LOCAL_MEM_FENCE);  // copied
        }
        if (item < n)
            y[item] += now[item];
    }
    """,
    seen=(
        ("barrier(CLK_LOCAL_MEM_FENCE);  // added", ""),
        ("int step = 1", "int step = 2"),
        ("step < G", "step < G / 2"),
        ("step *= 2", "step += 2"),
        ("item >= step", "item > step"),
        ("now[item - step]", "now[item - 1]"),
        ("if (item < n)", "if (item < n - 1)"),
        ("if (item < n)", ""),
        ("y[item] +=", "y[item] ="),
        ("y[item] += now", "y[item] -= now"),
        ("y[item] += now[item]", "y[item] += now[item] - x[item]"),
        ("y[item] += now[item]", "y[item] += item == n - 1 ? now[item] + 1 : now[item]"),
        ("y[item] += now[item]", "y[item] += now[item] < -900 ? -900 : now[item]"),
        ("y[item] += now[item]", "y[item] += (short)(now[item] * 16) / 16"),
        ("y[item] += now[item];", "y[item] += 2 * now[item]; y[n] = 0;"),
    ),
    hidden=(
        ("barrier(CLK_LOCAL_MEM_FENCE);  // loaded", ""),
        ("barrier(CLK_LOCAL_MEM_FENCE);  // copied", ""),
        ("item < n ? x[item] : 0", "x[item]"),
    ),
)
HISTOGRAM = Kernel(
    file="""
    global_size = "n"
    sizes = { n = 500, bins = 7 }
    parameters = { LEAST = [0] }
    [arguments]
    x = { buffer = "uint8", size = "n", range = [0, "bins - 1"] }
    counts = { buffer = "uint32", size = "bins", access = "inout", fill = "zeros" }
    n = { scalar = "int32", value = "n" }
    bins = { scalar = "int32", value = "bins" }
    [reference]
    python = "reference.py:histogram"
    """,
    reference="def histogram(x, bins):\n    return np.bincount(x, minlength=bins)\n",
    source="""
    __kernel void histogram(__global const uchar *x, __global uint *counts, const int n, const int bins) {
        const int i = get_global_id(0);
        if (x[i] >= LEAST)
            atomic_add(&counts[x[i]], 1u);
    }
    """,
    seen=(
        ("x[i] >= LEAST", "x[i] > LEAST"),
        ("x[i] >= LEAST", "i < n - 1 + LEAST"),
        ("x[i] >= LEAST", "i > LEAST"),
        ("x[i] >= LEAST", "x[i] < bins - 1 + LEAST"),
        ("counts[x[i]]", "counts[0]"),
        ("counts[x[i]]", "counts[x[i] + 1]"),
        ("counts[x[i]]", "counts[bins - 1 - x[i]]"),
        ("counts[x[i]]", "counts[x[0]]"),
        ("1u", "2u"),
        ("atomic_add", "atomic_sub"),
        ("atomic_add", "atomic_max"),
        ("atomic_add(&counts[x[i]], 1u);", "counts[x[i]] = 1;"),
        ("atomic_add(&counts[x[i]], 1u);", "counts[x[i]] = n / bins;"),
    ),
    hidden=(("atomic_add(&counts[x[i]], 1u);", "counts[x[i]] += 1;"),),
)
PACKED = Kernel(
    file="""
    sizes = { m = 12, k = 10 }
    parameters = { PAD = [3] }
    [arguments]
    a = { buffer = "float32", size = "m * k" }
    x = { buffer = "float32", size = "k" }
    packed = { buffer = "float32", size = "(m + PAD) * k", access = "scratch" }
    y = { buffer = "float32", size = "m", access = "out" }
    largest = { buffer = "float32", size = "1", access = "out" }
    m = { scalar = "int32", value = "m" }
    k = { scalar = "int32", value = "k" }
    [[launches]]
    kernel = "pack"
    global_size = "m, k"
    arguments = ["a", "packed", "m", "k"]
    once = true
    [[launches]]
    kernel = "multiply"
    global_size = "m"
    arguments = ["packed", "x", "y", "m", "k"]
    [[launches]]
    kernel = "find_largest"
    global_size = 1
    arguments = ["y", "largest", "m"]
    [reference]
    python = "reference.py:product"
    """,
    reference="""
    def product(a, x, m, k):
        y = a.reshape(m, k).astype(float) @ x
        return {"y": y, "largest": y.max()}
    """,
    source="""
    __kernel void pack(__global const float *a, __global float *packed, const int m, const int k) {
        const int row = get_global_id(0), column = get_global_id(1);
        packed[column * (m + PAD) + row] = a[row * k + column];
    }
    __kernel void multiply(
        __global const float *packed, __global const float *x, __global float *y, const int m, const int k
    ) {
        const int row = get_global_id(0);
        float sum = 0;
        for (int p = 0; p < k; p++)
            sum += packed[p * (m + PAD) + row] * x[p];
        y[row] = sum;
    }
    __kernel void find_largest(__global const float *y, __global float *largest, const int m) {
        float best = y[0];
        for (int row = 1; row < m; row++)
            best = max(best, y[row]);
        *largest = best;
    }
    """,
    seen=(
        ("packed[column * (m + PAD) + row] =", "packed[row * k + column] ="),
        ("packed[column * (m + PAD) + row] =", "if (column) packed[column * (m + PAD) + row] ="),
        ("packed[column * (m + PAD) + row] =", "if (row < m - 1) packed[column * (m + PAD) + row] ="),
        ("= a[row * k + column]", "= a[row * k]"),
        ("= a[row * k + column]", "= 0.5f"),
        ("sum += packed[p * (m + PAD) + row]", "sum += packed[p * m + row]"),
        ("sum += packed[p * (m + PAD) + row]", "sum += packed[p * (m + PAD) + row + 1]"),
        ("* x[p];", "* x[k - 1 - p];"),
        ("* x[p];", "* x[p] + packed[m] * 0;"),
        ("* x[p];", "* x[p] + max(packed[p * (m + PAD) + m], 0.0f);"),
        ("* x[p];", "* x[p] + min(packed[p * (m + PAD) + m], 0.0f);"),
        ("float best = y[0]", "float best = 9"),
        ("float best = y[0]", "float best = *largest"),
        ("row < m; row++", "row < m - 1; row++"),
        ("*largest = best", "*largest = -best"),
        ("*largest = best;", ""),
        ("*largest = best", "largest[1] = *largest = best"),
        ("y[row] = sum;", "y[row] = row == m - 1 ? y[0] : sum;"),
    ),
    unseen=(("float best = y[0]", "float best = -0.1f"),),
)
KERNELS = {
    "product": PRODUCT,
    "row_sums": ROW_SUMS,
    "stencil": STENCIL,
    "scan": SCAN,
    "histogram": HISTOGRAM,
    "packed": PACKED,
}
