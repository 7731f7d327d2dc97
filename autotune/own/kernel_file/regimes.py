"""Kinds of inputs on which a kernel is compared with its reference, besides the usual random numbers.

Small numbers around 0 hide a maximum that begins at 0, exponentials that overflow, variances that cancel, and whatever
keeps the low bits of integers. Only arguments of random numbers without a `range` are drawn so.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.own.kernel_file.format import ArgumentEntry, KernelFile
from autotune.own.kernel_file.function import parameters
from autotune.own.kernel_file.inputs import unit, usual_range

Draw = Callable[[np.random.Generator, int, "np.dtype[Any]"], NDArray[Any]]

_MOST_UNSIGNED_BITS = 16
_MOST_LENGTH = 1000
"""Longer ones are often lengths and indices, for which only the file can say what may occur. So they stay small enough
for what they point to, if it is too far, to be in a guard."""
_LEAST_OF_LARGE = 4
"""Bytes of a float that holds more than half precision does."""


def _between(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]", low: float, high: float) -> NDArray[Any]:
    if kind.kind == "f":
        return numbers.uniform(low, high, count).astype(kind)
    return numbers.integers(int(low), int(high), count, kind, endpoint=True)


def _usual(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    return _between(numbers, count, kind, *usual_range(kind))


def _is_length(kind: "np.dtype[Any]") -> bool:
    return kind.kind == "u" and 8 * kind.itemsize > _MOST_UNSIGNED_BITS


def _very_large_range(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    if kind.kind != "f" or kind.itemsize < _LEAST_OF_LARGE:
        return _whole_range(numbers, count, kind)
    return _between(numbers, count, kind, -1e5, 1e5)


def _whole_range(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    if kind.kind == "f":
        return _between(numbers, count, kind, -100, 100)
    limits = np.iinfo(kind)
    most = _MOST_LENGTH if _is_length(kind) else limits.max
    values = numbers.integers(limits.min, most, count, kind, endpoint=True)
    for value in (limits.min, most, most - 1):
        values[numbers.integers(count)] = value
    return values


def _large_range(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    if _is_length(kind):
        return _usual(numbers, count, kind)
    if kind.kind == "f":
        return _between(numbers, count, kind, -8, 8)
    limits = np.iinfo(kind)
    return _between(numbers, count, kind, max(limits.min, -(2**15)), min(limits.max, 2**15))


def _around(mean: int) -> Draw:
    def draw(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
        if kind.kind == "u":
            return _usual(numbers, count, kind)
        return _between(
            numbers, count, kind, *((mean - 1, mean + 1) if kind.kind == "f" else sorted((mean // 100, mean // 3)))
        )

    return draw


def _ties(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    if kind.kind == "f":  # halves of them and of their multiples are rounded to even numbers
        return (numbers.integers(-12, 13, count) / 8).astype(kind)
    return numbers.integers(0 if kind.kind == "u" else -1, 2, count).astype(kind)


def _denormal(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    if kind.kind != "f":
        return _usual(numbers, count, kind)
    return (numbers.uniform(-1, 1, count) * float(np.finfo(kind).tiny)).astype(kind)


def _zeros(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    return _usual(numbers, count, kind) if _is_length(kind) else np.zeros(count, kind)


def _with(*special: float) -> Draw:
    def draw(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
        values = _usual(numbers, count, kind)
        for value in special if kind.kind == "f" else ():
            values[numbers.integers(0, count, 1 + count // 256)] = value
        return values

    return draw


def _masked(numbers: np.random.Generator, count: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    """Return usual numbers with runs of -infinity, as masks of attention have them."""
    values = _usual(numbers, count, kind)
    for start in numbers.integers(0, count, 4) if kind.kind == "f" else ():
        values[start : start + int(numbers.integers(4, 5 + count // 8))] = -np.inf
    return values


DENORMAL = "denormal numbers"
NOT_FINITE = frozenset({"NaN", "infinities", "runs of -infinity"})
REGIMES: Mapping[str, Draw] = {
    "numbers of a large range": _large_range,
    "numbers of the whole range": _whole_range,
    "numbers of a very large range": _very_large_range,
    "numbers far above 0": _around(300),
    "numbers far below 0": _around(-300),
    "zeros and equal numbers": _ties,
    "zeros": _zeros,
    DENORMAL: _denormal,
    "NaN": _with(np.nan),
    "infinities": _with(np.inf, -np.inf, -0.0),
    "runs of -infinity": _masked,
}
OTHER_NUMBERS = "other values of numbers that are arguments"
"""The inputs are the usual ones; numbers that the file gives and the reference takes are changed."""
OTHER_CONTENTS = "other contents than zeros, ones or a ramp"
"""The inputs are the usual ones, but for those that the file fills evenly: a bias of 0 hides that it is not added."""
ENDS = "ends of a `range`, and equal numbers"
SPECIAL = NOT_FINITE | {DENORMAL}
"""Those that `special = false` leaves out."""


def uneven(fill: str, numbers: np.random.Generator, like: NDArray[Any]) -> NDArray[Any]:
    """Return contents for what a file fills with zeros, ones or a ramp: numbers of a size, or the ramp shuffled."""
    if fill == "ramp":
        return numbers.permutation(like)
    return (
        numbers.uniform(-1, 1, like.size).astype(like.dtype)
        if like.dtype.kind == "f"
        else numbers.permutation((np.arange(like.size) % 2).astype(like.dtype))
    )


def ends_of(values: NDArray[Any], numbers: np.random.Generator, low: float, high: float) -> NDArray[Any]:
    """Return numbers of a range among which its ends, its middle, 0 if it is inside, and few others occur often."""
    number = float if values.dtype.kind == "f" else int
    some = [number(one) for one in (low, high, (low + high) / 2, 0) if low <= one <= high]
    return numbers.choice(np.concatenate([np.array(some, values.dtype), values[:4]]), values.size)


def draw(
    regime: str, is_special: bool, numbers: np.random.Generator, count: int, kind: "np.dtype[Any]"
) -> NDArray[Any]:
    """Return random contents of an argument; it has no special ones unless `is_special`."""
    chosen = _usual if regime in SPECIAL and not is_special else REGIMES.get(regime, _usual)
    return chosen(numbers, count, kind)


def regimes_of(file: KernelFile) -> tuple[str, ...]:
    """Return the regimes of inputs for a file's kernels, none unless a function says what is right."""
    if not file.reference.python:
        return ()
    entries = [entry for entry in file.arguments.values() if not entry.is_passed and entry.access in ("in", "inout")]
    found = [*REGIMES] if any(map(is_random, entries)) else []
    found += [OTHER_NUMBERS] if other_numbers(file) else []
    found += [OTHER_CONTENTS] if any(map(is_even, entries)) else []
    return (*found, *((ENDS,) if any(map(plain_range, entries)) else ()))


def is_even(entry: ArgumentEntry) -> bool:
    """Return whether kernels are also compared on other contents. Zeros of `inout` stay: a kernel may add to them."""
    if entry.access == "inout" and entry.fill == "zeros":
        return False
    return entry.fill in ("zeros", "ones", "ramp") and not (entry.element and unit(entry.element))


def plain_range(entry: ArgumentEntry) -> tuple[float, ...]:
    """Return the ends of an argument's range, lowest first; empty without one, or where they are formulas."""
    bounds = tuple(bound for bound in entry.range or () if isinstance(bound, int | float))
    return bounds if len(bounds) == 2 and entry.fill == "uniform" and not unit(entry.element) else ()


def is_random(entry: ArgumentEntry) -> bool:
    """Return whether an argument has random numbers of which the file does not say how large they are."""
    return (
        entry.fill in ("uniform", "normal")
        and not entry.range
        and not entry.is_passed
        and not (entry.element and unit(entry.element))
        and entry.access != "scratch"
    )


def other_numbers(file: KernelFile) -> dict[str, float]:
    """Return changed values of those numbers that the file gives and the reference takes.

    There are none where a kernel gets a number that the reference does not: it may follow from the others.
    """
    taken = parameters(file, file.reference.python)
    floats = {name: entry.value for name, entry in file.arguments.items() if "float" in entry.scalar}
    numbers = {name: value for name, value in floats.items() if isinstance(value, int | float)}
    if not numbers.keys() <= taken.keys():
        return {}
    return {name: float(np.float16(0.75 * value + 0.5)) for name, value in numbers.items()}
