"""Pilots of a site by the time of their first request: what the nodes of its queues had lately."""

from taskqueue.migrations.existing_tables import add_index

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_index("ix_pilots_site_asked_at", "pilots", "site", "asked_at")
