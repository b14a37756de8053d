"""Which paths each version of the configuration changed."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("config_versions", sa.Column("changed", sa.Text(), nullable=True))
