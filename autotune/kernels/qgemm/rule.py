"""The rule for untuned products with quantised weights, after the profile's starts: by size, mode and limits.

The rule is a list in order of preference. `ESTIMATE` says for which problems each entry is meant; Python and exported
C evaluate the same expression.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from autotune.kernels.combination import SECOND_LAUNCH
from autotune.kernels.qgemm.formats import by_format
from autotune.kernels.qgemm.problem import MAX_ELEMENTS
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.machine import Machine
from autotune.space.expression import Expression
from autotune.space.family import Starts, ranked

_IN_HALF = by_format(lambda f: int(not (f.has_zero_points or f.name in ("q4_k", "q6_k"))))
"""Formats that add up in half precision in fewer issue slots on Adreno: one scale for 32, no offset but a constant."""
_IS_HEAVY = by_format(lambda f: int(f.has_zero_points or f.name in ("q4_k", "q6_k", "mxfp4")))
"""Formats whose quants and scales take more work than a nibble and a scale for 32 of them."""
_IS_SIX = by_format(lambda f: int(f.name == "q6_k"))
"""The format of 6 bits: two rows of it take more registers than an Adreno 618 or 630 has for a work-item."""
ESTIMATE = Expression(
    "(order + 1) * (least_m <= m and least_n <= n and n <= most_n and m * n <= most_outputs"
    " and is_whole != (mode != 'int8') and is_byte != (weights != 'q8_0') and is_float16 != (mode != 'float16')"
    f" and is_half <= (mode == 'float16' and ({_IN_HALF}) == 1) and is_heavy <= ({_IS_HEAVY}) and is_six <= ({_IS_SIX})"
    " and is_even <= (m % 256 == 0 and n % 8 == 0 and experts == 1)) - 1"
)
"""Position of a candidate in the order, or -1 if the rule does not mean it for the problem; over values of the problem
and the numbers of a candidate. `is_whole` is 1 for products of integers, 0 for those of floats, 2 for either; `is_byte`
likewise for weights of 8 bits, `is_float16` for activations of float16; `is_six` is 1 for what is meant for weights of
6 bits alone, `is_half` for those that add up in half precision, `is_even` for those that spill where tiles are not
whole."""

_ANY = {
    "least_m": 1, "least_n": 1, "most_n": MAX_ELEMENTS, "most_outputs": MAX_ELEMENTS, "is_whole": 2, "is_byte": 2,
    "is_float16": 2, "is_half": 0, "is_heavy": 0, "is_six": 0, "is_even": 0,
}  # fmt: skip
_FEW = 8
"""Columns up to which a product reads weights at the speed of memory."""
_LARGE_GPU = 16
"""Compute units from which a GPU with local memory of its own, if it is no Adreno, keeps macro-tiles there."""
_ROOMY_ADRENO = 4
"""Compute units from which an Adreno is of a generation whose kernels may use more registers: 730 and later."""
_ROOMY_REGISTERS = 49152
"""Registers of a compute unit of most Adrenos."""
_WIDE_LANES = 16
"""float32 in a vector register from which a processor has 32 such registers."""

_SHARED_OUT = {
    8: ((4, 1), (2, 1), (1, 1)),
    4: ((4, 2), (4, 1), (2, 1), (1, 1)),
    2: ((4, 2), (8, 1), (4, 1), (2, 1), (1, 1)),
    1: ((4, 4), (8, 2), (4, 2), (8, 1), (4, 1), (2, 1), (1, 1)),
}
"""Of phones, by columns of a work-item: work-items that share out k, and rows of each."""

Numbers = dict[str, int]
_Listed = Iterator[tuple[Configuration, Numbers]]


@cache
def candidates(starts: tuple[Configuration, ...], limits: DeviceLimits) -> Mapping[Configuration, Mapping[str, int]]:
    """Return the starts and all of the rule's configurations, each with the numbers that `ESTIMATE` needs."""
    return ranked(starts, _named_by_rule(_Device.of(limits, Starts(starts).machine)), _ANY)


@dataclass(frozen=True, kw_only=True)
class _Device:
    """What the rule asks of a device."""

    is_cpu: bool
    compute_units: int
    is_large: bool
    """Whether it has macro-tiles in local memory: a GPU with many compute units, or NVIDIA's."""
    join: str
    """How lanes join their sums."""
    lanes: int
    """float32 in a vector register of a processor."""
    is_adreno: bool
    is_tight: bool
    """Whether it is an Adreno with fewer registers than most, as the 660."""
    adds_in_half: bool
    """Whether it is an Adreno, on which half precision has 1.5 times the rate, whose driver has all of that."""
    has_lines: bool
    """Whether images over buffers exist."""
    integer_dot: str
    """The spelling of dot products of four bytes; `off` for processors, whose compilers multiply vectors better."""
    has_matrices: bool
    is_small: bool
    """Whether its registers leave room for few work-items of `own_rows` only."""
    is_narrow: bool
    """Whether a work-item has at most 64 registers."""
    holds: int
    """Work-items that a compute unit holds at least, however many registers each has."""

    @classmethod
    def of(cls, limits: DeviceLimits, machine: Machine) -> "_Device":
        facts = limits.constraint_values()
        dots = {"ptx": "has_ptx_integer_dot", "khr": "has_khr_integer_dot", "arm": "has_arm_integer_dot"}
        is_adreno, has_ptx = bool(facts["has_qcom_compiler"]), bool(facts["has_ptx"])
        has_room = limits.compute_units >= _LARGE_GPU and limits.local_memory_is_dedicated
        return cls(
            is_cpu=limits.is_cpu,
            compute_units=limits.compute_units,
            is_large=has_ptx or (has_room and not is_adreno),
            join="shuffle" if has_ptx else "tree",
            lanes=limits.native_vector_float32,
            is_adreno=is_adreno,
            is_tight=is_adreno and machine.registers < _ROOMY_REGISTERS,
            adds_in_half=is_adreno and bool(facts["has_half_functions"]),
            has_lines=limits.has_images and limits.max_image_line > 0,
            integer_dot=next((name for name, fact in dots.items() if facts[fact] and not limits.is_cpu), "off"),
            has_matrices=limits.has_matrix_units,
            is_small=machine.is_small,
            is_narrow=machine.is_narrow,
            holds=machine.holds(machine.registers_most),
        )


@cache
def _named_by_rule(device: _Device) -> Mapping[Configuration, Numbers]:
    of_kind = _of_processor if device.is_cpu else _of_large_gpu if device.is_large else _of_phone
    found: dict[Configuration, Numbers] = {}
    for configuration, numbers in of_kind(device):
        for one in _in_both_layouts(configuration):
            found.setdefault(one, {**_ANY, **numbers})
    return found


def _in_both_layouts(configuration: Configuration) -> Iterator[Configuration]:
    """Yield it, then with the weights as in the file: those of arrays have quants and scales apart there already."""
    yield configuration
    if configuration.algorithm == "shared_rows":
        yield Configuration.of("shared_rows", **{**dict(configuration.values), "layout": "file"})


def _of_processor(device: _Device) -> _Listed:
    """Yield rows in the lanes of vectors; where there are no whole vectors of rows, rows by one work-item along k."""
    for rows, columns in ((16, 8), (16, 4), (32, 2), (32, 1), (16, 2), (16, 1)):
        panels = Configuration.of("vector_rows", micro_tile_m=rows, micro_tile_n=columns, relaxed_math="off")
        yield panels, {"least_n": columns // 2 + 1}
    is_wide = device.lanes >= _WIDE_LANES
    for columns in (4, 2, 1):
        for rows in (4, 2, 1) if is_wide or columns < 4 else (2, 1):
            for whole in (0, 1):
                vectors = _shared(device, whole, lanes=1, rows=rows, columns=columns, chunk=4, sums="vector")
                yield vectors, _columns(columns, whole)
    for chunk in (2, 1):
        for whole_numbers in (0, 1):
            narrow = _shared(device, whole_numbers, lanes=4 // chunk, rows=1, columns=1, chunk=chunk)
            yield narrow, {"is_whole": whole_numbers}


def _of_large_gpu(device: _Device) -> _Listed:
    """Yield macro-tiles in local memory for many columns; for few, rows that lanes share."""
    units = device.compute_units
    if device.has_matrices:
        yield from _by_matrices(units)
        yield from _tiles_by_matrices(units)
    for wide_m, wide_n, tile in ((32, 8, 8), (16, 8, 8), (8, 8, 8), (16, 8, 4), (8, 4, 4)):
        for whole in (0, 1):
            # A macro-tile for each compute unit, unless tiles are small already.
            least = {
                "least_m": 8 * units if wide_m == 32 else 1,
                "least_n": _FEW + 1,
                "is_whole": whole,
            }
            yield _tile(device, whole, wide_m, wide_n, tile), least
    # Each lane under way keeps some memory busy, so few rows are not left to few work-items.
    needed = {4: 64 * units, 2: 32 * units, 1: 1}
    for rows in (2, 1):
        staged = _shared(
            device, 0, lanes=32, groups=4, rows=rows, columns=1, chunk=4, unroll=2, decode="magic", x_storage="local"
        )  # fmt: skip
        yield staged, {"most_n": 1, "is_whole": 0, "is_byte": 0, "least_m": needed[rows]}
    yield _shared(device, 1, lanes=64, groups=2, rows=1, columns=1, chunk=4, unroll=4), {"most_n": 1, "is_whole": 1}
    for columns in (8, 4, 2, 1):
        for rows in (4, 2, 1):
            floats = _shared(
                device, 0, lanes=32, groups=1 if rows > 1 else 4, rows=rows, columns=columns, chunk=1,
                unroll=2 if rows > 1 else 4, decode="magic",
            )  # fmt: skip
            yield floats, {**_columns(columns, 0), "least_m": needed[rows]}
            integers = _shared(
                device, 1, lanes=32, groups=4, rows=rows, columns=columns, chunk=2 if columns <= 4 else 1,
                unroll=4 // rows,
            )  # fmt: skip
            yield integers, {**_columns(columns, 1), "least_m": needed[rows]}
    # The last two are for fewer rows than most work-groups have.
    for lanes, groups in ((16, 8), (8, 8), (4, 8), (32, 1), (4, 1)):
        for whole in (0, 1):
            # Without dot products floats and integers are multiplied by the same configuration.
            numbers = {} if device.integer_dot == "off" else {"is_whole": whole}
            yield _shared(device, whole, lanes=lanes, groups=groups, rows=1, columns=1, chunk=1), numbers


def _by_matrices(units: int) -> _Listed:
    """Yield rows for few columns."""
    # One column: of heavy formats, sub-groups keep the sums of four units apart.
    alone = {"most_n": 1, "is_whole": 0}
    spread = _matrix_rows(4, 4, 1, 4, groups=4, packed_words=4, reading="ahead", x_storage="local", w_loads="cached")
    yield spread, {**alone, "is_heavy": 1, "least_m": 120 * units}
    for columns in (4, 8):
        bytes_ahead = _matrix_rows(8, 8, 2, columns, reading="ahead", x_storage="local", w_loads="streamed")
        yield bytes_ahead, {**alone, "is_byte": 1, "least_m": 64 * units}
        many = _matrix_rows(8, 16, 1, columns, reading="now", x_storage="local", w_loads="streamed")
        yield many, {**alone, "least_m": 64 * units}
        few = _matrix_rows(4, 16, 2, columns, reading="ahead", x_storage="local", w_loads="cached")
        yield few, {**alone, "least_m": 24 * units}
    # What a sub-group reads ahead fits the registers but of heavy formats with more columns than four.
    for columns, slices, reading, meant in (
        (4, 16, "ahead", {"is_heavy": 1}), (8, 16, "now", {"is_heavy": 1}), (4, 16, "now", {}),
        (8, 16, "ahead", {"is_float16": 1}), (8, 8, "ahead", {}), (8, 16, "now", {}),
    ):  # fmt: skip
        many = _matrix_rows(8, slices, 1, columns, reading=reading, x_storage="buffer", w_loads="streamed")
        yield many, {"most_n": columns, "is_whole": 0, "least_m": 64 * units, **meant}
    for columns in (4, 8):
        # For one column of few rows lanes that share rows were as fast.
        for slices, wanted in ((16, {**alone, "least_m": 24 * units}), (8, {"least_n": 2}), (1, {"least_n": 2})):
            few = _matrix_rows(4, slices, 1, columns, reading="now", x_storage="buffer", w_loads="cached")
            yield few, {"most_n": columns, "is_whole": 0, **wanted}


def _tiles_by_matrices(units: int) -> _Listed:
    """Yield tiles for many columns; those for fewer share out k to fill the device."""
    halves = {"least_n": 49, "is_float16": 1}
    few = tuple((parts, 64, 2) for parts in (8, 4, 2, 1))
    alone = ((1, 64, 2), (1, 32, 2))
    tiles: tuple[tuple[int, int, int, int, str, tuple[tuple[int, int, int], ...], Numbers], ...] = (
        *(  # shared out where there is less than a work-group for each compute unit, of two that it has room for
            (128, 64, 32, 64, "weights", ((parts, 128, 3),), {**halves, "most_outputs": 128 * 64 * units * 2 // parts})
            for parts in (4, 2)
        ),
        (128, 64, 32, 64, "weights", ((1, 128, 3), (1, 64, 3), (1, 32, 3)), halves),
        (128, 128, 64, 64, "sums", alone, {"least_m": 8 * units, "least_n": 1024, "is_float16": 1}),
        (128, 64, 32, 64, "sums", ((1, 128, 2),), {"least_n": 49, "is_whole": 1}),
        (128, 64, 32, 64, "sums", alone, {"least_n": 49}),
        (64, 32, 16, 32, "sums", (*few, (1, 32, 2)), {"least_n": 17}),
        (64, 16, 16, 16, "sums", (*few, (1, 32, 2)), {"least_n": _FEW + 1}),
    )
    for high, wide, sub_m, sub_n, scaling, shares, numbers in tiles:
        for parts, depth, stages in shares:
            tile = Configuration.of(
                "matrix_tile", macro_tile_m=high, macro_tile_n=wide, sub_group_tile_m=sub_m, sub_group_tile_n=sub_n,
                tile_k=depth, stages=stages, read_ahead=1, split_k=parts, scaling=scaling,
            )  # fmt: skip
            yield tile, numbers


def _matrix_rows(
    rows: int, slices: int, unroll: int, columns: int, *, reading: str, x_storage: str, w_loads: str, groups: int = 1,
    packed_words: int = 1,
) -> Configuration:  # fmt: skip
    return Configuration.of(
        "matrix_rows", work_group_m=groups, work_group_k=slices, micro_tile_m=rows, micro_tile_n=columns,
        packed_words=packed_words, unroll=unroll, reading=reading, x_storage=x_storage, w_loads=w_loads,
    )  # fmt: skip


def _of_phone(device: _Device) -> _Listed:
    """Yield rows of their own for work-items side by side, and k shared out where there are few rows or columns.

    Tiles and work-groups of Adreno are those that Mesa's compiler builds without spills, in the order of issue slots
    for each product. On Mali a work-item with more than 32 registers halves the threads, so tiles are small there.
    """
    is_roomy = device.is_adreno and device.compute_units >= _ROOMY_ADRENO
    if device.adds_in_half:
        wanted = {"least_n": _FEW + 1, "is_whole": 0, "is_half": 1, "is_even": int(is_roomy)}
        yield from _own(device, 0, wanted, slices=1, rows=4, columns=8 if is_roomy else 4)
    if device.is_narrow or (device.is_adreno and not is_roomy):
        whole = int(device.is_narrow)
        wanted = {"least_n": _FEW + 1, "is_whole": whole, "is_heavy" if device.is_narrow else "is_six": 1}
        yield from _own(device, whole, wanted, slices=1, rows=1, columns=4)
    for columns, rows in ((8, 2), (4, 2), (4, 1)) if is_roomy else ((4, 2), (4, 1)):
        for whole in (0, 1):
            wanted = {"least_n": _FEW + 1, "is_whole": whole}
            yield from _own(device, whole, wanted, slices=1, rows=rows, columns=columns)
    # What a work-item reads of the activations serves all of its rows.
    many = {4: 8192, 2: 1024, 1: 1} if device.is_adreno else {4: MAX_ELEMENTS, 2: 4096, 1: 1}
    for columns, shapes in _SHARED_OUT.items():
        shapes = tuple(shape for shape in shapes if not device.is_tight or shape != (8, 2))  # which would spill
        for slices, rows in shapes:
            if (columns > 2 and rows > 1 and not is_roomy) or (device.is_small and slices > 2):
                continue
            for whole in (0, 1) if slices * rows < 16 else (0,):
                wanted = {**_columns(columns, whole), "least_m": many[rows]}
                if device.adds_in_half and not whole and (columns == 4 or (columns == 8 and is_roomy)):
                    in_half = {**wanted, "is_half": 1}
                    yield from _own(device, 0, in_half, slices=slices, rows=rows, columns=columns)
                yield from _own(device, whole, wanted, slices=slices, rows=rows, columns=columns)
    for group in (16, 8, 1):
        for whole in (0, 1):
            yield from _own(device, whole, {"is_whole": whole}, slices=1, rows=1, columns=1, group=group)


def _columns(columns: int, whole: int) -> Numbers:
    """Return for how many columns of the product a work-item with so many is meant."""
    return {"least_n": columns // 2 + 1, "is_whole": whole}


def _arithmetic(device: _Device, whole: int, decode: str) -> dict[str, Value]:
    """Return the parameters that only products of floats, or of integers, have a choice of."""
    if whole:
        return {
            "decode": "convert",
            "multiply_add": "operator",
            "integer_dot": device.integer_dot,
            "relaxed_math": "off",
        }
    spelling = "operator" if device.is_large else "mad"  # Mesa's Adreno compiler fuses mad() alone
    return {"decode": decode, "multiply_add": spelling, "integer_dot": "off", "relaxed_math": "off"}


def _shared(
    device: _Device, whole: int, *, lanes: int, rows: int, columns: int, chunk: int, groups: int = 1, unroll: int = 1,
    sums: str = "scalar", decode: str = "convert", x_storage: str = "buffer",
) -> Configuration:  # fmt: skip
    return Configuration.of(
        "shared_rows", layout="rows", lanes=lanes, work_group_m=groups, micro_tile_m=rows, micro_tile_n=columns,
        chunk=chunk, unroll=unroll, x_storage=x_storage, sums=sums, standard="none", wave_size="any",
        join=device.join if lanes * groups % 32 == 0 else "tree", **_arithmetic(device, whole, decode),
    )  # fmt: skip


def _own(
    device: _Device, whole: int, wanted: Numbers, *, slices: int, rows: int, columns: int, group: int = 0
) -> _Listed:
    """Yield a configuration that reads images, where the device has them, and the same with buffers."""
    # What is taken off the sums of a unit needs a sum for each column, which few columns are worth.
    in_half = wanted.get("is_half") == 1
    is_short = device.is_narrow and columns > 2 and not whole
    if is_short and rows * columns > 4:  # Mesa's compiler spills these
        return
    usual = min(16, device.holds // slices) if device.is_small else 64 if device.is_adreno else 16
    scaling = "sums" if whole or columns < 4 or in_half else "weights"
    for storage in ("image", "buffer") if device.is_adreno and device.has_lines else ("buffer",):
        configuration = Configuration.of(
            "own_rows", work_group_m=group or usual, work_group_k=slices, micro_tile_m=rows,
            micro_tile_n=columns, packed_words=4, w_storage=storage, x_storage="buffer" if whole else storage,
            scaling=scaling, run_type="float16" if in_half else "float32", wave_size="any",
            **_arithmetic(device, whole, "magic"),
        )  # fmt: skip
        if is_short:  # 32 bytes read at once leave too few
            yield Configuration.of("own_rows", **{**dict(configuration.values), "packed_words": 1}), {
                **wanted, "is_byte": 1,
            }  # fmt: skip
        yield configuration, wanted


def _tile(device: _Device, whole: int, wide_m: int, wide_n: int, tile: int) -> Configuration:
    return Configuration.of(
        "local_tile", work_group_m=wide_m, work_group_n=wide_n, micro_tile_m=tile, micro_tile_n=tile,
        packed_words=4 if not whole else 2, unroll=32 if whole else 16, split_k=1, combine=SECOND_LAUNCH,
        **_arithmetic(device, whole, "magic"),
    )  # fmt: skip
