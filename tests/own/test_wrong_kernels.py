"""Kernels that are fast because they are wrong: each wrong form is refused, and the right form is not."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

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

    def write(self, folder: Path) -> Path:
        (folder / "k.cl").write_text(textwrap.dedent(self.source))
        (folder / "k.py").write_text(f"import numpy as np\ndef ref({self.reference}\n")
        path = folder / "k.toml"
        path.write_text(
            f'name = "k"\nsource = "k.cl"\nglobal_size = "{self.global_size}"\nsizes = {{ {self.sizes} }}\n'
            f'parameters = {{ WRONG = [0, 1] }}\n[arguments]\n{self.arguments}\n[reference]\npython = "k.py:ref"\n'
        )
        return path

    def trial(self, folder: Path, device: Device, measurer: Measurer, wrong: int) -> Trial:
        with registered(self.write(folder)) as family:
            configuration = Configuration.of("k", WRONG=wrong)
            return measurer.measure(quick_job(device, family.examples()[-1], configuration, probe=False))


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
