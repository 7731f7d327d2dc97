"""Determines the schema of a database, and migrates it to the newest.

Alembic is imported only where a migration runs: it is slow to import.
"""

import enum
import threading

from sqlalchemy import Connection, Engine, inspect, text

from autotune.errors import NotADatabaseError, StoreError
from autotune.paths import APPLICATION_ID, data_folder, is_newest_revision
from autotune.store.database import BEGIN
from autotune.store.failures import attempt
from autotune.store.models import Base

_VERSION_TABLE = "alembic_version"
_ADVISORY_LOCK = APPLICATION_ID
_ALEMBIC = threading.Lock()
"""Alembic's `op` and `context` are process-wide: a second migration at the same time would run on the connection of
the first."""

VIEW = """\
CREATE VIEW best_configurations AS
WITH
-- The newest measured winner and the fastest imported one, confirmed by finals and provisional apart.
newest AS (
    SELECT
        winners.*,
        CASE WHEN samples > 0 THEN 1 ELSE 0 END AS is_final,
        ROW_NUMBER() OVER (
            PARTITION BY device, problem_id, source, CASE WHEN samples > 0 THEN 1 ELSE 0 END
            ORDER BY CASE WHEN source = 'imported' THEN time_ns ELSE 0 END, id DESC
        ) AS place
    FROM winners
),
-- Confirmed before provisional, then the faster; where they tie, the one measured here ('measured' > 'imported').
ranked AS (
    SELECT
        newest.*,
        ROW_NUMBER() OVER (
            PARTITION BY device, problem_id
            ORDER BY is_final DESC, time_ns, source DESC
        ) AS rank_here
    FROM newest
    WHERE place = 1
)
SELECT
    ranked.device AS device,
    problems.family AS family,
    problems.label AS problem,
    problems.m AS m,
    problems.n AS n,
    problems.k AS k,
    ranked.algorithm AS algorithm,
    ranked.configuration AS configuration,
    ranked.time_ns AS time_ns,
    problems.flops / ranked.time_ns AS gflops,
    ranked.default_ns / ranked.time_ns AS gain_over_default,
    ranked.gain_low AS gain_low,
    ranked.gain_high AS gain_high,
    ranked.baseline_ns / ranked.time_ns AS gain_over_baseline,
    ranked.samples AS samples,
    ranked.is_default AS is_default,
    ranked.source AS source,
    ranked.driver AS driver,
    ranked.template_hash AS template_hash,
    ranked.space_version AS space_version,
    ranked.tool_version AS tool_version,
    ranked.measured_at AS measured_at,
    problems.spec AS spec,
    ranked.default_ns AS default_ns,
    ranked.baseline_ns AS baseline_ns,
    ranked.verdict AS verdict,
    ranked.verifications AS verifications
FROM ranked
JOIN problems ON problems.id = ranked.problem_id
WHERE ranked.rank_here = 1
"""
"""The current winner of each device, family and problem. The view is recreated after every migration."""


class Schema(enum.Enum):
    """How the schema of a database compares with the newest."""

    NOTHING = "nothing"
    OLDER = "older"
    CURRENT = "current"


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
    if not revision.isdecimal():
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
