"""An index that finds the newest jobs of a status in which jobs have ended, as others do for the living."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    ended = sa.text("status IN ('Completed', 'Deleted', 'Done', 'Failed', 'Killed')")
    op.create_index(
        "ix_jobs_ended_job_id", "jobs", ["status", "job_id"], sqlite_where=ended, postgresql_where=ended
    )
