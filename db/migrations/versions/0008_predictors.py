"""What predicts on each device, wherever the database is: it lay in a file beside one, and servers had none."""

import contextlib
import json
from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    predictors = op.create_table(
        "predictors",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_predictors"),
    )
    op.create_index("ix_predictors_device", "predictors", ["device"], unique=True)
    # What cannot be read is made anew from the trials.
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        op.bulk_insert(predictors, _from_file_beside())


def _from_file_beside() -> list[dict[str, str]]:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return []
    database = Path(connection.exec_driver_sql("PRAGMA database_list").fetchall()[0][2])
    known = json.loads(database.with_name(f"{database.name}.predictors.json").read_bytes())
    documents = {
        str(device["slug"]): json.dumps({"version": known["version"], "predictors": device["predictors"]})
        for device in known["devices"]
    }
    return [{"device": slug, "document": document} for slug, document in documents.items()]
