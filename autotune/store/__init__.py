"""The store: devices, problems, the ledger of trials and builds, and the winners. Owns SQLAlchemy and Alembic.

A `Store` is opened on an SQLite file or a database server and may be used by several programs at once. Rows of trials,
builds and winners are only ever added; rows for trials in flight and in quarantine come and go. `best_configurations`
is a view that people can query too.

Each part of the store is a file with its tables, its values and its transactions: `trials.py`,
`quarantine.py` (with the trials in flight), `winners.py`, `checkups.py`. `models.py` has what the tables share,
`transactions.py` how they are read and written. A service has a store with more parts (`service/store`).
"""

from pathlib import Path
from typing import Self

from autotune.errors import StoreError
from autotune.model.device import Device
from autotune.store import models
from autotune.store.backup import check_snapshot_path, write_snapshot
from autotune.store.checkups import CheckupLedger
from autotune.store.database import parse_target
from autotune.store.failures import AWAY_PATIENCE_S
from autotune.store.migration import Schema, open_engine, read_schema
from autotune.store.owner import Attempt, Fate, Holder, Owner, new_owner
from autotune.store.quarantine import LOST, InFlight, Quarantined, QuarantineLedger
from autotune.store.trials import Ending, ExampleBuild, StoredTrial, TrialLedger
from autotune.store.winners import WinnerLedger

__all__ = [
    "AWAY_PATIENCE_S",
    "LOST",
    "Attempt",
    "Ending",
    "ExampleBuild",
    "Fate",
    "Holder",
    "InFlight",
    "Owner",
    "Quarantined",
    "Store",
    "StoredTrial",
    "new_owner",
]


class Store(TrialLedger, QuarantineLedger, WinnerLedger, CheckupLedger):
    """An open database. Every method is one transaction and raises StoreError when the database fails."""

    @classmethod
    def open(cls, target: str | Path | None = None, *, read_only: bool = False, makes: bool = True) -> Self:
        """Open a file or a URL, or the user's own database for None, creating or migrating it unless `read_only`.

        Without `makes`, a missing file is an error; this is for callers that have nothing to do in a new database.
        A server that does not answer now is an error; if it goes away later, it is waited for up to AWAY_PATIENCE_S.
        Raises NotADatabaseError, NewerSchemaError, ReadOnlyDatabaseError, DatabaseAwayError, or StoreError.
        """
        place = parse_target(target)
        return cls(place, open_engine(place, read_only=read_only, makes=makes), read_only=read_only)

    def add_device(self, device: Device) -> None:
        """Add a device, or update its limits if it is already stored."""
        self.write(lambda session: models.device_id(session, device, is_seen_here=True))

    def is_ready(self) -> bool:
        """Return whether the database answers now and has the newest schema. Raises StoreError when it does not answer.

        Unlike a transaction, this does not wait for a server that is away.
        """
        return read_schema(self._reading, self.location) is Schema.CURRENT

    def snapshot(self, path: str | Path, device_slug: str | None = None) -> None:
        """Write an SQLite file that opens in a read-only folder, with all rows or one device's; replaces a file there.

        Raises ReadOnlyDatabaseError, StoreError.
        """
        target = Path(path)
        if self._target.path and target.exists() and self._target.path.samefile(target):
            raise StoreError(f"{target} is the database itself", hint="name another file")
        check_snapshot_path(target)
        write_snapshot(self.read, target, device_slug)
