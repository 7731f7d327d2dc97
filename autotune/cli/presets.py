"""The command `autotune presets`: list the matrix products of published networks."""

import argparse
import sys

from autotune.cli.arguments import JSON, argument, command
from autotune.cli.output import print_json
from autotune.codec import write


@command(
    argument("name", nargs="?", metavar="NAME", help="the preset whose shapes to list"),
    JSON,
    examples=("presets", "presets resnet50"),
)
def presets_command(options: argparse.Namespace) -> int:
    """List the presets, or the shapes of one."""
    from autotune.display.results import print_presets, print_requests
    from autotune.kernels.presets import PRESETS, preset

    chosen = {name: preset(name) for name in ([options.name] if options.name else PRESETS)}
    if options.json:
        print_json(write(chosen))
    elif options.name:
        print_requests(chosen[options.name], sys.stdout)
    else:
        print_presets([(PRESETS[name], requests) for name, requests in chosen.items()], sys.stdout)
    return 0
