"""Temporary values of the configuration within others, which come back until their own time."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("config_reverts", sa.Column("around", sa.Text()))
