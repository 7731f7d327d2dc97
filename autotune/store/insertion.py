"""Rows that are there once, whoever inserts them first and however often: devices, problems, trials."""

from functools import cache
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.store.models import Base, DeviceRow, ProblemRow, device_row, problem_row


def insert_once(connection: Connection, row: Base, *unique: str) -> bool:
    """Insert a row, unless there is one with the same values in the columns `unique`; whether it was inserted.

    Where another program is inserting it now, its transaction is waited for.
    """
    values = {column.name: getattr(row, column.name) for column in row.__table__.columns if not column.primary_key}
    statement = _insertion(type(row), unique, connection.dialect.name)
    result: Any = connection.execute(statement, values)
    return bool(result.rowcount == 1)


@cache
def _insertion(kind: type[Base], unique: tuple[str, ...], dialect: str) -> Any:
    """Made once, since making it takes longer than the database does."""
    # The two databases have the same clause, each by a function of its own.
    insert: Any = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement = insert(kind.__table__).on_conflict_do_nothing(index_elements=unique).inline()
    return statement.execution_options(preserve_rowcount=True)


def device_id(session: Session, device: Device, *, is_seen_here: bool) -> int:
    """The row of a device, made where there is none; its limits are brought up to date where it is seen here."""
    row = device_row(device)
    query = select(DeviceRow).where(DeviceRow.fingerprint == row.fingerprint)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session.connection(), row, "fingerprint")
        found = session.scalars(query).one()
    if is_seen_here and found.limits != row.limits:
        found.limits = row.limits
    return found.id


def problem_id(session: Session, problem: Problem) -> int:
    """The row of a problem, made where there is none."""
    query = select(ProblemRow.id).where(ProblemRow.family == problem.family, ProblemRow.spec == problem.key)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session.connection(), problem_row(problem), "family", "spec")
        found = session.scalars(query).one()
    return found
