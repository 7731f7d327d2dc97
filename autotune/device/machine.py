"""What is publicly known of a device by its name: the limits of its model, and the machine of its generation.

The knowledge is data, one TOML file per family in `machines/`, with the source of its numbers:

    [limits]                            fields of `DeviceLimits` that every device of the family has
    [machine]                           fields of its `Machine`
    [generation.adreno-7xx.limits]      what is different in a generation (`identity.architecture_of`), also `machine`
    [generation.adreno-7xx.models]      what is different in a model; a slug may go on after a hyphen, as in
    adreno-735 = { compute_units = 3 }  mali-g610-mc4 and amd-gfx1100-cu48, whose last part
                                        states the compute units

Rates that `autotune limits` measured on a device replace its bandwidth and its lanes where these are stated.
Standard library only.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from autotune.codec import Node, read
from autotune.device.families import FAMILIES
from autotune.device.identity import architecture_of, family_of
from autotune.model.device import Device, DeviceLimits
from autotune.model.machine import UNKNOWN, Machine, Rates

_FOLDER = Path(__file__).parent / "machines"
_MOST_KEPT = 1024
ANY_DEVICE = "any device"
"""What `Device.presumed_from` says where nothing is known."""


def public_limits(slug: str, family: str) -> tuple[DeviceLimits, str]:
    """Return the limits that a device is known to have by its slug, and whose they are: a model, generation or family.

    Of a family without a file they are the least that OpenCL allows, and the source is empty.
    """
    file, generation, model = _layers(slug, family)
    found = {**file.get("limits", {}), **generation.get("limits", {}), **generation.get("models", {}).get(model, {})}
    found.pop("machine", None)
    cores = re.search(r"-(?:m[cp]|cu)(\d{1,3})$", slug)
    if cores and int(cores[1]):
        found["compute_units"] = int(cores[1])
    source = model or (architecture_of(slug) if generation else family if file else "")
    return read(DeviceLimits, Node(found)), source


def measured_machine(device: Device, family: str, rates: Rates | None) -> Machine:
    """Return the machine that a device is, with numbers by its measured rates in place of those that are stated."""
    machine = machine_of(device.slug, family)
    if rates is None:
        return machine
    found: dict[str, int] = {}
    if machine.memory_bytes and rates.buffer and rates.float32:
        clock_ghz = rates.float32 / (2 * device.limits.compute_units * machine.multiply_adds)
        found["memory_bytes"] = max(1, round(rates.buffer / clock_ghz))
    if rates.lanes > 1 and not device.limits.is_cpu:
        # What is stated, or else reported, is the least of several widths from which a compiler may choose.
        stated = machine.lanes or max(device.limits.sub_group_sizes, default=0)
        found["lanes"] = min(stated or rates.lanes, rates.lanes)
    return replace(machine, **found)


@lru_cache(maxsize=_MOST_KEPT)
def machine_of(slug: str, family: str) -> Machine:
    """Return the machine that a device is, by its model, generation and family; `UNKNOWN` if nothing is stated."""
    file, generation, model = _layers(slug, family)
    of_model = generation.get("models", {}).get(model, {})
    stated = {**file.get("machine", {}), **generation.get("machine", {}), **of_model.get("machine", {})}
    return read(Machine, Node(stated)) if stated else UNKNOWN


def _layers(slug: str, family: str) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """Return a family's file, its part on the device's generation, and the name of the model there or an empty text."""
    file = _read(family)
    generation = file.get("generation", {}).get(architecture_of(slug), {})
    models = generation.get("models", {})
    return file, generation, max((name for name in models if f"{slug}-".startswith(f"{name}-")), key=len, default="")


@cache
def _read(family: str) -> Mapping[str, Any]:
    import tomllib

    path = _FOLDER / f"{family}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path in _files() else {}


@cache
def _files() -> frozenset[Path]:
    return frozenset(_FOLDER.glob("*.toml"))


def is_known(slug: str) -> bool:
    """Return whether more is known of a device by its slug than the least limits of OpenCL."""
    return absent_device(slug).presumed_from != ANY_DEVICE


def absent_device(slug: str) -> Device:
    """Return a device with the public limits of its model, else of its generation, else of its family.

    `Device.presumed_from` names the source of the limits. Where the real device has a lower limit, a kernel
    may fail to build there.
    """
    family = family_of(slug)
    limits, source = public_limits(slug, family)
    vendor = FAMILIES[family].vendor if family in FAMILIES else ""
    return Device(slug=slug, vendor=vendor, model="", family=family, limits=limits, presumed_from=source or ANY_DEVICE)
