"""Descriptions by their sandbox: whether a job still needs an archive, however many jobs wait."""

from taskqueue.migrations.existing_tables import add_index

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_index("ix_descriptions_sandbox", "descriptions", "sandbox", where="sandbox IS NOT NULL")
