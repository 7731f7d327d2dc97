"""Hash table with open addressing over sizes, in which C finds a problem: built here, searched the same way in C."""

from collections.abc import Iterable, Sequence

_FACTOR = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio."""
_FREE = 4
"""Least number of slots per entry: the search for a missing entry mostly ends at the first slot."""


def hash_statements(sizes: Iterable[str]) -> str:
    """Return C statements that mix the fields of ``*p`` into ``hash``, a 64-bit number."""
    return "\n".join(f"    hash = (hash + (unsigned long long)p->{name}) * 0x{_FACTOR:X}ULL;" for name in sizes)


def slots(entries: Sequence[Sequence[int]]) -> list[int]:
    """Return the slots with the numbers of entries, from 1 on, or 0 where free; their count is a power of two.

    An entry is in the slot of the hash of its sizes or, if that is taken, in the next free one.
    """
    found = [0] * (1 << (_FREE * len(entries)).bit_length())
    for number, sizes in enumerate(entries, 1):
        place = _hash(sizes) % len(found)
        while found[place]:
            place = (place + 1) % len(found)
        found[place] = number
    return found


def _hash(sizes: Iterable[int]) -> int:
    value = 0
    for size in sizes:
        value = (value + size) * _FACTOR % 2**64
    return value >> 32
