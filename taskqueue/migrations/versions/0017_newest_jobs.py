"""Indexes that find the newest jobs of an owner and of a pool without sorting all of them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_OF_OWNER = ["vo", "owner", "status", "job_id"]
_OF_POOL = ["submit_pool", "status", "job_id"]


def upgrade() -> None:
    in_pool = sa.text("submit_pool IS NOT NULL")
    op.create_index("ix_jobs_vo_owner_status_job_id", "jobs", _OF_OWNER)
    op.create_index(
        "ix_jobs_submit_pool_status_job_id", "jobs", _OF_POOL, sqlite_where=in_pool, postgresql_where=in_pool
    )
    # Those that they begin with; the release before uses the new ones in their place.
    op.drop_index("ix_jobs_vo_owner_status", "jobs")
    op.drop_index("ix_jobs_submit_pool", "jobs")
