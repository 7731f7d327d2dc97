"""The command `autotune show`: print the kernel that a lookup selects, with all that a program needs to run it."""

import argparse
import sys
from typing import Any

from autotune.cli.arguments import command, flag
from autotune.cli.lookup import ASKED, find_tuned, limits_of, shares_of
from autotune.cli.output import print_json
from autotune.codec import write
from autotune.kernels import find_family
from autotune.lookup.answer import plain_tuned
from autotune.model.plan import Argument, Buffer, Launch, LocalMemory, Structure


@command(
    *ASKED,
    flag("--source", "print the OpenCL source alone"),
    examples=(
        "show --device adreno-730 64,3136,576",
        "show --device cpu 512 512 512 --source > gemm.cl",
        "show --device cpu --family reduce 512 768 max --json",
    ),
)
def show_command(options: argparse.Namespace) -> int:
    """Show the kernel to use for a shape, for your own host code: source, build options, buffers, sizes, arguments."""
    from autotune.device.profile import find_profile
    from autotune.kernels.render import render

    device, tuned, rates = find_tuned(options)
    family = find_family(tuned.problem.family)
    plan = family.plan(tuned.problem, tuned.configuration)
    source = render(family, tuned.configuration, plan)
    build_options = [*find_profile(device).build_options, *plan.build_options]
    if options.source:
        print(source.strip())
    elif options.json:
        print_json(
            {
                "device": device.slug,
                "problem": tuned.problem.to_dict(),
                **plain_tuned(tuned),
                "shares_of_limits": shares_of(device, tuned, rates),
                "build_options": build_options,
                "buffers": list(map(_plain_buffer, plan.buffers)),
                "launches": list(map(_plain_launch, plan.launches)),
                "source": source,
            }
        )
    else:
        from autotune.display.results import print_configuration, print_plan

        facts = [
            ("shape", tuned.problem.label),
            ("device", device.slug),
            ("because", tuned.because),
            *limits_of(device, tuned, rates),
            ("build options", " ".join(build_options) or "none"),
        ]
        print_configuration(tuned.configuration, facts, sys.stdout)
        print_plan(plan, sys.stdout)
    return 0


def _plain_buffer(buffer: Buffer) -> dict[str, Any]:
    return {
        **write(buffer, without=("image_width", "image_height")),
        "size_bytes": buffer.size_bytes,
        "image": [buffer.image_width, buffer.image_height] if buffer.image_width else None,
        "view_of": buffer.view_of or None,
        "row_pitch": buffer.row_pitch or None,
    }


def _plain_launch(launch: Launch) -> dict[str, Any]:
    plain = write(launch, without=("arguments",))
    return {**plain, "prepares": launch.prepares or None, "arguments": list(map(_plain_argument, launch.arguments))}


def _plain_argument(argument: Argument) -> dict[str, Any]:
    if argument is None or isinstance(argument, str):
        return {"buffer": argument}
    if isinstance(argument, LocalMemory):
        return {"local_memory_bytes": argument.size_bytes}
    if isinstance(argument, Structure):
        return {"bytes": argument.content.hex()}
    value = None if argument.name else argument.value
    return {"scalar": argument.name or None, "dtype": argument.dtype, "value": value}
