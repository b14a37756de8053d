"""Descriptions by their sandbox: whether a job still needs an archive, however many jobs wait."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_descriptions_sandbox",
        "descriptions",
        ["sandbox"],
        sqlite_where=sa.text("sandbox IS NOT NULL"),
        postgresql_where=sa.text("sandbox IS NOT NULL"),
    )
