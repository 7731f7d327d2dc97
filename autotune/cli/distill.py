"""The command `autotune distill`: make a few kernels and a short rule from the measurements of many devices."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.arguments import argument, command, family, flag, integer
from autotune.cli.output import print_note, write

if TYPE_CHECKING:
    from autotune.distill.rules import Judged

KERNELS, DEPTH = 8, 5
SHOWN = 12
"""Devices or sizes that are listed, those with the slowest rules; the mean is that of all."""


@command(
    argument(
        "tables",
        metavar="TABLE",
        nargs="+",
        type=Path,
        help="JSON of autotune export, a SQLite file, or measurements of other tuners; see autotune help winners",
    ),
    family("that of autotune's tables", default=None),
    integer("--kernels", 1, 64, f"at most N kernels ({KERNELS})", default=KERNELS),
    integer("--depth", 0, 8, f"at most N questions from the root to a kernel ({DEPTH})", default=DEPTH),
    argument(
        "--output", "-o", metavar="FILE", type=Path,
        help="rule.h for C99, rule.py or rule.json; without it, only the report is printed",
    ),
    flag("--force", "overwrite a file that autotune did not write"),
    examples=("distill phone.json board.sqlite --family gemm --output rule.h", "distill clblast.json -o rule.py"),
)  # fmt: skip
def distill_command(options: argparse.Namespace) -> int:
    """Choose a few kernels from many tables, with a rule to pick one; the rule uses size and device."""
    from autotune.distill.cases import read_cases
    from autotune.distill.rules import distill, judge, mean_of
    from autotune.export.files import check_replaceable
    from autotune.export.rule_text import write_rule

    if options.output and not options.force:
        check_replaceable(options.output)
    kernel, cases = read_cases(options.tables, options.family)
    rule = distill(kernel, cases, options.kernels, options.depth)
    judged = judge(cases, options.kernels, options.depth)
    text = write_rule(rule, judged, options.output.suffix) if options.output else ""
    devices = len({case.device for case in cases})
    print(f"{len(rule.kernels)} kernels for {kernel}, from {len(cases)} problems on {devices} devices")
    for left_out, lines in judged.items():
        print(f"\nrules made without a {left_out}, judged there: fractions of the best speed measured, geometric means")
        _print_judged(left_out, lines)
        mean = mean_of(lines)
        if mean.default is not None and mean.rule < mean.default:
            how = "measured" if mean.measured == 1 else f"measured in {mean.measured:.0%}, else estimated"
            print_note(f"where a {left_out} was left out, the default does better than the rule ({how})")
    if options.output:
        write(options.output, text)
        sys.stdout.flush()  # the report comes first, also in a file that both streams go to
        print_note(f"wrote {options.output}")
    return 0


def _print_judged(left_out: str, lines: "Sequence[Judged]") -> None:
    from autotune.display.console import Page
    from autotune.distill.rules import mean_of

    columns = (left_out, "rule", "nearest device", "default", "best of the kernels", "one kernel", "measured")
    rows = [
        (
            line.left_out, f"{line.rule:.3f}", f"{line.nearest:.3f}",
            "" if line.default is None else f"{line.default:.3f}",
            f"{line.best:.3f}", f"{line.single:.3f}", f"{line.measured:.0%}",
        )
        for line in [*sorted(lines, key=lambda line: line.rule)[:SHOWN], mean_of(lines)]
    ]  # fmt: skip
    Page(sys.stdout).table(columns, rows)
