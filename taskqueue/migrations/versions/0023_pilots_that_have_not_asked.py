"""Pilots that run and have not requested jobs yet: which of them never reached the service."""

from taskqueue.migrations.existing_tables import add_index

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = ("status", "site", "ce", "queue", "vo")
    add_index("ix_pilots_not_asked", "pilots", *columns, where="status = 'Running' AND processors IS NULL")
