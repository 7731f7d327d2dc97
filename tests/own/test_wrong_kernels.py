"""Kernels that are fast because they are wrong: each wrong form is refused, and the right form is not."""

import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.measure.adverse import is_racy_by_design
from autotune.measure.measurer import Measurer
from autotune.model.configuration import Configuration
from autotune.model.device import Device
from autotune.model.trial import Trial, TrialState
from factories import quick_job
from kernel_files import registered

ONE = 'x = { buffer = "float32", size = "n" }\ny = { buffer = "float32", size = "n", access = "out" }'
ROWS = (
    'x = { buffer = "float32", size = "rows * columns" }\n'
    'y = { buffer = "float32", size = "rows * columns", access = "out" }\n'
    'rows = { scalar = "int32", value = "rows" }\ncolumns = { scalar = "int32", value = "columns" }'
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A kernel whose parameter WRONG says which form is built."""

    source: str
    reference: str
    arguments: str = ONE
    sizes: str = "n = 900"
    global_size: str = "n"
    local_size: str = ""

    def write(self, folder: Path) -> Path:
        (folder / "k.cl").write_text(textwrap.dedent(self.source))
        (folder / "k.py").write_text(f"import numpy as np\ndef ref({self.reference}\n")
        path = folder / "k.toml"
        path.write_text(
            f'name = "k"\nsource = "k.cl"\nglobal_size = "{self.global_size}"\nlocal_size = "{self.local_size}"\n'
            f"sizes = {{ {self.sizes} }}\n"
            f'parameters = {{ WRONG = [0, 1] }}\n[arguments]\n{self.arguments}\n[reference]\npython = "k.py:ref"\n'
        )
        return path

    def trial(self, folder: Path, device: Device, measurer: Measurer, wrong: int, verifications: int = 0) -> Trial:
        with registered(self.write(folder)) as family:
            job = quick_job(device, family.examples()[-1], Configuration.of("k", WRONG=wrong), probe=False)
            return measurer.measure(replace(job, verifications=verifications))


TWICE = "x): return 2 * x.astype(float)"
STATE = {
    "spares what looks done": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            int i = get_global_id(0);
            if (!WRONG || !isfinite(y[i])) y[i] = 2 * x[i];
        }""",
        reference=TWICE,
    ),
    "returns where an earlier call was": Pair(
        source="""
        kernel void k(global const float *x, global float *y, global int *seen) {
            int i = get_global_id(0);
            if (WRONG && seen[i] == 4711) return;
            seen[i] = 4711;
            y[i] = 2 * x[i];
        }""",
        reference=TWICE,
        arguments=f'{ONE}\nseen = {{ buffer = "int32", size = "n", access = "scratch" }}',
    ),
    "uses what an earlier call computed": Pair(
        source="""
        kernel void k(global const float *x, global float *y, global float *kept) {
            int i = get_global_id(0);
            if (!WRONG || !(fabs(kept[i]) <= 2)) kept[i] = 2 * x[i];
            y[i] = kept[i];
        }""",
        reference=TWICE,
        arguments=f'{ONE}\nkept = {{ buffer = "float32", size = "n", access = "scratch" }}',
    ),
    "skips every other call": Pair(
        source="""
        kernel void k(global const float *x, global float *y, global int *seen) {
            int i = get_global_id(0);
            if (!WRONG || seen[i] != 4711) y[i] = 2 * x[i];
            seen[i] = seen[i] == 4711 ? 0 : 4711;
        }""",
        reference=TWICE,
        arguments=f'{ONE}\nseen = {{ buffer = "int32", size = "n", access = "scratch" }}',
    ),
    "skips inputs that it has seen": Pair(
        source="""
        kernel void k(global const float *x, global float *y, global float *seen) {
            int i = get_global_id(0);
            if (!WRONG || seen[i] != x[i]) y[i] = 2 * x[i];
            seen[i] = x[i];
        }""",
        reference=TWICE,
        arguments=f'{ONE}\nseen = {{ buffer = "float32", size = "n", access = "scratch" }}',
    ),
    "adds to what is finite": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            int i = get_global_id(0);
            y[i] = (WRONG && isfinite(y[i]) ? y[i] : 0) + 2 * x[i];
        }""",
        reference=TWICE,
    ),
    "adds once to what it reads": Pair(
        source="""
        kernel void k(global const float *x, global float *y, global int *seen) {
            int i = get_global_id(0);
            if (!WRONG || seen[i] != 4711) y[i] += x[i];
            seen[i] = 4711;
        }""",
        reference="x, y): return y + x.astype(float)",
        arguments=f'{ONE.replace("out", "inout")}\nseen = {{ buffer = "int32", size = "n", access = "scratch" }}',
    ),
    "changes its input to what gives the same": Pair(
        source="""
        kernel void k(global float *x, global float *y) {
            int i = get_global_id(0);
            y[i] = fabs(x[i]);
            if (WRONG) x[i] = y[i];
        }""",
        reference="x): return np.abs(x)",
    ),
}


@pytest.mark.parametrize("name", STATE)
def test_what_a_call_leaves_is_of_no_use_to_the_next(
    name: str, tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    right, wrong = (STATE[name].trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right.message
    assert wrong.state is TrialState.WRONG_RESULT, wrong


def in_groups(body: str, reference: str, y: str = "n") -> Pair:
    """A kernel in work-groups of 16, whose body knows the numbers of its work-item, i, and in its group, l."""
    return Pair(
        source="kernel void k(global const float *x, global float *y, int n) {\n"
        f"int i = get_global_id(0), l = get_local_id(0);\n{body}\n}}",
        reference=f"x, n): return {reference}",
        arguments=ONE.replace('size = "n", access', f'size = "{y}", access')
        + '\nn = { scalar = "int32", value = "n" }',
        sizes="n = 960",
        local_size="16",
    )


SHIFTED = """
local float part[16];
part[l] = x[i];
#if !WRONG
barrier(CLK_LOCAL_MEM_FENCE);
#endif
y[i] = part[max(l - 1, 0)];"""
LOCAL = {
    # So many work-groups that all threads of the driver have some: those that had none of the poison are right.
    "local memory that nothing was written to": replace(
        in_groups(
            "local float part[17]; if (!WRONG && l == 0) part[16] = 0; part[l] = x[i]; barrier(CLK_LOCAL_MEM_FENCE);"
            "y[i] = part[l] + part[16];",
            "x",
        ),
        sizes="n = 96000",
    ),
}
ORDERS = {
    "no barrier before what the work-item before wrote": in_groups(
        SHIFTED,
        "x.reshape(-1, 16)[:, [0, *range(15)]]",
    ),
    "the last work-group wins": in_groups("if (WRONG ? l == 15 : i == n - 1) y[0] = x[i];", "x[-1:]", "1"),
    "work-groups add to one element": in_groups(
        "if (!WRONG && i % 32 == 0) y[i / 32] = 2;"
        "if (WRONG && l == 0) y[i / 32] = isinf(y[i / 32]) ? 1 : y[i / 32] + 1;",
        "np.full(n // 32, 2)",
        "n // 32",
    ),
    "a work-group reads what another one wrote": in_groups(
        "if (WRONG) y[i] = i < 16 ? x[i] : y[i - 16] + x[i];"
        "else { float s = 0; for (int j = l; j <= i; j += 16) s += x[j]; y[i] = s; }",
        "x.reshape(-1, 16).cumsum(axis=0, dtype=float)",
    ),
}
"""Right on a processor that runs work-groups and work-items one after the other."""


@pytest.mark.parametrize("name", [*LOCAL, *ORDERS])
def test_no_order_and_no_local_memory_from_before_is_relied_on(
    name: str, tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    pair = {**LOCAL, **ORDERS}[name]
    right, wrong = (pair.trial(tmp_path, pocl, measurer, wrong, verifications=4) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right.message
    assert wrong.state is TrialState.WRONG_RESULT, wrong


def test_sizes_that_are_equal_wherever_asked_are_told_apart(tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    pair = Pair(
        source="""
        kernel void k(global const float *x, global float *y, int rows, int columns) {
            int c = get_global_id(0), r = get_global_id(1);
            y[r * columns + c] = 2 * x[r * (WRONG ? rows : columns) + c];
        }""",
        reference=TWICE,
        arguments=ROWS,
        sizes="rows = 32, columns = 32",
        global_size="columns, rows",
    )
    right, wrong = (pair.trial(tmp_path, pocl, measurer, wrong, verifications=4) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right.message
    assert wrong.state is TrialState.WRONG_RESULT and "at 32x64: " in wrong.message


SIZES = {
    "one huge element": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            int i = get_global_id(0);
            y[i] = i == 0 ? -3e38f : WRONG ? 0 : 5 * x[i];
        }""",
        reference="x): return np.concatenate([[-3e38], 5 * x[1:].astype(float)])",
    ),
    "a mask over half of all": Pair(
        source="""
        kernel void k(global const float *x, global float *y, int rows, int columns) {
            int c = get_global_id(0), r = get_global_id(1);
            y[r * columns + c] = c > r ? -1e9f : x[r * columns + c] * (WRONG ? 0.5f : 1);
        }""",
        reference="x, rows, columns):\n    x = x.reshape(rows, columns).astype(float)\n"
        "    return np.where(np.arange(columns) > np.arange(rows)[:, None], -1e9, x)",
        arguments=ROWS,
        sizes="rows = 40, columns = 40",
        global_size="columns, rows",
    ),
    "rows of other sizes": Pair(
        source="""
        kernel void k(global const float *x, global float *y, int rows, int columns) {
            int c = get_global_id(0), r = get_global_id(1);
            y[r * columns + c] = x[r * columns + c] * pown(10.0f, r - 8) * (WRONG && r < 4 ? 1.01f : 1);
        }""",
        reference="x, rows, columns):\n    x = x.reshape(rows, columns).astype(float)\n"
        "    return x * 10.0 ** (np.arange(rows)[:, None] - 8)",
        arguments=ROWS,
        sizes="rows = 16, columns = 80",
        global_size="columns, rows",
    ),
    "small ones left out": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            int i = get_global_id(0);
            float e = exp(8 * x[i]);
            y[i] = WRONG && e < 0.01f ? 0 : e;
        }""",
        reference="x): return np.exp(8 * x.astype(float))",
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_large_elements_excuse_no_small_ones(name: str, tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    right, wrong = (SIZES[name].trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right.message
    assert wrong.state is TrialState.WRONG_RESULT, wrong


def test_what_cancels_in_the_reference_is_excused_and_said(tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    """Differences of squares keep few digits of numbers around 1,000, whatever computes them in single precision."""
    pair = Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            int i = get_global_id(0);
            float s = x[i] * x[i];
            y[i] = WRONG ? 0.01f * x[i] : (float)(s - x[i + 1] * x[i + 1]);
        }""",
        reference="x): return x[:-1].astype(float) ** 2 - x[1:].astype(float) ** 2",
        arguments=ONE.replace('size = "n" }', 'size = "n + 1", range = [1000, 1000.1] }', 1),
    )
    right, wrong = (pair.trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right
    assert "the tolerance of y was guessed" in right.message
    assert wrong.state is TrialState.WRONG_RESULT, wrong


def test_what_the_reference_keeps_must_be_kept(tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    pair = Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            float big = 40000 * (1 + get_global_id(0) % 2);
            y[get_global_id(0)] = WRONG ? (x[get_global_id(0)] + big) - big : x[get_global_id(0)];
        }""",
        reference="x): return x",
    )
    right, wrong = (pair.trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right
    assert wrong.state is TrialState.WRONG_RESULT, wrong


ROW = (
    'x = { buffer = "float32", size = "rows * columns" }\ny = { buffer = "float32", size = "rows", access = "out" }\n'
    'columns = { scalar = "int32", value = "columns" }'
)
MAXIMUM = """
kernel void k(global const float *x, global float *y, int columns) {
    float m = START;
    for (int c = 0; c < columns; c++) {
        float v = x[get_global_id(0) * columns + c];
        m = UPDATE;
    }
    y[get_global_id(0)] = m;
}"""


def each_row(source: str, reference: str) -> Pair:
    return Pair(source=source, reference=reference, arguments=ROW, sizes="rows = 30, columns = 40", global_size="rows")


REGIMES = {
    "low bits of bytes": Pair(
        source="""
        kernel void k(global const char *x, global int *y) {
            int v = x[get_global_id(0)];
            y[get_global_id(0)] = 7 * (WRONG ? (v << 27) >> 27 : v);
        }""",
        reference="x): return 7 * x.astype(np.int32)",
        arguments=ONE.replace("float32", "int8", 1).replace("float32", "int32"),
    ),
    "low bits of unsigned bytes": Pair(
        source="""
        kernel void k(global const uchar *x, global int *y) {
            y[get_global_id(0)] = x[get_global_id(0)] & (WRONG ? 15 : 255);
        }""",
        reference="x): return x.astype(np.int32)",
        arguments=ONE.replace("float32", "uint8", 1).replace("float32", "int32"),
    ),
    "a product in 16 bits": Pair(
        source="""
        kernel void k(global const int *x, global int *y) {
            int v = x[get_global_id(0)];
            y[get_global_id(0)] = WRONG ? (short)(3 * v) : 3 * v;
        }""",
        reference="x): return 3 * x.astype(int)",
        arguments=ONE.replace("float32", "int32"),
    ),
    "a maximum from 0": each_row(
        MAXIMUM.replace("START", "WRONG ? 0 : -INFINITY").replace("UPDATE", "fmax(m, v)"),
        "x, rows): return x.reshape(rows, -1).max(axis=1)",
    ),
    "a minimum from 0": each_row(
        MAXIMUM.replace("START", "WRONG ? 0 : INFINITY").replace("UPDATE", "fmin(m, v)"),
        "x, rows): return x.reshape(rows, -1).min(axis=1)",
    ),
    "a maximum that drops NaN": each_row(
        MAXIMUM.replace("START", "-INFINITY").replace("UPDATE", "WRONG ? fmax(m, v) : (isnan(m) || v <= m ? m : v)"),
        "x, rows): return x.reshape(rows, -1).max(axis=1)",
    ),
    "a mean of squares less the square of the mean": each_row(
        """
        kernel void k(global const float *x, global float *y, int columns) {
            float s = 0, q = 0, mean = 0;
            x += get_global_id(0) * columns;
            if (!WRONG)
                for (int c = 0; c < columns; c++) mean += x[c] / columns;
            for (int c = 0; c < columns; c++) {
                s += x[c] - mean;
                q += (x[c] - mean) * (x[c] - mean);
            }
            s /= columns;
            y[get_global_id(0)] = q / columns - s * s;
        }""",
        "x, rows): return x.reshape(rows, -1).astype(float).var(axis=1)",
    ),
    "exponentials that overflow": each_row(
        """
        kernel void k(global const float *x, global float *y, int columns) {
            float m = 0, s = 0;
            x += get_global_id(0) * columns;
            if (!WRONG)
                for (int c = 0; c < columns; c++) m = fmax(m, x[c]);
            for (int c = 0; c < columns; c++) s += exp(x[c] - m);
            y[get_global_id(0)] = m + log(s);
        }""",
        "x, rows): return np.logaddexp.reduce(x.reshape(rows, -1).astype(float), axis=1)",
    ),
    "a series that holds near 0": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            float v = x[get_global_id(0)], q = v * v;
            y[get_global_id(0)] = WRONG ? v * (1 - q / 6 * (1 - q / 20 * (1 - q / 42 * (1 - q / 72)))) : sin(v);
        }""",
        reference="x): return np.sin(x.astype(float))",
    ),
    "denormal numbers as 0": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            float v = x[get_global_id(0)];
            y[get_global_id(0)] = WRONG && fabs(v) < FLT_MIN ? 0 : v;
        }""",
        reference="x): return x",
    ),
    "more than half precision holds": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            y[get_global_id(0)] = WRONG ? clamp(x[get_global_id(0)], -65504.0f, 65504.0f) : x[get_global_id(0)];
        }""",
        reference="x): return x",
    ),
    "low bits of lengths": Pair(
        source="""
        kernel void k(global const uint *x, global uint *y) {
            y[get_global_id(0)] = x[get_global_id(0)] & (WRONG ? 15u : 0xffffu);
        }""",
        reference="x): return x",
        arguments=ONE.replace("float32", "uint32"),
    ),
    "0 divided by 0": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            float v = x[get_global_id(0)];
            y[get_global_id(0)] = v == 0 && !WRONG ? 0 : v / fabs(v);
        }""",
        reference="x): return np.sign(x)",
    ),
    "halves rounded up": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            float v = x[get_global_id(0)];
            y[get_global_id(0)] = WRONG ? floor(v + 0.5f) : rint(v);
        }""",
        reference="x): return np.rint(x)",
    ),
    "the sign of 0": Pair(
        source="""
        kernel void k(global const float *x, global float *y) {
            float v = x[get_global_id(0)];
            y[get_global_id(0)] = WRONG && v == 0 ? 1 : sign(v);
        }""",
        reference="x): return np.sign(x)",
    ),
    "the first of equal numbers": each_row(
        """
        kernel void k(global const float *x, global float *y, int columns) {
            int best = 0;
            x += get_global_id(0) * columns;
            for (int c = 0; c < columns; c++)
                if (WRONG ? x[c] >= x[best] : x[c] > x[best]) best = c;
            y[get_global_id(0)] = best;
        }""",
        "x, rows): return x.reshape(rows, -1).argmax(axis=1)",
    ),
}


@pytest.mark.parametrize("name", REGIMES)
def test_inputs_of_other_kinds_are_compared_too(name: str, tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    right, wrong = (REGIMES[name].trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right.message
    assert wrong.state is TrialState.WRONG_RESULT, wrong
    assert "inputs: " in wrong.message


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("low bits of bytes", 'size = "n" }', 'size = "n", range = [-9, 9] }'),
        ("denormal numbers as 0", 'size = "n" }', 'size = "n", special = false }'),
        ("exponentials that overflow", 'columns" }', 'columns", range = [-9, 9] }'),
    ],
)
def test_a_file_says_what_does_not_occur(
    name: str, before: str, after: str, tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    pair = REGIMES[name]
    pair = replace(pair, arguments=pair.arguments.replace(before, after, 1))
    for wrong in (0, 1):
        trial = pair.trial(tmp_path, pocl, measurer, wrong)
        assert trial.state is TrialState.COMPLETE, trial.message


LIMITED = {
    "the reference overflows": ("exp(9 * x[i])", "np.exp(9 * x.astype(float))"),
    "the reference is no number": ("sqrt(1 - x[i] * x[i])", "np.sqrt(1 - x.astype(float) ** 2)"),
    "the reference fails": ("x[i]", "x if abs(x).max() <= 1 else 1 / 0"),
    "the default is a series that holds near 0": ("1 + x[i] * x[i] * 1e-6f", "np.cosh(1e-3 * x.astype(float)) ** 2"),
    "the default drops NaN": ("fmax(x[i], -2.0f)", "np.maximum(x, np.float32(-2))"),
    "the default has fewer digits for large numbers": (
        "(x[i] + 1) * (x[i] + 1) - x[i] * x[i]",
        "2 * x.astype(float) + 1",
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_what_is_not_defined_or_not_for_the_default_is_not_asked(
    name: str, tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    kernel, reference = LIMITED[name]
    pair = Pair(
        source="kernel void k(global const float *x, global float *y) {\n"
        f"    int i = get_global_id(0);\n    y[i] = WRONG == 2 ? 0 : {kernel};\n}}",
        reference=f"x): return {reference}",
    )
    for wrong in (0, 1):
        trial = pair.trial(tmp_path, pocl, measurer, wrong)
        assert trial.state is TrialState.COMPLETE, trial.message


def test_a_default_that_is_wrong_on_other_inputs_says_so(tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    pair = REGIMES["low bits of bytes"]
    pair = replace(pair, source=pair.source.replace("WRONG ?", "WRONG < 2 ?"))
    default, other = (pair.trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert default.state is other.state is TrialState.COMPLETE
    assert "the default is wrong on inputs of another kind, numbers of a large range" in default.message
    assert re.search("is a `range` missing\\? .* of the elements of y are wrong, the first is y", default.message)
    assert not other.message


STRAY = {
    "behind an output": "y[n + 1500] = 1;",
    "behind scratch": "kept[n + 300] = 1;",
    "behind an input": "((global float *)x)[n + 300] = 1;",
    "before an output": "y[-1500] = 1;",
    "before scratch": "kept[-1] = 1;",
    "before an input": "((global float *)x)[-300] = 1;",
}


@pytest.mark.parametrize("name", STRAY)
def test_what_is_written_around_a_buffer_is_found(name: str, tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    pair = Pair(
        source="""
        kernel void k(global const float *x, global float *kept, global float *y, int n) {
            int i = get_global_id(0);
            kept[i] = 2 * x[i];
            y[i] = kept[i];
            if (WRONG && i == n - 1) { STRAY }
        }""".replace("STRAY", STRAY[name]),
        reference=TWICE,
        arguments=ONE.replace("\n", '\nkept = { buffer = "float32", size = "n", access = "scratch" }\n')
        + '\nn = { scalar = "int32", value = "n" }',
    )
    right, wrong = (pair.trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right.message
    assert wrong.state is TrialState.WRONG_RESULT, wrong


SCALED = Pair(
    source="""
    kernel void k(global const float *x, global float *y, float alpha, float beta) {
        int i = get_global_id(0);
        y[i] = WRONG ? x[i] : alpha * x[i] + (beta != 0 ? beta * y[i] : 0);
    }""",
    reference="x, y, alpha, beta): return alpha * x + beta * y",
    arguments=ONE.replace('"out"', '"inout"')
    + '\nalpha = { scalar = "float32", value = 1 }\nbeta = { scalar = "float32", value = 0 }',
)


def test_numbers_that_the_reference_takes_are_used(tmp_path: Path, pocl: Device, measurer: Measurer) -> None:
    right, wrong = (SCALED.trial(tmp_path, pocl, measurer, wrong) for wrong in (0, 1))
    assert right.state is TrialState.COMPLETE, right.message
    assert wrong.state is TrialState.WRONG_RESULT, wrong
    assert "other values of numbers" in wrong.message


def test_numbers_that_the_default_does_not_use_are_not_asked_for(
    tmp_path: Path, pocl: Device, measurer: Measurer
) -> None:
    fixed = replace(SCALED, source=SCALED.source.replace("WRONG ? x[i]", "WRONG < 2 ? x[i]"))
    for wrong in (0, 1):
        assert fixed.trial(tmp_path, pocl, measurer, wrong).state is TrialState.COMPLETE


def test_work_groups_may_write_to_one_element_by_atomic_operations_and_not_by_comments_about_them() -> None:
    assert is_racy_by_design("kernel void f(global int *y) { atomic_inc(y); }")
    assert is_racy_by_design("#pragma OPENCL EXTENSION x : enable\n#define ADD atom_add")
    assert not is_racy_by_design(
        "/* needs no\natomic_add */ kernel void f(global int *atoms) { *atoms = 1; } // atom_inc"
    )
