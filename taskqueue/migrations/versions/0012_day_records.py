"""What was seen minute by minute is recorded, and of pilots when their slot was there and what it had."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "day_records",
        sa.Column("series", sa.String(16), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("hour", _TIME, nullable=False),
        sa.Column("minutes", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("series", "subject", "hour", name=op.f("pk_day_records")),
    )
    op.create_index(op.f("ix_day_records_hour"), "day_records", ["hour"])
    op.add_column("pilots", sa.Column("asked_at", _TIME, nullable=True))
    op.add_column("pilots", sa.Column("shape", sa.String(64), nullable=True))
