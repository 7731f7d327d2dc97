"""Provisional winners have no gain, which only turns with the default can show."""

from alembic import op

revision = "0104"
down_revision = "0103"


def upgrade() -> None:
    op.execute("UPDATE winners SET gain_low = NULL, gain_high = NULL WHERE samples = 0")
