"""What the commands that ask a service share: the client of --server, its token, and the job to submit."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.output import tell
from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.remote import Client


def wanted(options: argparse.Namespace) -> dict[str, Any]:
    """Return what to tune as keyword arguments of `Client.submit`. Raises UsageError when a file cannot be read."""
    shapes = list(options.shape)
    for path in options.shapes:
        shapes += _lines(path)
    return {
        "shapes": shapes,
        "presets": options.preset,
        "family": options.family,
        "trials": options.trials,
        "seconds": options.budget,
        "algorithms": options.algorithm,
        "seed": options.seed,
    }


def open_client(options: argparse.Namespace) -> "Client":
    """Return a client of the service that --server names. Raises UsageError."""
    from autotune.remote import Client

    return Client(options.server, token_of(options))


def token_of(options: argparse.Namespace) -> str:
    """Return the first line of --token-file; empty without that option. Raises UsageError when it cannot be read."""
    if options.token_file is None:
        return ""
    try:
        lines = Path(options.token_file).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{options.token_file}: cannot be read as a token") from error
    return lines[0].strip() if lines else ""


def _lines(path: Path) -> list[str]:
    """Return the lines of a shapes file that are not empty; the service parses them. Raises UsageError."""
    from autotune.kernels.presets import read_lines

    return [line for line in read_lines(path) if line.strip()]


def tell_left_out(job: dict[str, Any]) -> None:
    for message in job["left_out"]:
        tell(f"left out: {message}")
