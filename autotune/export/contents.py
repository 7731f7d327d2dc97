"""The contents of a table before formatting: each device with its winners, in a fixed order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from autotune.codec import printable
from autotune.device.machine import absent_device
from autotune.kernels import DEFAULT_FAMILY, find_family
from autotune.lookup import table_order
from autotune.lookup.json_table import Contents, plain_entry, read_contents
from autotune.model.device import Device
from autotune.model.machine import Rates
from autotune.model.trial import Winner
from autotune.paths import data_folder
from autotune.search.driver_faults import with_faults
from autotune.store import Store

Beneath = Mapping[str, Contents]
"""Tables by device slug that a store is layered over, as `Layers` of the lookup does it."""
NOTHING_BENEATH: Beneath = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class DeviceTable:
    """One device and its winners of one family. All texts are printable."""

    device: Device
    winners: tuple[Winner, ...]
    trials: Mapping[str, int] = field(default_factory=dict)
    """Number of trials of searches of the device, of any family, by how they ended; only where they were asked for."""
    repeats: int = 0
    """Number of runs that measured a configuration again, as in finals; counted where trials are."""
    rates: Rates | None = None


def shipped_tables(store: Store, device_slug: str | None) -> Beneath:
    """Return the tables that ship for one device of a store or for all that it has. Raises TableError."""
    slugs = {device.slug for device in store.devices() if device_slug in (None, device.slug)}
    paths = sorted((data_folder("db") / "tables").glob("*.json"))
    return {path.stem: read_contents(path) for path in paths if path.stem in slugs}


def best_winners(
    store: Store, device_slug: str | None, family: str | None = None, beneath: Beneath = NOTHING_BENEATH
) -> list[Winner]:
    """Return the winners of a store and, for problems that it lacks, those of the tables beneath it."""
    own = store.best(device_slug, family)
    known = {(winner.device, winner.problem) for winner in own}
    others = [w for table in beneath.values() for w in table.winners if (w.device, w.problem) not in known]
    return own + [winner for winner in others if family in (None, winner.problem.family)]


def stored_families(store: Store, device_slug: str | None, beneath: Beneath = NOTHING_BENEATH) -> list[str]:
    """Return the families of the winners of one device or of all; the default one if there are none."""
    winners = best_winners(store, device_slug, beneath=beneath)
    return sorted({winner.problem.family for winner in winners}) or [DEFAULT_FAMILY]


def read_tables(
    store: Store,
    device_slug: str | None,
    family: str,
    beneath: Beneath = NOTHING_BENEATH,
    *,
    also: Iterable[str] = (),
    trials: bool = False,
) -> list[DeviceTable]:
    """Return the tables of one device or of all, by slug; the winners have the order of a lookup table.

    `also` are slugs of devices that may be absent: those that the store lacks get tables without winners.
    `trials` adds the counts of trials. `beneath` adds winners that the store lacks.
    """
    # The last device of one slug is the one that measured last; a lookup uses that one too.
    known_here = {device.slug: device for device in store.devices() if device_slug in (None, device.slug)}
    found: dict[str, list[Winner]] = {slug: [] for slug in sorted(known_here)}
    known = find_family(family)
    for stored in best_winners(store, device_slug, family, beneath):
        winner = replace(stored, configuration=known.complete(stored.configuration))
        if not known.misfits(winner.configuration):
            made = replace(winner.provenance, **_printable_texts(winner.provenance))
            found[winner.device].append(replace(winner, provenance=made))
    counts = {slug: store.trial_counts(slug) for slug in found} if trials else {}
    tables = [
        DeviceTable(
            device=_printable_device(with_faults(known_here[slug], store)),
            winners=tuple(sorted(winners, key=lambda winner: table_order(winner.problem))),
            trials=counts[slug].by_state if trials else {},
            repeats=counts[slug].repeats if trials else 0,
            rates=store.rates(known_here[slug]),
        )
        for slug, winners in found.items()
    ]
    absent = [DeviceTable(device=absent_device(slug), winners=()) for slug in dict.fromkeys(also) if slug not in found]
    return sorted([*tables, *absent], key=lambda table: table.device.slug)


def joined(tables: Sequence[Sequence[DeviceTable]]) -> list[DeviceTable]:
    """Return the tables of several families, all of the same devices, as one table for each device."""
    return [
        replace(same[0], winners=tuple(w for table in same for w in table.winners))
        for same in zip(*tables, strict=True)
    ]


def plain_part(table: DeviceTable) -> DeviceTable:
    """Return the table without winners of problems that are not plain (`Problem.plain`)."""
    return replace(table, winners=tuple(w for w in table.winners if w.problem == w.problem.plain))


def entry_with_sizes(winner: Winner) -> dict[str, Any]:
    """Return an entry of a table, and what the page needs of its problem besides."""
    problem = winner.problem
    sizes = {"shape": problem.label, "flops": problem.flops, "bytes_moved": problem.bytes_moved}
    return plain_entry(winner) | sizes


def _printable_device(device: Device) -> Device:
    limits = replace(device.limits, extensions=tuple(printable(name) for name in device.limits.extensions))
    return replace(device, limits=limits, **_printable_texts(device))


def _printable_texts(value: object) -> dict[str, Any]:
    return {name: printable(text) for name, text in vars(value).items() if isinstance(text, str)}
