"""Jobs may wait for others."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LARGE = {
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.02,
}


def upgrade() -> None:
    op.create_table(
        "job_dependencies",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("parent_id", _ID, nullable=False),
        sa.Column("policy", sa.String(8), nullable=False),
        sa.Column("ended_as", sa.String(32), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "parent_id", name=op.f("pk_job_dependencies")),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.job_id"],
            name=op.f("fk_job_dependencies_job_id"),
            ondelete="CASCADE",
        ),
        postgresql_with=_LARGE,
    )
    op.create_index(
        op.f("ix_job_dependencies_open"),
        "job_dependencies",
        ["parent_id", "job_id"],
        sqlite_where=sa.text("ended_as IS NULL"),
        postgresql_where=sa.text("ended_as IS NULL"),
    )
