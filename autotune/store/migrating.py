"""Which schema a database has, and bringing it to the newest.

Alembic is imported only where a migration really runs: it is slow to import.
"""

import enum
import threading

from sqlalchemy import Connection, Engine, inspect, text

from autotune.errors import NewerSchemaError, NotADatabaseError, StoreError
from autotune.resources import UPGRADE_HINT, data_folder, schema_revisions
from autotune.store.failures import attempt
from autotune.store.models import APPLICATION_ID, Base
from autotune.store.opening import BEGIN

_VERSION_TABLE = "alembic_version"
_ADVISORY_LOCK = APPLICATION_ID
_ALEMBIC = threading.Lock()
"""Alembic's `op` and `context` are process-wide: a second migration at the same time would run on the connection of
the first."""


class Schema(enum.Enum):
    """What a database holds."""

    NOTHING = "nothing"
    OLDER = "older"
    CURRENT = "current"


def read_schema(engine: Engine, place: str) -> Schema:
    """Raises NotADatabaseError for another program's database, NewerSchemaError for a newer version's."""

    def read() -> Schema:
        with engine.connect() as connection:
            return _read_schema(connection, place)

    return attempt(read, place)


def migrate(engine: Engine, place: str) -> None:
    """Bring the schema to the newest, all or nothing; two programs may do so at once. Raises StoreError.

    The engine must not enforce foreign keys on SQLite.
    """

    def run() -> None:
        with engine.execution_options(**{BEGIN: "BEGIN IMMEDIATE"}).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            # Another program may have been first, while this one waited for the lock.
            if _read_schema(connection, place) is not Schema.CURRENT:
                _upgrade(connection, place)

    attempt(run, place)


def _read_schema(connection: Connection, place: str) -> Schema:
    tables = set(inspect(connection).get_table_names())
    is_sqlite = connection.dialect.name == "sqlite"
    # A database server may hold tables of others beside ours; a file may not.
    foreign = tables if is_sqlite else tables & Base.metadata.tables.keys()
    revision = None
    if _VERSION_TABLE in tables:
        revision = connection.execute(text(f"SELECT max(version_num) FROM {_VERSION_TABLE}")).scalar()  # noqa: S608
    if revision is None:
        if foreign - {_VERSION_TABLE}:
            raise _another_program(place)
        return Schema.NOTHING
    if is_sqlite and connection.exec_driver_sql("PRAGMA application_id").scalar() != APPLICATION_ID:
        raise _another_program(place)
    known = schema_revisions()
    if revision not in known:
        raise _another_program(place) if not revision.isdecimal() else _newer(place, revision, known[-1])
    return Schema.CURRENT if revision == known[-1] else Schema.OLDER


def _another_program(place: str) -> NotADatabaseError:
    return NotADatabaseError(f"{place} is a database of another program", hint="name another database")


def _newer(place: str, revision: str, newest_known: str) -> NewerSchemaError:
    return NewerSchemaError(
        f"{place} has schema {revision}, this version of autotune knows {newest_known} at most",
        hint=UPGRADE_HINT,
    )


def _upgrade(connection: Connection, place: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    # Alembic reads its settings with ConfigParser's interpolation, for which a percent sign is special.
    config.set_main_option("script_location", str(data_folder("db") / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")
    if connection.dialect.name != "sqlite":
        return
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    if connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(f"{place} could not be upgraded: rows refer to others that are not there")
