"""The command `autotune presets`, and the products of models in GGUF files, for all commands that take shapes."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.cli.arguments import JSON, TOKENS, argument, command
from autotune.cli.output import print_json, print_note
from autotune.codec import write
from autotune.errors import UsageError
from autotune.model.trial import Request


def is_model(path: Path) -> bool:
    return path.suffix.lower() == ".gguf"


def tokens_of(tokens: int | None, files: Sequence[Path]) -> int:
    """Return the tokens of a step, 1 unless asked for. Raises UsageError where they are asked for without a model."""
    if tokens and not any(map(is_model, files)):
        raise UsageError("--tokens is for a model", hint="name a file model.gguf")
    return tokens or 1


def step_tokens(presets: Sequence[str], files: Sequence[Path], tokens: int | None) -> int:
    """Return the tokens of a step if the shapes are the products of one language model; 0 otherwise."""
    from autotune.networks.presets import PRESETS

    if len(presets) + len(files) != 1:
        return 0
    return PRESETS[presets[0]].tokens if presets else tokens_of(tokens, files) if is_model(files[0]) else 0


def read_model(path: Path, tokens: int) -> list[Request]:
    """Return the products of a step of a model, merged, and print what stands for some tensors. Raises UsageError."""
    from autotune.kernels.shapes import merge
    from autotune.networks.gguf import gguf_products

    requests, notes = gguf_products(path, tokens)
    for message in notes:
        print_note(f"note: {message}")
    return merge(requests)


@command(
    argument("name", nargs="?", metavar="NAME", help="the preset, or the GGUF file, whose shapes to list"),
    TOKENS,
    JSON,
    examples=("presets", "presets resnet50", "presets model.gguf --tokens 128"),
)
def presets_command(options: argparse.Namespace) -> int:
    """List the presets, or the shapes of one."""
    from autotune.display.results import print_presets, print_requests
    from autotune.networks.presets import PRESETS, preset

    tokens = tokens_of(options.tokens, [Path(options.name)] if options.name else [])
    if options.name and is_model(Path(options.name)):
        chosen = {options.name: read_model(Path(options.name), tokens)}
    else:
        chosen = {name: preset(name) for name in ([options.name] if options.name else PRESETS)}
    if options.json:
        print_json(write(chosen))
    elif options.name:
        print_requests(chosen[options.name], sys.stdout)
    else:
        print_presets([(PRESETS[name], requests) for name, requests in chosen.items()], sys.stdout)
    return 0
