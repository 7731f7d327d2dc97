"""Algorithms with a tile per work-item, in registers (`microtile`) or local memory (`local_tile`, `panel`); and all."""

from autotune.kernels.combination import COMBINE, HAS_ORDERING
from autotune.kernels.gemm.algorithms import (
    COLUMN,
    DOT,
    EDGES,
    FEATURES,
    FEATURES_OF_DEVICE,
    HAS_INTEGER_DOT,
    INTEGER_DOT,
    LOADS,
    MATH,
    MULTIPLY_ADD,
    NAIVE,
    PARTS_TO_COMBINE,
    QCOM_16_BIT,
    REGISTER_ALLOCATION,
    REGISTER_CAP,
    ROW,
    SPLIT_LEAVES_WORK,
    STRIP,
    WAVE_SIZE,
    WHOLE_NUMBERS,
    WORK_GROUP,
    WORK_GROUP_LIMITS,
    accumulators_fit,
    aligned,
    columns_to_do,
    newer_parameter,
    rows_to_do,
    vectors_work,
)
from autotune.kernels.gemm.matrix_algorithm import MATRIX_TILE
from autotune.kernels.gemm.plan import MANY_PARTS
from autotune.space.family import Algorithm, Constraint, constraint, features, parameter

_STORAGE = "read {0} from its buffer, first copy it into an RGBA image, or read its buffer as an image"
_VECTORS_FILL_TILE = constraint(
    "vectors_fill_tile",
    "micro_tile_n % vector_width == 0 and micro_tile_n <= 4 * vector_width",
    "a micro-tile is one to four whole vectors wide",
)


def _image_fits(name: str, operand: str, width: str, *, rows: str, columns: str) -> Constraint:
    return constraint(
        name,
        f"{operand}_storage == 'buffer' or (has_images == 1 and {width} == 4 and {columns} <= 4 * max_image_width "
        f"and ({operand}_storage == 'image_view' or {rows} * batch <= max_image_height))",
        "the device has no image of that size, or pixels and vectors differ in length",
    )


def _view_fits(operand: str, rows: str) -> Constraint:
    pitch, stride = f"ld{operand}", f"stride_{operand}"
    return constraint(
        f"view_of_{operand}_fits",
        f"{operand}_storage != 'image_view' or (has_image_from_buffer == 1 and trans_{operand} == 0 "
        f"and {pitch} % (4 * max(image_pitch_alignment, 1)) == 0 and (batch == 1 or {stride} % {pitch} == 0) "
        f"and (batch - 1) * ({stride} // {pitch}) + {rows} <= max_image_height)",
        f"the device cannot read {operand.upper()} in place as an image of its pitch and height",
    )


_ELEMENT = "(4 if multiply_add == 'packed' else accumulator_bytes)"
"""Bytes of an element of a tile and of an accumulator of `local_tile`: packed, two elements of k are one."""


def _pairs_lie(operand: str, is_along: str, length: str) -> str:
    """Return an expression: rows of pairs, or where k is not along rows of `length` single elements, are vectors."""
    width, pitch, stride = f"{operand}_load_width", f"ld{operand}", f"stride_{operand}"
    pair = f"({width} if {is_along} else 2 * {width})"
    return f"{pitch} % {pair} == 0 and {stride} % {pair} == 0 and (not ({is_along}) or {length} % {width} == 0)"


MICROTILE = Algorithm(
    name="microtile",
    meaning="one register micro-tile per work-item; A and B from images or buffers",
    parameters=(
        parameter("micro_tile_m", (1, 2, 3, 4, 6, 8, 12, 16), "rows of C a work-item computes"),
        parameter("micro_tile_n", (1, 2, 4, 8, 16, 32, 64), "columns of C a work-item computes"),
        parameter("vector_width", (1, 2, 4, 8, 16), "columns in one vector"),
        parameter("unroll", (1, 2, 4, 8), "steps of k in one pass of the loop"),
        parameter("a_vector_width", (1, 2, 4, 8), "elements of k in one load of A"),
        newer_parameter("a_storage", ("buffer", "image", "image_view"), _STORAGE.format("A")),
        parameter("b_storage", ("buffer", "image", "image_view"), _STORAGE.format("B")),
        *WORK_GROUP,
        EDGES,
        LOADS,
        MULTIPLY_ADD,
        MATH,
        INTEGER_DOT,
        WAVE_SIZE,
        QCOM_16_BIT,
        REGISTER_CAP,
        REGISTER_ALLOCATION,
    ),
    constraints=(
        *FEATURES_OF_DEVICE,
        *WORK_GROUP_LIMITS,
        vectors_work("vector_width"),
        vectors_work("a_vector_width"),
        _VECTORS_FILL_TILE,
        constraint("a_vectors_fill_step", "unroll % a_vector_width == 0", "a step of k is whole vectors of A"),
        accumulators_fit("micro_tile_m * micro_tile_n <= 128 or (is_cpu == 1 and micro_tile_m * micro_tile_n <= 512)"),
        constraint(
            "rows_to_do",
            "(work_group_m * micro_tile_m - micro_tile_m < m or (is_cpu == 1 and work_group_m * micro_tile_m < 2 * m)) "
            "and micro_tile_m < 2 * m",
            "part of every work-group would have no row to compute, which costs little on a CPU",
        ),
        columns_to_do("work_group_n * micro_tile_n - micro_tile_n < n and micro_tile_n < 2 * n"),
        constraint("step_within_k", "unroll < 2 * k", "one step is longer than k"),
        constraint(
            "tile_within_row",
            "edges == 'pad' or b_storage != 'buffer' or micro_tile_n <= n",
            "the last micro-tile of a row is moved back to end with it, so a row must hold one",
        ),
        constraint(
            "has_pixels_of_sums",
            "(a_storage == 'buffer' and b_storage == 'buffer') or accumulator_bytes == 4 or has_half_functions == 1",
            "reading half precision from an image takes cl_khr_fp16",
        ),
        _image_fits("image_fits", "b", "vector_width", rows="k", columns="n"),
        _image_fits("image_of_a_fits", "a", "a_vector_width", rows="m", columns="k"),
        _view_fits("b", "k"),
        _view_fits("a", "m"),
        constraint(
            "image_needs_no_padding",
            "(a_storage == 'buffer' and b_storage == 'buffer') or edges == 'guard'",
            "images need no padding",
        ),
        aligned(
            "edges == 'pad' or ((a_storage != 'buffer' or (lda % a_vector_width == 0 "
            "and stride_a % a_vector_width == 0)) and (b_storage != 'buffer' or (ldb % vector_width == 0 "
            "and stride_b % vector_width == 0 and n % vector_width == 0)))"
        ),
        constraint(
            "transposed_b_is_packed",
            "trans_b == 0 or edges == 'pad' or b_storage == 'image'",
            "the kernel reads rows of B, which a transposed B has only after packing",
        ),
        constraint(
            "transposed_a_by_elements",
            "trans_a == 0 or edges == 'pad' or a_vector_width == 1 or a_storage == 'image'",
            "the k of a transposed A does not lie in a row",
        ),
        *WHOLE_NUMBERS,
        constraint(
            "alignment_matters",
            "loads == 'vload' or (vector_width > 1 and b_storage == 'buffer') "
            "or (a_vector_width > 1 and a_storage == 'buffer')",
            "single elements are always aligned, and so are pixels",
        ),
        constraint(
            "integer_dot_of_packed_rows",
            "integer_dot == 'off' or (edges == 'pad' and a_vector_width >= 4)",
            "four elements of k have to lie side by side, which packing ensures",
        ),
        constraint(
            "waves_are_filled",
            "wave_size == 'any' or work_group_m * work_group_n >= 64",
            "half a wave is 64 work-items on most of these devices",
        ),
        constraint("one_word_on_waves", "qcom_16_bit == 'off' or wave_size == 'any'", "the option is about waves too"),
        constraint(
            "register_cap_matters",
            "register_cap == 0 or (micro_tile_m * micro_tile_n >= 32 "
            "and accumulator_bytes * micro_tile_m * micro_tile_n <= 4 * register_cap)",
            "a small tile needs few registers in any case, or the accumulators alone need more",
        ),
        constraint(
            "register_allocation_suffices",
            "register_allocation == 0 or accumulator_bytes * micro_tile_m * micro_tile_n <= 4 * register_allocation",
            "the accumulators alone need more registers",
        ),
    ),
    features=FEATURES,
)

LOCAL_TILE = Algorithm(
    name="local_tile",
    meaning="macro-tiles of A and B in local memory, one register micro-tile per work-item",
    parameters=(
        parameter("work_group_m", (4, 8, 16, 32), "work-items along m"),
        parameter("work_group_n", (4, 8, 16, 32), "work-items along n"),
        parameter("micro_tile_m", (1, 2, 4, 6, 8, 10, 12, 16), "rows of C a work-item computes"),
        parameter("micro_tile_n", (1, 2, 4, 8, 16), "columns of C a work-item computes"),
        parameter(
            "tile_k", (8, 16, 32), "depth of the tiles in local memory, with integer_dot in fours, packed in twos"
        ),
        parameter("vector_width", (1, 2, 4, 8), "elements in one load from local memory and one store to C"),
        parameter("a_load_width", (1, 2, 4, 8), "elements in one load of A from global memory"),
        parameter("b_load_width", (1, 2, 4, 8), "elements in one load of B from global memory"),
        parameter("unroll", (4, 8, 16), "steps of k in one pass of the inner loop"),
        parameter("local_padding", (0, 4, 8), "elements between rows of a tile in local memory"),
        parameter(
            "stages",
            (1, 2, 3, 4),
            "tiles in local memory at once; with two the next is fetched ahead, with more NVIDIA's copy instruction "
            "fetches further ahead",
        ),
        parameter("sub_group_columns", (0, 4, 8, 16), "32 work-items as a block of this many columns; 0: as a row"),
        parameter("group_rows", (0, 4, 8), "rows of work-groups that run as one band; 0: row by row"),
        parameter(
            "split_k", (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128, 256), "work-groups that share the k of one macro-tile"
        ),
        COMBINE,
        EDGES,
        parameter(
            "multiply_add",
            (*MULTIPLY_ADD.values, "packed"),
            f"{MULTIPLY_ADD.meaning}, or two of float16 at a time by NVIDIA's instruction",
        ),
        INTEGER_DOT,
    ),
    constraints=(
        HAS_INTEGER_DOT,
        constraint(
            "widest_vectors",
            "max(vector_width, max(a_load_width, b_load_width)) <= 4 or (accumulator_bytes == 2 "
            "and multiply_add != 'packed' "
            "and (a_load_width <= 4 or edges == 'pad' or trans_a == 0 or m % 8 == 0) "
            "and (b_load_width <= 4 or edges == 'pad' or trans_b == 1 or n % 8 == 0))",
            "a vector has 16 bytes at most, and those of 8 elements have to end with the rows",
        ),
        HAS_ORDERING,
        PARTS_TO_COMBINE,
        *(
            vectors_work(width, unless="multiply_add == 'packed'")
            for width in ("vector_width", "a_load_width", "b_load_width")
        ),
        WORK_GROUP_LIMITS[1],
        constraint(
            "vectors_fill_tile",
            "micro_tile_n % vector_width == 0",
            "micro-tiles are made of whole vectors",
        ),
        constraint(
            "accumulators_fit",
            f"{_ELEMENT} * micro_tile_m * micro_tile_n <= 256 "
            f"or ({_ELEMENT} * micro_tile_m * micro_tile_n <= 512 and local_memory_bytes > 32768)",
            "the accumulators spill, above 256 bytes where a compute unit has 32 KiB of local memory or less",
        ),
        constraint("enough_work_items", "work_group_m * work_group_n >= 32", "a compute unit would be half idle"),
        constraint(
            "group_within_cpu", "is_cpu == 0 or work_group_m * work_group_n <= 256", "a CPU runs large groups slowly"
        ),
        constraint("unroll_divides_tile", "tile_k % unroll == 0", "the inner loop has no remainder"),
        constraint(
            "even_share_of_a",
            "(micro_tile_m * tile_k) % (work_group_n * a_load_width) == 0",
            "every work-item loads the same number of vectors of A",
        ),
        constraint(
            "even_share_of_b",
            "(micro_tile_n * tile_k) % (work_group_m * b_load_width) == 0",
            "every work-item loads the same number of vectors of B",
        ),
        constraint(
            "tiles_fit_local_memory",
            f"{_ELEMENT} * stages * tile_k "
            "* (work_group_m * micro_tile_m + work_group_n * micro_tile_n + 2 * local_padding) <= local_memory_bytes",
            "the tiles of A and B exceed local memory",
        ),
        constraint(
            "sums_of_parts_fit_local_memory",
            f"split_k <= {MANY_PARTS} or 4 * accumulator_bytes * work_group_m * work_group_n <= local_memory_bytes",
            "the sums of work-items that share parts exceed local memory",
        ),
        constraint(
            "padding_keeps_alignment",
            "local_padding == 0 or (local_padding == 8) == (vector_width == 8)",
            "padding is a vector of the widest kind that is used, or of 4",
        ),
        rows_to_do("work_group_m * micro_tile_m < 2 * m + 8", share="most"),
        columns_to_do("work_group_n * micro_tile_n < 2 * n + 8", share="most"),
        constraint(
            "step_within_k",
            "tile_k * (4 if integer_dot != 'off' else 2 if multiply_add == 'packed' else 1) < 2 * k + 8",
            "one tile is longer than k",
        ),
        constraint(
            "sub_groups_fill_work_group",
            "sub_group_columns == 0 or (is_cpu == 0 and work_group_n % max(sub_group_columns, 1) == 0 "
            "and work_group_m * sub_group_columns % 32 == 0)",
            "blocks of 32 work-items do not tile the work-group, or the device is a CPU",
        ),
        constraint(
            "bands_matter",
            "group_rows == 0 or (split_k == 1 and m > 2 * group_rows * work_group_m * micro_tile_m "
            "and n > 2 * group_rows * work_group_n * micro_tile_n)",
            "there are too few work-groups for bands to differ from rows",
        ),
        constraint(
            "padding_aligns",
            "edges == 'guard' or lda % 4 != 0 or ldb % 4 != 0 or n % 4 != 0 or integer_dot != 'off'",
            "rows are aligned as they are",
        ),
        SPLIT_LEAVES_WORK,
        constraint(
            "split_fills_device",
            "split_k == 1 or (batch * m * n * split_k) // (work_group_m * micro_tile_m * work_group_n * micro_tile_n) "
            "<= 16 * compute_units",
            "there are enough work-groups without splitting k",
        ),
        constraint(
            "aligned_rows",
            "edges == 'pad' or (lda % a_load_width == 0 and ldb % b_load_width == 0 "
            "and stride_a % a_load_width == 0 and stride_b % b_load_width == 0)",
            "rows do not start at aligned addresses, and vectors are read whole",
        ),
        constraint(
            "copies_by_instruction",
            "stages <= 2 or (has_ptx == 1 and ((mode == 'float32' and edges == 'guard' "
            "and (a_load_width == 1 or trans_a == 1) and (b_load_width == 1 or trans_b == 0)) "
            "or (integer_dot != 'off' and a_load_width == 1)))",
            "only NVIDIA's compiler accepts the instruction, and it cannot transpose what it copies",
        ),
        WHOLE_NUMBERS[1],
        constraint(
            "packed_by_instruction",
            "multiply_add != 'packed' or (has_ptx == 1 and has_float16 == 1 and accumulator_bytes == 2 "
            "and vector_width > 1 and split_k == 1)",
            "only NVIDIA's compiler accepts the instruction, for sums in float16 of one work-group",
        ),
        constraint(
            "packed_pairs",
            f"multiply_add != 'packed' or edges == 'pad' or (k % 2 == 0 and {_pairs_lie('a', 'trans_a == 1', 'm')} "
            f"and {_pairs_lie('b', 'trans_b == 0', 'n')})",
            "two elements of k make a word, and vectors have to end with the rows",
        ),
        constraint(
            "integer_dot_of_packed_rows",
            "integer_dot == 'off' or edges == 'pad'",
            "four elements of k have to lie side by side, which packing ensures",
        ),
        constraint(
            "wide_vectors",
            "vector_width > 1 or micro_tile_m % 2 != 0 or micro_tile_n % 2 != 0",
            "wider vectors would fill the micro-tile",
        ),
        constraint(
            "micro_tile_worth_local_memory",
            "micro_tile_m * micro_tile_n >= 8 or m * n < 65536",
            "each number read from local memory should be used several times",
        ),
        constraint(
            "macro_tile_near_square",
            "(work_group_m * micro_tile_m <= 8 * work_group_n * micro_tile_n or n < 64) "
            "and (work_group_n * micro_tile_n <= 8 * work_group_m * micro_tile_m or m < 64)",
            "a long macro-tile reads more than it computes",
        ),
    ),
    features=FEATURES,
)

PANEL = Algorithm(
    name="panel",
    meaning="for CPUs: a work-item computes micro-tiles of C one below the other, reading B from a copy",
    parameters=(
        parameter("micro_tile_m", (2, 4, 6, 8, 12, 16), "rows of C in a micro-tile"),
        parameter("micro_tile_n", (4, 8, 16, 32, 48, 64), "columns of C in a micro-tile"),
        parameter("tiles_m", (2, 4, 8, 16, 32, 64), "micro-tiles one below the other that a work-item computes"),
        parameter("tile_k", (64, 128, 256, 512), "rows of B in a copy"),
        parameter("vector_width", (4, 8, 16), "columns in one vector"),
        parameter("unroll", (1, 2, 4, 8), "steps of k in one pass of the loop"),
        MULTIPLY_ADD,
    ),
    constraints=(
        vectors_work("vector_width"),
        constraint("is_processor", "is_cpu == 1", "a GPU runs more work-items at once, with less memory for each"),
        _VECTORS_FILL_TILE,
        accumulators_fit("micro_tile_m * micro_tile_n <= 512"),
        constraint(
            "copies_fit_local_memory",
            "accumulator_bytes * micro_tile_n * (tile_k + tiles_m * micro_tile_m) <= local_memory_bytes",
            "the copy of B and the sums exceed local memory",
        ),
        constraint("rows_to_do", "(tiles_m - 1) * micro_tile_m < 2 * m", "most micro-tiles would have no row"),
        constraint("columns_to_do", "micro_tile_n <= 2 * n", "most of a micro-tile would have no column to compute"),
        constraint("panel_within_k", "tile_k <= 64 or tile_k < 2 * k", "one panel is longer than k"),
        constraint("step_within_k", "unroll < 2 * k", "one step is longer than k"),
        WHOLE_NUMBERS[1],
    ),
    features=features("micro_tile_m * micro_tile_n", "tiles_m * micro_tile_m", "micro_tile_n * tile_k"),
)

ALGORITHMS = (NAIVE, DOT, MICROTILE, LOCAL_TILE, PANEL, ROW, STRIP, COLUMN, MATRIX_TILE)
