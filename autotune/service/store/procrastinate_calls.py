"""Runs the queries of procrastinate on a connection of SQLAlchemy, and so within its transaction.

Imported where the queue is used: procrastinate is installed only where services share a database.
"""

from typing import Any

from procrastinate.connector import BaseConnector
from procrastinate.manager import JobManager
from psycopg.types.json import Jsonb
from sqlalchemy import Connection, CursorResult


class _Here(BaseConnector):
    """Runs queries on one connection. Those of asynchronous methods, too, have ended when they return."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get_sync_connector(self) -> BaseConnector:
        return self

    def execute_query(self, query: str, **arguments: Any) -> None:
        self._execute(query, arguments)

    def execute_query_one(self, query: str, **arguments: Any) -> dict[str, Any]:
        return dict(self._execute(query, arguments).mappings().one())

    def execute_query_all(self, query: str, **arguments: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self._execute(query, arguments).mappings()]

    async def execute_query_async(self, query: str, **arguments: Any) -> None:
        self.execute_query(query, **arguments)

    async def execute_query_one_async(self, query: str, **arguments: Any) -> dict[str, Any]:
        return self.execute_query_one(query, **arguments)

    async def execute_query_all_async(self, query: str, **arguments: Any) -> list[dict[str, Any]]:
        return self.execute_query_all(query, **arguments)

    def _execute(self, query: str, arguments: dict[str, Any]) -> CursorResult[Any]:
        return self._connection.exec_driver_sql(query, {name: _adapted(item) for name, item in arguments.items()})


def _adapted(value: Any) -> Any:
    """Return an argument as psycopg takes it: objects become JSON, also in lists and in rows."""
    if isinstance(value, dict):
        return Jsonb(value)
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_adapted, value))
    return value


def job_manager(connection: Connection) -> JobManager:
    """Return procrastinate's job manager on a connection."""
    return JobManager(_Here(connection))
