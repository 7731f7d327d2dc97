"""The manual's pictures as SVG, in plain Python, readable on light and dark pages.

Each picture has a ground of its own and takes its colors from the reader's preferred color scheme.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from figure_results import SLOW_START, best_rival_curve, result, search_curves, size, speeds

STYLE = """\
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}.note,.tick{fill:#59636e;font-size:12px}
.ground{fill:#fff;stroke:#d1d9e0}.box{fill:#f6f8fa;stroke:#d1d9e0}.grid{stroke:#e4e8ec}.mark{stroke:#59636e;stroke-width:1.5}
.ours{fill:#0969da;stroke:#0969da}.theirs{fill:#9a6700;stroke:#9a6700}.other{fill:#818b98;stroke:#818b98}
.line{fill:none;stroke-width:2.5}.text{stroke:none}.pale{fill:#54aeff;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note,.tick{fill:#9198a1}.ground{fill:#151b23;stroke:#3d444d}.box{fill:#212830;stroke:#3d444d}
.grid{stroke:#2a313c}.mark{stroke:#9198a1}.ours{fill:#4493f8;stroke:#4493f8}.theirs{fill:#d29922;stroke:#d29922}
.other{fill:#767f89;stroke:#767f89}.pale{fill:#1f6feb}.line{fill:none}}
.line{fill:none}.text{stroke:none}"""

WIDTH = 780


def pictures() -> dict[str, str]:
    """Return every picture by its file's name."""
    return {"gemm.svg": _products(), "search.svg": _searches(), "unseen.svg": _unseen(), "pipeline.svg": _pipeline()}


def _svg(height: int, title: str, note: str, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, quote=True)}">'
    )
    frame = f'<rect class="ground" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    lines = [head, f"<style>{STYLE}</style>", frame, _text(24, 32, title, "title"), _text(24, 52, note, "note"), *parts]
    return "\n".join([*lines, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _dot(x: float, y: float, kind: str, radius: float = 4) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{kind}"/>'


def _products() -> str:
    """A bar for the tuned kernel and a dot for the default of each product, as multiples of cuBLAS's speed."""
    rows = [row for row in result("bench_gemm_h200")["results"] if size(row) != SLOW_START]
    left, top, step, unit = 190, 92, 21, 280

    def x(speed: float) -> float:
        return left + speed * unit

    bottom = top + step * len(rows)
    parts: list[str] = []
    for tick in (0, 0.5, 1, 1.5):
        parts.append(_line(x(tick), top - 8, x(tick), bottom, "mark" if tick == 1 else "grid"))
        parts.append(_text(x(tick), top - 14, "cuBLAS = 1" if tick == 1 else f"{tick:g}", "tick", "middle"))
    for number, row in enumerate(rows):
        y, speed = top + number * step, speeds(row)
        parts.append(_text(left - 12, y + 11, " x ".join(map(str, size(row))), "", "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{speed["tuned"] * unit:.1f}" height="13" class="pale"/>')
        parts.append(_dot(x(speed["default"]), y + 6.5, "theirs"))
        parts.append(_text(WIDTH - 20, y + 11, f"{row['gflops'] / 1000:.1f} TFLOP/s", "note", "end"))
    legend = bottom + 24
    parts.append(f'<rect x="{left}" y="{legend - 10}" width="26" height="12" class="pale"/>')
    parts.append(_text(left + 34, legend, "tuned"))
    parts += [_dot(left + 106, legend - 4, "theirs"), _text(left + 118, legend, "default, nothing tuned")]
    note = "m x n x k, speed as a multiple of cuBLAS (without TF32), GPU time, medians of runs in turns"
    return _svg(legend + 20, "Float32 matrix products on an NVIDIA H200", note, parts)


def _searches() -> str:
    """The median search against Kernel Tuner's best strategy and chance, by trials on a logarithmic axis."""
    curves = {**search_curves(["ours", "random"]), "rival": best_rival_curve()}
    left, right, top, bottom, lowest = 60, 560, 80, 330, 0.7
    first, last = min(curves["ours"]), max(curves["ours"])

    def at(trials: float, share: float) -> tuple[float, float]:
        x = left + (right - left) * math.log(trials / first) / math.log(last / first)
        return x, bottom - (bottom - top) * (share - lowest) / (1 - lowest)

    parts = []
    for share in (0.7, 0.8, 0.9, 1.0):
        y = at(first, share)[1]
        parts += [_line(left, y, right, y, "grid"), _text(left - 10, y + 4, f"{share:.0%}", "tick", "end")]
    for trials in curves["ours"]:
        parts.append(_text(at(trials, 1)[0], bottom + 20, str(trials), "tick", "middle"))
    parts.append(_text((left + right) / 2, bottom + 40, "trials", "tick", "middle"))
    names = {"ours": ("autotune", "ours"), "rival": ("Kernel Tuner, best strategy", "theirs"),
             "random": ("random", "other")}  # fmt: skip
    for name, (label, kind) in names.items():
        points = [at(trials, share) for trials, share in curves[name].items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" class="{kind} line"/>')
        parts += [_dot(x, y, kind) for x, y in points]
        parts.append(_text(points[-1][0] + 12, points[-1][1] + (16 if name == "rival" else 4), label, f"{kind} text"))
    note = "the median search, averaged over five recorded spaces of real GPUs, three GEMMs among them"
    return _svg(bottom + 56, "Share of the optimum found after so many trials", note, parts)


def _unseen() -> str:
    """A dot for each size that was never tuned: what the default and the nearest size reach there."""
    devices = (("h200", "NVIDIA H200"), ("h100", "NVIDIA H100"), ("pocl", "PoCL, AVX-512"))
    methods = (("default", "default", "ours"), ("nearest", "nearest size", "theirs"))
    left, right, top, step = 230, 750, 100, 34
    every = [row["reached"][key] for name, _ in devices for row in result(f"regret_{name}")["sizes"]
             for key, *_ in methods if row["reached"].get(key) is not None]  # fmt: skip
    most = max(1.1, *every)

    def x(share: float) -> float:
        return left + (right - left) * share / most

    parts, y = [], top
    end = top + step * (len(devices) * len(methods)) + 8 * len(devices)
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(_line(x(tick), top - 20, x(tick), end - 14, "mark" if tick == 1 else "grid"))
        parts.append(_text(x(tick), top - 26, "tuned" if tick == 1 else f"{tick:.0%}", "tick", "middle"))
    for name, device in devices:
        sizes = result(f"regret_{name}")["sizes"]
        parts.append(_text(24, y + 4, device))
        for key, label, kind in methods:
            parts.append(_text(left - 14, y + 4, label, "note", "end"))
            parts += _strip([row["reached"] for row in sizes], key, x, (y, kind))
            y += step
        y += 8
    note = "each dot is one of 32 products, after 40 others were tuned; 8 s of tuning each is 100%"
    return _svg(end + 8, "Speed at sizes that were never tuned", note, parts)


def _strip(reached: Sequence[Mapping[str, float]], key: str, x: object, place: tuple[float, str]) -> list[str]:
    y, kind = place
    assert callable(x)
    shares = sorted(row[key] for row in reached if row.get(key) is not None)
    return [f'<g opacity=".65">{"".join(_dot(x(share), y, kind) for share in shares)}</g>']


_STEPS = (
    (("problem", "sizes and types"), ("family", "parameters, constraints"), ("space", "legal configurations")),
    (("search", "which one next; finals"), ("child process", "build, check, time"), ("database", "trials and winners")),
    (("lookup", "exact, near, default"), ("runtime", "arrays in Python"), ("export", "C and JSON")),
)
_SIDES = ("what is asked", "what is tried", "what is used")


def _pipeline() -> str:
    """Three rows of boxes: from a problem to its space, the loop of the search, and the ways to use a winner."""
    left, top, width, height, gap_x, gap_y = 150, 82, 186, 56, 20, 34
    parts = []
    for row, steps in enumerate(_STEPS):
        y = top + row * (height + gap_y)
        parts.append(_text(24, y + height / 2 + 4, _SIDES[row], "note"))
        for column, (name, meaning) in enumerate(steps):
            x = left + column * (width + gap_x)
            parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
            parts += [_text(x + 14, y + 24, name), _text(x + 14, y + 43, meaning, "note")]
            if column and row < 2:
                parts.append(_line(x - gap_x, y + height / 2, x, y + height / 2, "mark"))
    last, middle = left + 2 * (width + gap_x) + width / 2, height + gap_y / 2
    first = left + width / 2
    for row in range(2):
        y = top + row * (height + gap_y) + middle
        bend = f"{last:.0f},{y - gap_y / 2:.0f} {last:.0f},{y:.0f} {first:.0f},{y:.0f} {first:.0f},{y + gap_y / 2:.0f}"
        parts.append(f'<polyline points="{bend}" class="mark" fill="none"/>')
    note = "data flows one way; each box is a part of the package"
    return _svg(top + 3 * (height + gap_y), "From a problem to a program", note, parts)
