"""The estimate by which untuned GEMMs choose: the time of the busiest compute unit, in multiply-adds of one lane.

Part-filled work-groups count like full ones, idle compute units gain nothing, large micro-tiles save loads, several
work-groups at once hide latency, and copies and additional launches must pay off.

The estimate uses integers only, and Python and exported C evaluate the same expression, so both make the same choice.
Its weights rank candidates; they do not predict times. Those of `local_tile` on a GPU are fitted to 6,087 times at 143
sizes on an NVIDIA H200, where the first candidate reaches 0.965 (geometric mean) of the speed of the fastest measured,
0.95 to 0.96 at sizes that took no part, and 0.94 to 0.97 in other types and layouts (scripts/results/rule_h200.json).
Those of `matrix_tile` are fitted to 422 times at 34 products on an H100 (0.98), the registers of tall tiles to 13
products with 12 to 32 columns there (0.96). On processors, those of conversions and of vectors that do not fit the
registers are fitted to 227 times at 7 products on an AMD Zen 3 with AVX2, where the first candidate reaches 0.91 of
OpenBLAS's speed (30 products, one core).
"""

from dataclasses import dataclass, replace
from functools import cache

from autotune.kernels.combination import is_one_launch
from autotune.kernels.gemm.plan import MANY_PARTS
from autotune.kernels.gemm.problem import COLUMN_OF_ROWS, ROWS_OF_COLUMNS
from autotune.kernels.matrix_units import SUB_GROUP
from autotune.model.configuration import Configuration, Value
from autotune.model.device import DeviceLimits
from autotune.model.machine import UNKNOWN, Machine, WorkGroup
from autotune.space.expression import Expression

_MISFIT_WEIGHT, _MOST_MISFIT = 4, 24
"""Doubt for each eighth by which a work-item has more or fewer outputs than were measured to be best at a size, and the
eighths that count: half or twice as many must promise a fifth of the time. So what was measured on phones decides
between tiles, and the rest of the estimate, which is fitted to other devices, between configurations of one tile."""
_UNFIT_IMAGE = 100
"""Doubt of B as an image where the machine says that a buffer is as good."""
FEWEST_UNITS = 2
"""Compute units of the smallest GPU whose outputs of a work-item were measured; a smaller one counts as that."""
_PARTS_OF_MEMORY = 64
"""The cost of a byte from memory is a number of these parts."""
_TILES_OF_PLAIN = "(m + rows - 1) // rows * ((n + columns - 1) // columns)"
_MACRO_TILES = (
    f"({_TILES_OF_PLAIN} if turns == 0 else (m + columns - 1) // columns if turns == 1 and {COLUMN_OF_ROWS} "
    f"else (n + rows - 1) // rows * ((m + columns - 1) // columns) if turns == 2 and {ROWS_OF_COLUMNS} "
    f"else {_TILES_OF_PLAIN}) * batch"
)
_TILES = f"{_MACRO_TILES} * split"
_ROUNDS = f"(({_TILES} + chunk * compute_units - 1) // (chunk * compute_units))"
_TURNS = f"(({_TILES} + resident * compute_units - 1) // (resident * compute_units))"
_JOINS = f"(({_MACRO_TILES} + compute_units - 1) // compute_units)"
_STEPS = "((k + parts * depth - 1) // (parts * depth))"
_COPIES = "batch * (copies_a * m * k + copies_b * k * n + copies_c * m * n) // compute_units"
_MEMORY = f"batch * (m * k + k * n + m * n) * element_bytes * memory // {_PARTS_OF_MEMORY}"
_WORK = (
    "(work + of_bytes * element_bytes + convert * (1 - element_bytes // 4) "
    "+ gather * (1 - trans_b) * min(n - spared, 16) + gather_a * trans_a * min(m // 4, 16) "
    "+ crowd * max(1 - min(ldb % 1024, 1), min(k // 2048 + ldb // 4096, 1)))"
)
_LOOP = f"{_STEPS} * ({_ROUNDS} * {_WORK} + {_TURNS} * wait)"
_WANTED = f"min(max(batch * m * n // (items_wanted * max(compute_units, {FEWEST_UNITS})), outputs_least), outputs_most)"
_MISFIT = f"min(max(outputs, {_WANTED}) * 8 // min(outputs, {_WANTED}) - 8, {_MOST_MISFIT}) * {_MISFIT_WEIGHT}"
_UNFIT = (
    "unfit_image * max(1 - min(element_bytes // image_element_bytes, 1), "
    "1 - min(batch * m * n // image_outputs_least, 1))"
)
_DOUBT = (
    "(doubt + spare * (element_bytes // 4) * (1 - max(trans_a, trans_b)) + tall * min(n // (4 * columns), 1) "
    f"+ flat * trans_b * max(2 - m, 0) + {_MISFIT} + {_UNFIT})"
)
ESTIMATE = Expression(f"({_LOOP} + {_TURNS} * begin + {_JOINS} * join + besides + {_COPIES} + {_MEMORY}) * {_DOUBT}")
"""The estimate, over values of the problem, limits of the device, and the `numbers_of` a candidate."""


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """Costs in multiply-adds of one lane; on a CPU in eighths of a vector operation."""

    near: int
    """An element loaded from a cache; an image's cache and local memory cost half as much, `vload` twice."""
    crowded: int
    """Surcharge on an element of B when its rows share few places of a cache, because they begin a multiple of 4 KiB
    apart, or when there are so many rows, or they are so long, that the columns a work-group returns to do not fit."""
    far: int
    """An element that a work-group loads once for all its work-items."""
    copy: int
    """An element that another kernel reads or writes in addition."""
    launch: int
    latency: int
    """The wait for memory, divided among the steps of k that are under way at once."""
    part: int
    """An element of C written or read in addition because several work-groups share its k."""
    join: int
    """The same, when only the last work-group of a macro-tile does it."""
    joining: int
    """A second launch, which adds up the parts."""
    finding: int
    """Finding out, in one launch, which work-group is the last."""
    aside: int
    """An element of B that `panel` copies to local memory."""
    spill: int = 0
    """A vector that does not fit the registers."""
    convert: int = 0
    """A vector of B that is converted when loaded, as float16 and int8 are."""
    convert_one: int = 0
    """One element of A that is converted when loaded."""


_GPU_MULTIPLY_ADDS = 128
"""Multiply-adds that a compute unit of the GPU begins in a clock to which these weights are fitted."""
_GPU = _Weights(
    near=2, crowded=0, far=24, copy=64, launch=2_000_000, latency=100_000, part=28, join=18, joining=1_600_000,
    finding=400_000, aside=0,
)  # fmt: skip
_CPU = _Weights(
    near=8, crowded=8, far=32, copy=100, launch=250_000, latency=0, part=100, join=100, joining=250_000, finding=0,
    aside=18, spill=56, convert=80, convert_one=150,
)  # fmt: skip
_FAR_LOAD = 14
"""The `far` of a `local_tile` on a GPU, for each load from global memory, however wide; twice that for the copy
instruction."""
_TILE_LATENCY = 60_000
"""The `latency` of a `local_tile` on a GPU, for the next tiles at `tile_k` 16; it grows with the square of `tile_k`."""
_TILE_BEGIN = 370_000
"""Ramp-up and ramp-down of the work-groups of a `local_tile` that a compute unit runs at once."""
_DOT_SLOWNESS = 2
"""Dot products of four pairs of int8 take a GPU this many times as long as multiply-adds of float32."""
_JOINING_MANY = 1_100_000
"""What the second launch of a `local_tile` costs more where several work-items share the parts of a result. Fitted to
16 products with k from 8,192 to 200,000 on an H100."""
_TALL = 2
"""Doubt added to a `local_tile` at least four times as high as wide, where C has columns for several of them."""
_FLAT = 8
"""Doubt added to a `local_tile` for one row with a transposed B. On an H200 it took 1.6 times as long as cuBLAS, and
`column`, for the product of the transposes, as long as cuBLAS for that."""
_CARRYING = 24
"""Registers that a tall `local_tile` needs to carry the elements of its next tiles to local memory, besides these."""
_MATRIX_OUTPUTS, _MATRIX_LOADS, _MATRIX_READS = 7, 1, 1
"""Of a `matrix_tile`, for each byte of k: how many outputs cost one multiply-add, and the costs of a row or column that
is loaded into local memory and of one that a sub-group reads from there."""
_MATRIX_LATENCY = 7_600
"""The `latency` of a `matrix_tile`, for the next tiles at `stages` 2; it falls with the tiles under way."""
_MATRIX_BEGIN = 120_000
"""Ramp-up and ramp-down of the work-groups of a `matrix_tile` that a compute unit runs at once."""
_STRIP_GAIN = 2
"""How much cheaper an element of B is where a work-item reads long pieces of its rows: by 1.2 in the caches of an AMD
Zen 4, by 2.2 beyond them."""
_ONE_TURN = 2**40
"""Number of resident work-groups with which waiting is counted once for all."""
_EIGHTHS = 8
_CPU_LANES, LEAST_LANES = 8, 4
"""Elements of float32 in a vector register: assumed when the driver does not report it, and the least believed."""
_FEW_REGISTERS, _MANY_REGISTERS, _ANY_REGISTERS = 16, 32, 1024
"""Vector registers of a processor: few; many if they hold 16 elements, as with AVX-512; and without a limit if it is
not known what they hold."""


def numbers_of(
    configuration: Configuration, limits: DeviceLimits, constant: str, machine: Machine = UNKNOWN
) -> dict[str, int]:
    """Return the numbers that `ESTIMATE` needs of a configuration, by name.

    `rows`, `columns`: outputs of a work-group, or of a work-item if the driver chooses the work-group.
    `turns`: 1 for a kernel that computes a column of rows of A as the product of the transposes, 2 for one that
    computes few rows of columns of B so, else 0. `rows` and `columns` are then those of that product.
    `chunk`: how many of these share a compute unit's time.
    `parts`, `split`: parts into which k is divided in all, and among work-groups.
    `depth`: elements of k in a step.
    `work`: cost of a step of k for a chunk, and `of_bytes` for each byte of an element. Added to it are `convert` for
    types narrower than the sums, `gather` for each column beyond `spared` if successive k of B are in different rows,
    `gather_a` for each four rows if those of A are, and `crowd` for rows of B that a cache does not hold.
    `wait`: cost of waiting in a step, once for all the `resident` work-groups that a compute unit runs at once.
    `begin`: cost of the ramp-up and ramp-down of these.
    `join`: cost of a macro-tile whose parts the last work-group adds up.
    `besides`: cost of further launches. `copies_a`, `copies_b`, `copies_c`: cost of each element of A, B or C that
    they read and write. Packing a constant operand costs nothing.
    `memory`: cost of a byte of the operands and the result, in parts of `_PARTS_OF_MEMORY`.
    `tall`, `flat`: doubts added for a tall tile, if there are columns for several, and for any tile of one row
    with a transposed B.
    `outputs`: of a work-item, where it is known how many a product should have: `outputs_least` to `outputs_most`,
    between them such that each compute unit, or each of two, has `items_wanted` work-items; else all are 1.
    `unfit_image`: doubt added for an image of B whose elements have fewer than `image_element_bytes`, or of a product
    with fewer than `image_outputs_least` outputs.
    """
    weights = _CPU if limits.is_cpu else _weights_of(machine.multiply_adds)
    shape = _Shape(configuration, limits, machine)
    work = shape.work(weights)
    pads = int(shape.text("edges") == "pad")
    packs_a = "a" not in constant and (pads or int(shape.text("a_storage") == "image"))
    packs_b = "b" not in constant and (pads or int(shape.text("b_storage") in ("image", "transposed")))
    split = shape.number("split_k")
    outputs = shape.high * shape.tile_m * shape.wide * shape.tile_n
    joins = split > 1 and is_one_launch(configuration)
    has_wanted = machine.outputs_most > 0 and shape.algorithm not in ("row", "column")
    joining = 0 if split == 1 else weights.finding if joins else weights.joining
    joining += _JOINING_MANY if shape.is_tiled and not joins and split > MANY_PARTS else 0
    return {
        "rows": shape.tile_m * (1 if shape.by_driver else shape.high),
        "columns": shape.tile_n * (1 if shape.by_driver else shape.wide),
        "turns": {"row": 1, "strip": 1, "column": 2}.get(shape.algorithm, 0),
        "parts": shape.deep * split,
        "split": split,
        "chunk": shape.wide if shape.by_driver else 1,
        "depth": shape.depth,
        "work": work,
        "of_bytes": shape.work_of_matrices() if shape.has_matrices else 0,
        "convert": shape.conversion(weights),
        "gather": 0 if limits.is_cpu and shape.text("b_storage") == "transposed" else shape.gathering(work, weights),
        "gather_a": 0 if pads or not limits.is_cpu else shape.gathering(work, weights),
        "spared": 0 if limits.is_cpu else 1,
        "crowd": weights.crowded * shape.items * shape.tile_n if shape.algorithm == "microtile" else 0,
        "wait": shape.wait(weights),
        "resident": shape.resident(),
        "begin": _MATRIX_BEGIN if shape.has_matrices else _TILE_BEGIN if shape.is_tiled else 0,
        "join": weights.join * split * outputs if joins else 0,
        "tall": _TALL if shape.is_tall else 0,
        "flat": _FLAT if shape.is_tiled else 0,
        "outputs": shape.tile_m * shape.tile_n if has_wanted else 1,
        "outputs_least": machine.outputs_least if has_wanted else 1,
        "outputs_most": machine.outputs_most if has_wanted else 1,
        "unfit_image": _UNFIT_IMAGE if has_wanted and shape.text("b_storage") in ("image", "image_view") else 0,
        "image_element_bytes": max(1, machine.image_element_bytes),
        "image_outputs_least": machine.image_outputs_least,
        "items_wanted": machine.work_items_wanted if has_wanted else 1,
        "besides": weights.launch * (packs_a + packs_b) + joining,
        "copies_a": 2 * weights.copy * packs_a,
        "copies_b": 2 * weights.copy * packs_b,
        "copies_c": weights.part * (split + 1) if split > 1 and not joins else 0,
        "memory": _PARTS_OF_MEMORY * machine.multiply_adds // machine.memory_bytes if machine.memory_bytes else 0,
    }


@cache
def _weights_of(multiply_adds: int) -> _Weights:
    """Return the weights of a GPU that waits for as many clocks as the fitted one, but does other work in a clock."""
    clocks = {name: getattr(_GPU, name) * multiply_adds // _GPU_MULTIPLY_ADDS for name in ("far", "latency")}
    return replace(_GPU, **clocks)


class _Shape:
    """Work-items of a configuration along rows, columns and parts of k, and the cost of their work."""

    def __init__(self, configuration: Configuration, limits: DeviceLimits, machine: Machine) -> None:
        self.algorithm = configuration.algorithm
        self.is_cpu = limits.is_cpu
        self.is_tiled = configuration.algorithm == "local_tile" and not limits.is_cpu
        self.has_matrices = configuration.algorithm == "matrix_tile"
        self._limits, self._machine = limits, machine
        self._values = dict(configuration.values)
        self.tile_m = self.number("micro_tile_m") * self.number("macro_tile_m")
        self.tile_n = self.number("micro_tile_n") * self.number("macro_tile_n")
        self.lanes = 1 if limits.is_cpu else machine.lanes or max(limits.sub_group_sizes, default=64)
        told = limits.native_vector_float32
        self.vector_lanes = told if told >= LEAST_LANES else _CPU_LANES
        self.registers = _ANY_REGISTERS if told < LEAST_LANES else _FEW_REGISTERS if told < 16 else _MANY_REGISTERS
        self.high, self.wide, self.deep = (self.number(f"work_group_{name}") for name in "mnk")
        self.high *= self.number("tiles_m")
        self.by_driver = self.wide == 0
        if self.by_driver:
            self.high, self.wide = 1, self.lanes

    def number(self, name: str) -> int:
        value = self._values.get(name, 1)
        assert isinstance(value, int)
        return value

    def text(self, name: str) -> Value:
        return self._values.get(name, "")

    @property
    def items(self) -> int:
        """Work-items of a work-group, rounded up to whole sub-groups; each micro-tile of a `panel` counts as one."""
        return -(-self.high * self.wide * self.deep // self.lanes) * self.lanes

    def work(self, weights: _Weights) -> int:
        """Return the cost of a step of k for a work-group: the work of its work-items and the loads they share."""
        if self.has_matrices:
            return 0
        if self.is_tiled:
            loads = self.number("tile_k") * self.high * self.tile_m // self.number("a_load_width")
            loads += self.number("tile_k") * self.wide * self.tile_n // self.number("b_load_width")
            far = _FAR_LOAD * (2 if self.number("stages") > 2 else 1)
            return self.number("tile_k") * self.items * self._work_of_item(weights.near // 2) + far * loads
        columns = 0 if self.is_thin_on_cpu else self.wide * self.tile_n  # so few stay in the nearest cache
        columns //= _STRIP_GAIN if self.algorithm == "strip" else 1
        shared = (self.high * self.tile_m + columns) * self.deep
        of_item = self._work_of_item_on_cpu(weights) if self.is_cpu else self._work_of_item(weights.near)
        put_aside = weights.aside * self.tile_n if self.algorithm == "panel" else 0
        return self.items * of_item + weights.far * shared + put_aside

    @property
    def sub_groups(self) -> int:
        """Sub-groups of a `matrix_tile`."""
        return self.tile_m // self.number("sub_group_tile_m") * (self.tile_n // self.number("sub_group_tile_n"))

    def work_of_matrices(self) -> int:
        """Return the cost of a step of a `matrix_tile` for each byte of an element."""
        reads = self.sub_groups * (self.number("sub_group_tile_m") + self.number("sub_group_tile_n"))
        outputs = self.tile_m * self.tile_n // _MATRIX_OUTPUTS
        return self.depth * (outputs + _MATRIX_LOADS * (self.tile_m + self.tile_n) + _MATRIX_READS * reads)

    def _work_of_item(self, near: int) -> int:
        has_dots = self.text("integer_dot") not in ("", "off")
        if self.is_tiled:
            slowness = _DOT_SLOWNESS if has_dots else 1
            return slowness * self.tile_m * self.tile_n + near * (self.tile_m + self.tile_n) // 2
        near_a = near * 2 if self.text("loads") == "vload" else near
        near_b = near // 2 if self.text("b_storage") in ("image", "image_view") else near_a
        near_a = near // 2 if self.text("a_storage") in ("image", "image_view") else near_a
        products, loads = self.tile_m * self.tile_n, near_a * self.tile_m + near_b * self.tile_n
        return (_DOT_SLOWNESS * products + loads) // 4 if has_dots else products + loads

    def _work_of_item_on_cpu(self, weights: _Weights) -> int:
        """Return the cost of a work-item, which fills the vector unit itself.

        Its vectors lie along n, each multiplied by single elements of A, or along k.
        """
        width = min(self.number("vector_width"), self.vector_lanes)
        near = weights.near
        near_a = near // width if self.is_thin_on_cpu else near
        work = (self.tile_m * self.tile_n * _EIGHTHS + near * self.tile_n) // width + near_a * self.tile_m
        if self.algorithm == "strip":
            return work + 2 * near * self.tile_m * self.tile_n // (width * self.number("unroll"))
        held = (self.tile_m + 1) * max(1, self.tile_n // width) + 1
        return work if self.is_thin_on_cpu else work + weights.spill * max(0, held - self.registers)

    def conversion(self, weights: _Weights) -> int:
        """Return the cost of converting what a work-group loads in a step of k; `panel` has already converted B."""
        if not self.is_cpu or self.is_thin_on_cpu:
            return 0
        vectors_of_b = self.tile_n // min(self.number("vector_width"), self.vector_lanes)
        of_b = 0 if self.algorithm == "panel" else weights.convert * vectors_of_b
        return self.items * (weights.convert_one * self.tile_m + of_b)

    @property
    def depth(self) -> int:
        """Elements of k in a step."""
        of_k = 4 if self.text("integer_dot") not in ("", "off") else 2 if self.text("multiply_add") == "packed" else 1
        return self.number("tile_k") * of_k if self.is_tiled else self.number("tile_k") if self.has_matrices else 1

    def resident(self) -> int:
        """Return how many work-groups a compute unit runs at once, for `local_tile`, which waits by the tile."""
        if self.has_matrices:
            return self._resident_of_matrices()
        if not self.is_tiled:
            return _ONE_TURN
        lines = self.high * self.tile_m + self.wide * self.tile_n + 2 * self.number("local_padding")
        group = WorkGroup(
            items=self.high * self.wide,
            outputs=self.tile_m * self.tile_n,
            operands=self.tile_m + self.tile_n,
            carried=self._carried() if self.is_tall else 0,
            local_bytes=4 * self.number("stages") * self.number("tile_k") * lines,  # of A and B in float32
        )
        return group.at_once(self._limits, self._machine)

    def _carried(self) -> int:
        """Return how many registers of a work-item the next tiles of a tall `local_tile` take on their way."""
        if self.number("stages") > 2:
            return 0  # the copy needs none
        rows_and_columns = self.high * self.tile_m + self.wide * self.tile_n
        return _CARRYING + self.number("tile_k") * rows_and_columns // (self.high * self.wide)

    def _resident_of_matrices(self) -> int:
        """Return the same for `matrix_tile`, whose registers hold two steps of k, of 32 bytes each."""
        high, wide = self.number("sub_group_tile_m"), self.number("sub_group_tile_n")
        group = WorkGroup(
            items=SUB_GROUP * self.sub_groups,
            outputs=high * wide // SUB_GROUP,
            operands=(high + wide) // 4,
            local_bytes=2 * self.number("stages") * self.number("tile_k") * (self.tile_m + self.tile_n),
        )
        return group.at_once(self._limits, self._machine)

    @property
    def is_tall(self) -> bool:
        return self.is_tiled and self.high * self.tile_m >= 4 * self.wide * self.tile_n

    @property
    def is_thin_on_cpu(self) -> bool:
        return self.is_cpu and self.algorithm in ("dot", "column")

    def gathering(self, work: int, weights: _Weights) -> int:
        """Return the extra cost, for each column, of vectors along k whose elements are in successive rows.

        A CPU loads each element separately; a GPU wastes part of its loads.
        """
        if self.algorithm not in ("dot", "column"):
            return 0
        return 4 * weights.near * self.tile_n if self.is_cpu else work // 4

    def wait(self, weights: _Weights) -> int:
        """Return the cost of waiting for memory in a step, shared by steps whose loads do not wait for each other."""
        if self.has_matrices:
            return _MATRIX_LATENCY // (self.number("stages") - 1)
        if self.is_tiled:
            return _TILE_LATENCY * self.number("tile_k") ** 2 // 256 // (2 if self.number("stages") > 2 else 1)
        along_k = self.number("vector_width") if self.algorithm in ("dot", "column") else 1
        return weights.latency // (along_k * self.number("unroll"))
