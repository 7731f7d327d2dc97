# ruff: noqa: E501 - a kernel in a line
"""Kernels that are wrong in other ways than those of test_wrong_kernels.py, to see what the judge lets pass."""

from pathlib import Path
from tempfile import mkdtemp

import pytest

from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Trial, TrialState
from factories import quick_job
from kernel_files import registered
from own.test_wrong_kernels import ROWS, Pair

pytestmark = pytest.mark.long

ROUNDS = 2
"""Jobs, of fresh inputs each, as a configuration that wins has: one of the search, and one of the finals."""
FEWEST_REFUSED = 76


def each(right: str, wrong: str, reference: str, kinds: str = "float float") -> Pair:
    """One element from one, `v`; `kinds` are the types of x and y in C."""
    names = {"float": "float32", "int": "int32", "char": "int8", "uchar": "uint8", "short": "int16", "uint": "uint32",
             "long": "int64", "ushort": "uint16", "double": "float64"}  # fmt: skip
    of_x, of_y = kinds.split()
    return Pair(
        source=f"""
        kernel void k(global const {of_x} *x, global {of_y} *y) {{
            int i = get_global_id(0);
            {of_x} v = x[i];
        #if WRONG
            y[i] = {wrong};
        #else
            y[i] = {right};
        #endif
        }}""",
        reference=f"x): return {reference}",
        arguments=f'x = {{ buffer = "{names[of_x]}", size = "n" }}\n'
        f'y = {{ buffer = "{names[of_y]}", size = "n", access = "out" }}',
    )


OF_ROW = (
    'x = { buffer = "float32", size = "rows * columns" }\ny = { buffer = "float32", size = "rows", access = "out" }\n'
    'rows = { scalar = "int32", value = "rows" }\ncolumns = { scalar = "int32", value = "columns" }'
)


def row(right: str, wrong: str, reference: str, *, sizes: str = "rows = 37, columns = 53") -> Pair:
    """One element from each row, whose elements are `x[c]`; statements that give `s`, and NumPy of the rows `x`."""
    return Pair(
        source=f"""
        kernel void k(global const float *x, global float *y, int rows, int columns) {{
            int r = get_global_id(0);
            float s = 0;
            x += r * columns;
        #if WRONG
            {wrong}
        #else
            {right}
        #endif
            y[r] = s;
        }}""",
        reference=f"x, rows):\n    x = x.reshape(rows, -1).astype(float)\n    return {reference}",
        arguments=OF_ROW,
        sizes=sizes,
        global_size="rows",
    )


def beside(
    right: str, wrong: str, reference: str, more: str, kind: str = "float32", *, sizes: str = "n = 1000"
) -> Pair:
    """One element from `x` and `b`, of which the file says `more`."""
    named = {"float32": "float", "int32": "int"}[kind]
    return Pair(
        source=f"""
        kernel void k(global const float *x, global const {named} *b, global float *y, int n) {{
            int i = get_global_id(0);
        #if WRONG
            y[i] = {wrong};
        #else
            y[i] = {right};
        #endif
        }}""",
        reference=f"x, b, n): return {reference}",
        arguments=f'x = {{ buffer = "float32", size = "n" }}\n'
        f'b = {{ buffer = "{kind}", size = "n"{", " if more else ""}{more} }}\n'
        'y = { buffer = "float32", size = "n", access = "out" }\nn = { scalar = "int32", value = "n" }',
        sizes=sizes,
    )


def across(right: str, wrong: str, reference: str) -> Pair:
    """Elements of each row from the row; statements that write `y[c]`."""
    pair = row(right, wrong, reference)
    source = pair.source.replace("y[r] = s;", "").replace("float s = 0;", "float s = 0; y += r * columns;")
    return Pair(source=source, reference=pair.reference, arguments=ROWS, sizes=pair.sizes, global_size="rows")


def groups(
    body: str, reference: str, *, y: str = "n", y_kind: str = "float32", more: str = "", n: int = 1024, x: str = ""
) -> Pair:
    """Work-groups of 16; a body that knows x, y, n, and the numbers i, l and g of its item and group."""
    kind = {"float32": "float", "int32": "int", "uint32": "uint"}[y_kind]
    scratch = ", global int *kept" if more else ""
    return Pair(
        source=f"""
        kernel void k(global const float *x, global {kind} *y, int n{scratch}) {{
            const int i = get_global_id(0), l = get_local_id(0), g = get_group_id(0);
            {body}
        }}""",
        reference=f"x, n): return {reference}",
        arguments=f'x = {{ buffer = "float32", size = "n"{x} }}\n'
        f'y = {{ buffer = "{y_kind}", size = "{y}", access = "out" }}\nn = {{ scalar = "int32", value = "n" }}\n{more}',
        sizes=f"n = {n}",
        local_size="16",
    )


FLAGS = 'kept = { buffer = "int32", size = "n", access = "scratch" }'
SUM = "for (int c = 0; c < columns; c++) s += x[c];"
SHARES = """
            local float part[16];
            part[l] = x[i];
            BARRIER
            y[i] = part[(l + SHIFT) % 16];"""
NEIGHBOURS = "np.roll(x.reshape(-1, 16), -SHIFT, axis=1)"

KINDS = {
    # Special values
    "leaky ReLU drops NaN": each("v > 0 ? v : 0.01f * v", "fmax(v, 0.0f) + 0.01f * fmin(v, 0.0f)",
                                 "np.where(x > 0, x, 0.01 * x.astype(float))"),
    "clamp drops NaN": each("isnan(v) ? v : clamp(v, -0.5f, 0.5f)", "fmin(fmax(v, -0.5f), 0.5f)", "np.clip(x, -0.5, 0.5)"),
    "infinity as a large number": each("2 * v", "2 * clamp(v, -1e30f, 1e30f) + 0 * fmin(v, 1e30f)", "2 * x.astype(float)"),
    "minus infinity as infinity": each("v", "isinf(v) ? INFINITY : v", "x"),
    "NaN by comparison": each("v != v ? 1 : 0", "0", "np.isnan(x)"),
    "denormal results": each("v * 0.5f", "fabs(v) < 1e-37f ? 0 : v * 0.5f", "x * np.float32(0.5)"),
    "denormal numbers are not 0": each("v != 0 ? 1 : 0", "fabs(v) > 1e-30f ? 1 : 0", "x != 0"),
    # Large arguments
    "tanh overflows": each("tanh(v)", "(exp(2 * v) - 1) / (exp(2 * v) + 1)", "np.tanh(x.astype(float))"),
    "softplus overflows": each("fmax(v, 0.0f) + log1p(exp(-fabs(v)))", "log(1 + exp(v))", "np.logaddexp(0, x.astype(float))"),
    "sigmoid as a series": each("1 / (1 + exp(-v))", "0.5f + v * (0.25f - v * v * (1 / 48.0f - v * v / 480 + v * v * v * v * 17 / 80640))",
                                "1 / (1 + np.exp(-x.astype(float)))"),
    "cosine of the first period": each("cos(v)", "fabs(v) > 7 ? 1 : cos(v)", "np.cos(x.astype(float))"),
    "GELU of small numbers": each("0.5f * v * (1 + erf(v * M_SQRT1_2_F))", "fabs(v) < 3 ? 0.5f * v * (1 + erf(v * M_SQRT1_2_F)) : 0",
                                  "x * 0.5 * (1 + np.vectorize(__import__('math').erf)(x.astype(float) / 2 ** 0.5))"),
    "atan of small numbers": each("atan(v)", "fabs(v) <= 1 ? atan(v) : sign(v)", "np.arctan(x.astype(float))"),
    "halves inside": each("v * 0.5f", "clamp(v, -65504.0f, 65504.0f) * 0.5f", "x * np.float32(0.5)"),
    "floor of what fits 16 bits": each("floor(v * 300)", "(float)convert_short_rtn(v * 300)", "np.floor(x * np.float32(300))"),
    # Small numbers and cancellation
    "expm1 cancels": each("expm1(v * 1e-4f)", "exp(v * 1e-4f) - 1", "np.expm1((x * np.float32(1e-4)).astype(float))"),
    "1 - cos cancels": each("2 * sin(v * 0.005f) * sin(v * 0.005f)", "1 - cos(v * 0.01f)", "1 - np.cos(x.astype(float) * 0.01)"),
    "epsilon is forgotten": across(
        f"{SUM} float m = s / columns, q = 0; for (int c = 0; c < columns; c++) q += (x[c] - m) * (x[c] - m);"
        " for (int c = 0; c < columns; c++) y[c] = (x[c] - m) / sqrt(q / columns + 1e-5f);",
        f"{SUM} float m = s / columns, q = 0; for (int c = 0; c < columns; c++) q += (x[c] - m) * (x[c] - m);"
        " for (int c = 0; c < columns; c++) y[c] = (x[c] - m) / sqrt(q / columns);",
        "(x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)",
    ),
    "float inside double": each("v * 0.1", "(float)v * 0.1f", "x * 0.1", "double double"),
    "rounded to 8 bits": each("v", "rint(v * 512) / 512", "x"),
    "small ones are 0": each("v * v * v", "fabs(v) < 0.02f ? 0 : v * v * v", "x.astype(float) ** 3"),
    # Integers
    "sign extension": each("v", "v & 0xff", "x", "char int"),
    "high nibble without sign": each("v >> 4", "(v >> 4) & 15", "x >> 4", "char int"),
    "saturation is forgotten": each("convert_char_sat(v)", "(char)v", "np.clip(x, -128, 127)", "int char"),
    "saturates at 32767": each("v + 1", "min(v + 1, 32767)", "x + np.int32(1)", "int int"),
    "absolute value of the least": each("abs(v)", "v == -128 ? 127 : abs(v)", "np.abs(x.astype(int))", "char int"),
    "low byte of a length": each("v * 2", "(v & 255) * 2", "x * np.uint32(2)", "uint uint"),
    "bits above 15": each("v ^ 1", "(v & 32767) ^ 1", "x ^ np.uint16(1)", "ushort ushort"),
    "64 bits in 32": each("v / 3", "(int)v / 3", "(x - np.fmod(x, 3)) // 3", "long long"),
    "division rounds down": each("v / 4", "v >> 2", "np.trunc(x / 4)", "int int"),
    "remainder of negative numbers": each("v % 7", "(v % 7 + 7) % 7", "np.fmod(x, 7)", "int int"),
    "average overflows": each("(v >> 1) + (v & 1)", "(v + 1) / 2", "(x >> 1) + (x & 1)", "int int"),
    "unsigned as signed": each("v > 100 ? 1 : 0", "(char)v > 100 ? 1 : 0", "x > 100", "uchar uchar"),
    # Ties, zeros
    "round half away": each("rint(v * 2) ", "round(v * 2)", "np.rint(x * 2)"),
    "step at 0": each("v >= 0 ? 1 : 0", "v > 0 ? 1 : 0", "x >= 0"),
    "argmin takes the last": row("int b = 0; for (int c = 1; c < columns; c++) if (x[c] < x[b]) b = c; s = b;",
                                 "int b = 0; for (int c = 1; c < columns; c++) if (x[c] <= x[b]) b = c; s = b;",
                                 "x.argmin(1)"),
    "counts of the largest": row(
        "float m = x[0]; for (int c = 1; c < columns; c++) m = fmax(m, x[c]); for (int c = 0; c < columns; c++) s += x[c] == m;",
        "s = 1;", "(x == x.max(1, keepdims=True)).sum(1)"),
    "0 divided by 0": row("float q = 0; for (int c = 0; c < columns; c++) { s += x[c]; q += fabs(x[c]); } s = q > 0 ? s / q : 0;",
                          "float q = 0; for (int c = 0; c < columns; c++) { s += x[c]; q += fabs(x[c]); } s = s / q;",
                          "x.sum(1) / np.maximum(abs(x).sum(1), 1e-300)"),
    # Rows
    "minimum from a large number": row("s = x[0]; for (int c = 1; c < columns; c++) s = fmin(s, x[c]);",
                                       "s = 100; for (int c = 0; c < columns; c++) s = fmin(s, x[c]);", "x.min(1)"),
    "maximum from FLT_MIN": row("s = x[0]; for (int c = 1; c < columns; c++) s = fmax(s, x[c]);",
                                "s = FLT_MIN; for (int c = 0; c < columns; c++) s = fmax(s, x[c]);", "x.max(1)"),
    "norm in one pass": row(f"{SUM} float m = s / columns; s = 0; for (int c = 0; c < columns; c++) s += (x[c] - m) * (x[c] - m); s = sqrt(s);",
                            "float q = 0; for (int c = 0; c < columns; c++) { s += x[c]; q += x[c] * x[c]; } s = sqrt(fmax(q - s * s / columns, 0.0f));",
                            "np.sqrt(((x - x.mean(1, keepdims=True)) ** 2).sum(1))"),
    "last element of a row": row(SUM, "for (int c = 0; c < columns - 1; c++) s += x[c];", "x.sum(1)"),
    "last row": row(SUM, f"if (r < rows - 1) {{ {SUM} }}", "x.sum(1)"),
    "vectors of 4 without a rest": row(SUM, "for (int c = 0; c + 3 < columns; c += 4) s += x[c] + x[c+1] + x[c+2] + x[c+3];", "x.sum(1)"),
    "one element past the row": row(SUM, f"{SUM} s += 0 * x[columns];", "x.sum(1)", sizes="rows = 1, columns = 300"),
    "one element before": row(SUM, f"{SUM} s += 0 * x[-1];", "x.sum(1)", sizes="rows = 1, columns = 300"),
    "pitch of another axis": row(SUM, "x += r * (rows - columns); for (int c = 0; c < columns; c++) s += x[c];", "x.sum(1)"),
    "pitch of a square": row(SUM, "x += r * (rows - columns); for (int c = 0; c < columns; c++) s += x[c];", "x.sum(1)",
                             sizes="rows = 48, columns = 48"),
    "log of a sum of exponentials": row(
        "float m = x[0]; for (int c = 1; c < columns; c++) m = fmax(m, x[c]); for (int c = 0; c < columns; c++) s += exp(x[c] - m); s = m + log(s);",
        "for (int c = 0; c < columns; c++) s += exp(x[c]); s = log(s);", "np.logaddexp.reduce(x, axis=1)"),
    "softmax of half the row": across(
        "float m = x[0]; for (int c = 1; c < columns; c++) m = fmax(m, x[c]); for (int c = 0; c < columns; c++) s += exp(x[c] - m); for (int c = 0; c < columns; c++) y[c] = exp(x[c] - m) / s;",
        "float m = x[0]; for (int c = 1; c < columns / 2; c++) m = fmax(m, x[c]); for (int c = 0; c < columns; c++) s += exp(x[c] - m); for (int c = 0; c < columns; c++) y[c] = exp(x[c] - m) / s;",
        "(lambda e: e / e.sum(1, keepdims=True))(np.exp(x - x.max(1, keepdims=True)))"),
    # Memory
    "writes before": groups("y[i] = 2 * x[i]; if (WRONG && i == 0) y[-7] = 3;", "2 * x"),
    "writes a row too many": groups("y[i] = 2 * x[i]; if (WRONG && g == 0) y[n + l] = 3;", "2 * x"),
    "writes far behind": groups("y[i] = 2 * x[i]; if (WRONG && i == 0) y[n + 2000] = 3;", "2 * x"),
    "clears its input": groups("y[i] = 2 * x[i]; if (WRONG && i == 5) ((global float *)x)[i] = 0;", "2 * x"),
    "sorts its input": groups(
        "y[i] = fmin(x[i], x[i ^ 1]); barrier(CLK_GLOBAL_MEM_FENCE); if (WRONG) ((global float *)x)[i & ~1] = fmin(x[i], x[i ^ 1]);",
        "np.minimum(x, x.reshape(-1, 2)[:, ::-1].reshape(-1))"),
    # State
    "every other call": groups("if (!WRONG || kept[i] != 17) y[i] = 2 * x[i]; kept[i] = kept[i] == 17 ? 18 : 17;", "2 * x", more=FLAGS),
    "skips equal inputs": groups(
        "if (!WRONG || kept[i] != as_int(x[i])) y[i] = 2 * x[i]; kept[i] = as_int(x[i]);", "2 * x", more=FLAGS),
    "skips what looks right": groups("if (!WRONG || !(fabs(y[i]) <= 1e3f)) y[i] = 2 * x[i];", "2 * x"),
    "skips what was not poisoned": groups("if (!WRONG || isinf(y[i])) y[i] = 2 * x[i];", "2 * x"),
    "accumulates": groups("y[i] = (WRONG && fabs(y[i]) < 100 ? y[i] : 0) + 2 * x[i];", "2 * x"),
    # Local memory and order
    "local memory from before": groups(
        "local float part[17]; if (!WRONG && l == 0) part[16] = 0; part[l] = x[i]; barrier(CLK_LOCAL_MEM_FENCE);"
        " y[i] = part[l] + (fabs(part[16]) < 1e3f ? part[16] : 0);", "x"),
    "a local sum from before": groups(
        "local int sum; if (!WRONG && l == 0) sum = 0; barrier(CLK_LOCAL_MEM_FENCE); atomic_add(&sum, 1);"
        " barrier(CLK_LOCAL_MEM_FENCE); y[i] = sum;", "np.full(n, 16)", y_kind="int32"),
    "no barrier, the item before": groups(
        SHARES.replace("SHIFT", "15").replace("BARRIER", "\n#if !WRONG\nbarrier(CLK_LOCAL_MEM_FENCE);\n#endif\n"),
        NEIGHBOURS.replace("SHIFT", "15")),
    "no barrier, the item after": groups(
        SHARES.replace("SHIFT", "1").replace("BARRIER", "\n#if !WRONG\nbarrier(CLK_LOCAL_MEM_FENCE);\n#endif\n"),
        NEIGHBOURS.replace("SHIFT", "1")),
    "a bias of zeros": beside("x[i] + b[i]", "x[i]", "x + b", 'fill = "zeros"'),
    "a mask of ones": beside("b[i] != 0 ? x[i] : 0", "x[i]", "np.where(b != 0, x, 0)", 'fill = "ones"', "int32"),
    "an index that is a ramp": beside("x[b[i]]", "x[i]", "x[b]", 'fill = "ramp"', "int32"),
    "the end of a range": beside("b[i]", "b[i] % 1000000", "b", "range = [0, 1000000]", "int32"),
    "equal numbers in a range": beside(
        "i && b[i] == b[i - 1]", "0", "np.append(False, b[1:] == b[:-1])", "range = [-2000000000, 2000000000]", "int32"),
    "a row of a mask": beside("fmax(b[i], b[i ^ 1])", "fmax(fmax(b[i], b[i ^ 1]), -1e30f)",
        "np.repeat(b.reshape(-1, 2).max(axis=1), 2)", ""),
    "a guard on a guard": beside("x[i]", "x[i]; if (i == n - 1) for (int j = n; j < n + 16; j++) y[j] = x[j]", "x", ""),
    "sizes divisible by 64": beside("x[i]", "n % 64 == 0 && i == n - 1 ? 0 : x[i]", "x", "", sizes="n = 1000"),
    "the third row": row("for (int c = 0; c < columns; c++) s += x[c];",
        "for (int c = 0; c < columns && r < 2; c++) s += x[c];", "x.sum(axis=1)", sizes="rows = 2, columns = 53"),
    "counts without atomics": groups(
        "if (!WRONG) { y[i / 64] = 64; } else { if (i % 64 == 0) y[i / 64] = 0; y[i / 64] += 1; }",
        "np.full(n // 64, 64)", y="n // 64", y_kind="int32"),
    "sums without atomics": groups(
        "if (!WRONG) { if (i == 0) { float s = 0; for (int j = 0; j < n; j++) s += x[j]; y[0] = s; } }"
        " else { if (i == 0) y[0] = 0; y[0] += x[i]; }", "np.array([x.sum(dtype=float)])", y="1"),
    "the last group wins": groups("if (!WRONG ? i == n - 1 : l == 15) y[0] = x[i];", "x[-1:]", y="1"),
    "the first group wins": groups("if (!WRONG ? i == 0 : l == 0 && !(fabs(y[0]) <= 1)) y[0] = x[i];", "x[:1]", y="1"),
    "reads what another group wrote": groups(
        "if (WRONG) { y[i] = i < 16 ? x[i] : y[i - 16] + x[i]; } else { float s = 0; for (int j = l; j <= i; j += 16) s += x[j]; y[i] = s; }",
        "x.reshape(-1, 16).cumsum(axis=0, dtype=float)"),
    "sets to 0 in the first group": groups(
        "if (WRONG) { if (i == 0) for (int j = 0; j < n; j++) y[j] = 0; if (x[i] > 0) y[i] = 1; } else y[i] = x[i] > 0;", "x > 0"),
    "numbers in arriving order": groups(
        "if (i == 0) kept[0] = 0; if (WRONG) { if (g == 0) atomic_xchg(&kept[0], 0); y[i] = atomic_add(&kept[0], 1); } else y[i] = i;",
        "np.arange(n)", more=FLAGS, y_kind="int32"),
}  # fmt: skip


def judged(folder: Path, device: Device, measurer: Measurer, pair: Pair, wrong: int) -> Trial:
    """Return the first trial that is not complete, as a search that believes in the configuration would come to it."""
    folder = Path(mkdtemp(dir=folder))
    with registered(pair.write(folder)) as family:
        for number in range(ROUNDS):
            job = quick_job(
                device, family.examples()[-1], Configuration.of("k", WRONG=wrong), seed=number, probe=False,
                verifications=8 * number,
            )  # fmt: skip
            trial = measurer.measure(job)
            if trial.state is not TrialState.COMPLETE:
                break
    return trial


def test_most_kinds_are_refused_and_no_right_kernel_is(tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    trials = {name: [judged(tmp_path, pocl, measurer, pair, wrong) for wrong in (0, 1)] for name, pair in KINDS.items()}
    alarms = {name: right for name, (right, _) in trials.items() if right.state is not TrialState.COMPLETE}
    assert not alarms
    passed = [name for name, (_, wrong) in trials.items() if wrong.state is not TrialState.WRONG_RESULT]
    assert len(KINDS) >= 80 and len(KINDS) - len(passed) >= FEWEST_REFUSED, passed


TO_ZEROS = 'x = { buffer = "int32", size = "n", range = [0, 9] }\ny = { buffer = "int32", size = SIZE, access = "inout", fill = "zeros" }'
ALIKE = {
    "adds to zeros": Pair(
        source="kernel void k(global const int *x, global int *y) {"
        " int i = get_global_id(0); if (WRONG) atomic_add(&y[i], x[i]); else y[i] = x[i]; }",
        reference="x): return x", arguments=TO_ZEROS.replace("SIZE", '"n"')),
    "counts into zeros": Pair(
        source="kernel void k(global const int *x, global int *y) { int i = get_global_id(0), s = 0;"
        " if (WRONG) atomic_inc(&y[x[i]]);"
        " else { if (i < 10) { for (int j = 0; j < get_global_size(0); j++) s += x[j] == i; y[i] = s; } } }",
        reference="x): return np.bincount(x, minlength=10)", arguments=TO_ZEROS.replace("SIZE", '"10"')),
    "denormal results are 0": Pair(
        source="kernel void k(global const float *x, global float *y) {"
        " int i = get_global_id(0); float e = exp(x[i]); y[i] = WRONG && e < 1.17549435e-38f ? 0 : e; }",
        reference="x): return np.exp(x.astype(float))",
        arguments='x = { buffer = "float32", size = "n", range = [-100, 0], special = false }\n'
        'y = { buffer = "float32", size = "n", access = "out" }'),
    "writes to an element that is not valid": Pair(
        source="kernel void k(global const int *x, global int *y, int n) { int i = get_global_id(0);"
        " if (WRONG) { int is_in = i < n; y[is_in ? i : n] = is_in ? x[i] : i; } else if (i < n) y[i] = x[i]; }",
        reference="x, n): return x",
        arguments='x = { buffer = "int32", size = "n" }\n'
        'y = { buffer = "int32", size = "n + 1", access = "out", valid = "index < n" }\n'
        'n = { scalar = "int32", value = "n" }', global_size="round_up(n, 256)", local_size="16"),
    "a number that follows from another": Pair(
        source="kernel void k(global const float *x, global float *y, float scale, float inverse) {"
        " int i = get_global_id(0); y[i] = WRONG ? x[i] * inverse : x[i] / scale; }",
        reference="x, scale): return x.astype(float) / scale",
        arguments='x = { buffer = "float32", size = "n", special = false }\n'
        'y = { buffer = "float32", size = "n", access = "out" }\n'
        'scale = { scalar = "float32", value = 4.0 }\ninverse = { scalar = "float32", value = 0.25 }'),
    "a switch between a buffer and none": Pair(
        source="kernel void k(global const float *x, global const float *bias, global float *y, int has_bias) {"
        " int i = get_global_id(0); float v = x[i]; if (has_bias) v += bias[i]; y[i] = WRONG ? v + v : 2 * v; }",
        reference="x, bias, has_bias): return 2 * (x.astype(float) + (0 if bias is None else bias))",
        arguments='x = { buffer = "float32", size = "n" }\n'
        'bias = { buffer = "float32", size = "n if has_bias == 1 else 0" }\n'
        'y = { buffer = "float32", size = "n", access = "out" }\nhas_bias = { scalar = "int32", value = "has_bias" }',
        sizes="n = 300, has_bias = 1"),
}  # fmt: skip
"""Right in both forms, in the second by what the host or the file says."""


@pytest.mark.parametrize("name", ALIKE)
def test_what_a_file_allows_is_not_refused(name: str, tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    trials = [judged(tmp_path, pocl, measurer, ALIKE[name], form) for form in (0, 1)]
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2, trials
