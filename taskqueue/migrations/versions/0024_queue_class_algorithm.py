"""The rule by which the digests of queue classes were computed stands beside the version they are of."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "queue_class_versions", sa.Column("algorithm", sa.Integer(), nullable=False, server_default="1")
    )
