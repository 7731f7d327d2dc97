"""`autotune.tune`, as notebooks and scripts use it."""

import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune.errors import UsageError
from autotune.model.device import Device
from autotune.own.function_source import function_source

ONE_LINE = "kernel void half(global const float *a, global float *o, int n) { int i = get_global_id(0); if (i < n) o[i] = a[i] / 2 + 0 * WG; }"  # noqa: E501
KERNEL: dict[str, Any] = {
    "name": "halved", "kernel": "half", "source": ONE_LINE.replace(" half", " half_of"), "sizes": {"n": 1000},
    "parameters": {"WG": [16, 64]}, "global_size": "round_up(n, WG)", "local_size": "WG",
    "arguments": {
        "a": {"buffer": "float32", "size": "n"}, "o": {"buffer": "float32", "size": "n", "access": "out"},
        "n": {"scalar": "int32", "value": "n"},
    },
}  # fmt: skip
KERNEL["kernel"] = "half_of"


@pytest.fixture
def tune(tmp_path: Path, fresh_families: None, pocl: Device, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = {"device": pocl.selector, "trials": 2, "db": tmp_path / "own.sqlite"}
    return lambda kernel, **others: autotune.tune(kernel, **{**options, **others})


def cell(text: str, name: str = "right") -> Any:
    """Return a function as a cell of a notebook defines it: its source is known by line, and it has no file."""
    file = f"<ipython-input-{abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


CELL = """
import numpy as np
from math import floor as down
SCALE = [0.5, 2]

def inner(x):
    return x * SCALE[0]

def right(a, n):
    return np.array([inner(x) for x in a]) + down(0.5)
"""


def test_a_function_of_a_cell_is_a_reference(tune: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    found = tune(KERNEL, reference=cell(CELL))
    assert found[0].winner
    assert re.search(r"trial|best", capsys.readouterr().err), "progress is told"
    assert repr(found).startswith("shape  time") and "halved(WG=" in repr(found) and len(repr(found)) < 300
    assert "<td>halved(WG=" in found._repr_html_()
    assert len(repr(found[0])) < 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = object()\ndef right(a): return x", "right uses x, a object that other processes do not have"),
        ("def of(x):\n    def right(a): return x\n    return right\nright = of(1)", "is not a function of a module"),
        ("right = lambda a: a", "is not a function of a module"),
        ("def f(a): return a\ng = f\ndef right(a): return g(a)", "right uses f by another name, g"),
    ],
)
def test_functions_that_other_processes_cannot_have_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        function_source(cell(text))


@pytest.mark.long
def test_arrays_are_inputs_and_the_reference(tune: Callable[..., Any], tmp_path: Path) -> None:
    a = np.arange(1000, dtype=np.float32)
    kernel = {**KERNEL, "arguments": {**KERNEL["arguments"], "a": {"buffer": "float32", "size": "n", "file": a}}}
    for reference in (a / 2, {"o": a / 2}):
        assert tune(kernel, reference=reference)[0].winner
    assert not tune(kernel, reference=a / 3, db=tmp_path / "other.sqlite")[0].winner


def test_a_device_must_be_named(tune: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="device"):
        autotune.tune(KERNEL)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"kernel\.cl: No such file"):
        tune({**KERNEL, "source": "kernel.cl"})
