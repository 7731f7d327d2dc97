"""Contents of the arguments of a kernel file, and the units in which functions see them.

Channels of images that are normalized are stored as whole numbers, and seen as the numbers from -1 to 1 that kernels
read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ProblemError
from autotune.model.problem import ELEMENT_TYPES
from autotune.own.kernel_file.format import ArgumentEntry, KernelFile
from autotune.own.kernel_file.function import called
from autotune.own.kernel_file.reading import INDEX
from autotune.own.kernel_file.source import inside
from autotune.space.expression import Expression


def stored_type(element: str) -> "np.dtype[Any]":
    return np.dtype(ELEMENT_TYPES[element].stored or element)


def usual_range(kind: "np.dtype[Any]") -> tuple[float, float]:
    return (-1.0, 1.0) if kind.kind == "f" else (0.0, 15.0) if kind.kind == "u" else (-8.0, 8.0)


def unit(element: str) -> int:
    """Return the whole number that stands for 1; 0 where numbers stand for themselves."""
    stored = ELEMENT_TYPES[element].stored
    return int(np.iinfo(stored).max) if stored else 0


def in_units(values: NDArray[Any], element: str) -> NDArray[Any]:
    """Return stored numbers as a kernel reads them."""
    one = unit(element)
    return np.maximum(values / one, -1) if one else values


def as_stored(values: NDArray[Any], element: str) -> NDArray[Any]:
    """Return numbers as they are stored."""
    one = unit(element)
    return np.rint(np.clip(values, -1, 1) * one).astype(stored_type(element)) if one else values


def valid_elements(name: str, condition: str, sizes: Mapping[str, int], count: int) -> NDArray[np.bool_] | None:
    """Return which elements of an output are compared, None for all. Raises ProblemError where none is."""
    if condition == "True":
        return None
    formula = Expression(condition)
    values = {**sizes, INDEX: np.arange(count)}
    found = np.ones(count, bool)
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            for part in (*formula.definitions, formula):
                found &= np.asarray(part(values), bool)
    except ZeroDivisionError:
        found[:] = False
    if not found.any():
        raise ProblemError(f"{name}: {condition!r} holds for no element")
    return found


def fitting(values: Any, like: NDArray[Any], source: str, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        what = "nothing" if values is None else f"elements of {array.dtype}"
        raise ProblemError(f"{source} returned {what}, not the numbers of {name}")
    if array.size != like.size:
        shape = f" in the shape {'x'.join(map(str, array.shape))}" if array.ndim > 1 else ""
        raise ProblemError(
            f"{source} gave {array.size} elements{shape}, {name} has {like.size}",
            hint="arrays are passed with one dimension: reshape them",
        )
    return array.reshape(-1)


def loaded(path: Path, like: NDArray[Any]) -> NDArray[Any]:
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ProblemError(f"{path} cannot be read: {error}") from error
    if values.dtype != like.dtype or values.size != like.size:
        raise ProblemError(f"{path} has {values.size} elements of {values.dtype}, wanted {like.size} of {like.dtype}")
    return np.ascontiguousarray(values).reshape(-1)


def contents(
    entry: ArgumentEntry,
    file: KernelFile,
    known: Mapping[str, Any],
    numbers: np.random.Generator,
    elements: int,
    name: str,
) -> NDArray[Any]:
    """Return what an argument holds before a call. Raises ProblemError."""
    kind = stored_type(entry.element)
    like = np.empty(elements, kind)
    if entry.fill == "file":
        return loaded(inside(file.path.parent, entry.file), like)
    if entry.fill == "python":
        made = fitting(called(file, entry.python, known), like, entry.python, name)
        return as_stored(made, entry.element).astype(kind)
    if entry.fill in ("zeros", "ones"):
        return np.full(elements, int(entry.fill == "ones") * (unit(entry.element) or 1), kind)
    if entry.fill == "ramp":
        return np.arange(elements).astype(kind)
    if unit(entry.element):
        low, high = (_number(bound, known) for bound in entry.range) if entry.range else (-int(kind.kind == "i"), 1)
        return as_stored(numbers.uniform(low, high, elements), entry.element)
    if entry.fill == "normal":
        return numbers.standard_normal(elements).astype(kind)
    low, high = (_number(bound, known) for bound in entry.range) if entry.range else usual_range(kind)
    if not low <= high:
        raise ProblemError(f"{name}: the range from {low:g} to {high:g} is empty")
    if kind.kind == "f":
        return numbers.uniform(low, high, elements).astype(kind)
    limits = np.iinfo(kind)
    if low < limits.min or high > limits.max:
        hint = f"whole numbers have both limits: range = [{limits.min}, {limits.max}] at most"
        raise ProblemError(f"{name}: the range from {low:g} to {high:g} exceeds {entry.element}", hint=hint)
    return numbers.integers(int(low), int(high), elements, kind, endpoint=True)


def passed_value(entry: ArgumentEntry, known: Mapping[str, Any]) -> Any:
    """Return what is passed by value, for functions: a number, an array for a vector, a mapping for a structure.

    Functions may count with those of whole types.
    """
    if entry.struct:
        members = entry.struct.items()
        return {name: _value(member.scalar or member.array, member.value, known) for name, member in members}
    return _value(entry.scalar, entry.value, known)


def _value(element: str, value: str | float | tuple[str | float, ...], known: Mapping[str, Any]) -> Any:
    if isinstance(value, tuple):
        return np.array([_number(one, known) for one in value], element)
    found = _number(value, known)
    return int(found) if ELEMENT_TYPES[element].is_whole else found


def _number(value: str | float, known: Mapping[str, Any]) -> Any:
    return Expression(value)(known) if isinstance(value, str) else value


def names_of(*values: str | float) -> frozenset[str]:
    """Return the names that formulas of numbers use."""
    return frozenset(name for value in values if isinstance(value, str) for name in Expression(value).names)
