"""Opens a database on the newest schema: determines the schema that it has, and creates or migrates it where needed.

Alembic is imported only where a migration runs: it is slow to import.
"""

import enum
import threading

from sqlalchemy import Connection, Engine, inspect, text

from autotune.errors import MissingDatabaseError, NotADatabaseError, StoreError
from autotune.lookup.database import is_our_file
from autotune.paths import APPLICATION_ID, data_folder, is_newest_revision
from autotune.store.database import (
    BEGIN,
    Target,
    check_file,
    file_engine,
    prepare_writing,
    server_engine,
    use_write_ahead_log,
)
from autotune.store.failures import attempt
from autotune.store.models import all_tables
from autotune.store.winners import VIEW

_VERSION_TABLE = "alembic_version"
_ADVISORY_LOCK = APPLICATION_ID
_ALEMBIC = threading.Lock()
"""Alembic's `op` and `context` are process-wide: a second migration at the same time would run on the connection of
the first."""


class Schema(enum.Enum):
    """How the schema of a database compares with the newest."""

    NOTHING = "nothing"
    OLDER = "older"
    CURRENT = "current"


def open_engine(target: Target, *, read_only: bool, makes: bool) -> Engine:
    """Open a database, creating or migrating its schema unless `read_only`; a missing file only if `makes`.

    Raises StoreError, also if it is read-only and missing or empty, or has an older schema.
    """
    path, place = target.path, str(target)
    if path is not None and (read_only or not makes) and not check_file(path):
        raise MissingDatabaseError(f"there is no database {path}", hint="create one with autotune run")
    if path is None:
        engine = server_engine(target)
    else:
        if not read_only:
            prepare_writing(path)
            check_file(path)
        engine = file_engine(path, read_only=read_only)
    try:
        schema = read_schema(engine, place)
        if read_only:
            _require_current(schema, place)
        elif schema is not Schema.CURRENT:
            migrate(engine if path is None else file_engine(path, foreign_keys=False, pooled=False), place)
        if path is not None and not read_only:
            use_write_ahead_log(path)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _require_current(schema: Schema, place: str) -> None:
    if schema is Schema.NOTHING:
        raise StoreError(f"the database {place} is empty", hint="fill it with autotune run")
    if schema is Schema.OLDER:
        raise StoreError(f"{place} has an older schema", hint=f"bring it up to date: autotune run --db {place} ...")


def read_schema(engine: Engine, place: str) -> Schema:
    """Return which schema a database has.

    Raises NotADatabaseError for another program's database, NewerSchemaError for a newer version's.
    """

    def read() -> Schema:
        with engine.connect() as connection:
            return _read_schema(connection, place)

    return attempt(read, place)


def migrate(engine: Engine, place: str) -> None:
    """Migrate to the newest schema, all or nothing; two programs may do so at once. Raises StoreError.

    On SQLite, the engine must not enforce foreign keys.
    """

    def run() -> None:
        with engine.execution_options(**{BEGIN: "BEGIN IMMEDIATE"}).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            # Another program may have migrated while this one waited for the lock.
            if _read_schema(connection, place) is not Schema.CURRENT:
                _upgrade(connection, place)

    attempt(run, place)


def _read_schema(connection: Connection, place: str) -> Schema:
    tables = set(inspect(connection).get_table_names())
    is_sqlite = connection.dialect.name == "sqlite"
    # On a server, tables of other programs may exist beside ours; in a file they may not.
    foreign = tables if is_sqlite else tables & all_tables().tables.keys()
    revision = None
    if _VERSION_TABLE in tables:
        revision = connection.execute(text(f"SELECT max(version_num) FROM {_VERSION_TABLE}")).scalar()  # noqa: S608
    if revision is None:
        if foreign - {_VERSION_TABLE}:
            raise _another_program(place)
        return Schema.NOTHING
    if (is_sqlite and not is_our_file(lambda query: connection.exec_driver_sql(query).all())) or not str(
        revision
    ).isdecimal():
        raise _another_program(place)
    return Schema.CURRENT if is_newest_revision(place, revision) else Schema.OLDER


def _another_program(place: str) -> NotADatabaseError:
    return NotADatabaseError(f"{place} is a database of another program", hint="name another database")


def _upgrade(connection: Connection, place: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    # Alembic reads its settings with ConfigParser's interpolation, which treats percent signs specially.
    config.set_main_option("script_location", str(data_folder("db") / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    connection.exec_driver_sql("DROP VIEW IF EXISTS best_configurations")
    with _ALEMBIC:
        command.upgrade(config, "head")
    connection.exec_driver_sql(VIEW)
    if connection.dialect.name != "sqlite":
        return
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    if connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise StoreError(f"{place} could not be upgraded: some rows refer to missing rows")
