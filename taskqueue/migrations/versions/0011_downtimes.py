"""Downtimes of sites and CEs."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "downtimes",
        sa.Column("downtime_id", _ID, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("begins", _TIME, nullable=False),
        sa.Column("ends", _TIME, nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_id", sa.Text()),
        sa.PrimaryKeyConstraint("downtime_id", name=op.f("pk_downtimes")),
    )
    op.create_index(op.f("ix_downtimes_scope"), "downtimes", ["scope"])
    op.create_index(op.f("ix_downtimes_ends"), "downtimes", ["ends"])
