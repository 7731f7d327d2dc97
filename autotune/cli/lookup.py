"""The command `autotune lookup`: print the configuration that a table gives for a size."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.cli.arguments import DATABASE, DEVICE, JSON, argument, command, family, file, flag, one_of
from autotune.cli.output import print_json, print_note
from autotune.device.families import FAMILIES
from autotune.device.identity import is_slug
from autotune.device.link import split
from autotune.errors import DeviceSelectionError, NoSuchDeviceError, TableError, did_you_mean
from autotune.kernels import find_family, parse_shape
from autotune.model.device import Device
from autotune.model.trial import time_text

if TYPE_CHECKING:
    from autotune.lookup import Tuned, TuningTable
    from autotune.model.rates import Rates


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
    problem = parse_shape(find_family(options.family).problem_type, text)
    table = open_table(options.table or options.db)
    device = named_or_absent_device(options.device, table.devices)
    known = [one.slug for one in table.devices]
    if known and device.slug not in known:
        others = ", ".join(known[:MOST_NAMED]) + (f" and {len(known) - MOST_NAMED} more" if known[MOST_NAMED:] else "")
        print_note(f"note: nothing was measured on {device.slug}; there are measurements of {others}")
    return device, table.find(device, problem), table.rates(device)


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
    from autotune.lookup.absent import absent_device

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
