"""What each attempt may use of its resource."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("processors", sa.Integer(), nullable=True))
    op.add_column("attempts", sa.Column("ram_mb", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("gpus", sa.Integer(), nullable=True))
