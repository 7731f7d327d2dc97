"""The command `autotune serve`: run the service on this machine."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.arguments import DATABASE, argument, command, file, integer
from autotune.cli.output import print_note
from autotune.device.processors import usable_cores
from autotune.errors import DatabaseAwayError

if TYPE_CHECKING:
    from autotune.service.store import ServiceStore

OPENING_PAUSE_S = 5.0
"""Pause before another attempt to reach a database server that does not answer."""


@command(
    argument("--host", metavar="H", default="127.0.0.1", help="address to listen at (127.0.0.1)"),
    integer("--port", 0, 65535, "port (8765; 0 for a free one)", default=8765),
    file("--token-file", "file with the administrators' token in its first line"),
    file("--read-token-file", "file with a token for reading only"),
    file("--submit-token-file", "file with a token for reading, jobs and uploads"),
    file("--worker-token-file", "file with a token for workers only"),
    integer("--processes", 1, 256, "number of processes that search; one for each core by default"),
    argument("--public-url", metavar="URL", default="", help="address of a proxy in front of the service"),
    DATABASE,
    examples=("serve", "serve --host 0.0.0.0 --token-file token --read-token-file read-token --db postgresql://..."),
)
def serve_command(options: argparse.Namespace) -> int:
    """Serve jobs, lookups and tables over HTTP; autotune worker adds devices."""
    from autotune.service.access import Role
    from autotune.service.server import ServeOptions, read_access, serve

    files = {
        Role.ADMIN: options.token_file,
        Role.READER: options.read_token_file,
        Role.SUBMITTER: options.submit_token_file,
        Role.WORKER: options.worker_token_file,
    }
    given = {role: path for role, path in files.items() if path}
    place = ServeOptions(
        host=options.host,
        port=options.port,
        token_files=given,
        public_url=options.public_url,
        processes=options.processes or usable_cores(),
    )
    read_access(place)
    _log_warnings()
    with open_patiently(options.db) as store:
        serve(place, store, print_note)
    return 0


def open_patiently(database: str | Path | None) -> "ServiceStore":
    """Open the store, waiting up to AWAY_PATIENCE_S for a database server, which may start later than the service.

    Raises the errors of ServiceStore.open.
    """
    from autotune.service.store import ServiceStore
    from autotune.store import AWAY_PATIENCE_S

    began = time.monotonic()
    while True:
        try:
            return ServiceStore.open(database)
        except DatabaseAwayError as error:
            if time.monotonic() - began > AWAY_PATIENCE_S:
                raise
            print_note(f"{error.message}; trying again for up to {AWAY_PATIENCE_S:g} s")
        time.sleep(OPENING_PAUSE_S)


def _log_warnings() -> None:
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
