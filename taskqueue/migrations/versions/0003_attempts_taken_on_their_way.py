"""An index finds the attempts of a place that were taken away before their start: a throttle counts them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_IS_TAKEN = sa.text("closed_as = 'rescheduled' AND started_at IS NULL")


def upgrade() -> None:
    collation = ' COLLATE "C"' if op.get_bind().dialect.name == "postgresql" else ""
    at: list[sa.ColumnClause[str]] = [
        sa.literal_column(f"lower({name}{collation})") for name in ("site", "ce")
    ]
    op.create_index(
        "ix_attempts_taken_at", "attempts", at, postgresql_where=_IS_TAKEN, sqlite_where=_IS_TAKEN
    )
