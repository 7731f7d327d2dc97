"""What algorithms with NVIDIA's matrix units declare alike: macro-tiles that sub-groups share out in tiles."""

from autotune.space.family import constraint, features

SUB_GROUP = 32
"""Work-items whose registers together hold the operands of a matrix unit."""
ITEMS = f"({SUB_GROUP} * (macro_tile_m // sub_group_tile_m) * (macro_tile_n // sub_group_tile_n))"
"""Work-items of a work-group."""
SUB_GROUPS_TILE = (
    constraint(
        "sub_groups_tile_work_group",
        "macro_tile_m % sub_group_tile_m == 0 and macro_tile_n % sub_group_tile_n == 0",
        "sub-groups do not tile the work-group",
    ),
    constraint(
        "work_group_fits_device",
        f"{2 * SUB_GROUP} <= {ITEMS} and {ITEMS} <= min(512, max_work_group_size) and {ITEMS} <= max_work_group_0",
        "a compute unit would be half idle, or the device does not allow so many work-items",
    ),
)
FEATURES = features(ITEMS, "sub_group_tile_m * sub_group_tile_n", "macro_tile_m * macro_tile_n", "stages * tile_k")
