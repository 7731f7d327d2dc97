"""Rows that are there once, whoever inserts them first and however often: devices, problems, trials."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from autotune.family import Device, Problem
from autotune.store.models import Base, DeviceRow, ProblemRow, device_row, problem_row


def insert_once(session: Session, row: Base, *unique: str) -> bool:
    """Insert a row, unless there is one with the same values in the columns `unique`; whether it was inserted.

    Where another program is inserting it now, its transaction is waited for.
    """
    table = type(row).__table__
    values = {column.name: getattr(row, column.name) for column in table.columns if not column.primary_key}
    # The two databases have the same clause, each by a function of its own.
    insert: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    statement = insert(table).values(values).on_conflict_do_nothing(index_elements=unique).inline()
    result: Any = session.execute(statement, execution_options={"preserve_rowcount": True})
    return bool(result.rowcount == 1)


def device_id(session: Session, device: Device, *, is_seen_here: bool) -> int:
    """The row of a device, made where there is none; its limits are brought up to date where it is seen here."""
    row = device_row(device)
    query = select(DeviceRow).where(DeviceRow.fingerprint == row.fingerprint)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session, row, "fingerprint")
        found = session.scalars(query).one()
    if is_seen_here and found.limits != row.limits:
        found.limits = row.limits
    return found.id


def problem_id(session: Session, problem: Problem) -> int:
    """The row of a problem, made where there is none."""
    query = select(ProblemRow.id).where(ProblemRow.family == problem.family, ProblemRow.spec == problem.key)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session, problem_row(problem), "family", "spec")
        found = session.scalars(query).one()
    return found
