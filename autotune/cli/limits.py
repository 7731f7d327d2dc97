"""The command `autotune limits`: measure what a device can do at most, and keep it."""

import argparse

from autotune.cli.arguments import DATABASE, DEVICE, JSON, command
from autotune.cli.output import print_json, print_note
from autotune.codec import write
from autotune.model.rates import Rates

_TEXTS = {
    "buffer": "{:.4g} GB/s read from buffers",
    "image": "{:.4g} GB/s read from images",
    "constant": "{:.4g} GB/s read from constant memory",
    "local": "{:.4g} GB/s read from local memory",
    "float32": "{:.4g} GFLOP/s in float32",
    "float16": "{:.4g} GFLOP/s in float16",
    "int8": "{:.4g} Gop/s in dot products of int8",
    "launch_ns": "{:.4g} ns for each of many launches",
    "registers": "{} floats in a work-item before it slows down",
    "lanes": "{} work-items in step",
}
"""What the fields of Rates mean, in the order in which they are printed."""


@command(DEVICE, DATABASE, JSON, examples=("limits --device cpu", "limits --device adreno --db phone.sqlite"))
def limits_command(options: argparse.Namespace) -> int:
    """Measure what a device can do at most: bandwidth, arithmetic, launches, registers. It takes up to two minutes.

    The rates are kept: autotune show says how near a winner is to them, autotune model --plan what is possible, and
    they replace public numbers where defaults are estimated.
    """
    from autotune.cli.device_lock import DeviceLock
    from autotune.device.discovery import find_device
    from autotune.measure.limits import measure_rates
    from autotune.store import Store

    device = find_device(options.device)
    with Store.open(options.db) as store, DeviceLock(device, lambda: False):
        rates = measure_rates(device, print_note)
        store.keep_rates(device, rates)
    if options.json:
        print_json({"device": device.slug, **write(rates)})
    else:
        print_rates(device.slug, rates)
    return 0


def print_rates(slug: str, rates: Rates) -> None:
    print(slug)
    for name, text in _TEXTS.items():
        if value := getattr(rates, name):
            print(f"  {text.format(value)}")
