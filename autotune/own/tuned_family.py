"""What the families of kernel files and of command files have in common: one algorithm over the sizes of the file."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.errors import ProblemError
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.problem import Problem
from autotune.model.trial import Request
from autotune.own.tuned_file import BESIDE_SIZES, TunedFile
from autotune.space.expression import Expression
from autotune.space.family import Algorithm, Constraint, KernelFamily, Parameter

LARGEST_SIZE = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class FileProblem(Problem):
    """The sizes of a file; each file has a subclass with a field for each size."""

    file: ClassVar[TunedFile]
    file_family: ClassVar[KernelFamily]

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if not 1 <= int(value) <= LARGEST_SIZE:
                raise ProblemError(f"{name} must be from 1 to {LARGEST_SIZE}, not {value}")

    @property
    def label(self) -> str:
        return "x".join(map(str, self.size_vector))

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
        known = {**limits.constraint_values(), **self.constraint_values()}
        for constraint in self.file_family.algorithms[0].constraints:
            # What no parameter decides would leave no configuration.
            if constraint.condition.names <= known.keys() and not constraint.condition(known):
                raise ProblemError(f"{self.label} does not fit the device: {constraint.name}: {constraint.because}")


class TunedFileFamily(KernelFamily):
    """The family that a file describes: its only algorithm has the file's name, parameters and constraints."""

    is_trusted = False
    file: TunedFile

    def __init__(self, file: TunedFile, problem_type: type[FileProblem], module: str) -> None:
        """`module` is the name under which the problem's class can be imported in child processes."""
        self.name = file.name  # type: ignore[misc]
        self.problem_type = _of_file(problem_type, file, self, module)  # type: ignore[misc]
        usual = {name: file.default.get(name, values[0]) for name, values in file.parameters.items()}
        self.usual = Configuration.of(file.name, **usual)
        """The default configuration: what the application uses now."""
        self.baseline = self.usual  # type: ignore[misc]

    def _algorithm(
        self, meaning: str, constraints: Iterable[Constraint] = (), work_items: Expression | None = None
    ) -> Algorithm:
        """Return the algorithm; `constraints` are those beyond the file's."""
        own = [
            (name, given, given) if isinstance(given, str) else (name, given.condition, given.because)
            for name, given in self.file.constraints.items()
        ]
        return Algorithm(
            name=self.name,
            meaning=self.file.meaning or meaning,
            parameters=tuple(
                Parameter(name=name, values=values, meaning="") for name, values in self.file.parameters.items()
            ),
            constraints=(
                *(Constraint(name=n, condition=Expression(wanted), because=because) for n, wanted, because in own),
                *constraints,
            ),
            work_items=work_items,
        )

    @property
    def requests(self) -> list[Request]:
        """What the file asks to tune: its problems, or its sizes."""
        return [
            Request(
                problem=self.problem_type.from_dict({**self.file.sizes, **_sizes(problem)}),
                calls=int(problem.get("calls", 1)),
                label=str(problem.get("label", "")),
            )
            for problem in self.file.problems or ({},)
        ]

    def violations(self, problem: Problem, configuration: Configuration, limits: DeviceLimits) -> list[str]:
        try:
            return super().violations(problem, configuration, limits)
        except ZeroDivisionError:
            return [f"a formula of {self.file.path.name} divides by zero"]

    def candidates(
        self, problem: Problem, limits: DeviceLimits, starts: Sequence[Configuration]
    ) -> Iterator[Configuration]:
        """Yield the file's default and the profile's starts where legal, else a legal one near the default."""
        wanted = dict.fromkeys((self.usual, *starts))
        legal = [c for c in wanted if not self.violations(problem, c, limits)]
        return iter(legal or self._near_default(problem, limits))

    def _near_default(self, problem: Problem, limits: DeviceLimits) -> Iterator[Configuration]:
        from autotune.space.search_space import SearchSpace  # loads NumPy

        values = dict(self.usual.values)
        indices = {p.name: p.values.index(values[p.name]) for p in self.algorithms[0].parameters}
        space = SearchSpace(self, problem, limits)
        row = space.near_row(self.usual.algorithm, indices)
        if row is not None:
            yield space[row]


def _of_file(base: type[FileProblem], file: TunedFile, family: KernelFamily, module: str) -> type[FileProblem]:
    """Return the class of a file's problems, whose instances are pickled by the name of the module."""
    found: type[FileProblem] = dataclasses.make_dataclass(
        "SizesOf" + "".join(part.capitalize() for part in file.name.split("_")),
        [(name, int) for name in file.sizes],
        bases=(base,),
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


def _sizes(problem: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in problem.items() if name not in BESIDE_SIZES}
