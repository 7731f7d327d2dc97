"""Reads `scripts/results`, for the tables and the pictures of the manual."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"

SLOW_START = (512, 512, 512)
"""The first product of each GPU run: cuBLAS began slowly there, so means leave it out."""


def result(name: str) -> Any:
    """Return the content of `scripts/results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def size(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["m"], row["n"], row["k"]


def speeds(row: Mapping[str, Any], library: str = "cublas") -> dict[str, float]:
    """Return the speed of the tuned kernel and of the default, as multiples of the library's; medians over rounds.

    `loop` is the tuned kernel's by the host's clock, and `without` the default without matrix units, where measured.
    """
    ratio = row["ratio"]
    others = {"loop": ratio["loop"]} if "loop" in ratio else {}
    if "without" in ratio:
        others["without"] = ratio[library] / ratio["without"]
    return {"tuned": ratio[library], "default": ratio[library] / ratio["default"], **others}


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def search_curves(names: Iterable[str]) -> dict[str, dict[int, float]]:
    """Return, for each sampler, the median share of the optimum after so many trials, averaged over the spaces."""
    samplers = result("search")["samplers"]
    return {name: {int(n): share for n, share in samplers[name]["mean"]["median"].items()} for name in names}


def complete_rivals() -> list[str]:
    """Return the strategies of Kernel Tuner that ran on every space."""
    samplers = result("search")["samplers"]
    spaces = set(samplers["ours"])
    return [name for name, rows in samplers.items() if name.startswith("kt ") and set(rows) == spaces]


def best_rival_curve() -> dict[int, float]:
    """Return, at each number of trials, the highest median share of any of Kernel Tuner's strategies."""
    curves = list(search_curves(complete_rivals()).values())
    return {trials: max(curve[trials] for curve in curves) for trials in curves[0]}
