"""Inserts rows exactly once, however many programs insert them and however often: devices, problems, trials."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from autotune.model.device import Device, DeviceLimits
from autotune.model.problem import Problem
from autotune.store.models import Base, DeviceRow, ProblemRow, device_row, problem_row


def insert_once(connection: Connection, row: Base, *unique: str) -> bool:
    """Insert a row unless one with the same values in the columns `unique` exists; return whether it was inserted.

    Waits for the transaction of another program that is inserting the same row.
    """
    values = {column.name: getattr(row, column.name) for column in row.__table__.columns if not column.primary_key}
    statement = _insertion(type(row), unique, connection.dialect.name)
    result: Any = connection.execute(statement, values)
    return bool(result.rowcount == 1)


@cache
def _insertion(kind: type[Base], unique: tuple[str, ...], dialect: str) -> Any:
    """Return the statement. Cached, since building it takes longer than executing it."""
    # Both databases have the clause; SQLAlchemy has a separate function for each.
    insert: Any = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement = insert(kind.__table__).on_conflict_do_nothing(index_elements=unique).inline()
    return statement.execution_options(preserve_rowcount=True)


def device_id(session: Session, device: Device, *, is_seen_here: bool) -> int:
    """Return the id of a device's row, inserted if missing; its limits are updated if `is_seen_here`.

    Faults that came with imported tables stay: a device is often described without them.
    """
    row = device_row(device)
    query = select(DeviceRow).where(DeviceRow.fingerprint == row.fingerprint)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session.connection(), row, "fingerprint")
        found = session.scalars(query).one()
    if is_seen_here and found.limits != row.limits:
        stored = DeviceLimits.from_dict(json.loads(found.limits))
        imported = (fault for fault in stored.faults if fault.is_imported)
        faults = tuple(dict.fromkeys([*device.limits.faults, *imported]))
        found.limits = device_row(replace(device, limits=replace(device.limits, faults=faults))).limits
    return found.id


def problem_id(session: Session, problem: Problem) -> int:
    """Return the id of a problem's row, inserted if missing."""
    query = select(ProblemRow.id).where(ProblemRow.family == problem.family, ProblemRow.spec == problem.key)
    found = session.scalars(query).one_or_none()
    if found is None:
        insert_once(session.connection(), problem_row(problem), "family", "spec")
        found = session.scalars(query).one()
    return found
