"""The command `autotune tune`: tune the kernel of a kernel file, or the command of a command file."""

import argparse
import os
import shlex
from pathlib import Path

from autotune.cli.arguments import (
    DATABASE,
    DEADLINE,
    DEVICE,
    JSON,
    LEARN_FROM,
    MARKDOWN,
    QUIET,
    RHYTHM,
    WIDE,
    argument,
    command,
    duration,
    flag,
    integer,
    seed,
    words,
)
from autotune.cli.output import print_note
from autotune.cli.run import read_requests, tune_requests
from autotune.kernels import FILES


@command(
    argument("file", metavar="FILE", type=Path, help="the kernel file or command file, such as kernel.toml"),
    DEVICE,
    words("--shape", "SHAPE", "sizes in the order of the file, or as m=512,n=512; those of the file unless given"),
    integer("--trials", 1, 10**9, "at most N new trials for each shape"),
    duration("--budget", "time for all shapes: 90s, 10m, 1h30m"),
    DEADLINE,
    LEARN_FROM,
    seed("seed of the proposals; inputs are drawn afresh in every run"),
    RHYTHM,
    flag("--retry-quarantined", "begin with the configurations that crashed, hung or were running in a killed run"),
    QUIET,
    WIDE,
    MARKDOWN,
    DATABASE,
    JSON,
    examples=(
        "tune kernel.toml --device adreno --budget 5m",
        "tune kernel.toml --device cpu --shape 1024,1024,512 640,480,96 --trials 50",
        "tune kernel.toml --device adreno --learn-from results.json",
        "tune llama-bench.toml --device adreno-830 --trials 40",
    ),
)
def tune_command(options: argparse.Namespace) -> int:
    """Tune a kernel or command of your own, which a TOML file describes.

    Read the command files of other people before you use them: what they say is run.
    """
    from autotune.own.tuning import use_file

    listed = os.environ.get(FILES, "").split(os.pathsep)
    family = use_file(options.file)
    own = read_requests(family.problem_type, options.shape, [])
    usual = {
        "family": family.name, "misses": False, "algorithm": [], "until_gain": None, "sampler": "ours",
        "sampler_options": "", "crossover": False, "sustained": False,
        "preset": [], "shapes": [], "tokens": None,
    }  # fmt: skip
    status = tune_requests(argparse.Namespace(**vars(options), **usual), own, [] if own else family.requests)
    path = str(family.file.path)
    if path not in listed and not options.quiet:
        print_note(
            f"status, lookup and export know {family.name} while {FILES} lists it: export {FILES}={shlex.quote(path)}"
        )
    return status
