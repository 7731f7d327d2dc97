"""The medians of `bench_search` as an SVG drawing, in plain Python."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

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
        curves = {name: samplers[name][space]["curve"] for name in shown if space in samplers[name]}
        parts.append(f'<g transform="translate({x},{y})">{_panel(space, curves, shown)}</g>')
    for number, name in enumerate(shown):
        x, y = 20 + number * (WIDTH * COLUMNS - 40) // len(shown), HEIGHT * rows + 15
        parts.append(f'<text x="{x}" y="{y}" fill="{COLOURS[number % len(COLOURS)]}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _shown(samplers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    def area(name: str) -> float:
        curves = [row["curve"] for row in samplers[name].values()]
        return sum(sum(curve) / len(curve) for curve in curves) / max(1, len(curves))

    rivals = sorted((n for n in samplers if n not in ("ours", "random")), key=area, reverse=True)
    return [n for n in ("ours", *rivals[:SHOWN_RIVALS], "random") if n in samplers]


def _panel(title: str, curves: Mapping[str, Sequence[float]], shown: Sequence[str]) -> str:
    longest = max((len(curve) for curve in curves.values()), default=1)

    def at(evaluations: float, share: float) -> str:
        x = MARGIN + (WIDTH - MARGIN - 12) * math.log(evaluations) / math.log(max(2, longest))
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (max(share, LOWEST) - LOWEST) / (1 - LOWEST)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<text x="{MARGIN}" y="{MARGIN - 10}" font-weight="bold">{escape(title)}</text>']
    for share in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0):
        parts.append(f'<polyline points="{at(1, share)} {at(longest, share)}" stroke="#ddd" fill="none"/>')
        y = at(1, share).split(",")[1]
        parts.append(f'<text x="{MARGIN - 5}" y="{y}" text-anchor="end" dominant-baseline="middle">{share:g}</text>')
    for evaluations in (n for n in (1, 2, 5, 10, 25, 50, 100, 200, 400) if n <= longest):
        x = at(evaluations, LOWEST).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - MARGIN + 14}" text-anchor="middle">{evaluations}</text>')
    for name, curve in curves.items():
        colour = COLOURS[shown.index(name) % len(COLOURS)]
        points = " ".join(at(i, share) for i, share in enumerate(curve, start=1))
        width = 2.2 if name == "ours" else 1.2
        parts.append(f'<polyline points="{points}" stroke="{colour}" stroke-width="{width}" fill="none"/>')
    return "".join(parts)
