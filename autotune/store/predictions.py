"""The predictors of each device in the form that the lookup reads: one document, replaced when it is made anew."""

from sqlalchemy import Index, Text, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from autotune.store.insertion import insert_once
from autotune.store.models import Base


class PredictorsRow(Base):
    """The predictors of one device."""

    __tablename__ = "predictors"
    __table_args__ = (Index(None, "device", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(Text)
    """Slug; predictors apply to the device under every driver."""
    document: Mapped[str] = mapped_column(Text)
    """Text written by `autotune.lookup.values`."""


def read_documents(session: Session) -> dict[str, str]:
    """Return the documents by slug of the device."""
    return {row.device: row.document for row in session.scalars(select(PredictorsRow).order_by(PredictorsRow.device))}


def keep_document(session: Session, slug: str, document: str) -> None:
    """Store the document of a device, replacing an earlier one."""
    if not insert_once(session.connection(), PredictorsRow(device=slug, document=document), "device"):
        session.execute(update(PredictorsRow).where(PredictorsRow.device == slug).values(document=document))
