"""How far the phases of a grid job are, and how its local jobs stand."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("phases", sa.Text(), nullable=True))
    op.add_column("attempts", sa.Column("local_jobs", sa.Text(), nullable=True))
