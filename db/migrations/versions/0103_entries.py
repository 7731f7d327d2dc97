"""Problems of jobs name the service that searches them, and their entry in the engine's queue."""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"


def upgrade() -> None:
    op.add_column("job_problems", sa.Column("service", sa.Text(), nullable=False, server_default=""))
    op.add_column("job_problems", sa.Column("entry", sa.BigInteger()))
    op.create_index("ix_job_problems_entry", "job_problems", ["entry"])
    op.drop_table("service_claim")  # a service holds the lock of a file instead
    op.add_column("job_problems", sa.Column("entry_model", sa.String(16), nullable=False, server_default=""))
