"""Winners: their table and view, and the transactions that record, import and read them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, column, func, select, table, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.errors import StoreError
from autotune.kernels import family_names
from autotune.lookup.database import BEST_CONFIGURATIONS
from autotune.model.device import Device
from autotune.model.problem import Problem
from autotune.model.trial import Provenance, Winner
from autotune.store.models import (
    Base,
    DeviceRow,
    ProblemRow,
    ProvenanceColumns,
    columns,
    device_id,
    known_rows,
    problem_id,
    to_problem,
    value_of,
)
from autotune.store.transactions import Transactions, writes
from autotune.store.trials import TrialRow


class WinnerRow(ProvenanceColumns, Base):
    """One decision for a winner. Rows are only ever added; the view selects the current ones."""

    __tablename__ = "winners"
    __table_args__ = (
        Index(None, "device", "problem_id"),
        CheckConstraint("source IN ('measured', 'imported')", name="source"),
        CheckConstraint("time_ns > 0", name="time_ns"),
        CheckConstraint("samples >= 0", name="samples"),
        CheckConstraint("verifications >= 0", name="verifications"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(Text)
    """Slug; a winner applies to the device under every driver."""
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    configuration: Mapped[str] = mapped_column(Text)
    algorithm: Mapped[str] = mapped_column(Text)
    time_ns: Mapped[float]
    default_ns: Mapped[float]
    baseline_ns: Mapped[float | None]
    gain_low: Mapped[float | None]
    gain_high: Mapped[float | None]
    samples: Mapped[int]
    is_default: Mapped[bool]
    source: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str] = mapped_column(String(16))
    verifications: Mapped[int]


BEST = table("best_configurations", column("device", Text), column("family", Text), column("spec", Text))
"""The view, with those of its columns that queries name."""

VIEW = f"CREATE VIEW best_configurations AS\n{BEST_CONFIGURATIONS}"
"""The view is recreated after every migration."""

_BEST = select(text("*")).select_from(BEST)

_DECIDED_HERE = (
    select(WinnerRow.device, ProblemRow.family, ProblemRow.spec)
    .join(ProblemRow, WinnerRow.problem_id == ProblemRow.id)
    .where(WinnerRow.source == "measured", WinnerRow.samples > 0)
    .distinct()
)
"""Device, family and key of each problem whose finals were finished here."""


class WinnerLedger(Transactions):
    """The part of a store that holds winners."""

    def record_winner(self, winner: Winner) -> None:
        """Add a decision; the view decides which one is current. Raises StoreError for an unknown device."""

        def add(session: Session) -> None:
            if session.scalars(select(DeviceRow.id).where(DeviceRow.slug == winner.device).limit(1)).first() is None:
                raise _unknown_device(winner.device)
            session.add(winner_row(winner, problem_id(session, winner.problem)))

        self.write(add, waits_for_space=True)

    def best(self, device_slug: str | None = None, family: str | None = None) -> list[Winner]:
        """Return the current winner of each problem, ordered by device, family and sizes."""
        query = _BEST
        if device_slug is not None:
            query = query.where(BEST.c.device == device_slug)
        if family is not None:
            query = query.where(BEST.c.family == family)
        winners = self.read(lambda session: known_rows(session.execute(query), _to_winner))
        return sorted(winners, key=_place)

    def best_counts(self) -> Counter[str]:
        """Count the problems that have a winner by device, of the families that this installation has."""
        query = select(BEST.c.device, func.count()).where(BEST.c.family.in_(family_names())).group_by(BEST.c.device)
        rows = self.read(lambda session: session.execute(query).all())
        return Counter({row[0]: row[1] for row in rows})

    def winner(self, device_slug: str, problem: Problem) -> Winner | None:
        """Return the current winner of one problem on a device; None without one."""
        subject = (BEST.c.device == device_slug, BEST.c.family == problem.family, BEST.c.spec == problem.key)
        query = _BEST.where(*subject)
        return next(iter(self.read(lambda session: known_rows(session.execute(query), _to_winner))), None)

    @writes
    def import_winners(self, session: Session, winners: Sequence[Winner], devices: Sequence[Device]) -> tuple[int, int]:
        """Add winners measured elsewhere where they are better than the current ones; return (added, kept).

        A winner confirmed by finals is better than a provisional one; otherwise the faster one is better, unless finals
        were finished here and its configuration was tried here: its time elsewhere does not count then. All or nothing.
        Devices that are already stored stay as they are, apart from imported faults.
        Raises StoreError for a winner of an unknown device.
        """
        for device in devices:
            device_id(session, device, is_seen_here=False)
        known = set(session.scalars(select(DeviceRow.slug)))
        best = session.execute(_BEST)
        standing = {(row.device, row.family, row.spec): _merit(row.samples, row.time_ns) for row in best}
        decided = set(map(tuple, session.execute(_DECIDED_HERE)))
        added = 0
        for winner in winners:
            if winner.device not in known:
                raise _unknown_device(winner.device)
            subject = (winner.device, winner.problem.family, winner.problem.key)
            merit = _merit(winner.samples, winner.time_ns)
            if subject in standing and (
                merit >= standing[subject] or (subject in decided and _is_tried_here(session, winner))
            ):
                continue
            standing[subject] = merit
            session.add(winner_row(replace(winner, source="imported"), problem_id(session, winner.problem)))
            added += 1
        return added, len(winners) - added


def _is_tried_here(session: Session, winner: Winner) -> bool:
    """Return whether the winner's configuration was tried on its device, at its problem, which is stored."""
    query = select(TrialRow.id).join(DeviceRow, TrialRow.device_id == DeviceRow.id)
    tried = query.where(
        DeviceRow.slug == winner.device,
        TrialRow.problem_id == problem_id(session, winner.problem),
        TrialRow.configuration == winner.configuration.key,
    )
    return session.scalar(tried.limit(1)) is not None


def winner_row(winner: Winner, problem_id: int) -> WinnerRow:
    """Return a row without an id."""
    return WinnerRow(
        problem_id=problem_id,
        algorithm=winner.configuration.algorithm,
        **columns(winner, WinnerRow),
        **columns(winner.provenance, WinnerRow),
    )


def _to_winner(row: Any) -> Winner:
    """Return the winner of a row of the view."""
    provenance = value_of(Provenance, row)
    return value_of(Winner, row, problem=to_problem(row.family, row.spec), provenance=provenance)


def _unknown_device(slug: str) -> StoreError:
    return StoreError(f"the database has no device {slug[:80]!r}", hint="add the device before its winners")


def _merit(samples: int, time_ns: float) -> tuple[bool, float]:
    """Return a sort key, smaller being better: confirmed before provisional, then by time. The view ranks the same."""
    return samples == 0, time_ns


def _place(winner: Winner) -> tuple[str, str, tuple[int, ...], str]:
    return winner.device, winner.problem.family, winner.problem.size_vector, winner.problem.key
