"""The rule for untuned products with quantised weights, after the profile's starts: by size, mode and limits.

The rule is a list in order of preference. `ESTIMATE` says for which problems each entry is meant; Python and exported
C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from autotune.kernels.qgemm.problem import MAX_ELEMENTS, QGemmProblem
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.space.expression import Expression

ESTIMATE = Expression(
    "(order + 1) * (least_m <= m and least_n <= n and n <= most_n and is_whole != (mode != 'int8')) - 1"
)
"""Position of a candidate in the order, or -1 if the rule does not mean it for the problem; over values of the problem
and the numbers of a candidate. `is_whole` is 1 for products of integers, 0 for those of floats, 2 for either."""

_ANY = {"least_m": 1, "least_n": 1, "most_n": MAX_ELEMENTS, "is_whole": 2}
_FEW = 8
"""Columns up to which a product reads weights at the speed of memory."""
_LARGE_GPU = 16
"""Compute units from which a GPU keeps macro-tiles in local memory: smaller ones are those of phones and boards."""
_WIDE_LANES = 16
"""float32 in a vector register from which a processor has 32 such registers."""

Numbers = dict[str, int]


def by_rule(problem: QGemmProblem, limits: DeviceLimits) -> Iterator[Configuration]:
    """Yield configurations, best first."""
    values = problem.to_dict()
    known = _named_by_rule(_Device.of(limits)).items()
    return (configuration for configuration, numbers in known if ESTIMATE({**values, **numbers}) >= 0)


def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Numbers]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    found = {start: {**_ANY, "order": order} for order, start in enumerate(dict.fromkeys(starts))}
    for configuration, numbers in _named_by_rule(_Device.of(limits)).items():
        found.setdefault(configuration, {**numbers, "order": len(starts) + numbers["order"]})
    return found


@dataclass(frozen=True, kw_only=True)
class _Device:
    """What the rule asks of a device."""

    is_cpu: bool
    compute_units: int
    has_ptx: bool
    lanes: int
    """float32 in a vector register of a processor."""
    is_adreno: bool
    has_lines: bool
    """Whether images over buffers exist."""
    integer_dot: str

    @classmethod
    def of(cls, limits: DeviceLimits) -> "_Device":
        facts = limits.constraint_values()
        dots = {"ptx": "has_ptx", "khr": "has_khr_integer_dot", "arm": "has_arm_integer_dot"}
        return cls(
            is_cpu=limits.is_cpu,
            compute_units=limits.compute_units,
            has_ptx=bool(facts["has_ptx"]),
            lanes=limits.native_vector_float32,
            is_adreno=bool(facts["has_qcom_compiler"]),
            has_lines=limits.max_image_line > 0,
            integer_dot=next((name for name, fact in dots.items() if facts[fact]), "off"),
        )


@cache
def _named_by_rule(device: _Device) -> Mapping[Configuration, Numbers]:
    found: dict[Configuration, Numbers] = {}
    listed = _of_processor(device) if device.is_cpu else _of_large_gpu(device) if _is_large(device) else _of_phone(device)
    for configuration, numbers in listed:
        found.setdefault(configuration, {**_ANY, **numbers})
    return {configuration: {**numbers, "order": order} for order, (configuration, numbers) in enumerate(found.items())}


def _is_large(device: _Device) -> bool:
    return device.has_ptx or device.compute_units >= _LARGE_GPU


_LISTED = Iterator[tuple[Configuration, Numbers]]


def _of_processor(device: _Device) -> _LISTED:
    """Rows by one work-item, whose vectors run along k; as many sums as the registers hold."""
    wide = device.lanes >= _WIDE_LANES
    for columns in (4, 2, 1):
        for rows in (4, 2, 1) if wide or columns < 4 else (2, 1):
            yield _shared(lanes=1, rows=rows, columns=columns, chunk=4, sums="vector"), _columns(columns, 0)
            yield _shared(lanes=1, rows=rows, columns=min(columns, 2), chunk=4), _columns(columns, 1)


def _of_large_gpu(device: _Device) -> _LISTED:
    """Rows shared by the lanes of a sub-group, for more than a few columns macro-tiles in local memory."""
    join = "shuffle" if device.has_ptx else "tree"
    for wide_m, wide_n in ((16, 16), (16, 8), (8, 8), (8, 4)):
        for tile in (8, 4):
            for whole in (0, 1):
                wanted = {
                    "least_m": (device.compute_units if tile * wide_m > 32 else 1) * 4,
                    "least_n": 2 * tile * wide_n if wide_n > 4 else _FEW + 1,
                    "is_whole": whole,
                }
                yield _tile(wide_m, wide_n, tile, device.integer_dot if whole else ""), wanted
    for columns in (8, 4, 2, 1):
        for rows in (4, 2, 1):
            # Each lane under way keeps some memory busy, so few rows are not left to few work-items.
            least = {"least_m": device.compute_units * 32 * rows if rows > 1 else 1}
            if rows * columns <= 16:
                floats = _shared(lanes=32, groups=4, rows=rows, columns=columns, chunk=1, unroll=4 // rows, join=join, decode="magic")
                yield floats, {**_columns(columns, 0), **least}
                whole = _shared(
                    lanes=32, groups=4, rows=rows, columns=columns, chunk=min(4, 8 // columns), unroll=4 // rows,
                    join=join, integer_dot=device.integer_dot,
                )  # fmt: skip
                yield whole, {**_columns(columns, 1), **least}
    for lanes in (16, 8, 4):
        for whole in (0, 1):
            dot = device.integer_dot if whole else "off"
            short = _shared(lanes=lanes, groups=8, rows=1, columns=1, chunk=1, join=join, integer_dot=dot)
            yield short, {"is_whole": whole}


def _of_phone(device: _Device) -> _LISTED:
    """Rows of their own for the work-items, side by side, and k shared out where there are few rows or columns."""
    image = "image" if device.is_adreno and device.has_lines else "buffer"
    group = 64 if device.is_adreno else 16
    for columns, rows in ((8, 4), (8, 2), (4, 2), (4, 1)) if device.is_adreno else ((4, 2), (4, 1)):
        for whole in (0, 1):
            wanted = {"least_n": _FEW + 1, "is_whole": whole}
            yield _own(group, 1, rows, columns, image, device, whole, scaling="sums" if whole else "weights"), wanted
    for columns in (8, 4, 2, 1):
        for slices, rows in ((4, 2), (8, 1), (4, 1), (2, 1), (1, 1)):
            for whole in (0, 1):
                least = {"least_m": 4096 if rows > 1 and columns < 8 else 1}
                yield _own(group, slices, rows, columns, image, device, whole), {**_columns(columns, whole), **least}


def _columns(columns: int, whole: int) -> Numbers:
    """Return for how many columns of the product a work-item with so many is meant."""
    return {"least_n": columns // 2 + 1, "is_whole": whole}


_PLAIN: dict[str, Value] = {
    "decode": "convert", "multiply_add": "mad", "integer_dot": "off", "relaxed_math": "off",
}  # fmt: skip


def _plain(dot: str | None, **values: Value) -> dict[str, Value]:
    """Return the values of parameters that only products of floats or of integers have a choice of."""
    return {**_PLAIN, **values, **({"multiply_add": "operator", "integer_dot": dot} if dot is not None else {})}


def _shared(
    *, lanes: int, rows: int, columns: int, chunk: int, groups: int = 1, unroll: int = 1, sums: str = "scalar",
    join: str = "tree", decode: str = "convert", integer_dot: str | None = None,
) -> Configuration:  # fmt: skip
    values = _plain(integer_dot, decode=decode)
    return Configuration.of(
        "shared_rows", layout="rows", lanes=lanes, work_group_m=groups, micro_tile_m=rows, micro_tile_n=columns,
        chunk=chunk, unroll=unroll, x_storage="buffer", sums=sums, join=join, standard="none", wave_size="any", **values,
    )  # fmt: skip
