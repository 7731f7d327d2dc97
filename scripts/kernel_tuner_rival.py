"""Kernel Tuner on a kernel that a file describes; `bench_kernel_files` runs this in Kernel Tuner's own environment.

    PYTHON kernel_tuner_rival.py TASK.json ARGUMENTS.npz

Needs kernel_tuner and pyopencl beside NumPy. Prints one line of JSON: the best configuration, its time and the trial
that found it, how many trials and different configurations there were, how many failed, and the seconds taken. PoCL
starts as many threads and compiles for the same processor as for autotune.
"""

import ast
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import kernel_tuner  # type: ignore[import-not-found]
import numpy as np
import pyopencl

from autotune.device.quirks import repair_processor_name, set_threads

HELPERS = {
    "ceil_div": lambda a, b: -(-a // b), "round_up": lambda a, b: -(-a // b) * b, "min": min, "max": max,
}  # fmt: skip


def main() -> int:
    task = json.loads(Path(sys.argv[1]).read_text())
    arrays = dict(np.load(sys.argv[2]))
    answers = [arrays.get(f"answer_{name}") for name in task["arguments"]]
    arguments = [arrays[name] if arrays[name].ndim else arrays[name][()] for name in task["arguments"]]
    restrictions = [ast.unparse(_Inlined().visit(ast.parse(text, mode="eval"))) for text in task["restrictions"]]
    set_threads()
    repair_processor_name(pyopencl.get_platforms()[task["platform"]].get_devices()[task["device"]])
    began = time.perf_counter()
    # Kernel Tuner leaves the sources that fail where it runs.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        results, _ = kernel_tuner.tune_kernel(
            task["kernel"], task["source"], lambda config: _groups(task, config), arguments, task["parameters"],
            grid_div_x=[], grid_div_y=[], grid_div_z=[], restrictions=restrictions, lang="OpenCL",
            platform=task["platform"], device=task["device"],
            block_size_names=task["block_size_names"],
            answer=None if all(answer is None for answer in answers) else answers,
            atol=task["atol"], strategy=task["strategy"], seed=task["seed"], quiet=True,
            strategy_options={"max_fevals": task["trials"]},
        )  # fmt: skip
    timed = [result for result in results if isinstance(result["time"], float)]
    best = min(timed, key=lambda result: result["time"]) if timed else {}
    print(
        json.dumps(
            {
                "best": {name: best[name] for name in task["parameters"]} if best else {},
                "time_ms": best.get("time"),
                "best_at": results.index(best) + 1 if best else None,
                "trials": len(results),
                "configurations": len({tuple(result[name] for name in task["parameters"]) for result in results}),
                "failures": len(results) - len(timed),
                "seconds": time.perf_counter() - began,
            }
        )
    )
    return 0


class _Inlined(ast.NodeTransformer):
    """Writes out the functions of formulas, which Kernel Tuner's restrictions cannot call."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        texts = {"ceil_div": "-(-({0}) // ({1}))", "round_up": "(-(-({0}) // ({1})) * ({1}))"}
        text = texts.get(ast.unparse(node.func))
        return ast.parse(text.format(*map(ast.unparse, node.args)), mode="eval").body if text else node


def _groups(task: dict[str, Any], config: dict[str, Any]) -> tuple[int, ...]:
    """Return the work-groups in each dimension."""
    known = {**HELPERS, **task["sizes"], **config}
    sizes = [[eval(part, known) for part in task[key]] for key in ("global_size", "local_size")]  # noqa: S307
    return tuple(whole // part for whole, part in zip(*sizes, strict=True))


if __name__ == "__main__":
    sys.exit(main())
