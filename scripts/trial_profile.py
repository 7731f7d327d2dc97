"""Where the time of trials goes, from the spans that the tuner records: per stage, and what is overhead.

A stage's time leaves out the stages within it. Overhead is the time in which nothing was built and no kernel ran.
"""

import os
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from autotune.tracing import Span

RUNNING = ("run parts", "run once", "sample")
"""Stages of the worker in which kernels run."""


def profile(spans: Sequence[Span], begins: Sequence[float], ends: Sequence[float]) -> dict[str, Any]:
    """Milliseconds; `begins` of the turns and `ends` of all trials by `perf_counter`. Between turns is left out."""
    workers = {_process(s) for s in spans if s.name in RUNNING}  # one is replaced now and then
    marks = sorted([*begins, *ends])
    known_ends = set(ends)
    is_trial = [mark in known_ends for mark in marks]
    stages: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(marks))
    busy = []
    for path, role, exclusive_s, at in _exclusive(spans, workers):
        place = bisect_left(marks, at.end)
        if place < len(marks) and is_trial[place]:
            stages[role, path][place] += exclusive_s
        if (role == "worker" and at.name in (*RUNNING, "build")) or (role == "builder" and at.name == "job"):
            busy.append((at.start, at.end))
    walls = [marks[i] - marks[i - 1] if is_trial[i] else 0.0 for i in range(len(marks))]
    merged = _merged(busy)
    chosen = [i for i, counts in enumerate(is_trial) if counts]
    overheads = [walls[i] - _covered(merged, marks[i] - walls[i], marks[i]) for i in chosen]
    wall_s = sum(walls)
    rows = []
    for (role, path), seconds in stages.items():
        of_trials = [1e3 * seconds[i] for i in chosen]
        rows.append(
            {
                "process": role, "stage": path, "median_ms": round(statistics.median(of_trials), 3),
                "mean_ms": round(statistics.fmean(of_trials), 3),
            }
        )  # fmt: skip
    return {
        "trials": len(chosen),
        "wall_ms": {
            "median": round(1e3 * statistics.median(walls[i] for i in chosen), 3),
            "mean": round(1e3 * wall_s / len(chosen), 3),
        },
        "overhead_ms": {
            "median": round(1e3 * statistics.median(overheads), 3),
            "mean": round(1e3 * statistics.fmean(overheads), 3),
        },
        "overhead_share": round(sum(overheads) / wall_s, 4),
        "stages": sorted(rows, key=lambda row: (str(row["process"]), -float(row["mean_ms"]))),
    }


def table(found: dict[str, Any]) -> str:
    """The same as text."""
    lines = [f"{'process':8} {'stage':42} {'median ms':>10} {'mean ms':>10}"]
    for row in found["stages"]:
        lines.append("{process:8} {stage:42} {median_ms:10.2f} {mean_ms:10.2f}".format(**row))
    wall, overhead = found["wall_ms"], found["overhead_ms"]
    lines.append(f"{'':8} {'a trial by the wall clock':42} {wall['median']:10.2f} {wall['mean']:10.2f}")
    lines.append(
        f"{'':8} {'neither building nor running kernels':42} {overhead['median']:10.2f} {overhead['mean']:10.2f}"
        f"   {found['overhead_share']:.1%} of {found['trials']} trials' time"
    )
    return "\n".join(lines)


def _exclusive(spans: Iterable[Span], workers: set[int]) -> Iterable[tuple[str, str, float, Span]]:
    """Path, role and seconds without those of the spans within, of every span."""
    by_place: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_place[span.place].append(span)
    for own in by_place.values():
        pid = _process(own[0])
        role = "tuner" if pid == os.getpid() else "worker" if pid in workers else "builder"
        stack: list[tuple[Span, str, list[float]]] = []
        done: list[tuple[str, str, list[float], Span]] = []
        for span in sorted(own, key=lambda s: (s.start, -s.end)):
            while stack and stack[-1][0].end <= span.start:
                stack.pop()
            path = f"{stack[-1][1]} / {span.name}" if stack else span.name
            seconds = [span.end - span.start]
            if stack:
                stack[-1][2][0] -= seconds[0]
            stack.append((span, path, seconds))
            done.append((path, role, seconds, span))
        for path, role, seconds, span in done:
            yield path, role, seconds[0], span


def _process(span: Span) -> int:
    return span.place >> 32


def _merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _covered(merged: Sequence[tuple[float, float]], start: float, end: float) -> float:
    return sum(max(0.0, min(e, end) - max(s, start)) for s, e in merged)
