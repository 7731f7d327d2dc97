"""The C99 header: tables and their search, with the same answers as `TuningTable.find`.

Siblings and other devices of the same vendor are searched for among the devices of the header.

Everything is static and inside functions, so that the header may be included from anywhere, C++ too, without warnings
about unused names. Of several included headers, one for each device, the types come from the first.
"""

import re
import zlib
from collections.abc import Sequence

from autotune.export.c_family import FamilyInC, check_distinct, identifier
from autotune.export.choices import write_choices
from autotune.export.contents import DeviceTable, plain_part
from autotune.kernels import find_family
from autotune.kernels.render import render_c
from autotune.lookup.answer import Match
from autotune.lookup.chain import relatives
from autotune.model.trial import Winner

_HASH_FACTOR = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio."""
_FREE_SLOTS = 4
"""Least number of slots per entry: the search for a missing entry mostly ends at the first slot."""


def write_c(tables: Sequence[DeviceTable], family: str) -> str:
    """Return a header with a function `autotune_find_<family>_<device>` for each device.

    For a family without a planner in C, it is the header of `choices`. Raises TableError when two devices have one name
    in C, UsageError when neither is possible.
    """
    if find_family(family).c_export is None:
        return write_choices(tables, family)
    c = FamilyInC(find_family(family))
    check_distinct(table.device.slug for table in tables)
    plain = {table.device.slug: plain_part(table) for table in tables}
    name = identifier(tables[0].device.slug) if len(tables) == 1 else "tables"
    return render_c(
        "table.h",
        c=c,
        rules=c.rules,
        prefix=c.prefix,
        macro=c.macro,
        guard=f"AUTOTUNE_{family}_{name}_H".upper(),
        left_out=sum(len(table.winners) - len(plain[table.device.slug].winners) for table in tables),
        devices=[_Device(table, c, plain) for table in plain.values()],
        hash_factor=_HASH_FACTOR,
        checksum=lambda text: f"0x{zlib.crc32(text.encode()):08x}",
    )


class _Device:
    """What the header holds of one device; `others` are its devices by slug."""

    def __init__(self, table: DeviceTable, c: FamilyInC, others: dict[str, DeviceTable]) -> None:
        device = table.device
        self.device = device
        self.name = identifier(device.slug)
        self.title = _comment(f"{device.slug}: {device.vendor} {device.model}, driver {device.driver}")
        self.limits = device.limits.constraint_values()
        self.winners = table.winners
        self.slots = _slots(table.winners)
        self.candidates = c.candidates(device)
        self.default_match = Match.of_default(device).name
        devices = {slug: other.device for slug, other in others.items()}
        self.relatives = [
            (match.name, identifier(other.slug))
            for match, other in relatives(device, sorted(devices), devices.get)
            if others[other.slug].winners
        ]
        """The devices that are asked after this one, each with what its answer is called."""


def _comment(text: str) -> str:
    """Replace characters that could end a comment, start another, or splice lines."""
    return re.sub(r"[^A-Za-z0-9 .,:;()+_=@#-]", "_", text)


def _slots(winners: Sequence[Winner]) -> list[int]:
    """Return a hash table with open addressing over sizes, which C searches as it is built here.

    It holds numbers of winners, from 1 on, or 0 where it is free; its length is a power of two. A winner is in the slot
    of the hash of its sizes or, if that is taken, in the next free one.
    """
    found = [0] * (1 << (_FREE_SLOTS * len(winners)).bit_length())
    for number, winner in enumerate(winners, 1):
        value = 0
        for size in winner.problem.size_vector:
            value = (value + size) * _HASH_FACTOR % 2**64
        place = (value >> 32) % len(found)
        while found[place]:
            place = (place + 1) % len(found)
        found[place] = number
    return found
