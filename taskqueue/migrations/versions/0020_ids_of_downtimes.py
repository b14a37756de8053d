"""On SQLite, too, the id of a deleted downtime is never given out again: PostgreSQL has a sequence."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    # A column of a table that is there cannot become AUTOINCREMENT, so the rows move: at most a thousand of a
    # site are not over. Not by a rename: SQLite reads all views for one, and fails at joins of `pool_queues`.
    execute = op.get_bind().exec_driver_sql
    execute("CREATE TEMPORARY TABLE moved_downtimes AS SELECT * FROM downtimes")
    op.drop_table("downtimes")
    op.create_table(
        "downtimes",
        sa.Column("downtime_id", sa.Integer(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("begins", _TIME, nullable=False),
        sa.Column("ends", _TIME, nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_id", sa.Text()),
        sa.PrimaryKeyConstraint("downtime_id", name=op.f("pk_downtimes")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_downtimes_scope"), "downtimes", ["scope"])
    op.create_index(op.f("ix_downtimes_ends"), "downtimes", ["ends"])
    execute("INSERT INTO downtimes SELECT * FROM moved_downtimes")
    execute("DROP TABLE moved_downtimes")
