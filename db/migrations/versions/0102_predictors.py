"""Drop the predictors: a lookup prefers the rule of a family, which did as well at every size held out."""

from alembic import op

revision = "0102"
down_revision = "0100"


def upgrade() -> None:
    op.drop_table("predictors")
