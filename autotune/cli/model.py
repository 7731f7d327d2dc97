"""The command `autotune model`: what a network does, what of it can be tuned, and how fast it could be."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.arguments import (
    DATABASE,
    JSON,
    MARKDOWN,
    QUIET,
    argument,
    command,
    duration,
    file,
    flag,
    integer,
    make_parser,
)
from autotune.cli.output import print_json, print_note, write
from autotune.codec import write as plain
from autotune.errors import UsageError
from autotune.model.trial import Request

if TYPE_CHECKING:
    from autotune.networks import Network, Step
    from autotune.networks.estimate import Prospect

DEPTH = 1024
"""Tokens in the cache of a decoder where neither a prompt nor a depth is asked for."""


def parse_image(text: str) -> tuple[int, int]:
    """Return height and width of ``224x224``. Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text.strip())
    if not found or not (int(found[1]) and int(found[2])):
        raise UsageError(f"--image: expected height and width, got {text.strip()[:80]!r}", hint="such as 224x224")
    return int(found[1]), int(found[2])


@command(
    argument("file", metavar="FILE", type=Path, help="GGUF, ONNX, safetensors, config.json, or a folder with one"),
    integer("--prompt", 1, 2**20, "tokens of a prompt to read"),
    integer("--depth", 1, 2**27, f"tokens in the cache when one more is written ({DEPTH}, without --prompt)"),
    argument("--image", metavar="HxW", type=parse_image, help="height and width of images, such as 224x224"),
    integer("--batch", 1, 2**16, "images or sequences at once (1)", default=1),
    file("--shapes", "write what can be tuned as a file of shapes, one for each family: shapes.gemm.txt, ..."),
    flag("--tune", "tune it on --device, most where most of the network's time can be saved"),
    flag("--plan", "print what each operation takes on --device now, tuned, and at the device's limits"),
    argument("--device", metavar="D", help="for --tune and --plan: as for autotune run"),
    duration("--budget", "time of --tune for all shapes: 90s, 10m, 1h30m"),
    integer("--trials", 1, 10**9, "instead, new trials of --tune for each shape"),
    QUIET,
    MARKDOWN,
    DATABASE,
    JSON,
    examples=(
        "model llama-3.2-1b-q4_0.gguf --prompt 512 --depth 4096",
        "model mobilenetv2.onnx --image 224x224 --shapes shapes.txt",
        "model Qwen3-0.6B/ --depth 1024 --tune --device adreno --budget 1h",
        "model Qwen3-0.6B/ --depth 1024 --plan --device adreno",
    ),
)
def model_command(options: argparse.Namespace) -> int:
    """List what a network in a file computes: products, attention, convolutions, with size and number.

    Headers are read, never weights or code. What has no kernel here is listed with its share of the work.
    """
    from autotune.networks import Workload, read_network

    if (options.tune or options.plan) and not options.device:
        raise UsageError("--tune and --plan need a device", hint="--device cpu; autotune devices lists them")
    depth = options.depth or (0 if options.prompt else DEPTH)
    workload = Workload(prompt=options.prompt or 0, depth=depth, image=options.image, batch=options.batch)
    network = read_network(options.file, workload)
    for message in network.notes:
        print_note(f"note: {message}")
    if options.shapes:
        _write_shapes(network, options.shapes)
    status = _tune(network, options) if options.tune else 0
    if options.plan:
        _print_plan(network, options)
    elif options.json and not options.tune:
        print_json(plain(network))
    elif not options.tune:
        from autotune.display.networks import print_network

        print_network(network, sys.stdout, is_markdown=options.markdown)
    return status


def requests_of(network: "Network") -> list[Request]:
    """Return what can be tuned, with the calls of all steps."""
    from autotune.kernels.shapes import merge

    operations = (one for step in network.steps for one in step.operations)
    return merge(
        Request(problem=one.problem, calls=one.calls, label=one.label[:100]) for one in operations if one.problem
    )


def _write_shapes(network: "Network", path: Path) -> None:
    """Write a file for each family, in the form that `autotune run --shapes` reads. Raises UsageError."""
    requests = requests_of(network)
    for family in dict.fromkeys(one.problem.family for one in requests):
        place = path.with_name(f"{path.stem}.{family}{path.suffix or '.txt'}")
        lines = [f"{one.problem.label} x{one.calls} {one.label}" for one in requests if one.problem.family == family]
        write(place, "\n".join([f"# {network.title}", *lines, ""]))
        print_note(f"{place}: {len(lines)} shapes; autotune run --family {family} --shapes {place}")


def _tune(network: "Network", options: argparse.Namespace) -> int:
    """Tune as `autotune run` does. Raises UsageError where there is nothing to tune."""
    from autotune.cli.run import tune_requests

    requests = requests_of(network)
    if not requests:
        raise UsageError(f"{options.file}: holds nothing that can be tuned here")
    given = {name: getattr(options, name) for name in ("budget", "trials", "db", "json", "quiet", "markdown", "began")}
    run = make_parser().parse_args(["run", "--device", options.device])
    return tune_requests(argparse.Namespace(**{**vars(run), **given, "arguments": options.arguments}), [], requests)


def _print_plan(network: "Network", options: argparse.Namespace) -> None:
    from autotune.cli.lookup import named_device
    from autotune.display.networks import print_prospects
    from autotune.model.machine import Rates
    from autotune.networks.estimate import Prospects
    from autotune.store import Store

    with Store.open(options.db, read_only=True) as store:
        device = named_device(options.device, store.devices())
        winners, rates = store.best(device.slug), store.rates(device)
    if rates is None:
        print_note(f"the limits of {device.slug} are not known: autotune limits --device {device.slug}")
    if not winners:
        print_note(f"nothing is tuned on {device.slug}: autotune model FILE --tune --device {device.slug}")
    prospects = Prospects(winners, rates or Rates(), device.limits)
    found = [(step, prospects.of_step(step), prospects.of_formats(step)) for step in network.steps]
    if options.json:
        print_json(_plain_plan(found))
        return
    print_prospects(network, found, device, sys.stdout)


def _plain_plan(
    found: "Sequence[tuple[Step, Sequence[Prospect], Mapping[str, float]]]",
) -> list[dict[str, object]]:
    return [
        {"step": step.title, "amount": step.amount, "units": step.units, "operations": plain(prospects),
         "by_weights_ns": plain(formats)}
        for step, prospects, formats in found
    ]  # fmt: skip
