"""The medians of `bench_search` as an SVG drawing, in plain Python.

    python scripts/search_plot.py scripts/results/search.json scripts/results/search.svg

draws what a report tells: the medians at its numbers of evaluations, joined by lines.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

Points = Sequence[tuple[int, float]]
"""Evaluations, and the fraction of the optimum reached after them."""

WIDTH, HEIGHT, MARGIN, COLUMNS = 380, 250, 42, 3
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#7f7f7f")
LOWEST = 0.5
SHOWN_RIVALS = 5


def plot(samplers: Mapping[str, Mapping[str, Any]]) -> str:
    """One panel a space, and one for the mean; ours, the best rivals and random, by evaluations (logarithmic)."""
    panels = list(dict.fromkeys(space for spaces in samplers.values() for space in spaces))
    shown = _shown(samplers)
    rows = math.ceil(len(panels) / COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * COLUMNS}" height="{HEIGHT * rows + 30}">',
        "<style>text { font: 11px sans-serif }</style>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, space in enumerate(panels):
        x, y = WIDTH * (number % COLUMNS), HEIGHT * (number // COLUMNS)
        curves = {name: _points(samplers[name][space]) for name in shown if space in samplers[name]}
        parts.append(f'<g transform="translate({x},{y})">{_panel(space, curves, shown)}</g>')
    for number, name in enumerate(shown):
        x, y = 20 + number * (WIDTH * COLUMNS - 40) // len(shown), HEIGHT * rows + 15
        parts.append(f'<text x="{x}" y="{y}" fill="{COLOURS[number % len(COLOURS)]}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _shown(samplers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    def merit(name: str) -> tuple[int, float]:
        """Those that ran on fewer spaces come last: means over different spaces do not compare."""
        curves = [[share for _, share in _points(row)] for row in samplers[name].values()]
        return len(curves), sum(sum(curve) / len(curve) for curve in curves) / max(1, len(curves))

    rivals = sorted((n for n in samplers if n not in ("ours", "random")), key=merit, reverse=True)
    return [n for n in ("ours", *rivals[:SHOWN_RIVALS], "random") if n in samplers]


def _points(row: Mapping[str, Any]) -> Points:
    return [(int(evaluations), share) for evaluations, share in row["median"].items()]


def _panel(title: str, curves: Mapping[str, Points], shown: Sequence[str]) -> str:
    ends = [evaluations for curve in curves.values() for evaluations, _ in curve]
    first, longest = min(ends, default=1), max(ends, default=1)

    def at(evaluations: float, share: float) -> str:
        x = MARGIN + (WIDTH - MARGIN - 12) * math.log(evaluations / first) / math.log(max(2.0, longest / first))
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (max(share, LOWEST) - LOWEST) / (1 - LOWEST)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<text x="{MARGIN}" y="{MARGIN - 10}" font-weight="bold">{escape(title)}</text>']
    for share in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0):
        parts.append(f'<polyline points="{at(first, share)} {at(longest, share)}" stroke="#ddd" fill="none"/>')
        y = at(first, share).split(",")[1]
        parts.append(f'<text x="{MARGIN - 5}" y="{y}" text-anchor="end" dominant-baseline="middle">{share:g}</text>')
    for evaluations in dict.fromkeys(ends):
        x = at(evaluations, LOWEST).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - MARGIN + 14}" text-anchor="middle">{evaluations}</text>')
    for name, curve in curves.items():
        colour = COLOURS[shown.index(name) % len(COLOURS)]
        points = " ".join(at(evaluations, share) for evaluations, share in curve)
        width = 2.2 if name == "ours" else 1.2
        parts.append(f'<polyline points="{points}" stroke="{colour}" stroke-width="{width}" fill="none"/>')
    return "".join(parts)


if __name__ == "__main__":
    report, drawing = map(Path, sys.argv[1:])
    drawing.write_text(plot(json.loads(report.read_text(encoding="utf-8"))["samplers"]), encoding="utf-8")
