"""Where a C table is searched for a problem: an open hash table over sizes, made here and asked there alike."""

from collections.abc import Iterable, Sequence

_FACTOR = 0x9E3779B97F4A7C15
"""2 to the 64th over the golden ratio."""
_FREE = 4
"""Slots for each entry, at least: what is not in the table mostly ends at the first."""


def hash_statements(sizes: Iterable[str]) -> str:
    """C that works the fields of ``*p`` into ``hash``, a 64-bit number."""
    return "\n".join(f"    hash = (hash + (unsigned long long)p->{name}) * 0x{_FACTOR:X}ULL;" for name in sizes)


def slots(entries: Sequence[Sequence[int]]) -> list[int]:
    """Numbers of entries, from 1 on, by the hash of their sizes, or in the next slots where that is taken; 0 is free.

    There are as many as a power of two.
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
