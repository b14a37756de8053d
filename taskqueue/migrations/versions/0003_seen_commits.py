"""Each home directory has a row for its last commit, and the installation a mark for lost ones."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column(
        "installation", sa.Column("lost_in", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    op.create_table(
        "seen_commits",
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("home", name=op.f("pk_seen_commits")),
    )
