"""The manual's pictures, drawn as those of reports are."""

from figure_results import SLOW_START, best_rival_curve, result, search_curves, size, speeds

from autotune.lookup.json_table import read_contents
from autotune.paths import data_folder
from autotune.service.report.pictures import pictures as report_pictures
from autotune.service.report.svg import WIDTH, bar, dot, drawing, line, logarithmic, text


def pictures() -> dict[str, str]:
    """Return every picture by its file's name."""
    return {
        "gemm.svg": _products(),
        "search.svg": _searches(),
        "limit.svg": _limit(),
        "pipeline.svg": _pipeline(),
    }


def _limit() -> str:
    """What a report shows of the published table of the H200."""
    winners = read_contents(data_folder("db") / "tables" / "nvidia-h200.json").winners
    of_family = [winner for winner in winners if winner.problem.family == "gemm"]
    return report_pictures("nvidia-h200", "gemm", of_family)["nvidia-h200-gemm-limit.svg"]


def _products() -> str:
    """A bar for the tuned kernel and a dot for the default of each product, as multiples of cuBLAS's speed."""
    rows = [row for row in result("bench_gemm_h200")["results"] if size(row) != SLOW_START]
    left, top, step, unit = 190, 92, 21, 280

    def x(speed: float) -> float:
        return left + speed * unit

    bottom = top + step * len(rows)
    parts: list[str] = []
    for tick in (0, 0.5, 1, 1.5):
        parts.append(line(x(tick), top - 8, x(tick), bottom, "mark" if tick == 1 else "grid"))
        parts.append(text(x(tick), top - 14, "cuBLAS = 1" if tick == 1 else f"{tick:g}", "tick", "middle"))
    for number, row in enumerate(rows):
        y, speed = top + number * step, speeds(row)
        parts.append(text(left - 12, y + 11, " x ".join(map(str, size(row))), "", "end"))
        parts.append(bar(left, y, speed["tuned"] * unit, 13, "pale"))
        parts.append(dot(x(speed["default"]), y + 6.5, "theirs"))
        parts.append(text(WIDTH - 20, y + 11, f"{row['gflops'] / 1000:.1f} TFLOP/s", "note", "end"))
    legend = bottom + 24
    parts.append(bar(left, legend - 10, 26, 12, "pale"))
    parts.append(text(left + 34, legend, "tuned"))
    parts += [dot(left + 106, legend - 4, "theirs"), text(left + 118, legend, "default, nothing tuned")]
    note = "m x n x k, speed as a multiple of cuBLAS (without TF32), GPU time, medians of runs in turns"
    return drawing(legend + 20, "Float32 matrix products on an NVIDIA H200", note, parts)


def _searches() -> str:
    """The median search against Kernel Tuner's best strategy and chance, by trials on a logarithmic axis."""
    curves = {**search_curves(["ours", "random"]), "rival": best_rival_curve()}
    left, right, top, bottom, lowest = 60, 560, 80, 330, 0.7
    first, last = min(curves["ours"]), max(curves["ours"])
    x = logarithmic(first, last, left, right)

    def at(trials: float, share: float) -> tuple[float, float]:
        return x(trials), bottom - (bottom - top) * (share - lowest) / (1 - lowest)

    parts = []
    for share in (0.7, 0.8, 0.9, 1.0):
        y = at(first, share)[1]
        parts += [line(left, y, right, y, "grid"), text(left - 10, y + 4, f"{share:.0%}", "tick", "end")]
    for trials in curves["ours"]:
        parts.append(text(at(trials, 1)[0], bottom + 20, str(trials), "tick", "middle"))
    parts.append(text((left + right) / 2, bottom + 40, "trials", "tick", "middle"))
    names = {"ours": ("autotune", "ours"), "rival": ("Kernel Tuner, best strategy", "theirs"),
             "random": ("random", "other")}  # fmt: skip
    for name, (label, kind) in names.items():
        points = [at(trials, share) for trials, share in curves[name].items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" class="{kind} line"/>')
        parts += [dot(x, y, kind) for x, y in points]
        parts.append(text(points[-1][0] + 12, points[-1][1] + (16 if name == "rival" else 4), label, f"{kind} text"))
    note = "the median search, averaged over five recorded spaces of real GPUs, three GEMMs among them"
    return drawing(bottom + 56, "Share of the optimum found after so many trials", note, parts)


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
        parts.append(text(24, y + height / 2 + 4, _SIDES[row], "note"))
        for column, (name, meaning) in enumerate(steps):
            x = left + column * (width + gap_x)
            parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
            parts += [text(x + 14, y + 24, name), text(x + 14, y + 43, meaning, "note")]
            if column and row < 2:
                parts.append(line(x - gap_x, y + height / 2, x, y + height / 2, "mark"))
    last, middle = left + 2 * (width + gap_x) + width / 2, height + gap_y / 2
    first = left + width / 2
    for row in range(2):
        at = top + row * (height + gap_y) + middle
        above, below = at - gap_y / 2, at + gap_y / 2
        bend = f"{last:.0f},{above:.0f} {last:.0f},{at:.0f} {first:.0f},{at:.0f} {first:.0f},{below:.0f}"
        parts.append(f'<polyline points="{bend}" class="mark" fill="none"/>')
    note = "data flows one way; each box is a part of the package"
    return drawing(top + 3 * (height + gap_y), "From a problem to a program", note, parts)
