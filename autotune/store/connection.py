"""Opens a database: inspects it, creates or migrates it where needed, and returns an engine on the newest schema."""

from pathlib import Path

from sqlalchemy import Engine

from autotune.errors import MissingDatabaseError, StoreError
from autotune.store.database import Target, check_file, file_engine, prepare_writing, server_engine, use_write_ahead_log
from autotune.store.migration import Schema, migrate, read_schema


def open_for_writing(path: Path, *, makes: bool) -> Engine:
    """Open a file, migrating it where needed, and creating it if it is missing and `makes`. Raises StoreError."""
    if not makes:
        _require_file(path)
    prepare_writing(path)
    check_file(path)
    engine = file_engine(path)
    try:
        if read_schema(engine, str(path)) is not Schema.CURRENT:
            migrate(file_engine(path, foreign_keys=False, pooled=False), str(path))
        use_write_ahead_log(path)
    except BaseException:
        engine.dispose()
        raise
    return engine


def open_for_reading(path: Path) -> Engine:
    """Open a file read-only. Raises StoreError when it is missing or empty, or has an older schema."""
    _require_file(path)
    return _require_current(file_engine(path, read_only=True), str(path))


def open_server(target: Target, *, read_only: bool) -> Engine:
    """Open a server's database, creating or migrating the schema unless `read_only`. Raises StoreError."""
    engine = server_engine(target)
    if read_only:
        return _require_current(engine, str(target))
    try:
        if read_schema(engine, str(target)) is not Schema.CURRENT:
            migrate(engine, str(target))
    except BaseException:
        engine.dispose()
        raise
    return engine


def _require_file(path: Path) -> None:
    if not check_file(path):
        raise MissingDatabaseError(f"there is no database {path}", hint="create one with autotune run")


def _require_current(engine: Engine, place: str) -> Engine:
    try:
        schema = read_schema(engine, place)
    except BaseException:
        engine.dispose()
        raise
    if schema is Schema.CURRENT:
        return engine
    engine.dispose()
    if schema is Schema.NOTHING:
        raise StoreError(f"the database {place} is empty", hint="fill it with autotune run")
    raise StoreError(f"{place} has an older schema", hint=f"bring it up to date: autotune run --db {place} ...")
