"""How many slots came lately where the jobs of a task queue may run."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("task_queues", sa.Column("supply", sa.BigInteger(), nullable=True))
