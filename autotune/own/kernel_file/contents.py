"""Contents of the arguments of a kernel file, and the check of its outputs."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ProblemError
from autotune.model.configuration import Configuration
from autotune.model.plan import Launch, Plan, Role, Scalar
from autotune.own.kernel_file.format import KernelFile
from autotune.own.kernel_file.function import called
from autotune.own.kernel_file.inputs import (
    as_stored,
    contents,
    fitting,
    in_units,
    loaded,
    names_of,
    passed_value,
    stored_type,
    unit,
    valid_elements,
)
from autotune.own.kernel_file.regimes import (
    DENORMAL,
    ENDS,
    NOT_FINITE,
    OTHER_CONTENTS,
    OTHER_NUMBERS,
    REGIMES,
    SPECIAL,
    draw,
    ends_of,
    is_even,
    is_random,
    other_numbers,
    plain_range,
    uneven,
)
from autotune.own.kernel_file.source import inside
from autotune.own.kernel_file.tolerance import MOST_OF_SIZE, ROUNDINGS, Sizes, rounded
from autotune.space.case import Case

RELATIVE = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2}
"""Tolerances unless the file has one; integers must be equal."""

_OF_UNIT = 1.0 + 1e-6
"""Units by which a normalized channel may differ, since devices round it differently."""
_PART = 2**15
"""Elements that are compared at once."""


class FileCase(Case):
    """Random or given inputs, and the comparison with the reference."""

    def __init__(
        self,
        file: KernelFile,
        plan: Plan,
        sizes: Mapping[str, int],
        seed: int,
        reference: Configuration | None,
        regime: str = "",
    ) -> None:
        """`reference` is the configuration whose outputs on the device are right, if the file names nothing else.

        Of a `regime`, it is the default, which must be right there if others are to be.
        """
        self._file, self._regime = file, regime
        self.reference = reference
        self._seed = seed
        passed = {name: entry for name, entry in file.arguments.items() if entry.is_passed}
        fixed = {name: entry for name, entry in passed.items() if names_of(*entry.numbers) <= sizes.keys()}
        self._valid = {
            buffer.name: valid_elements(buffer.name, file.arguments[buffer.name].valid, sizes, buffer.elements)
            for buffer in plan.buffers
            if buffer.role is Role.OUTPUT
        }
        """Which elements of an output are compared; None where all are."""
        nothing = dict.fromkeys(file.arguments.keys() - {b.name for b in plan.buffers} - passed.keys())
        numbers_of = {name: passed_value(entry, sizes) for name, entry in fixed.items()}
        self._changed = other_numbers(file) if regime == OTHER_NUMBERS else {}
        """Numbers that are passed in place of those of the file."""
        self._known: dict[str, Any] = {**nothing, **numbers_of, **sizes, **self._changed}
        numbers = np.random.default_rng(seed)
        inputs: dict[str, NDArray[Any]] = {}
        for buffer in plan.buffers:
            entry = file.arguments[buffer.name]
            if buffer.role is Role.INPUT or entry.access == "inout":
                known = {**self._known, **self._seen(inputs), "numbers": numbers}
                if regime in REGIMES and is_random(entry):
                    drawn = draw(regime, entry.special, numbers, buffer.elements, np.dtype(entry.element))
                else:
                    drawn = contents(entry, file, known, numbers, buffer.elements, buffer.name)
                    if regime == OTHER_CONTENTS and is_even(entry):
                        drawn = uneven(entry.fill, numbers, drawn)
                    elif regime == ENDS and (ends := plain_range(entry)):
                        drawn = ends_of(drawn, numbers, *ends)
                inputs[buffer.name] = drawn
            elif buffer.role is Role.OUTPUT:
                inputs[buffer.name] = np.full(buffer.elements, _poison(stored_type(buffer.dtype), seed))
        self.inputs: Mapping[str, NDArray[Any]] = inputs
        self.reads = frozenset(name for name in inputs if file.arguments[name].access == "inout")
        self.right: dict[str, NDArray[Any]] = {}
        """What outputs must be, once it is known."""
        self._kept: dict[str, NDArray[np.bool_]] = {}
        """Where the reference, run on the device, leaves what was in an output before."""
        self._rows: dict[str, int] = {}
        """Elements in a row of each, where the reference gives rows."""
        self._sizes: dict[str, Sizes] = {}
        """Usual sizes of the elements of each, once they were needed."""
        self._responses: dict[str, NDArray[np.float64]] = {}
        """How much rounding the inputs changes the reference, once that was needed."""
        self._wrong: dict[str, NDArray[np.bool_]] = {}
        """Which of the elements compared last are wrong."""
        self._guessed: set[str] = set()
        """Outputs that are right by such a change only."""
        if regime:
            self.counts = self._is_defined()
            self.reference = reference if self.counts else None
        elif file.reference.python:
            self.right = self._computed(self.inputs)
        elif file.reference.outputs:
            for name, path in file.reference.outputs.items():
                stored = loaded(inside(file.path.parent, path), self.inputs[name])
                self.right[name] = self._compared(name, stored)
        self._given = dict(self.right)
        """What no kernel computed, in which an infinity is not one that was left."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the inputs, and of what is right."""
        return sum(values.nbytes for values in (*self.inputs.values(), *self.right.values()))

    def _seen(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return contents as functions see them."""
        return {name: in_units(values, self._file.arguments[name].element) for name, values in inputs.items()}

    def valid_part(self, name: str, stored: NDArray[Any], /) -> NDArray[Any]:
        valid = self._valid.get(name)
        return stored if valid is None else stored[valid]

    def _compared(self, name: str, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the elements of an output that are compared, as functions see them."""
        return in_units(self.valid_part(name, stored), self._file.arguments[name].element)

    def launches(self, plan: Plan) -> Sequence[Launch]:
        return [self._passing(launch) for launch in plan.launches] if self._changed else plan.launches

    def _passing(self, launch: Launch) -> Launch:
        """Return a launch with the changed numbers."""
        entries = [*self._file.all_launches, *filter(None, [self._file.reference_launch])]
        entry = next(
            entry
            for entry in entries
            if len(self._file.formulas_of(entry)) == len(launch.arguments)
            and all(
                given == formula or formula not in self._file.arguments
                for given, formula in zip(launch.arguments, self._file.formulas_of(entry), strict=True)
                if isinstance(given, str)
            )
        )
        names = self._file.names_of(entry)
        changed = [
            dataclasses.replace(argument, value=self._changed[name])
            if isinstance(argument, Scalar) and name in self._changed
            else argument
            for argument, name in zip(launch.arguments, names, strict=True)
        ]
        return dataclasses.replace(launch, arguments=tuple(changed))

    def other_contents(self) -> Mapping[str, NDArray[Any]]:
        written = (name for name in self.inputs if self._file.arguments[name].access == "out")
        return {name: np.full_like(self.inputs[name], self._poison(name, 1)) for name in written}

    def expect(self, outputs: Mapping[str, NDArray[Any]], again: Mapping[str, NDArray[Any]]) -> str:
        if self._regime:
            self.counts, self.reference = self.error_ratio(outputs) <= 1.0, None
            doubt = f"the default is wrong on inputs of another kind, {self._regime}: is a `range` missing?"
            self.remark = "" if self.counts or self._regime in SPECIAL else f"{doubt} {self.remark}"
            return ""
        for name, found in outputs.items():
            if self._file.arguments[name].access == "out":
                values, later = self.valid_part(name, found), self.valid_part(name, again[name])
                kept = (values == self._poison(name)) & (later == self._poison(name, 1))
                self._kept[name] = kept
                element = self._file.arguments[name].element
                later = in_units(np.where(kept, values, later), element)
                if not self._ratio(name, later, in_units(values, element)) <= 1.0:
                    return f"{name} depends on what was in it before the call: is access = 'inout' meant?"
        self.reference = None
        self.right = {name: self._compared(name, values).copy() for name, values in outputs.items()}
        self._sizes = {}
        return ""

    def _is_defined(self) -> bool:
        """Compute what is right; return whether it is something that the outputs can hold, and finite unless inputs are
        not."""
        try:
            with np.errstate(all="ignore"):
                self.right = self._computed(self.inputs)
        except ProblemError:
            return False
        is_finite = self._regime not in NOT_FINITE
        kinds = {name: in_units(self.inputs[name][:0], self._file.arguments[name].element).dtype for name in self.right}
        return all(_is_held(values, kinds[name], is_finite) for name, values in self.right.items())

    def _poison(self, name: str, later: int = 0) -> Any:
        return _poison(self.inputs[name].dtype, self._seed + later)

    def error_ratio(self, outputs: Mapping[str, NDArray[Any]]) -> float:
        unwritten = {name: self._unwritten(name, self.valid_part(name, values)) for name, values in outputs.items()}
        outputs = {name: self._compared(name, values) for name, values in outputs.items()}
        undefined = {name: self._undefined(name, values) for name, values in outputs.items()}
        remarks = [
            f"{name} is never written, unless access = 'inout' is meant"
            if share == 1
            else f"{share:.3g} of the elements of {name} are never written: is global_size too small, "
            "or access = 'inout' meant, for a kernel that leaves some as they are?"
            for name, share in unwritten.items()
            if share
        ]
        remarks += [f"{share:.3g} of the elements of {name} are NaN" for name, share in undefined.items() if share]
        remarks += [
            f"{name} is not compared, as the reference does not give it: is access = 'scratch' meant?"
            for name in outputs
            if name not in self.right
        ]
        self.remark = "; ".join(remarks)
        if 1 in (*unwritten.values(), *undefined.values()):
            return float("inf")
        self._guessed.clear()
        ratio = max((self._ratio(name, outputs[name], right) for name, right in self.right.items()), default=math.inf)
        remarks += [
            f"the tolerance of {name} was guessed from how rounding its inputs changes the reference"
            for name in sorted(self._guessed)
        ]
        remarks += [self._mistakes(name, outputs[name]) for name in self.right if self._wrong[name].any()]
        self.remark = "; ".join(remarks)
        return ratio

    def _mistakes(self, name: str, found: NDArray[Any]) -> str:
        """Tell of an output that is wrong how much of it is, and what its first wrong element is and should be."""
        wrong, valid = self._wrong[name], self._valid.get(name)
        first = int(wrong.argmax())
        place = first if valid is None else int(np.flatnonzero(valid)[first])
        return (
            f"{np.mean(wrong):.3g} of the elements of {name} are wrong, "
            f"the first is {name}[{place}]: {found[first]:.8g} instead of {self.right[name][first]:.8g}"
        )

    def _ratio(self, name: str, found: NDArray[Any], right: NDArray[Any]) -> float:
        given = self._file.reference
        one = unit(self._file.arguments[name].element)
        usual = 0.0 if one else RELATIVE.get(found.dtype.name, 0.0)
        relative = usual if given.relative is None else given.relative
        if not relative and not given.absolute and not one:
            is_same = (found == right) | (found != found) & (right != right)
            self._wrong[name] = ~is_same
            return 0.0 if is_same.all() else float("inf")
        if name not in self._sizes:
            self._sizes[name] = Sizes(right.astype(np.float64), self._rows.get(name, 0))
        worst = self._worst(name, found, right, relative, by_response=False)
        if not worst <= 1.0 and self._file.reference.python:
            worst = self._worst(name, found, right, relative, by_response=True)
            if worst <= 1.0:
                self._guessed.add(name)
        return worst

    def _worst(
        self, name: str, found: NDArray[Any], right: NDArray[Any], relative: float, *, by_response: bool
    ) -> float:
        least = self._least(found.dtype)
        one = unit(self._file.arguments[name].element)
        least += _OF_UNIT / one if one else 0.0
        worst, start = 0.0, 0
        self._wrong[name] = np.zeros(len(right), np.bool_)
        for a, b in zip(_parts(found), _parts(right), strict=True):
            part = slice(start, start + len(b))
            start = part.stop
            with np.errstate(invalid="ignore", divide="ignore"):
                size = np.maximum(np.abs(b), self._sizes[name].between(part.start, part.stop))
                tolerance = self._file.reference.absolute + least + relative * size
                if by_response:
                    tolerance += np.minimum(self._response(name)[part], MOST_OF_SIZE * size)
                # What is not a number in the reference, such as elements that no kernel writes, must be the same.
                ratios = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / tolerance)
            ratios[np.isnan(ratios)] = np.inf
            self._wrong[name][part] = ratios > 1.0
            worst = max(worst, float(ratios.max(initial=0.0)))
        return worst

    def _least(self, kind: "np.dtype[Any]") -> float:
        """Return what any element may be off by: a denormal result may be 0, unless the inputs are denormal, too."""
        if kind.kind != "f":
            return 0.0
        limits = np.finfo(kind)
        may_be_flushed = kind.itemsize >= np.float32().itemsize and self._regime != DENORMAL
        return float(limits.tiny) if may_be_flushed else 4 * float(limits.smallest_subnormal)

    def _response(self, name: str) -> NDArray[np.float64]:
        """Return what is allowed because the reference itself changes when its inputs are rounded, by element."""
        if not self._responses:
            numbers = np.random.default_rng(self._seed)
            inputs = {key: rounded(values, numbers) for key, values in self.inputs.items()}
            try:
                with np.errstate(all="ignore"):
                    changed = self._computed(inputs)
            except ProblemError:
                changed = {}
            for key, values in self.right.items():
                with np.errstate(invalid="ignore", over="ignore"):
                    change = np.abs(changed.get(key, values).astype(np.float64) - values.astype(np.float64))
                change[~np.isfinite(change)] = 0
                usual = Sizes(change, self._rows.get(key, 0), are_changes=True).between(0, len(change))
                self._responses[key] = ROUNDINGS * np.maximum(change, usual)
        return self._responses[name]

    def _unwritten(self, name: str, found: NDArray[Any]) -> float:
        """Return the share of an output's elements that still hold what was there before the call, and should not."""
        if self._file.arguments[name].access != "out":
            return 0.0
        unwritten = found == self._poison(name)
        if name in self._given:
            element, poison = self._file.arguments[name].element, self._poison(name)
            right = as_stored(self._given[name], element)
            # Of a normalized channel, which may differ by one unit, the neighbour of the poison is as right.
            unwritten &= np.abs(right.astype(int) - int(poison)) > 1 if unit(element) else right != poison
        elif found.dtype.kind != "f":
            unwritten &= self._kept.get(name, False)
        return float(np.mean(unwritten))

    def _undefined(self, name: str, found: NDArray[Any]) -> float:
        """Return the share of an output's elements that are NaN although only a kernel says that they should be."""
        return 0.0 if name in self._given or found.dtype.kind != "f" else float(np.mean(np.isnan(found)))

    def _computed(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return what the Python function says. Raises ProblemError when it fails or returns something else."""
        function, outputs = self._file.reference.python, self._file.outputs
        result = called(self._file, function, {**self._known, **self._seen(inputs)})
        found = result if isinstance(result, Mapping) else {outputs[0]: result}
        for output in found:
            if output not in outputs:
                raise ProblemError(f"{function} returned {output!r}, the outputs are {', '.join(outputs)}")
        if not found:
            raise ProblemError(f"{function} returned nothing")
        return {output: self._fitting(values, output) for output, values in found.items()}

    def _fitting(self, given: Any, output: str) -> NDArray[Any]:
        """Return the valid elements of an output of the reference, which gives all or these. Raises ProblemError."""
        values, valid = np.asarray(given), self._valid.get(output)
        self._rows[output] = values.shape[-1] if values.ndim > 1 else 0
        if valid is None or values.size != np.count_nonzero(valid):
            values = self.valid_part(output, fitting(given, self.inputs[output], self._file.reference.python, output))
            if valid is not None and self._rows[output]:
                in_row = np.count_nonzero(valid.reshape(-1, self._rows[output]), axis=1)
                self._rows[output] = int(in_row.max()) if len({*in_row.tolist()} - {0}) == 1 else 0
        return values.reshape(-1)


def _is_held(values: NDArray[Any], kind: "np.dtype[Any]", is_finite: bool) -> bool:
    """Return whether a type holds these results, all of them as finite numbers if that is asked."""
    if kind.kind == "f":
        with np.errstate(all="ignore"):
            overflows = np.isfinite(values) & ~np.isfinite(values.astype(kind))
        return not overflows.any() and (not is_finite or bool(np.isfinite(values).all()))
    limits = np.iinfo(kind)
    with np.errstate(all="ignore"):
        return bool(np.all((values >= limits.min) & (values <= limits.max)))


def _parts(values: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """Yield an array in parts that a processor's cache holds, in double precision."""
    flat = values.reshape(-1)
    for start in range(0, len(flat), _PART):
        yield flat[start : start + _PART].astype(np.float64)


def _poison(kind: "np.dtype[Any]", seed: int) -> Any:
    """Return what an output holds before a call: of two successive seeds, one spoils a maximum and one a minimum.

    NaN would spoil neither. Multiplied by zero, an infinity is as bad.
    """
    if kind.kind == "f":
        return kind.type((-1) ** seed * np.inf)
    limits = np.iinfo(kind)
    return kind.type(limits.max if seed % 2 == 0 else limits.min or limits.max // 3)
