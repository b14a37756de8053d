"""The hardware that pilots had is kept for each site."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "seen_hardware",
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("first_seen_at", _TIME, nullable=False),
        sa.Column("last_seen_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("site", "digest", name=op.f("pk_seen_hardware")),
    )
    op.create_index(op.f("ix_seen_hardware_last_seen_at"), "seen_hardware", ["last_seen_at"])
