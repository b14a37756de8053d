"""Where a pool is eligible only at some nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "pool_queue_classes",
        sa.Column("undecided", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
