"""Jobs may wait for a match for a time of their own; those that fail for it are counted."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("descriptions", sa.Column("waiting_ttl", sa.BigInteger(), nullable=True))
    op.create_table(
        "unmatched_jobs",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("reason", sa.String(40), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("vo", "reason", name=op.f("pk_unmatched_jobs")),
    )
