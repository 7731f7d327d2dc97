"""An index that holds all that the sums over a device's trials read (`store/history.py`): rows are 700 bytes wide."""

from alembic import op

revision = "0101"
down_revision = "0100"


def upgrade() -> None:
    columns = ["state", "problem_id", "driver", "time_ns", "measured_at", "temperature_c", "clock_mhz"]
    op.create_index("ix_trials_sums", "trials", ["device_id", *columns])
