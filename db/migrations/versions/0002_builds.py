"""The ledger of builds: sources that were built without running them."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "builds",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("configuration", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("source_hash", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("build_ns", sa.Double(), nullable=False),
        sa.Column("private_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("work_group_limit", sa.BigInteger(), nullable=False),
        sa.Column("binary_bytes", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column("space_version", sa.Integer(), nullable=False),
        sa.Column("tool_version", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_builds"),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name="fk_builds_device_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problems.id"], name="fk_builds_problem_id"),
    )
    op.create_index("ix_builds_device_id_source_hash", "builds", ["device_id", "source_hash"])
