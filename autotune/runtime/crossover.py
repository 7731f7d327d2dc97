"""Where the host's BLAS is faster than the device, launch and transfer included: measurement, storage, lookup.

A record holds points: a product, and the times of whole calls with NumPy operands on the host and on the device. A
product is done on the host if the host was faster at the nearest comparable point, and at one that has as many
operations; without such points, never.

The file is JSON, and lies beside the database: `crossover.json` in the user's data folder, and
`<name>.crossover.json` beside another database. `autotune run` writes it.

    {"format": "autotune-crossover", "version": 1,
     "devices": {"adreno-730": [{"problem": {"m": 64, "n": 64, "k": 64}, "host_ns": 9000.0, "device_ns": 80000.0}]}}

with `problem` as `GemmProblem.from_dict` reads it, and times of one call in nanoseconds.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from autotune.codec import Bounds, Node, Pattern, parse, read, read_file, write
from autotune.errors import AutotuneError, TableError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.lookup.answer import distance
from autotune.lookup.json_table import read_problem, readers_for
from autotune.model.trial import MAX_TIME_NS
from autotune.paths import default_database, locked, replace_file, user_data_folder

_FORMAT, _VERSION = "autotune-crossover", 1
_SAMPLE_NS = 2_000_000
_SAMPLES = 5
_TIME = Bounds(0, MAX_TIME_NS, excludes_least=True)


@dataclass(frozen=True, kw_only=True)
class CrossoverPoint:
    """One product measured on both sides, from NumPy operands to NumPy result."""

    problem: GemmProblem
    host_ns: Annotated[float, _TIME]
    device_ns: Annotated[float, _TIME]

    @property
    def is_by_host(self) -> bool:
        """Whether the host was faster."""
        return self.host_ns < self.device_ns


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The contents of a file."""

    format: Annotated[str, Pattern(_FORMAT, f"must be {_FORMAT}")] = _FORMAT
    version: Annotated[int, Bounds(_VERSION, _VERSION)] = _VERSION
    devices: Mapping[str, tuple[CrossoverPoint | None, ...]] = field(default_factory=dict)
    """Points of each device; None where only another version knows the product."""


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """The points of one device."""

    points: tuple[CrossoverPoint, ...] = ()

    NEVER: ClassVar["Crossover"]

    def prefers_host(self, problem: GemmProblem) -> bool:
        """Return whether the host was faster at the nearest comparable point; a tie goes to the device.

        A product with more operations than every comparable one that the host did faster goes to the device too, since
        a host's time grows faster with the size than a device's.
        """
        comparable = Crossover(points=tuple(p for p in self.points if p.problem.is_comparable(problem)))
        if problem.flops > comparable.most_host_flops:
            return False
        return min(comparable.points, key=lambda point: distance(point.problem, problem)).is_by_host

    @property
    def most_host_flops(self) -> int:
        """Operations of the largest measured product that the host does faster; 0 if there is none."""
        return max((point.problem.flops for point in self.points if point.is_by_host), default=0)

    @classmethod
    def read(cls, device: str, path: Path | None = None) -> Self:
        """Read the points of a device (slug), by default from the user's own file; empty if there is no file.

        Raises TableError for a file that cannot be read or understood.
        """
        try:
            place = path or default_file()
        except AutotuneError:  # no home folder for one
            return cls()
        return cls(points=_read(place).get(device, ()))

    def over(self, former: "Crossover") -> "Crossover":
        """Return the points of both; those of `self` replace points of `former` with the same product."""
        known = {point.problem: point for point in (*former.points, *self.points)}
        return Crossover(points=tuple(known.values()))

    def write(self, device: str, path: Path | None = None) -> None:
        """Replace the points of the device in the file. Raises TableError and OSError."""
        place = path or default_file()
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place):  # another process may add another device
            record = _Record(devices={**_read(place), device: self.points})
            replace_file(place, f"{json.dumps(write(record), indent=1)}\n".encode())


Crossover.NEVER = Crossover()


def default_file() -> Path:
    """Return the path of the user's own record, which need not exist."""
    return user_data_folder() / "crossover.json"


def file_of(database: Path | str) -> Path:
    """Return the path of the record that belongs to a database, which need not exist."""
    place = Path(database)
    return default_file() if place == default_database() else place.with_suffix(".crossover.json")


def host_product(
    problem: GemmProblem, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], *, alpha: float = 1, beta: float = 0
) -> None:
    """Compute alpha * op(A) @ op(B) + beta * C into `out`, by the host's BLAS in float32; int8 exactly, in float64.

    `a` is op(A), (m, k), `b` is op(B), (k, n), `out` is C, (m, n), or each with the batch first. `a` and `b` are
    transposed views where operands are transposed.
    """
    with np.errstate(all="ignore"):  # infinities and NaN are as silent as on a device
        if problem.mode == "float32" and alpha == 1 and not beta:
            np.matmul(a, b, out=out)
            return
        kind = "float64" if problem.is_whole else "float32"
        product = np.matmul(a.astype(kind, copy=False), b.astype(kind, copy=False))
        if alpha != 1:
            product *= alpha
        if beta:
            product += beta * out.astype(kind, copy=False)
        # Beyond the range of int32 the device wraps around, and so does this.
        out[...] = product.astype(np.int64).astype(np.int32) if problem.is_whole else product


def measure_host_ns(problem: GemmProblem) -> float:
    """Return the median time of a product by the host's BLAS, nanoseconds."""
    a, b, out = _operands(problem)
    (host_ns,) = _medians_ns(lambda: host_product(problem, a, b, out))
    return host_ns


def measure_crossover(
    problems: Iterable[GemmProblem], on_device: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], object]
) -> Crossover:
    """Time each product on both sides, alternating.

    `on_device` takes NumPy arrays op(A), op(B), C and fills C, such as a `Gemm` with `host_blas=False`. Shapes are
    (m, k), (k, n), (m, n), or each with the batch first.
    """
    return Crossover(points=tuple(_measure(problem, on_device) for problem in problems))


def _measure(
    problem: GemmProblem, on_device: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], object]
) -> CrossoverPoint:
    a, b, out = _operands(problem)
    host_ns, device_ns = _medians_ns(lambda: host_product(problem, a, b, out), lambda: on_device(a, b, out))
    return CrossoverPoint(problem=problem, host_ns=host_ns, device_ns=device_ns)


def _operands(problem: GemmProblem) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return op(A), op(B) and C, stored without gaps."""
    draw = np.random.default_rng(0)
    arrays = []
    for operand in "abc":
        rows, columns = problem.stored[operand]
        shape = (problem.batch, rows, columns) if problem.batch > 1 else (rows, columns)
        values = draw.integers(-8, 8, shape).astype(problem.dtype(operand))
        arrays.append(values.swapaxes(-1, -2) if getattr(problem, f"trans_{operand}", 0) else values)
    return arrays[0], arrays[1], arrays[2]


def _medians_ns(*sides: Callable[[], object]) -> list[float]:
    """Return the median times of a call of each side, in turns; a first call does not count, since it may build."""
    calls = []
    for side in sides:
        side()
        calls.append(max(1, int(_SAMPLE_NS / max(1.0, _time_ns(side, 1)))))
    samples = [[_time_ns(side, count) for side, count in zip(sides, calls, strict=True)] for _ in range(_SAMPLES)]
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def _time_ns(side: Callable[[], object], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        side()
    return (time.perf_counter_ns() - start) / calls


def _read(place: Path) -> dict[str, tuple[CrossoverPoint, ...]]:
    """Return the points of each device in a file; none if there is no file. Raises TableError."""
    if not place.exists():
        return {}
    try:
        record = read(_Record, parse(read_file(place)), readers={CrossoverPoint: _known_point})
    except TableError as error:
        raise TableError(f"{place} is not a record of crossovers: {error.message}", hint=error.hint) from error
    return {slug: tuple(p for p in points if p is not None) for slug, points in record.devices.items()}


def _known_point(node: Node) -> CrossoverPoint | None:
    """Return a point; None if this version does not know its product, such as one of a newer mode."""
    try:
        read_problem(node.member("problem"), FAMILY)
    except TableError:
        return None
    return read(CrossoverPoint, node, readers=readers_for(FAMILY))
