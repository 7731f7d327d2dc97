"""What tells one trial from another: stored again after a broken connection, it is there once."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    with op.batch_alter_table("trials") as trials:
        trials.add_column(sa.Column("identity", sa.String(32)))
    op.create_index("ix_trials_identity", "trials", ["identity"], unique=True)
