"""The report of a director has the state of its queues."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("site_processes", sa.Column("queues", sa.Text(), nullable=True))
