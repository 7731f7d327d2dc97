"""The command `autotune misses`: list the sizes that lookups asked for and that were never measured."""

import argparse
import sys

from autotune.cli.arguments import JSON, argument, command, flag
from autotune.cli.output import print_json, print_note


@command(
    argument("--device", metavar="SLUG", help="only those of this device"),
    flag("--clear", "forget them all"),
    JSON,
    examples=("misses", "misses --clear"),
)
def misses_command(options: argparse.Namespace) -> int:
    """List the sizes that lookups here asked for and never found; autotune run --misses tunes them."""
    from autotune.display.results import print_misses
    from autotune.lookup.misses import default_file, forget_misses, read_misses

    path = default_file()
    misses = read_misses(path)
    if options.clear:
        if misses:
            forget_misses(path, set(misses))
        print(f"{len(misses)} forgotten")
        return 0
    rows = [(miss, count) for miss, count in misses.most_common() if options.device in (None, miss.device)]
    if options.json:
        print_json([{"device": m.device, "problem": m.problem.to_dict(), "processes": n} for m, n in rows])
    elif rows:
        print_misses(rows, sys.stdout)
    else:
        print_note(f"no lookup has missed a size ({path})")
    return 0
