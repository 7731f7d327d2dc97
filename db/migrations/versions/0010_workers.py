"""Enrolled workers, which service has the database, which worker has a trial, and what device a job was begun on."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("device", sa.String(64), nullable=False),
        sa.Column("secret_digest", sa.String(64), nullable=False),
        sa.Column("model", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
        sa.UniqueConstraint("name", "device", name="uq_workers_name_device"),
    )
    op.create_table(
        "service_claim",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("process_id", sa.BigInteger(), nullable=False),
        sa.Column("process_start", sa.Text(), nullable=False),
        sa.Column("run", sa.String(32), nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_service_claim"),
        sa.UniqueConstraint("role", name="uq_service_claim_role"),
    )
    for table in ("in_flight", "quarantine"):
        op.add_column(table, sa.Column("worker", sa.Text(), nullable=False, server_default=""))
    op.add_column("in_flight", sa.Column("session", sa.String(32), nullable=False, server_default=""))
    op.add_column("in_flight", sa.Column("selector", sa.String(20), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("model", sa.String(16), nullable=False, server_default=""))
