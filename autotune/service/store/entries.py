"""The entries of the engine's queues: jobs of procrastinate, each of which brings one queued problem to a device.

The tables of jobs (`job_rows.py`) say what is to be done. An entry stands for one attempt at a problem, in the queue of
the devices that may take it. Each is made in the transaction that notes its number, and a problem that is queued again
gets a new one: so a worker whose entry has a number that is no longer noted has lost the problem, and cannot disturb
the attempt after it.
"""

import hashlib
import logging

from procrastinate import App, SyncPsycopgConnector
from procrastinate.exceptions import ConnectorException
from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from autotune.errors import DatabaseAwayError
from autotune.service.store.job_rows import OPEN_WORDS, JobProblemRow, JobRow, JobState
from autotune.store.transactions import Transactions, writes

TASK = "search"
LONGEST_NAME = 40
"""Most characters of the name of a queue, of which procrastinate makes the name of a channel of PostgreSQL."""
MOST_AT_ONCE = 1000
"""Entries that are brought up to date in one transaction."""

_IS_UNLISTED = and_(
    JobProblemRow.state == JobState.QUEUED.value,
    JobRow.state.in_(OPEN_WORDS),
    or_(JobProblemRow.entry.is_(None), JobProblemRow.entry_model != JobRow.model),
)
"""It has no entry, or one in the queue of another model: the job has begun since, or its device has a new driver."""
_MAY_BE_WRONG = or_(JobProblemRow.state == JobState.QUEUED.value, JobProblemRow.entry.is_not(None))
"""Few of all the problems of all times, which two indices find."""
_IS_OFF = and_(JobRow.state == JobState.CANCELLED.value, JobProblemRow.entry.is_not(None))


def queue_of(device: str, model: str = "") -> str:
    """Return the name of the queue of a device: of jobs not begun yet, or of those begun on one with this `model`."""
    name = f"{device}/{model}" if model else device
    return name if len(name) <= LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()[:LONGEST_NAME]


class Entries:
    """The entries of an open database."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        self._app = App(connector=SyncPsycopgConnector())  # each call is given the connection of a transaction

    @writes
    def update(self, session: Session) -> None:
        """Make the entries that are missing, move those in a wrong queue, withdraw those of cancelled jobs.

        What another transaction has locked is left to the next time. Raises StoreError.
        """
        connection = session.connection().connection.driver_connection
        query = select(JobProblemRow, JobRow).join(JobRow, JobRow.id == JobProblemRow.job_id)
        query = query.where(_MAY_BE_WRONG, or_(_IS_UNLISTED, _IS_OFF)).order_by(JobProblemRow.id).limit(MOST_AT_ONCE)
        found = session.execute(query.with_for_update(of=JobProblemRow, skip_locked=True)).all()
        try:
            for row, job in found:
                self._withdraw(row, connection)
                if row.state == JobState.QUEUED.value:
                    row.entry, row.entry_model = self._defer(row, job, connection), job.model
        except ConnectorException as error:
            raise DatabaseAwayError(f"the engine cannot be used: {error.__cause__ or error}") from error

    def _defer(self, row: JobProblemRow, job: JobRow, connection: object) -> int:
        """Make an entry, before those of problems that were asked for later; return its number."""
        deferrer = self._app.configure_task(
            TASK, queue=queue_of(job.device, job.model), lock=str(row.id), priority=-row.id, connection=connection
        )
        return deferrer.defer(problem=row.id)

    def _withdraw(self, row: JobProblemRow, connection: object) -> None:
        """Remove the entry of a problem that no worker has taken; a worker that has is asked to abort the search."""
        if row.entry is None:
            return
        manager = self._app.job_manager
        is_known = manager.cancel_job_by_id(row.entry, abort=True, delete_job=True, connection=connection)
        if is_known and row.state == JobState.RUNNING.value:
            return
        row.entry = None
        if row.state == JobState.RUNNING.value:
            row.state = JobState.CANCELLED.value  # no worker searches it
