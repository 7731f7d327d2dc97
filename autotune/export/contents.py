"""The contents of a table before formatting: each device with its winners, in a fixed order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.codec import printable
from autotune.kernels import find_family
from autotune.lookup import table_order
from autotune.lookup.predictor import Predictor, agrees
from autotune.model.device import Device
from autotune.model.trial import Winner
from autotune.predict import known_predictors, make_predictors
from autotune.search.faults import with_faults
from autotune.store import Store


@dataclass(frozen=True, kw_only=True)
class DeviceTable:
    """One device and its winners of one family. All texts are printable."""

    device: Device
    winners: tuple[Winner, ...]
    predictors: tuple[Predictor, ...] = ()


def read_contents(store: Store, device_slug: str | None, family: str) -> list[DeviceTable]:
    """Return the tables of the devices by slug; the winners have the order of a lookup table."""
    # The last device of one slug is the one that measured last; a lookup uses that one too.
    known_here = {device.slug: device for device in store.devices() if device_slug in (None, device.slug)}
    devices = {slug: with_faults(device, store) for slug, device in known_here.items()}
    found: dict[str, list[Winner]] = {slug: [] for slug in sorted(devices)}
    known = find_family(family)
    for stored in store.best(device_slug, family):
        winner = replace(stored, configuration=known.complete(stored.configuration))
        if not known.misfits(winner.configuration):
            found[winner.device].append(_printable_winner(winner))
    return [
        DeviceTable(
            device=_printable_device(devices[slug]),
            winners=tuple(sorted(winners, key=lambda winner: table_order(winner.problem))),
        )
        for slug, winners in found.items()
    ]


def plain_part(table: DeviceTable) -> DeviceTable:
    """Return the table without winners and predictors of problems that are not plain (`Problem.plain`)."""
    return replace(
        table,
        winners=tuple(w for w in table.winners if w.problem == w.problem.plain),
        predictors=tuple(p for p in table.predictors if p.example == p.example.plain),
    )


def with_predictors(store: Store, table: DeviceTable, family: str) -> DeviceTable:
    """Return the table with the stored predictors of one family, else with ones made from its trials.

    Predictors that contradict the winners are left out.
    """
    device, known = table.device, find_family(family)
    found = known_predictors(store, device.slug, family) or make_predictors(store, device, family)
    return replace(table, predictors=tuple(p for p in found if agrees(p, known, device.limits, table.winners)))


def read_joined(store: Store, device_slug: str | None, families: Sequence[str]) -> list[DeviceTable]:
    """Return each device once, with its winners and predictors of several families."""
    of_each = zip(
        *(
            [with_predictors(store, table, family) for table in read_contents(store, device_slug, family)]
            for family in families
        ),
        strict=True,
    )
    return [
        replace(
            same[0],
            winners=tuple(w for table in same for w in table.winners),
            predictors=tuple(p for table in same for p in table.predictors),
        )
        for same in of_each
    ]


def _printable_device(device: Device) -> Device:
    limits = replace(device.limits, extensions=tuple(printable(name) for name in device.limits.extensions))
    return replace(device, limits=limits, **_printable_texts(device))


def _printable_winner(winner: Winner) -> Winner:
    return replace(winner, provenance=replace(winner.provenance, **_printable_texts(winner.provenance)))


def _printable_texts(value: object) -> dict[str, Any]:
    return {name: printable(text) for name, text in vars(value).items() if isinstance(text, str)}
