"""The algorithms of attention with their parameters and constraints."""

from autotune.kernels.attention.problem import UNIT_BYTES
from autotune.kernels.combination import COMBINE, HAS_ORDERING, SECOND_LAUNCH
from autotune.kernels.matrix_units import SUB_GROUP
from autotune.space.family import Algorithm, Constraint, constraint, features, parameter

_EXPONENTIAL = parameter("exponential", ("exp2", "native_exp2"), "the function that raises scores")
_MULTIPLY_ADD = parameter("multiply_add", ("operator", "mad"), "how a product is added: a * b + c, or mad(a, b, c)")
_WIDTH_WORKS = constraint(
    "vector_width_works",
    "vector_width <= max_vector_float32 and (dtype == 'float32' and kv_type == 'float32'"
    " or vector_width <= max_vector_float16)",
    "the driver gets vectors of this width wrong",
)
_WHOLE_PIECES = constraint(
    "pieces_are_whole",
    "k_size % vector_width == 0 and v_size % vector_width == 0 and (kv_type != 'q4_0' or vector_width > 1)",
    "a row is not whole vectors, or half a vector is less than an element",
)
_PARTS_TO_COMBINE = constraint(
    "parts_to_combine", f"split > 1 or combine == '{SECOND_LAUNCH}'", "one part has nothing to combine"
)


def _rows_to_do(rows: str, otherwise: str = "") -> Constraint:
    return constraint("rows_to_do", f"{rows} < 2 * group * q_length{otherwise}", "most rows of a tile would not exist")


def _keys_to_do(keys: str, present: str = "kv_length") -> Constraint:
    return constraint("keys_to_do", f"{keys} < 2 * {present}", "most of a pass would have no keys")


def _fits_device(items: str, most: str = "max_work_group_size") -> Constraint:
    return constraint(
        "work_group_fits_device",
        f"{items} <= {most} and {items} <= max_work_group_0",
        "the work-group exceeds what the device allows",
    )


_KV_STORAGE = parameter(
    "kv_storage", ("global", "local"), "memory of K and V, which are copied to local memory", neutral="global"
)

_NAIVE = Algorithm(
    name="naive",
    meaning="one row of the output per work-item",
    parameters=(parameter("work_group_size", (0, 1, 32, 64), "work-items in a work-group; 0 leaves it to the driver"),),
    constraints=(_fits_device("work_group_size"), _rows_to_do("work_group_size")),
)

_OWN = "ceil_div(ceil_div(max(k_size, v_size), vector_width), lanes)"
"""Pieces of a row that a lane has."""
_TEAMS = "(work_group_size // lanes)"

_DECODE = Algorithm(
    name="decode",
    meaning="few rows of a KV head per work-group; lanes share a key, teams of them and work-groups share out the keys",
    parameters=(
        parameter("work_group_size", (1, 16, 32, 64, 128, 256), "work-items in a work-group"),
        parameter("lanes", (1, 2, 4, 8, 16, 32), "work-items that share a key"),
        parameter("tile_q", (1, 2, 3, 4, 5, 6, 7, 8, 16), "rows of a KV head that a work-group computes"),
        parameter("tile_k", (1, 2, 4, 8, 16), "keys that a team of lanes has under way at once"),
        parameter("vector_width", (1, 2, 4, 8, 16), "elements in one load"),
        parameter("split", (1, 2, 4, 8, 16, 32, 64, 128), "work-groups that share out the keys"),
        parameter("join", ("local", "shuffle", "sub_group"), "how lanes add up the product of a key"),
        COMBINE,
        _EXPONENTIAL,
        _MULTIPLY_ADD,
    ),
    constraints=(
        _rows_to_do("tile_q"),
        _WIDTH_WORKS,
        _fits_device("work_group_size"),
        constraint("teams_are_whole", "lanes <= work_group_size", "the work-group is less than a team"),
        _WHOLE_PIECES,
        constraint("lanes_have_pieces", "lanes * vector_width <= min(k_size, v_size)", "some lanes would be idle"),
        _keys_to_do(f"split * {_TEAMS} * tile_k"),
        constraint("totals_fit_registers",
            f"{_OWN} * vector_width * tile_q <= (1024 if is_cpu == 1 else 48 if has_qcom_compiler == 1 else 80)",
            "the rows of Q and of the output do not fit the registers; of 64 elements Adreno's compiler spills some"),
        constraint("keys_fit_registers",
            f"{_OWN} * tile_k * tile_q <= (256 if is_cpu == 1 else 128) and tile_q * tile_k <= 64"
            f" and (is_cpu == 1 or {_OWN} * tile_k * vector_width <= 64)",
            "the keys and scores under way do not fit the registers, or the code grows too long"),
        constraint("totals_fit_local_memory",
            f"(4 * {_TEAMS} * (v_size + 2 * tile_q) if work_group_size > lanes else 4)"
            f" + (4 * tile_q * tile_k * (work_group_size + {_TEAMS}) if join == 'local' and lanes > 1 else 0)"
            " <= local_memory_bytes", "what is joined exceeds local memory"),
        constraint("join_exists", "join == 'local' or (lanes > 1 and work_group_size >= 32"
            " and ((join == 'shuffle' and has_ptx == 1) or (join == 'sub_group' and has_sub_group_shuffle == 1"
            " and lanes <= least_sub_group)))",
            "there is nothing to join, or the device has no such instruction for so many"),
        HAS_ORDERING,
        _PARTS_TO_COMBINE,
    ),
    features=features("work_group_size", "lanes * vector_width", "tile_k * tile_q", f"{_TEAMS} * tile_k"),
)  # fmt: skip

_TILE_Q, _TILE_K = "(work_group_q * micro_tile_q)", "(work_group_k * micro_tile_k)"
_ITEMS = "work_group_q * work_group_k"
_OWN_V = "ceil_div(v_size // vector_width, work_group_k)"
"""Pieces of a row of the output that a work-item has."""

_PREFILL = Algorithm(
    name="prefill",
    meaning="a tile of rows of a KV head per work-group, which goes over tiles of keys",
    parameters=(
        parameter("work_group_q", (2, 4, 8, 16, 32), "work-items side by side along rows"),
        parameter("work_group_k", (2, 4, 8, 16, 32), "work-items side by side along keys, and along the output"),
        parameter("micro_tile_q", (1, 2, 4, 8), "rows that a work-item computes"),
        parameter("micro_tile_k", (1, 2, 4, 8), "keys of a tile that a work-item computes scores for"),
        parameter("vector_width", (1, 2, 4, 8), "elements in one load"),
        _KV_STORAGE,
        parameter("unroll", (1, 2, 4), "pieces of a row in one pass of the inner loop"),
        parameter("split", (1, 2, 4, 8, 16), "work-groups that share out the keys"),
        COMBINE,
        _EXPONENTIAL,
        _MULTIPLY_ADD,
    ),
    constraints=(
        _rows_to_do(_TILE_Q),
        _keys_to_do(f"{_TILE_K} * split"),
        _WIDTH_WORKS,
        _WHOLE_PIECES,
        constraint("unroll_divides_row", "k_size // vector_width % unroll == 0", "the last pass would not be whole"),
        _fits_device(_ITEMS, "min(1024, max_work_group_size)"),
        constraint("output_shared_out", "work_group_k * vector_width <= v_size", "some work-items have no output"),
        constraint("tiles_fit_registers",
            f"micro_tile_q * ({_OWN_V} * vector_width + micro_tile_k) <= 96 and micro_tile_q * micro_tile_k <= 32",
            "the totals and scores do not fit the registers"),
        constraint("tiles_fit_local_memory",
            f"4 * ({_TILE_Q} * (k_size + vector_width + {_TILE_K} + work_group_k) + ({_TILE_K}"
            " * max(k_size + vector_width, v_size) if kv_storage == 'local' else 1)) <= local_memory_bytes",
            "the tiles exceed local memory"),
        HAS_ORDERING,
        _PARTS_TO_COMBINE,
    ),
    features=features(_ITEMS, _TILE_Q, _TILE_K, "micro_tile_q * micro_tile_k", f"micro_tile_q * {_OWN_V}"),
)  # fmt: skip

_COLUMNS = Algorithm(
    name="columns",
    meaning="for processors: a tile of rows of a KV head per work-item, whose vectors run along keys laid out before",
    parameters=(
        parameter("tile_q", (4, 8, 16, 32, 64, 128), "rows of a KV head that a work-item computes"),
        parameter("tile_k", (16, 32, 64, 128), "keys that it computes scores for at once"),
        parameter("micro_tile_q", (1, 2, 4, 8), "rows whose sums are in registers"),
        parameter("micro_tile_k", (1, 2, 4), "vectors of keys, or along the head, whose sums are in registers"),
        parameter("vector_width", (4, 8, 16), "elements of a vector"),
        _EXPONENTIAL,
    ),
    constraints=(
        constraint("is_processor", "is_cpu == 1", "the tiles are arrays in private memory"),
        _rows_to_do("tile_q"),
        _keys_to_do("tile_k", "max(kv_length, 16)"),
        _WIDTH_WORKS,
        constraint("micro_tiles_are_whole",
            "tile_q % micro_tile_q == 0 and tile_k % (micro_tile_k * vector_width) == 0"
            " and v_size % (micro_tile_k * vector_width) == 0", "micro-tiles do not tile the scores or the output"),
        constraint("sums_fit_registers", "micro_tile_q * micro_tile_k <= 24", "the sums do not fit the registers"),
        constraint("tiles_fit_cache", "4 * tile_q * (k_size + v_size + tile_k) <= 262144", "tiles exceed the caches"),
    ),
    features=features("tile_q", "tile_k", "micro_tile_q * micro_tile_k", "micro_tile_k * vector_width"),
)  # fmt: skip

_SUB_GROUPS = f"({SUB_GROUP} * sub_groups_q * sub_groups_k)"
_JOINED = "(64 * sub_groups_q * micro_tile_q * v_size if sub_groups_k > 1 else 0)"
"""Bytes of the totals that sub-groups join."""

_MATRIX_TILE = Algorithm(
    name="matrix_tile",
    meaning="tiles of rows of a KV head by matrix units; sub-groups have rows of their own, or share out the keys",
    parameters=(
        parameter("sub_groups_q", (1, 2, 4, 8), "sub-groups with rows of their own"),
        parameter("sub_groups_k", (1, 2, 4, 8), "sub-groups that share out the keys of the same rows"),
        parameter("micro_tile_q", (1, 2), "tiles of 16 rows that a sub-group computes"),
        parameter("tile_k", (16, 32, 64), "keys that a sub-group computes scores for at once"),
        _KV_STORAGE,
        parameter("split", (1, 2, 4, 8, 16, 32, 64, 128), "work-groups that share out the keys"),
        COMBINE,
        _EXPONENTIAL,
    ),
    constraints=(
        constraint("has_matrix_units", "has_matrix_units == 1 and dtype == 'float16' and kv_type != 'float32'",
            "the device has no matrix units for these numbers"),
        constraint("pieces_are_whole", "k_size % 32 == 0 and v_size % 64 == 0", "rows are not whole matrix products"),
        _rows_to_do("16 * sub_groups_q * micro_tile_q", " or (sub_groups_q == 1 and micro_tile_q == 1)"),
        _keys_to_do("split * sub_groups_k * tile_k"),
        _fits_device(_SUB_GROUPS, "min(512, max_work_group_size)"),
        constraint("tiles_fit_registers", "micro_tile_q * (v_size // 2 + k_size // 4 + tile_k // 2) <= 210",
            "the rows of Q, scores and totals do not fit the registers"),
        constraint("rows_can_be_copied", "kv_storage == 'global' or kv_type != 'float16' or k_size % 64 == 0",
            "rows are not whole lines of local memory"),
        constraint("tiles_fit_local_memory",
            f"max((kv_storage == 'local') * tile_k * sub_groups_k * ((k_size + v_size) // 32 * ({UNIT_BYTES}) + 16),"
            f" {_JOINED}) + {_JOINED} // v_size * 2 * sub_groups_k + 32 <= local_memory_bytes",
            "the tiles, or what is joined, exceed local memory"),
        HAS_ORDERING,
        _PARTS_TO_COMBINE,
    ),
    features=features(_SUB_GROUPS, "sub_groups_q * micro_tile_q", "sub_groups_k * tile_k", "tile_k * micro_tile_q"),
)  # fmt: skip

ALGORITHMS = (_NAIVE, _DECODE, _PREFILL, _COLUMNS, _MATRIX_TILE)
