"""The command `autotune presets`: list the matrix products of published networks, or of a model in a file."""

import argparse
import sys
from pathlib import Path

from autotune.cli.arguments import DEPTH, JSON, TOKENS, argument, command
from autotune.cli.models import is_model, read_model, tokens_of
from autotune.cli.output import print_json
from autotune.codec import write


@command(
    argument("name", nargs="?", metavar="NAME", help="the preset, or the GGUF file, whose shapes to list"),
    TOKENS,
    DEPTH,
    JSON,
    examples=("presets", "presets resnet50", "presets model.gguf --tokens 128", "presets model.gguf --depth 8192"),
)
def presets_command(options: argparse.Namespace) -> int:
    """List the presets, or the shapes of one."""
    from autotune.display.results import print_presets, print_requests
    from autotune.kernels.presets import PRESETS, preset

    tokens = tokens_of(options.tokens, [Path(options.name)] if options.name else [])
    if options.name and is_model(Path(options.name)):
        chosen = {options.name: read_model(Path(options.name), tokens, options.depth or 0)}
    else:
        chosen = {name: preset(name, options.depth or 0) for name in ([options.name] if options.name else PRESETS)}
    if options.json:
        print_json(write(chosen))
    elif options.name:
        print_requests(chosen[options.name], sys.stdout)
    else:
        print_presets([(PRESETS[name], requests) for name, requests in chosen.items()], sys.stdout)
    return 0
