"""The commands `import`, `backup` and `restore`: tables into a database, and the whole database as one file."""

import argparse
from pathlib import Path

from autotune.cli.arguments import DATABASE, argument, command, flag
from autotune.cli.output import print_note
from autotune.lookup.json_table import read_contents

_FILE = argument("file", metavar="FILE", type=Path, help="the backup")


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


@command(_FILE, DATABASE, examples=("backup nightly.sqlite", "backup nightly.dump --db postgresql://..."))
def backup_command(options: argparse.Namespace) -> int:
    """Write the whole database to one file; services may go on meanwhile. PostgreSQL needs pg_dump."""
    from autotune.store.backup import back_up
    from autotune.store.database import parse_target

    back_up(parse_target(options.db), options.file)
    print_note(f"wrote {options.file}")
    return 0


@command(
    _FILE,
    DATABASE,
    flag("--force", "replace the database file that is there"),
    examples=("restore nightly.sqlite --force", "restore nightly.dump --db postgresql://..."),
)
def restore_command(options: argparse.Namespace) -> int:
    """Restore the database from a backup; nothing may use it meanwhile. PostgreSQL needs pg_restore."""
    from autotune.store.backup import restore
    from autotune.store.database import parse_target

    target = parse_target(options.db)
    restore(target, options.file, replaces=options.force)
    print_note(f"restored {target}")
    return 0
