"""Room for heartbeats, and tables that are cleaned up before they swell."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_LARGE = {
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.02,
}
_QUEUE = {"autovacuum_vacuum_scale_factor": 0.01, "autovacuum_analyze_scale_factor": 0.02}
_BUSY = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.0, "autovacuum_vacuum_threshold": 500}
_STORAGE = {
    "jobs": _LARGE,
    "job_log": _LARGE,
    "attempts": {**_LARGE, "fillfactor": 85},
    "job_waits": _LARGE,
    "waiting_jobs": _QUEUE,
    "changes": _QUEUE,
    "match_requests": _QUEUE,
    "reservations": _QUEUE,
    "scopes": _BUSY,
    "matching_delays": _BUSY,
    "agent_leases": _BUSY,
}
_FINAL = "('Completed', 'Deleted', 'Done', 'Failed', 'Killed')"
#: Table, columns and condition.
_NEW = {
    "ix_jobs_ended": ("jobs", ["status", "updated_at"], f"status IN {_FINAL}"),
    "ix_jobs_living": ("jobs", ["status", "job_id"], f"status NOT IN {_FINAL}"),
    "ix_attempts_not_started": ("attempts", ["job_id"], "closed_at IS NULL AND started_at IS NULL"),
    "ix_attempts_ending": ("attempts", ["job_id"], "closed_at IS NULL AND ending IS true"),
}
#: The release before runs without them, only slower.
_OLD = {"ix_jobs_status_updated_at": "jobs", "ix_attempts_lease_expires_at": "attempts"}


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for table, values in _STORAGE.items():
            options = ", ".join(f"{name} = {value}" for name, value in values.items())
            op.execute(f"ALTER TABLE {table} SET ({options})")
    for name, (table, columns, which) in _NEW.items():
        where = sa.text(which)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
    for name, table in _OLD.items():
        op.drop_index(name, table)
