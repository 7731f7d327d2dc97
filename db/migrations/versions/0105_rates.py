"""Rates that were measured on devices."""

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = "0104"


def upgrade() -> None:
    op.create_table(
        "rates",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.UniqueConstraint("fingerprint", name="uq_rates_fingerprint"),
    )
