"""What predicts on each device, as the lookup reads it: one document, replaced when it is made anew."""

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
    """Slug: they serve the device under every driver."""
    document: Mapped[str] = mapped_column(Text)
    """As `autotune.lookup.predictor_text` writes it."""


def read_documents(session: Session) -> dict[str, str]:
    """By slug."""
    return {row.device: row.document for row in session.scalars(select(PredictorsRow).order_by(PredictorsRow.device))}


def keep_document(session: Session, slug: str, document: str) -> None:
    """In the place of what is there of the device."""
    if not insert_once(session.connection(), PredictorsRow(device=slug, document=document), "device"):
        session.execute(update(PredictorsRow).where(PredictorsRow.device == slug).values(document=document))
