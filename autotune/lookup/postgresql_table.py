"""Reads from a PostgreSQL server with psycopg, an optional dependency that is imported only here.

Each reading opens its own connection: a table is read once, a large one once for each device and family.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autotune.errors import DatabaseAwayError, NotADatabaseError, StoreError
from autotune.lookup.database import Ask
from autotune.paths import install_hint, is_newest_revision

_CONNECT_TIMEOUT_S = 10
_OURS = "SELECT to_regclass('alembic_version') IS NOT NULL, to_regclass('best_configurations') IS NOT NULL"


class Server:
    """A database on a server, given by the same URL as for the store."""

    def __init__(self, url: str) -> None:
        """Raises StoreError for an invalid URL, or if psycopg is not installed."""
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict, make_conninfo
        except ImportError as error:
            hint = f"{install_hint('postgres')}, or open a file written by autotune export"
            raise StoreError("the driver for PostgreSQL is not installed", hint=hint) from error
        try:
            # The part after a plus sign names the driver of the store.
            options = conninfo_to_dict(re.sub(r"^[a-z]+(\+\w+)?:", "postgresql:", url))
        except ProgrammingError:
            # Neither the URL nor the reason is shown: they may contain a password.
            hint = "write it as postgresql://user:password@host/database"
            raise StoreError("the URL of the database cannot be understood", hint=hint) from None
        self._connection = make_conninfo("", **{"connect_timeout": _CONNECT_TIMEOUT_S, **options})
        user, host, database = (str(options.get(name) or "") for name in ("user", "host", "dbname"))
        self._name = f"postgresql://{user}{'@' if user else ''}{host}/{database}"

    def __str__(self) -> str:
        return self._name

    @contextmanager
    def reading(self) -> Iterator[Ask]:
        import psycopg

        try:
            with psycopg.connect(self._connection) as connection:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

                def ask(query: str, *parameters: str) -> list[tuple[Any, ...]]:
                    rows: list[tuple[Any, ...]] = connection.execute(
                        query.replace("?", "%s").encode(), parameters
                    ).fetchall()
                    return rows

                yield ask
        except psycopg.Error as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            if isinstance(error, psycopg.OperationalError) and not error.sqlstate:
                hint = "check that the server is running and accepts your login"
                raise DatabaseAwayError(f"cannot reach {self}: {reason}", hint=hint) from error
            raise StoreError(f"{self} cannot be read: {reason}") from error

    def is_filled(self, ask: Ask) -> bool:
        has_version, has_view = ask(_OURS)[0]
        revision = ask("SELECT max(version_num) FROM alembic_version")[0][0] if has_version else None
        if revision is None:
            raise StoreError(f"{self} contains no tables of autotune", hint="create them with autotune run")
        if not has_view or not str(revision).isdecimal():
            raise NotADatabaseError(f"{self} is a database of another program", hint="name another database")
        is_newest_revision(self, str(revision))
        return True
