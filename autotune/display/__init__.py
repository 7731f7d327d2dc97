"""Terminal output: the progress of a run, and tables of results. Only this package imports rich.

Progress goes to standard error, results to standard output. Without a terminal, progress is printed as plain lines and
tables are as wide as they need to be.
"""

from autotune.display.manual import print_manual
from autotune.display.progress import LiveProgress, PlainProgress, building, building_line, progress, rechecking
from autotune.display.results import (
    print_compilations,
    print_configuration,
    print_devices,
    print_failures,
    print_misses,
    print_outcomes,
    print_overviews,
    print_plan,
    print_presets,
    print_rechecks,
    print_requests,
    total_ns,
    total_text,
)
from autotune.display.words import (
    baseline_gain_text,
    bytes_text,
    duration_text,
    failures_text,
    gain_text,
    rate_text,
    recheck_text,
    time_text,
    verdict_text,
)

__all__ = [
    "LiveProgress",
    "PlainProgress",
    "baseline_gain_text",
    "building",
    "building_line",
    "bytes_text",
    "duration_text",
    "failures_text",
    "gain_text",
    "print_compilations",
    "print_configuration",
    "print_devices",
    "print_failures",
    "print_manual",
    "print_misses",
    "print_outcomes",
    "print_overviews",
    "print_plan",
    "print_presets",
    "print_rechecks",
    "print_requests",
    "progress",
    "rate_text",
    "recheck_text",
    "rechecking",
    "time_text",
    "total_ns",
    "total_text",
    "verdict_text",
]
