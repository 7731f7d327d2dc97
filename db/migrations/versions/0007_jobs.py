"""The service's jobs: what to tune or verify on which device, a row for each problem."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

STATES = "state IN ('queued', 'running', 'done', 'failed', 'cancelled')"


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("trials", sa.BigInteger()),
        sa.Column("seconds", sa.Double()),
        sa.Column("algorithms", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Text(), nullable=False),
        sa.CheckConstraint("kind IN ('tune', 'verify')", name=op.f("ck_jobs_kind")),
        sa.CheckConstraint(STATES, name=op.f("ck_jobs_state")),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "job_problems",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("candidate", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("trials_before", sa.BigInteger()),
        sa.Column("share_s", sa.Double(), nullable=False),
        sa.Column("spent_s", sa.Double(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.CheckConstraint(STATES, name=op.f("ck_job_problems_state")),
        sa.PrimaryKeyConstraint("id", name="pk_job_problems"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_problems_job_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_job_problems_problem_id"),
    )
    op.create_index("ix_job_problems_job_id", "job_problems", ["job_id"])
    op.create_index("ix_job_problems_state", "job_problems", ["state"])
