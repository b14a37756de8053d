"""Forecasts of jobs that wait for long give their places to new ones."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("start_forecasts", sa.Column("given_up", sa.Boolean(), nullable=True))
