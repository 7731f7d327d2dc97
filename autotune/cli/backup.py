"""The commands `autotune backup` and `autotune restore`: the whole database, as one file."""

import argparse
from pathlib import Path

from autotune.cli.arguments import DATABASE, argument, command, flag
from autotune.cli.output import print_note

_FILE = argument("file", metavar="FILE", type=Path, help="the backup")


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
