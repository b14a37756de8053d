"""How far the dynamic attributes had expired when queue classes and mappings were computed."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("submit_pools", "queue_class_versions"):
        op.add_column(table, sa.Column("expiries", sa.Integer(), nullable=False, server_default="0"))
