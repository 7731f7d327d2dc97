"""The problems of a kernel file: its sizes, as a class of their own for each file."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.errors import ProblemError, UsageError
from autotune.model.configuration import Value
from autotune.model.device import DeviceLimits
from autotune.model.plan import Role
from autotune.model.problem import Problem
from autotune.own.kernel_file.format import Formula, KernelFile
from autotune.space.expression import Expression
from autotune.space.family import KernelFamily

LARGEST_SIZE = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class FileProblem(Problem):
    """The sizes of a kernel file; each file has a subclass with a field for each size."""

    file: ClassVar[KernelFile]
    file_family: ClassVar[KernelFamily]

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if not 1 <= int(value) <= LARGEST_SIZE:
                raise ProblemError(f"{name} must be from 1 to {LARGEST_SIZE}, not {value}")

    @property
    def label(self) -> str:
        return "x".join(map(str, self.size_vector))

    @property
    def flops(self) -> int:
        return self._work("flops")

    @property
    def bytes_moved(self) -> int:
        return self._work("bytes") or sum(b.size_bytes for b in self._operands)

    def resized(self, sizes: Sequence[int]) -> Self:
        return type(self)(**dict(zip(self.size_axes, sizes, strict=True)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``512,512`` in the order of the sizes, or ``m=512 n=512``, in which some may be left out."""
        usual = cls.file.sizes
        parts = [part for part in re.split(r"(?<=\d)x(?=\d)|[,\s]+", text.strip()[:1000]) if part]
        named = [re.fullmatch(r"(?:(\w+)=)?([0-9]{1,10})", part) for part in parts]
        if None in named or not parts:
            raise ProblemError(f"{text[:80]!r} is not a shape", hint=f"write {cls.shape_format}")
        pairs = [(found[1], int(found[2])) for found in named if found]
        if all(name is None for name, _ in pairs):
            if len(pairs) != len(usual):
                raise ProblemError(f"{text[:80]!r} has {len(pairs)} sizes", hint=f"write {cls.shape_format}")
            pairs = list(zip(usual, (value for _, value in pairs), strict=True))
        for name, _ in pairs:
            if name not in usual:
                raise ProblemError(f"{text[:80]!r}: {cls.family} has the sizes {', '.join(usual)}")
        return cls(**{**usual, **dict(pairs)})

    def check_device(self, limits: DeviceLimits) -> None:
        operands = {b.name: b.size_bytes for b in self._operands}
        self.check_memory(operands, limits)
        known = {**limits.constraint_values(), **self.constraint_values()}
        for constraint in self.file_family.algorithms[0].constraints:
            # What no parameter decides would leave no configuration.
            if constraint.condition.names <= known.keys() and not constraint.condition(known):
                raise ProblemError(f"{self.label} does not fit the device: {constraint.name}: {constraint.because}")

    def is_constant(self, operand: str) -> bool:
        return operand != ""

    @property
    def _operands(self) -> list[Any]:
        family = self.file_family
        return [b for b in family.plan(self, family.baseline).buffers if b.role is not Role.VIEW]

    def _work(self, name: str) -> int:
        return int(evaluated(getattr(self.file.work, name), self.to_dict(), f"work.{name}"))


def problem_type_of(file: KernelFile, family: KernelFamily, module: str) -> type[FileProblem]:
    """Return the class of a file's problems, whose instances are pickled by the name of the module."""
    found: type[FileProblem] = dataclasses.make_dataclass(
        "SizesOf" + "".join(part.capitalize() for part in file.name.split("_")),
        [(name, int) for name in file.sizes],
        bases=(FileProblem,),
        frozen=True,
        kw_only=True,
        namespace={
            "file": file,
            "file_family": family,
            "family": file.name,
            "size_axes": tuple(file.sizes),
            "shape_format": ",".join(file.sizes),
            "shape_examples": (",".join(map(str, file.sizes.values())),),
        },
    )
    found.__module__ = module
    return found


def evaluated(formula: Formula, values: Mapping[str, Value], key: str) -> int:
    if not isinstance(formula, str):
        return formula
    try:
        return int(Expression(formula)(values))
    except (ZeroDivisionError, TypeError) as error:
        raise UsageError(f"{key}: {formula!r} cannot be evaluated for {dict(values)}") from error
