"""One-use secrets that pilots exchange for their tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pilot_secrets",
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("redeemed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_pilot_secrets")),
        sa.ForeignKeyConstraint(
            ["stamp"], ["pilots.stamp"], name=op.f("fk_pilot_secrets_stamp"), ondelete="CASCADE"
        ),
    )
