"""When samples of waiting jobs were expected to start, and when they did."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "start_forecasts",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("estimate", sa.Float(), nullable=False),
        sa.Column("least", sa.Float(), nullable=True),
        sa.Column("most", sa.Float(), nullable=True),
        sa.Column("waited", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "at", name=op.f("pk_start_forecasts")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_start_forecasts_job_id"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_start_forecasts_vo_at"), "start_forecasts", ["vo", "at"])
