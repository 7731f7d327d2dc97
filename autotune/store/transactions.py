"""Transactions on an open database: retried while it is in use, full or away."""

import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.store import models
from autotune.store.database import BEGIN, Target
from autotune.store.failures import Outage, Patience, attempt

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

Work = Callable[[Connection], None]
"""A write. It must be safe to repeat, whether or not its first run was rolled back."""

AT_A_TIME = 8
"""Most writing transactions of one program at a time on a server; more would only wait for each other there."""


class Transactions:
    """What the parts of a store have in common. Every transaction raises StoreError when the database fails."""

    def __init__(self, target: Target, engine: Engine, *, read_only: bool) -> None:
        """Called by `Store.open` only."""
        self._target = target
        self._ids: dict[tuple[Device, Problem], tuple[int, int]] = {}
        self._outage = None if target.path else Outage()
        self._places = threading.Semaphore(1 if target.path else AT_A_TIME)
        """SQLite has one writer. Threads waiting on this semaphore are served in order; inside SQLite, by chance."""
        self._hurries = threading.Event()
        self._reading = self._writing = engine
        if target.path:
            # Takes the write lock at once: a transaction that reads first may be unable to write later.
            self._writing = engine.execution_options(**{BEGIN: "BEGIN IMMEDIATE"})
        else:
            # All reads of one method see the same state of the database, as they do with SQLite.
            self._reading = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            self._writing = self._reading if read_only else engine

    @property
    def _transactions(self) -> Self:
        return self

    @property
    def location(self) -> str:
        """Path or URL of the database, without a password."""
        return str(self._target)

    @property
    def target(self) -> str | Path:
        """Path or URL of the database, perhaps with a password, as `Store.open` takes it."""
        return self._target.path or self._target.url

    def read(self, work: Callable[[Session], _Result]) -> _Result:
        """Return the result of `work`, which only reads."""
        return self._transaction(self._reading, work)

    def write(self, work: Callable[[Session], _Result], *, waits_for_space: bool = False) -> _Result:
        """Return the result of `work`, which must be safe to repeat. Waits a while if the disk is full, if asked to."""
        with self._places:
            return self._transaction(self._writing, work, waits_for_space=waits_for_space)

    def write_together(self, work: Work, *, waits_for_space: bool = False) -> None:
        """Write in a transaction, which a service's store shares among threads."""
        self.write(lambda session: work(session.connection()), waits_for_space=waits_for_space)

    def ids_of(self, device: Device, problem: Problem) -> tuple[int, int]:
        """Return the ids of both rows, inserting missing ones. Cached, since these rows are never removed."""

        def find(session: Session) -> tuple[int, int]:
            is_seen = not device.presumed_from
            return models.device_id(session, device, is_seen_here=is_seen), models.problem_id(session, problem)

        if (device, problem) not in self._ids:
            self._ids[device, problem] = self.write(find, waits_for_space=True)
        return self._ids[device, problem]

    def hurry(self) -> None:
        """Stop waiting for a database that is in use, full or away. For any thread, before the program ends."""
        self._hurries.set()

    def close(self) -> None:
        """Close all connections."""
        self._reading.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _transaction(
        self, engine: Engine, work: Callable[[Session], _Result], *, waits_for_space: bool = False
    ) -> _Result:
        def once() -> _Result:
            with Session(engine) as session, session.begin():
                return work(session)

        patience = Patience(waits_for_space=waits_for_space, outage=self._outage, hurries=self._hurries.is_set)
        return attempt(once, self.location, patience)


class _Ledger(Protocol):
    @property
    def _transactions(self) -> Transactions: ...


_Owner = TypeVar("_Owner", bound=_Ledger)
_InSession = Callable[Concatenate[_Owner, Session, _Given], _Result]
_Method = Callable[Concatenate[_Owner, _Given], _Result]


def reads(method: _InSession[_Owner, _Given, _Result]) -> _Method[_Owner, _Given, _Result]:
    """Make each call of a method of a ledger a transaction that only reads, and pass it the session."""

    @wraps(method)
    def in_transaction(ledger: _Owner, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        return ledger._transactions.read(lambda session: method(ledger, session, *given, **named))

    return in_transaction


def writes(method: _InSession[_Owner, _Given, _Result]) -> _Method[_Owner, _Given, _Result]:
    """Make each call of a method of a ledger a transaction, which may be repeated, and pass it the session."""

    @wraps(method)
    def in_transaction(ledger: _Owner, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        return ledger._transactions.write(lambda session: method(ledger, session, *given, **named))

    return in_transaction
