"""The command `autotune import`: add the winners of an exported table to a database."""

import argparse
from pathlib import Path

from autotune.cli.arguments import DATABASE, argument, command
from autotune.lookup.json_table import read_contents


@command(
    argument("file", metavar="FILE", type=Path, help="file written by autotune export --format json"),
    DATABASE,
    examples=("import tables.json",),
)
def import_command(options: argparse.Namespace) -> int:
    """Import an exported JSON table into the database; better measurements there are kept."""
    from autotune.store import Store

    contents = read_contents(options.file)
    with Store.open(options.db) as store:
        added, kept = store.import_winners(contents.winners, contents.devices)
    because = ", because the stored ones are confirmed or faster" if kept else ""
    print(f"{added} imported, {kept} not imported{because}")
    return 0
