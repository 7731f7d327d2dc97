"""What was read of the device beside each time, and the runs of the sentinel."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.batch_alter_table("trials") as batch:
        batch.add_column(sa.Column("launch_overhead_ns", sa.Double()))
        batch.add_column(sa.Column("clock_mhz", sa.Double()))
        batch.add_column(sa.Column("temperature_c", sa.Double()))
        if op.get_bind().dialect.name != "sqlite":  # there a rebuilt table loses its checks
            batch.drop_constraint(op.f("ck_trials_purpose"), type_="check")
        batch.create_check_constraint(op.f("ck_trials_purpose"), "purpose IN ('search', 'final', 'sentinel')")
