"""Who submitted a job, so that nobody fills the queue for all."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("submitter", sa.String(100), nullable=False, server_default=""))
    op.create_index("ix_jobs_submitter", "jobs", ["submitter"])
