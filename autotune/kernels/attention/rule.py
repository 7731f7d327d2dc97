"""The rule for untuned attention: a list in order of preference, of which the first that is valid is taken.

`ESTIMATE` says for which problems each entry is meant; Python and exported C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from autotune.kernels.attention.plan import BASELINE
from autotune.kernels.attention.problem import MAX_LENGTH, V_SIZE
from autotune.kernels.combination import LAST_GROUP, SECOND_LAUNCH
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.machine import Machine
from autotune.space.expression import Expression
from autotune.space.family import Starts, ranked

FLOATS, NARROW, ANY = range(3)
"""Types of K and V that a vector width is meant for: float32, types with fewer bits, any."""

_ROWS = "group * q_length"
ESTIMATE = Expression(
    f"(order + 1) * (least_rows <= {_ROWS} and {_ROWS} <= most_rows"
    f" and (types == {ANY} or types == ({FLOATS} if kv_type == 'float32' else {NARROW}))"
    f" and tile * ({V_SIZE}) <= most_held * lanes"
    f" and (batch * kv_heads * ceil_div({_ROWS}, tile) * parts >= wanted or kv_length < 2 * parts * least_keys)) - 1"
)
"""Position of a candidate in the order, or -1 if the rule does not mean it for the problem; over values of the problem
and the numbers of a candidate. A work-group has `tile` rows, of which a lane holds no more than `most_held` elements;
`parts` of them share out the keys, the fewest that make the `wanted` number of work-groups or leave each fewer than
twice `least_keys`."""

_ALL = {
    "least_rows": 1, "most_rows": MAX_LENGTH, "types": ANY, "tile": 1, "parts": 1, "wanted": 0, "least_keys": 1,
    "lanes": 1, "most_held": MAX_LENGTH,
}  # fmt: skip
_Listed = Iterator[tuple[Configuration, dict[str, int]]]
_ROOMY, _MOST_HELD = 49152, 16
"""Registers of a compute unit below which a work-item of `decode` holds no more elements of the result than these: with
32 Mesa's compiler for the Adreno 660 moves some out of registers."""
_LARGE_GPU = 24
"""Compute units from which on a GPU is taken as a large one."""


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    found: dict[Configuration, dict[str, int]] = {}
    device = _Device.of(limits, Starts(starts).machine)
    for configuration, numbers in _of_processor(device) if limits.is_cpu else _of_gpu(device):
        found.setdefault(configuration, {**_ALL, **numbers})
    return ranked(starts, found | {BASELINE: _ALL}, _ALL)


@dataclass(frozen=True, kw_only=True)
class _Device:
    """What the rule asks of a device."""

    compute_units: int
    lanes: int
    """float32 in a vector register of a processor."""
    is_large: bool
    join: str
    """How lanes join the product of a key."""
    combine: str
    has_matrices: bool
    has_local_memory: bool
    """Whether local memory is another than global memory."""
    most_held: int
    """Elements of the result that a work-item of `decode` may hold in registers."""
    is_narrow: bool
    """Whether a work-item has at most 64 registers."""
    most_items: int
    """Work-items of a work-group whose registers there are."""

    @classmethod
    def of(cls, limits: DeviceLimits, machine: Machine) -> "_Device":
        facts = limits.constraint_values()
        return cls(
            compute_units=max(limits.compute_units, 1),
            lanes=limits.native_vector_float32,
            is_large=bool(facts["has_ptx"]) or limits.compute_units >= _LARGE_GPU,
            join="shuffle" if facts["has_ptx"] else "sub_group" if facts["has_sub_group_shuffle"] else "local",
            has_matrices=limits.has_matrix_units,
            has_local_memory=limits.local_memory_is_dedicated or bool(facts["has_ptx"]),
            most_held=_MOST_HELD if machine.registers < _ROOMY else MAX_LENGTH,
            is_narrow=machine.is_narrow,
            most_items=32 if machine.is_small else MAX_LENGTH,
            combine=LAST_GROUP + limits.ordering if limits.ordering else SECOND_LAUNCH,
        )

    @property
    def words(self) -> Mapping[str, Value]:
        """How a GPU's kernels spell functions; Mesa's Adreno compiler fuses mad() alone."""
        exponential, multiply_add = ("native_exp2", "operator") if self.is_large else ("exp2", "mad")
        return {"exponential": exponential, "multiply_add": multiply_add}

    def shared_out(self, algorithm: str, numbers: dict[str, int], most: int, **values: Value) -> _Listed:
        """Yield a configuration whose keys work-groups share out, by the number of these."""
        parts = 1
        while parts <= most:
            combine, wanted = self.combine if parts > 1 else SECOND_LAUNCH, numbers["wanted"] if parts < most else 0
            configuration = Configuration.of(algorithm, split=parts, combine=combine, **values)
            yield configuration, {**numbers, "parts": parts, "wanted": wanted}
            parts *= 2 if algorithm == "matrix_tile" else 4


def _of_processor(device: _Device) -> _Listed:
    """Yield tiles of many rows; for few, as many as share keys by vectors along the head."""
    widths = sorted((16, 8, 4), key=lambda width: (width > max(device.lanes, 4), -width))
    for rows, wanted in ((64, 4 * device.compute_units), (32, 2 * device.compute_units), (16, 0)):
        for width in widths:
            for vectors in (2, 1):
                yield Configuration.of(
                    "columns", tile_q=rows, tile_k=32, micro_tile_q=8, micro_tile_k=vectors, vector_width=width,
                    exponential="exp2",
                ), {"least_rows": max(rows // 2, 24), "tile": rows, "wanted": wanted, "least_keys": 0}  # fmt: skip
    for rows, keys in ((1, 4), (2, 4), (4, 4), (8, 4), (8, 1), (4, 1), (1, 1)):
        numbers = {"most_rows": rows if keys == 4 and rows < 8 else MAX_LENGTH, "tile": rows, "least_keys": 64}
        for width in widths if rows > 1 or keys > 1 else (*widths, 2, 1):
            yield from device.shared_out(
                "decode", {**numbers, "wanted": 4 * device.compute_units}, 64, work_group_size=1, lanes=1, tile_q=rows,
                tile_k=keys, vector_width=width, join="local", exponential="exp2", multiply_add="operator",
            )  # fmt: skip


def _of_gpu(device: _Device) -> _Listed:
    if device.has_matrices:
        yield from _by_matrices(device)
    yield from _few_rows(device)
    yield from _many_rows(device)


def _by_matrices(device: _Device) -> _Listed:
    """Yield tiles of 16 rows for each sub-group; where there are few rows, two sub-groups share out the keys."""
    shapes = ((33, 4, 1, 1, (64, 32)), (17, 2, 2, 3, (32, 16)), (1, 1, 2, 3, (64, 32, 16)))
    for least, wide_q, wide_k, wanted, tiles in shapes:
        for tile_k, storage in (*((keys, "local") for keys in tiles), (32, "global")):
            numbers = {"least_rows": least, "tile": 16 * wide_q, "least_keys": 64 * wide_k}
            yield from device.shared_out(
                "matrix_tile", {**numbers, "wanted": wanted * device.compute_units}, 64, sub_groups_q=wide_q,
                sub_groups_k=wide_k, micro_tile_q=1, tile_k=tile_k, kv_storage=storage, exponential="native_exp2",
            )  # fmt: skip


def _few_rows(device: _Device) -> _Listed:
    """Yield the rows of a group, up to 16, in one work-group, so that keys are read once."""
    most = 8 if device.is_large else 4  # Adreno's compiler moves more out of registers
    for rows, keys, group in (
        (1, 4, 128), (2, 4, 128), (4, 2, 128), (8, 2, 128), (8, 1, 128), (4, 1, 128), (1, 1, 128), (4, 1, 32),
        (1, 1, 32), (1, 1, 16),
    ):  # fmt: skip
        if rows > most or group > device.most_items:
            continue
        if device.is_narrow:
            keys = min(keys, 2)  # Mesa's compiler for Mali spills parts of four
        numbers = {
            "most_rows": rows if keys > 1 and rows < most else 16, "tile": rows, "wanted": 4 * device.compute_units,
            "least_keys": 64, "most_held": device.most_held,
        }  # fmt: skip
        readings = [(8, NARROW, (16, 32, 8)), (4, ANY, (16, 32, 8, 4))]  # all heads are whole vectors of eight
        if group < 128:
            readings += [(2, ANY, (16,)), (1, ANY, (16,))]
        for width, types, teams in readings:
            for lanes in teams:
                yield from device.shared_out(
                    "decode", {**numbers, "types": types, "lanes": lanes}, 64 if group > 32 else 1,
                    work_group_size=group, lanes=lanes, tile_q=rows, tile_k=keys, vector_width=width,
                    join=device.join if group >= 32 else "local", **device.words,
                )  # fmt: skip


def _many_rows(device: _Device) -> _Listed:
    """Yield tiles of rows, large ones first."""
    shapes = [(8, 8, 4, 2), (8, 8, 2, 2), (8, 8, 2, 1), (4, 8, 2, 1), (2, 4, 2, 1), (8, 16, 1, 1), (4, 32, 1, 1)]
    if device.is_large:
        shapes = [(8, 16, 8, 2), (8, 16, 4, 2), (8, 16, 4, 1), *shapes]
    shapes = [shape for shape in shapes if shape[0] * shape[1] <= device.most_items]
    # Long heads leave no room for tiles of keys in local memory.
    storages = ("local", "global") if device.has_local_memory else ("global",)
    for storage, (wide_q, wide_k, rows, keys) in product(storages, shapes):
        tile = wide_q * rows
        numbers = {"least_rows": tile // 2 + 1, "tile": tile, "wanted": device.compute_units, "least_keys": 256}
        for width in (4, 1) if rows == 1 else (4,):
            yield from device.shared_out(
                "prefill", numbers, 16, work_group_q=wide_q, work_group_k=wide_k, micro_tile_q=rows, micro_tile_k=keys,
                vector_width=width, kv_storage=storage, unroll=1, **device.words,
            )  # fmt: skip
