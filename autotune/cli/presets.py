"""The command `autotune presets`: list the matrix products of published networks."""

import argparse
import sys

from autotune.cli.output import (
    plain_request,
    print_json,
)


def presets_command(options: argparse.Namespace) -> int:
    from autotune.kernels.presets import PRESETS, preset

    chosen = {name: preset(name) for name in ([options.name] if options.name else PRESETS)}
    if options.json:
        print_json({name: [plain_request(r) for r in requests] for name, requests in chosen.items()})
        return 0
    from autotune.display import print_presets, print_requests

    if options.name:
        print_requests(chosen[options.name], sys.stdout)
    else:
        print_presets([(PRESETS[name], requests) for name, requests in chosen.items()], sys.stdout)
    return 0
