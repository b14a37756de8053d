"""Where pilots of brokers may land, why pilots got nothing, and what failed ones wrote."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("pilots", sa.Column("landings", sa.Text(), nullable=True))
    op.add_column(
        "pilots", sa.Column("empty_reason", sa.String(length=40), nullable=False, server_default="")
    )
    op.create_table(
        "pilot_outputs",
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.Column("stdout", sa.Text(), nullable=False),
        sa.Column("stderr", sa.Text(), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_pilot_outputs")),
        sa.ForeignKeyConstraint(
            ["stamp"], ["pilots.stamp"], name=op.f("fk_pilot_outputs_stamp"), ondelete="CASCADE"
        ),
    )
