"""The commands `lookup`, `show` and `misses`: what a table answers for a size, its kernel, and what it lacks."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.cli.arguments import DATABASE, DEVICE, JSON, argument, command, family, file, flag, one_of
from autotune.cli.output import print_json, print_note
from autotune.codec import write
from autotune.device.families import FAMILIES
from autotune.device.identity import is_slug
from autotune.device.link import split
from autotune.errors import DeviceSelectionError, NoSuchDeviceError, TableError, did_you_mean
from autotune.kernels import find_family, parse_shape
from autotune.lookup.answer import plain_tuned
from autotune.model.device import Device
from autotune.model.plan import Argument, Buffer, Launch, LocalMemory, Structure
from autotune.model.trial import time_text

if TYPE_CHECKING:
    from autotune.lookup import Tuned, TuningTable
    from autotune.model.machine import Rates

ASKED = (
    DEVICE,
    family("that of the shape"),
    argument(
        "shape",
        metavar="SHAPE",
        nargs="+",
        help="sizes and words: M N K [nt] [float16] [batch=4] [constant=b], or M,N,K; of other families as autotune "
        "run takes it",
    ),
    one_of(file("--table", "an exported table (JSON or SQLite)"), DATABASE),
    JSON,
)
"""The arguments that say what to look up, and in which table."""

MOST_NAMED = 8
"""Most devices that a note lists."""


def find_tuned(options: argparse.Namespace) -> "tuple[Device, Tuned, Rates | None]":
    """Look up SHAPE for --device in --table, --db or the user's database, and the device's measured rates there.

    Raises AutotuneError.
    """
    text = ",".join(re.findall(r"[^\s,]+", " ".join(options.shape)))
    asked = find_family(options.family)
    problem = parse_shape(asked.problem_type, text)
    table = open_table(options.table or options.db)
    device = named_or_absent_device(options.device, table.devices)
    known = [one.slug for one in table.devices]
    if known and device.slug not in known:
        others = ", ".join(known[:MOST_NAMED]) + (f" and {len(known) - MOST_NAMED} more" if known[MOST_NAMED:] else "")
        print_note(f"note: nothing was measured on {device.slug}; there are measurements of {others}")
    tuned = table.find(device, problem)
    if tuned.template_hash and not asked.is_trusted:  # a kernel file, whose name others may have
        from autotune.kernels.render import template_hash  # it loads Jinja2

        if tuned.template_hash != template_hash(asked, tuned.configuration.algorithm):
            print_note("note: another source was measured: this file's before a change, or a file's of the same name")
    return device, tuned, table.rates(device)


def shares_of(device: Device, tuned: "Tuned", rates: "Rates | None") -> dict[str, float]:
    """Return how near a measured configuration is to each limit of the device, the nearest first; 1 is at the limit."""
    if rates is None or tuned.time_ns is None or tuned.source_problem is None:
        return {}
    bounds = rates.bounds(tuned.source_problem, device.limits)
    return {bound.name: round(bound.time_ns / tuned.time_ns, 4) for bound in bounds}


def limits_of(device: Device, tuned: "Tuned", rates: "Rates | None") -> list[tuple[str, str]]:
    """Return which limit of the device binds a measured configuration, and how near to each it is, for people."""
    shares = shares_of(device, tuned, rates)
    if not shares or rates is None or tuned.time_ns is None:
        return []
    name = "a cache, which holds its operands" if shares.get("memory", 0.0) > 1 else next(iter(shares))
    text = ", ".join(f"{share:.0%} of the {limit} rate" for limit, share in shares.items())
    is_launch = rates.launch_ns > tuned.time_ns
    launch = [("launch", f"takes {time_text(rates.launch_ns)}, longer than the kernel")] if is_launch else []
    return [("limited by", f"{name}: {text}"), *launch]


def named_device(selector: str, known: Sequence[Device]) -> Device:
    """Return a device of the table by its slug, else one of this machine, else one of the table by any other name.

    Raises DeviceSelectionError: a NoSuchDeviceError when no device fits.
    """
    from autotune.device.discovery import discover, find_device, select

    if split(selector):
        return find_device(selector)
    wanted = selector.strip().lower()
    for device in known:
        if device.slug == wanted:
            return device
    devices: list[Device] = []
    try:
        devices = discover()
        return select(selector, devices)
    except DeviceSelectionError as here:
        try:
            return select(selector, known)
        except NoSuchDeviceError:
            is_ambiguous = devices and not isinstance(here, NoSuchDeviceError)
            if is_ambiguous or not known:
                raise here from None
            raise _no_such_device(selector, known) from here


def _no_such_device(selector: str, known: Sequence[Device]) -> NoSuchDeviceError:
    slugs = sorted({device.slug for device in known})
    hint = did_you_mean(selector, [*slugs, *FAMILIES]) or f"stored devices: {', '.join(slugs)}"
    return NoSuchDeviceError(
        f"no device fits {selector[:80]!r}, neither on this machine nor among those stored", hint=hint
    )


def named_or_absent_device(selector: str, known: Sequence[Device]) -> Device:
    """Return what `named_device` returns, or else the `absent_device` of the slug, if its family is known.

    A table gives an answer for any device. Raises DeviceSelectionError.
    """
    from autotune.device.machine import absent_device

    try:
        return named_device(selector, known)
    except NoSuchDeviceError:
        slug = selector.strip().lower()
        if is_slug(slug) and slug.partition("-")[0] in (*FAMILIES, "pocl"):
            return absent_device(slug)
        raise


def open_table(place: str | None) -> "TuningTable":
    """Open a file, or a database server by its URL."""
    from autotune.lookup import TuningTable

    if "://" not in str(place):
        return TuningTable.open(place, log_misses=False)
    from autotune.lookup.contents import entries_of
    from autotune.store import Store

    with Store.open(place, read_only=True) as store:
        devices = store.devices()
        return TuningTable(devices, entries_of(devices, store.best()), source=store.location)


@command(
    *ASKED,
    flag("--explain", "show where the answer comes from and why"),
    flag("--tuned", "fail if there is only the built-in default"),
    examples=(
        "lookup --device cpu 512 512 512 --explain",
        "lookup --device adreno-730 64,3136,576 --table table.json --json",
        "lookup --device cpu 512 512 512 nt float16 batch=4",
        "lookup --device cpu --family reduce 512 768 max",
    ),
)
def lookup_command(options: argparse.Namespace) -> int:
    """Print the configuration to use for a shape: measured, nearest measured, or the default."""
    from autotune.lookup.answer import plain_tuned

    device, tuned, rates = find_tuned(options)
    problem = tuned.problem
    if tuned.match.is_default:
        if options.tuned:
            hint = "tune it with autotune run"
            raise TableError(f"there is only the built-in default for {problem.label} on {device.slug}", hint=hint)
        limits = f" for the public limits of {device.presumed_from}" if device.presumed_from else ""
        default = f"the built-in default{limits} (autotune run tunes it)"
        print_note(f"note: {problem.label} is not tuned on {device.slug}; this is {default}")
    if options.json:
        print_json(
            {
                "device": device.slug,
                "problem": problem.to_dict(),
                **plain_tuned(tuned),
                "shares_of_limits": shares_of(device, tuned, rates),
            }
        )
        return 0
    from autotune.display.results import print_configuration

    facts = [("shape", problem.label), ("device", device.slug), ("match", tuned.match.value)]
    if options.explain:
        facts += [("because", tuned.because), *limits_of(device, tuned, rates)]
        if tuned.source_problem is not None:
            facts.append(("measured for", tuned.source_problem.label))
    if tuned.time_ns is not None:
        facts.append(("time", time_text(tuned.time_ns)))
    print_configuration(tuned.configuration, facts, sys.stdout)
    return 0


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
    if use := family.use(tuned.problem, tuned.configuration):
        if options.json:
            print_json({"device": device.slug, "problem": tuned.problem.to_dict(), **plain_tuned(tuned), "use": use})
        else:
            print(f"# {tuned.because}\n{use}")
        return 0
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
