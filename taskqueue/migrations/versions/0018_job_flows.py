"""How many jobs came into each status and left it, and how far the log was read for that."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_BUSY = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.0, "autovacuum_vacuum_threshold": 500}


def upgrade() -> None:
    op.create_table(
        "log_readers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.Column("noted", sa.BigInteger(), nullable=False),
        sa.Column("under_way", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_log_readers")),
    )
    op.create_table(
        "job_flows",
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("came", sa.BigInteger(), nullable=False),
        sa.Column("went", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("minute", "vo", "status", name=op.f("pk_job_flows")),
    )
    op.create_table(
        "job_stocks",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("vo", "status", name=op.f("pk_job_stocks")),
        postgresql_with=_BUSY,
    )
