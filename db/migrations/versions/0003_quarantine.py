"""The trials in flight, and the quarantine: configurations that are not run again unasked."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

CRASHED_AND_HUNG = """
INSERT INTO quarantine (device_id, problem_id, configuration, algorithm, reason, message, since)
SELECT device_id, problem_id, configuration, algorithm, state, message, measured_at
FROM trials
WHERE id IN (
    SELECT MAX(id)
    FROM trials
    WHERE state IN ('crashed', 'timed out')
    GROUP BY device_id, problem_id, configuration
)
"""


def upgrade() -> None:
    op.create_table(
        "in_flight",
        *_subject("in_flight"),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("process_id", sa.BigInteger(), nullable=False),
        sa.Column("process_start", sa.Text(), nullable=False),
        sa.Column("run", sa.String(32), nullable=False),
        sa.Column("since", sa.Text(), nullable=False),
    )
    op.create_table(
        "quarantine",
        *_subject("quarantine"),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("since", sa.Text(), nullable=False),
        sa.CheckConstraint("reason IN ('lost', 'crashed', 'timed out')", name=op.f("ck_quarantine_reason")),
    )
    op.create_index("ix_quarantine_device_id_problem_id", "quarantine", ["device_id", "problem_id"])
    op.execute(CRASHED_AND_HUNG)


def _subject(table: str) -> list[sa.schema.SchemaItem]:
    """A configuration at a problem on a device under one driver."""
    return [
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("configuration", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=f"fk_{table}_device_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name=f"fk_{table}_problem_id"),
    ]
